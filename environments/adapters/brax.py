"""Brax environments, on any of its four physics back ends.

Brax's own training wrappers are not used: they overwrite the last observation of an episode with the first of the next
and fold the time limit into ``done``. A raw Brax environment counts no steps, so its ``done`` is a death and nothing
else; the limit comes from :func:`environments.wrappers.time_limit`.

Actions: every environment that Brax ships expects [-1, 1] in each dimension. Those whose actuators have another range
(``inverted_pendulum`` ±3, ``humanoid`` ±0.4, ``pusher`` ±2) map to it inside ``step``.

Brax takes seconds to import, so nothing here imports it before an environment is made.
"""

import dataclasses
import importlib
import inspect
import types
import warnings
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from environments.adapters import single_step
from environments.base import Environment
from jaxrl.errors import UsageError, unknown
from jaxrl.spaces import Box, Space
from jaxrl.types import Array, Key, PyTree, Step, check_key

BACKENDS = ("generalized", "positional", "spring", "mjx")

# The back ends on which each environment can be built and stepped.
_SUPPORTED = {
    "ant": BACKENDS,
    "fast": ("generalized",),  # no physics: it ignores the back end
    "halfcheetah": BACKENDS,
    "hopper": BACKENDS,
    "humanoid": BACKENDS,
    "humanoidstandup": BACKENDS,
    "inverted_double_pendulum": BACKENDS,
    "inverted_pendulum": BACKENDS,
    "pusher": BACKENDS,
    "reacher": BACKENDS,
    "swimmer": ("generalized",),  # the only one whose fluid forces were tuned; Brax refuses the others
    "walker2d": BACKENDS,
}


def names() -> tuple[str, ...]:
    """Every environment that Brax ships."""
    return tuple(_SUPPORTED)


def backends(name: str) -> tuple[str, ...]:
    """The back ends on which ``name`` works, the default first.

    Raises:
        UsageError: for a name that Brax does not ship.
    """
    if name not in _SUPPORTED:
        raise unknown("brax environment", name, _SUPPORTED)
    return _SUPPORTED[name]


def make(name: str, backend: str = "generalized", max_steps: int | None = 1000, **env_kwargs: Any) -> Environment:
    """One Brax environment, without automatic reset.

    Args:
        name: one of :func:`names`.
        backend: one of :func:`backends` of it. ``generalized`` is what every environment of Brax has by default. The
            time step differs between back ends, and so do rewards: do not compare returns across them.
        max_steps: the time limit; None for episodes that end by death alone.
        **env_kwargs: passed to the environment's class, such as ``terminate_when_unhealthy=False``.

    Returns:
        A single environment whose state holds Brax's ``State`` and whose metrics are Brax's own, named ``env/…``.

    Raises:
        UsageError: for an unknown name, a back end on which it does not work, or an option that it does not have.
    """
    known = backends(name)
    if backend not in known:
        reason = f"use {' or '.join(known)}"
        raise UsageError(f"brax environment '{name}' does not work on the back end '{backend}'; {reason}")
    return from_env(_construct(name, backend, env_kwargs), f"brax:{name}", max_steps)


def from_env(brax_env: Any, name: str, max_steps: int | None = 1000, action_space: Space | None = None) -> Environment:
    """Wrap a Brax environment of your own, such as a subclass of ``PipelineEnv``.

    Args:
        brax_env: not wrapped by anything in ``brax.envs.wrappers``.
        name: what it is called in logs.
        max_steps: the time limit; None for none.
        action_space: [-1, 1] in every dimension unless given.

    Raises:
        UsageError: for an environment wrapped by Brax.
    """
    from brax.envs.base import Wrapper

    if isinstance(brax_env, Wrapper):
        kind = type(brax_env).__name__
        raise UsageError(f"'{name}' is wrapped in Brax's {kind}, which loses the last observation; pass .unwrapped")
    start = jax.eval_shape(brax_env.reset, jax.random.key(0))
    bare = Environment(
        name=name,
        reset=partial(brax_reset, brax_env),
        step=partial(brax_step, brax_env),
        observation_space=jax.tree.map(lambda x: Box(-jnp.inf, jnp.inf, x.shape, x.dtype), start.obs),
        action_space=Box(-1.0, 1.0, (brax_env.action_size,)) if action_space is None else action_space,
        reset_is_dear=True,
        rendering=_rendering(brax_env),
    )
    return limited(bare, max_steps)


