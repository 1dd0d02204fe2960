"""What holds for every environment, whoever wrote it."""

import env_helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from env_helpers import roll, shapes, uniform

import environments
from environments import toys, vectorise
from environments.adapters import gymnax
from jaxrl.spaces import Discrete, zeros
from jaxrl.types import done

TOYS = [f"toy:{name}" for name in toys.names()]
SOME_OF_GYMNAX = [
    "CartPole-v1",
    "Pendulum-v1",
    "Breakout-MinAtar",
    "Catch-bsuite",
    "FrozenLake-misc",
    "BernoulliBandit-misc",
]
SETS = ["arm:MT3", "point:MT8"]  # of tasks; each has as many lanes as a multiple of them
SUITES = [*SETS, "arm:swing-up", "point:reach-4"]
STEPPED = TOYS + SUITES + [f"gymnax:{name}" for name in SOME_OF_GYMNAX]


def lanes_of(env, count):
    """``count`` lanes, or so many of each task."""
    return vectorise(env, count * max(len(env.tasks), 1))


def check_shapes(env, first, state, later_state, later):
    """A reset and a step agree in structure, shapes and dtypes, no leaf is weakly typed, and the spaces tell the truth."""
    for before, after in ((first, later), (state, later_state)):
        assert jax.tree.structure(before) == jax.tree.structure(after)
        for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            assert not a.weak_type and not b.weak_type
    lanes = () if env.num_envs is None else (env.num_envs,)
    for observation in (later.observation, later.next_observation):
        assert shapes_of(observation) == shapes_of(jax.eval_shape(lambda: zeros(env.observation_space, lanes)))
    assert (later.reward.shape, later.reward.dtype) == (lanes, jnp.float32)
    for flag in (later.terminated, later.truncated):
        assert (flag.shape, flag.dtype) == (lanes, jnp.bool_)
    for metric in later.metrics.values():
        assert (metric.shape, metric.dtype) == (lanes, jnp.float32)


def shapes_of(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)


def contains(space, value):
    """Whether values with any leading axes are in a space."""
    if isinstance(space, Discrete):
        return bool(np.all((value >= 0) & (value < space.n)))
    slack = 1e-5
    return bool(np.all((value >= space.low - slack) & (value <= space.high + slack)))


@pytest.mark.parametrize("name", STEPPED)
def test_lanes_reset_and_scan_by_the_contract(name):
    env = lanes_of(environments.make(name, max_steps=4), 3)
    first, steps, state = roll(env, 11, policy=uniform)
    last = jax.tree.map(lambda leaf: leaf[-1], steps)
    check_shapes(env, first, state, state, last)
    assert jax.tree.structure(first) == jax.tree.structure(last)
    ended = np.asarray(done(steps))
    assert ended.any() and not np.any(first.terminated | first.truncated | (first.reward != 0))
    np.testing.assert_array_equal(first.observation, first.next_observation)
    np.testing.assert_array_equal(steps.observation[~ended], steps.next_observation[~ended])
    assert np.all(steps.metrics["episode/length"] <= 4)
    assert np.all(steps.truncated == (steps.metrics["episode/length"] == 4))
    assert np.all(np.isfinite(steps.reward)) and np.all(np.isfinite(steps.next_observation))
    assert contains(env.observation_space, steps.observation) and contains(
        env.observation_space, steps.next_observation
    )


@pytest.mark.parametrize("name", TOYS + SUITES + [f"gymnax:{name}" for name in gymnax.names()])
def test_a_step_carries_what_a_reset_gives(name):
    """Traced, not run: a single environment, and lanes of it in a scan."""
    env = environments.make(name)

    def single(key):
        reset_key, action_key, step_key = jax.random.split(key, 3)
        state, first = env.reset(reset_key)
        return state, first, *env.step(state, env.action_space.sample(action_key), step_key)

    with jax.debug_key_reuse(True):
        state, first, later_state, later = jax.eval_shape(single, jax.random.key(0))
        check_shapes(env, first, state, later_state, later)
        lanes = lanes_of(env, 2)
        jax.eval_shape(lambda key: scanned(lanes, key), jax.random.key(0))


def scanned(env, key):
    reset_key, scan_key = jax.random.split(key)

    def body(carry, key):
        action_key, step_key = jax.random.split(key)
        return env.step(carry[0], uniform(env, action_key), step_key), None

    return jax.lax.scan(body, env.reset(reset_key), jax.random.split(scan_key, 3))


def test_the_checks_see_a_broken_environment():
    env = env_helpers.keyed()
    state, first = env.reset(jax.random.key(0))
    with pytest.raises(AssertionError):
        check_shapes(env, first, state, state, first._replace(reward=jnp.zeros((), jnp.int32)))
    with pytest.raises(AssertionError):
        check_shapes(env, first, state, state, first._replace(observation=jnp.zeros(2), next_observation=jnp.zeros(2)))
    assert shapes(first)
