"""A combination lock: the frontier of what has been learned moves on, and what is worth replaying is there."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from environments import drawings
from environments.adapters import first_step, single_step
from environments.base import Environment
from environments.rendering import drawing
from environments.wrappers.limits import time_limit
from jaxrl.checks import positive_int
from jaxrl.errors import UsageError
from jaxrl.spaces import Box, Discrete
from jaxrl.types import Array, Key, Step


class Lock(NamedTuple):
    """What makes one lock; drawn once, so that every run has the same."""

    codes: Array  # float32 [levels + 1, features]: what a level looks like
    combination: Array  # int32 [levels + 1]: the right action of each level


def lock(
    levels: int = 24,
    actions: int = 4,
    features: int = 16,
    noise: float = 0.3,
    lock_seed: int = 0,
    max_steps: int | None = None,
) -> Environment:
    """``levels`` actions have to be right in a row; a wrong one ends the episode.

    A level is observed as a code of its own, drawn once from a normal distribution by ``lock_seed``, plus normal noise of
    deviation ``noise`` at every step. Every right action rewards 1 / levels, the last one 1 more, and then the episode
    ends. An observation of a level is seen only by who has passed all levels before it, so that experience gets old: the
    oldest holds nothing but the first levels.

    The best return is 2, by always choosing right (:func:`lock_depth` reads the level reached out of a return). Random
    actions pass ``1 / (actions - 1)`` levels on average where the lock is long.
    """
    levels, actions, features = (
        positive_int(value, name) for value, name in ((levels, "levels"), (actions, "actions"), (features, "features"))
    )
    if actions < 2:
        raise UsageError("a lock needs at least 2 actions, got 1; the nearest that works is 2")
    if not noise >= 0:
        raise UsageError(f"noise must be at least 0, got {noise}; the nearest that works is 0")
    rng = np.random.default_rng(lock_seed)
    made = Lock(
        jnp.asarray(rng.standard_normal((levels + 1, features)), jnp.float32),
        jnp.asarray(rng.integers(0, actions, levels + 1), jnp.int32),
    )
    env = Environment(
        "toy:lock",
        partial(_reset, made, noise),
        partial(_step, made, noise),
        Box(-np.inf, np.inf, (features,)),
        Discrete(actions),
        rendering=drawing(partial(drawings.draw_chain, levels + 1), drawings.TOY_SECONDS),
    )
    # Nothing lasts longer than the lock is long, so a limit of as many steps is never what ends an episode.
    return time_limit(env, max_steps or levels)


def lock_depth(episode_return: np.ndarray, levels: int = 24) -> np.ndarray:
    """How many levels were passed, from the return of an episode: 0 to ``levels``."""
    return np.minimum(np.asarray(episode_return, np.float64), 1.0) * levels


def _observed(made: Lock, noise: float, level: Array, key: Key) -> Array:
    return made.codes[level] + noise * jax.random.normal(key, made.codes.shape[1:])


def _reset(made: Lock, noise: float, key: Key) -> tuple[Array, Step]:
    level = jnp.zeros((), jnp.int32)
    return level, first_step(_observed(made, noise, level, key))


def _step(made: Lock, noise: float, level: Array, action: Array, key: Key) -> tuple[Array, Step]:
    levels = made.codes.shape[0] - 1
    right = action == made.combination[level]
    level = jnp.where(right, jnp.minimum(level + 1, levels), level)
    opened = right & (level == levels)
    reward = right / levels + opened
    return level, single_step(_observed(made, noise, level, key), reward, ~right | opened)