def limited(bare: Environment, max_steps: int | None) -> Environment:
    """Apply the time limit, and note in ``rendering["made"]`` the step function, by which a later wrapper shows."""
    from environments.wrappers import time_limit

    env = bare if max_steps is None else time_limit(bare, max_steps)
    return dataclasses.replace(env, rendering={**env.rendering, "made": env.step})


def to_step(state: Any) -> Step:
    """The :class:`Step` of a Brax state; ``truncated`` is false, because Brax itself has no limit."""
    metrics = {f"env/{name}": jnp.asarray(value, jnp.float32) for name, value in state.metrics.items()}
    return single_step(state.obs, state.reward, state.done > 0.5, metrics=metrics)


def reset_state(brax_env: Any, key: Key) -> Any:
    """Brax's state at a fresh start, every leaf an array with a dtype of its own."""
    return jax.tree.map(_strong, brax_env.reset(key))


def step_state(brax_env: Any, state: Any, action: Array) -> Any:
    """Brax's state one step later, with the structure and the dtypes of ``state``, which stays as it is.

    Raises:
        UsageError: while tracing, for an environment whose state changes its structure from one step to the next.
    """
    # Brax writes into state.metrics and state.info; mapping over the tree gives it dicts of its own.
    after = brax_env.step(jax.tree.map(lambda leaf: leaf, state), action)
    if jax.tree.structure(after) != jax.tree.structure(state):  # type: ignore[operator]
        kind = type(brax_env).__name__
        raise UsageError(f"the state of {kind} changes its structure in step; give reset the same metrics and info")
    return jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), after, state)


def _strong(leaf: Array) -> Array:
    leaf = jnp.asarray(leaf)
    return jax.lax.convert_element_type(leaf, leaf.dtype)


def brax_reset(brax_env: Any, key: Key) -> tuple[PyTree, Step]:
    """The ``reset`` of the contract, for any Brax environment."""
    check_key(key)
    state = reset_state(brax_env, key)
    return state, to_step(state)


def brax_step(brax_env: Any, state: PyTree, action: Array, key: Key) -> tuple[PyTree, Step]:
    """The ``step`` of the contract, for any Brax environment. Brax's physics draws nothing: the key is unused."""
    check_key(key)
    state = step_state(brax_env, state, action)
    return state, to_step(state)


def _rendering(brax_env: Any) -> dict[str, Any]:
    """What a viewer and :func:`environments.randomisation.randomise` need; empty without a physical system."""
    if not hasattr(brax_env, "sys"):
        return {}
    return {
        "kind": "brax",
        "system": brax_env.sys,
        "state_of": pipeline_state,
        "dt": float(brax_env.dt),
        "brax_env": brax_env,
    }


def pipeline_state(state: Any) -> Any:
    """The physics in a Brax state: ``x.pos`` [links, 3] in metres, ``x.rot`` [links, 4], ``q``, ``qd``."""
    return state.pipeline_state


def _construct(name: str, backend: str, env_kwargs: dict[str, Any]) -> Any:
    from brax import envs
    from brax.envs.base import PipelineEnv

    cls = envs._envs[name]
    parameters = {**inspect.signature(cls).parameters, **inspect.signature(PipelineEnv).parameters}
    options = set(parameters) - {"sys", "backend", "kwargs"}
    for option in env_kwargs:
        if option not in options:
            raise unknown(f"option of brax environment '{name}'", option, options)
    if name == "swimmer":
        _mend_fluid()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Brax System, piplines and environments", category=UserWarning)
            return cls(backend=backend, **env_kwargs)
    except (ValueError, NotImplementedError) as error:
        raise UsageError(f"brax environment '{name}' refuses {env_kwargs}: {error}") from error


def _mend_fluid() -> None:
    """Let ``brax.fluid`` run where ``jnp.clip`` no longer knows ``a_min``: give that one module its own ``clip``."""
    if "a_min" in inspect.signature(jnp.clip).parameters:
        return
    fluid: Any = importlib.import_module("brax.fluid")
    namespace = types.ModuleType("jax.numpy for brax.fluid")
    vars(namespace).update(vars(jnp))
    vars(namespace)["clip"] = _clip_old_names
    fluid.jp = namespace


def _clip_old_names(x: Array, a_min: Any = None, a_max: Any = None) -> Array:
    return jnp.clip(x, a_min, a_max)
