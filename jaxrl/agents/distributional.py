"""What agents whose critics say distributions have in common: which distribution is bootstrapped from, and the loss."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.agents import common
from jaxrl.losses import categorical
from jaxrl.types import Array, Metrics


def mean(probabilities: Array, support: Array) -> Array:
    """The mean of distributions ``[..., N]``, shape ``[...]``. Not for gradients: an entry may be 0."""
    return categorical.expected_value(jnp.log(probabilities), support)


def smallest(probabilities: Array, support: Array) -> Array:
    """For every row the distribution of the critic with the smallest mean.

    This is clipped double Q-learning for distributions: one critic's is taken whole, none is mixed.

    Args:
        probabilities: ``[num_critics, B, N]``.
        support: [N].

    Returns:
        ``[B, N]``.
    """
    chosen = jnp.argmin(mean(probabilities, support), axis=0)
    return jnp.take_along_axis(probabilities, chosen[None, :, None], axis=0)[0]


def td_targets(reward: Array, discount: Array, probabilities: Array, support: Array) -> Array:
    """:func:`jaxrl.losses.categorical.categorical_td_target` for rows: ``[B], [B], [B, N], [N] -> [B, N]``."""
    return jax.vmap(categorical.categorical_td_target, (0, 0, 0, None))(reward, discount, probabilities, support)


def critic_loss(logits: Array, target: Array, weight: Array, support: Array) -> tuple[Array, tuple[Metrics, Array]]:
    """Cross-entropies between every critic and the target, summed over the critics, averaged over the batch.

    Args:
        logits: ``[num_critics, B, N]``.
        target: ``[B, N]`` probabilities, a constant.
        weight: [B].

    Returns:
        The loss, metrics, and priorities [B]: how far the critics' means are from the target's.
    """
    each = jax.vmap(jax.vmap(categorical.cross_entropy), (0, None))(logits, target)
    loss = jnp.mean(weight * jnp.sum(each, axis=0))
    values = categorical.expected_value(logits, support)
    priority = jnp.mean(jnp.abs(mean(target, support) - values), axis=0) + common.PRIORITY_FLOOR
    return loss, ({"critic/loss": loss, "critic/value": jnp.mean(values)}, priority)


def check_support(agent: str, config: Any) -> None:
    """Refuse a support that is empty or upside down, before anything compiles."""
    common.check_least(agent, config, 2, "num_bins")
    if hasattr(config, "value_min"):
        categorical.uniform_support(config.value_min, config.value_max, config.num_bins)
    else:
        common.check_least(agent, config, 1e-6, "value_max")


def support_of(config: Any) -> Array:
    """The values of the bins; from ``-value_max`` where the configuration has no ``value_min``. float32 [num_bins]."""
    low = getattr(config, "value_min", -config.value_max)
    return categorical.uniform_support(low, config.value_max, config.num_bins)
