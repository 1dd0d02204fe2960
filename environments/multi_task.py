"""Many tasks as one environment: any list of environments, or one family whose tasks differ in parameters.

A :class:`TaskSet`, what a name such as ``arm:MT10`` stands for, is a single environment whose every episode is of a task
drawn at random. Vectorised it is an ordinary environment in which each of the ``K`` tasks has an equal contiguous block
of lanes: lane ``i`` of ``N`` runs task ``i // (N // K)``.

* Observations are padded with zeros to the widest, and the one-hot identity of the task follows: ``[widest + K]``.
* Continuous actions are in [-1, 1] and as wide as the widest task's; a task scales its first entries to its own bounds.
  Discrete actions are as many as the largest task's; a task takes its own last action for what lies beyond.
* Metrics are those that all tasks have.

Tasks of a family are stepped by one vmapped step. Others have a step each, on their own lanes, in the same program.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from environments.base import Environment
from environments.families import Group, firsts, group_of, make_groups
from environments.padding import make_layout
from environments.wrappers.checks import require_single
from environments.wrappers.vector import VectorState, vectorise
from jaxrl.checks import positive_int
from jaxrl.errors import UsageError, unknown
from jaxrl.types import Array, Key, PyTree, Step, check_key


@dataclass(frozen=True)
class TaskSet(Environment):
    """Several tasks as one single environment; see the module. Its groups hold the tasks in the order of ``tasks``."""

    groups: tuple[Group, ...] = ()

    def __post_init__(self) -> None:
        for function in (self.reset, self.step):
            if getattr(function, "func", None) not in (_drawn_reset, _drawn_step):
                raise UsageError(
                    f"'{self.name}' is a set of tasks, and of all wrappers only vectorise takes one; wrap its tasks one by "
                    f"one and put them together with environments.task_set"
                )


class TaskState(NamedTuple):
    """Of a single environment: which task the episode is of, and a state for each group."""

    task: Array  # int32 []
    inner: tuple[PyTree, ...]


class LanesState(NamedTuple):
    """Of a vectorised one: the state of each group's lanes, ``[count * lanes, …]``."""

    inner: tuple[VectorState, ...]


def multi_task(envs: Sequence[Environment], num_envs: int, name: str | None = None) -> Environment:
    """One vectorised environment in which ``num_envs / K`` lanes run each of the ``K`` environments, in their order.

    It is :func:`environments.vectorise` of :func:`task_set`.

    Raises:
        UsageError: as those two; also where ``num_envs`` is not divisible by the number of tasks.
    """
    return vectorise(task_set(envs, name), num_envs)


def task_set(envs: Sequence[Environment], name: str | None = None) -> TaskSet:
    """Put single environments together, without lanes yet.

    Tasks take the names of their environments, without a scheme where that leaves them different. Neighbours in the list
    that are of one family (:func:`environments.family`) are stepped together.

    Args:
        envs: single environments, each with its own time limit. Observations are vectors of floats; actions are all
            discrete, or all vectors of floats with finite bounds.
        name: of the set; ``multi:`` and the tasks' names unless given.

    Raises:
        UsageError: for no or vectorised environments, two of one name, or spaces that cannot be padded.
    """
    if isinstance(envs, Environment):
        raise UsageError(f"a set of tasks is made of a list of environments, got '{envs.name}' alone; put it in a list")
    envs = tuple(envs)
    if not envs:
        raise UsageError("a set of tasks needs at least one, got an empty list")
    for env in envs:
        require_single(env, "multi_task")
        if env.tasks:
            raise UsageError(f"'{env.name}' is a set of tasks itself; list its tasks instead: {', '.join(env.tasks)}")
    tasks = _task_names(envs)
    groups = make_groups(envs, layout := make_layout(envs))
    limits = [env.max_steps for env in envs if env.max_steps is not None]
    return TaskSet(
        name=name or f"multi:{'+'.join(tasks)}",
        reset=partial(_drawn_reset, groups),
        step=partial(_drawn_step, groups),
        observation_space=layout.observation_space,
        action_space=layout.action_space,
        max_steps=max(limits) if len(limits) == len(envs) else None,
        tasks=tasks,
        rendering=_through(envs[0].rendering, _state_of_drawn) if len(groups) == 1 else {},
        groups=groups,
    )


def only(env: Environment, task: str) -> Environment:
    """One task of a set as a single environment with the set's spaces, so that a policy of the set acts in it.

    Its ``max_steps`` is the set's; the task's own limit, if shorter, holds all the same.

    Raises:
        UsageError: for a task that the set does not have, with the nearest, or an environment that is no set.
    """
    if not isinstance(env, TaskSet):
        raise UsageError(f"'{env.name}' is not a set of tasks; environments.make('arm:MT10') is one")
    if task not in env.tasks:
        raise unknown("task", task, env.tasks)
    index = env.tasks.index(task)
    which = group_of(env.groups)[index]
    single = env.groups[which].task(index - firsts(env.groups)[which])
    return replace(single, name=f"{env.name}/{task}", max_steps=env.max_steps)


def share(count: int, what: str, tasks: Sequence[str]) -> int:
    """How many of ``count`` each task has, or a refusal with the nearest that can be shared equally."""
    each, rest = divmod(positive_int(count, what), len(tasks))
    if rest:
        near = " and ".join(str(k * len(tasks)) for k in (each, each + 1) if k)
        raise UsageError(f"{what}={count} is not divisible by the {len(tasks)} tasks; nearest: {near}")
    return each


# --- which tasks go together ------------------------------------------------------------------------------------------


