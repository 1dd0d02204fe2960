"""Actions in other units than the environment's."""

import dataclasses
from functools import partial

import jax.numpy as jnp
import numpy as np

from environments.base import Environment
from environments.wrappers.checks import require_environment
from jaxrl.errors import UsageError
from jaxrl.spaces import Box, require_bounded_box, require_box
from jaxrl.types import Array, Key, PyTree, Step


def scale(action: Array, box: Box) -> Array:
    """From [-1, 1] to the bounds of ``box``, per dimension; what lies outside [-1, 1] ends on the bound.

    ``a -> (high + low) / 2 + a (high - low) / 2``, with shape ``[..., *box.shape]``.
    """
    middle, half = _middle_and_half(box)
    # Clipped, because rounding can put middle + half above the bound.
    return jnp.clip(middle + half * action, box.low, box.high).astype(box.dtype)


def unscale(action: Array, box: Box) -> Array:
    """From the bounds of ``box`` to [-1, 1]: the inverse of :func:`scale`. A dimension of no width gives 0."""
    middle, half = _middle_and_half(box)
    return (jnp.asarray(action) - middle) / np.where(half > 0, half, np.float32(1))


def _middle_and_half(box: Box) -> tuple[np.ndarray, np.ndarray]:
    low, high = box.low.astype(np.float64), box.high.astype(np.float64)
    return ((high + low) / 2).astype(np.float32), ((high - low) / 2).astype(np.float32)


def scale_action(env: Environment) -> Environment:
    """The agent acts in [-1, 1] in every dimension, the environment gets its own bounds (see :func:`scale`).

    Raises:
        UsageError: unless the action space is a box of floats with finite bounds.
    """
    require_environment(env, "scale_action")
    box = require_bounded_box(env.action_space, "scale_action")
    if not jnp.issubdtype(box.dtype, jnp.floating):
        raise UsageError(f"scale_action needs actions that are floats, '{env.name}' has {box}; leave it out")
    return dataclasses.replace(
        env, step=partial(_step, env, partial(scale, box=box)), action_space=Box(-1.0, 1.0, box.shape, box.dtype)
    )


def clip_action(env: Environment, low=None, high=None) -> Environment:
    """Put actions outside the bounds back on them before the environment sees them.

    The bounds are the action space's, tightened by ``low`` and ``high`` where given (they broadcast over its shape):
    that gives bounds to an environment that has none.

    Raises:
        UsageError: unless the action space is a box, or where the bounds leave nothing.
    """
    require_environment(env, "clip_action")
    box = require_box(env.action_space, "clip_action")
    space = Box(
        np.maximum(box.low, box.low if low is None else np.asarray(low, box.dtype)),
        np.minimum(box.high, box.high if high is None else np.asarray(high, box.dtype)),
        box.shape,
        box.dtype,
    )
    return dataclasses.replace(env, step=partial(_step, env, partial(_clip, space)), action_space=space)


def _clip(box: Box, action: Array) -> Array:
    return jnp.clip(action, box.low, box.high).astype(box.dtype)


def _step(env: Environment, convert, state: PyTree, action: Array, key: Key) -> tuple[PyTree, Step]:
    return env.step(state, convert(action), key)
