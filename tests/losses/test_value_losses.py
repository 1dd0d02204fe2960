"""Temporal-difference errors and targets, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.losses import value

Q_ONLINE, Q_TARGET = jnp.array([1.0, 5.0, 3.0]), jnp.array([7.0, 2.0, 4.0])


def test_td_error_and_its_gradients():
    arguments = tuple(map(jnp.float32, (4.0, 1.0, 0.9, 10.0)))
    error, gradients = jax.value_and_grad(value.td_error, (0, 1, 2, 3))(*arguments)
    np.testing.assert_allclose(error, 6.0, rtol=1e-6)
    np.testing.assert_array_equal(gradients, [-1.0, 0.0, 0.0, 0.0])


def test_semi_gradient_points_at_the_target():
    gradient = jax.grad(lambda q: value.squared(value.td_error(q, 1.0, 0.9, q)))(jnp.float32(4.0))
    np.testing.assert_allclose(gradient, -(1.0 + 3.6 - 4.0), rtol=1e-5)


@pytest.mark.parametrize(
    ("error", "delta", "loss", "slope"),
    [(0.5, 1.0, 0.125, 0.5), (-3.0, 1.0, 2.5, -1.0), (3.0, 2.0, 4.0, 2.0), (0.0, 1.0, 0.0, 0.0), (1.0, 1.0, 0.5, 1.0)],
)
def test_huber_by_hand(error, delta, loss, slope):
    result, gradient = jax.value_and_grad(value.huber)(error, delta)
    np.testing.assert_allclose([result, gradient], [loss, slope], rtol=1e-6)


def test_squared_by_hand():
    np.testing.assert_allclose(jax.value_and_grad(value.squared)(-3.0), [4.5, -3.0])


@pytest.mark.parametrize(("discount", "single", "double"), [(0.5, 4.5, 2.0), (0.0, 1.0, 1.0)])
def test_q_learning_targets_by_hand(discount, single, double):
    np.testing.assert_allclose(value.q_learning_target(1.0, discount, Q_TARGET), single)
    np.testing.assert_allclose(value.double_q_learning_target(1.0, discount, Q_TARGET, Q_ONLINE), double)


def test_targets_are_constants():
    gradient = jax.grad(value.q_learning_target, (0, 1, 2))(1.0, 0.5, Q_TARGET)
    double = jax.grad(value.double_q_learning_target, (0, 1, 2, 3))(1.0, 0.5, Q_TARGET, Q_ONLINE)
    for leaf in jax.tree.leaves((gradient, double)):
        np.testing.assert_array_equal(leaf, jnp.zeros_like(leaf))
