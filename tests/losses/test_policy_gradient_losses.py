"""The clipped surrogate and its company, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.losses import policy_gradient as pg


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.5, 2.0, -2.4, 0.0),  # already raised enough
        (0.5, 2.0, -1.0, -1.0),  # fell though it was good: still learns
        (0.5, -2.0, 1.6, 0.0),  # already lowered enough
        (1.5, -2.0, 3.0, 3.0),  # rose though it was bad: still learns
    ],
)
def test_clipped_surrogate_by_hand(ratio, advantage, loss, gradient):
    arguments = (jnp.log(ratio) - 1.0, jnp.float32(-1.0), jnp.float32(advantage))
    value, gradients = jax.value_and_grad(pg.clipped_surrogate, (0, 1, 2))(*arguments, 0.2)
    np.testing.assert_allclose(value, loss, rtol=1e-6)
    np.testing.assert_allclose(gradients, [gradient, 0.0, 0.0], rtol=1e-6)


@pytest.mark.parametrize("log_ratio", [-1e4, -100.0, 25.0, 100.0, 1e4])
@pytest.mark.parametrize("advantage", [-1.0, 1.0])
def test_clipped_surrogate_is_finite_however_far_the_policy_moved(log_ratio, advantage):
    value, gradient = jax.value_and_grad(pg.clipped_surrogate)(log_ratio, 0.0, advantage, 0.2)
    assert jnp.isfinite(value) and jnp.isfinite(gradient)


@pytest.mark.parametrize(
    ("value", "target", "loss", "gradient"),
    [
        (1.1, 2.0, 0.405, -0.9),  # within reach of the old value 1: the plain error
        (1.5, 2.0, 0.32, 0.0),  # moved past 1.2 in the right direction: held there
        (1.5, 0.0, 1.125, 1.5),  # moved past 1.2 in the wrong direction: the plain error
    ],
)
def test_clipped_value_by_hand(value, target, loss, gradient):
    arguments = (jnp.float32(value), jnp.float32(1.0), jnp.float32(target))
    result, gradients = jax.value_and_grad(pg.clipped_value, (0, 1, 2))(*arguments, 0.2)
    np.testing.assert_allclose(result, loss, rtol=1e-6)
    np.testing.assert_allclose(gradients, [gradient, 0.0, 0.0], rtol=1e-6)


def test_approximate_kl_by_hand_and_in_the_mean():
    np.testing.assert_allclose(pg.approximate_kl(jnp.log(2.0)), 1.0 - np.log(2.0), rtol=1e-6)
    assert pg.approximate_kl(jnp.float32(0.0)) == 0.0
    assert (jax.vmap(pg.approximate_kl)(jnp.linspace(-1e-3, 1e-3, 1001)) >= 0.0).all()
    # Behaviour N(0, 1), policy N(.3, 1): the divergence is .3^2 / 2.
    action = np.random.default_rng(0).normal(size=200_000)
    log_ratio = jnp.asarray(0.3 * action - 0.045, jnp.float32)
    np.testing.assert_allclose(pg.approximate_kl(log_ratio), 0.045, rtol=0.02)
    np.testing.assert_allclose(jax.vmap(pg.approximate_kl)(log_ratio).mean(), pg.approximate_kl(log_ratio), rtol=1e-5)


def test_clip_fraction_by_hand():
    log_ratio = jnp.log(jnp.array([1.0, 1.19, 1.21, 0.81, 0.79]))
    np.testing.assert_allclose(pg.clip_fraction(log_ratio, 0.2), 0.4, rtol=1e-6)
    np.testing.assert_array_equal(jax.vmap(pg.clip_fraction, (0, None))(log_ratio, 0.2), [0, 0, 1, 0, 1])
