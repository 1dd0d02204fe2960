"""Every environment in a physics of its own, on every back end."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from environments.adapters import brax
from environments.randomisation import (
    chain,
    effective_system,
    in_system,
    randomise,
    scale_friction,
    scale_gain,
    scale_gear,
    scale_mass,
)
from environments.wrappers import scale_action, time_limit, vectorise
from jaxrl.errors import UsageError

STEPS = 6


@pytest.fixture(autouse=True)
def _key_reuse():
    with jax.debug_key_reuse(True):
        yield


@pytest.fixture(scope="module")
def pendulum():
    return brax.make("inverted_pendulum", backend="spring")


def rollout(env, key, action, steps=STEPS):
    """Observations [steps, n] from a reset with ``key`` under one action held."""
    reset_key, steps_key = jax.random.split(key)
    state, _ = env.reset(reset_key)

    def body(state, step_key):
        state, step = env.step(state, jnp.full(env.action_space.shape, action), step_key)
        return state, step.observation

    return jax.lax.scan(body, state, jax.random.split(steps_key, steps))[1]


def scaled(system, draws, key):
    """The system with every draw made once."""
    return chain(*draws)(key, system)


def fixed(draw, factor):
    """The draw without chance, low = high = factor, which may be traced."""
    return draw(factor, factor, shared=True)


@pytest.mark.parametrize("backend", brax.BACKENDS)
def test_mass_gear_and_gain_change_the_motion_on_every_back_end_and_scale_one_does_not(backend):
    """The cart of the pendulum is driven by a force: twice the gear or the gain is twice the force, and twice the mass
    under twice the force moves much as before: gravity on the pole doubles as well, the joints' damping does not."""
    env = brax.make("inverted_pendulum", backend=backend)
    raw = env.rendering["system"]
    nominal = effective_system(raw, backend)

    def motion(mass, gear, gain):
        draws = [fixed(scale_mass, mass), fixed(scale_gear, gear), fixed(scale_gain, gain)]
        return rollout(in_system(env, scaled(nominal, draws, jax.random.key(1))), jax.random.key(0), 0.3)

    factors = jnp.array([[1, 1, 1], [2, 1, 1], [1, 2, 1], [1, 1, 2], [2, 2, 1.0]])
    lanes = np.asarray(jax.jit(jax.vmap(motion))(*factors.T), np.float64)
    assert np.abs(lanes).max() > 0.05 and np.isfinite(lanes).all()
    moved = np.abs(lanes - lanes[0]).max(axis=(1, 2))
    assert (moved[1:4] > 0.02).all(), moved
    np.testing.assert_allclose(lanes[2], lanes[3], atol=1e-5)
    if backend != "spring":  # whose joints are springs that keep their stiffness
        assert moved[4] < 0.5 * moved[[1, 2]].min(), moved

    one = scaled(
        nominal, [scale_mass(1, 1), scale_gear(1, 1), scale_gain(1, 1), scale_friction(1, 1)], jax.random.key(2)
    )
    for drawn, before in zip(jax.tree.leaves(one), jax.tree.leaves(nominal), strict=True):
        np.testing.assert_array_equal(drawn, before)
    if backend in ("spring", "positional"):
        np.testing.assert_allclose(lanes[0], jax.jit(partial(rollout, env))(jax.random.key(0), 0.3), atol=1e-5)
    else:
        assert nominal is raw


def test_friction_and_mass_move_the_hopper_whose_masses_the_spring_back_end_hides():
    """On spring every link of the hopper weighs mass ** 0 = 1, so doubling the raw field would do nothing."""
    env = brax.make("hopper", backend="spring")
    nominal = effective_system(env.rendering["system"], "spring")
    np.testing.assert_array_equal(nominal.link.inertia.mass, np.ones(4))
    assert float(nominal.spring_mass_scale) == 0

    def motion(mass, friction):
        fixed = [
            partial(scale_mass(1, 1).func, mass, mass, True),
            partial(scale_friction(1, 1).func, friction, friction, True),
        ]
        return rollout(in_system(env, scaled(nominal, fixed, jax.random.key(1))), jax.random.key(0), 0.5, steps=40)

    lanes = np.asarray(jax.jit(jax.vmap(motion))(jnp.array([1, 1.5, 1.0]), jnp.array([1, 1, 0.01])))
    assert np.isfinite(lanes).all()
    assert np.abs(lanes[1] - lanes[0]).max() > 0.1
    assert np.abs(lanes[2] - lanes[0]).max() > 0.1


def test_lanes_have_draws_of_their_own_carry_nothing_else_and_redraw_at_reset(pendulum):
    env = randomise(pendulum, scale_gear(0.5, 2.0))
    vector = vectorise(time_limit(env, 3), 8)

    def run(key):
        reset_key, steps_key = jax.random.split(key)
        state, _ = vector.reset(reset_key)

        def body(state, step_key):
            state, step = vector.step(state, jnp.full((8, 1), 0.2), step_key)
            return state, (state.inner.inner.inner.drawn, step.observation, step.truncated)

        return state, jax.lax.scan(body, state, jax.random.split(steps_key, 4))[1]

    state, (drawn, observation, truncated) = jax.jit(run)(jax.random.key(3))
    # actuator.gear [1] and actuator_gear [1, 6], nothing else of the system's hundreds of leaves
    assert sorted(leaf.shape for leaf in state.inner.inner.inner.drawn) == [(8, 1), (8, 1, 6)]
    gear = np.asarray(next(leaf for leaf in drawn if leaf.ndim == 3))[..., 0] / 100.0  # the model's gear is 100
    assert ((gear >= 0.5) & (gear <= 2.0)).all()
    assert len(np.unique(gear[0])) == 8
    assert np.asarray(truncated).tolist() == [[False] * 8] * 2 + [[True] * 8, [False] * 8]
    np.testing.assert_array_equal(gear[0], gear[1])
    assert (gear[2] != gear[1]).all()  # a fresh draw with each new episode
    # The cart's speed after two steps grows with the gear: the same action, other motions.
    assert np.corrcoef(gear[1], np.asarray(observation)[1, :, 2])[0, 1] > 0.95


