"""Items, n-step windows and sequences, drawn by any distribution over age."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.errors import UsageError
from jaxrl.samplers import ages, ring
from jaxrl.samplers.base import SampleInfo, Sampler
from jaxrl.types import Array, Experience, Key, PyTree, check_key


class Replay(NamedTuple):
    """A ring, and the parameters of who is drawn from it: leaves, so that ``vmap`` sweeps them."""

    ring: ring.Ring
    recency: PyTree


def sampler(
    distribution: ages.Distribution,
    length: int = 1,
    next_observations: str = "stored",
    finals_every: int = 8,
) -> Sampler:
    """Windows of ``length`` steps whose age follows ``distribution``; lanes are drawn uniformly.

    The distribution is applied to the starts of complete windows alone, so nothing piles up on the newest steps. While
    no window is complete there is nothing to draw: weights are 0 then, and :func:`check_can_sample` refuses it on the
    host.

    Args:
        distribution: who is replayed, from :mod:`jaxrl.samplers.ages`.
        length: 1 for single steps, n for n-step returns, L for sequences.
        next_observations, finals_every: how next observations are kept, see :mod:`jaxrl.samplers.ring`.
    """
    return Sampler(
        init=partial(init, distribution.params, length, next_observations, finals_every),
        add=add,
        sample=partial(sample, distribution, length),
        update_priority=keep_priority,
        size=size,
        length=length,
    )


def init(
    recency: PyTree,
    length: int,
    next_observations: str,
    finals_every: int,
    example: Experience,
    capacity: int,
    num_envs: int = 1,
) -> Replay:
    """An empty storage; see :func:`jaxrl.samplers.ring.init`."""
    storage = ring.init(example, capacity, num_envs, length, next_observations, finals_every)
    # A copy, because a donated storage takes its leaves along, and the distribution's must outlive it.
    return Replay(storage, jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), recency))


def add(storage: Replay, steps: Experience) -> Replay:
    """Add ``steps`` (``[T, num_envs, …]``), overwriting the oldest."""
    return storage._replace(ring=ring.add(storage.ring, steps))


def sample(
    distribution: ages.Distribution, length: int, storage: Replay, key: Key, batch_size: int
) -> tuple[Experience, SampleInfo]:
    """``batch_size`` windows, with replacement. Experience ``[B, length, …]``."""
    check_key(key)
    check_batch_size(batch_size)
    lane_key, age_key = jax.random.split(key)
    lane = draw_lane(storage.ring, lane_key, batch_size)
    starts = valid_starts(storage.ring, lane, length)
    age = distribution.sample(storage.recency, jnp.maximum(starts, 1), (batch_size,), age_key)
    time = ring.start_slot(storage.ring, age, length)
    weight = jnp.broadcast_to((starts > 0).astype(jnp.float32), (batch_size,))
    return ring.window(storage.ring, time, lane, length), SampleInfo(time, lane, age, weight)


def draw_lane(storage: ring.Ring, key: Key, batch_size: int) -> Array:
    """Lanes, uniformly. int32 [B]."""
    lanes = ring.num_lanes(storage)
    if lanes == 1:
        return jnp.zeros((batch_size,), jnp.int32)
    return jax.random.randint(key, (batch_size,), 0, lanes, dtype=jnp.int32)


def valid_starts(storage: ring.Ring, lane: Array, length: int) -> Array:
    """How many complete windows the lanes hold. int32, a scalar where all lanes hold the same, or [B]."""
    held = ring.held(storage)
    return (held[lane] if held.ndim else held) - (length - 1)


def keep_priority(storage: PyTree, info: SampleInfo, priority: Array) -> PyTree:
    """The identity: this sampler has no priorities."""
    return storage


def size(storage: Replay) -> Array:
    """Rows held, over all lanes. int32 []."""
    return ring.size(storage.ring)


def check_can_sample(sampler: Sampler, storage: PyTree, batch_size: int) -> None:
    """Refuse, on the host, a batch for which too little is stored: compiled code cannot raise.

    At least one window a lane must be complete, and at least ``batch_size`` rows held.

    Raises:
        UsageError: with the number of rows to add.
    """
    check_batch_size(batch_size)
    lanes = ring.num_lanes(storage.ring)
    rows, slots = int(sampler.size(storage)), ring.num_slots(storage.ring)
    if batch_size > slots * lanes:
        raise UsageError(
            f"a batch of {batch_size} is larger than the capacity of {slots * lanes}; use at most {slots * lanes}"
        )
    needed = max(batch_size, sampler.length * lanes)
    if rows < needed:
        raise UsageError(
            f"a batch of {batch_size} windows of {sampler.length} needs {needed} rows, {rows} are stored; add "
            f"{-(-(needed - rows) // lanes)} more steps of {lanes} environments first"
        )


def check_batch_size(batch_size: int) -> None:
    """Refuse a batch of nothing."""
    if batch_size < 1:
        raise UsageError(f"a batch holds at least one window, got batch_size {batch_size}; use 1 or more")
