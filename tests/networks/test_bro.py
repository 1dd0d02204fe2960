"""Wide residual networks against an independent numpy loop, and the tasks' vectors."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.networks import bro
from tests.networks.test_networks import filled


def numpy_layer(p, index, x):
    """A linear layer and its normalisation."""
    dense, norm = p[f"Dense_{index}"], p[f"LayerNorm_{index}"]
    x = x @ dense["kernel"] + dense["bias"]
    return (x - x.mean()) / np.sqrt(x.var() + 1e-6) * norm["scale"] + norm["bias"]


def numpy_bro(p, x, depth):
    x = np.maximum(numpy_layer(p, 0, x), 0.0)
    for i in range(depth):
        block = p[f"BroBlock_{i}"]
        x = x + numpy_layer(block, 1, np.maximum(numpy_layer(block, 0, x), 0.0))
    return x


def test_critic_and_policy_equal_a_numpy_loop():
    rng = np.random.default_rng(0)
    observation, context, action = (rng.normal(size=(2, 3, size)).astype(np.float32) for size in (4, 3, 2))
    critic = bro.BroActionValue(5, width=6, depth=2)
    params = filled(critic, observation, context, action)
    out = jax.jit(critic.apply)(params, observation, context, action)
    wide = jax.tree.map(lambda a: np.asarray(a, np.float64), params)["params"]
    row = np.concatenate([observation[1, 2], action[1, 2], context[1, 2]]).astype(np.float64)
    expected = numpy_bro(wide["BroNet_0"], row, 2) @ wide["Dense_0"]["kernel"] + wide["Dense_0"]["bias"]
    assert out.shape == (2, 3, 5)
    np.testing.assert_allclose(out[1, 2], expected, rtol=1e-4, atol=1e-5)

    policy = bro.BroPolicy(2, width=6, depth=1)
    params = filled(policy, observation, context)
    loc, scale = jax.jit(policy.apply)(params, observation, context)
    wide = jax.tree.map(lambda a: np.asarray(a, np.float64), params)["params"]
    x = numpy_bro(wide["BroNet_0"], np.concatenate([observation[0, 1], context[0, 1]]).astype(np.float64), 1)
    np.testing.assert_allclose(loc[0, 1], x @ wide["loc"]["kernel"] + wide["loc"]["bias"], rtol=1e-4, atol=1e-5)
    log_std = -10.0 + 6.0 * (1.0 + np.tanh(x @ wide["log_std"]["kernel"] + wide["log_std"]["bias"]))
    np.testing.assert_allclose(scale[0, 1], np.exp(log_std), rtol=1e-3)


def test_a_task_is_its_row_of_unit_length():
    module = bro.TaskEmbedding(3, 2)
    params = {"params": {"Embed_0": {"embedding": jnp.array([[3.0, 4.0], [0.0, -0.1], [1e3, 0.0]])}}}
    out = module.apply(params, jnp.array([[0, 1], [2, 0]]))
    np.testing.assert_allclose(out, [[[0.6, 0.8], [0.0, -1.0]], [[1.0, 0.0], [0.6, 0.8]]], rtol=1e-6)
