"""Environments of gymnax, with the flags set right: a time limit is not a death.

Steps are taken with ``step_env``, which does not reset. The time limit is ours (:func:`environments.wrappers.time_limit`),
as long as the environment's own ``max_steps_in_episode`` unless ``max_steps`` says otherwise. What ``step_env`` returns
means different things in different environments, and all of these are understood:

* five values where the fourth is a natural end (gymnax from 1.0 on);
* five values where the fourth is ``done``, the limit included (written for gymnax before 1.0);
* six values, ``terminated`` and ``truncated`` apart.
"""

import inspect
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from environments import drawings
from environments.adapters import first_step, single_step
from environments.base import Environment
from environments.wrappers.limits import time_limit
from jaxrl.checks import positive_int
from jaxrl.errors import MissingExtraError, UsageError, unknown
from jaxrl.spaces import Box, Discrete, Space, zeros
from jaxrl.types import Key, PyTree, Step, check_key

_NEVER = np.iinfo(np.int32).max

# Downloads a data set when it is made.
_LEFT_OUT = ("MNISTBandit-bsuite",)


def _gymnax() -> Any:
    try:
        import gymnax
    except ImportError as error:
        raise MissingExtraError("gymnax environments", "gymnax") from error
    return gymnax


def names() -> list[str]:
    """What gymnax has registered, without its scheme.

    Raises:
        MissingExtraError: where gymnax is not installed.
    """
    gymnax = _gymnax()
    return sorted(name for name in gymnax.registered_envs if name not in _LEFT_OUT)


def make(name: str, max_steps: int | None = None, **kwargs) -> Environment:
    """The environment that gymnax registers under that name.

    Args:
        name: "CartPole-v1".
        max_steps: a time limit in place of gymnax's own.
        **kwargs: arguments of the environment's constructor, or fields of its parameters (``gravity=3.7``).

    Raises:
        UsageError: for an unknown name or argument.
        MissingExtraError: where gymnax is not installed.
    """
    gymnax = _gymnax()
    registration = gymnax.registration
    if name not in gymnax.registered_envs:
        raise unknown("gymnax environment", name, names())
    # gymnax's own table is private; without it constructor arguments are only what the environment's class shows.
    factory = getattr(registration, "_registry", {}).get(name) or type(gymnax.make(name)[0])
    constructor = [key for key in inspect.signature(factory).parameters if key != "self"]
    env, params = gymnax.make(name, **{key: value for key, value in kwargs.items() if key in constructor})
    fields = [key for key in getattr(params, "__dataclass_fields__", {}) if key != "max_steps_in_episode"]
    for key in kwargs:
        if key not in constructor and key not in fields:
            accepted = ", ".join([*constructor, *fields, "max_steps"])
            raise UsageError(f"gymnax:{name} takes no '{key}'; it takes {accepted}")
    changes = {key: value for key, value in kwargs.items() if key not in constructor}
    return from_gymnax(f"gymnax:{name}", env, params.replace(**changes) if changes else params, max_steps)


def from_gymnax(name: str, env: Any, params: Any = None, max_steps: int | None = None) -> Environment:
    """Any object with gymnax's ``reset_env``, ``step_env``, ``observation_space`` and ``action_space``.

    Args:
        name: what to call it.
        env: the gymnax environment.
        params: its parameters; its ``default_params`` unless given.
        max_steps: a time limit in place of ``params.max_steps_in_episode``.
    """
    params = env.default_params if params is None else params
    limit = getattr(params, "max_steps_in_episode", None) if max_steps is None else positive_int(max_steps, "max_steps")
    if max_steps is not None and hasattr(params, "max_steps_in_episode"):
        params = params.replace(max_steps_in_episode=type(params.max_steps_in_episode)(max_steps))
    observation_space = convert_space(env.observation_space(params))
    action_space = convert_space(env.action_space(params))
    key = jax.eval_shape(lambda: jax.random.key(0))
    observation, start = jax.eval_shape(lambda key: env.reset_env(key, params), key)
    observation_space = _observed_space(name, observation_space, observation)
    template = _state_template(env, params, action_space, start, key)
    single = Environment(
        name=name,
        reset=partial(_reset, env, params, template, observation_space),
        step=partial(_step, env, params, template, observation_space),
        observation_space=observation_space,
        action_space=action_space,
        rendering=drawings.for_gymnax(name.partition(":")[2]),
    )
    return single if limit is None else time_limit(single, int(limit))


