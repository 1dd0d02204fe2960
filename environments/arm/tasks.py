"""The ten tasks of the arm as numbers: one table, a row a task. ``docs/arm_suite.md`` has it in words."""

from typing import NamedTuple

import numpy as np

from jaxrl.types import Array


class Parameters(NamedTuple):
    """Of one task; everything in metres, radians and seconds unless it says otherwise."""

    # Start: angles ``start ± start_width``, uniformly.
    start: Array  # [2]
    start_width: Array  # [2]
    # Goal: polar, uniformly in these intervals; or where the tip starts.
    goal_radius: Array  # [2]
    goal_angle: Array  # [2]
    goal_at_tip: Array  # [] 1 or 0
    goal_orbit: Array  # [] radius of the circle that the goal runs on
    # What is to be at the goal: the tip, or (object = 1) the puck.
    object: Array  # [] 1 or 0
    puck_radius: Array  # [2] polar, uniformly
    puck_angle: Array  # [2]
    friction: Array  # [] 1/s
    bounce: Array  # [] in [0, 1], of the puck off the tip
    grip: Array  # [] in [0, 1], of the tip on the puck sideways
    rail: Array  # [] 1: the puck is the knob of a dial, and the goal a turn of ``goal_angle`` either way
    obstacle: Array  # [] 1: a disk half-way between start and goal
    gravity: Array  # [] m/s²
    gust: Array  # [] rad/s, standard deviation of a kick
    # Reward: scale * (inside * [at the goal] - far * distance to it - near * tip to puck - hit * [in the obstacle]).
    inside: Array  # []
    far: Array  # []
    near: Array  # []
    hit: Array  # []
    scale: Array  # []
    # Success: ``hold`` steps in a row within ``tolerance`` of the goal, joints slower than ``calm``, obstacle untouched.
    tolerance: Array  # []
    calm: Array  # [] rad/s
    hold: Array  # [] steps
    horizon: Array  # int32 [] steps


_PI = np.pi
_USUAL = Parameters(
    start=(-0.8, 1.6),
    start_width=(1.0, 0.5),
    goal_radius=(0.4, 0.8),
    goal_angle=(-1.2, 1.2),
    goal_at_tip=0.0,
    goal_orbit=0.0,
    object=0.0,
    puck_radius=(0.5, 0.65),
    puck_angle=(-0.5, 0.5),
    friction=4.0,
    bounce=0.0,
    grip=0.8,
    rail=0.0,
    obstacle=0.0,
    gravity=0.0,
    gust=0.0,
    inside=1.0,
    far=1.0,
    near=0.0,
    hit=0.0,
    scale=1.0,
    tolerance=0.1,
    calm=100.0,
    hold=5.0,
    horizon=60,
)
_BEHIND = {"start": (-1.2, 2.4), "start_width": (0.3, 0.1)}  # the tip between the shoulder and the puck

TABLE = {
    "reach": _USUAL,
    "reach-far": _USUAL._replace(goal_radius=(0.8, 0.95), tolerance=0.05, hold=10.0),
    "track": _USUAL._replace(goal_radius=(0.45, 0.6), goal_orbit=0.2, hold=20.0, horizon=80),
    "hold": _USUAL._replace(goal_at_tip=1.0, gust=0.5, tolerance=0.1, hold=30.0),
    "button": _USUAL._replace(far=0.0, hold=5.0, horizon=80),
    "avoid": _USUAL._replace(
        start=(-1.6, 1.5),
        start_width=(0.2, 0.2),
        goal_radius=(0.55, 0.8),
        goal_angle=(0.6, 1.1),
        obstacle=1.0,
        hit=2.0,
        horizon=80,
    ),
    "push": _USUAL._replace(
        **_BEHIND,
        object=1.0,
        puck_radius=(0.45, 0.5),
        puck_angle=(-0.1, 0.1),
        goal_radius=(0.7, 0.8),
        goal_angle=(-0.2, 0.2),
        friction=12.0,
        far=2.0,
        near=0.5,
        inside=3.0,
        tolerance=0.12,
        hold=3.0,
        horizon=80,
    ),
    "strike": _USUAL._replace(
        **_BEHIND,
        object=1.0,
        puck_angle=(-0.15, 0.15),
        goal_radius=(1.1, 1.4),
        goal_angle=(-0.3, 0.3),
        friction=2.0,
        bounce=0.5,
        inside=5.0,
        far=2.0,
        near=0.5,
        tolerance=0.2,
        hold=1.0,
    ),
    "dial": _USUAL._replace(
        **_BEHIND, object=1.0, rail=1.0, goal_angle=(0.8, 2.0), far=2.0, near=0.5, tolerance=0.06, hold=5.0, horizon=80
    ),
    "swing-up": _USUAL._replace(
        start=(-_PI / 2, 0.0),
        start_width=(0.2, 0.2),
        goal_radius=(1.0, 1.0),
        goal_angle=(_PI / 2, _PI / 2),
        gravity=4.0,
        tolerance=0.3,
        calm=3.0,
        hold=10.0,
        horizon=100,
    ),
}
TASKS = tuple(TABLE)


def parameters(names: tuple[str, ...]) -> Parameters:
    """The rows of these tasks, ``[tasks, …]``."""
    rows = [TABLE[name] for name in names]
    return Parameters(
        *(
            np.asarray([getattr(row, field) for row in rows], np.int32 if field == "horizon" else np.float32)
            for field in Parameters._fields
        )
    )
