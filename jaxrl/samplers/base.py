"""The contract of a sampler: where experience is stored, and who is replayed."""

from collections.abc import Callable
from typing import NamedTuple

from jaxrl.types import Array, Experience, Key, PyTree


class SampleInfo(NamedTuple):
    """What is known about a drawn batch. Every field has shape [B]."""

    time: Array  # int32: the slot of the window's first step, within its lane
    lane: Array  # int32: the environment it came from
    age: Array  # int32: steps of its lane written after the window's first step; 0 is the newest that can be drawn
    weight: Array  # float32: importance weight, 1 where the sampler does not correct


class Sampler(NamedTuple):
    """Pure functions over a storage pytree.

    ``sample`` returns windows of consecutive steps ``[B, length, …]`` (``length`` is 1 for single items); a window never
    crosses the write head, and never holds a row that was not written. It may cross the end of an episode: the flags in
    it say where, and :func:`jaxrl.returns.n_step_transition` cuts there.
    """

    # (example: one Experience without leading axes, capacity: rows in all, num_envs) -> storage
    init: Callable[[Experience, int, int], PyTree]
    # (storage, steps: Experience [T, num_envs, …]) -> storage
    add: Callable[[PyTree, Experience], PyTree]
    # (storage, key, batch_size) -> (Experience [B, length, …], SampleInfo)
    sample: Callable[[PyTree, Key, int], tuple[Experience, SampleInfo]]
    # (storage, info, priority [B]) -> storage; the identity unless the sampler is prioritised
    update_priority: Callable[[PyTree, SampleInfo, Array], PyTree]
    # (storage) -> int32 []: rows written and not yet overwritten, over all lanes
    size: Callable[[PyTree], Array]
    length: int = 1
