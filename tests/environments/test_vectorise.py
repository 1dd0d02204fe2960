import dataclasses
import itertools

import env_helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from env_helpers import roll, shapes, uniform
from hypothesis import given, settings
from hypothesis import strategies as st

import environments
from environments import time_limit, toys, vectorise
from jaxrl.errors import UsageError
from jaxrl.types import done


def dear(env):
    return dataclasses.replace(env, reset_is_dear=True)


@pytest.mark.parametrize("prepare", [lambda env: env, dear], ids=["reset", "pool"])
def test_the_last_observation_survives_the_reset(prepare):
    env = vectorise(prepare(environments.make("toy:counter", limit=4)), 2)
    first, steps, _ = roll(env, 5)
    for lane in range(2):
        np.testing.assert_array_equal(steps.next_observation[:, lane, 0], [1, 2, 3, 4, 1])
        np.testing.assert_array_equal(steps.observation[:, lane, 0], [1, 2, 3, 0, 1])
        np.testing.assert_array_equal(steps.truncated[:, lane], [0, 0, 0, 1, 0])
        np.testing.assert_array_equal(steps.terminated[:, lane], [0, 0, 0, 0, 0])
        np.testing.assert_array_equal(steps.metrics["episode/length"][:, lane], [1, 2, 3, 4, 1])
        np.testing.assert_array_equal(steps.metrics["episode/return"][:, lane], [1, 2, 3, 4, 1])
    assert shapes(first) == shapes(jax.tree.map(lambda leaf: leaf[0], steps))
    assert env.num_envs == 2 and env.max_steps == 4


@pytest.mark.parametrize("prepare", [lambda env: env, dear], ids=["reset", "pool"])
def test_every_episode_of_one_lane_starts_afresh(prepare):
    env = vectorise(prepare(environments.make("toy:random_start", max_steps=2)), 1)
    first, steps, _ = roll(env, 198)
    ended = np.asarray(steps.truncated[:, 0])
    starts = np.concatenate([first.observation, steps.observation[ended, 0]])
    assert starts.shape == (100, 2)
    for column in starts.T:  # the start and the goal
        assert len(np.unique(column)) >= 95
        assert abs(column.mean() - 0.5) < 0.1
    # The next episode goes on from the start that was shown: positions do not move with a zero action.
    np.testing.assert_array_equal(steps.observation[1::2, 0][:-1], steps.next_observation[2::2, 0])


def test_a_pool_shows_no_start_twice_when_episodes_outlast_its_turn():
    env = vectorise(
        dear(environments.make("toy:random_start", max_steps=8)), 16
    )  # two lanes a step, eight steps a turn
    first, steps, _ = roll(env, 40)
    ended = np.asarray(steps.truncated)
    starts = np.concatenate([first.observation, steps.observation[ended]])
    assert starts.shape == (6 * 16, 2)
    assert len(np.unique(starts[:, 0])) == 6 * 16
    np.testing.assert_array_equal(steps.observation[7], steps.next_observation[8])


def test_a_pool_draws_marked_lanes_in_turn_and_nothing_else():
    env = vectorise(dear(environments.make("toy:random_start", max_steps=3)), 4, pool_refresh=2)
    state, _ = jax.jit(env.reset)(jax.random.key(0))
    pools, step = [state.pool], jax.jit(env.step)
    for seed in range(5):
        state, _ = step(state, jnp.zeros((4, 1)), jax.random.key(seed + 1))
        pools.append(state.pool)
    drawn = [np.flatnonzero(np.any(a.observation != b.observation, axis=1)) for a, b in itertools.pairwise(pools)]
    # All four lanes end at the third step; lanes 1 and 3 are one group and come after the group that was last, 0.
    assert [lanes.tolist() for lanes in drawn] == [[], [], [1, 3], [0, 2], []]
    assert [pool.used.tolist() for pool in pools[2:]] == [[False] * 4, [True, False] * 2, [False] * 4, [False] * 4]


@pytest.mark.parametrize("prepare", [lambda env: env, dear], ids=["reset", "pool"])
def test_typed_keys_live_in_a_state(prepare):
    env = vectorise(prepare(env_helpers.keyed(limit=4)), 4)
    first, steps, state = roll(env, 12)
    assert jnp.issubdtype(state.inner[0].dtype, jax.dtypes.prng_key)
    drawn = np.concatenate([first.observation, *steps.next_observation, *steps.observation[3::4]])
    assert len(np.unique(drawn)) == 4 * (1 + 12 + 3)  # every draw from a key of its own


