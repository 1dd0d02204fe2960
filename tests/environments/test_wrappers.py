import dataclasses

import env_helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from env_helpers import roll, uniform

import environments
from environments import (
    clip_action,
    flatten_observation,
    normalise_observation,
    normalise_reward,
    scale_action,
    stack_observations,
    time_limit,
    toys,
    vectorise,
)
from environments.wrappers import scale, unscale
from jaxrl.errors import UsageError
from jaxrl.spaces import Box
from jaxrl.types import done

BOX = Box(low=[-2.0, 0.0], high=[2.0, 10.0])


@pytest.mark.parametrize(("limit", "kept"), [(2, 2), (9, 4)])
def test_the_shorter_of_two_limits_holds(limit, kept):
    env = time_limit(toys.counter(limit=4), limit)
    _, steps, _ = roll(vectorise(env, 1), 4)
    assert env.max_steps == kept
    np.testing.assert_array_equal(np.flatnonzero(steps.truncated)[0] + 1, kept)


@pytest.mark.parametrize("limit", [0, -1, 2.5, True, "4"])
def test_a_limit_that_cannot_be_is_refused(limit):
    with pytest.raises(UsageError, match="max_steps must be"):
        time_limit(toys.endless(), limit)


def test_scale_gives_each_dimension_its_bounds():
    np.testing.assert_array_equal(
        scale(jnp.array([[-1.0, -1.0], [1.0, 1.0], [0.5, 0.0]]), BOX), [[-2, 0], [2, 10], [1, 5]]
    )
    np.testing.assert_array_equal(scale(jnp.array([7.0, -7.0]), BOX), [2, 0])
    np.testing.assert_array_equal(unscale(np.array([1.0, 2.5], np.float32), BOX), [0.5, -0.5])
    actions = np.random.default_rng(0).uniform(-1, 1, (100, 2)).astype(np.float32)
    np.testing.assert_allclose(unscale(scale(actions, BOX), BOX), actions, atol=1e-6)


def test_scale_never_leaves_the_bounds():
    rng = np.random.default_rng(1)
    low = rng.uniform(-5, 5, 1000).astype(np.float32)
    box = Box(low, low + rng.uniform(0, 3, 1000).astype(np.float32))
    np.testing.assert_array_equal(np.asarray(scale(np.ones(1000, np.float32), box)) <= box.high, True)
    np.testing.assert_array_equal(np.asarray(scale(-np.ones(1000, np.float32), box)) >= box.low, True)
    assert unscale(np.float32(3.0), Box(3.0, 3.0, ())) == 0.0


@pytest.mark.parametrize("order", ["before vectorise", "after vectorise"])
def test_scaled_actions_reach_the_environment_in_its_units(order):
    env = environments.make("toy:point_mass")
    env = vectorise(scale_action(env), 3) if order == "before vectorise" else scale_action(vectorise(env, 3))
    assert env.action_space == Box(-1.0, 1.0, (2,))
    state, first = jax.jit(env.reset)(jax.random.key(0))
    _, step = jax.jit(env.step)(state, jnp.tile(jnp.array([1.0, -0.5]), (3, 1)), jax.random.key(1))
    moved = step.observation[:, :2] - first.observation[:, :2]
    np.testing.assert_allclose(moved, np.tile([0.1, -0.05], (3, 1)), atol=1e-6)


def test_clipped_actions_stay_in_the_bounds():
    env = clip_action(toys.target(goal=0.0, bound=10.0), high=2.0)
    assert env.action_space == Box(-10.0, 2.0, (1,))
    state, _ = env.reset(jax.random.key(0))
    for action, reward in ((5.0, -4.0), (-30.0, -100.0), (1.0, -1.0)):
        _, step = env.step(state, jnp.array([action]), jax.random.key(1))
        assert step.reward == reward


