"""PopArt: value targets normalised per task, with outputs preserved when the statistics move.

Source: van Hasselt et al. 2016, "Learning values across many orders of magnitude"; Hessel et al. 2019 for one critic of many
tasks. A critic's trunk gives ``h``; task k's head is ``v = a_k h + b_k``, a *normalised* value, and the value in units of
reward is ``sigma_k v + mu_k``. When mu and sigma move, the head moves the other way:

    a' = a sigma / sigma',    b' = (sigma b + mu - mu') / sigma'

so that ``sigma' v' + mu' = sigma v + mu`` for every input. Exact but for rounding: in float32 to 1e-7 of the largest of
``sigma'``, ``|mu'|`` and the value. A gain and an offset for each task are enough for that (derived here: a full row of the
last layer for each task, as in the sources, costs hundreds of times as many parameters).

Statistics are Welford's running ones by default, which weigh all targets so far alike and so lag where returns keep
growing; with ``step`` they are exponential averages.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.types import Array

SMALLEST_SCALE = 1e-4


class Statistics(NamedTuple):
    """Of the value targets of each task, ``[K]``."""

    count: Array  # type: ignore[assignment]  # float32: targets so far; beyond 2^24 it stands still, and the average has become an exponential one
    mean: Array  # float32
    second: Array  # float32: mean squared deviation from the mean


class Head(NamedTuple):
    """Gain and offset of each task, ``[K]``. Trained with the rest of the critic."""

    gain: Array
    offset: Array


def init(tasks: int) -> tuple[Statistics, Head]:
    """Mean 0 and scale 1, gain 1 and offset 0: the raw value is the trunk's output."""
    zeros = jnp.zeros(tasks, jnp.float32)
    return Statistics(zeros, zeros, jnp.ones(tasks, jnp.float32)), Head(jnp.ones(tasks, jnp.float32), zeros)


def scale(statistics: Statistics) -> Array:
    """sigma_k, at least 1e-4. ``[K]``."""
    return jnp.maximum(jnp.sqrt(jnp.maximum(statistics.second, 0.0)), SMALLEST_SCALE)


def normalise(statistics: Statistics, target: Array) -> Array:
    """``(target - mu_k) / sigma_k``; tasks are the last axis, ``[..., K]``."""
    return (target - statistics.mean) / scale(statistics)


def denormalise(statistics: Statistics, value: Array) -> Array:
    """``sigma_k v + mu_k``: a normalised value in units of reward. ``[..., K]``."""
    return scale(statistics) * value + statistics.mean


def update(statistics: Statistics, targets: Array, step: float | None = None) -> Statistics:
    """Take in targets ``[N, K]``, in units of reward.

    Args:
        step: weight of the new batch in an exponential average; None for Welford's, where every target counts alike.
    """
    number = jnp.float32(targets.shape[0])
    first = statistics.count == 0
    count = statistics.count + number
    share = number / count if step is None else jnp.where(first, 1.0, step)
    batch_mean = jnp.mean(targets, 0)
    batch_second = jnp.mean(jnp.square(targets - batch_mean), 0)
    shift = batch_mean - statistics.mean
    # Before the first target the variance is a placeholder of 1, which must not be averaged in.
    old = jnp.where(first, 0.0, statistics.second)
    second = old + share * (batch_second - old + (1.0 - share) * jnp.square(shift))
    return Statistics(count, statistics.mean + share * shift, second)


def preserve(head: Head, old: Statistics, new: Statistics) -> Head:
    """The head whose values in units of reward are those of before, under the new statistics."""
    before, after = scale(old), scale(new)
    return Head(head.gain * before / after, (before * head.offset + old.mean - new.mean) / after)


def value(head: Head, trunk: Array) -> Array:
    """Normalised values ``a_k h + b_k``; tasks are the last axis, ``[..., K]``."""
    return head.gain * trunk + head.offset


def loss(head: Head, statistics: Statistics, trunk: Array, target: Array) -> Array:
    """``0.5 (v - (R - mu_k) / sigma_k)^2`` of each sample and task, ``[..., K]``; the target is a constant."""
    return 0.5 * jnp.square(value(head, trunk) - jax.lax.stop_gradient(normalise(statistics, target)))
