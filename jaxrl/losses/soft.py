"""Losses of soft actor-critic (Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications").

For one sample; ``vmap`` and average outside. Equations are numbered as in that paper, arXiv:1812.05905.
"""

import jax
import jax.numpy as jnp

from jaxrl.losses.value import td_target
from jaxrl.types import Array


def soft_target_value(q_t: Array, log_prob_t: Array, alpha: Array | float) -> Array:
    """Soft value of the next state: ``min_k q_t[k] - alpha log_prob_t`` (equation 3, with clipped double critics).

    A constant: no gradient flows into anything.

    Args:
        q_t: [num_critics], target critics at an action drawn from the policy.
        log_prob_t: [], the log-probability of that action.
        alpha: the temperature.
    """
    return jax.lax.stop_gradient(jnp.min(q_t, axis=-1) - alpha * log_prob_t)


def critic_target(r_t: Array, discount_t: Array, q_t: Array, log_prob_t: Array, alpha: Array | float) -> Array:
    """Target of every critic: ``r_t + discount_t (min_k q_t[k] - alpha log_prob_t)`` (equation 5), a constant."""
    return td_target(r_t, discount_t, soft_target_value(q_t, log_prob_t, alpha))


def actor_loss(q_tm1: Array, log_prob_tm1: Array, alpha: Array | float) -> Array:
    """``alpha log_prob - min_k q[k]`` at an action that the policy draws by reparametrisation (equation 7).

    Gradients flow into the critics' *input* and into ``log_prob``, never into ``alpha``; whoever differentiates holds
    the critics' parameters fixed.

    Args:
        q_tm1: [num_critics] or [], critics at the drawn action.
        log_prob_tm1: [], the log-probability of that action.
        alpha: the temperature.
    """
    return jax.lax.stop_gradient(alpha) * log_prob_tm1 - jnp.min(jnp.atleast_1d(q_tm1), axis=-1)


def temperature_loss(log_alpha: Array, log_prob: Array, target_entropy: Array | float) -> Array:
    """``-alpha (log_prob + target_entropy)``, ``alpha = exp(log_alpha)`` (equation 18).

    Minimising raises the temperature while the entropy, estimated by ``-log_prob``, is below its target. Gradients flow
    into ``log_alpha`` alone.

    Args:
        log_alpha: [].
        log_prob: [], of an action drawn from the policy.
        target_entropy: in nats, in the same units of action as ``log_prob``.
    """
    return -jnp.exp(log_alpha) * jax.lax.stop_gradient(log_prob + target_entropy)
