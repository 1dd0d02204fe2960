"""Statistics of returns: against a float64 loop over whole episodes, whatever the blocks they come in."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.agents import scaling
from jaxrl.errors import UsageError
from jaxrl.types import Experience

GAMMA = 0.9
OBSERVE_DEVIATION = jax.jit(scaling.observe_deviation)
OBSERVE_EXTREMES = jax.jit(partial(scaling.observe_extremes, "brc"))


def steps(reward, terminated=None, truncated=None):
    reward = np.asarray(reward, np.float32)
    flags = [np.zeros(reward.shape, bool) if x is None else np.asarray(x, bool) for x in (terminated, truncated)]
    return Experience(None, None, reward, *flags, None)


def made_up(seed, shape, share=0.2):
    rng = np.random.default_rng(seed)
    return steps(rng.normal(0.5, 1.0, shape), *(rng.uniform(size=(2, *shape)) < share))


def numpy_sums(rollout):
    """Discounted sums from each episode's start, [T, N] in float64."""
    sums = np.zeros(rollout.reward.shape)
    for lane in range(sums.shape[1]):
        total = 0.0
        for t in range(sums.shape[0]):
            total = float(rollout.reward[t, lane]) + GAMMA * total
            sums[t, lane] = total
            if rollout.terminated[t, lane] or rollout.truncated[t, lane]:
                total = 0.0
    return sums


def test_sums_by_hand():
    """Rewards of 1: sums 1, 1.9, then afresh after either flag."""
    ones = np.ones((4, 2))
    flag = np.zeros((4, 2), bool)
    flag[1, 0] = True
    for terminated, truncated in ((flag, None), (None, flag)):
        state = OBSERVE_DEVIATION(scaling.init_deviation(2), steps(ones, terminated, truncated), GAMMA)
        np.testing.assert_allclose(state.largest, 3.439, rtol=1e-6)
        np.testing.assert_allclose(state.sums, [1.9, 3.439], rtol=1e-6)
        np.testing.assert_allclose(state.statistics.mean, (2.9 + 2.9 + 1 + 1.9 + 2.71 + 3.439) / 8, rtol=1e-6)


def test_deviation_equals_a_loop_in_blocks_of_any_length():
    rollout = made_up(0, (12, 3))
    sums = numpy_sums(rollout)
    for block in (1, 12):
        state = scaling.init_deviation(5)  # two lanes that are never observed
        for t in range(0, 12, block):
            state = OBSERVE_DEVIATION(state, jax.tree.map(lambda x, t=t, n=block: x[t : t + n], rollout), GAMMA)
        np.testing.assert_allclose(state.statistics.var, sums.var(), rtol=1e-4)
        for value_max in (0.5, 50.0):
            expected = max(sums.std(), np.abs(sums).max() / value_max)
            np.testing.assert_allclose(scaling.deviation_divisor(state, value_max), expected, rtol=1e-4)


def test_divisors_are_one_before_anything_is_seen():
    assert float(scaling.deviation_divisor(scaling.init_deviation(2), 5.0)) == 1.0
    divisor = scaling.extremes_divisor(scaling.init_extremes(2, 2, 4), jnp.float32(0.9), jnp.float32(1.0), 10.0)
    np.testing.assert_array_equal(divisor, [1.0, 1.0])


def test_more_lanes_than_followed_are_allowed_for_the_deviation_alone():
    rollout = made_up(1, (3, 4))
    state = OBSERVE_DEVIATION(scaling.init_deviation(2), rollout, GAMMA)
    np.testing.assert_allclose(state.statistics.mean, numpy_sums(rollout)[:, :2].mean(), rtol=1e-5)
    message = "brc: followed_envs 2 cannot follow 4 environments; the least that works is 4"
    with pytest.raises(UsageError, match=message):
        scaling.observe_extremes("brc", scaling.init_extremes(1, 2, 4), rollout, np.zeros((3, 4), np.int32), GAMMA)


def numpy_extremes(rollout, task, length):
    """The largest magnitude of a return of each task, episode by episode, in float64."""
    largest = {}
    for lane in range(rollout.reward.shape[1]):
        rewards = []
        for t in range(rollout.reward.shape[0]):
            rewards.append(float(rollout.reward[t, lane]))
            terminated = rollout.terminated[t, lane]
            if not (terminated or rollout.truncated[t, lane] or len(rewards) == length):
                continue
            value = 0.0 if terminated else np.mean(rewards) * min(1.0 / (1.0 - GAMMA), length)
            for reward in reversed(rewards):
                value = reward + GAMMA * value
                which = int(task[t, lane])
                largest[which] = max(largest.get(which, 0.0), abs(value))
            rewards = []
    return [largest.get(which, 0.0) for which in range(3)]


def test_extremes_by_hand():
    """A death after rewards 0, 0, 5: returns 4.05, 4.5, 5. A limit after 1, 1: both 1 / (1 - 0.9) = 10, as if for ever."""
    rewards = np.array([[0.0, 1.0], [0.0, 1.0], [5.0, 0.0]])
    terminated, truncated = np.zeros((3, 2), bool), np.zeros((3, 2), bool)
    terminated[2, 0] = truncated[1, 1] = True
    task = np.array([[0, 1]] * 3)
    state = scaling.init_extremes(2, 2, 20)
    for t in range(3):
        block = steps(rewards[t : t + 1], terminated[t : t + 1], truncated[t : t + 1])
        state = OBSERVE_EXTREMES(state, block, task[t : t + 1], jnp.float32(GAMMA))
    np.testing.assert_allclose(state.largest, [5.0, 10.0], rtol=1e-5)
    np.testing.assert_array_equal(state.filled, [0, 1])
    # An entropy worth 0.2 a step is worth 0.2 * 10 / 2 = 1 in the value: (5 + 1) / 2 and (10 + 1) / 2.
    divisor = scaling.extremes_divisor(state, jnp.float32(GAMMA), jnp.float32(0.2), 2.0)
    np.testing.assert_allclose(divisor, [3.0, 5.5], rtol=1e-5)


def test_extremes_equal_a_loop_with_long_episodes_and_tasks():
    rollout = made_up(2, (40, 3), share=0.1)
    task = np.random.default_rng(3).integers(0, 3, (40, 3))
    state = scaling.init_extremes(3, 4, 6)
    for t in range(0, 40, 8):
        block = jax.tree.map(lambda x, t=t: x[t : t + 8], rollout)
        state = OBSERVE_EXTREMES(state, block, task[t : t + 8], jnp.float32(GAMMA))
    np.testing.assert_allclose(state.largest, numpy_extremes(rollout, task, 6), rtol=1e-4)


def test_without_discounting_the_horizon_is_what_is_recorded():
    np.testing.assert_allclose(scaling.horizon(jnp.float32(0.9), 100), 10.0, rtol=1e-5)
    np.testing.assert_allclose(scaling.horizon(jnp.float32(1.0), 100), 100.0, rtol=1e-5)
