"""Environments of Gymnasium, which step on the host, one lane after another or in processes.

They cannot be compiled, so they are no :class:`environments.Environment`: they have lanes and reset by themselves from
the start, keep their state to themselves, and speak numpy. What a step means is the same: ``next_observation`` is where
the step led, ``observation`` is what to act on next, and a time limit is ``truncated``, never ``terminated``.
"""

import atexit
import copy
import inspect
import signal
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker
from typing import Any

import numpy as np

from jaxrl.checks import positive_int
from jaxrl.errors import MissingExtraError, UsageError, unknown
from jaxrl.spaces import Box, Discrete, Space
from jaxrl.types import PyTree, Step


@dataclass(frozen=True)
class HostEnvironment:
    """Lanes that step on the host. Every field of a step is numpy and has a leading axis of ``num_envs``.

    ``step`` changes what is behind it, so two streams of episodes need two of these. ``metrics`` has ``episode/return``
    and ``episode/length``, as :func:`environments.vectorise` measures them.
    """

    name: str  # "gymnasium:CartPole-v1"
    reset: Callable[[int], Step]  # from a seed, which gives every lane a stream of its own
    step: Callable[[np.ndarray], Step]
    close: Callable[[], None]
    observation_space: Space  # of one lane
    action_space: Space  # of one lane
    num_envs: int
    max_steps: int | None = None  # the time limit that Gymnasium applies; None where it knows of none


@dataclass
class _Tally:
    """What the episodes have come to so far, float32 [num_envs]."""

    episode_return: np.ndarray
    episode_length: np.ndarray


def names() -> list[str]:
    """What Gymnasium has registered and can make, without its scheme."""
    return sorted(name for name, spec in _gymnasium().registry.items() if _can_be_made(name, spec))


def _can_be_made(name: str, spec: Any) -> bool:
    """Versions 2 and 3 of the MuJoCo tasks moved to another package, and GymV… are shells for older environments."""
    moved = str(spec.entry_point).startswith("gymnasium.envs.mujoco") and (spec.version or 0) < 4
    return not moved and not name.startswith("GymV")


def make(
    name: str, max_steps: int | None = None, num_envs: int = 1, processes: bool = False, **kwargs
) -> HostEnvironment:
    """``num_envs`` lanes of an environment that Gymnasium has registered.

    Args:
        name: "CartPole-v1".
        max_steps: a time limit in place of the registered one.
        num_envs: number of lanes.
        processes: a process a lane, started anew (a script needs its ``if __name__ == "__main__"``), not forked: a fork
            of a process that runs JAX can hang.
        **kwargs: arguments of the environment.

    Raises:
        UsageError: for an unknown name or argument, spaces that have no counterpart, or a package that is missing.
    """
    gymnasium = _gymnasium()
    if name not in gymnasium.registry:
        raise unknown("gymnasium environment", name, names())
    num_envs = positive_int(num_envs, "num_envs")
    max_steps = None if max_steps is None else positive_int(max_steps, "max_steps")
    _check_arguments(name, gymnasium.registry[name], kwargs)
    lanes = [partial(_one, name, max_steps, kwargs)] * num_envs
    try:
        vector = vector_of(lanes, processes)
    except gymnasium.error.DependencyNotInstalled as error:
        raise UsageError(f"gymnasium:{name} needs a package that is not installed: {error}") from None
    tally = _Tally(np.zeros(num_envs, np.float32), np.zeros(num_envs, np.float32))
    observation_space = convert_space(vector.single_observation_space)
    return HostEnvironment(
        name=f"gymnasium:{name}",
        reset=partial(_reset, vector, tally),
        step=partial(_step, vector, tally),
        close=partial(_close, vector),
        observation_space=observation_space,
        action_space=convert_space(vector.single_action_space),
        num_envs=num_envs,
        max_steps=max_steps or gymnasium.registry[name].max_episode_steps,
    )


def vector_of(lanes: Sequence[Callable[[], Any]], processes: bool) -> Any:
    """Gymnasium's vector of environments, each lane made anew where its episode ends.

    Processes never see SIGINT and SIGTERM, which terminals and schedulers send to all of a group: the main process
    decides when to stop, and still needs its lanes for that. They end when it closes them, or is gone.
    """
    from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

    if not processes:
        return SyncVectorEnv(lanes, autoreset_mode=AutoresetMode.SAME_STEP)
    # A process inherits which signals are held back. The first one would start the tracker, which lets them through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        vector = AsyncVectorEnv(lanes, autoreset_mode=AutoresetMode.SAME_STEP, context="spawn")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    # Before Python's own end of processes, which asks with a SIGTERM and waits.
    atexit.register(_close_what_is_left, weakref.ref(vector))
    return vector


def convert_space(space: Any) -> Space:
    """A Gymnasium space as ours: dicts and tuples become dicts, wide numbers become 32-bit.

    Raises:
        UsageError: for a space that is none of Box, Discrete, Dict and Tuple.
    """
    kind = type(space).__name__
    if kind in ("Dict", "Tuple"):
        return {name: convert_space(part) for name, part in _parts(space)}
    if kind == "Discrete":
        return Discrete(int(space.n))
    if kind == "Box":
        return Box(space.low, space.high, space.shape, _narrow(space.dtype))
    raise UsageError(f"a space of Gymnasium's kind {kind} has no counterpart here; Box, Discrete, Dict and Tuple have")


