"""Losses of proximal policy optimisation (Schulman et al. 2017). For one sample; ``vmap`` and average outside."""

import jax
import jax.numpy as jnp

from jaxrl.types import Array

# exp(20) is 4.9e8: past it the objective is flat. Without a limit the ratio overflows at 88.7, and the gradient of the
# branch that the minimum did not choose becomes 0 * inf.
_MAX_LOG_RATIO = 20.0


def importance_ratio(log_ratio: Array) -> Array:
    """``exp(log_ratio)``, held below 4.9e8 so that it and its gradient stay finite."""
    return jnp.exp(jnp.minimum(log_ratio, _MAX_LOG_RATIO))


def clipped_surrogate(log_prob: Array, behaviour_log_prob: Array, advantage: Array, epsilon: Array | float) -> Array:
    """The clipped surrogate, to be minimised (Schulman et al. 2017, equation 7).

        ratio = exp(log_prob - behaviour_log_prob)
        loss  = -min(ratio A, clip(ratio, 1 - epsilon, 1 + epsilon) A)

    Gradients flow into ``log_prob`` alone.

    Args:
        log_prob: [] of the action under the policy that is trained.
        behaviour_log_prob: [] of the same action under the policy that took it.
        advantage: [] of the action.
        epsilon: half the width of the trust region, a number above 0.
    """
    behaviour_log_prob, advantage = jax.lax.stop_gradient((behaviour_log_prob, advantage))
    ratio = importance_ratio(log_prob - behaviour_log_prob)
    clipped = jnp.clip(ratio, 1.0 - epsilon, 1.0 + epsilon)
    return -jnp.minimum(ratio * advantage, clipped * advantage)


def clipped_value(value: Array, behaviour_value: Array, target: Array, epsilon: Array | float) -> Array:
    """Squared error of the critic, pessimistic about moving more than ``epsilon`` (the reference code of PPO).

        clipped = behaviour_value + clip(value - behaviour_value, -epsilon, epsilon)
        loss    = max((value - target)^2, (clipped - target)^2) / 2

    Gradients flow into ``value`` alone. All arguments and the loss are scalars.
    """
    behaviour_value, target = jax.lax.stop_gradient((behaviour_value, target))
    clipped = behaviour_value + jnp.clip(value - behaviour_value, -epsilon, epsilon)
    return 0.5 * jnp.maximum(jnp.square(value - target), jnp.square(clipped - target))


def approximate_kl(log_ratio: Array) -> Array:
    """Estimate of KL(behaviour || policy) from actions of the behaviour policy; unbiased and never negative.

        k3 = (ratio - 1) - log ratio,    ratio = policy / behaviour

    (Schulman 2020, "Approximating KL divergence".)

    Args:
        log_ratio: log_prob - behaviour_log_prob, of one sample or of many.

    Returns:
        [] the mean over all that is given.
    """
    log_ratio = jnp.minimum(log_ratio, _MAX_LOG_RATIO)
    return jnp.mean(jnp.maximum(jnp.expm1(log_ratio) - log_ratio, 0.0))


def clip_fraction(log_ratio: Array, epsilon: Array | float) -> Array:
    """Share of samples whose ratio lies outside ``1 ± epsilon``.

    Args:
        log_ratio: log_prob - behaviour_log_prob, of one sample or of many.

    Returns:
        float32 [] in [0, 1], the mean over all that is given.
    """
    return jnp.mean((jnp.abs(importance_ratio(log_ratio) - 1.0) > epsilon).astype(jnp.float32))
