"""Losses of critics that learn a distribution over values. For one sample; ``vmap`` and average outside.

A critic's logits stand for probabilities on a ``support``: ``[N]`` values, increasing. A target is projected onto that
support and then compared by cross-entropy. Mass is conserved: what lies beyond the support lands on its end.
"""

import jax
import jax.numpy as jnp

from jaxrl.errors import UsageError
from jaxrl.types import Array


def uniform_support(low: float, high: float, num_bins: int) -> Array:
    """``num_bins`` values from ``low`` to ``high``, both included, evenly spaced. float32 [num_bins].

    Raises:
        UsageError: if that is not at least two values, from below to above.
    """
    if num_bins < 2:
        raise UsageError(f"a support needs at least two values, got num_bins={num_bins}; 2 is the smallest that works")
    if not low < high:
        raise UsageError(f"a support needs low < high, got low={low} and high={high}; try {min(low, high) - 1.0}")
    return jnp.linspace(low, high, num_bins, dtype=jnp.float32)


def two_hot(value: Array, support: Array) -> Array:
    """The distribution on the two neighbours of ``value`` whose mean it is (Schrittwieser et al. 2020, appendix F).

    Args:
        value: []; held within the support.
        support: [N >= 2], increasing, at any spacing.

    Returns:
        [N] probabilities; all mass on one entry if ``value`` is exactly on it.
    """
    value = jnp.clip(value, support[0], support[-1])
    below = jnp.clip(jnp.sum(support <= value) - 1, 0, support.shape[0] - 2)
    upper = (value - support[below]) / (support[below + 1] - support[below])
    positions = jnp.arange(support.shape[0])
    return jnp.where(positions == below, 1.0 - upper, 0.0) + jnp.where(positions == below + 1, upper, 0.0)


def hl_gauss(value: Array, support: Array, sigma: Array | float) -> Array:
    """A Gaussian around ``value``, integrated over each bin (Imani & White 2018; Farebrother et al. 2024, section 3.1).

        p_i = [Phi((e_{i+1} - value) / sigma) - Phi((e_i - value) / sigma)] / Z,    e: the edges of the bins

    The support holds the centres of the bins, at even spacing; ``Z`` makes up for mass beyond the outermost edges.

    Args:
        value: []; held within the support.
        support: [N >= 2], increasing, evenly spaced.
        sigma: standard deviation above 0, in the units of ``value``; 0.75 times the spacing is the authors' choice.

    Returns:
        [N] probabilities.
    """
    value = jnp.clip(value, support[0], support[-1])
    half = 0.5 * (support[-1] - support[0]) / (support.shape[0] - 1)
    edges = jnp.concatenate([support - half, support[-1:] + half])
    standard = (edges - value) / sigma
    lower, upper = standard[:-1], standard[1:]
    # Above the value, the difference is taken between upper tails: near 1 a float32 has no digits left for it.
    above = lower > 0.0
    mass = jax.scipy.special.ndtr(jnp.where(above, -lower, upper)) - jax.scipy.special.ndtr(
        jnp.where(above, -upper, lower)
    )
    return mass / jnp.sum(mass)


def project(values: Array, probabilities: Array, support: Array) -> Array:
    """Project a distribution onto a support, keeping its mass and, within the support, its mean.

        p_i = sum_j probabilities_j two_hot(values_j)_i

    (Bellemare et al. 2017, equation 7.)

    Args:
        values: [M], where the mass lies, in any order.
        probabilities: [M].
        support: [N >= 2], increasing, at any spacing.

    Returns:
        [N] probabilities.
    """
    # A sum of products, not a matrix product: those round to fewer bits on accelerators, and mass would leak.
    return jnp.sum(probabilities[:, None] * jax.vmap(two_hot, (0, None))(values, support), axis=0)


def categorical_td_target(r_t: Array, discount_t: Array, probabilities_t: Array, support: Array) -> Array:
    """Target of the distributional critic C51 (Bellemare et al. 2017, algorithm 1), a constant.

    The support, shrunk by ``discount_t`` and shifted by ``r_t``, projected back onto itself. With ``discount_t = 0``
    that is the two-hot of the reward.

    Args:
        r_t, discount_t: [].
        probabilities_t: [N], of the next state's value.
        support: [N].

    Returns:
        [N] probabilities.
    """
    return jax.lax.stop_gradient(project(r_t + discount_t * support, probabilities_t, support))


def cross_entropy(logits_tm1: Array, target: Array) -> Array:
    """``-sum_i target_i log softmax(logits_tm1)_i``. Gradients flow into the logits alone.

    Args:
        logits_tm1: [N].
        target: [N] probabilities. An entry of 0 counts 0, even where its logit is -inf.
    """
    target = jax.lax.stop_gradient(target)
    log_probabilities = jax.nn.log_softmax(logits_tm1)
    return -jnp.sum(target * jnp.where(target > 0.0, log_probabilities, 0.0), axis=-1)


def expected_value(logits: Array, support: Array) -> Array:
    """The mean of the distribution that logits ``[..., N]`` stand for, shape ``[...]``."""
    return jnp.sum(jax.nn.softmax(logits) * support, axis=-1)
