"""Running statistics of returns, by which agents divide rewards so that values fit a fixed support.

Both kinds follow the episodes of a number of environments that is fixed when the agent is made, because a state cannot
grow: the first ``followed`` lanes of what is observed. They are fed fresh experience in the order of time, ``[T, lanes]``
(further axes count as lanes; one step ``[]`` and steps ``[T]`` are of one lane), and never replayed experience, which
has no order. A sum of rewards ends at either flag. Until there is a statistic, rewards are divided by 1.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl import normalise, returns
from jaxrl.errors import UsageError
from jaxrl.normalise import RunningStatistics
from jaxrl.types import Array, Experience


class ReturnDeviation(NamedTuple):
    """How far discounted sums of rewards, from the start of each episode to each of its steps, have spread."""

    sums: Array  # float32 [followed]: of the episode under way; 0 where the next step begins one
    statistics: RunningStatistics  # of every sum so far
    largest: Array  # float32 []: the largest magnitude of a sum


class ReturnExtremes(NamedTuple):
    """The largest return of each task, from any step to the end of its episode."""

    rewards: Array  # float32 [length, followed]: of the episode under way, oldest first
    filled: Array  # int32 [followed]: how many of these are set
    largest: Array  # float32 [num_tasks]: the largest magnitude of a return; 0 before the first


def init_deviation(followed: int) -> ReturnDeviation:
    """Statistics of no sums yet."""
    zero = jnp.zeros((), jnp.float32)
    return ReturnDeviation(jnp.zeros((followed,), jnp.float32), normalise.init(zero), jnp.zeros((), jnp.float32))


def observe_deviation(state: ReturnDeviation, experience: Experience, discount: Array) -> ReturnDeviation:
    """Carry on ``G_t = r_t + discount G_{t-1}`` in every followed lane, afresh after either flag, and take in all ``G``.

    More lanes than are followed are allowed: the first ones stand for the rest.
    """
    reward, terminated, truncated = _lanes(experience)
    count = min(reward.shape[1], state.sums.shape[0])

    def step(total: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
        r_t, flagged = inputs
        total = r_t + discount * total
        return jnp.where(flagged, 0.0, total), total

    flagged = jnp.logical_or(terminated, truncated)
    last, sums = jax.lax.scan(step, state.sums[:count], (reward[:, :count], flagged[:, :count]))
    return ReturnDeviation(
        state.sums.at[:count].set(last),
        normalise.update(state.statistics, sums),
        jnp.maximum(state.largest, jnp.max(jnp.abs(sums))),
    )


def deviation_divisor(state: ReturnDeviation, value_max: float) -> Array:
    """``max(std(G), max|G| / value_max)``, float32 [] above 0; 1 at first (SimbaV2, Lee et al. 2025)."""
    return jnp.maximum(normalise.std(state.statistics), state.largest / value_max)


def init_extremes(num_tasks: int, followed: int, length: int) -> ReturnExtremes:
    """No returns yet, and room for ``length`` rewards of an episode in each of ``followed`` environments."""
    return ReturnExtremes(
        jnp.zeros((length, followed), jnp.float32),
        jnp.zeros((followed,), jnp.int32),
        jnp.zeros((num_tasks,), jnp.float32),
    )


def observe_extremes(
    agent: str, state: ReturnExtremes, experience: Experience, task: Array, discount: Array
) -> ReturnExtremes:
    """Record rewards, and when an episode ends (or fills its room) take in the return of each of its steps.

    Args:
        agent: its name, for the error.
        task: int, of the shape of the reward: the task of each step.

    Raises:
        UsageError: for more lanes than are followed; a task could otherwise be left without a statistic.
    """
    reward, terminated, truncated = _lanes(experience)
    lanes, followed = reward.shape[1], state.filled.shape[0]
    if lanes > followed:
        raise UsageError(
            f"{agent}: followed_envs {followed} cannot follow {lanes} environments; the least that works is {lanes}"
        )
    task = task.reshape(reward.shape)
    # Lanes that are never observed look like lanes whose episode has not begun.
    mine = ReturnExtremes(state.rewards[:, :lanes], state.filled[:lanes], state.largest)
    mine, _ = jax.lax.scan(partial(_record, discount), mine, (reward, terminated, truncated, task))
    rewards, filled = state.rewards.at[:, :lanes].set(mine.rewards), state.filled.at[:lanes].set(mine.filled)
    return ReturnExtremes(rewards, filled, mine.largest)


def extremes_divisor(state: ReturnExtremes, discount: Array, entropy: Array, value_max: float) -> Array:
    """``(largest return + horizon entropy / 2) / value_max`` of each task, float32 [num_tasks]; 1 before the first.

    ``entropy`` is what a step's entropy is worth (temperature times target, its magnitude): the soft value that rewards
    are divided for has it on top (the public code of BRC). The horizon is that of :func:`horizon`.
    """
    known = (state.largest + 0.5 * horizon(discount, state.rewards.shape[0]) * entropy) / value_max
    return jnp.where(state.largest > 0.0, known, 1.0)


def horizon(discount: Array, length: int) -> Array:
    """``1 / (1 - discount)`` steps, but not more than ``length``: without discounting it would have no end."""
    return 1.0 / jnp.maximum(1.0 - discount, 1.0 / length)


def _record(discount: Array, state: ReturnExtremes, inputs: tuple) -> tuple[ReturnExtremes, None]:
    """One step of every lane."""
    reward, terminated, truncated, task = inputs
    length = state.rewards.shape[0]
    rewards = jnp.where(jnp.arange(length)[:, None] == state.filled, reward, state.rewards)
    filled = state.filled + 1
    ended = terminated | truncated | (filled == length)
    # Going back over the episode costs its length, so it is done only where one ended.
    largest = jax.lax.cond(
        jnp.any(ended),
        _largest_return,
        lambda rewards, *_: jnp.zeros_like(rewards[0]),
        rewards,
        filled,
        terminated,
        discount,
    )
    largest = jnp.where(ended, largest, 0.0)
    return ReturnExtremes(rewards, jnp.where(ended, 0, filled), state.largest.at[task].max(largest)), None


def _largest_return(rewards: Array, filled: Array, terminated: Array, discount: Array) -> Array:
    """The largest magnitude of a return within each lane's episode, [lanes].

    An episode that was cut short is completed with its own mean reward for ever: ``horizon`` times that.
    """
    position = jnp.arange(rewards.shape[0])[:, None]
    inside, last = position < filled, position == filled - 1
    average = jnp.sum(jnp.where(inside, rewards, 0.0), axis=0) / filled
    beyond = jnp.broadcast_to(average * horizon(discount, rewards.shape[0]), rewards.shape)
    values = returns.discounted_returns(rewards, beyond, last & terminated, last & ~terminated, discount)
    return jnp.max(jnp.where(inside, jnp.abs(values), 0.0), axis=0)


def _lanes(experience: Experience) -> tuple[Array, Array, Array]:
    """Reward and flags as [T, lanes]."""
    reward = jnp.asarray(experience.reward, jnp.float32)
    time = reward.shape[0] if reward.ndim else 1
    terminated, truncated = (jnp.reshape(x, (time, -1)) for x in (experience.terminated, experience.truncated))
    return reward.reshape(time, -1), terminated, truncated
