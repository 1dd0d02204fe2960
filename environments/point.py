"""Eight reaching tasks of a point in the plane, the smallest multi-task benchmark: ``point:MT8``, or ``point:reach-3``.

The action, two numbers in [-1, 1], is turned by the task's angle and lags behind by the task's share:
``velocity <- lag velocity + (1 - lag) R(angle) action`` and ``position <- position + 0.2 velocity``, kept in [-1.5, 1.5].
Position and goal start uniformly in [-1, 1]². The eight angles are evenly spaced from -90 to 90 degrees, the eight lags
from 0 to 0.49, in an order of their own.

Observed, float32 [6]: position, velocity, and the goal as seen from the position. The reward is ``scale_k (1[d < 0.12] - d)`` with ``d`` the distance after
the step. An episode has 40 steps. Its success is the share of the last 8 steps that end within 0.12 of the goal, measured
at the last. (Derived here: what a point, its lag and its turn are. The reward, the horizon and the success are those of a
prototype of this experiment.)
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from environments import drawings
from environments.adapters import first_step, single_step
from environments.base import Environment
from environments.families import family
from environments.rendering import drawing
from environments.suites import pick, reward_scales
from jaxrl.checks import positive_int
from jaxrl.spaces import Box
from jaxrl.types import Array, Key, Step, check_key

TASKS = tuple(f"reach-{k}" for k in range(8))
HORIZON = 40
STRIDE = 0.2  # the longest step in each direction
LAGS = (0.21, 0.0, 0.35, 0.42, 0.07, 0.28, 0.14, 0.49)
REACHED = 0.12  # the distance that counts as there
JUDGED = 8  # last steps, over which success is measured
MIXED = (3, 6, 0, 5, 2, 7, 1, 4)  # ranks of the reward scales that go with neither angle nor lag


class Parameters(NamedTuple):
    angle: Array  # [] radians
    lag: Array  # [] in [0, 1)
    scale: Array  # [] of the reward
    horizon: Array  # int32 []


class State(NamedTuple):
    position: Array  # [2]
    velocity: Array  # [2]
    goal: Array  # [2]
    time: Array  # int32 []
    inside: Array  # float32 []: how many of the last steps ended at the goal


def names() -> list[str]:
    """The set and its tasks, without the scheme."""
    return ["MT8", *TASKS]


def make(
    name: str,
    max_steps: int | None = None,
    num_envs: int | None = None,
    spread: float = 1.0,
    order: str | Sequence[int] = "mixed",
) -> Environment:
    """A task, or the set of all.

    Args:
        max_steps: a horizon in place of 40.
        num_envs: lanes; without them it is single.
        spread: the largest reward scale over the smallest.
        order: whose is which, as :func:`environments.suites.reward_scales` has it.

    Raises:
        UsageError: for an unknown name, or a number that cannot work.
    """
    horizon = HORIZON if max_steps is None else positive_int(max_steps, "max_steps")
    parameters = Parameters(
        angle=np.linspace(-np.pi / 2, np.pi / 2, len(TASKS), dtype=np.float32),
        lag=np.asarray(LAGS, np.float32),
        scale=reward_scales(len(TASKS), spread, order, MIXED).astype(np.float32),
        horizon=np.full(len(TASKS), horizon, np.int32),
    )
    envs = family(
        "point",
        TASKS,
        _reset,
        _step,
        parameters,
        observation_space=Box(-np.inf, np.inf, (6,)),
        action_space=Box(-1.0, 1.0, (2,)),
        max_steps=horizon,
        rendering=drawing(drawings.draw_plane, 0.1),
    )
    return pick(name, envs, {"MT8": TASKS}, num_envs)


def _observe(state: State) -> Array:
    return jnp.concatenate([state.position, state.velocity, state.goal - state.position])


def _reset(parameters: Parameters, key: Key) -> tuple[State, Step]:
    check_key(key)
    start, goal = jax.random.uniform(key, (2, 2), minval=-1.0, maxval=1.0)
    state = State(start, jnp.zeros(2), goal, jnp.zeros((), jnp.int32), jnp.zeros(()))
    return state, first_step(_observe(state), {"success": jnp.zeros(())})


def _step(parameters: Parameters, state: State, action: Array, key: Key) -> tuple[State, Step]:
    c, s = jnp.cos(parameters.angle), jnp.sin(parameters.angle)
    x, y = jnp.clip(action, -1.0, 1.0)
    turned = jnp.stack([c * x - s * y, s * x + c * y])
    velocity = parameters.lag * state.velocity + (1 - parameters.lag) * turned
    position = jnp.clip(state.position + STRIDE * velocity, -1.5, 1.5)
    distance = jnp.linalg.norm(position - state.goal)
    reached = (distance < REACHED).astype(jnp.float32)
    time = state.time + 1
    judged = jnp.minimum(parameters.horizon, JUDGED)
    inside = state.inside + jnp.where(time > parameters.horizon - judged, reached, 0.0)
    last = time >= parameters.horizon
    success = jnp.where(last, inside / judged, 0.0)
    state = State(position, velocity, state.goal, time, inside)
    reward = parameters.scale * (reached - distance)
    return state, single_step(_observe(state), reward, False, last, {"success": success})
