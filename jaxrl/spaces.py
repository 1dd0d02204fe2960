"""Observation and action spaces: hashable, so that agents can be made from them and compiled functions keyed by them."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.errors import UsageError
from jaxrl.types import Array, Key


@dataclass(frozen=True)
class Discrete:
    """Actions ``0 … n-1``, as int32 scalars."""

    n: int

    def __post_init__(self):
        if self.n < 1:
            raise UsageError(f"a discrete space needs at least one action, got {self.n}")

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    @property
    def dtype(self) -> Any:
        return jnp.int32

    def sample(self, key: Key) -> Array:
        """One action, uniformly. int32 []."""
        return jax.random.randint(key, (), 0, self.n, dtype=jnp.int32)


class Box:
    """Arrays of one shape with a lower and an upper bound for every entry; bounds may be infinite.

    ``low`` and ``high`` broadcast to ``shape``; without ``shape`` they give it.
    """

    def __init__(self, low, high, shape: tuple[int, ...] | None = None, dtype: Any = jnp.float32):
        given = np.broadcast_shapes(np.shape(low), np.shape(high)) if shape is None else shape
        self.shape = tuple(int(size) for size in given)
        self.dtype = jnp.dtype(dtype)
        self.low = np.broadcast_to(np.asarray(low, self.dtype), self.shape)
        self.high = np.broadcast_to(np.asarray(high, self.dtype), self.shape)
        if not np.all(self.low <= self.high):
            raise UsageError(f"a box needs low <= high everywhere, got low {self.low} and high {self.high}")

    @property
    def bounded(self) -> bool:
        return bool(np.all(np.isfinite(self.low)) and np.all(np.isfinite(self.high)))

    def sample(self, key: Key) -> Array:
        """One point, uniformly between the bounds; standard normal in entries without finite bounds."""
        if jnp.issubdtype(self.dtype, jnp.integer):
            return jax.random.randint(key, self.shape, self.low, self.high.astype(np.int64) + 1, dtype=self.dtype)
        uniform_key, normal_key = jax.random.split(key)
        finite = np.isfinite(self.low) & np.isfinite(self.high)
        low, high = np.where(finite, self.low, 0.0), np.where(finite, self.high, 1.0)
        uniform = low + (high - low) * jax.random.uniform(uniform_key, self.shape, self.dtype)
        if finite.all():
            return uniform.astype(self.dtype)
        return jnp.where(finite, uniform, jax.random.normal(normal_key, self.shape, self.dtype)).astype(self.dtype)

    def _identity(self):
        return (self.shape, str(self.dtype), self.low.tobytes(), self.high.tobytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Box) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __repr__(self) -> str:
        low, high = np.unique(self.low), np.unique(self.high)
        bounds = f"{low[0]}, {high[0]}" if low.size == high.size == 1 else f"{self.low.tolist()}, {self.high.tolist()}"
        return f"Box({bounds}, shape={self.shape}, dtype={self.dtype.name})"


Space: TypeAlias = Box | Discrete | dict


def zeros(space: Space, leading: tuple[int, ...] = ()) -> Any:
    """An array (or a dict of arrays, for a dict of spaces) of zeros with the space's shape and dtype."""
    if isinstance(space, dict):
        return {name: zeros(part, leading) for name, part in space.items()}
    return jnp.zeros(leading + space.shape, space.dtype)


def require_box(space: Space, what: str) -> Box:
    """The space itself if it is a box.

    Raises:
        UsageError: names what asked for it and what would work instead.
    """
    if isinstance(space, Discrete):
        raise UsageError(f"{what} needs continuous actions, this environment has {space}; use dqn or ppo")
    if not isinstance(space, Box):
        raise UsageError(f"{what} needs a Box, got {space}; flatten it with environments.wrappers.flatten_observation")
    return space


def require_bounded_box(space: Space, what: str) -> Box:
    """A box with finite bounds, or a :class:`UsageError` that says why not."""
    box = require_box(space, what)
    if not box.bounded:
        raise UsageError(f"{what} needs finite action bounds, got {box}; clip them with a wrapper or use ppo")
    return box


def require_discrete(space: Space, what: str) -> Discrete:
    """The space itself if it is discrete, or a :class:`UsageError` that says what would work instead."""
    if not isinstance(space, Discrete):
        raise UsageError(f"{what} needs discrete actions, this environment has {space}; use sac, td3 or ppo")
    return space