def _gymnasium() -> Any:
    try:
        import gymnasium
    except ImportError:
        raise MissingExtraError("gymnasium environments", "gymnasium") from None
    return gymnasium


def _check_arguments(name: str, spec: Any, kwargs: dict[str, Any]) -> None:
    from gymnasium.envs.registration import load_env_creator

    try:
        creator = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
    except ImportError as error:
        raise UsageError(f"gymnasium:{name} needs a package that is not installed: {error}") from None
    parameters = inspect.signature(creator).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for key in kwargs:
        if key not in parameters:
            accepted = ", ".join([*parameters, "num_envs", "max_steps", "processes"])
            raise UsageError(f"gymnasium:{name} takes no '{key}'; it takes {accepted}")


def _one(name: str, max_steps: int | None, kwargs: dict[str, Any]) -> Any:
    import gymnasium

    env = gymnasium.make(name, max_episode_steps=max_steps, disable_env_checker=True, **kwargs)
    # An environment may hand out an array that its next reset writes over, which would lose the last observation.
    return gymnasium.wrappers.TransformObservation(env, copy.deepcopy, env.observation_space)


def _reset(vector: Any, tally: _Tally, seed: int) -> Step:
    # Lane i of seed s must not be lane i - 1 of seed s + 1, so the lanes' seeds are not s, s + 1, …
    seeds = [int(word) for word in np.random.SeedSequence(seed).generate_state(vector.num_envs)]
    raw, _ = vector.reset(seed=seeds)
    tally.episode_return = np.zeros(vector.num_envs, np.float32)
    tally.episode_length = np.zeros(vector.num_envs, np.float32)
    observation = _observe(vector.single_observation_space, raw)
    no = np.zeros(vector.num_envs, bool)
    reward = np.zeros(vector.num_envs, np.float32)
    return _host_step(observation, reward, no, no.copy(), observation, _metrics(tally))


def _step(vector: Any, tally: _Tally, action: np.ndarray) -> Step:
    raw, reward, terminated, truncated, info = vector.step(_act(vector, action))
    reward = np.asarray(reward, np.float32)
    ended = np.logical_or(terminated, truncated)
    tally.episode_return = tally.episode_return + reward
    tally.episode_length = tally.episode_length + np.float32(1)
    metrics = _metrics(tally)
    tally.episode_return = np.where(ended, np.float32(0), tally.episode_return)
    tally.episode_length = np.where(ended, np.float32(0), tally.episode_length)
    observation = _observe(vector.single_observation_space, raw)
    last = observation
    if ended.any():
        last = _with_last(vector.single_observation_space, observation, ended, info["final_obs"])
    flags = np.asarray(terminated, bool), np.asarray(truncated, bool)
    return _host_step(observation, reward, *flags, last, metrics)


def _host_step(*fields: Any) -> Step:
    """A step whose fields are numpy, in the order of :class:`Step`."""
    return Step(*fields)


def _close(vector: Any) -> None:
    if not vector.closed:
        vector.close()


def _close_what_is_left(reference: weakref.ref) -> None:
    vector = reference()
    if vector is not None:
        _close(vector)


def _metrics(tally: _Tally) -> dict[str, np.ndarray]:
    return {"episode/return": tally.episode_return, "episode/length": tally.episode_length}


def _act(vector: Any, action: Any) -> np.ndarray:
    """Actions as Gymnasium wants them, [num_envs, …]."""
    space = vector.single_action_space
    action = np.asarray(action)
    if action.shape != (vector.num_envs, *space.shape):
        raise UsageError(f"expected actions of shape {(vector.num_envs, *space.shape)}, got {action.shape}")
    return action.astype(space.dtype) + space.start if hasattr(space, "start") else action.astype(space.dtype)


def _parts(space: Any) -> list[tuple[str, Any]]:
    pairs = space.spaces.items() if hasattr(space.spaces, "items") else enumerate(space.spaces)
    return [(str(name), part) for name, part in pairs]


def _children(space: Any, values: Any) -> dict[str, Any]:
    """The values of a dict or a tuple by the name of their part."""
    keys = space.spaces.keys() if hasattr(space.spaces, "keys") else range(len(space.spaces))
    return {str(key): values[key] for key in keys}


def _observe(space: Any, raw: Any) -> PyTree:
    """Observations of all lanes, or of one, as our space has them."""
    if hasattr(space, "spaces"):
        values = _children(space, raw)
        return {name: _observe(part, values[name]) for name, part in _parts(space)}
    return np.array(raw - space.start if hasattr(space, "start") else raw, dtype=_narrow(space.dtype))


def _with_last(space: Any, observation: PyTree, ended: np.ndarray, final: np.ndarray) -> PyTree:
    """Observations of all lanes, with the last of the episode in the lanes that ended. ``final`` is object [num_envs]."""
    lasts = {lane: _observe(space, final[lane]) for lane in np.flatnonzero(ended)}

    def fill(path: tuple[str, ...], value: PyTree) -> PyTree:
        if isinstance(value, dict):
            return {name: fill((*path, name), part) for name, part in value.items()}
        value = value.copy()
        for lane, last in lasts.items():
            for name in path:
                last = last[name]
            value[lane] = last
        return value

    return fill((), observation)


def _narrow(dtype: Any) -> np.dtype:
    """The dtype without the bits that JAX leaves out by default."""
    return {np.dtype(np.float64): np.dtype(np.float32), np.dtype(np.int64): np.dtype(np.int32)}.get(
        np.dtype(dtype), np.dtype(dtype)
    )
