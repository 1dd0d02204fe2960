"""What a run measures of the environments' steps: sums and counts, whose size does not grow with the steps."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.types import Array, Step, done

# name -> (sum, count): means that are taken only when a row is written, so that nothing grows with the steps.
Sums = dict[str, tuple[Array, Array]]
GUARD = "not_finite/"  # sums with this prefix count NaN and infinities; they stop the run and are no column of a row


def measure(step: Step, tasks: tuple[str, ...] = ()) -> Sums:
    """One step of every environment as sums and counts.

    Args:
        tasks: names of the tasks, each of which has an equal contiguous block of lanes. Then ``episode/return/TASK`` and
            its like are of that task's episodes alone.
    """
    ended = done(step)
    episodes = jnp.sum(ended, dtype=jnp.float32)
    sums: Sums = {"episode/terminated": (jnp.sum(step.terminated, dtype=jnp.float32), episodes)}
    sums |= _not_finite(step)
    for name, value in step.metrics.items():
        if name.startswith("episode/"):
            counted = jnp.where(ended, value, 0.0)
            sums[name] = (jnp.sum(counted), episodes)
            sums |= _by_task(name, counted, ended, tasks)
        else:
            sums[name] = (jnp.sum(value), jnp.float32(ended.size))
    return sums


def tasks_of(env: Any) -> tuple[str, ...]:
    """The names of an environment's tasks, if it has several."""
    return getattr(env, "tasks", ())


def _by_task(name: str, value: Array, ended: Array, tasks: tuple[str, ...]) -> Sums:
    """The value of the lanes whose episode ended, summed over each task's own block of lanes."""
    if not tasks:
        return {}
    sums = jnp.sum(value.reshape(len(tasks), -1), axis=1)
    counts = jnp.sum(ended.reshape(len(tasks), -1), axis=1, dtype=jnp.float32)
    return {f"{name}/{task}": (sums[k], counts[k]) for k, task in enumerate(tasks)}


def _not_finite(step: Step) -> Sums:
    """How many numbers of what was observed are NaN or infinite; a run of many iterations must not lose sight of one."""
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(
        {"observation": step.next_observation, "reward": step.reward}
    ):
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            name = GUARD + jax.tree_util.keystr(path, simple=True, separator="/")
            found[name] = (jnp.sum(~jnp.isfinite(leaf), dtype=jnp.float32), jnp.float32(1))
    return found
