"""Domain randomisation of Brax environments: every environment steps in a system of its own.

A *draw* is a pure function ``(key, system) -> system`` that changes some leaves of a Brax system: masses, gears,
friction. The ready ones of :mod:`environments.draws` are here too and compose with :func:`chain`. A draw sees the system
as :func:`effective_system` gives it, in which masses and inertias are those that the back end moves.
"""

import copy
import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from environments.adapters.brax import brax_reset, brax_step, limited, pipeline_state, reset_state, step_state, to_step
from environments.base import Environment
from environments.draws import Draw, chain, effective_system, scale_friction, scale_gain, scale_gear, scale_mass
from environments.wrappers.checks import require_single
from environments.wrappers.vector import with_episode
from jaxrl.checks import positive_int
from jaxrl.errors import UsageError
from jaxrl.types import Array, Key, PyTree, Step, check_key, done

__all__ = [
    "Draw",
    "LanesState",
    "RandomisedState",
    "chain",
    "effective_system",
    "in_system",
    "randomise",
    "scale_friction",
    "scale_gain",
    "scale_gear",
    "scale_mass",
]


class RandomisedState(NamedTuple):
    brax: Any  # Brax's own state
    drawn: tuple[Array, ...]  # the leaves of the system that the draw changes, and no others


class LanesState(NamedTuple):
    inner: PyTree  # [num_envs, …]; the draws in it are fixed at the first reset
    episode_return: Array  # float32 [num_envs]: of the episode so far
    episode_length: Array  # float32 [num_envs]


class _Nominal(NamedTuple):
    """A system taken apart, so that a state need carry only what is drawn. Host-side; holds no tracers."""

    brax_env: Any
    leaves: tuple[Any, ...]
    treedef: Any
    index: tuple[int, ...]  # type: ignore[assignment]  # which leaves are drawn


def randomise(env: Environment, draw: Draw, redraw_at_reset: bool = True, num_envs: int | None = None) -> Environment:
    """Give every environment its own draw of the physics.

    * ``redraw_at_reset=True``: a single environment whose ``reset`` draws a system and whose state carries it, to be
      vectorised like any other. Every episode has a new system. Starts that ``vectorise`` holds in its pool were drawn
      with theirs; a start used twice brings the same system twice.
    * ``redraw_at_reset=False``: a draw that outlives its episode belongs to a lane, so this returns an environment
      that has ``num_envs`` lanes already, resets by itself as a vectorised one does, and draws at ``reset`` only.
      Every automatic reset is fresh, in the lane's own system, and costs in proportion to the lanes that ended.

    ``reset(key)`` spends half of its key on the start and half on the draw, so the starts are not those that the
    environment without randomisation has for the same key.

    Args:
        env: what :func:`environments.adapters.brax.make` returned, before any wrapper. A class that computes
            something from its system in ``__init__`` keeps the nominal value of it (no environment of Brax does).
        draw: ``(key, system) -> system``; it may change values, not shapes or dtypes.
        redraw_at_reset: see above.
        num_envs: number of lanes; only with ``redraw_at_reset=False``.

    Raises:
        UsageError: for another kind of environment, a wrapped one, or a draw that changes nothing or a shape.
    """
    require_single(env, "randomise")
    if redraw_at_reset and num_envs is not None:
        raise UsageError(f"num_envs={num_envs} is for redraw_at_reset=False; leave it out and vectorise")
    if not redraw_at_reset:
        if num_envs is None:
            raise UsageError("a draw that is kept belongs to a lane: give num_envs=…, and leave vectorise out")
        num_envs = positive_int(num_envs, "num_envs")
    brax_env = _brax_env_of(env)
    nominal = _take_apart(_with_system(brax_env, effective_system(brax_env.sys, brax_env.backend)), draw)
    bare = dataclasses.replace(
        env,
        reset=partial(_reset, nominal, draw),
        step=partial(_step, nominal),
        max_steps=None,
        rendering={**env.rendering, "state_of": _physics_of},
    )
    single = _randomised(limited(bare, env.max_steps))
    return single if redraw_at_reset else _lanes(single, nominal, draw, env.max_steps, num_envs)


