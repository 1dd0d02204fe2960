"""Running mean and variance of observations, and normalising by them.

The statistics are fed *raw* observations, in batches of any size. Everything is float32 and accurate without float64:

* a batch is measured about the current mean, and merged with the parallel formula of Chan, Golub & LeVeque (1983), so
  that nothing of the size of ``mean^2`` is ever formed;
* the variance itself is kept, not the sum of squares, whose increments a float32 would swallow past 10^9 samples;
* the number of samples is two uint32 limbs. An int32 overflows at 2^31 samples and a float32 stops counting at 2^24;
  both are less than a day of simulation.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.errors import UsageError
from jaxrl.types import Array, PyTree

_LIMB = 2**32
# Rounding errors of a mean are a few units in the last place, so a deviation below this share of it is not one.
_RELATIVE_FLOOR = 8.0 * float(np.finfo(np.float32).eps)


class RunningStatistics(NamedTuple):
    """Mean and variance of each entry over all samples so far; both have the tree of one observation."""

    count: Array  # type: ignore[assignment]  # uint32 [2]: samples so far are count[0] + 2^32 count[1]
    mean: PyTree  # float32, 0 before the first sample
    var: PyTree  # float32, 0 before the first sample; see std for what is divided by


def init(example: PyTree) -> RunningStatistics:
    """Statistics of no samples yet.

    Args:
        example: one observation (or its shapes) without leading axes.
    """
    zeros = jax.tree.map(lambda x: jnp.zeros(jnp.shape(x), jnp.float32), example)
    return RunningStatistics(jnp.zeros((2,), jnp.uint32), zeros, jax.tree.map(jnp.zeros_like, zeros))


def total(stats: RunningStatistics) -> Array:
    """The number of samples so far, rounded to float32 []."""
    return stats.count[..., 0].astype(jnp.float32) + float(_LIMB) * stats.count[..., 1].astype(jnp.float32)


def update(stats: RunningStatistics, batch: PyTree) -> RunningStatistics:
    """Take in a batch: with ``b`` new samples of mean ``m`` and variance ``v``, and ``w = b / (count + b)``,

        mean += w (m - mean)
        var  += w (v - var + (1 - w) (m - mean)^2)

    Needs only means over the leading axes, so under ``jit`` a batch sharded over devices gives what one device does.

    Args:
        batch: observations with the same leading axes ``[...]`` on every leaf, of any numeric or boolean dtype.

    Raises:
        UsageError: if the leaves disagree about how many samples there are, or do not fit the statistics.
    """
    size = _batch_size(stats, batch)
    if size == 0:
        return stats
    count = _add_to_count(stats.count, size)
    share = float(size) / total(stats._replace(count=count))
    shifts = jax.tree.map(_batch_shift, stats.mean, batch)
    variances = jax.tree.map(_batch_variance, stats.mean, shifts, batch)
    mean = jax.tree.map(lambda m, shift: m + share * shift, stats.mean, shifts)
    var = jax.tree.map(
        lambda v, shift, new: v + share * (new - v + (1.0 - share) * jnp.square(shift)), stats.var, shifts, variances
    )
    return RunningStatistics(count, mean, var)


def std(stats: RunningStatistics, floor: float = 1e-6) -> PyTree:
    """Standard deviations to divide by: 1 before the first sample, never below a floor.

    The floor is ``floor``, or a millionth of the mean if that is more, so that rounding errors about a large constant
    are not taken for a signal.
    """
    empty = total(stats) == 0.0

    def leaf(mean: Array, var: Array) -> Array:
        lowest = jnp.maximum(floor, _RELATIVE_FLOOR * jnp.abs(mean))
        return jnp.where(empty, 1.0, jnp.maximum(jnp.sqrt(var), lowest))

    return jax.tree.map(leaf, stats.mean, stats.var)


def normalise(stats: RunningStatistics, x: PyTree, clip: float | None = 10.0) -> PyTree:
    """``(x - mean) / std``, held within ``± clip`` standard deviations. Before the first sample only the clip acts.

    Args:
        x: observations with any leading axes; integers and booleans are cast.
        clip: None for no limit.

    Returns:
        float32, of the shape of ``x``.
    """

    def leaf(value: Array, mean: Array, deviation: Array) -> Array:
        normal = (jnp.asarray(value, jnp.float32) - mean) / deviation
        return normal if clip is None else jnp.clip(normal, -clip, clip)

    return jax.tree.map(leaf, x, stats.mean, std(stats))


def denormalise(stats: RunningStatistics, x: PyTree) -> PyTree:
    """``mean + std x``, the inverse of :func:`normalise` where that did not clip. float32."""
    return jax.tree.map(lambda value, mean, deviation: mean + deviation * value, x, stats.mean, std(stats))


def _leading_axes(mean: Array, batch: Array) -> tuple[int, ...]:
    return tuple(range(jnp.ndim(batch) - jnp.ndim(mean)))


def _batch_shift(mean: Array, batch: Array) -> Array:
    """The batch's mean minus ``mean``."""
    return jnp.mean(jnp.asarray(batch, jnp.float32) - mean, _leading_axes(mean, batch))


def _batch_variance(mean: Array, shift: Array, batch: Array) -> Array:
    """The batch's variance, about its own mean."""
    deviation = jnp.asarray(batch, jnp.float32) - mean - shift
    return jnp.mean(jnp.square(deviation), _leading_axes(mean, batch))


def _batch_size(stats: RunningStatistics, batch: PyTree) -> int:
    """How many samples a batch holds, the same for every leaf."""
    means, structure = jax.tree.flatten(stats.mean)
    leaves = structure.flatten_up_to(batch)  # type: ignore[attr-defined]
    pairs = [(jnp.shape(mean), jnp.shape(x)) for mean, x in zip(means, leaves, strict=True)]
    for expected, shape in pairs:
        if shape[len(shape) - len(expected) :] != expected:
            raise UsageError(f"a batch of observations of shape {expected} needs shape (..., *{expected}), got {shape}")
    leading = {shape[: len(shape) - len(expected)] for expected, shape in pairs}
    if len(leading) > 1:
        raise UsageError(f"every leaf of a batch needs the same leading axes, got {sorted(leading)}")
    return int(np.prod(leading.pop(), dtype=np.int64)) if leading else 0


def _add_to_count(count: Array, size: int) -> Array:
    low = count[0] + np.uint32(size % _LIMB)
    carry = (low < count[0]).astype(jnp.uint32)
    return jnp.stack([low, count[1] + np.uint32(size // _LIMB) + carry])
