"""Environments: one contract, wrappers, adapters to other people's environments, and toys with known answers.

env = environments.vectorise(environments.make("brax:ant"), num_envs=1024)
state, step = env.reset(jax.random.key(0))
state, step = env.step(state, action, jax.random.key(1))
"""

from environments.adapters.gymnasium import HostEnvironment
from environments.base import Environment
from environments.families import family
from environments.multi_task import TaskSet, multi_task, only, task_set
from environments.registry import list_environments, make, register
from environments.wrappers import (
    clip_action,
    flatten_observation,
    normalise_observation,
    normalise_reward,
    scale_action,
    stack_observations,
    time_limit,
    vectorise,
)

__all__ = [
    "Environment",
    "HostEnvironment",
    "TaskSet",
    "clip_action",
    "family",
    "flatten_observation",
    "list_environments",
    "make",
    "multi_task",
    "normalise_observation",
    "normalise_reward",
    "only",
    "register",
    "scale_action",
    "stack_observations",
    "task_set",
    "time_limit",
    "vectorise",
]