def in_system(env: Environment, system: Any) -> Environment:
    """The same environment in another physics; ``system`` may be traced, so that ``vmap`` covers a grid of them.

    For a policy's return against mass, say::

        def evaluate(factor, key):
            draw_key, rollout_key = jax.random.split(key)
            nominal = effective_system(env.rendering["system"], "spring")
            heavier = scale_mass(factor, factor, shared=True)(draw_key, nominal)
            return rollout(in_system(env, heavier), rollout_key)

    Raises:
        UsageError: as :func:`randomise`, for what is not a bare Brax environment.
    """
    require_single(env, "in_system")
    own = _with_system(_brax_env_of(env), system)
    rendering = {**env.rendering, "state_of": pipeline_state, "brax_env": own}
    bare = dataclasses.replace(
        env, reset=partial(brax_reset, own), step=partial(brax_step, own), max_steps=None, rendering=rendering
    )
    return limited(bare, env.max_steps)


# --- one environment --------------------------------------------------------------------------------------------------


def _brax_env_of(env: Environment) -> Any:
    brax_env = env.rendering.get("brax_env")
    if brax_env is None:
        raise UsageError(f"randomise needs a Brax environment with a physical system, got '{env.name}'; try 'brax:ant'")
    if env.rendering.get("made") is not env.step:
        raise UsageError(f"randomise goes first: '{env.name}' is wrapped or randomised already; wrap what it returns")
    return brax_env


def _randomised(env: Environment) -> Environment:
    """Without the mark of a bare environment, so that it is not randomised again."""
    return dataclasses.replace(env, rendering={**env.rendering, "made": None})


def _with_system(brax_env: Any, system: Any) -> Any:
    """A copy that steps in another system; the environment that all share stays as it is."""
    own = copy.copy(brax_env)
    own.sys = system
    return own


def _take_apart(brax_env: Any, draw: Draw) -> _Nominal:
    """Find the leaves that the draw changes: those that it does not pass through untouched.

    Raises:
        UsageError: for a draw that changes nothing, or the structure, a shape or a dtype.
    """
    paths, treedef = jax.tree_util.tree_flatten_with_path(brax_env.sys)
    leaves = tuple(leaf for _, leaf in paths)

    def drawn_leaves(key: Key, leaves: tuple[Any, ...]) -> list[Any]:
        return jax.tree.leaves(draw(key, jax.tree.unflatten(treedef, leaves)))

    traced = jax.make_jaxpr(drawn_leaves)(jax.random.key(0), leaves)
    inputs, outputs = traced.jaxpr.invars[1:], traced.jaxpr.outvars
    if len(inputs) != len(outputs):
        raise UsageError(
            f"the draw turns a system of {len(inputs)} arrays into one of {len(outputs)}; change values only"
        )
    index = tuple(i for i, (old, new) in enumerate(zip(inputs, outputs, strict=True)) if old is not new)
    if not index:
        raise UsageError("the draw returns the system as it was; change something, such as scale_mass(0.8, 1.2)")
    for i in index:
        old, new = inputs[i].aval, outputs[i].aval
        if old.shape != new.shape or old.dtype != new.dtype:
            name = jax.tree_util.keystr(paths[i][0])
            raise UsageError(f"the draw turns system{name} from {old.str_short()} into {new.str_short()}; keep it")
    return _Nominal(brax_env, leaves, treedef, index)


def _own(nominal: _Nominal, drawn: tuple[Array, ...]) -> Any:
    """The environment in the system that has these leaves."""
    leaves = list(nominal.leaves)
    for i, leaf in zip(nominal.index, drawn, strict=True):
        leaves[i] = leaf
    return _with_system(nominal.brax_env, jax.tree.unflatten(nominal.treedef, leaves))


def _draw(nominal: _Nominal, draw: Draw, key: Key) -> tuple[Array, ...]:
    leaves = jax.tree.leaves(draw(key, jax.tree.unflatten(nominal.treedef, nominal.leaves)))
    return tuple(jnp.asarray(leaves[i], jnp.asarray(nominal.leaves[i]).dtype) for i in nominal.index)


def _reset(nominal: _Nominal, draw: Draw, key: Key) -> tuple[RandomisedState, Step]:
    check_key(key)
    start_key, draw_key = jax.random.split(key)
    return _start(nominal, _draw(nominal, draw, draw_key), start_key)


def _start(nominal: _Nominal, drawn: tuple[Array, ...], key: Key) -> tuple[RandomisedState, Step]:
    """A fresh start in a given system."""
    state = reset_state(_own(nominal, drawn), key)
    return RandomisedState(state, drawn), to_step(state)