def test_a_stack_restarts_with_the_episode():
    env = vectorise(stack_observations(toys.counter(limit=4), 3, axis=-1), 2)
    first, steps, _ = roll(env, 5)
    assert env.observation_space.shape == (3,)
    np.testing.assert_array_equal(first.observation[0], [0, 0, 0])
    np.testing.assert_array_equal(steps.next_observation[:, 1], [[0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [0, 0, 1]])
    np.testing.assert_array_equal(steps.observation[:, 1], [[0, 0, 1], [0, 1, 2], [1, 2, 3], [0, 0, 0], [0, 0, 1]])


def test_a_stack_of_images_keeps_its_dtype():
    env = environments.make("toy:counter")
    image = dataclasses.replace(
        env,
        reset=lambda key: _as_image(env.reset(key)),
        step=lambda state, action, key: _as_image(env.step(state, action, key)),
        observation_space=Box(0, 255, (2, 3, 1), jnp.uint8),
    )
    stacked, channels = stack_observations(image, 2), stack_observations(image, 2, axis=-1)
    assert (stacked.observation_space.shape, channels.observation_space.shape) == ((2, 2, 3, 1), (2, 3, 2))
    _, steps, _ = roll(stacked, 2)
    assert steps.observation.dtype == jnp.uint8 and steps.observation.shape == (2, 2, 2, 3, 1)
    np.testing.assert_array_equal(steps.observation[:, :, 0, 0, 0], [[0, 1], [1, 2]])
    _, steps, _ = roll(channels, 2)
    np.testing.assert_array_equal(steps.observation[:, 0, 0], [[0, 1], [1, 2]])


def _as_image(result):
    state, step = result
    image = jnp.full((2, 3, 1), step.observation[0], jnp.uint8)
    return state, step._replace(observation=image, next_observation=image)


def test_a_stack_that_cannot_be_is_refused():
    with pytest.raises(UsageError, match="k must be at least 1, got 0"):
        stack_observations(toys.counter(), 0)
    with pytest.raises(UsageError, match="axis=1 is not in an observation of shape"):
        stack_observations(toys.counter(), 2, axis=1)
    with pytest.raises(UsageError, match="stack_observations wraps a single"):
        stack_observations(vectorise(toys.counter(), 2), 2)
    with pytest.raises(UsageError, match="flatten it"):
        stack_observations(env_helpers.dictionary(), 2)


@pytest.mark.parametrize("order", ["single", "before vectorise", "after vectorise"])
def test_flat_observations(order):
    env = env_helpers.dictionary()
    env = vectorise(flatten_observation(env), 2) if order == "before vectorise" else env
    env = flatten_observation(vectorise(env, 2)) if order == "after vectorise" else env
    env = flatten_observation(env) if order == "single" else env
    _, steps, _ = roll(env, 3)
    last, shown = steps.next_observation, steps.observation
    if order != "single":
        last, shown = last[:, 1], shown[:, 1]
    assert env.observation_space.shape == (11,) and last.dtype == jnp.float32
    np.testing.assert_array_equal(env.observation_space.high, [1, 1, 1, 1, 1, 1, 1, 255, 255, 255, 255])
    # The parts in the order of their names: b, category (one-hot), pixels.
    third = np.array([0.1, 0.2, 0.3, 0, 0, 0, 1, 30, 30, 30, 30], np.float32)
    start = np.array([0.1, 0.2, 0.3, 1, 0, 0, 0, 0, 0, 0, 0], np.float32)
    np.testing.assert_array_equal(last[2], third)
    np.testing.assert_array_equal(shown[2], third if order == "single" else start)


def test_normalised_observations_follow_all_lanes():
    raw = vectorise(environments.make("toy:point_mass", max_steps=3), 4)
    raw_first, raw_steps, _ = roll(raw, 7, policy=uniform)
    first, steps, _ = roll(normalise_observation(raw), 7, policy=uniform)
    seen = np.asarray(raw_first.observation, np.float64)
    np.testing.assert_allclose(first.observation, (seen - seen.mean(0)) / seen.std(0), atol=1e-4)
    for t in range(7):
        seen = np.concatenate([seen, raw_steps.observation[t]])
        mean, std = seen.mean(0), seen.std(0)
        np.testing.assert_allclose(steps.observation[t], (raw_steps.observation[t] - mean) / std, atol=1e-4)
        np.testing.assert_allclose(steps.next_observation[t], (raw_steps.next_observation[t] - mean) / std, atol=1e-4)
    assert np.any(raw_steps.observation[2] != raw_steps.next_observation[2])
    assert normalise_observation(raw).observation_space == Box(-10.0, 10.0, (4,))


def test_normalised_observations_may_be_a_dict():
    env = normalise_observation(vectorise(env_helpers.dictionary(), 2))
    _, steps, _ = roll(env, 2)
    # Three sights of the pixels in two lanes: 0, 10, 20, of deviation 20/√6.
    np.testing.assert_allclose(steps.observation["pixels"][1], np.full((2, 2, 2), 10 / (20 / 6**0.5)), rtol=1e-5)


@pytest.mark.parametrize("ending", ["truncated", "terminated"])
def test_normalised_rewards_leave_the_episode_return_raw(ending):
    discount, lanes, steps_taken = 0.9, 3, 12
    env = environments.make("toy:point_mass", max_steps=4)
    if ending == "terminated":
        step = env.step
        env = dataclasses.replace(env, step=lambda state, action, key: _swap_flags(step(state, action, key)))
    raw = vectorise(env, lanes)
    _, raw_steps, _ = roll(raw, steps_taken, policy=uniform)
    _, steps, _ = roll(normalise_reward(raw, discount), steps_taken, policy=uniform)
    running, seen = np.zeros(lanes), []
    for t in range(steps_taken):
        reward = np.asarray(raw_steps.reward[t], np.float64)
        running = discount * running + reward
        seen.append(running)
        expected = np.clip(reward / np.std(np.concatenate(seen)), -10, 10)
        np.testing.assert_allclose(steps.reward[t], expected, rtol=1e-4)
        running = np.where(done(raw_steps)[t], 0.0, running)
    returns = np.asarray(raw_steps.reward, np.float64).reshape(3, 4, lanes).sum(axis=1)
    np.testing.assert_allclose(steps.metrics["episode/return"][3::4], returns, rtol=1e-5)


def _swap_flags(result):
    state, step = result
    return state, step._replace(terminated=step.truncated, truncated=step.terminated)


def test_a_constant_reward_is_clipped_and_finite():
    _, steps, _ = roll(normalise_reward(vectorise(toys.one_state(), 2), 0.0, clip=5.0), 3)
    np.testing.assert_array_equal(steps.reward, np.full((3, 2), 5.0))


@pytest.mark.parametrize("discount", [-0.1, 1.1, float("nan")])
def test_a_discount_that_cannot_be_is_refused(discount):
    with pytest.raises(UsageError, match="discount must be in"):
        normalise_reward(vectorise(toys.counter(), 2), discount)


@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        (lambda: normalise_observation(toys.counter()), "normalise_observation wraps a vectorised environment"),
        (lambda: normalise_reward(toys.counter(), 0.9), "normalise_reward wraps a vectorised environment"),
        (lambda: normalise_reward(vectorise(toys.counter(), 1), 0.9, clip=0.0), "clip must be above 0"),
        (lambda: scale_action(toys.counter()), "scale_action needs continuous actions"),
        (lambda: clip_action(toys.counter()), "clip_action needs continuous actions"),
        (lambda: scale_action(_unbounded()), "scale_action needs finite action bounds"),
        (lambda: vectorise("toy:counter", 2), "vectorise wraps an Environment, got str"),
    ],
)
def test_a_wrapper_on_the_wrong_kind_is_refused_by_name(wrap, message):
    with pytest.raises(UsageError, match=message):
        wrap()


def _unbounded():
    return dataclasses.replace(toys.target(), action_space=Box(-np.inf, np.inf, (1,)))


def test_a_viewer_reaches_through_the_wrappers():
    env = dataclasses.replace(toys.counter(limit=None), rendering={"state_of": lambda state: state, "dt": 0.1})
    env = normalise_reward(vectorise(stack_observations(time_limit(env, 4), 2), 3), 0.9)
    state, _ = env.reset(jax.random.key(0))
    state, _ = env.step(state, jnp.zeros(3, jnp.int32), jax.random.key(1))
    np.testing.assert_array_equal(env.rendering["state_of"](state), [1, 1, 1])
    assert env.rendering["dt"] == 0.1
