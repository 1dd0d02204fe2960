"""Losses of soft and of deterministic actor-critics, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import returns
from jaxrl.losses import deterministic, soft, value
from jaxrl.types import Experience

Q_NEXT = jnp.array([12.0, 10.0])


def one_step(terminated: bool, truncated: bool) -> Experience:
    flags = jnp.array(terminated), jnp.array(truncated)
    return Experience(jnp.zeros(2), jnp.zeros(1), jnp.float32(1.0), *flags, jnp.ones(2))


@pytest.mark.parametrize(
    ("terminated", "truncated", "soft_target", "plain_target"),
    [(False, False, 11.098, 10.9), (False, True, 11.098, 10.9), (True, False, 1.0, 1.0), (True, True, 1.0, 1.0)],
)
def test_a_time_limit_is_not_a_death(terminated, truncated, soft_target, plain_target):
    step = returns.transition(one_step(terminated, truncated), 0.99)
    target = soft.critic_target(step.reward, step.discount, Q_NEXT, jnp.float32(-1.0), 0.2)
    np.testing.assert_allclose(target, soft_target, rtol=1e-6)
    np.testing.assert_allclose(deterministic.clipped_double_q_target(step.reward, step.discount, Q_NEXT), plain_target)
    gradient = jax.grad(lambda q: value.squared(target - q))(jnp.float32(5.0))
    np.testing.assert_allclose(gradient, 5.0 - soft_target, rtol=1e-6)


def test_soft_target_value_by_hand():
    np.testing.assert_allclose(soft.soft_target_value(Q_NEXT, jnp.float32(-1.0), 0.2), 10.2, rtol=1e-6)


def test_targets_are_constants():
    soft_gradients = jax.grad(soft.critic_target, (0, 1, 2, 3, 4))(1.0, 0.99, Q_NEXT, -1.0, 0.2)
    plain_gradients = jax.grad(deterministic.clipped_double_q_target, (0, 1, 2))(1.0, 0.99, Q_NEXT)
    for gradient in jax.tree.leaves((soft_gradients, plain_gradients)):
        np.testing.assert_array_equal(gradient, jnp.zeros_like(gradient))


def test_actor_loss_by_hand():
    loss, gradients = jax.value_and_grad(soft.actor_loss, (0, 1, 2))(Q_NEXT, -1.5, 0.2)
    np.testing.assert_allclose(loss, -0.3 - 10.0, rtol=1e-6)
    np.testing.assert_array_equal(gradients[0], [0.0, -1.0])
    np.testing.assert_allclose(gradients[1:], [0.2, 0.0], rtol=1e-6)
    np.testing.assert_allclose(soft.actor_loss(jnp.float32(10.0), -1.5, 0.2), -10.3, rtol=1e-6)


@pytest.mark.parametrize(("log_prob", "direction"), [(3.0, -1.0), (1.0, 1.0), (2.0, 0.0)])
def test_temperature_moves_towards_the_target_entropy(log_prob, direction):
    # Target entropy -2: at log pi = 3 the entropy is too low, and descending must raise the temperature.
    loss, gradients = jax.value_and_grad(soft.temperature_loss, (0, 1, 2))(jnp.log(0.5), log_prob, -2.0)
    np.testing.assert_allclose(loss, 0.5 * direction, atol=1e-6)
    np.testing.assert_allclose(gradients, [0.5 * direction, 0.0, 0.0], atol=1e-6)


def test_policy_loss_is_minus_q():
    np.testing.assert_allclose(jax.value_and_grad(deterministic.policy_loss)(3.0), [-3.0, -1.0])
