"""Functions from an :class:`environments.Environment` to another.

Usual order: a single environment with its own time limit, then ``scale_action``, ``flatten_observation`` or
``stack_observations``, then ``vectorise``, then ``normalise_observation`` and ``normalise_reward``.

=====================  ==============  ==========================================================
wrapper                wraps           gives
=====================  ==============  ==========================================================
time_limit             single          ``truncated`` at the limit
stack_observations     single          the last k observations
scale_action           either          actions in [-1, 1]
clip_action            either          actions outside the bounds put back on them
flatten_observation    either          one flat float32 vector
vectorise              single          ``num_envs`` lanes that reset by themselves, and episode metrics
normalise_observation  vectorised      observations of mean 0 and variance 1
normalise_reward       vectorised      rewards in units of the return's standard deviation
=====================  ==============  ==========================================================
"""

from environments.wrappers.actions import clip_action, scale, scale_action, unscale
from environments.wrappers.limits import time_limit
from environments.wrappers.normalising import normalise_observation, normalise_reward
from environments.wrappers.observations import flatten_observation, stack_observations
from environments.wrappers.vector import vectorise

__all__ = [
    "clip_action",
    "flatten_observation",
    "normalise_observation",
    "normalise_reward",
    "scale",
    "scale_action",
    "stack_observations",
    "time_limit",
    "unscale",
    "vectorise",
]
