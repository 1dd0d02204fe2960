"""Projections by hand, conservation of mass and mean, and cross-entropy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxrl.errors import UsageError
from jaxrl.losses import categorical

SUPPORT = jnp.array([-2.0, -1.0, 0.0, 1.0, 2.0])
# Compiled once each: most of the time of a test would go into compiling operation by operation.
TWO_HOT = jax.jit(jax.vmap(categorical.two_hot, (0, None)))
HL_GAUSS = jax.jit(jax.vmap(categorical.hl_gauss, (0, None, None)))
TD_TARGET = jax.jit(categorical.categorical_td_target)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.25, [0, 0, 0.75, 0.25, 0]),
        (-1.5, [0.5, 0.5, 0, 0, 0]),
        (-2.0, [1, 0, 0, 0, 0]),
        (0.0, [0, 0, 1, 0, 0]),
        (2.0, [0, 0, 0, 0, 1]),
        (99.0, [0, 0, 0, 0, 1]),
        (-99.0, [1, 0, 0, 0, 0]),
    ],
)
def test_two_hot_by_hand(value, expected):
    np.testing.assert_array_equal(TWO_HOT(jnp.float32([value]), SUPPORT)[0], np.float32(expected))


def test_two_hot_on_an_uneven_support():
    np.testing.assert_allclose(categorical.two_hot(5.0, jnp.array([0.0, 1.0, 9.0])), [0.0, 0.5, 0.5])


def test_two_hot_keeps_mass_and_mean_and_exact_values():
    support = categorical.uniform_support(-10.0, 10.0, 51)
    values = jnp.linspace(-10.0, 10.0, 999)
    hot = TWO_HOT(values, support)
    np.testing.assert_array_equal(hot.sum(-1), np.ones(999, np.float32))
    np.testing.assert_allclose(hot @ support, values, atol=2e-5)
    np.testing.assert_array_equal(TWO_HOT(support, support), np.eye(51, dtype=np.float32))


def test_projection_of_a_shifted_support_by_hand():
    probabilities = jnp.array([0.1, 0.2, 0.4, 0.2, 0.1])
    # 0.5 + 0.5 z = -0.5, 0, 0.5, 1, 1.5
    target = TD_TARGET(jnp.float32(0.5), jnp.float32(0.5), probabilities, SUPPORT)
    np.testing.assert_allclose(target, [0.0, 0.05, 0.05 + 0.2 + 0.2, 0.2 + 0.2 + 0.05, 0.05], atol=1e-7)
    # One step to the right, and what would fall off stays on the end.
    target = TD_TARGET(jnp.float32(1.0), jnp.float32(1.0), probabilities, SUPPORT)
    np.testing.assert_allclose(target, [0.0, 0.1, 0.2, 0.4, 0.3], atol=1e-7)
    # Nothing follows: the reward alone.
    target = TD_TARGET(jnp.float32(-1.0), jnp.float32(0.0), probabilities, SUPPORT)
    np.testing.assert_allclose(target, [0.0, 1.0, 0.0, 0.0, 0.0], atol=1e-7)
    # No reward, no discount: itself.
    target = TD_TARGET(jnp.float32(0.0), jnp.float32(1.0), probabilities, SUPPORT)
    np.testing.assert_array_equal(target, probabilities)


def test_projection_agrees_with_a_float64_loop():
    rng = np.random.default_rng(0)
    support, spacing = np.linspace(-5, 5, 21), 0.5
    for _ in range(20):
        probabilities, reward, discount = rng.dirichlet(np.ones(21)), rng.normal() * 3, rng.random()
        expected = np.zeros(21)
        for p, z in zip(probabilities, support, strict=True):
            position = (np.clip(reward + discount * z, -5, 5) + 5) / spacing
            low = int(np.floor(position))
            expected[low] += p * (1 - (position - low))
            expected[min(low + 1, 20)] += p * (position - low)
        result = TD_TARGET(*map(jnp.float32, (reward, discount, probabilities, support)))
        np.testing.assert_allclose(result, expected, atol=2e-6)
        np.testing.assert_allclose(result.sum(), 1.0, rtol=1e-6)


def test_hl_gauss_agrees_with_scipy():
    edges = np.linspace(-2.5, 2.5, 6)
    for value in (-2.0, 0.3, 1.7):
        expected = np.diff(scipy.stats.norm.cdf(edges, value, 0.75))
        result = categorical.hl_gauss(jnp.float32(value), SUPPORT, 0.75)
        np.testing.assert_allclose(result, expected / expected.sum(), rtol=1e-5)


def test_hl_gauss_keeps_mass_everywhere_and_the_mean_inside():
    support = categorical.uniform_support(-10.0, 10.0, 101)
    values = jnp.array([-1e9, -10.0, -3.21, 0.0, 4.567, 10.0, 1e9])
    for sigma in (1e-4, 0.15, 2.0):
        probabilities = HL_GAUSS(values, support, sigma)
        assert (probabilities >= 0).all()
        np.testing.assert_allclose(probabilities.sum(-1), 1.0, rtol=1e-6)
    inside = HL_GAUSS(values[2:5], support, 0.15)
    np.testing.assert_allclose(inside @ support, values[2:5], atol=1e-3)
    narrow = categorical.hl_gauss(jnp.float32(1.0), SUPPORT, 1e-3)
    np.testing.assert_array_equal(narrow, [0, 0, 0, 1, 0])


def test_cross_entropy_by_hand():
    logits = jnp.log(jnp.array([0.5, 0.25, 0.25]))
    target = jnp.array([0.5, 0.5, 0.0])
    loss, gradients = jax.value_and_grad(categorical.cross_entropy, (0, 1))(logits, target)
    np.testing.assert_allclose(loss, 1.5 * np.log(2), rtol=1e-6)
    np.testing.assert_allclose(gradients[0], [0.0, -0.25, 0.25], atol=1e-6)
    np.testing.assert_array_equal(gradients[1], np.zeros(3))


def test_cross_entropy_ignores_impossible_entries_without_target():
    masked = jnp.array([0.0, 0.0, -jnp.inf])
    loss, gradient = jax.value_and_grad(categorical.cross_entropy)(masked, jnp.array([0.5, 0.5, 0.0]))
    np.testing.assert_allclose(loss, np.log(2), rtol=1e-6)
    np.testing.assert_allclose(gradient, np.zeros(3), atol=1e-6)


def test_expected_value_by_hand():
    logits = jnp.log(jnp.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]))
    np.testing.assert_allclose(categorical.expected_value(logits, jnp.array([0.0, 4.0, 8.0])), [3.0, 6.8], rtol=1e-6)


def test_target_is_a_constant():
    arguments = (jnp.float32(0.5), jnp.float32(0.5), jnp.full(5, 0.2), SUPPORT)
    for gradient in jax.grad(lambda *a: categorical.categorical_td_target(*a)[1], (0, 1, 2))(*arguments):
        np.testing.assert_array_equal(gradient, jnp.zeros_like(gradient))


@pytest.mark.parametrize(("arguments", "message"), [((-1.0, 1.0, 1), "num_bins=1"), ((2.0, 2.0, 5), "low=2.0")])
def test_supports_that_cannot_work_are_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        categorical.uniform_support(*arguments)
