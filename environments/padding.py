"""Observations and actions of several tasks made to fit into one space each, for :mod:`environments.multi_task`."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from environments.base import Environment
from environments.wrappers.actions import scale
from jaxrl.errors import UsageError
from jaxrl.spaces import Box, Discrete, Space
from jaxrl.types import Array, Key, PyTree, Step


class Layout(NamedTuple):
    """What the padded tasks have in common."""

    observation_space: Box  # [widest + tasks]: zeros behind a narrower observation, then the one-hot identity
    action_space: Space  # Discrete, or [-1, 1] as wide as the widest
    metrics: tuple[str, ...]  # that all tasks have
    tasks: int


def make_layout(envs: Sequence[Environment]) -> Layout:
    """The spaces that hold every task.

    Raises:
        UsageError: for observations that are no vectors of floats, actions that are partly discrete, and continuous
            actions that are no vectors of floats with finite bounds.
    """
    metrics = [set(jax.eval_shape(env.reset, jax.random.key(0))[1].metrics) for env in envs]
    return Layout(_observations(envs), _actions(envs), tuple(sorted(set.intersection(*metrics))), len(envs))


def padded(env: Environment, layout: Layout, identity: Array) -> Environment:
    """A task in the spaces of the layout.

    Args:
        env: a single environment.
        identity: float32 [tasks], its one-hot.
    """
    fit = partial(_fit, layout, identity)
    return dataclasses.replace(
        env,
        reset=partial(_reset, env, fit),
        step=partial(_step, env, fit),
        observation_space=layout.observation_space,
        action_space=layout.action_space,
    )


def _is_vector(space: Space) -> bool:
    return isinstance(space, Box) and len(space.shape) == 1 and jnp.issubdtype(space.dtype, jnp.floating)


def _observations(envs: Sequence[Environment]) -> Box:
    """Bounds that hold for every task, and the one-hot identity behind them."""
    for env in envs:
        if not _is_vector(env.observation_space):
            raise UsageError(
                f"'{env.name}' observes {env.observation_space}, and only vectors of floats can be padded; wrap it with "
                f"flatten_observation"
            )
    boxes: list[Box] = [env.observation_space for env in envs]  # type: ignore[misc]
    width = max(box.shape[0] for box in boxes)
    low = np.min([np.pad(box.low, (0, width - box.shape[0])) for box in boxes], axis=0)
    high = np.max([np.pad(box.high, (0, width - box.shape[0])) for box in boxes], axis=0)
    identity = np.ones(len(envs), np.float32)
    return Box(np.concatenate([low, 0 * identity]), np.concatenate([high, identity]))


def _actions(envs: Sequence[Environment]) -> Space:
    discrete = [env for env in envs if isinstance(env.action_space, Discrete)]
    if len(discrete) == len(envs):
        return Discrete(max(env.action_space.n for env in envs))  # type: ignore[union-attr]
    if discrete:
        raise UsageError(
            f"'{discrete[0].name}' has discrete actions and other tasks have not, so no action fits all; leave it out"
        )
    for env in envs:
        space = env.action_space
        if not isinstance(space, Box) or not _is_vector(space):
            raise UsageError(f"'{env.name}' acts in {space}, and only vectors of floats can be padded; leave it out")
        if not space.bounded:
            raise UsageError(
                f"'{env.name}' acts in {space}, and [-1, 1] cannot be scaled to bounds that are not finite; wrap it with "
                f"clip_action(env, -1.0, 1.0)"
            )
    return Box(-1.0, 1.0, (max(env.action_space.shape[0] for env in envs),))  # type: ignore[union-attr]


def _fit(layout: Layout, identity: Array, step: Step) -> Step:
    width = layout.observation_space.shape[0] - layout.tasks

    def fit(observation: Array) -> Array:
        wide = jnp.pad(observation.astype(jnp.float32), (0, width - observation.shape[0]))
        return jnp.concatenate([wide, jnp.asarray(identity, jnp.float32)])

    return step._replace(
        observation=fit(step.observation),
        next_observation=fit(step.next_observation),
        metrics={name: step.metrics[name] for name in layout.metrics},
    )


def _own_action(space: Space, action: Array) -> Array:
    if isinstance(space, Discrete):
        return jnp.minimum(action, space.n - 1)
    return scale(action[: space.shape[0]], space)  # type: ignore[union-attr, arg-type]


def _reset(env: Environment, fit: Callable[[Step], Step], key: Key) -> tuple[PyTree, Step]:
    state, step = env.reset(key)
    return state, fit(step)


def _step(env: Environment, fit: Callable[[Step], Step], state: PyTree, action: Array, key: Key) -> tuple[PyTree, Step]:
    state, step = env.step(state, _own_action(env.action_space, action), key)
    return state, fit(step)
