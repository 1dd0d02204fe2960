"""Where experience is stored: one ring of slots, a lane for every environment.

Every leaf is ``[slots, num_envs, …]`` and keeps its dtype. All lanes are written together, so one cursor and one count
serve them all. A block of steps overwrites the oldest rows in place: under donation (or as the carry of a ``scan``) the
storage is never copied, and an add costs the same in a full ring as in an empty one.

The next observation of a row is kept in one of two ways:

* ``"stored"``: beside the observation, as it came. The default: nothing can be lost, whatever the episodes look like.
* ``"derived"``: not at all where the next row holds it. Only where an episode ends is the true last observation kept, in
  a side ring of about ``slots / finals_every`` entries a lane. This nearly halves the memory of image observations. It
  relies on what :class:`jaxrl.types.Experience` promises: without a flag, a step leads to the next row's observation.
  Where episodes are shorter than ``finals_every`` steps on average the side ring overflows and the lane forgets its
  oldest episodes early: those rows are never drawn again, and :func:`size` no longer counts them.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.errors import UsageError
from jaxrl.types import Array, Experience, PyTree, done, where_done

NEXT_OBSERVATIONS = ("stored", "derived")


class Finals(NamedTuple):
    """True last observations, a ring of F entries a lane (F a power of two), and how to find them."""

    newest: PyTree  # [num_envs, …]: where the newest row of each lane led
    observation: PyTree  # [F, num_envs, …]: where the rows that ended an episode led
    first: Array  # uint32 [F, num_envs]: number of the first row of the episode that ended there
    place: Array  # int32 [slots, num_envs]: the entry a row has if it ended an episode
    ended: Array  # int32 [num_envs]: episodes ended, folded into [F, 2F) once it passes 2F
    elapsed: Array  # int32 [num_envs]: rows of the episode under way, at most slots
    added: Array  # uint32 []: rows a lane ever received; wraps, and only differences are used


class Ring(NamedTuple):
    """Rows and where the next one goes."""

    rows: PyTree  # Experience of [slots, num_envs, …]; without next_observation where that is derived
    cursor: Array  # int32 []: the slot written next
    filled: Array  # int32 []: rows held by a lane, at most slots (saturates, so it cannot overflow)
    finals: Finals | None


def num_slots(ring: Ring) -> int:
    """Slots of a lane; static."""
    return ring.rows.reward.shape[0]


def num_lanes(ring: Ring) -> int:
    """Lanes, one for each environment; static."""
    return ring.rows.reward.shape[1]


def init(
    example: Experience,
    capacity: int,
    num_envs: int = 1,
    length: int = 1,
    next_observations: str = "stored",
    finals_every: int = 8,
) -> Ring:
    """An empty ring of ``capacity // num_envs`` slots.

    Args:
        example: one Experience without leading axes; gives structure, shapes and dtypes.
        capacity: rows in all.
        num_envs: lanes.
        length: the longest window that will be read.
        next_observations: ``"stored"`` or ``"derived"``.
        finals_every: one last observation can be kept for so many slots; used by ``"derived"`` alone.

    Raises:
        UsageError: for a capacity that ``num_envs`` does not divide, or a window longer than a lane.
    """
    slots = _checked_slots(capacity, num_envs, length)
    if next_observations not in NEXT_OBSERVATIONS:
        raise UsageError(f"next_observations is 'stored' or 'derived', got {next_observations!r}")
    if finals_every < 1:
        raise UsageError(f"finals_every must be at least 1, got {finals_every}; 8 suits episodes of 8 steps and more")
    zeros = jax.tree.map(lambda leaf: jnp.zeros((slots, num_envs, *jnp.shape(leaf)), jnp.asarray(leaf).dtype), example)
    # Two arrays, not one twice: a buffer cannot be donated twice.
    cursor, count = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)
    if next_observations == "stored":
        return Ring(zeros, cursor, count, None)
    # A lane whose side ring has overflowed still holds an entry's worth of rows, which must be enough for one window.
    entries = 1 << (max(slots // finals_every, length) - 1).bit_length()
    finals = Finals(
        newest=jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), zeros.next_observation),
        observation=jax.tree.map(
            lambda leaf: jnp.zeros((entries, *leaf.shape[1:]), leaf.dtype), zeros.next_observation
        ),
        first=jnp.zeros((entries, num_envs), jnp.uint32),
        place=jnp.zeros((slots, num_envs), jnp.int32),
        ended=jnp.zeros(num_envs, jnp.int32),
        elapsed=jnp.zeros(num_envs, jnp.int32),
        added=jnp.zeros((), jnp.uint32),
    )
    return Ring(zeros._replace(next_observation=None), cursor, count, finals)


def add(ring: Ring, steps: Experience) -> Ring:
    """Overwrite the oldest rows with ``steps`` (``[T, num_envs, …]``), in place under donation.

    Raises:
        UsageError: for a block longer than a lane, another number of lanes, or another dtype or shape of a leaf.
    """
    rows, finals = steps, ring.finals
    if finals is not None:
        rows = steps._replace(next_observation=None)
        _check_block(finals.newest, jax.tree.map(lambda leaf: leaf[0], steps.next_observation), 0)
    _check_block(ring.rows, rows, 1)
    slots, added = num_slots(ring), steps.reward.shape[0]
    if added > slots:
        raise UsageError(
            f"a block of {added} steps does not fit in a lane of {slots} rows; add at most {slots} at once, or use "
            f"a capacity of at least {added * num_lanes(ring)}"
        )
    if finals is not None:
        finals = _add_finals(finals, steps, ring.cursor, slots)
    return Ring(
        rows=jax.tree.map(lambda leaf, block: write(leaf, block, ring.cursor), ring.rows, rows),
        cursor=(ring.cursor + added) % slots,
        filled=jnp.minimum(ring.filled + added, slots),
        finals=finals,
    )


def write(leaf: Array, block: Array, cursor: Array) -> Array:
    """Put ``block`` (``[T, …]``, ``T <= S``) at ``cursor`` in the ring ``leaf`` (``[S, …]``), going on at 0 past the end.

    Touches T rows of the storage and no other. A slice cannot wrap, and two slices that each keep the rows of the other
    are fused by XLA into a pass over the whole storage; a scatter of distinct rows is always done in place.
    """
    slots, length = leaf.shape[0], block.shape[0]
    if length == 1:
        return jax.lax.dynamic_update_slice_in_dim(leaf, block, cursor, axis=0)
    index = (cursor + jnp.arange(length, dtype=jnp.int32)) % slots
    return leaf.at[index].set(block, unique_indices=True, mode="promise_in_bounds")


def held(ring: Ring) -> Array:
    """Rows of each lane that can be read. int32 ``[]`` where it is the same for all, or ``[num_envs]``."""
    finals = ring.finals
    if finals is None:
        return ring.filled
    entries = finals.first.shape[0]
    oldest = jnp.take_along_axis(finals.first, (finals.ended % entries)[None], axis=0)[0]
    since = jnp.minimum(finals.added - oldest, jnp.uint32(num_slots(ring))).astype(jnp.int32)
    return jnp.where(finals.ended >= entries, jnp.minimum(since, ring.filled), ring.filled)


def size(ring: Ring) -> Array:
    """Rows that can be read, over all lanes. int32 []."""
    return jnp.sum(jnp.broadcast_to(held(ring), (num_lanes(ring),)), dtype=jnp.int32)


def start_slot(ring: Ring, age: Array, length: int) -> Array:
    """The slot where the window begins that is ``age`` steps older than the newest complete window. int32."""
    return jnp.mod(ring.cursor - length - age, num_slots(ring))


def window(ring: Ring, time: Array, lane: Array, length: int) -> Experience:
    """The ``length`` consecutive rows from slot ``time`` on, each of them with its true next observation.

    Args:
        time: int32 [B], lane: int32 [B].

    Returns:
        Experience ``[B, length, …]``.
    """
    slots = num_slots(ring)
    lane = lane[:, None]
    index = (time[:, None] + jnp.arange(length, dtype=jnp.int32)) % slots
    if ring.finals is None:
        return _gather(ring.rows, index, lane)
    ahead = (time[:, None] + jnp.arange(length + 1, dtype=jnp.int32)) % slots
    observation = _gather(ring.rows.observation, ahead, lane)
    rows = _gather(ring.rows._replace(observation=None), index, lane)
    is_newest = index == (ring.cursor - 1) % slots
    after = jax.tree.map(lambda leaf: leaf[:, 1:], observation)
    after = where_done(is_newest, jax.tree.map(lambda leaf: leaf[lane], ring.finals.newest), after)
    place = _gather(ring.finals.place, index, lane)
    after = where_done(done(rows), _gather(ring.finals.observation, place, lane), after)
    return rows._replace(observation=jax.tree.map(lambda leaf: leaf[:, :-1], observation), next_observation=after)


def _gather(tree: PyTree, index: Array, lane: Array) -> PyTree:
    return jax.tree.map(lambda leaf: leaf.at[index, lane].get(mode="promise_in_bounds"), tree)


def _add_finals(finals: Finals, steps: Experience, cursor: Array, slots: int) -> Finals:
    entries, lanes = finals.first.shape
    length = steps.reward.shape[0]
    flags = done(steps)
    number = jnp.cumsum(flags, axis=0, dtype=jnp.int32)  # inclusive
    total = number[-1]
    place = (finals.ended + number - flags) % entries
    # Row at which the episode of each row began, counted from the block's first row; negative if before it.
    after_flag = jnp.where(flags, jnp.arange(1, length + 1, dtype=jnp.int32)[:, None], -finals.elapsed)
    began = jax.lax.cummax(jnp.concatenate([-finals.elapsed[None], after_flag]), axis=0)
    # More ends than entries in one block: only the last of them fit, and a scatter must not name an entry twice.
    target = jnp.where(flags & (number > total - entries), place, entries)
    lane = jnp.broadcast_to(jnp.arange(lanes), target.shape)
    ended = finals.ended + total
    return Finals(
        newest=jax.tree.map(lambda leaf: leaf[-1], steps.next_observation),
        observation=jax.tree.map(
            lambda leaf, block: leaf.at[target, lane].set(block, mode="drop"),
            finals.observation,
            steps.next_observation,
        ),
        first=finals.first.at[target, lane].set(finals.added + began[:-1].astype(jnp.uint32), mode="drop"),
        place=write(finals.place, place, cursor),
        ended=jnp.where(ended >= 2 * entries, entries + ended % entries, ended),
        elapsed=jnp.minimum(length - began[-1], slots),
        added=finals.added + jnp.uint32(length),
    )


def _checked_slots(capacity: int, num_envs: int, length: int) -> int:
    if num_envs < 1:
        raise UsageError(f"num_envs must be at least 1, got {num_envs}; 1 is a flat buffer")
    if length < 1:
        raise UsageError(f"a window holds at least one step, got length {length}; use 1")
    if capacity < num_envs:
        raise UsageError(f"a capacity of {capacity} rows is less than one for each of {num_envs} lanes; use {num_envs}")
    if capacity % num_envs:
        below = capacity // num_envs * num_envs
        raise UsageError(
            f"a capacity of {capacity} rows does not divide over {num_envs} lanes; use {below} or {below + num_envs}"
        )
    slots = capacity // num_envs
    if length > slots:
        raise UsageError(
            f"a window of {length} steps does not fit in a lane of {slots} rows; use a length of at most {slots}, or a "
            f"capacity of at least {length * num_envs}"
        )
    return slots


def _check_block(rows: PyTree, block: PyTree, leading: int) -> None:
    """Refuse a block whose leaves differ from the storage in structure, lanes, shape or dtype."""
    wanted, given = str(jax.tree.structure(rows)), str(jax.tree.structure(block))
    if wanted != given:
        raise UsageError(f"steps have structure {given}, the storage {wanted}")
    for (path, stored), leaf in zip(jax.tree_util.tree_leaves_with_path(rows), jax.tree.leaves(block), strict=True):
        name = jax.tree_util.keystr(path).lstrip(".") or "observation"
        if jnp.shape(leaf)[leading:] != stored.shape[leading:]:
            shape = ("T",) * leading + stored.shape[leading:]
            raise UsageError(f"{name} has shape {jnp.shape(leaf)}, the storage takes {shape}")
        if jnp.result_type(leaf) != stored.dtype:
            raise UsageError(f"{name} is {jnp.result_type(leaf)}, the storage keeps {stored.dtype}; give that to add")
