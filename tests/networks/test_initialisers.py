import jax
import numpy as np
import pytest

from jaxrl.networks.initialisers import orthogonal


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4), (3, 3, 2, 7), (8, 8, 4, 32)])
def test_weights_are_those_of_jax(shape):
    key = jax.random.key(1)
    np.testing.assert_array_equal(orthogonal(1.4)(key, shape), jax.nn.initializers.orthogonal(1.4)(key, shape))


def test_the_shorter_side_is_orthonormal():
    weights = orthogonal(2.0)(jax.random.key(0), (5, 3))
    np.testing.assert_allclose(weights.T @ weights, 4.0 * np.eye(3), atol=1e-5)


def test_a_population_of_many_layers_finishes():
    """Batched factorisations of as many layers as there are threads wait for each other for ever."""

    def layers(key):
        return [orthogonal()(k, (24, 24 + i)) for i, k in enumerate(jax.random.split(key, 12))]

    compiled = jax.jit(jax.vmap(layers))
    members = jax.random.split(jax.random.key(0), 6)
    called = [line for line in compiled.lower(members).as_text().splitlines() if "geqrf" in line]
    assert called and all('num_batch_dims = "0"' in line for line in called)
    for _ in range(20):
        weights = compiled(members)
    np.testing.assert_allclose(weights[7][4], layers(members[4])[7], atol=1e-6)
