"""Losses of critics that learn a number. For one sample; ``vmap`` and average outside.

Names carry time: ``q_tm1`` is what is trained; ``r_t``, ``discount_t`` and ``v_t`` are what followed. ``discount_t`` is
0 where nothing follows, and that is all that is known here about how episodes end. Targets are constants: no gradient
flows into them.
"""

import jax
import jax.numpy as jnp

from jaxrl.types import Array


def td_target(r_t: Array, discount_t: Array, v_t: Array) -> Array:
    """``r_t + discount_t v_t`` as a constant. Scalars. (Sutton 1988.)"""
    return jax.lax.stop_gradient(r_t + discount_t * v_t)


def td_error(q_tm1: Array, r_t: Array, discount_t: Array, v_t: Array) -> Array:
    """Temporal-difference error, target minus prediction (Sutton 1988).

        r_t + discount_t v_t - q_tm1

    Gradients flow into ``q_tm1`` alone.
    """
    return td_target(r_t, discount_t, v_t) - q_tm1


def squared(error: Array) -> Array:
    """``error^2 / 2``, whose gradient is the error."""
    return 0.5 * jnp.square(error)


def huber(error: Array, delta: Array | float = 1.0) -> Array:
    """``error^2 / 2`` within ``delta`` of zero, and from there on a line of slope ``delta`` (Huber 1964)."""
    inside = jnp.minimum(jnp.abs(error), delta)
    return 0.5 * jnp.square(inside) + delta * (jnp.abs(error) - inside)


def q_learning_target(r_t: Array, discount_t: Array, q_t: Array) -> Array:
    """Target of Q-learning (Watkins 1989; Mnih et al. 2015): ``r_t + discount_t max_a q_t[a]``, a constant.

    Args:
        r_t, discount_t: [].
        q_t: [num_actions], of the target network.
    """
    return td_target(r_t, discount_t, jnp.max(q_t))


def double_q_learning_target(r_t: Array, discount_t: Array, q_t_value: Array, q_t_selector: Array) -> Array:
    """Target of double Q-learning (van Hasselt et al. 2016), a constant.

        r_t + discount_t q_t_value[argmax_a q_t_selector[a]]

    Args:
        r_t, discount_t: [].
        q_t_value: [num_actions] of the target network, which says what the action is worth.
        q_t_selector: [num_actions] of the online network, which chooses the action.
    """
    return td_target(r_t, discount_t, q_t_value[jnp.argmax(q_t_selector)])
