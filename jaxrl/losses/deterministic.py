"""Losses of deterministic policy gradients, DDPG and TD3. For one sample; ``vmap`` and average outside."""

import jax.numpy as jnp

from jaxrl.losses.value import td_target
from jaxrl.types import Array


def clipped_double_q_target(r_t: Array, discount_t: Array, q_t: Array) -> Array:
    """Target of every critic: ``r_t + discount_t min_k q_t[k]`` (Fujimoto et al. 2018, equation 10), a constant.

    Args:
        r_t, discount_t: [].
        q_t: [num_critics], target critics at the smoothed action of the target policy.
    """
    return td_target(r_t, discount_t, jnp.min(q_t, axis=-1))


def policy_loss(q_tm1: Array) -> Array:
    """``-q_tm1``, the critic's value of the policy's own action (Silver et al. 2014; Lillicrap et al. 2016).

    Gradients flow through the critic's *input*; whoever differentiates holds the critic's parameters fixed.
    """
    return -q_tm1
