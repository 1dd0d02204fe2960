"""What every agent file needs and none should repeat: checks of what a user gives, counters, normalised observations."""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxrl import normalise
from jaxrl.errors import UsageError
from jaxrl.normalise import RunningStatistics
from jaxrl.spaces import Box, Space
from jaxrl.types import LARGEST_COUNT, Array, Experience, Key, PyTree, Transition

Hyper = TypeVar("Hyper")

# Added to absolute errors when they become priorities, so that no sample is forgotten for good.
PRIORITY_FLOOR = 1e-6


def check_least(agent: str, config: Any, least: float, *fields: str) -> None:
    """Refuse a field (or an entry of a tuple) below ``least``.

    Raises:
        UsageError: names the field, its value and the least that works.
    """
    for field in fields:
        value = getattr(config, field)
        if not all(entry >= least for entry in (value if isinstance(value, tuple) else (value,))):
            raise UsageError(f"{agent}: {field} {value} cannot work; it must be at least {least}")


def check_range(agent: str, config: Any, low: float, high: float, *fields: str) -> None:
    """Refuse a field outside ``[low, high]``, with the nearest value that works."""
    for field in fields:
        value = getattr(config, field)
        if not low <= value <= high:
            nearest = high if value > high else low
            raise UsageError(
                f"{agent}: {field} {value} is not within [{low}, {high}]; the nearest that works is {nearest}"
            )


def check_choice(agent: str, config: Any, field: str, choices: tuple[str, ...]) -> None:
    """Refuse a field that is not one of the choices."""
    value = getattr(config, field)
    if value not in choices:
        raise UsageError(f"{agent}: {field} '{value}' is not known; use {' or '.join(choices)}")


def check_minibatches(agent: str, config: Any, size: int) -> None:
    """Refuse minibatches that do not divide a rollout of ``size`` steps, with the nearest numbers that do."""
    number = config.minibatches
    # Advantages shifted to mean 0 are all 0 in minibatches of one step.
    legal = [n for n in range(1, size + 1) if size % n == 0 and not (config.normalise_advantages and n == size > 1)]
    if number not in legal:
        nearest = [max((n for n in legal if n < number), default=0), min((n for n in legal if n > number), default=0)]
        why = "leave one step in each, whose normalised advantage is 0" if number == size else "do not divide it"
        raise UsageError(
            f"{agent}: {number} minibatches of a rollout of {size} steps {why}; nearest that work: "
            f"{' and '.join(str(n) for n in nearest if n)}"
        )


def require_observation(agent: str, space: Space, normalised: bool) -> Box:
    """The observation space itself if it is one array that the agent can use.

    Raises:
        UsageError: for a discrete space or a dict of spaces, and for images that shall be normalised.
    """
    if not isinstance(space, Box):
        hint = (
            "flatten them with environments.wrappers.flatten_observation"
            if isinstance(space, dict)
            else "use a one-hot"
        )
        raise UsageError(f"{agent} needs observations that are one array, got {space}; {hint}")
    if normalised and jnp.issubdtype(space.dtype, jnp.integer) and len(space.shape) == 3:
        raise UsageError(
            f"{agent}: normalise_observations is not for images, which are divided by 255; set it to false"
        )
    return space


def require_vector_action(agent: str, space: Box) -> Box:
    """The action space itself if its actions are vectors, or a :class:`UsageError` that says so."""
    if len(space.shape) != 1 or space.shape[0] < 1:
        size = int(np.prod(space.shape))
        raise UsageError(f"{agent} needs actions that are vectors, got shape {space.shape}; reshape them to ({size},)")
    return space


def check_one_hot(agent: str, space: Box, num_tasks: int) -> None:
    """Refuse observations that cannot end with a one-hot of the task, where there are several tasks."""
    if num_tasks > 1 and (len(space.shape) != 1 or space.shape[0] <= num_tasks):
        raise UsageError(
            f"{agent}: num_tasks {num_tasks} needs vectors of more than {num_tasks} numbers, the last ones a one-hot of "
            f"the task, got shape {space.shape}; use a set of tasks such as point:MT8"
        )


def hyper_from(hyper: type[Hyper], config: Any) -> Hyper:
    """The sweepable hyper-parameters, as float32 scalars, from the fields of the same names."""
    fields = hyper._fields  # type: ignore[attr-defined]
    return hyper(*(jnp.asarray(getattr(config, field), jnp.float32) for field in fields))


def normalised(stats: RunningStatistics | None, observation: PyTree) -> PyTree:
    """Observations as the networks see them; untouched where there are no statistics."""
    return observation if stats is None else normalise.normalise(stats, observation)


def observed(stats: RunningStatistics | None, experience: Experience) -> RunningStatistics | None:
    """Statistics that have also seen the raw observations acted on."""
    return None if stats is None else normalise.update(stats, experience.observation)


def counted(steps: Array, experience: Experience) -> Array:
    """Environment steps so far, int32; stays at 2^31 - 1 instead of turning negative."""
    new = min(int(np.prod(experience.reward.shape)), LARGEST_COUNT)
    return jnp.minimum(steps, LARGEST_COUNT - new) + new


def descend(
    optimizer: optax.GradientTransformation, gradients: PyTree, optimizer_state: PyTree, params: PyTree
) -> tuple[PyTree, PyTree]:
    """One step of the optimiser: new parameters and new optimiser state."""
    updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
    return optax.apply_updates(params, updates), optimizer_state


def as_networks_see(stats: RunningStatistics | None, batch: Transition) -> Transition:
    """A batch with both observations normalised, by the statistics in force."""
    return batch._replace(
        observation=normalised(stats, batch.observation), next_observation=normalised(stats, batch.next_observation)
    )


def shuffled(key: Key, size: int) -> Array:
    """A fresh order of ``size`` rows, int32 ``[size]``.

    Random bits with the row's number behind them are sorted at once, which on a CPU takes a fraction of what
    ``jax.random.permutation`` does. Rows whose random bits are the same keep their order: a share of at most
    ``size / 2^(32 - b)`` of them with ``b`` bits for the number, so the bits are kept at 18 or more.
    """
    number = max(1, (size - 1).bit_length())
    if number > 14:
        return jax.random.permutation(key, size)
    low = jnp.uint32((1 << number) - 1)
    drawn = jax.random.bits(key, (size,), jnp.uint32)
    return (jnp.sort((drawn & ~low) | jnp.arange(size, dtype=jnp.uint32)) & low).astype(jnp.int32)
