"""Observations in another shape: stacked over time, or flat."""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from environments.base import Environment
from environments.wrappers.checks import require_environment, require_single
from environments.wrappers.limits import through_state
from jaxrl.checks import positive_int
from jaxrl.errors import UsageError
from jaxrl.spaces import Box, Discrete, Space, require_box
from jaxrl.types import Array, Key, PyTree, Step


class StackState(NamedTuple):
    inner: PyTree
    stack: Array  # [k, *shape]: the last k observations, oldest first


def stack_observations(env: Environment, k: int, axis: int | None = None) -> Environment:
    """Show the last ``k`` observations, oldest first.

    At a reset the first observation fills the stack, so nothing of the episode before is left in it.

    Args:
        env: a single environment whose observations are one array.
        k: how many.
        axis: None puts them on a new leading axis, ``[k, *shape]``; a number concatenates them along that axis of the
            observation, so -1 makes one vector of ``k * n`` of vectors of n, or ``k * c`` channels of images.

    Raises:
        UsageError: for k below 1, an axis the observation does not have, or an observation that is not a box.
    """
    require_single(env, "stack_observations")
    k = positive_int(k, "k")
    box = require_box(env.observation_space, "stack_observations")
    dims = len(box.shape)
    if axis is not None and not -dims <= axis < dims:
        raise UsageError(
            f"axis={axis} is not in an observation of shape {box.shape}; use None or -{max(dims, 1)} to -1"
        )
    join = partial(_join, axis)
    low, high = (np.asarray(join(np.stack([bound] * k))) for bound in (box.low, box.high))
    return dataclasses.replace(
        env,
        reset=partial(_stack_reset, env, k, join),
        step=partial(_stack_step, env, join),
        observation_space=Box(low, high, dtype=box.dtype),
        rendering=through_state(env.rendering),
    )


def _join(axis: int | None, stack: Any) -> Array:
    """From [k, *shape] to what is shown."""
    return stack if axis is None else jnp.concatenate(list(stack), axis=axis)


def _stack_reset(env: Environment, k: int, join, key: Key) -> tuple[StackState, Step]:
    inner, step = env.reset(key)
    stack = jnp.stack([step.observation] * k)
    shown = join(stack)
    return StackState(inner, stack), step._replace(observation=shown, next_observation=shown)


def _stack_step(env: Environment, join, state: StackState, action: PyTree, key: Key) -> tuple[StackState, Step]:
    inner, step = env.step(state.inner, action, key)
    stack = jnp.concatenate([state.stack[1:], step.next_observation[None]])
    shown = join(stack)
    return StackState(inner, stack), step._replace(observation=shown, next_observation=shown)


def flatten_observation(env: Environment) -> Environment:
    """Show one flat float32 vector.

    Boxes of any shape are raveled in row-major order, discrete observations become one-hot, and the parts of a dict
    follow each other in the order of their sorted names (nested dicts too).
    """
    require_environment(env, "flatten_observation")
    space = env.observation_space
    convert = partial(_flatten_step, partial(_flatten, space, () if env.num_envs is None else (env.num_envs,)))
    return dataclasses.replace(
        env,
        reset=partial(_flat_reset, env, convert),
        step=partial(_flat_step, env, convert),
        observation_space=Box(_flat_bounds(space, "low"), _flat_bounds(space, "high")),
    )


def _flat_bounds(space: Space, which: str) -> np.ndarray:
    """The lower or upper bound of the flat vector, float32."""
    if isinstance(space, dict):
        return np.concatenate([_flat_bounds(space[name], which) for name in sorted(space)])
    if isinstance(space, Discrete):
        return np.full(space.n, float(which == "high"), np.float32)
    return getattr(space, which).astype(np.float32).ravel()


def _flatten(space: Space, leading: tuple[int, ...], observation: PyTree) -> Array:
    if isinstance(space, dict):
        return jnp.concatenate([_flatten(space[name], leading, observation[name]) for name in sorted(space)], axis=-1)
    if isinstance(space, Discrete):
        return jax.nn.one_hot(observation, space.n, dtype=jnp.float32)
    return observation.astype(jnp.float32).reshape((*leading, -1))


def _flatten_step(flatten, step: Step) -> Step:
    return step._replace(observation=flatten(step.observation), next_observation=flatten(step.next_observation))


def _flat_reset(env: Environment, convert, key: Key) -> tuple[PyTree, Step]:
    state, step = env.reset(key)
    return state, convert(step)


def _flat_step(env: Environment, convert, state: PyTree, action: PyTree, key: Key) -> tuple[PyTree, Step]:
    state, step = env.step(state, action, key)
    return state, convert(step)
