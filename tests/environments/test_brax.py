"""Brax environments behind the contract: flags, structure, spaces, back ends."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from environments.adapters import brax
from environments.wrappers import time_limit, vectorise
from jaxrl.errors import UsageError
from jaxrl.spaces import Box


@pytest.fixture(autouse=True)
def _key_reuse():
    with jax.debug_key_reuse(True):
        yield


@pytest.fixture(scope="module")
def pendulum():
    return brax.make("inverted_pendulum", backend="spring", max_steps=None)


def rollout(env, policy, steps, key):
    """All steps [steps, …] from a reset; ``policy(step) -> action``."""
    reset_key, steps_key = jax.random.split(key)

    def body(carry, step_key):
        state, step = carry
        state, step = env.step(state, policy(step), step_key)
        return (state, step), step

    start = env.reset(reset_key)
    return start[1], jax.lax.scan(body, start, jax.random.split(steps_key, steps))[1]


def push(step):
    """Full force: the pole passes 0.2 rad, which is death, after a few steps."""
    return jnp.ones(1)


def test_names_are_those_that_brax_ships():
    from brax import envs

    assert sorted(brax.names()) == sorted(envs._envs)


def test_a_death_a_limit_and_both_at_once(pendulum):
    """The same death without a limit, with one a step before it, and with one at it."""
    first, bare = jax.jit(partial(rollout, pendulum, push, 12))(jax.random.key(0))
    death = int(np.argmax(bare.terminated))  # index of the step that dies
    assert 1 < death < 11
    assert not bare.terminated[:death].any() and not bare.truncated.any()
    np.testing.assert_array_equal(np.abs(bare.next_observation[:, 1]) > 0.2, bare.terminated)
    np.testing.assert_array_equal(bare.observation, bare.next_observation)
    np.testing.assert_array_equal(bare.reward, np.ones(12, np.float32))
    assert not first.terminated and not first.truncated and first.reward == 0

    def limited(max_steps):
        _, steps = jax.jit(partial(rollout, time_limit(pendulum, max_steps), push, max_steps))(jax.random.key(0))
        return bool(steps.terminated[-1]), bool(steps.truncated[-1])

    assert limited(death + 1) == (True, True)
    assert limited(death) == (False, True)
    assert brax.make("inverted_pendulum").max_steps == 1000


def test_lanes_reset_by_themselves_and_keep_the_last_observation(pendulum):
    env = vectorise(time_limit(pendulum, 3), 4, pool_refresh=4)
    _, steps = jax.jit(partial(rollout, env, lambda step: jnp.zeros((4, 1)), 7))(jax.random.key(1))
    assert np.asarray(steps.truncated)[:, 0].tolist() == [False, False, True] * 2 + [False]
    assert not steps.terminated.any()
    ends = np.asarray(steps.truncated)
    assert (np.asarray(steps.observation)[ends] != np.asarray(steps.next_observation)[ends]).any(axis=-1).all()
    np.testing.assert_array_equal(steps.observation[~ends], steps.next_observation[~ends])
    starts = np.asarray(steps.observation)[ends][:, 0]
    assert len(np.unique(starts)) == len(starts)


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("inverted_pendulum", "generalized"),
        ("inverted_pendulum", "positional"),
        ("inverted_pendulum", "mjx"),
        ("reacher", "spring"),
        ("ant", "spring"),  # sets python floats in its state
        ("swimmer", "generalized"),
        ("fast", "generalized"),
    ],
)
def test_reset_and_step_have_one_structure_and_brax_writes_into_nothing_of_ours(name, backend):
    env = brax.make(name, backend=backend, max_steps=None)
    state, step = jax.eval_shape(env.reset, jax.eval_shape(partial(jax.random.key, 0)))
    seen = []

    def stepped(state, key):
        before = dict(state.metrics), dict(state.info)
        after = env.step(state, jnp.zeros(env.action_space.shape), key)
        seen.append(all(state.metrics[k] is v for k, v in before[0].items()) and state.info == before[1])
        return after

    again, after = jax.eval_shape(stepped, state, jax.eval_shape(partial(jax.random.key, 0)))
    assert seen == [True]
    assert jax.tree.structure((again, after)) == jax.tree.structure((state, step))
    for new, old in zip(jax.tree.leaves((again, after)), jax.tree.leaves((state, step)), strict=True):
        assert (new.shape, new.dtype, new.weak_type) == (old.shape, old.dtype, False)
    assert (after.reward.dtype, after.terminated.dtype, after.truncated.dtype) == (jnp.float32, jnp.bool_, jnp.bool_)
    assert all(key.startswith("env/") and x.shape == () and x.dtype == jnp.float32 for key, x in step.metrics.items())
    assert step.observation.shape == env.observation_space.shape
    assert env.reset_is_dear


def test_the_reward_of_the_reacher_is_what_its_observation_and_action_say():
    """reward = -|tip - target| - |action|^2, and the tip is the last three numbers of the observation."""
    env = brax.make("reacher", backend="generalized", max_steps=5)
    action = jnp.array([0.5, -0.25])
    _, steps = jax.jit(partial(rollout, env, lambda step: action, 3))(jax.random.key(2))
    distance = np.linalg.norm(np.asarray(steps.next_observation, np.float64)[:, -3:], axis=-1)
    np.testing.assert_allclose(steps.reward, -distance - 0.3125, rtol=1e-5)
    np.testing.assert_allclose(steps.metrics["env/reward_ctrl"], [-0.3125] * 3)


@pytest.mark.parametrize("name", sorted(set(brax.names()) - {"fast"}))
def test_actions_are_in_minus_one_to_one_and_reach_the_actuators_whole(name):
    """Either the model's own control range is [-1, 1], or ``step`` scales to it."""
    env = brax.make(name, max_steps=10)
    assert env.action_space == Box(-1.0, 1.0, (env.rendering["system"].act_size(),))
    control = np.asarray(env.rendering["system"].actuator.ctrl_range)
    scaled = {"inverted_pendulum": 3.0, "humanoid": 0.4, "humanoidstandup": 0.4, "pusher": 2.0}
    np.testing.assert_allclose(control, np.broadcast_to([-scaled.get(name, 1.0), scaled.get(name, 1.0)], control.shape))


