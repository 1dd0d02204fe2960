"""Observations and rewards in units of their own running statistics, over all lanes of a vectorised environment."""

import dataclasses
import math
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp

from environments.base import Environment
from environments.wrappers.checks import require_vectorised
from environments.wrappers.limits import through_state
from jaxrl import normalise
from jaxrl.errors import UsageError
from jaxrl.normalise import RunningStatistics
from jaxrl.spaces import Box, Space, zeros
from jaxrl.types import Array, Key, PyTree, Step, done


class NormaliseObservationState(NamedTuple):
    inner: PyTree
    statistics: RunningStatistics  # of one lane's observation


class NormaliseRewardState(NamedTuple):
    inner: PyTree
    statistics: RunningStatistics  # of the discounted return, [] or [tasks]
    discounted_return: Array  # float32 [num_envs]: of the episode so far


def normalise_observation(env: Environment, clip: float = 10.0) -> Environment:
    """Observations minus their running mean, over their running standard deviation, within ``± clip``.

    Every ``observation`` of every lane is counted once, when it is first shown. ``next_observation`` is normalised by
    the same statistics and not counted. The statistics are part of the state and begin anew at ``reset``. A stored
    observation keeps the statistics of its time: for replay, normalise in the agent instead.

    Raises:
        UsageError: for a single environment, or a clip that is not above 0.
    """
    require_vectorised(env, "normalise_observation")
    _require_clip(clip)
    return dataclasses.replace(
        env,
        reset=partial(_observation_reset, env, clip),
        step=partial(_observation_step, env, clip),
        observation_space=_clipped_space(env.observation_space, clip),
        rendering=through_state(env.rendering),
    )


def normalise_reward(env: Environment, discount: float, clip: float = 10.0) -> Environment:
    """Rewards over the running standard deviation of the discounted return, within ``± clip``.

    ``R <- discount R + r`` in every lane, back to 0 after either flag; the reward is not centred, so its sign stays. Of
    an environment with tasks, each task has a deviation of its own.
    The clip holds the first rewards, whose deviation is of few samples, and a constant return, which has none.
    ``episode/return`` stays in the units of the environment.

    Raises:
        UsageError: for a single environment, a discount outside [0, 1], or a clip that is not above 0.
    """
    require_vectorised(env, "normalise_reward")
    _require_clip(clip)
    if not 0.0 <= discount <= 1.0:
        nearest = 1.0 if discount > 1.0 else 0.0
        raise UsageError(f"discount must be in [0, 1], got {discount}; the nearest that works is {nearest}")
    return dataclasses.replace(
        env,
        reset=partial(_reward_reset, env),
        step=partial(_reward_step, env, discount, clip),
        rendering=through_state(env.rendering),
    )


def _require_clip(clip: float) -> None:
    if not clip > 0 or math.isnan(clip):
        raise UsageError(f"clip must be above 0, got {clip}; 10.0 is usual, math.inf is none")


def _clipped_space(space: Space, clip: float) -> Space:
    if isinstance(space, dict):
        return {name: _clipped_space(part, clip) for name, part in space.items()}
    return Box(-clip, clip, space.shape)


def _shown(statistics: RunningStatistics, step: Step, clip: float) -> Step:
    return step._replace(
        observation=normalise.normalise(statistics, step.observation, clip),
        next_observation=normalise.normalise(statistics, step.next_observation, clip),
    )


def _observation_reset(env: Environment, clip: float, key: Key) -> tuple[NormaliseObservationState, Step]:
    inner, step = env.reset(key)
    statistics = normalise.update(normalise.init(zeros(env.observation_space)), step.observation)
    return NormaliseObservationState(inner, statistics), _shown(statistics, step, clip)


def _observation_step(
    env: Environment, clip: float, state: NormaliseObservationState, action: PyTree, key: Key
) -> tuple[NormaliseObservationState, Step]:
    inner, step = env.step(state.inner, action, key)
    statistics = normalise.update(state.statistics, step.observation)
    return NormaliseObservationState(inner, statistics), _shown(statistics, step, clip)


def _reward_reset(env: Environment, key: Key) -> tuple[NormaliseRewardState, Step]:
    inner, step = env.reset(key)
    kinds = (len(env.tasks),) if env.tasks else ()
    return NormaliseRewardState(inner, normalise.init(jnp.zeros(kinds)), jnp.zeros_like(step.reward)), step


def _reward_step(
    env: Environment, discount: float, clip: float, state: NormaliseRewardState, action: PyTree, key: Key
) -> tuple[NormaliseRewardState, Step]:
    inner, step = env.step(state.inner, action, key)
    discounted_return = discount * state.discounted_return + step.reward
    # Lanes of a task lie side by side; without tasks all are one kind.
    of_kind = discounted_return.reshape(*state.statistics.mean.shape, -1)
    statistics = normalise.update(state.statistics, jnp.moveaxis(of_kind, -1, 0))
    deviation = jnp.broadcast_to(normalise.std(statistics)[..., None], of_kind.shape).reshape(step.reward.shape)
    reward = jnp.clip(step.reward / deviation, -clip, clip)
    new_state = NormaliseRewardState(inner, statistics, jnp.where(done(step), 0.0, discounted_return))
    return new_state, step._replace(reward=reward)
