"""The contract of an environment: two pure functions, two spaces."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxrl.spaces import Space
from jaxrl.types import Key, PyTree, Step


@dataclass(frozen=True)
class Environment:
    """A container of pure functions. Wrappers take one and return another (``dataclasses.replace``).

    ``reset(key) -> (env_state, step)`` and ``step(env_state, action, key) -> (env_state, step)``; both steps have one
    pytree structure and the same dtypes, so that ``lax.scan`` carries them.

    A *single* environment (``num_envs is None``) has no automatic reset: ``observation`` equals ``next_observation``, and
    stepping past a flag is undefined. A *vectorised* one (see :func:`environments.wrappers.vectorise`) has a leading axis of
    ``num_envs`` on everything, resets by itself, and measures ``episode/return`` and ``episode/length``.
    """

    name: str  # "brax:ant"
    reset: Callable[[Key], tuple[PyTree, Step]]
    step: Callable[[PyTree, PyTree, Key], tuple[PyTree, Step]]
    observation_space: Space
    action_space: Space
    max_steps: int | None = None  # the time limit already applied; None where an episode may never end
    num_envs: int | None = None
    reset_is_dear: bool = False  # whether vectorise should keep a pool of starts instead of resetting at every step
    # Names of its tasks, if it has several: then lane i of N runs tasks[i // (N // K)]. See environments.multi_task.
    tasks: tuple[str, ...] = ()
    # What a viewer may use: "state_of" (env_state -> the state a renderer draws), "system", "dt" [s], "frame" …
    rendering: Mapping[str, Any] = field(default_factory=dict, hash=False, compare=False)