def _task_names(envs: tuple[Environment, ...]) -> tuple[str, ...]:
    full = tuple(env.name for env in envs)
    for i, name in enumerate(full):
        if name in full[:i]:
            raise UsageError(f"two tasks are named '{name}'; rename one with dataclasses.replace(env, name='{name}-2')")
    short = tuple(name.partition(":")[2] or name for name in full)
    return short if len(set(short)) == len(short) else full


# --- one episode at a time --------------------------------------------------------------------------------------------


def _drawn_reset(groups: tuple[Group, ...], key: Key) -> tuple[TaskState, Step]:
    check_key(key)
    which = group_of(groups)
    task_key, *keys = jax.random.split(key, 1 + len(groups))
    task = jax.random.randint(task_key, (), 0, len(which), dtype=jnp.int32)
    drawn = [g.task(task - first).reset(k) for g, first, k in zip(groups, firsts(groups), keys, strict=True)]
    states, steps = zip(*drawn, strict=True)
    chosen = jnp.asarray(which)[task]
    return TaskState(task, states), jax.tree.map(lambda *leaves: jnp.stack(leaves)[chosen], *steps)


def _drawn_step(groups: tuple[Group, ...], state: TaskState, action: Array, key: Key) -> tuple[TaskState, Step]:
    branches = [partial(_step_one, groups, i) for i in range(len(groups))]
    inner, step = jax.lax.switch(jnp.asarray(group_of(groups))[state.task], branches, state, action, key)
    return TaskState(state.task, inner), step


def _step_one(
    groups: tuple[Group, ...], which: int, state: TaskState, action: Array, key: Key
) -> tuple[tuple[PyTree, ...], Step]:
    env = groups[which].task(state.task - firsts(groups)[which])
    new, step = env.step(state.inner[which], action, key)
    return (*state.inner[:which], new, *state.inner[which + 1 :]), step


# --- many lanes -------------------------------------------------------------------------------------------------------


def vectorise_tasks(env: TaskSet, num_envs: int) -> Environment:
    """What :func:`environments.vectorise` makes of a set."""
    lanes = share(num_envs, "num_envs", env.tasks)
    return Environment(
        name=env.name,
        reset=partial(_lanes_reset, env.groups, lanes),
        step=partial(_lanes_step, env.groups, lanes),
        observation_space=env.observation_space,
        action_space=env.action_space,
        max_steps=env.max_steps,
        num_envs=num_envs,
        tasks=env.tasks,
        rendering=_through(env.rendering, _state_of_lanes),
    )


def _lanes_reset(groups: tuple[Group, ...], lanes: int, key: Key) -> tuple[LanesState, Step]:
    check_key(key)
    parts = [
        _fold(group, lanes, group.map(partial(_vector_reset, lanes), keys))
        for group, keys in zip(groups, _split(groups, key), strict=True)
    ]
    return _joined(parts)


def _lanes_step(
    groups: tuple[Group, ...], lanes: int, state: LanesState, action: Array, key: Key
) -> tuple[LanesState, Step]:
    check_key(key)
    parts = []
    for group, first, inner, keys in zip(groups, firsts(groups), state.inner, _split(groups, key), strict=True):
        own = action[first * lanes : (first + group.count) * lanes]
        inner, own = _unfold(group, lanes, (inner, own))
        parts.append(_fold(group, lanes, group.map(partial(_vector_step, lanes), inner, own, keys)))
    return _joined(parts)


def _vector_reset(lanes: int, env: Environment, key: Key) -> tuple[PyTree, Step]:
    return vectorise(env, lanes).reset(key)


def _vector_step(lanes: int, env: Environment, state: PyTree, action: Array, key: Key) -> tuple[PyTree, Step]:
    return vectorise(env, lanes).step(state, action, key)


def _split(groups: tuple[Group, ...], key: Key) -> list[Key]:
    """A key for each task, ``[count]`` for each group."""
    keys = jax.random.split(key, sum(group.count for group in groups))
    return [keys[first : first + group.count] for group, first in zip(groups, firsts(groups), strict=True)]


def _fold(group: Group, lanes: int, tree: PyTree) -> PyTree:
    """From [count, lanes, …] to [count * lanes, …]; a single task's leaves lose their axis, whatever they are."""
    if group.count == 1:
        return jax.tree.map(lambda leaf: leaf[0], tree)
    return jax.tree.map(lambda leaf: leaf.reshape((group.count * lanes, *leaf.shape[2:])), tree)


def _unfold(group: Group, lanes: int, tree: PyTree) -> PyTree:
    if group.count == 1:
        return jax.tree.map(lambda leaf: leaf[None], tree)
    return jax.tree.map(lambda leaf: leaf.reshape((group.count, lanes, *leaf.shape[1:])), tree)


def _joined(parts: list[tuple[PyTree, Step]]) -> tuple[LanesState, Step]:
    states, steps = zip(*parts, strict=True)
    return LanesState(states), jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *steps)


def _through(rendering: Mapping[str, Any], reach: Callable) -> Mapping[str, Any]:
    if "state_of" not in rendering:
        return rendering
    return {**rendering, "state_of": partial(reach, rendering["state_of"])}


def _state_of_drawn(state_of: Callable[[PyTree], Any], state: TaskState) -> Any:
    return state_of(state.inner[0])


def _state_of_lanes(state_of: Callable[[PyTree], Any], state: LanesState) -> Any:
    """``state_of`` is that of the set without lanes, which wants a state of one episode."""
    return state_of(TaskState(None, (state.inner[0].inner,)))  # type: ignore[arg-type]
