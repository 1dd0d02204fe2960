"""Networks on the sphere: the projection, one block by hand, and the whole against an independent numpy loop."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.networks import hyperspherical
from tests.networks.test_networks import filled


def test_unit_has_length_one_and_a_finite_gradient_at_zero():
    np.testing.assert_allclose(hyperspherical.unit(jnp.array([3.0, 4.0])), [0.6, 0.8], rtol=1e-6)
    np.testing.assert_array_equal(hyperspherical.unit(jnp.zeros(2)), [0.0, 0.0])
    np.testing.assert_allclose(hyperspherical.unit(jnp.array([1e18, 0.0])), [1.0, 0.0])
    assert bool(jnp.all(jnp.isfinite(jax.grad(lambda x: hyperspherical.unit(x)[0])(jnp.zeros(2)))))


def test_projection_gives_columns_unit_length_and_touches_nothing_else():
    kernel = np.array([[3.0, 0.0], [4.0, 2.0]], np.float32)
    members = np.stack([kernel, 10.0 * kernel])
    params = {
        "params": {
            "SphereDense_0": {"kernel": members},
            "loc": {"SphereDense_1": {"kernel": kernel}, "bias": np.float32([5.0])},
            "Scaler_0": {"scaler": np.float32([7.0, 8.0])},
            "Dense_0": {"kernel": kernel},
        }
    }
    out = hyperspherical.project(params)["params"]
    expected = [[0.6, 0.0], [0.8, 1.0]]
    np.testing.assert_allclose(out["SphereDense_0"]["kernel"], [expected, expected], rtol=1e-6)
    np.testing.assert_allclose(out["loc"]["SphereDense_1"]["kernel"], expected, rtol=1e-6)
    np.testing.assert_array_equal(out["loc"]["bias"], [5.0])
    np.testing.assert_array_equal(out["Scaler_0"]["scaler"], [7.0, 8.0])
    np.testing.assert_array_equal(out["Dense_0"]["kernel"], kernel)


def test_projecting_twice_is_projecting_once():
    kernel = np.random.default_rng(0).normal(size=(257, 64)).astype(np.float32)
    once = hyperspherical.project({"SphereDense_0": kernel})
    jax.tree.map(np.testing.assert_array_equal, hyperspherical.project(once), once)


def test_one_block_by_hand():
    """Two features, an expansion of 2; the inner matrices pick and swap, so that every number can be followed.

    x = (0.6, 0.8): W1 gives (0.6, 0.8, -0.6, -0.8), scaled by s^2 / s = sqrt(2/2/2) and cut at 0: (0.6, 0.8, 0, 0) / sqrt 2.
    W2 swaps: (0.8, 0.6) after giving it unit length. A quarter of the way from x: (0.65, 0.75), over its length.
    """
    block = hyperspherical.SphereBlock(share=0.25, expansion=2)
    scale = np.sqrt(0.5)
    params = {
        "SphereDense_0": {"kernel": np.float32([[1, 0, -1, 0], [0, 1, 0, -1]])},
        "SphereDense_1": {"kernel": np.float32([[0, 1], [1, 0], [0, 0], [0, 0]])},
        "Scaler_0": {"scaler": np.full(4, scale, np.float32)},
        "Scaler_1": {"scaler": np.full(2, np.sqrt(0.5), np.float32)},
    }
    x = np.float32([0.6, 0.8])
    expected = np.array([0.65, 0.75]) / np.hypot(0.65, 0.75)
    np.testing.assert_allclose(block.apply({"params": params}, x), expected, rtol=1e-6)
    # What is stored starts at the units' scale, so that a fresh block goes a quarter of the way too.
    fresh = jax.eval_shape(block.init, jax.random.key(0), x)["params"]
    assert jax.tree.map(lambda a: a.shape, fresh) == jax.tree.map(lambda a: a.shape, params)


def numpy_head(p, x):
    hidden = x @ p["SphereDense_0"]["kernel"] * p["Scaler_0"]["scaler"]
    return hidden @ p["SphereDense_1"]["kernel"] + p["bias"]


def numpy_torso(p, x, width, blocks, expansion, shift):
    """In float64, one row at a time; stored scalers count in units of their scale."""
    norm = lambda v: v / np.linalg.norm(v)
    x = norm(np.append(x, shift)) @ p["SphereDense_0"]["kernel"]
    x = norm(x * p["Scaler_0"]["scaler"])
    for i in range(blocks):
        q = p[f"SphereBlock_{i}"]
        hidden = x @ q["SphereDense_0"]["kernel"] * q["Scaler_0"]["scaler"]
        y = norm((np.maximum(hidden, 0.0) + 1e-8) @ q["SphereDense_1"]["kernel"])
        share = 1.0 / (blocks + 1) / (1.0 / np.sqrt(width)) * q["Scaler_1"]["scaler"]
        x = norm(x + share * (y - x))
    return x


def test_critic_and_policy_equal_a_numpy_loop():
    rng = np.random.default_rng(0)
    observation, action = rng.normal(size=(2, 3, 4)).astype(np.float32), rng.normal(size=(2, 3, 2)).astype(np.float32)
    critic = hyperspherical.SphereActionValue(5, width=6, blocks=2, expansion=3)
    params = filled(critic, observation, action)
    out = jax.jit(critic.apply)(params, observation, action)
    wide = jax.tree.map(lambda a: np.asarray(a, np.float64), params)["params"]
    row = np.concatenate([observation[1, 2], action[1, 2]]).astype(np.float64)
    x = numpy_torso(wide["SphereTorso_0"], row, 6, 2, 3, 3.0)
    assert out.shape == (2, 3, 5)
    np.testing.assert_allclose(out[1, 2], numpy_head(wide["SphereHead_0"], x), rtol=1e-4, atol=1e-6)

    policy = hyperspherical.SpherePolicy(2, width=6, blocks=1, expansion=3)
    params = filled(policy, observation)
    loc, scale = jax.jit(policy.apply)(params, observation)
    wide = jax.tree.map(lambda a: np.asarray(a, np.float64), params)["params"]
    x = numpy_torso(wide["SphereTorso_0"], observation[0, 1].astype(np.float64), 6, 1, 3, 3.0)
    np.testing.assert_allclose(loc[0, 1], numpy_head(wide["loc"], x), rtol=1e-4, atol=1e-6)
    log_std = -10.0 + 12.0 * 0.5 * (1.0 + np.tanh(numpy_head(wide["log_std"], x)))
    np.testing.assert_allclose(scale[0, 1], np.exp(log_std), rtol=1e-4)


def test_fresh_scalers_are_what_the_source_starts_with():
    """Stored at their scale; the torso's sqrt(2 / width), a block's half of that for an expansion of 4, the heads' 1."""
    module = hyperspherical.SphereActionValue(5, width=8, blocks=1)
    params = jax.jit(module.init)(jax.random.key(0), jnp.zeros(3), jnp.zeros(1))["params"]
    torso = params["SphereTorso_0"]
    np.testing.assert_allclose(torso["Scaler_0"]["scaler"], np.full(8, 0.5), rtol=1e-6)
    np.testing.assert_allclose(torso["SphereBlock_0"]["Scaler_0"]["scaler"], np.full(32, 0.25), rtol=1e-6)
    np.testing.assert_allclose(torso["SphereBlock_0"]["Scaler_1"]["scaler"], np.full(8, 8**-0.5), rtol=1e-6)
    np.testing.assert_array_equal(params["SphereHead_0"]["Scaler_0"]["scaler"], np.ones(8))
