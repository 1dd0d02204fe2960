"""Families: environments that differ in parameters alone, and so are stepped by one vmapped step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from environments.base import Environment
from environments.padding import Layout, padded
from jaxrl.types import Array, Key, PyTree, Step


class _OfFamily(partial):
    """``reset`` or ``step`` of a family with the parameters of one task, a pytree of arrays, as its only bound argument."""


def family(
    scheme: str,
    tasks: Sequence[str],
    reset: Callable[[PyTree, Key], tuple[PyTree, Step]],
    step: Callable[[PyTree, PyTree, PyTree, Key], tuple[PyTree, Step]],
    parameters: PyTree,
    **fields: Any,
) -> tuple[Environment, ...]:
    """The single environments of a parameterised family, which a set steps with one vmapped step.

    Args:
        scheme: they are named ``scheme:task``.
        tasks: a name each.
        reset: ``(parameters, key) -> (state, step)`` of a single environment.
        step: ``(parameters, state, action, key) -> (state, step)``.
        parameters: arrays ``[tasks, …]``.
        **fields: the other fields of :class:`environments.Environment`, shared by all.
    """
    parts = [jax.tree.map(lambda leaf, k=k: np.asarray(leaf)[k], parameters) for k in range(len(tasks))]
    return tuple(
        Environment(f"{scheme}:{task}", _OfFamily(reset, part), _OfFamily(step, part), **fields)
        for task, part in zip(tasks, parts, strict=True)
    )


@dataclass(frozen=True, eq=False)
class Group:
    """Tasks that are stepped together: a single environment as a function of parameters, and these for each task."""

    build: Callable[[PyTree], Environment]
    parameters: PyTree  # [count, …]
    count: int

    def task(self, index: Array | int) -> Environment:
        """One of the tasks; an index that is out of range gives the nearest."""
        index = jnp.clip(index, 0, self.count - 1) if isinstance(index, jax.Array) else index
        return self.build(jax.tree.map(lambda leaf: jnp.asarray(leaf)[index], self.parameters))

    def map(self, function: Callable, *arguments: PyTree) -> PyTree:
        """``function(environment, *arguments)`` for each task; arguments and results have a leading axis of ``count``."""
        if self.count == 1:  # without vmap, which would turn a branch that is seldom taken into one that always is
            alone = jax.tree.map(lambda leaf: leaf[0], arguments)
            return jax.tree.map(lambda leaf: leaf[None], function(self.task(0), *alone))
        return jax.vmap(partial(_with_parameters, self.build, function))(self.parameters, *arguments)


def _with_parameters(build: Callable, function: Callable, parameters: PyTree, *arguments: PyTree) -> PyTree:
    return function(build(parameters), *arguments)


def make_groups(envs: tuple[Environment, ...], layout: Layout) -> tuple[Group, ...]:
    """The padded tasks in their order, neighbours of one family together."""
    return tuple(_group(envs, members, layout) for members in _neighbours(envs))


def _neighbours(envs: tuple[Environment, ...]) -> list[list[int]]:
    """Indices of the tasks, neighbours of one family together."""
    groups: list[list[int]] = []
    for i, env in enumerate(envs):
        family = _family_of(env)
        if groups and family is not None and _family_of(envs[groups[-1][0]]) == family:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def _family_of(env: Environment) -> tuple | None:
    """What environments of one family have in common; None for one of no family."""
    if env.reset_is_dear or not (isinstance(env.reset, _OfFamily) and isinstance(env.step, _OfFamily)):
        return None
    leaves, structure = jax.tree.flatten(env.step.args)
    shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
    return env.reset.func, env.step.func, structure, shapes, env.observation_space, env.action_space


def _group(envs: tuple[Environment, ...], members: list[int], layout: Layout) -> Group:
    identity = np.eye(len(envs), dtype=np.float32)[members]
    template, bound = envs[members[0]], None
    if len(members) > 1:
        bound = jax.tree.map(lambda *leaves: np.stack(leaves), *(envs[i].step.args[0] for i in members))  # type: ignore
    return Group(partial(_build, template, layout), (bound, identity), len(members))


def _build(template: Environment, layout: Layout, parameters: tuple[PyTree, Array]) -> Environment:
    """The padded task of these parameters and this one-hot; None for the parameters gives the template itself."""
    bound, identity = parameters
    if bound is not None:
        reset, step = (_OfFamily(function.func, bound) for function in (template.reset, template.step))  # type: ignore
        template = replace(template, reset=reset, step=step)
    return padded(template, layout, identity)


def firsts(groups: tuple[Group, ...]) -> list[int]:
    """The first task of each group."""
    return [int(first) for first in np.cumsum([0, *(group.count for group in groups)])[:-1]]


def group_of(groups: tuple[Group, ...]) -> np.ndarray:
    """The group of each task."""
    return np.repeat(np.arange(len(groups)), [group.count for group in groups])
