"""A run as a handful of compiled programs: start, advance by any number of iterations, evaluate.

A population is the same programs under ``vmap``: its states have a leading axis of members, and iterations are counted
outside of it so that a branch on the count stays a branch.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxrl.agents.base import Agent
from jaxrl.errors import UsageError
from jaxrl.training import evaluation
from jaxrl.training.evaluation import Episodes
from jaxrl.training.footprint import peak
from jaxrl.training.loop import Loop, LoopState, block_of, check_learning, check_num_envs, iterate, start
from jaxrl.training.measuring import GUARD, tasks_of
from jaxrl.training.sharding import replicated, state_sharding
from jaxrl.types import Array, Experience, Key, Metrics, PyTree


class Chunk(NamedTuple):
    """What is known after some iterations. Its size does not depend on how many there were."""

    metrics: dict[str, Array]  # [] or [members]; NaN where nothing was measured, as with no finished episode
    counts: dict[str, Array]  # what each mean was taken over
    finite: dict[str, Array]  # bool: leaf of the agent's state, or the observation -> whether it is finite


class Program(NamedTuple):
    """Compiled (or, for host environments, plain) functions with one signature; ``members`` is None for a single run."""

    init: Callable[[], PyTree]
    advance: Callable[[PyTree, int, int], tuple[PyTree, Chunk]]  # (state, first iteration, iterations); donates state
    evaluate: Callable[[PyTree, int], Episodes]  # (state, iteration) -> [episodes] or [members, episodes]
    members: int | None
    steps_per_iteration: int
    updates_per_iteration: int
    warmup_iterations: int
    block: Experience  # shapes of what one member learns from in one iteration
    template: Callable[[], PyTree]  # () -> shapes of the state, and where each array lives
    working: Callable[[], int]  # () -> bytes that an iteration needs besides the state, estimated
    devices: int = 1  # that the state is spread over
    tasks: tuple[str, ...] = ()  # that an evaluation's episodes are shared out to, in this order
    close: Callable[[], None] = lambda: None  # ends environments on the host, after which nothing can run


def compile_program(
    loop: Loop,
    agent: Agent,
    env: Any,
    evaluation_env: Any,
    *,
    seeds: list[int],
    hyper: dict[str, np.ndarray] | None = None,
    population: bool = False,
    episodes: int = 16,
    max_steps: int | None = None,
    judge: Callable[[Array, Array], Metrics] | None = None,
    mesh: Mesh | None = None,
) -> Program:
    """Bind a loop to its seeds and hyper-parameters. Nothing compiles until the first call.

    Args:
        env: the vectorised environment to train in.
        evaluation_env: a single environment to evaluate in.
        seeds: one for each member. A member is the same run as one alone with its seed.
        hyper: name -> ``[members]``, in place of the agent's own.
        judge: ``(estimated, collected) -> metrics``: what to measure, in evaluations, of the critics' estimates and the
            returns then collected, ``[episodes]`` each; nothing where absent, or where the agent has no ``estimate``.
        population: whether states have an axis of members; needed for more than one seed.
        mesh: from :func:`jaxrl.training.sharding.make_mesh`, to spread the run over devices.
    """
    hyper = hyper or {}
    if len(seeds) != 1 and not population:
        raise UsageError(f"{len(seeds)} seeds need population=True")
    for name, values in hyper.items():
        if len(values) != len(seeds):
            raise UsageError(f"hyper-parameter '{name}' has {len(values)} values for {len(seeds)} members")
    check_num_envs(loop, env)
    evaluation.check_evaluation(evaluation_env, episodes, max_steps)
    lift = jax.vmap if population else lambda f, **_: f
    seed_array = np.asarray(seeds, np.uint32)
    leaves = {name: np.asarray(values, np.float32) for name, values in hyper.items()}
    if not population:
        seed_array, leaves = seed_array[0], {name: values[0] for name, values in leaves.items()}

    def init(seed: Array, hyper: dict[str, Array]) -> LoopState:
        return start(loop, env, jax.random.key(seed), hyper)

    def evaluate(agent_state: PyTree, seed: Array, iteration: Array) -> Episodes:
        key = evaluation_key(seed, iteration)
        asked = judge is not None and agent.estimate is not None
        play = partial(evaluation.evaluate, estimates=asked)
        played = play(agent, evaluation_env, agent_state, key, episodes, max_steps)
        if judge is None or played.values is None:
            return played
        return played._replace(values=judge(played.values["estimated"], played.values["collected"]))

    shapes = jax.eval_shape(partial(start, loop, env, hyper={}), jax.random.key(0))
    block = block_of(loop, shapes.observation, env.action_space)
    check_learning(loop, shapes, block)
    step = partial(iterate, loop, env)
    placed, anywhere = None, None
    if mesh is not None:
        placed = state_sharding(mesh, jax.eval_shape(lift(init), seed_array, leaves), loop.num_envs, population)
        anywhere = replicated(mesh)
    compiled_init = jax.jit(lift(init), out_shardings=placed)
    compiled_evaluate = jax.jit(lift(evaluate, in_axes=(0, 0, None)), out_shardings=anywhere)
    compiled_advance = jax.jit(
        partial(advance, lift(step, in_axes=(0, None)), population),
        donate_argnums=0,
        in_shardings=None if mesh is None else (placed, anywhere, anywhere),
        out_shardings=None if mesh is None else (placed, anywhere),
    )
    template = partial(template_of, partial(compiled_init, seed_array, leaves), placed)
    return Program(
        init=lambda: compiled_init(seed_array, leaves),
        advance=lambda state, first, count: compiled_advance(state, np.int32(first), np.int32(count)),
        evaluate=lambda state, iteration: compiled_evaluate(state.agent, seed_array, np.int32(iteration)),
        members=len(seeds) if population else None,
        steps_per_iteration=loop.steps_per_iteration,
        updates_per_iteration=loop.updates_per_iteration,
        warmup_iterations=loop.warmup_iterations,
        block=block,
        template=template,
        working=lambda: peak(compiled_advance.trace(template(), np.int32(0), np.int32(0)).jaxpr.jaxpr),
        devices=1 if mesh is None else mesh.size,
        tasks=tasks_of(evaluation_env),
    )


def template_of(init: Callable[[], PyTree], placed: PyTree | None) -> PyTree:
    """Shapes of what ``init`` makes, with the sharding of each leaf where a mesh says it."""
    shapes = jax.eval_shape(init)
    if placed is None:
        return shapes
    return jax.tree.map(lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), shapes, placed)


def evaluation_key(seed: Array, iteration: Array) -> Key:
    """Evaluation draws from keys of its own, so that evaluating more often does not change the training."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 0x65766131), iteration)


