"""A limit on the length of an episode."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp

from environments.base import Environment
from environments.wrappers.checks import require_single
from jaxrl.checks import positive_int
from jaxrl.types import Array, Key, PyTree, Step


class TimeLimitState(NamedTuple):
    inner: PyTree
    time: Array  # int32 []: steps taken in this episode


def time_limit(env: Environment, max_steps: int) -> Environment:
    """End every episode after ``max_steps`` steps with ``truncated``.

    A limit says nothing about the task, so ``terminated`` is left as it is: an episode that dies at its limit has both
    flags. An environment that has a shorter limit keeps it.

    Raises:
        UsageError: for a limit below 1 or a vectorised environment.
    """
    require_single(env, "time_limit")
    max_steps = positive_int(max_steps, "max_steps")
    return dataclasses.replace(
        env,
        reset=partial(_reset, env),
        step=partial(_step, env, max_steps),
        max_steps=max_steps if env.max_steps is None else min(max_steps, env.max_steps),
        rendering=through_state(env.rendering),
    )


def _reset(env: Environment, key: Key) -> tuple[TimeLimitState, Step]:
    inner, step = env.reset(key)
    return TimeLimitState(inner, jnp.zeros((), jnp.int32)), step


def _step(
    env: Environment, max_steps: int, state: TimeLimitState, action: PyTree, key: Key
) -> tuple[TimeLimitState, Step]:
    inner, step = env.step(state.inner, action, key)
    time = state.time + 1
    return TimeLimitState(inner, time), step._replace(truncated=jnp.logical_or(step.truncated, time >= max_steps))


def through_state(rendering: Mapping[str, Any]) -> Mapping[str, Any]:
    """The entries for a viewer, with ``state_of`` reaching through a wrapper whose state has a field ``inner``."""
    if "state_of" not in rendering:
        return rendering
    return {**rendering, "state_of": partial(_state_of_inner, rendering["state_of"])}


def _state_of_inner(state_of: Callable[[PyTree], Any], state: PyTree) -> Any:
    return state_of(state.inner)
