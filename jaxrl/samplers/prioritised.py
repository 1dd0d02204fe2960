"""Prioritised replay: proportional, by rank, and either of them times a distribution over age.

Source: Schaul et al., 2016, "Prioritized experience replay". A window is drawn with probability ``m_i / Σ m``, where i is
its first step and the mass ``m`` follows from its priority p:

* proportional: ``m = p ** exponent``;
* by rank: ``m = (rank / rows) ** -exponent``, rank 1 being the largest priority. The rank is read from a histogram of the
  priorities (eight bins an octave, rows of one bin share their mean rank) at the moment the priority is written, and
  stands until that row is written again. So outliers do not matter, nothing is ever sorted, and it is approximate.

New windows have the largest priority that was ever given (1 before any), so each is soon seen. A window that crosses the
write head has mass 0 until it is complete. Everything is float32 and right at 2^20 rows and more, see
:mod:`jaxrl.samplers.sum_tree`.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.errors import UsageError
from jaxrl.samplers import ages, replay, ring, sum_tree
from jaxrl.samplers.base import SampleInfo, Sampler
from jaxrl.types import Array, Experience, Key, PyTree, check_key

SMALLEST = 1e-6  # a priority of 0 would make a row unreachable for good
BINS = 256
BINS_PER_OCTAVE = 8
SMALLEST_OCTAVE = -20  # bins span 2^-20 … 2^12, the ends take what lies beyond
TRIES = 16
BOUNDED_NODES = 4096  # the age distribution is bounded over each of at most so many stretches of rows


class Prioritised(NamedTuple):
    """A ring, the priorities of the windows that start in its slots, and the tree that draws from them."""

    ring: ring.Ring
    recency: PyTree  # parameters of the age distribution; () without one
    exponent: Array  # float32 []: how strongly priority acts; 0 is uniform
    importance: Array  # float32 []: how much of the bias the weights correct, 0 … 1; anneal by replacing the leaf
    priority: Array  # float32 [slots, num_envs]; 0 where no complete window starts
    tree: sum_tree.Tree  # over masses, slot-major
    largest: Array  # float32 []: the largest priority given so far
    bad_priorities: Array  # int32 []: negative, infinite or NaN priorities replaced by the largest
    histogram: Array | None  # int32 [BINS]: priorities, for ranks


class _Static(NamedTuple):
    length: int
    by_rank: bool
    recency: ages.Distribution | None


def sampler(
    exponent: float = 0.6,
    importance: float = 0.4,
    length: int = 1,
    by_rank: bool = False,
    recency: ages.Distribution | None = None,
    next_observations: str = "stored",
    finals_every: int = 8,
) -> Sampler:
    """Windows drawn by the priority of their first step.

    ``SampleInfo.weight`` is ``(smallest mass in the batch / mass) ** importance``, so at most 1.

    Args:
        exponent: at least 0.
        importance: in [0, 1].
        length: of a window.
        by_rank: masses from ranks instead of priorities.
        recency: multiply the mass by this distribution's probability of the window's age; it must not grow with age.
            The draw is exact up to a chance of giving up after 16 rejections (see :func:`_draw_combined`). The weights
            correct for the priority alone: the preference for the recent is meant.
        next_observations, finals_every: see :mod:`jaxrl.samplers.ring`. Where derived last observations overflow, a draw
            that fell on a forgotten row is moved to one that is kept.
    """
    if not 0 <= exponent < float("inf"):
        raise UsageError(
            f"the priority exponent must be finite and at least 0, got {exponent}; use 0.6, or 0 for uniform"
        )
    if not 0 <= importance <= 1:
        raise UsageError(f"the importance exponent must lie in [0, 1], got {importance}; use 0.4, or 1 for no bias")
    static = _Static(length, by_rank, recency)
    return Sampler(
        init=partial(_init, static, exponent, importance, next_observations, finals_every),
        add=partial(_add, static),
        sample=partial(_sample, static),
        update_priority=partial(_update_priority, static),
        size=replay.size,
        length=length,
    )


def _init(
    static: _Static,
    exponent: float,
    importance: float,
    next_observations: str,
    finals_every: int,
    example: Experience,
    capacity: int,
    num_envs: int = 1,
) -> Prioritised:
    storage = ring.init(example, capacity, num_envs, static.length, next_observations, finals_every)
    recency = () if static.recency is None else static.recency.params
    return Prioritised(
        ring=storage,
        recency=jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), recency),
        exponent=jnp.array(exponent, jnp.float32),
        importance=jnp.array(importance, jnp.float32),
        priority=jnp.zeros((capacity // num_envs, num_envs), jnp.float32),
        tree=sum_tree.init(capacity),
        largest=jnp.ones((), jnp.float32),
        bad_priorities=jnp.zeros((), jnp.int32),
        histogram=jnp.zeros(BINS, jnp.int32) if static.by_rank else None,
    )


def _add(static: _Static, storage: Prioritised, steps: Experience) -> Prioritised:
    """Add ``steps`` (``[T, num_envs, …]``) at the largest priority; windows they complete become drawable."""
    written = ring.add(storage.ring, steps)
    slots, lanes = storage.priority.shape
    # Starts touched: those overwritten, and those before the write head whose windows are complete only now.
    touched = min(steps.reward.shape[0] + static.length - 1, slots)
    first = (storage.ring.cursor - (static.length - 1)) % slots
    slot = (first + jnp.arange(touched, dtype=jnp.int32)) % slots
    complete = _start_age(written, slot, static.length) <= written.filled - static.length
    new = jnp.broadcast_to(jnp.where(complete, storage.largest, 0.0)[:, None], (touched, lanes))
    histogram = storage.histogram
    if histogram is not None:
        histogram = _count(histogram, storage.priority.at[slot].get(mode="promise_in_bounds"), -1)
        new = _after(histogram, new)
        histogram = _count(histogram, new, 1)
    mass = jnp.where(new > 0, _mass(storage.exponent, histogram, new), 0.0)
    return storage._replace(
        ring=written,
        priority=ring.write(storage.priority, new, first),
        tree=sum_tree.update_range(storage.tree, first * lanes, mass.reshape(-1), slots * lanes),
        histogram=histogram,
    )


def _sample(static: _Static, storage: Prioritised, key: Key, batch_size: int) -> tuple[Experience, SampleInfo]:
    """``batch_size`` windows, with replacement and stratified. Experience ``[B, length, …]``."""
    check_key(key)
    replay.check_batch_size(batch_size)
    lanes = ring.num_lanes(storage.ring)
    if static.recency is None:
        leaf = sum_tree.draw(storage.tree, key, batch_size)
    else:
        leaf = _draw_combined(static.recency, static.length, storage, key, batch_size)
    mass = storage.tree[0].at[leaf].get(mode="promise_in_bounds")
    lane = leaf % lanes
    age = _start_age(storage.ring, leaf // lanes, static.length)
    starts = replay.valid_starts(storage.ring, lane, static.length)
    age = jnp.where(age < starts, age, age % jnp.maximum(starts, 1))
    time = ring.start_slot(storage.ring, age, static.length)
    weight = (jnp.min(mass) / jnp.maximum(mass, jnp.finfo(jnp.float32).tiny)) ** storage.importance
    weight = jnp.where(starts > 0, weight, 0.0)
    return ring.window(storage.ring, time, lane, static.length), SampleInfo(time, lane, age, weight)


def _update_priority(static: _Static, storage: Prioritised, info: SampleInfo, priority: Array) -> Prioritised:
    """Set the priorities ``[B]`` of the windows that ``info`` names, for instance to absolute errors.

    A window whose start was overwritten since it was drawn is left alone (seen as long as fewer than ``slots`` steps were
    added in between). Of a window drawn twice the larger priority counts. A negative, infinite or NaN priority becomes
    the largest so far, and is counted in ``bad_priorities``; below 1e-6 it becomes that.
    """
    slots, lanes = storage.priority.shape
    bad = ~jnp.isfinite(priority) | (priority < 0)
    priority = jnp.where(bad, storage.largest, jnp.maximum(priority, SMALLEST)).astype(jnp.float32)
    age = _start_age(storage.ring, info.time, static.length)
    kept = (age >= info.age) & (age <= storage.ring.filled - static.length)
    time = jnp.where(kept, info.time, slots)
    leaf = jnp.where(kept, info.time * lanes + info.lane, slots * lanes)
    histogram, nothing = storage.histogram, jnp.zeros_like(priority)
    if histogram is not None:
        once = kept & _first_of_each(leaf)
        old = storage.priority.at[info.time, info.lane].get(mode="clip")
        histogram = _count(histogram, jnp.where(once, old, 0.0), -1)
        nothing = _after(histogram, nothing)
    raw = storage.priority.at[time, info.lane].set(nothing, mode="drop")
    raw = raw.at[time, info.lane].max(priority, mode="drop")
    new = raw.at[info.time, info.lane].get(mode="clip")
    if histogram is not None:
        histogram = _count(histogram, jnp.where(once, new, 0.0), 1)
    mass = _mass(storage.exponent, histogram, new)
    return storage._replace(
        priority=raw,
        tree=sum_tree.update(storage.tree, jnp.where(kept, leaf, storage.tree[0].shape[0]), mass),
        largest=jnp.maximum(storage.largest, jnp.max(jnp.where(kept, priority, 0.0))),
        bad_priorities=storage.bad_priorities + jnp.sum(bad, dtype=jnp.int32),
        histogram=histogram,
    )


def _start_age(storage: ring.Ring, slot: Array, length: int) -> Array:
    """Steps between the newest complete window and the one that starts at ``slot``."""
    return jnp.mod(storage.cursor - length - slot, ring.num_slots(storage))


def _mass(exponent: Array, histogram: Array | None, priority: Array) -> Array:
    if histogram is None:
        return priority**exponent
    counted = jnp.cumsum(histogram[::-1])[::-1]
    rank = (counted - histogram).astype(jnp.float32) + (histogram.astype(jnp.float32) + 1) / 2
    by_bin = (rank / jnp.maximum(counted[0], 1)) ** -exponent
    return by_bin[_bin(priority)]


def _bin(priority: Array) -> Array:
    octave = jnp.log2(jnp.maximum(priority, SMALLEST)) - SMALLEST_OCTAVE
    return jnp.clip((octave * BINS_PER_OCTAVE).astype(jnp.int32), 0, BINS - 1)


def _count(histogram: Array, priority: Array, sign: int) -> Array:
    """Put priorities into the histogram, or take them out; those of 0 are not drawable and do not count."""
    return histogram.at[_bin(priority)].add(sign * (priority > 0).astype(jnp.int32))


def _after(histogram: Array, priority: Array) -> Array:
    """``priority`` as it is, but made to wait for the histogram (whose counts are never negative).

    The old priorities that are taken out are read from the array the new ones go to. XLA copies the whole array unless
    it can see that the read comes first, and it looks at nothing but what depends on what.
    """
    return jnp.where(jnp.min(histogram) < 0, jnp.nan, priority)


def _first_of_each(leaf: Array) -> Array:
    """Marks one occurrence of every distinct value. bool [B]."""
    order = jnp.argsort(leaf)
    ascending = leaf[order]
    first = jnp.concatenate([jnp.ones(1, bool), ascending[1:] != ascending[:-1]])
    return jnp.zeros_like(first).at[order].set(first)


def _draw_combined(recency: ages.Distribution, length: int, storage: Prioritised, key: Key, batch_size: int) -> Array:
    """Leaves in proportion to mass times the probability of their age. int32 [B].

    Rows lie in the tree in the order of time, so the ages under one node of it differ little. The nodes of one level, at
    most 4096, are weighted by the probability of the youngest age under them, which bounds the others; a leaf drawn from
    the tree so weighted is accepted with probability p(its age) / bound. That is exact rejection, and nearly every first
    try is accepted. It is bounded to 16 tries, after which the last proposal stands.
    """
    below, weighted, bound = _weighted_tree(recency, length, storage)
    starts = jnp.maximum(storage.ring.filled - length + 1, 1)
    lanes = ring.num_lanes(storage.ring)

    def propose(state: tuple) -> tuple:
        tries, leaf, accepted, key = state
        key, draw_key, accept_key = jax.random.split(key, 3)
        proposal = sum_tree.draw(weighted, draw_key, batch_size)
        age = _start_age(storage.ring, proposal // lanes, length)
        ratio = recency.log_prob(storage.recency, age, starts) - bound[proposal // below]
        leaf = jnp.where(accepted, leaf, proposal)
        accepted = accepted | (jnp.log1p(-jax.random.uniform(accept_key, (batch_size,))) <= ratio)
        return tries + 1, leaf, accepted, key

    nothing = jnp.zeros((batch_size,), jnp.int32)
    start = (jnp.zeros((), jnp.int32), nothing, nothing > 0, key)
    return jax.lax.while_loop(lambda state: (state[0] < TRIES) & ~jnp.all(state[2]), propose, start)[1]


def _weighted_tree(recency: ages.Distribution, length: int, storage: Prioritised) -> tuple[int, sum_tree.Tree, Array]:
    """Leaves under a weighted node; the tree with that level and all above it weighted; the log of each node's bound."""
    slots, lanes = storage.priority.shape
    depth = next(depth for depth, level in enumerate(storage.tree) if level.shape[0] <= BOUNDED_NODES)
    below = sum_tree.RADIX**depth
    node = jnp.arange(storage.tree[depth].shape[0], dtype=jnp.int32)
    first = jnp.minimum(node * below // lanes, slots - 1)
    last = jnp.minimum(((node + 1) * below - 1) // lanes, slots - 1)
    newest = (storage.ring.cursor - length) % slots
    # Age falls from slot to slot, except that the slot after the newest start holds the oldest.
    youngest = jnp.where((first <= newest) & (newest <= last), 0, _start_age(storage.ring, last, length))
    starts = jnp.maximum(storage.ring.filled - length + 1, 1)
    # A node that no complete window starts in has mass 0; its age may lie beyond the last, where log_prob is -inf.
    bound = recency.log_prob(storage.recency, jnp.minimum(youngest, starts - 1), starts)
    weights = storage.tree[depth] * jnp.exp(bound - jnp.max(bound))
    return below, storage.tree[:depth] + sum_tree.build(weights), bound