def test_a_kept_draw_stays_with_its_lane_over_automatic_resets(pendulum):
    env = randomise(time_limited(pendulum, 3), scale_gear(0.5, 2.0), redraw_at_reset=False, num_envs=9)
    assert env.num_envs == 9 and env.max_steps == 3

    def run(key):
        reset_key, steps_key = jax.random.split(key)
        state, first = env.reset(reset_key)

        def body(state, step_key):
            state, step = env.step(state, jnp.full((9, 1), 0.2), step_key)
            return state, (state.inner.inner.drawn, step)

        return first, jax.lax.scan(body, state, jax.random.split(steps_key, 7))[1]

    first, (drawn, steps) = jax.jit(run)(jax.random.key(4))
    gear = np.asarray(next(leaf for leaf in drawn if leaf.ndim == 3))[..., 0]
    assert len(np.unique(gear[0])) == 9
    np.testing.assert_array_equal(gear, np.broadcast_to(gear[0], gear.shape))
    assert np.asarray(steps.truncated)[:, 0].tolist() == [False, False, True] * 2 + [False]
    np.testing.assert_array_equal(steps.metrics["episode/length"][:, 0], [1, 2, 3, 1, 2, 3, 1])
    np.testing.assert_array_equal(steps.metrics["episode/return"][:, 0], [1, 2, 3, 1, 2, 3, 1])
    assert jax.tree.structure(first) == jax.tree.structure(steps)
    # Where an episode ended, what is shown next is a fresh start (|q|, |qd| <= 0.01), other in every lane and episode.
    shown, led = np.asarray(steps.observation), np.asarray(steps.next_observation)
    starts = np.concatenate([shown[2], shown[5]])
    assert (np.abs(starts) <= 0.0101).all() and len(np.unique(starts[:, 0])) == 18
    assert (np.abs(led[[2, 5]]).max(axis=-1) > 0.05).all()
    np.testing.assert_array_equal(shown[[0, 1, 3, 4, 6]], led[[0, 1, 3, 4, 6]])
    # The new episode steps in the lane's own system.
    assert np.corrcoef(gear[0], led[4, :, 2])[0, 1] > 0.95


def time_limited(env, max_steps):
    return brax.from_env(env.rendering["brax_env"], env.name, max_steps)


def test_the_shared_environment_is_left_as_it_was(pendulum):
    system = pendulum.rendering["brax_env"].sys
    env = randomise(pendulum, scale_mass(0.5, 2.0))
    jax.eval_shape(env.reset, jax.random.key(0))
    assert pendulum.rendering["brax_env"].sys is system
    assert not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(system))


def test_mass_and_inertia_scale_together_and_subtrees_add_up(pendulum):
    system = pendulum.rendering["system"]
    heavier = scale_mass(3, 3)(jax.random.key(0), system)
    for field in ("body_mass", "body_inertia", "body_subtreemass"):
        np.testing.assert_allclose(getattr(heavier, field), 3 * getattr(system, field), rtol=1e-6)
    np.testing.assert_allclose(heavier.link.inertia.i, 3 * system.link.inertia.i, rtol=1e-6)
    apart = scale_mass(0.5, 2.0)(jax.random.key(0), system)
    factor = np.asarray(apart.link.inertia.mass / system.link.inertia.mass)
    assert factor[0] != factor[1] and ((factor >= 0.5) & (factor <= 2)).all()
    together = scale_mass(0.5, 2.0, shared=True)(jax.random.key(0), system)
    factor = np.asarray(together.link.inertia.mass / system.link.inertia.mass)
    np.testing.assert_allclose(factor[0], factor[1], rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda env: randomise(scale_action(env), scale_mass(0.5, 2)), "goes first"),
        (lambda env: randomise(time_limit(env, 5), scale_mass(0.5, 2)), "goes first"),
        (lambda env: randomise(randomise(env, scale_mass(0.5, 2)), scale_gear(0.5, 2)), "goes first"),
        (lambda env: randomise(vectorise(env, 2), scale_mass(0.5, 2)), "before vectorise"),
        (lambda env: randomise(env, lambda key, system: system), "as it was"),
        (lambda env: randomise(env, lambda k, s: s.tree_replace({"actuator.gear": jnp.ones(3)})), r"actuator\.gear"),
        (lambda env: randomise(env, scale_mass(0.5, 2), redraw_at_reset=False), "num_envs"),
        (lambda env: randomise(env, scale_mass(0.5, 2), num_envs=4), "num_envs=4"),
        (lambda env: scale_mass(0.0, 2), "low=0"),
        (lambda env: scale_gear(2, 1), "low=2"),
        (lambda env: chain(), "at least one"),
    ],
)
def test_what_cannot_work_is_refused(pendulum, change, message):
    with pytest.raises(UsageError, match=message):
        change(pendulum)