def advance(
    iterate: Callable, population: bool, state: LoopState, first: Array, count: Array
) -> tuple[LoopState, Chunk]:
    """``count`` iterations in one loop; the count is traced, so every chunk of a run is one program."""
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(iterate, state, first)[1])

    def body(iteration: Array, carry: tuple) -> tuple:
        state, sums = carry
        state, new = iterate(state, iteration)
        return state, jax.tree.map(jnp.add, sums, new)

    state, sums = jax.lax.fori_loop(first, first + count, body, (state, zeros))
    guards = {name.removeprefix(GUARD): total == 0 for name, (total, _) in sums.items() if name.startswith(GUARD)}
    measured = {name: pair for name, pair in sums.items() if not name.startswith(GUARD)}
    means = {n: jnp.where(count > 0, total / jnp.maximum(count, 1), jnp.nan) for n, (total, count) in measured.items()}
    counts = {name: count for name, (_, count) in measured.items()}
    return state, Chunk(means, counts, both(guards, finite_leaves(state, population)))


def both(first: dict[str, Array], second: dict[str, Array]) -> dict[str, Array]:
    """Flags of both; where a name is in both, it is true where both are."""
    return first | {name: flag & first.get(name, True) for name, flag in second.items()}


def finite_leaves(state: LoopState, population: bool) -> dict[str, Array]:
    """For every floating leaf of the agent and of the observation, whether all of it is finite; ``[members]`` if any."""
    first = 1 if population else 0
    flags = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path({"agent": state.agent, "observation": state.observation}):
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            flags[name] = jnp.all(jnp.isfinite(leaf), axis=tuple(range(first, leaf.ndim)))
    return flags


def member(state: PyTree, index: int) -> PyTree:
    """One member's state out of a population's, usable wherever a single run's is."""
    return jax.tree.map(lambda x: x[index], state)
