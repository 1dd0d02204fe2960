"""Adapters to other people's environments, one module a family, imported when asked for.

Each has ``names() -> list[str]`` and ``make(name, max_steps=None, **kwargs)``. What they all need is here.
"""

import jax.numpy as jnp

from jaxrl.types import Array, Metrics, PyTree, Step


def first_step(observation: PyTree, metrics: Metrics | None = None) -> Step:
    """The step of a reset of a single environment: reward 0, both flags false."""
    return single_step(observation, 0.0, False, metrics=metrics)


def single_step(
    observation: PyTree,
    reward: Array | float,
    terminated: Array | bool,
    truncated: Array | bool = False,
    metrics: Metrics | None = None,
) -> Step:
    """A step of a single environment, which never resets by itself: both observations are the same.

    Reward and flags are cast to float32 [] and bool [], so that a reset and a step have one structure.
    """
    return Step(
        observation=observation,
        reward=jnp.asarray(reward, jnp.float32).reshape(()),
        terminated=jnp.asarray(terminated, bool).reshape(()),
        truncated=jnp.asarray(truncated, bool).reshape(()),
        next_observation=observation,
        metrics={} if metrics is None else metrics,
    )
