"""BRC: the mean of the critics at time limits, tasks and their vectors, rewards divided task by task."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import normalise
from jaxrl.agents import brc
from jaxrl.errors import UsageError
from jaxrl.spaces import Box
from tests.agents import toys
from tests.agents.test_fast_td3 import FIRST, SECOND, says
from tests.agents.test_simba_v2 import Config, Fixed, one_step

TASKS = 2
OBSERVATIONS = Box(-10.0, 10.0, (3 + TASKS,))


class Says:
    """Critics that say their parameters for every row, whatever the context."""

    @staticmethod
    def apply(params, observation, context, action):
        return jnp.broadcast_to(params, (*action.shape[:-1], *params.shape))


class OneTask(Config):
    num_tasks = 1


def parts_of(agent):
    return agent.update.args[0]._replace(critic=Says(), config=OneTask())


def seen(batch):
    """A batch whose observations are what the networks see."""
    task = jnp.zeros(batch.reward.shape, jnp.int32)
    return batch._replace(
        observation=brc.View(batch.observation, task), next_observation=brc.View(batch.next_observation, task)
    )


@functools.cache
def multitask():
    """Compiled once for all tests."""
    return toys.Compiled(toys.make("brc", "box", observations=OBSERVATIONS, num_tasks=TASKS, embedding_size=4))


def with_tasks(rollout, task):
    """A rollout whose observations end in a one-hot of the task [T, N]."""
    one_hot = np.eye(TASKS, dtype=np.float32)[task]
    join = lambda x: np.concatenate([x, one_hot], axis=-1)
    return rollout._replace(observation=join(rollout.observation), next_observation=join(rollout.next_observation))


@pytest.mark.parametrize(
    ("flags", "expected"),
    # The mean of both critics is (0, 1/4, 0, 1/4, 1/2). With an entropy worth 0.5, 0.25 + 0.5 * (z + 0.5) sends -1 to 0,
    # 1 to 1 and 2 to 1.5.
    [((False, True), [0.0, 0.0, 0.25, 0.5, 0.25]), ((True, False), [0.0, 0.0, 0.75, 0.25, 0.0])],
)
def test_target_at_a_time_limit_and_at_a_death(monkeypatch, flags, expected):
    monkeypatch.setattr(brc, "policy", lambda *_: Fixed())
    parts = parts_of(toys.make("brc", "box"))
    params, target_params = {"temperature": jnp.log(0.5)}, {"critic": {"members": says(FIRST, SECOND)}}
    target = brc.critic_target(params, target_params, parts, seen(one_step(*flags)), jax.random.key(0))
    np.testing.assert_allclose(target, [expected], atol=1e-6)


def test_the_policy_climbs_the_mean_of_the_critics(monkeypatch):
    monkeypatch.setattr(brc, "policy", lambda *_: Fixed())
    parts = parts_of(toys.make("brc", "box"))
    others = {"critic": {"members": says(FIRST, SECOND)}, "temperature": jnp.log(0.2)}
    loss, _ = brc.actor_loss(None, others, parts, seen(one_step(False, False)), jax.random.key(0))
    np.testing.assert_allclose(loss, 0.2 * -1.0 - (1.5 + 0.5) / 2, rtol=1e-5)


def test_the_task_is_the_end_of_the_observation_whatever_the_statistics():
    parts = multitask().agent.update.args[0]
    rollout = with_tasks(toys.experience("box"), np.tile([0, 1, 1, 0], (toys.T, 1)))
    stats = normalise.update(normalise.init(jnp.zeros(5)), rollout.observation)
    view = brc.view(parts, stats, rollout.observation)
    np.testing.assert_array_equal(view.task, np.tile([0, 1, 1, 0], (toys.T, 1)))
    plain = rollout.observation[..., :3]
    mean, std = plain.reshape(-1, 3).mean(0), plain.reshape(-1, 3).std(0)
    np.testing.assert_allclose(view.features, (plain - mean) / std, rtol=1e-4, atol=1e-5)


def test_tasks_differ_by_a_vector_of_unit_length_that_the_critics_train():
    agent = multitask()
    parts, state = agent.agent.update.args[0], agent.init(jax.random.key(0))
    rollout = with_tasks(toys.experience("box"), np.tile([0, 1, 1, 0], (toys.T, 1)))
    after, metrics = agent.update(state, toys.batch_for(agent.agent, rollout), jax.random.key(1))
    for params in (state.params, after.params):
        vectors = brc.context(parts, params["critic"], jnp.arange(TASKS))
        assert vectors.shape == (TASKS, 4)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=-1), 1.0, rtol=1e-6)
        assert float(jnp.abs(vectors[0] - vectors[1]).max()) > 0.1
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), state.params, after.params)
    assert min(jax.tree.leaves(moved["critic"]["task"])) > 0
    assert np.isfinite(metrics["critic/loss"])

    # The policy reads the vector and does not train it.
    view = brc.view(parts, None, rollout.observation[0])
    draw = lambda critic: jnp.sum(brc.policy(parts, state.params | {"critic": critic}, view).mode())
    assert all(float(jnp.abs(g).max()) == 0 for g in jax.tree.leaves(jax.grad(draw)(state.params["critic"])))
    # One task's observation, and the other's that differs in nothing else, are answered differently.
    same = jnp.ones((TASKS, 3))
    loc = brc.policy(parts, state.params, brc.View(same, jnp.arange(TASKS))).loc
    assert float(jnp.abs(loc[0] - loc[1]).max()) > 1e-3


def test_rewards_are_divided_task_by_task():
    """Lanes of task 0 earn 1 a step until a limit, 5 for ever. Lanes of task 1 earn -3 at last and die. A support of ±20."""
    agent = multitask()
    parts = agent.agent.update.args[0]
    task = np.tile([0, 1, 0, 1], (toys.T, 1))
    rollout = with_tasks(toys.experience("box"), task)
    last = np.broadcast_to(np.arange(toys.T)[:, None] == toys.T - 1, task.shape)
    reward = np.where(task == 0, 1.0, np.where(last, -3.0, 0.0)).astype(np.float32)
    rollout = rollout._replace(reward=reward, truncated=last & (task == 0), terminated=last & (task == 1))
    state = toys.with_hyper(agent.init(jax.random.key(0)), discount=0.8)
    state = agent.observe(state, rollout)
    np.testing.assert_allclose(state.scale.largest, [5.0, 3.0], rtol=1e-5)
    # The entropy's worth: a temperature of 0.1, a target of -1, a horizon of 5 steps: 0.1 * 1 * 5 / 2 = 0.25.
    np.testing.assert_allclose(brc.reward_divisor(parts, state), [5.25 / 20, 3.25 / 20], rtol=1e-5)
    _, metrics = agent.update(state, toys.batch_for(agent.agent, rollout), jax.random.key(1))
    np.testing.assert_allclose(metrics["reward/divisor"], (5.25 + 3.25) / 40, rtol=1e-5)


def test_settings_that_cannot_work_are_refused():
    with pytest.raises(UsageError, match="num_tasks 3 needs vectors of more than 3 numbers"):
        toys.make("brc", "box", num_tasks=3)
    for fields, message in (
        ({"num_tasks": 0}, "num_tasks 0 cannot work; it must be at least 1"),
        ({"value_max": -1.0}, "value_max -1.0 cannot work"),
        ({"episode_length": 0}, "episode_length 0 cannot work; it must be at least 1"),
    ):
        with pytest.raises(UsageError, match=message):
            toys.make("brc", "box", **fields)
    agent = toys.make("brc", "box", followed_envs=2)
    state = jax.eval_shape(agent.init, jax.random.key(0))
    with pytest.raises(UsageError, match="followed_envs 2 cannot follow 4 environments; the least that works is 4"):
        jax.eval_shape(agent.observe, state, toys.experience("box"))
