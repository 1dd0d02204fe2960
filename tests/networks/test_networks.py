"""Torsos, heads and ensembles: shapes under any leading axes, and numbers worked out by an independent numpy loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import networks
from jaxrl.errors import UsageError


def init(module, seed, *inputs):
    """Parameters as the module draws them, by one compiled program."""
    return jax.jit(module.init)(jax.random.key(seed), *inputs)


def filled(module, *inputs):
    """Parameters of the module's shapes without its drawing, which takes seconds to compile."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(module.init, jax.random.key(0), *inputs)
    return jax.tree.map(lambda x: rng.normal(0.0, 0.2, x.shape).astype(x.dtype), shapes)


SMALL = {"hidden_sizes": (8, 8), "activation": "tanh"}
NETWORKS = {
    "value": (networks.StateValue(**SMALL), ()),
    "categorical": (networks.CategoricalPolicy(3, **SMALL), (3,)),
    "deterministic": (networks.DeterministicPolicy(2, **SMALL), (2,)),
    "discrete": (networks.DiscreteActionValue(3, **SMALL), (3,)),
    "duelling": (networks.DiscreteActionValue(3, duelling=True, **SMALL), (3,)),
}


def numpy_mlp(params, x, layer_norm):
    """The torso in float64, one row at a time."""
    x = np.asarray(x, np.float64)
    for i in range(2):
        layer = params[f"Dense_{i}"]
        x = x @ np.asarray(layer["kernel"], np.float64) + np.asarray(layer["bias"], np.float64)
        if layer_norm:
            norm = params[f"LayerNorm_{i}"]
            x = (x - x.mean()) / np.sqrt(x.var() + 1e-6)
            x = x * np.asarray(norm["scale"], np.float64) + np.asarray(norm["bias"], np.float64)
        x = np.maximum(x, 0.0)
    return x


@pytest.mark.parametrize("layer_norm", [False, True])
def test_mlp_equals_a_numpy_loop(layer_norm):
    module = networks.MLP((7, 5), "relu", layer_norm)
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    params = filled(module, x)
    expected = np.stack([numpy_mlp(params["params"], row, layer_norm) for row in x])
    np.testing.assert_allclose(module.apply(params, x), expected, rtol=1e-4, atol=1e-6)


def test_layers_are_orthogonal_with_the_gain_asked_for():
    params = init(networks.StateValue(hidden_sizes=(16,)), 1, jnp.zeros(16))["params"]
    hidden, head = np.asarray(params["MLP_0"]["Dense_0"]["kernel"]), np.asarray(params["Dense_0"]["kernel"])
    np.testing.assert_allclose(hidden.T @ hidden, 2.0 * np.eye(16), atol=1e-5)
    np.testing.assert_allclose(head.T @ head, [[1.0]], atol=1e-5)
    policy = init(networks.CategoricalPolicy(4, hidden_sizes=()), 1, jnp.zeros(16))["params"]
    head = np.asarray(policy["Dense_0"]["kernel"])
    np.testing.assert_allclose(head.T @ head, 1e-4 * np.eye(4), atol=1e-8)


