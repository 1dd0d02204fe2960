"""Several tasks as one environment: layout, padding, metrics of each task, families, and what is refused."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from env_helpers import dictionary, roll, uniform

import environments
from environments import Environment, multi_task, only, task_set, vectorise
from environments.adapters import first_step, single_step
from jaxrl.agents.base import Agent
from jaxrl.errors import UsageError
from jaxrl.spaces import Box, Discrete
from jaxrl.training import evaluate
from jaxrl.training.evaluation import task_columns
from jaxrl.training.loop import collect
from jaxrl.training.measuring import measure
from jaxrl.types import Step


def adder(name="test:adder", width=2, low=-1.0, high=1.0, limit=3, gain=1.0, solved_at=2):
    """Observes ``width`` times the sum of the actions so far; rewards ``gain`` times the action; truncated at ``limit``;
    solved at the step of that number alone."""

    def reset(key):
        observation = jnp.zeros(width)
        return (jnp.zeros(()), jnp.zeros((), jnp.int32)), first_step(observation, {"success": jnp.zeros(())})

    def step(state, action, key):
        total, time = state[0] + action[0], state[1] + 1
        metrics = {"success": (time == solved_at).astype(jnp.float32)}
        return (total, time), single_step(jnp.full(width, total), gain * action[0], False, time >= limit, metrics)

    return Environment(name, reset, step, Box(-99.0, 99.0, (width,)), Box(low, high, (1,)), max_steps=limit)


def line(parameters, key):
    """A family: a point that starts at ``parameters`` plus noise and moves by the action times ``parameters``."""
    start = parameters + 0.1 * jax.random.normal(key)
    return (start, jnp.zeros((), jnp.int32)), first_step(start[None], {"success": jnp.zeros(())})


def line_step(parameters, state, action, key):
    place, time = state[0] + parameters * action[0], state[1] + 1
    return (place, time), single_step(
        place[None], -place, False, time >= 4, {"success": (place > 2).astype(jnp.float32)}
    )


def lines(values=(1.0, 2.0, 3.0)):
    names = [f"at-{k}" for k in range(len(values))]
    space = Box(-np.inf, np.inf, (1,))
    return environments.family(
        "line", names, line, line_step, np.float32(values), observation_space=space, action_space=Box(-1, 1, (1,))
    )


def ones(env, key):
    return jnp.ones((env.num_envs, *env.action_space.shape))


PAIR = partial(adder, "test:narrow", 1, -2.0, 4.0, 2, 1.0, 1), partial(adder, "test:wide", 3, 0.0, 1.0, 3, 100.0, 9)


def test_lanes_by_hand():
    """Action 1 is 4 in the bounds [-2, 4] and 1 in [0, 1]; the first task ends every 2nd step, the second every 3rd."""
    env = multi_task([make() for make in PAIR], num_envs=4)
    assert env.tasks == ("narrow", "wide") and env.num_envs == 4 and env.max_steps == 3
    assert env.action_space == Box(-1.0, 1.0, (1,)) and env.observation_space.shape == (5,)
    first, steps, _ = roll(env, 3, policy=ones)
    np.testing.assert_array_equal(first.observation, [[0, 0, 0, 1, 0]] * 2 + [[0, 0, 0, 0, 1]] * 2)
    np.testing.assert_array_equal(steps.reward, [[4, 4, 100, 100]] * 3)
    np.testing.assert_array_equal(steps.next_observation[:, 1], [[4, 0, 0, 1, 0], [8, 0, 0, 1, 0], [4, 0, 0, 1, 0]])
    np.testing.assert_array_equal(steps.next_observation[:, 2], [[t, t, t, 0, 1] for t in (1, 2, 3)])
    np.testing.assert_array_equal(steps.observation[1], [[0, 0, 0, 1, 0]] * 2 + [[2, 2, 2, 0, 1]] * 2)
    np.testing.assert_array_equal(steps.truncated[:, [0, 2]], [[0, 0], [1, 0], [0, 1]])
    np.testing.assert_array_equal(steps.metrics["episode/return"][:, [0, 2]], [[4, 100], [8, 200], [4, 300]])


def test_every_lane_gets_its_own_action():
    """-1, 1 in [-2, 4] are -2, 4; -1, 0 in [0, 1] are 0, 0.5, times 100."""
    env = multi_task([make() for make in PAIR], num_envs=4)
    state, _ = env.reset(jax.random.key(0))
    _, step = env.step(state, jnp.array([[-1.0], [1.0], [-1.0], [0.0]]), jax.random.key(1))
    np.testing.assert_array_equal(step.reward, [-2, 4, 0, 50])


def test_success_at_any_time_is_the_episode_s_and_then_forgotten():
    env = vectorise(adder(limit=3, solved_at=2), 1)
    _, steps, _ = roll(env, 4, policy=ones)
    np.testing.assert_array_equal(steps.metrics["success"][:, 0], [0, 1, 0, 0])
    np.testing.assert_array_equal(steps.metrics["episode/success"][:, 0], [0, 1, 1, 0])
    assert "episode/success" not in roll(vectorise(environments.make("toy:counter"), 1), 1)[1].metrics


def test_means_of_a_task_are_over_its_own_finished_episodes():
    """Lanes 0 and 1 are of a, 2 and 3 of b; one of a ended, none of b."""
    flags = jnp.array([False, True, False, False])
    metrics = {"episode/return": jnp.array([1.0, 2.0, 30.0, 40.0]), "episode/success": jnp.array([0.0, 1.0, 1.0, 1.0])}
    step = Step(jnp.zeros((4, 1)), jnp.zeros(4), flags, jnp.zeros(4, bool), jnp.zeros((4, 1)), metrics)
    sums = {name: (float(total), float(count)) for name, (total, count) in measure(step, ("a", "b")).items()}
    assert sums["episode/return"] == (2, 1) and sums["episode/return/a"] == (2, 1)
    assert sums["episode/return/b"] == (0, 0) and sums["episode/success/a"] == (1, 1)
    assert not any("/a" in name for name in measure(step))


def test_a_loop_reports_each_task():
    env = multi_task([make() for make in PAIR], num_envs=4)
    state, step = env.reset(jax.random.key(0))
    act = lambda observation, key: jnp.ones((4, 1))
    *_, sums = collect(env, act, state, step.observation, 6, jax.random.key(1))
    means = {name: float(total / count) for name, (total, count) in sums.items()}
    assert means["episode/return/narrow"] == 8 and means["episode/return/wide"] == 300
    assert means["episode/success/narrow"] == 1 and means["episode/success/wide"] == 0
    assert means["episode/return"] == pytest.approx((6 * 8 + 4 * 300) / 10)  # six episodes of 2 steps, four of 3


def constant_agent():
    act = lambda state, observation, key, explore: jnp.ones((*observation.shape[:-1], 1))
    return Agent("constant", lambda key: (), act, lambda state, _: state, None)


@pytest.mark.parametrize("together", [False, True])
def test_evaluation_shares_its_episodes_in_the_order_of_the_tasks(together):
    if together:  # one family: starts near 1, 2 and 3, four moves of 1, 2 and 3
        env, expected = task_set(lines()), [-14, -28, -42]
    else:
        env, expected = task_set([make() for make in PAIR]), [8, 300]
    episodes = evaluate(constant_agent(), env, (), jax.random.key(0), 2 * len(expected))
    tasks = np.repeat(expected, 2)
    np.testing.assert_allclose(episodes.returns, tasks, atol=2.0 if together else 0)
    np.testing.assert_array_equal(episodes.lengths, [4] * 6 if together else [2, 2, 3, 3])
    columns = task_columns(episodes, env.tasks)
    np.testing.assert_allclose([columns[f"eval/return/{task}"] for task in env.tasks], expected, atol=2.0)
    success = [columns[f"eval/success/{task}"] for task in env.tasks]
    assert success == ([1, 1, 1] if together else [1, 0]) and columns["eval/success"] == np.mean(success)


def test_a_family_is_one_step_and_the_same_as_its_tasks_apart():
    together, mixed = task_set(lines()), task_set([*lines()[:2], adder(), lines()[2]])
    assert [group.count for group in together.groups] == [3] and [g.count for g in mixed.groups] == [2, 1, 1]
    env = vectorise(together, 6)
    first, steps, _ = roll(env, 5, policy=uniform)
    policies = jax.vmap(lambda key: uniform(env, jax.random.split(key)[0]))
    assert first.observation.shape == (6, 4)
    # The same keys, split by hand as the set splits them.
    reset_key, scan_key = jax.random.split(jax.random.key(0))
    actions = policies(jax.random.split(scan_key, 5))
    for k in range(3):
        alone = vectorise(only(together, f"at-{k}"), 2)
        state, step = alone.reset(jax.random.split(reset_key, 3)[k])
        np.testing.assert_allclose(step.observation, first.observation[2 * k : 2 * k + 2], rtol=1e-6)
        for t, key in enumerate(jax.random.split(scan_key, 5)):
            own = jax.random.split(jax.random.split(key)[1], 3)[k]
            state, step = alone.step(state, actions[t, 2 * k : 2 * k + 2], own)
            np.testing.assert_allclose(step.reward, steps.reward[t, 2 * k : 2 * k + 2], rtol=1e-6)
            np.testing.assert_allclose(step.observation, steps.observation[t, 2 * k : 2 * k + 2], rtol=1e-6)


@pytest.mark.parametrize("envs", [[make() for make in PAIR], lines()], ids=["apart", "family"])
def test_without_lanes_an_episode_is_of_a_task_drawn_at_random(envs):
    env = task_set(envs)
    count = len(env.tasks)
    states, first = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 300))
    identity = np.asarray(first.observation[:, -count:])
    np.testing.assert_array_equal(identity.argmax(1), states.task)
    np.testing.assert_allclose(identity.mean(0), 1 / count, atol=0.1)  # a standard error is 0.03
    _, step = jax.vmap(env.step)(states, jnp.ones((300, 1)), jax.random.split(jax.random.key(1), 300))
    np.testing.assert_array_equal(step.observation[:, -count:], identity)
    moved = step.observation[:, 0] - first.observation[:, 0]
    np.testing.assert_allclose(moved, np.asarray([4, 1] if count == 2 else [1, 2, 3])[states.task], atol=1e-5)


def test_discrete_actions_beyond_a_task_s_own_are_its_last():
    env = task_set([environments.make("toy:chain", n=3), environments.make("toy:gridworld")])
    assert env.action_space == Discrete(4)
    state, _ = only(env, "chain").reset(jax.random.key(0))
    moves = [only(env, "chain").step(state, a, jax.random.key(1))[1].observation[:3].argmax() for a in range(4)]
    assert moves == [0, 1, 1, 1]
    assert (
        env.observation_space.shape == (25 + 2,)
        and "success" not in only(env, "chain").reset(jax.random.key(0))[1].metrics
    )


def test_names_keep_their_scheme_where_they_must():
    same = dataclasses.replace(adder(), name="other:adder")
    assert task_set([adder(), same]).tasks == ("test:adder", "other:adder")
    assert task_set([adder(), adder("test:b")], "my:set").name == "my:set"


def limited(env):
    return environments.time_limit(env, 2)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: task_set([]), "at least one, got an empty list"),
        (lambda: task_set([adder(), adder()]), "two tasks are named 'test:adder'; rename one"),
        (lambda: task_set([adder(), vectorise(adder("test:b"), 2)]), "multi_task wraps a single environment"),
        (lambda: task_set([adder(), environments.make("toy:chain")]), "'toy:chain' has discrete actions"),
        (lambda: task_set([dictionary()]), "flatten_observation"),
        (lambda: task_set([adder(high=np.inf)]), r"clip_action\(env, -1.0, 1.0\)"),
        (lambda: task_set([task_set([adder()])]), "is a set of tasks itself; list its tasks instead: adder"),
        (lambda: multi_task(lines(), 8), "num_envs=8 is not divisible by the 3 tasks; nearest: 6 and 9"),
        (lambda: multi_task(lines(), 2), "num_envs=2 is not divisible by the 3 tasks; nearest: 3$"),
        (lambda: multi_task(lines(), 0), "num_envs must be at least 1"),
        (lambda: vectorise(task_set(lines()), 6, pool_refresh=2), "leave it out"),
        (lambda: only(task_set(lines()), "at-9"), "unknown task 'at-9'; did you mean 'at-"),
        (lambda: only(adder(), "adder"), "not a set of tasks"),
        (lambda: limited(task_set(lines())), "wrap its tasks one by one"),
        (lambda: environments.scale_action(task_set(lines())), "wrap its tasks one by one"),
        (
            lambda: evaluate(constant_agent(), task_set(lines()), (), jax.random.key(0), 4),
            "4 episodes .* nearest: 3 and 6",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, words):
    with pytest.raises(UsageError, match=words):
        make()


def test_lanes_may_be_wrapped_and_keep_their_tasks():
    env = environments.normalise_reward(multi_task(lines(), 3), 0.9)
    assert env.tasks == ("at-0", "at-1", "at-2")
    roll(env, 2)


def test_rewards_are_normalised_task_by_task():
    """Deviations of two tasks a factor of 10,000 apart; together the small one would be lost."""
    env = environments.normalise_reward(environments.make("point:MT8", num_envs=16, spread=1e4), 0.9)
    state, _ = env.reset(jax.random.key(0))
    step = jax.jit(env.step)
    for i in range(60):
        state, last = step(state, jnp.zeros((16, 2)), jax.random.key(i))
    assert state.statistics.mean.shape == (8,)
    size = np.abs(np.asarray(last.reward)).reshape(8, 2).max(1)
    assert size.min() > 1e-2 and size.max() < 10.0
