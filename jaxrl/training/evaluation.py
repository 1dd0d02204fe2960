"""Evaluation: whole episodes of the deterministic policy, in environments of its own, as one compiled loop."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.agents.base import Agent
from jaxrl.errors import UsageError
from jaxrl.training.measuring import tasks_of
from jaxrl.types import Array, Key, Metrics, PyTree, done, where_done

NEVER_ENDING = 1000  # steps after which an episode is cut where neither the environment nor the user sets a limit


class Episodes(NamedTuple):
    """One entry an episode, ``[episodes]``."""

    returns: Array  # float32, undiscounted
    lengths: Array  # int32
    terminated: Array  # bool
    truncated: Array  # bool; also true where ``max_steps`` cut the episode
    metrics: Metrics  # the environment's own, summed over the episode; of ``success`` the largest value in it
    values: Metrics | None = None  # what was asked for of the critics' estimates


class _Tally(NamedTuple):
    """What the critics said on the way and what came of it, summed over the states of each episode, ``[episodes]``."""

    estimated: Array
    collected: Array  # discounted returns from each state on
    reach: Array  # the sum of the discounts with which the reward of the next step counts in them


class _Progress(NamedTuple):
    env: PyTree
    observation: PyTree
    key: Key
    time: Array
    episodes: Episodes
    tally: _Tally | None


def evaluate(
    agent: Agent,
    env: Any,
    agent_state: PyTree,
    key: Key,
    episodes: int,
    max_steps: int | None = None,
    explore: bool = False,
    estimates: bool = False,
) -> Episodes:
    """Play ``episodes`` episodes, side by side, each from its own start. Tasks have equal shares, in the order of
    ``env.tasks``: episode ``i`` is of task ``i // (episodes // K)``.

    The policy is deterministic unless ``explore``. The loop stops when the last episode has ended, or at ``max_steps``
    (the environment's own limit, else 1,000), where what still runs is flagged truncated: it always ends.

    Args:
        env: a single environment, or a set of tasks that has no lanes yet.
        estimates: whether to ask the critics, of an agent that has an ``estimate``. ``values`` then holds, as means over
            the states of each episode, ``estimated`` and the discounted return ``collected`` from there on; where an
            episode was cut off, the critics' estimate of its last state stands for the rest.
    """
    limit = check_evaluation(env, episodes, max_steps)
    if estimates and agent.estimate is None:
        raise UsageError(f"{agent.name} has no critics to ask; leave out estimates")
    tasks = tasks_of(env)
    if not tasks:
        return _play(agent, agent_state, limit, explore, estimates, episodes, env, key)
    play = partial(_play, agent, agent_state, limit, explore, estimates, episodes // len(tasks))
    keys = jax.random.split(key, len(tasks))
    parts, first = [], 0
    for group in env.groups:
        parts.append(group.map(play, keys[first : first + group.count]))
        first += group.count
    return jax.tree.map(lambda *leaves: jnp.concatenate([leaf.reshape(-1) for leaf in leaves]), *parts)


def _play(
    agent: Agent, agent_state: PyTree, limit: int, explore: bool, estimates: bool, episodes: int, env: Any, key: Key
) -> Episodes:
    """``episodes`` episodes of one single environment."""
    reset_key, key = jax.random.split(key)
    env_state, step = jax.vmap(env.reset)(jax.random.split(reset_key, episodes))
    flags = jnp.zeros(episodes, bool)
    none = Episodes(
        jnp.zeros(episodes, jnp.float32),
        jnp.zeros(episodes, jnp.int32),
        flags,
        flags,
        jax.tree.map(jnp.zeros_like, step.metrics),
    )
    zeros = jnp.zeros(episodes, jnp.float32)

    def running(progress: _Progress) -> Array:
        return (progress.time < limit) & ~jnp.all(progress.episodes.terminated | progress.episodes.truncated)

    def advance(progress: _Progress) -> _Progress:
        key, act_key, step_key = jax.random.split(progress.key, 3)
        action = agent.act(agent_state, progress.observation, act_key, explore)
        env_state, step = jax.vmap(env.step)(progress.env, action, jax.random.split(step_key, episodes))
        old = progress.episodes
        alive = ~(old.terminated | old.truncated)
        cut = ~done(step) & (progress.time + 1 >= limit)
        new = Episodes(
            returns=old.returns + jnp.where(alive, step.reward, 0.0),
            lengths=old.lengths + alive,
            terminated=old.terminated | (alive & step.terminated),
            truncated=old.truncated | (alive & (step.truncated | cut)),
            metrics={name: _count(name, old.metrics[name], alive, x) for name, x in step.metrics.items()},
        )
        # An ended episode stands still: stepping past a flag is undefined, and must not produce NaN where others still run.
        env_state, observation = where_done(
            alive, (env_state, step.next_observation), (progress.env, progress.observation)
        )
        tally = progress.tally
        if tally is not None:
            tally = _counted(tally, agent, agent_state, progress.observation, action, step.reward, alive)
        return _Progress(env_state, observation, key, progress.time + 1, new, tally)

    start = _Progress(env_state, step.observation, key, jnp.int32(0), none, _Tally(*[zeros] * 3) if estimates else None)
    end = jax.lax.while_loop(running, advance, start)
    return end.episodes if end.tally is None else end.episodes._replace(values=_values(end, agent, agent_state))


def _counted(
    tally: _Tally, agent: Agent, agent_state: PyTree, observation: PyTree, action: Array, reward: Array, alive: Array
) -> _Tally:
    """One step more. Reward t is in the return of every state k up to t, discounted t - k times."""
    reach = 1.0 + agent_state.hyper.discount * tally.reach
    said = agent.estimate(agent_state, observation, action)  # type: ignore[misc]
    new = _Tally(tally.estimated + said, tally.collected + reach * reward, reach)
    return jax.tree.map(partial(jnp.where, alive), new, tally)


def _values(end: _Progress, agent: Agent, agent_state: PyTree) -> Metrics:
    """Means over the states of each episode; ``end`` holds the last observation of every episode."""
    assert end.tally is not None
    action = agent.act(agent_state, end.observation, end.key, False)
    rest = agent.estimate(agent_state, end.observation, action)  # type: ignore[misc]
    rest = agent_state.hyper.discount * end.tally.reach * rest
    cut = end.episodes.truncated & ~end.episodes.terminated
    collected = end.tally.collected + jnp.where(cut, rest, 0.0)
    return {"estimated": end.tally.estimated / end.episodes.lengths, "collected": collected / end.episodes.lengths}


def _count(name: str, so_far: Array, alive: Array, value: Array) -> Array:
    value = jnp.where(alive, value, 0.0)
    return jnp.maximum(so_far, value) if name == "success" else so_far + value


def task_columns(episodes: Episodes, tasks: tuple[str, ...]) -> dict[str, np.ndarray]:
    """``eval/success`` where the environment measures it; for a set of tasks also each task's mean return and success.

    Args:
        episodes: ``[..., episodes]``, on the host.

    Returns:
        Means ``[...]`` by name: ``eval/return/TASK``, ``eval/success/TASK``.
    """
    measured = {"eval/return": np.asarray(episodes.returns)} if tasks else {}
    columns = {}
    if "success" in episodes.metrics:
        measured["eval/success"] = np.asarray(episodes.metrics["success"])
        columns["eval/success"] = measured["eval/success"].mean(-1)
    for name, value in measured.items():
        shares = value.reshape(*value.shape[:-1], len(tasks), -1).mean(-1) if tasks else value
        columns |= {f"{name}/{task}": shares[..., k] for k, task in enumerate(tasks)}
    return columns


def check_evaluation(env: Any, episodes: int, max_steps: int | None) -> int:
    """The number of steps after which evaluation stops, or a :class:`UsageError`."""
    if episodes < 1:
        raise UsageError(f"evaluation needs at least 1 episode, got {episodes}")
    if max_steps is not None and max_steps < 1:
        raise UsageError(f"evaluation needs at least 1 step, got max_steps {max_steps}")
    count = len(tasks_of(env))
    if count and episodes % count:
        below = episodes // count
        near = " and ".join(str(each * count) for each in (below, below + 1) if each)
        raise UsageError(f"{episodes} episodes cannot be shared equally by {count} tasks; nearest: {near}")
    limits = [limit for limit in (max_steps, env.max_steps) if limit is not None]
    return min(limits, default=NEVER_ENDING)


def record(agent: Agent, env: Any, agent_state: PyTree, key: Key, max_steps: int) -> tuple[PyTree, Array, Array]:
    """One deterministic episode, kept whole, to be looked at.

    Returns:
        Environment states ``[max_steps + 1, ...]``, rewards ``[max_steps]``, and the episode's length (int32 []); what
        lies past the length repeats the last state.
    """
    reset_key, key = jax.random.split(key)
    env_state, step = env.reset(reset_key)

    def advance(carry: tuple, key: Key) -> tuple[tuple, tuple]:
        env_state, observation, alive = carry
        act_key, step_key = jax.random.split(key)
        batched = jax.tree.map(lambda x: x[None], observation)
        action = agent.act(agent_state, batched, act_key, False)[0]
        next_state, step = env.step(env_state, action, step_key)
        env_state, observation = where_done(alive, (next_state, step.next_observation), (env_state, observation))
        return (env_state, observation, alive & ~done(step)), (env_state, jnp.where(alive, step.reward, 0.0), alive)

    start = (env_state, step.observation, jnp.bool_(True))
    _, (states, rewards, alive) = jax.lax.scan(advance, start, jax.random.split(key, max_steps))
    states = jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), env_state, states)
    return states, rewards, jnp.sum(alive, dtype=jnp.int32)