@pytest.mark.parametrize("name", NETWORKS)
def test_leading_axes_are_kept_and_rows_do_not_mix(name):
    module, event = NETWORKS[name]
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    params, apply = filled(module, x), jax.jit(module.apply)
    out = apply(params, x)
    assert out.shape == (2, 3, *event) and out.dtype == jnp.float32
    np.testing.assert_allclose(out[1, 2], apply(params, x[1, 2]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("std", ["state", "free"])
def test_fresh_gaussian_policy_has_the_deviation_asked_for(std):
    module = networks.GaussianPolicy(2, std=std, initial_std=0.5, **SMALL)
    x = np.random.default_rng(0).normal(size=(3, 6, 4)).astype(np.float32)
    params = init(module, 1, x)
    loc, scale = jax.jit(module.apply)(params, x)
    assert loc.shape == scale.shape == (3, 6, 2)
    np.testing.assert_allclose(scale, 0.5, rtol=0.1)
    assert float(jnp.abs(loc).max()) < 0.05
    assert ("log_std" in params["params"]) and (bool(jnp.ptp(scale) > 0) == (std == "state"))


def test_state_dependent_deviation_is_bounded_and_its_gradient_stays():
    module = networks.GaussianPolicy(1, hidden_sizes=())
    x = jnp.ones((1,))
    params = filled(module, x)

    def log_std(bias):
        moved = {"params": params["params"] | {"log_std": {"kernel": jnp.zeros((1, 1)), "bias": bias}}}
        return jnp.log(module.apply(moved, x)[1])[0]

    np.testing.assert_allclose(log_std(jnp.array([100.0])), 2.0, rtol=1e-5)
    np.testing.assert_allclose(log_std(jnp.array([-100.0])), -5.0, rtol=1e-5)
    assert float(jax.grad(log_std)(jnp.array([3.0]))[0]) > 0


def test_duelling_head_is_value_plus_centred_advantage():
    module = networks.DiscreteActionValue(3, hidden_sizes=(), duelling=True)
    params = {
        "params": {
            "advantage": {"kernel": jnp.array([[1.0, 2.0, 6.0]]), "bias": jnp.zeros(3)},
            "value": {"kernel": jnp.array([[10.0]]), "bias": jnp.array([1.0])},
        }
    }
    # v = 21, a = [2, 4, 12], mean 6
    np.testing.assert_allclose(module.apply(params, jnp.array([2.0])), [17.0, 19.0, 27.0])


@pytest.mark.parametrize(("size", "features"), [(84, 7 * 7 * 64), (36, 64), (10, 10 * 10 * 32)])
def test_images_large_and_small(size, features):
    image = np.random.default_rng(0).integers(0, 256, (2, 1, size, size, 3), np.uint8)
    module = networks.Encoder(rank=3)
    params = filled(module, image)
    out = module.apply(params, image)
    assert out.shape == (2, 1, features) and out.dtype == jnp.float32
    scaled = module.apply(params, image.astype(np.float32) / 255.0)
    np.testing.assert_allclose(out, scaled, rtol=1e-5, atol=1e-6)


def test_encoder_flattens_everything_but_images():
    x = jnp.arange(12, dtype=jnp.int32).reshape(2, 3, 2)
    out = networks.Encoder(rank=2).apply({}, x)
    assert out.dtype == jnp.float32
    np.testing.assert_array_equal(out, np.arange(12.0).reshape(2, 6))
    assert networks.Encoder(rank=0).apply({}, jnp.zeros(5)).shape == (5, 1)


def test_ensemble_members_differ_and_equal_the_network_alone():
    module = networks.ActionValue(**SMALL)
    observation, action = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32), np.ones((5, 2), np.float32)
    params = jax.jit(lambda key: networks.init_ensemble(module, 3, key, observation, action))(jax.random.key(1))
    out = jax.jit(lambda params: networks.apply_ensemble(module, params, observation, action))(params)
    assert out.shape == (3, 5)
    assert float(jnp.abs(out[0] - out[1]).min()) > 0
    apply = jax.jit(module.apply)
    for i in range(3):
        member = jax.tree.map(lambda x, i=i: x[i], params)
        np.testing.assert_allclose(out[i], apply(member, observation, action), rtol=1e-5, atol=1e-6)


def test_bad_names_and_sizes_are_refused():
    with pytest.raises(UsageError, match="unknown activation 'rellu'; did you mean 'relu'"):
        init(networks.MLP((4,), "rellu"), 0, jnp.zeros(3))
    with pytest.raises(UsageError, match="at least one member, got 0"):
        networks.init_ensemble(networks.StateValue(), 0, jax.random.key(0), jnp.zeros(3))