def _step(nominal: _Nominal, state: RandomisedState, action: Array, key: Key) -> tuple[RandomisedState, Step]:
    check_key(key)
    after = step_state(_own(nominal, state.drawn), state.brax, action)
    return state._replace(brax=after), to_step(after)


def _physics_of(state: RandomisedState) -> Any:
    return state.brax.pipeline_state


# --- lanes that keep their draw ---------------------------------------------------------------------------------------


def _lanes(single: Environment, nominal: _Nominal, draw: Draw, max_steps: int | None, num_envs: int) -> Environment:
    rendering = {**single.rendering, "state_of": partial(_physics_of_lanes, single.rendering["state_of"])}
    start = partial(_start_lane, nominal, single, max_steps)
    return dataclasses.replace(
        single,
        reset=partial(_reset_lanes, partial(_draw, nominal, draw), start, num_envs),
        step=partial(_step_lanes, single, start, num_envs),
        num_envs=num_envs,
        reset_is_dear=False,
        rendering=rendering,
    )


def _start_lane(
    nominal: _Nominal, single: Environment, max_steps: int | None, drawn: tuple[Array, ...], key: Key
) -> tuple[PyTree, Step]:
    """A fresh start in a lane's own system, with the state of its time limit."""
    fixed = dataclasses.replace(single, reset=partial(_start, nominal, drawn), max_steps=None)
    return limited(fixed, max_steps).reset(key)


def _reset_lanes(draw, start, num_envs: int, key: Key) -> tuple[LanesState, Step]:
    check_key(key)
    draw_key, start_key = jax.random.split(key)
    drawn = jax.vmap(draw)(jax.random.split(draw_key, num_envs))
    inner, step = jax.vmap(start)(drawn, jax.random.split(start_key, num_envs))
    zeros = jnp.zeros(num_envs, jnp.float32)
    return LanesState(inner, zeros, zeros), with_episode(step, zeros, zeros)


def _step_lanes(
    single: Environment, start, num_envs: int, state: LanesState, action: Array, key: Key
) -> tuple[LanesState, Step]:
    check_key(key)
    step_key, start_key = jax.random.split(key)
    inner, step = jax.vmap(single.step)(state.inner, action, jax.random.split(step_key, num_envs))
    ended = done(step)
    inner, observation = _restart(start, _drawn_in(state.inner), ended, inner, step.next_observation, start_key)
    episode_return = state.episode_return + step.reward
    episode_length = state.episode_length + 1
    new_state = LanesState(inner, jnp.where(ended, 0.0, episode_return), jnp.where(ended, 0.0, episode_length))
    return new_state, with_episode(step._replace(observation=observation), episode_return, episode_length)


def _drawn_in(inner: PyTree) -> tuple[Array, ...]:
    """The lanes' draws, with or without the state of a time limit around them."""
    state = inner.inner if hasattr(inner, "inner") else inner
    return state.drawn


def _restart(start, drawn: PyTree, ended: Array, inner: PyTree, observation: PyTree, key: Key) -> tuple[PyTree, PyTree]:
    """Fresh starts for the lanes that ended, an eighth of the lanes at a time, as often as it takes (often never)."""
    num_envs = ended.shape[0]
    chunk = max(1, num_envs // 8)

    def body(carry):
        waiting, inner, observation, key = carry
        key, chunk_key = jax.random.split(key)
        lanes = jnp.nonzero(waiting, size=chunk, fill_value=num_envs)[
            0
        ]  # num_envs is no lane: read clipped, not written
        own = jax.tree.map(lambda leaf: leaf.at[lanes].get(mode="clip"), drawn)
        fresh, first = jax.vmap(start)(own, jax.random.split(chunk_key, chunk))
        inner, observation = jax.tree.map(
            lambda old, new: old.at[lanes].set(new, mode="drop"), (inner, observation), (fresh, first.observation)
        )
        return waiting.at[lanes].set(False, mode="drop"), inner, observation, key

    _, inner, observation, _ = jax.lax.while_loop(lambda carry: carry[0].any(), body, (ended, inner, observation, key))
    return inner, observation


def _physics_of_lanes(state_of, state: LanesState) -> Any:
    return state_of(state.inner)