def test_both_flags_at_the_limit():
    env = vectorise(environments.make("toy:one_state", n=3, ending="terminated", max_steps=3), 2)
    _, steps, _ = roll(env, 4)
    np.testing.assert_array_equal(steps.terminated[:, 0], [0, 0, 1, 0])
    np.testing.assert_array_equal(steps.truncated[:, 0], [0, 0, 1, 0])


@settings(max_examples=5, deadline=None)
@given(st.integers(1, 7), st.integers(1, 5), st.booleans(), st.integers(0, 2**31 - 1))
def test_every_step_belongs_to_one_episode(limit, num_envs, is_dear, seed):
    env = toys.make("chain", n=3, max_steps=limit)
    _, steps, _ = roll(vectorise(dear(env) if is_dear else env, num_envs), 25, seed, uniform)
    ended = np.asarray(done(steps))
    for name, total in (("episode/length", np.full(num_envs, 25.0)), ("episode/return", steps.reward.sum(axis=0))):
        measured = np.asarray(steps.metrics[name])
        finished = np.where(ended, measured, 0.0).sum(axis=0)
        running = np.where(ended[-1], 0.0, measured[-1])
        np.testing.assert_array_equal(finished + running, total)
    assert steps.metrics["episode/length"].max() <= limit
    # Where an episode goes on, both observations are one; where it ends, the next starts in state 0.
    np.testing.assert_array_equal(steps.observation[~ended], steps.next_observation[~ended])
    np.testing.assert_array_equal(steps.observation[ended], np.tile([1.0, 0.0, 0.0], (ended.sum(), 1)))


def test_lanes_differ_and_a_seed_repeats():
    env = vectorise(environments.make("toy:point_mass"), 3)
    first, steps, _ = roll(env, 4, seed=7, policy=uniform)
    again, steps_again, _ = roll(env, 4, seed=7, policy=uniform)
    assert len(np.unique(first.observation)) == 12
    np.testing.assert_array_equal(steps.observation, steps_again.observation)
    np.testing.assert_array_equal(first.observation, again.observation)


def test_a_vectorised_environment_is_vmapped_over_seeds():
    env = vectorise(dear(environments.make("toy:random_start", max_steps=2)), 2)

    def run(key):
        reset_key, *step_keys = jax.random.split(key, 4)
        state, _ = env.reset(reset_key)
        for step_key in step_keys:
            state, step = env.step(state, jnp.zeros((2, 1)), step_key)
        return step

    many = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 3))
    alone = jax.jit(run)(jax.random.split(jax.random.key(0), 3)[1])
    np.testing.assert_allclose(many.observation[1], alone.observation, rtol=1e-6)
    assert many.observation.shape == (3, 2, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_envs": 0}, "num_envs must be at least 1, got 0"),
        ({"num_envs": -3}, "got -3"),
        ({"num_envs": 2.0}, "whole number, got 2.0"),
        ({"num_envs": 6, "pool_refresh": 4}, "does not divide num_envs=6; the nearest are 3 or 6"),
        ({"num_envs": 6, "pool_refresh": 12}, "the nearest are 6"),
        ({"num_envs": 6, "pool_refresh": 0}, "pool_refresh must be at least 1"),
    ],
)
def test_lanes_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        vectorise(dear(toys.counter()), **arguments)


def test_a_pool_is_refused_where_a_reset_is_cheap():
    with pytest.raises(UsageError, match="resets at every step"):
        vectorise(toys.counter(), 8, pool_refresh=2)


def test_a_second_vectorise_and_a_legacy_key_are_refused():
    env = vectorise(toys.counter(), 2)
    with pytest.raises(UsageError, match=r"vectorise wraps a single environment, 'toy:counter' is vectorised"):
        vectorise(env, 2)
    with pytest.raises(UsageError, match="time_limit wraps a single"):
        time_limit(env, 2)
    with pytest.raises(UsageError, match="typed key"):
        env.reset(jax.random.PRNGKey(0))


@pytest.mark.parametrize("name", ["toy:chain", "toy:random_start", "gymnax:CartPole-v1", "point:reach-0", "arm:reach"])
def test_single_environments_refuse_legacy_keys_too(name):
    with pytest.raises(UsageError, match="typed key"):
        environments.make(name).reset(jax.random.PRNGKey(0))
