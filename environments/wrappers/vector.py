"""Many lanes of one environment, which reset by themselves."""

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from environments.base import Environment
from environments.wrappers.checks import require_single
from environments.wrappers.limits import through_state
from jaxrl.checks import positive_int
from jaxrl.errors import UsageError
from jaxrl.types import Array, Key, PyTree, Step, check_key, done, where_done


class Pool(NamedTuple):
    """Precomputed starts, one slot a lane, so that a slot lives on the device of its lane."""

    state: PyTree  # [num_envs, …]
    observation: PyTree  # [num_envs, …]
    used: Array  # bool [num_envs]: an episode began from this slot since it was drawn
    group: Array  # int32 []: the group of slots that was drawn last


class VectorState(NamedTuple):
    inner: PyTree  # [num_envs, …]
    episode_return: Array  # float32 [num_envs]: of the episode so far
    episode_length: Array  # float32 [num_envs]
    pool: Pool | None  # None where a reset is cheap
    # float32 [num_envs]: the largest of the episode; None where the environment measures none
    success: Array | None = None


def vectorise(env: Environment, num_envs: int, pool_refresh: int | None = None) -> Environment:
    """Step ``num_envs`` copies at once, and start a new episode wherever one ended.

    On the step that ends an episode, ``next_observation`` is where the step led and ``observation`` is the first
    observation of the next episode; both flags, the reward and the metrics are those of the ending step. Every field
    of the state and the step has a leading axis of ``num_envs``.

    Starts: where a reset is cheap, every lane draws one at every step and uses it if it is done. Where
    ``env.reset_is_dear``, each lane holds one start drawn earlier. A lane that uses its start marks it, and
    ``pool_refresh`` marked lanes (``num_envs // 8`` unless given, at least 1) draw anew at a step, in turn; nothing is
    drawn while nothing is marked. So a start comes back only in a lane whose next episode is over before its turn,
    which is at most ``num_envs / pool_refresh`` steps. With one lane every start is fresh.

    Metrics added, float32 [num_envs], of this environment's own reward: ``episode/return`` (undiscounted) and
    ``episode/length``. They run and include this step, so they are final on a step that carries a flag. Where the
    environment measures ``success``, ``episode/success`` is its largest value in the episode: success at any time.

    A set of tasks (:mod:`environments.multi_task`) gives every task an equal block of lanes.

    Args:
        env: a single environment.
        num_envs: number of lanes.
        pool_refresh: starts drawn at a step, a divisor of ``num_envs``; only where a reset is dear.

    Raises:
        UsageError: for a vectorised environment, fewer than one lane, or a refresh that cannot be met.
    """
    require_single(env, "vectorise")
    num_envs = positive_int(num_envs, "num_envs")
    if env.tasks:
        from environments.multi_task import vectorise_tasks  # which is built on this function

        if pool_refresh is not None:
            raise UsageError(f"pool_refresh={pool_refresh} is not for '{env.name}', which has tasks; leave it out")
        return vectorise_tasks(env, num_envs)  # type: ignore[arg-type]
    refresh = _refresh(env, num_envs, pool_refresh)
    return dataclasses.replace(
        env,
        reset=partial(_reset, env, num_envs, refresh),
        step=partial(_step, env, num_envs, refresh),
        num_envs=num_envs,
        rendering=through_state(env.rendering),
    )


