"""Hindsight goals: windows relabelled with a goal that their own episode went on to reach.

Source: Andrychowicz et al., 2017, "Hindsight experience replay". Observations are dicts that hold ``achieved_goal`` and
``desired_goal``. A relabelled window gets one goal for all its steps, from the episode that its first step belongs to:

* ``"future"``: what that step or a later one of the episode achieved, each as likely;
* ``"final"``: what the last step did; of an episode under way, the newest step stored;
* ``"episode"``: what any stored step of the episode did.

The goal achieved by a step is that of where it led, ``next_observation``. So the goal never comes from another episode,
and where it ends is found by two look-ups, not a search: every row knows the number of its episode and how far into it it
is, and every episode where its newest row lies.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.errors import UsageError, unknown
from jaxrl.samplers import ages, replay, ring
from jaxrl.samplers.base import SampleInfo, Sampler
from jaxrl.types import Array, Experience, Key, PyTree, check_key, done, where_done

STRATEGIES = ("future", "final", "episode")

# (achieved_goal, desired_goal, step: Experience of one step, already relabelled) -> float32 [] or bool []
GoalFunction = Callable[[PyTree, PyTree, Experience], Array]


class Hindsight(NamedTuple):
    """A ring, and where episodes lie in it. At most ``slots`` episodes live in a lane, so numbers modulo slots differ."""

    ring: ring.Ring
    recency: PyTree
    share: Array  # float32 []: of the windows that are relabelled
    episode: Array  # int32 [slots, num_envs]: number of the row's episode, modulo slots
    position: Array  # int32 [slots, num_envs]: rows of the episode before this one, at most slots
    newest: Array  # int32 [slots, num_envs]: slot of the newest row of the episode of that number
    current: Array  # int32 [num_envs]: number of the episode under way
    elapsed: Array  # int32 [num_envs]: rows it has so far, at most slots


class _Static(NamedTuple):
    distribution: ages.Distribution
    length: int
    strategy: str
    reward: GoalFunction
    terminated: GoalFunction | None


def sampler(
    reward: GoalFunction,
    strategy: str = "future",
    share: float = 0.8,
    distribution: ages.Distribution | None = None,
    length: int = 1,
    terminated: GoalFunction | None = None,
    next_observations: str = "stored",
    finals_every: int = 8,
) -> Sampler:
    """Windows by age, a share of them relabelled.

    Args:
        reward: unbatched; the reward of a step under the new goal.
        strategy: ``"future"``, ``"final"`` or ``"episode"``.
        share: in [0, 1]; k relabelled for each kept as it was is ``k / (k + 1)``. A leaf of the storage.
        distribution: who is replayed; uniform by default.
        length: of a window. One that reaches into the next episode is cut at the flag by the n-step return, as always.
        terminated: unbatched; recomputes ``terminated`` under the new goal, where reaching it ends the task. Without it
            flags stay as they were.
        next_observations, finals_every: see :mod:`jaxrl.samplers.ring`.
    """
    if strategy not in STRATEGIES:
        raise unknown("goal strategy", strategy, STRATEGIES)
    if not 0 <= share <= 1:
        raise UsageError(f"the relabelled share must lie in [0, 1], got {share}; use 0.8, four of five")
    static = _Static(distribution or ages.uniform(), length, strategy, reward, terminated)
    return Sampler(
        init=partial(_init, static, share, next_observations, finals_every),
        add=_add,
        sample=partial(_sample, static),
        update_priority=replay.keep_priority,
        size=replay.size,
        length=length,
    )


def _init(
    static: _Static,
    share: float,
    next_observations: str,
    finals_every: int,
    example: Experience,
    capacity: int,
    num_envs: int = 1,
) -> Hindsight:
    for field in ("observation", "next_observation"):
        observation = getattr(example, field)
        if not isinstance(observation, dict) or not {"achieved_goal", "desired_goal"} <= observation.keys():
            raise UsageError(f"hindsight needs {field} to be a dict with 'achieved_goal' and 'desired_goal'")
    inner = replay.init(
        static.distribution.params, static.length, next_observations, finals_every, example, capacity, num_envs
    )
    slots = ring.num_slots(inner.ring)
    return Hindsight(
        ring=inner.ring,
        recency=inner.recency,
        share=jnp.array(share, jnp.float32),
        episode=jnp.zeros((slots, num_envs), jnp.int32),
        position=jnp.zeros((slots, num_envs), jnp.int32),
        newest=jnp.zeros((slots, num_envs), jnp.int32),
        current=jnp.zeros(num_envs, jnp.int32),
        elapsed=jnp.zeros(num_envs, jnp.int32),
    )


def _add(storage: Hindsight, steps: Experience) -> Hindsight:
    """Add ``steps`` (``[T, num_envs, …]``), and note which episodes their rows belong to."""
    written = ring.add(storage.ring, steps)
    length, (slots, lanes) = steps.reward.shape[0], storage.episode.shape
    flags = done(steps)
    ended = jnp.cumsum(flags, axis=0, dtype=jnp.int32)
    episode = (storage.current + ended - flags) % slots
    row = jnp.arange(length, dtype=jnp.int32)[:, None]
    after_flag = jnp.where(flags, row + 1, -storage.elapsed)
    began = jax.lax.cummax(jnp.concatenate([-storage.elapsed[None], after_flag]), axis=0)
    # One row of the block speaks for each episode in it, so that the scatter names no entry twice.
    is_newest = flags | (row == length - 1)
    number = jnp.where(is_newest, episode, slots)
    slot = jnp.broadcast_to((storage.ring.cursor + row) % slots, number.shape)
    lane = jnp.broadcast_to(jnp.arange(lanes), number.shape)
    return storage._replace(
        ring=written,
        episode=ring.write(storage.episode, episode, storage.ring.cursor),
        position=ring.write(storage.position, jnp.minimum(row - began[:-1], slots), storage.ring.cursor),
        newest=storage.newest.at[number, lane].set(slot, mode="drop"),
        current=(storage.current + ended[-1]) % slots,
        elapsed=jnp.minimum(length - began[-1], slots),
    )


def _sample(static: _Static, storage: Hindsight, key: Key, batch_size: int) -> tuple[Experience, SampleInfo]:
    """``batch_size`` windows, with replacement. Experience ``[B, length, …]``."""
    check_key(key)
    window_key, which_key, goal_key = jax.random.split(key, 3)
    inner = replay.Replay(storage.ring, storage.recency)
    batch, info = replay.sample(static.distribution, static.length, inner, window_key, batch_size)
    slot = _goal_slot(static.strategy, storage, info, goal_key)
    goal = ring.window(storage.ring, slot, info.lane, 1).next_observation["achieved_goal"]
    relabelled = _relabel(static, batch, goal)
    chosen = jax.random.uniform(which_key, (batch_size,)) < storage.share
    return where_done(chosen, relabelled, batch), info


def _goal_slot(strategy: str, storage: Hindsight, info: SampleInfo, key: Key) -> Array:
    """The slot of the step whose achieved goal a window is given. int32 [B]."""
    slots = ring.num_slots(storage.ring)
    number = storage.episode.at[info.time, info.lane].get(mode="promise_in_bounds")
    newest = storage.newest.at[number, info.lane].get(mode="promise_in_bounds")
    ahead = (newest - info.time) % slots
    if strategy == "final":
        return newest
    if strategy == "future":
        return (info.time + jax.random.randint(key, ahead.shape, 0, ahead + 1)) % slots
    held = ring.held(storage.ring)
    older = (held[info.lane] if held.ndim else held) - 1 - (storage.ring.cursor - 1 - info.time) % slots
    behind = storage.position.at[info.time, info.lane].get(mode="promise_in_bounds")
    behind = jnp.clip(older, 0, behind)  # the beginning of the episode may be overwritten already
    return (info.time - behind + jax.random.randint(key, ahead.shape, 0, behind + ahead + 1)) % slots


def _relabel(static: _Static, batch: Experience, goal: PyTree) -> Experience:
    """Put ``goal`` (``[B, 1, …]``) into every step, and work out reward and termination under it."""
    goal = jax.tree.map(lambda new, old: jnp.broadcast_to(new, old.shape), goal, batch.observation["desired_goal"])
    batch = batch._replace(
        observation={**batch.observation, "desired_goal": goal},
        next_observation={**batch.next_observation, "desired_goal": goal},
    )
    achieved = batch.next_observation["achieved_goal"]
    reward = jax.vmap(jax.vmap(static.reward))(achieved, goal, batch).astype(batch.reward.dtype)
    if static.terminated is None:
        return batch._replace(reward=reward)
    terminated = jax.vmap(jax.vmap(static.terminated))(achieved, goal, batch)
    return batch._replace(reward=reward, terminated=terminated.astype(batch.terminated.dtype))
