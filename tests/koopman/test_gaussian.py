"""Uncertainty in closed form, against its definition, simulation, and the shortcut that holds for white latents only."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.errors import UsageError
from jaxrl.koopman import gaussian

RNG = np.random.default_rng(0)


def a_system(size=4):
    """A contraction and a covariance that it keeps with some noise, in float64."""
    a = RNG.normal(size=(size, size))
    a *= 0.8 / np.linalg.norm(a, 2)
    noise = RNG.normal(size=(size, size))
    noise = noise @ noise.T / size
    stationary = noise
    for _ in range(500):
        stationary = a @ stationary @ a.T + noise
    return a, noise, stationary


def test_spread_of_white_latents_by_hand():
    """C = I, A = diag(.6, .8), T = 2: 1 - .6^4 and 1 - .8^4."""
    a2 = jnp.diag(jnp.array([0.36, 0.64]))
    np.testing.assert_allclose(gaussian.spread(a2, jnp.eye(2)), np.diag([0.8704, 0.5904]), rtol=1e-6)


def test_spread_is_what_noise_adds_up_to():
    """C - A^T C A^T' equals the sum of T steps of noise, and the noise of a step is recovered from C."""
    a, noise, stationary = (jnp.float32(part) for part in a_system())
    np.testing.assert_allclose(gaussian.process_noise(a, stationary), noise, atol=2e-6)
    grown = gaussian.propagate(a, noise, jnp.zeros_like(noise), 6)
    assert grown.shape == (6, 4, 4)
    for t in (1, 3, 6):
        expected = gaussian.spread(jnp.linalg.matrix_power(a, t), stationary)
        np.testing.assert_allclose(grown[t - 1], expected, atol=3e-6)


def test_propagation_by_hand():
    """s' = s / 4 + 3 from 8: 5, 4.25."""
    found = gaussian.propagate(jnp.array([[0.5]]), jnp.array([[3.0]]), jnp.array([[8.0]]), 2)
    np.testing.assert_allclose(found.ravel(), [5.0, 4.25])


def test_blocks_of_neighbours_matter():
    """The shortcut takes a node's own block alone. A node that copies its neighbour has no uncertainty, not a full one."""
    copies = jnp.array([[0.0, 1.0], [0.0, 0.0]])  # node 1 becomes node 2, which is drawn afresh
    np.testing.assert_allclose(gaussian.spread(copies, jnp.eye(2)), np.diag([0.0, 1.0]), atol=1e-6)
    own_block_alone = 1.0 - jnp.diag(copies) ** 2
    assert own_block_alone.tolist() == [1.0, 1.0]


def test_positive_part():
    """[[0, 2], [2, 0]] has eigenvalues 2 and -2; its nearest covariance is [[1, 1], [1, 1]]."""
    np.testing.assert_allclose(gaussian.positive_part(jnp.array([[0.0, 2.0], [2.0, 0.0]])), np.ones((2, 2)), atol=1e-6)
    spread = gaussian.spread(2.0 * jnp.eye(3), jnp.eye(3))  # an operator that grows has no stationary covariance
    np.testing.assert_allclose(spread, np.zeros((3, 3)), atol=1e-6)


def test_samples_have_their_moments_even_if_singular(key_reuse_checked):
    root = np.array([[1.0, 0.0], [2.0, 0.0]])
    draws = gaussian.sample(jnp.array([3.0, -1.0]), jnp.float32(root @ root.T), 20000, jax.random.key(0))
    np.testing.assert_allclose(draws.mean(0), [3.0, -1.0], atol=0.05)
    np.testing.assert_allclose(np.cov(np.asarray(draws).T), root @ root.T, atol=0.1)
    np.testing.assert_allclose((draws[:, 1] + 1) - 2 * (draws[:, 0] - 3), 0, atol=1e-3)


def test_residual_noise_of_a_simulation():
    a, noise, _ = a_system()
    x = RNG.normal(size=(50000, 4))
    y = x @ a.T + RNG.multivariate_normal(np.zeros(4), noise, size=len(x))
    found = gaussian.residual_noise(*(jnp.float32(part) for part in (x, y, a)))
    np.testing.assert_allclose(found, noise, atol=0.03)


def test_analogs_by_hand():
    """1 + .5 * 1 * v for v = 1, -1, -3: 1.5, .5 and none, so 3/4 and 1/4; two steps halve the preference again."""
    bank, one = jnp.array([[1.0], [-1.0], [-3.0]]), jnp.ones(1)
    np.testing.assert_allclose(gaussian.analog_weights(one, bank, one / 2, 1), [0.75, 0.25, 0.0], rtol=1e-6)
    np.testing.assert_allclose(gaussian.analog_weights(one, bank, one / 2, 2), [1.25 / 2.25, 0.75 / 2.25, 0.25 / 2.25])
    np.testing.assert_allclose(gaussian.analog_weights(one, bank[2:], one, 1), [1.0])
    drawn = gaussian.resample(jnp.array([0.75, 0.25, 0.0]), 4000, jax.random.key(0))
    np.testing.assert_allclose(np.bincount(drawn, minlength=3) / 4000, [0.75, 0.25, 0.0], atol=0.03)


def test_what_cannot_work_is_refused():
    eye = jnp.eye(2)
    for call, said in [
        (lambda: gaussian.propagate(eye, eye, eye, 0), "at least 1"),
        (lambda: gaussian.propagate(eye, jnp.eye(3), eye, 2), "one size"),
        (lambda: gaussian.sample(jnp.ones(2), eye, 0, jax.random.key(0)), "at least 1"),
        (lambda: gaussian.resample(jnp.ones(2) / 2, 0, jax.random.key(0)), "at least 1"),
        (lambda: gaussian.resample(jnp.ones(2) / 2, 1, jax.random.PRNGKey(0)), "typed key"),
        (lambda: gaussian.analog_weights(jnp.ones(2), jnp.ones((5, 3)), jnp.ones(3), 1), r"\(2,\), \(3,\), \(3,\)"),
        (lambda: gaussian.spread(jnp.eye(3), eye), r"\(3, 3\), \(2, 2\)"),
        (lambda: gaussian.sample(jnp.ones(3), eye, 2, jax.random.key(0)), r"got \(3,\)"),
        (lambda: gaussian.residual_noise(jnp.ones((4, 3)), jnp.ones((4, 3)), eye), r"\(4, 3\), \(2, 2\)"),
    ]:
        with pytest.raises(UsageError, match=said):
            call()
