"""Ten tasks of a two-link arm in pure JAX: ``arm:MT10``, or one of them such as ``arm:reach``; see ``docs/arm_suite.md``.

All are one family: the same physics and one formula each for the start, the reward and the success, which the numbers of a
task (:mod:`environments.arm.tasks`) make that task. A step is one vmapped step, whatever the tasks of its lanes.

The action, two numbers in [-1, 1], commands the speeds of shoulder and elbow as a share of the largest. Observed, float32 [17]:
cosine and sine of the direction of each link, both joints' speeds / 5, and in metres, as seen from the tip where it is a
place, the goal and its velocity, the puck and its velocity, the obstacle; and whether it has been touched. Places of what a
task does not have are 0. No task terminates.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from environments import drawings
from environments.adapters import first_step, single_step
from environments.arm.physics import (
    CONTROL,
    SUBSTEPS,
    Arm,
    Puck,
    move,
    on_rail,
    slide,
    tip,
)
from environments.arm.tasks import TASKS, Parameters, parameters
from environments.base import Environment
from environments.families import family
from environments.rendering import drawing
from environments.suites import pick, reward_scales
from jaxrl.checks import positive_int
from jaxrl.spaces import Box
from jaxrl.types import Array, Key, Step, check_key

SETS = {
    "MT3": ("reach", "button", "push"),
    "MT5": ("reach", "hold", "button", "push", "swing-up"),
    "MT10": TASKS,
}
MIXED = (6, 1, 8, 3, 0, 5, 9, 2, 7, 4)  # ranks of the reward scales, apart from how hard a task is
ORBIT_SPEED = 1.5  # rad/s of the goal that runs on a circle
GUST_CHANCE = 0.15  # of a kick at a step
DIAL, DIAL_RADIUS = (0.6, 0.0), 0.15
OBSTACLE_RADIUS = 0.15
NOWHERE = 9.0  # coordinates of a puck or an obstacle that a task does not have


class State(NamedTuple):
    arm: Arm
    puck: Puck
    centre: Array  # [2] of the goal's circle; the goal itself where it stands still
    phase: Array  # [] of the goal on its circle
    obstacle: Array  # [2]
    touched: Array  # float32 []
    streak: Array  # float32 []: steps in a row in which the task was done
    goal: Array  # [2]
    time: Array  # int32 []


def names() -> list[str]:
    """The sets and their tasks, without the scheme."""
    return [*SETS, *TASKS]


def make(
    name: str,
    max_steps: int | None = None,
    num_envs: int | None = None,
    spread: float = 1.0,
    order: str | Sequence[int] = "mixed",
) -> Environment:
    """A task, or a set of them.

    Args:
        max_steps: a horizon in place of every task's own.
        num_envs: lanes; without them it is single.
        spread: the largest reward scale over the smallest, among all ten; 1, 1e3 and 1e4 are studied.
        order: whose is which, as :func:`environments.suites.reward_scales` has it.

    Raises:
        UsageError: for an unknown name, or a number that cannot work.
    """
    table = parameters(TASKS)
    table = table._replace(scale=reward_scales(len(TASKS), spread, order, MIXED).astype(np.float32))
    if max_steps is not None:
        table = table._replace(horizon=np.full(len(TASKS), positive_int(max_steps, "max_steps"), np.int32))
    envs = family(
        "arm",
        TASKS,
        _reset,
        _step,
        table,
        observation_space=Box(-np.inf, np.inf, (17,)),
        action_space=Box(-1.0, 1.0, (2,)),
        rendering=drawing(drawings.draw_arm, CONTROL),
    )
    limited = [replace(env, max_steps=int(limit)) for env, limit in zip(envs, table.horizon, strict=True)]
    return pick(name, limited, SETS, num_envs)


def _polar(radius: Array, angle: Array) -> Array:
    return radius * jnp.stack([jnp.cos(angle), jnp.sin(angle)])


def _goal(task: Parameters, state: State) -> tuple[Array, Array]:
    """Where the goal is and its velocity, [2] each."""
    offset = _polar(task.goal_orbit, state.phase)
    velocity = ORBIT_SPEED * jnp.sign(state.phase) * jnp.stack([-offset[1], offset[0]])
    return state.centre + offset, velocity


def _reset(task: Parameters, key: Key) -> tuple[State, Step]:
    check_key(key)
    u = jax.random.uniform(key, (8,))

    def between(ends: Array, share: Array) -> Array:
        return ends[0] + (ends[1] - ends[0]) * share

    q = task.start + task.start_width * (2 * u[:2] - 1)
    here, side = tip(q), jnp.where(u[7] < 0.5, -1.0, 1.0)
    turn = between(task.goal_angle, u[3])
    centre = _polar(between(task.goal_radius, u[2]), turn)
    puck = _polar(between(task.puck_radius, u[4]), between(task.puck_angle, u[5]))
    knob = jnp.pi + 0.6 * (u[5] - 0.5)
    dial = jnp.asarray(DIAL)
    puck = jnp.where(task.rail > 0, dial + _polar(DIAL_RADIUS, knob), puck)
    centre = jnp.where(task.rail > 0, dial + _polar(DIAL_RADIUS, knob + side * turn), centre)
    centre = jnp.where(task.goal_at_tip > 0, here, centre)
    state = State(
        arm=Arm(q, jnp.zeros(2)),
        puck=Puck(jnp.where(task.object > 0, puck, NOWHERE), jnp.zeros(2)),
        centre=centre,
        phase=side * (0.1 + 2 * jnp.pi * u[6]),
        obstacle=jnp.where(task.obstacle > 0, (here + centre) / 2, NOWHERE),
        touched=jnp.zeros(()),
        streak=jnp.zeros(()),
        goal=centre,
        time=jnp.zeros((), jnp.int32),
    )
    return state, first_step(_observe(task, state), {"success": jnp.zeros(())})


def _step(task: Parameters, state: State, action: Array, key: Key) -> tuple[State, Step]:
    kick_key, when_key = jax.random.split(key)
    kicked = jax.random.uniform(when_key) < GUST_CHANCE
    kick = task.gust * jnp.where(kicked, jax.random.normal(kick_key, (2,)), 0.0)
    action = jnp.clip(action, -1.0, 1.0)
    arm, puck = state.arm._replace(speed=state.arm.speed + kick), state.puck
    for _ in range(SUBSTEPS):
        arm = move(arm, action, task.gravity)
        puck = slide(puck, arm, task.friction, task.bounce, task.grip)
        railed = on_rail(puck, jnp.asarray(DIAL), DIAL_RADIUS)
        puck = jax.tree.map(lambda rail, free: jnp.where(task.rail > 0, rail, free), railed, puck)
    state = state._replace(
        arm=arm,
        puck=puck,
        phase=state.phase + jnp.sign(state.phase) * ORBIT_SPEED * CONTROL,
        time=state.time + 1,
    )
    state = state._replace(goal=_goal(task, state)[0])
    reward, state = _judge(task, state)
    success = (state.streak >= task.hold).astype(jnp.float32)
    last = state.time >= task.horizon
    return state, single_step(_observe(task, state), reward, False, last, {"success": success})


def _judge(task: Parameters, state: State) -> tuple[Array, State]:
    """The reward of the step that led here, and the state with what success needs to remember."""
    here = tip(state.arm.q)
    mover = jnp.where(task.object > 0, state.puck.position, here)
    distance = _length(mover - state.goal)
    hit = (_length(here - state.obstacle) < OBSTACLE_RADIUS).astype(jnp.float32)
    touched = jnp.maximum(state.touched, hit)
    there = (distance < task.tolerance) & (jnp.max(jnp.abs(state.arm.speed)) < task.calm)
    inside = there * (1.0 - touched)
    near = task.object * _length(state.puck.position - here)
    reward = task.scale * (task.inside * inside - task.far * distance - task.near * near - task.hit * hit)
    return reward, state._replace(touched=touched, streak=(state.streak + 1) * inside)


def _length(vector: Array) -> Array:
    return jnp.sqrt(jnp.sum(vector**2) + 1e-12)


def _observe(task: Parameters, state: State) -> Array:
    q, here = state.arm.q, tip(state.arm.q)
    along = q[0] + q[1]
    goal, goal_velocity = _goal(task, state)
    return jnp.concatenate(
        [
            jnp.stack([jnp.cos(q[0]), jnp.sin(q[0]), jnp.cos(along), jnp.sin(along)]),
            state.arm.speed / 5,
            goal - here,
            goal_velocity,
            task.object * (state.puck.position - here),
            task.object * state.puck.velocity,
            task.obstacle * (state.obstacle - here),
            state.touched[None],
        ]
    )
