"""Features: monomials by name, the kernel that Fourier features approach, stacks, and an encoder without a layer norm."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.errors import UsageError
from jaxrl.koopman import dictionaries, spectra


def test_monomials_by_hand():
    dictionary = dictionaries.polynomial(2, 3)
    assert dictionary.names == ("1", "x1", "x2", "x1^2", "x1 x2", "x2^2", "x1^3", "x1^2 x2", "x1 x2^2", "x2^3")
    features = dictionary.features(dictionary.init(jax.random.key(0)), np.array([[2.0, 3.0]]))
    assert isinstance(features, np.ndarray) and features.dtype == np.float64
    assert features.tolist() == [[1, 2, 3, 4, 6, 9, 8, 12, 18, 27]]
    assert dictionary.size == 10 and dictionaries.polynomial(4, 2, constant=False).size == 14
    assert dictionary.features({}, jnp.array([2.0, 3.0])).shape == (10,)


def test_fourier_features_approach_the_gaussian_kernel():
    dictionary = dictionaries.fourier(3, 20000, bandwidth=1.5)
    params = dictionary.init(jax.random.key(0))
    x, y = np.array([0.5, -1.0, 0.2]), np.array([-0.3, 0.4, 1.0])
    inner = float(dictionary.features(params, x) @ dictionary.features(params, y))
    assert abs(inner - np.exp(-np.sum((x - y) ** 2) / (2 * 1.5**2))) < 0.03
    np.testing.assert_allclose(dictionary.features(params, jnp.asarray(x)), dictionary.features(params, x), atol=1e-5)


def test_the_state_comes_first():
    dictionary = dictionaries.with_identity(dictionaries.fourier(2, 5))
    params = dictionary.init(jax.random.key(0))
    x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    features = dictionary.features(params, x)
    assert features.shape == (2, 7) and dictionary.size == 7
    assert features[:, :2].tolist() == x.tolist()
    assert dictionary.names[:3] == ("x1", "x2", "cos 1")


class Normalised(nn.Module):
    """The same encoder with the layer norm that the released code ends in."""

    @nn.compact
    def __call__(self, x):
        return nn.LayerNorm()(dictionaries.EncoderNetwork(8, (32,))(x))


def test_a_layer_norm_on_the_latent_would_make_its_covariance_singular():
    """The encoder's latents span all 8 directions; with the norm one direction is gone, whatever the data."""
    x = jax.random.normal(jax.random.key(0), (500, 6))
    dictionary = dictionaries.encoder(6, 8, (32,))
    free = dictionary.features(dictionary.init(jax.random.key(1)), x)
    network = Normalised()
    normed = network.apply(network.init(jax.random.key(1), x), x)
    assert spectra.conditioning(free, tolerance=1e-6).rank == 8
    assert spectra.conditioning(normed, tolerance=1e-6).rank == 7


def test_keys_and_what_cannot_work(key_reuse_checked):
    stacked = dictionaries.stack(
        dictionaries.fourier(2, 3), dictionaries.encoder(2, 3, (4,)), dictionaries.polynomial(2, 1)
    )
    params = stacked.init(jax.random.key(0))
    assert stacked.features(params, jnp.ones((4, 2))).shape == (4, 9)
    for call, said in [
        (lambda: dictionaries.polynomial(0, 2), "dim of polynomials must be at least 1"),
        (lambda: dictionaries.fourier(2, 3, bandwidth=0.0), "bandwidth above 0"),
        (lambda: dictionaries.encoder(2, 0), "size of an encoder"),
        (lambda: dictionaries.fourier(2, 3).init(jax.random.PRNGKey(0)), "typed key"),
        (lambda: dictionaries.encoder(2, 3).init(jax.random.PRNGKey(0)), "typed key"),
        (lambda: stacked.init(jax.random.PRNGKey(0)), "typed key"),
        (lambda: dictionaries.stack(), "none"),
        (lambda: dictionaries.stack(dictionaries.identity(2), dictionaries.identity(3)), r"\[2, 3\]"),
        (lambda: stacked.features(params, jnp.ones((4, 3))), "2 numbers"),
    ]:
        with pytest.raises(UsageError, match=said):
            call()