def test_rendering_says_what_a_viewer_needs(pendulum):
    assert pendulum.rendering["kind"] == "brax" and pendulum.rendering["dt"] == pytest.approx(0.02)
    state, _ = jax.eval_shape(time_limit(pendulum, 5).reset, jax.eval_shape(partial(jax.random.key, 0)))
    assert time_limit(pendulum, 5).rendering["state_of"](state).x.pos.shape == (2, 3)
    assert "kind" not in brax.make("fast").rendering


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: brax.make("swimmer", backend="mjx"), r"'mjx'.*generalized"),
        (lambda: brax.make("fast", backend="spring"), r"'spring'.*generalized"),
        (lambda: brax.make("ant", backend="warp"), r"'warp'.*generalized or positional or spring or mjx"),
        (lambda: brax.make("antt"), "did you mean 'ant'"),
        (lambda: brax.make("ant", reset_noise=0.1), "did you mean 'reset_noise_scale'"),
        (lambda: brax.make("ant", use_contact_forces=True), "use_contact_forces not implemented"),
        (lambda: brax.make("fast", max_steps=0), "max_steps"),
    ],
)
def test_what_cannot_work_is_refused(call, message):
    with pytest.raises(UsageError, match=message):
        call()


def test_a_wrapped_brax_environment_and_a_legacy_key_are_refused(pendulum):
    from brax import envs

    with pytest.raises(UsageError, match="AutoResetWrapper"):
        brax.from_env(envs.create("fast"), "mine")
    with pytest.raises(UsageError, match="typed key"):
        pendulum.reset(jax.random.PRNGKey(0))


def test_brax_training_is_never_imported():
    import sys

    brax.make("fast")
    assert not any(name.startswith("brax.training") for name in sys.modules)
