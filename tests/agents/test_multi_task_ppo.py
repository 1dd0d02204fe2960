from dataclasses import asdict, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.agents import make_agent, multi_task_ppo, ppo
from jaxrl.errors import UsageError
from jaxrl.losses import popart
from jaxrl.spaces import Box
from jaxrl.types import Experience

ACTIONS = Box(-1.0, 1.0, (2,))
SMALL = ppo.Config(hidden_sizes=(8,), epochs=2, minibatches=2, learning_rate=1e-2)


def config(**settings):
    return multi_task_ppo.Config(**{**asdict(SMALL), **settings})


def rollout(tasks=1, length=8, lanes=6, scales=None):
    """Random experience of lanes in equal blocks, a one-hot at the end of each observation where there are several tasks."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    one_hot = jnp.repeat(jnp.eye(tasks), lanes // tasks, 0) if tasks > 1 else jnp.zeros((lanes, 0))
    mark = lambda x: jnp.concatenate([x, jnp.broadcast_to(one_hot, (*x.shape[:-1], one_hot.shape[-1]))], -1)
    scale = jnp.repeat(jnp.asarray(scales or [1.0] * tasks), lanes // tasks)
    flags = jnp.asarray(rng.random((length, lanes)) < 0.1)
    no = jnp.zeros_like(flags)
    observation, following = draw(length, lanes, 3), draw(length, lanes, 3)
    action = jnp.tanh(draw(length, lanes, 2))
    return Experience(mark(observation), action, scale * draw(length, lanes), flags, no, mark(following))


def space(tasks):
    return Box(-np.inf, np.inf, (3 + (tasks if tasks > 1 else 0),))


def agent_of(settings, tasks):
    return make_agent(replace(settings, num_tasks=tasks), space(tasks), ACTIONS)


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize(
    "modules", [{}, {"critic_combiner": "fairgrad", "actor_combiner": "pcgrad"}, {"normalise_advantages_by_task": True}]
)
def test_one_task_is_ppo_bit_for_bit(modules):
    plain, ours = make_agent(SMALL, space(1), ACTIONS), agent_of(config(**modules), 1)
    a, b = plain.init(jax.random.key(0)), ours.init(jax.random.key(0))
    for seed in range(2):
        key = jax.random.key(seed)
        a, _ = jax.jit(plain.update)(a, rollout(), key)
        b, _ = jax.jit(ours.update)(b, rollout(), key)
    same(a.params, b.params)
    same(a.optimizer_state, b.optimizer_state)


def test_gradients_taken_apart_and_averaged_are_those_of_the_mean_loss():
    joint, apart = (agent_of(config(normalise_advantages_by_task=True, conditioning=c), 3) for c in (False, True))
    a, b = (jax.jit(one.update)(one.init(jax.random.key(0)), rollout(3), jax.random.key(1)) for one in (joint, apart))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-6), a[0].params, b[0].params)
    assert 1 / 3 <= b[1]["critic/gradients/largest_share"] <= 1.0 and "critic/gradients/largest_share" not in a[1]


def test_popart_keeps_values_while_statistics_move_by_ten_thousand():
    ours = agent_of(config(popart=True, learning_rate=0.0), 3)
    update, given = jax.jit(ours.update), rollout(3, scales=[1.0, 1e2, 1e4])
    state, _ = update(ours.init(jax.random.key(0)), rollout(3), jax.random.key(1))
    parts = ppo.Parts(replace(config(popart=True), num_tasks=3), None, ours_critic(), None, None, None)
    before = multi_task_ppo.values(parts, state.params["critic"], state.targets, given.observation)
    state, metrics = update(state, given, jax.random.key(2))
    after = multi_task_ppo.values(parts, state.params["critic"], state.targets, given.observation)
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5 * 1e4)
    moved = popart.scale(state.targets)
    assert moved[2] > 1e3 and moved[0] < 10 and float(metrics["critic/largest_scale"]) == float(moved[2])


def test_an_estimate_is_in_units_of_the_rewards_of_its_own_task():
    """Whatever the order of the observations; the critic's own values know a task by its lanes."""
    ours, given = agent_of(config(popart=True), 3), rollout(3, scales=[1.0, 1e2, 1e4])
    state, _ = jax.jit(ours.update)(ours.init(jax.random.key(0)), given, jax.random.key(1))
    parts = ours.update.args[0]
    expected = multi_task_ppo.values(parts, state.params["critic"], state.targets, given.observation)
    assert float(jnp.abs(expected[:, -1]).max()) > 100 * float(jnp.abs(expected[:, 0]).max())
    turned = given.observation[:, ::-1]
    np.testing.assert_allclose(ours.estimate(state, turned, None), expected[:, ::-1], rtol=1e-5)


def ours_critic():
    from jaxrl.networks import StateValue

    return StateValue(1, (8,), "tanh", False)


def test_popart_learns_tasks_whose_rewards_are_far_apart():
    """Errors in units of each task's deviation fall for all of them; without it the small ones are not seen."""
    scales = [1e-2, 1.0, 1e2]
    given = rollout(3, length=16, lanes=12)
    given = given._replace(reward=jnp.repeat(jnp.asarray(scales), 4) * given.observation[..., 0])
    worst = {}
    for name, modules in {"plain": {}, "popart": {"popart": True}}.items():
        ours = agent_of(config(**modules, epochs=10, hidden_sizes=(32,), discount=0.0), 3)
        state, update = ours.init(jax.random.key(0)), jax.jit(ours.update)
        for seed in range(30):
            state, metrics = update(state, given, jax.random.key(seed))
        worst[name] = float(metrics["critic/worst_explained_variance"])
    assert worst["popart"] > 0.5 and worst["plain"] < 0.0


def test_toppo_updates_and_measures():
    ours = agent_of(multi_task_ppo.toppo(config(conditioning=True)), 3)
    state, metrics = jax.jit(ours.update)(ours.init(jax.random.key(0)), rollout(3), jax.random.key(1))
    assert set(state.params["critic"]) == {"trunk", "head"}
    assert all(np.isfinite(value) for value in metrics.values())
    assert "critic/gradients/condition" in metrics


def test_refuses():
    with pytest.raises(UsageError, match="nearest: 3 and 6"):
        agent_of(config(), 3).update(
            agent_of(config(), 3).init(jax.random.key(0)), rollout(1, lanes=4), jax.random.key(0)
        )
    with pytest.raises(UsageError, match="fairgrad"):
        agent_of(config(critic_combiner="fairgard"), 1)
    with pytest.raises(UsageError, match="one-hot"):
        make_agent(replace(config(), num_tasks=8), Box(-1.0, 1.0, (5,)), ACTIONS)
    with pytest.raises(UsageError, match="num_tasks 0"):
        agent_of(config(), 0)
    with pytest.raises(UsageError, match="minibatches"):
        one = agent_of(config(minibatches=5), 3)
        one.update(one.init(jax.random.key(0)), rollout(3), jax.random.key(0))
