"""The same loops for environments that live on the host, such as Gymnasium's.

The agent acts and learns in compiled functions; between them the host steps its environments. The result is a
:class:`~jaxrl.training.program.Program` like any other, so records, plans and evaluation do not differ. What does differ:
the environments' own state is not part of the run's state, so resuming starts new episodes, and there is no population.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.agents.base import Agent
from jaxrl.errors import UsageError
from jaxrl.training.evaluation import Episodes, check_evaluation
from jaxrl.training.footprint import nbytes, peak
from jaxrl.training.loop import Loop, LoopState, block_of, check_learning, check_num_envs
from jaxrl.training.measuring import GUARD, Sums, measure, tasks_of
from jaxrl.training.program import Chunk, Program, both, evaluation_key, finite_leaves
from jaxrl.types import Experience, Key, PyTree, Step


def host_program(
    loop: Loop,
    agent: Agent,
    env: Any,
    evaluation_env: Any,
    *,
    seed: int,
    hyper: dict[str, float] | None = None,
    episodes: int = 16,
    max_steps: int | None = None,
) -> Program:
    """A program that steps ``env`` on the host.

    Args:
        env: a :class:`environments.HostEnvironment` with ``num_envs`` of the loop.
        evaluation_env: another one, with any number of environments.
    """
    check_num_envs(loop, env)
    limit = check_evaluation(evaluation_env, episodes, max_steps)
    leaves = {name: np.float32(value) for name, value in (hyper or {}).items()}

    @jax.jit
    def start(observation: PyTree) -> LoopState:
        agent_key, loop_key = jax.random.split(jax.random.key(seed))
        agent_state, replay = loop.init(agent_key, leaves, observation)
        return LoopState(agent_state, (), observation, replay, loop_key)

    act = jax.jit(loop.act)
    learn = jax.jit(loop.learn, donate_argnums=0)
    split = jax.jit(lambda key: tuple(jax.random.split(key, 3)))
    fold_in = jax.jit(jax.random.fold_in)
    finite = jax.jit(lambda state: finite_leaves(state, population=False))
    play = jax.jit(lambda agent_state, observation, key: agent.act(agent_state, observation, key, False))

    example = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), env.reset(seed).observation)
    block = block_of(loop, example, env.action_space)
    check_learning(loop, jax.eval_shape(start, example), block)

    def init() -> LoopState:
        return start(env.reset(seed).observation)

    def advance(state: LoopState, first: int, count: int) -> tuple[LoopState, Chunk]:
        totals: dict[str, tuple] = {}
        for iteration in range(first, first + count):
            key, collect_key, learn_key = split(state.key)
            policy = partial(_policy, act, state, np.int32(iteration))
            observation, block, sums = _collect(
                env, policy, state.observation, loop.unroll, partial(fold_in, collect_key)
            )
            state = state._replace(observation=observation, key=key)
            state, learned = learn(state, block, learn_key, np.int32(iteration))
            for name, (total, number) in (sums | learned).items():
                old = totals.get(name, (0.0, 0.0))
                totals[name] = (old[0] + total, old[1] + number)
        met = {name: total == 0 for name, (total, _) in totals.items() if name.startswith(GUARD)}
        guards = {name.removeprefix(GUARD): np.asarray(flag) for name, flag in met.items()}
        measured = {name: pair for name, pair in _host(totals).items() if name not in met}
        counts = {name: number for name, (_, number) in measured.items()}
        means = {n: t / np.maximum(c, 1) if c > 0 else np.float32(np.nan) for n, (t, c) in measured.items()}
        return state, Chunk(means, counts, both(guards, finite(state)))

    def evaluate(state: LoopState, iteration: int) -> Episodes:
        key = evaluation_key(np.uint32(seed), np.int32(iteration))
        return _evaluate(evaluation_env, lambda o, k: play(state.agent, o, k), key, fold_in, episodes, limit)

    counts = loop.steps_per_iteration, loop.updates_per_iteration, loop.warmup_iterations
    template = partial(jax.eval_shape, start, example)
    shapes = (template(), block, template().key, np.int32(0))
    working = lambda: nbytes(block) + peak(learn.trace(*shapes).jaxpr.jaxpr)
    return Program(
        init, advance, evaluate, None, *counts, block, template, working, tasks=tasks_of(evaluation_env),
        close=partial(_close, env, evaluation_env),
    )  # fmt: skip


def _close(*environments: Any) -> None:
    for env in environments:
        env.close()


def _policy(act: Callable, state: LoopState, iteration: np.int32, observation: PyTree, key: Key) -> np.ndarray:
    return np.asarray(act(state, observation, key, iteration))


def _collect(
    env: Any, act: Callable, observation: PyTree, length: int, key_of: Callable[[int], Key]
) -> tuple[PyTree, Experience, dict[str, tuple[np.ndarray, np.ndarray]]]:
    blocks, totals = [], None
    for t in range(length):
        action = act(observation, key_of(t))
        step: Step = env.step(action)
        blocks.append(
            Experience(observation, action, step.reward, step.terminated, step.truncated, step.next_observation)
        )
        observation = step.observation
        sums = _host(jax.tree.map(np.asarray, measure(step, tasks_of(env))))
        totals = sums if totals is None else jax.tree.map(np.add, totals, sums)
    return observation, jax.tree.map(lambda *leaves: np.stack(leaves), *blocks), totals or {}


def _host(sums: Sums) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {name: (np.asarray(total), np.asarray(number)) for name, (total, number) in sums.items()}


def _evaluate(env: Any, act: Callable, key: Key, fold_in: Callable, episodes: int, limit: int) -> Episodes:
    """Rounds of one episode a lane, each to its end, until there are enough: were lanes to play on, short episodes would
    be counted more often than long ones. Tasks have equal shares, in their order."""
    rounds = -(-episodes // env.num_envs)
    played = []
    for r in range(rounds):
        seed = int(jax.random.bits(fold_in(key, r), dtype=jnp.uint32) >> 1)
        played.append(_round(env, seed, act, lambda t, r=r: fold_in(key, rounds + r * limit + t), limit))
    tasks = max(len(tasks_of(env)), 1)

    def arrange(*parts: np.ndarray) -> np.ndarray:
        """From rounds of [num_envs] to [episodes], task by task."""
        of_task = np.stack(parts).reshape(rounds, tasks, -1).swapaxes(0, 1).reshape(tasks, -1)
        return of_task[:, : episodes // tasks].ravel()

    return jax.tree.map(arrange, *played)


def _round(env: Any, seed: int, act: Callable, key_of: Callable[[int], Key], limit: int) -> Episodes:
    """One episode in every lane. What the environment measures is left out, but for the largest ``success``."""
    step = env.reset(seed)
    total, length = np.zeros(env.num_envs), np.zeros(env.num_envs, np.int32)
    alive, died = np.ones(env.num_envs, bool), np.zeros(env.num_envs, bool)
    success = {"success": np.zeros(env.num_envs, np.float32)} if "success" in step.metrics else {}
    for t in range(limit):
        step = env.step(np.asarray(act(step.observation, key_of(t))))
        total += np.where(alive, step.reward, 0.0)
        length += alive
        died |= alive & step.terminated
        for name, value in success.items():
            success[name] = np.maximum(value, np.where(alive, step.metrics[name], np.float32(0)))
        alive &= ~(step.terminated | step.truncated)
        if not alive.any():
            break
    return Episodes(total.astype(np.float32), length, died, ~died, success)


def refuse_population(members: int) -> None:
    """Host environments cannot be vmapped."""
    if members != 1:
        raise UsageError(f"{members} members need an environment that runs on the device; run this one {members} times")