def convert_space(space: Any) -> Space:
    """A gymnax space as ours. The largest float32, which gymnax writes where there is no bound, becomes infinity."""
    if hasattr(space, "spaces"):
        parts = space.spaces.items() if hasattr(space.spaces, "items") else enumerate(space.spaces)
        return {str(name): convert_space(part) for name, part in parts}
    if hasattr(space, "n"):
        return Discrete(int(space.n))
    dtype = jax.dtypes.canonicalize_dtype(space.dtype)
    low, high = np.asarray(space.low), np.asarray(space.high)
    if jnp.issubdtype(dtype, jnp.floating):
        low, high = (np.where(np.abs(x) >= np.finfo(np.float32).max, np.copysign(np.inf, x), x) for x in (low, high))
    return Box(low, high, tuple(np.atleast_1d(np.asarray(space.shape, int))), dtype)


def _observed_space(name: str, space: Space, observation: PyTree) -> Space:
    """The space with the shape checked, and float32 where integers were promised and floats come."""
    if isinstance(space, dict):
        return {part: _observed_space(f"{name}/{part}", space[part], _part(observation, part)) for part in space}
    if tuple(observation.shape) != space.shape:
        raise UsageError(f"{name} observes an array of shape {observation.shape}, but its space is {space}")
    floats = jnp.issubdtype(observation.dtype, jnp.floating) and not jnp.issubdtype(space.dtype, jnp.floating)
    if isinstance(space, Box) and floats:
        return Box(space.low, space.high, space.shape, jnp.float32)
    return space


def _part(observation: PyTree, name: str) -> PyTree:
    """One part of a dict, a tuple or an object of observations."""
    if hasattr(observation, "keys"):
        return observation[name]
    return observation[int(name)] if isinstance(observation, tuple) and name.isdigit() else getattr(observation, name)


def _observe(space: Space, observation: PyTree) -> PyTree:
    if isinstance(space, dict):
        return {name: _observe(part, _part(observation, name)) for name, part in space.items()}
    return jnp.asarray(observation, space.dtype)


def _state_template(env: Any, params: Any, action_space: Space, start: PyTree, key: Any) -> PyTree:
    """Shape and dtype of every leaf of the state, such that a reset and a step agree.

    gymnax resets to Python numbers and steps to arrays; where both are arrays of different dtypes, they are promoted.
    """
    action = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), jax.eval_shape(lambda: zeros(action_space)))
    after = jax.eval_shape(lambda state, action, key: env.step_env(key, state, action, params)[1], start, action, key)

    def agree(first: Any, later: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(later.shape, jnp.promote_types(first.dtype, later.dtype))

    return jax.tree.map(agree, start, after)


def _cast(template: PyTree, state: PyTree) -> PyTree:
    def cast(like: jax.ShapeDtypeStruct, leaf: Any) -> Any:
        if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
            return leaf
        return jnp.broadcast_to(jnp.asarray(leaf, like.dtype), like.shape)

    return jax.tree.map(cast, template, state)


def _reset(env: Any, params: Any, template: PyTree, space: Space, key: Key) -> tuple[PyTree, Step]:
    check_key(key)
    observation, state = env.reset_env(key, params)
    return _cast(template, state), first_step(_observe(space, observation))


def _step(
    env: Any, params: Any, template: PyTree, space: Space, state: PyTree, action: PyTree, key: Key
) -> tuple[PyTree, Step]:
    observation, new_state, reward, terminated, *rest = env.step_env(key, state, action, params)
    truncated = rest[0] if len(rest) == 2 else False
    if len(rest) == 1 and _mixes_limit(env) and hasattr(params, "max_steps_in_episode"):
        # The same step in a world without the limit; what the two have in common is computed once by the compiler.
        unlimited = params.replace(max_steps_in_episode=type(params.max_steps_in_episode)(_NEVER))
        terminated = env.step_env(jax.random.clone(key), state, action, unlimited)[3]
    return _cast(template, new_state), single_step(_observe(space, observation), reward, terminated, truncated)


def _mixes_limit(env: Any) -> bool:
    """Whether the fourth value is ``done`` with the limit in it: before gymnax 1.0 ``is_terminal`` had both."""
    from gymnax.environments.environment import Environment as Base

    own = getattr(type(env), "is_terminal", None)
    return not hasattr(env, "is_truncated") or own is not getattr(Base, "is_terminal", None)