def _refresh(env: Environment, num_envs: int, pool_refresh: int | None) -> int:
    """How many starts are drawn at a step; 0 where there is no pool."""
    divisors = [size for size in range(1, num_envs + 1) if num_envs % size == 0]
    if pool_refresh is None:
        return max(size for size in divisors if size <= max(1, num_envs // 8)) if env.reset_is_dear else 0
    if not env.reset_is_dear:
        raise UsageError(
            f"pool_refresh={pool_refresh} has no use for '{env.name}': it resets at every step; leave it out"
        )
    pool_refresh = positive_int(pool_refresh, "pool_refresh")
    if pool_refresh not in divisors:
        below = max((size for size in divisors if size < pool_refresh), default=1)
        above = min((size for size in divisors if size > pool_refresh), default=num_envs)
        nearest = f"{below} or {above}" if below != above else f"{below}"
        raise UsageError(f"pool_refresh={pool_refresh} does not divide num_envs={num_envs}; the nearest are {nearest}")
    return pool_refresh


def _reset(env: Environment, num_envs: int, refresh: int, key: Key) -> tuple[VectorState, Step]:
    check_key(key)
    pool = None
    if refresh:
        # One program draws the first episodes and the pool: a dear reset is dear to compile, too.
        states, steps = jax.vmap(jax.vmap(env.reset))(jax.random.split(key, (2, num_envs)))
        inner, step = jax.tree.map(lambda leaf: leaf[0], (states, steps))
        start, start_observation = jax.tree.map(lambda leaf: leaf[1], (states, steps.observation))
        pool = Pool(start, start_observation, jnp.zeros(num_envs, bool), jnp.zeros((), jnp.int32))
    else:
        inner, step = jax.vmap(env.reset)(jax.random.split(key, num_envs))
    zeros = jnp.zeros(num_envs, jnp.float32)
    success = zeros if "success" in step.metrics else None
    return VectorState(inner, zeros, zeros, pool, success), with_episode(step, zeros, zeros, success)


def _step(
    env: Environment, num_envs: int, refresh: int, state: VectorState, action: PyTree, key: Key
) -> tuple[VectorState, Step]:
    check_key(key)
    step_key, start_key = jax.random.split(key)
    inner, step = jax.vmap(env.step)(state.inner, action, jax.random.split(step_key, num_envs))
    ended = done(step)
    episode_return = state.episode_return + step.reward
    episode_length = state.episode_length + 1
    success = None if state.success is None else jnp.maximum(state.success, step.metrics["success"])
    if state.pool is None:
        start, first = jax.vmap(env.reset)(jax.random.split(start_key, num_envs))
        start_observation, pool = first.observation, None
    else:
        start, start_observation = state.pool.state, state.pool.observation
        pool = _redraw(env, num_envs, refresh, state.pool._replace(used=state.pool.used | ended), start_key)
    step = step._replace(observation=where_done(ended, start_observation, step.next_observation))
    new_state = VectorState(
        inner=where_done(ended, start, inner),
        episode_return=jnp.where(ended, 0.0, episode_return),
        episode_length=jnp.where(ended, 0.0, episode_length),
        pool=pool,
        success=None if success is None else jnp.where(ended, 0.0, success),
    )
    return new_state, with_episode(step, episode_return, episode_length, success)


def with_episode(step: Step, episode_return: Array, episode_length: Array, success: Array | None = None) -> Step:
    """The step with what a vectorised environment measures of its episodes."""
    episode = {"episode/return": episode_return, "episode/length": episode_length}
    if success is not None:
        episode["episode/success"] = success
    return step._replace(metrics={**step.metrics, **episode})


def _redraw(env: Environment, num_envs: int, refresh: int, pool: Pool, key: Key) -> Pool:
    """Draw the next group of slots in turn that has a used one; nothing if no slot is used.

    Lane ``i`` is in group ``i % groups``: as ``[refresh, groups]`` the lanes keep the order they have over devices, and
    a group is a column, so that every device draws its own share.
    """
    groups = num_envs // refresh
    group_used = pool.used.reshape(refresh, groups).any(axis=0)
    wait = (jnp.arange(groups) - pool.group - 1) % groups
    group = jnp.argmin(jnp.where(group_used, wait, groups)).astype(jnp.int32)
    return jax.lax.cond(
        group_used.any(), partial(_redraw_group, env, refresh), lambda pool, group, key: pool, pool, group, key
    )


def _redraw_group(env: Environment, refresh: int, pool: Pool, group: Array, key: Key) -> Pool:
    start, first = jax.vmap(env.reset)(jax.random.split(key, refresh))

    def write(slots: Array, new: Array) -> Array:
        table = slots.reshape((refresh, slots.shape[0] // refresh, *slots.shape[1:]))
        return jax.lax.dynamic_update_index_in_dim(table, new.astype(slots.dtype), group, 1).reshape(slots.shape)

    return Pool(
        state=jax.tree.map(write, pool.state, start),
        observation=jax.tree.map(write, pool.observation, first.observation),
        used=write(pool.used, jnp.zeros(refresh, bool)),
        group=group,
    )
