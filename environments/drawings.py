"""Drawings of small environments, a function each: one state on the host -> a frame (:mod:`environments.rendering`).

Give one of your own to ``rendering=drawing(draw, dt)`` of an :class:`environments.Environment`; the page, the GIF and the
MP4 then know how to draw it.
"""

import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from environments.rendering import drawing, gymnax_drawing

TOY_SECONDS = 0.25  # what a step of a toy takes on the screen; it has no time of its own
TICKS = 10  # of the counter's row, which starts over when it is full

Frame = dict[str, Any]


def draw_counter(time: Any) -> Frame:
    """The number of steps taken, as a row of ten ticks and a number."""
    time = int(time)
    ticks = [{"circle": (float(i), 0.0, 0.12), "fill": "muted"} for i in range(TICKS)]
    here = [
        {"circle": (float(time % TICKS), 0.0, 0.32), "fill": "accent"},
        {"text": (float(time % TICKS), 0.6), "label": str(time)},
    ]
    return {"view": (-1.0, TICKS, -1.0, 1.2), "shapes": ticks + here}


def draw_chain(n: int, state: Any) -> Frame:
    """``n`` states in a row, the last one green, and which of them this is."""
    line = [{"line": (0.0, 0.0, n - 1.0, 0.0), "width": 0.05, "stroke": "muted"}]
    states = [{"circle": (float(i), 0.0, 0.3), "fill": "good" if i == n - 1 else "muted"} for i in range(n)]
    names = [{"text": (float(i), -0.6), "label": str(i), "fill": "muted"} for i in range(n)]
    here = [{"circle": (float(int(state)), 0.0, 0.2), "fill": "accent"}]
    return {"view": (-0.7, n - 0.3, -0.9, 0.7), "shapes": line + states + names + here}


def draw_gridworld(layout: tuple[str, ...], cell: Any) -> Frame:
    """The grid with its walls, S and G, and the cell of this state."""
    width, height = len(layout[0]), len(layout)
    shapes: list[dict[str, Any]] = [
        {"rect": (width / 2, height / 2, width + 0.1, height + 0.1), "fill": "ink"},
        {"rect": (width / 2, height / 2, float(width), float(height)), "fill": "page"},
    ]
    for row, line in enumerate(layout):
        for column, what in enumerate(line):
            x, y = column + 0.5, height - row - 0.5
            if what in "#G":
                shapes.append({"rect": (x, y, 1.0, 1.0), "fill": "ink" if what == "#" else "good"})
            if what in "SG":
                shapes.append({"text": (x, y), "label": what, "fill": "page" if what == "G" else "muted"})
    at = int(cell)
    shapes.append({"circle": (at % width + 0.5, height - at // width - 0.5, 0.3), "fill": "accent"})
    return {"view": (-0.1, width + 0.1, -0.1, height + 0.1), "shapes": shapes}


def draw_line(state: Any) -> Frame:
    """A point and its goal on the line from 0 to 1."""
    position, goal = float(np.ravel(state.position)[0]), float(np.ravel(state.goal)[0])
    return {
        "view": (-0.5, 1.5, -0.3, 0.3),
        "shapes": [
            {"line": (0.0, 0.0, 1.0, 0.0), "width": 0.01, "stroke": "muted"},
            {"circle": (goal, 0.0, 0.06), "fill": "good"},
            {"circle": (position, 0.0, 0.04), "fill": "accent"},
        ],
    }


def draw_plane(state: Any) -> Frame:
    """A point and its goal in the plane, and the square that both start in."""
    corners = ((-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0), (-1.0, -1.0))
    edges = [{"line": (*start, *end), "width": 0.01, "stroke": "muted"} for start, end in itertools.pairwise(corners)]
    points = [
        {"circle": (*map(float, state.goal), 0.08), "fill": "good"},
        {"circle": (*map(float, state.position), 0.06), "fill": "accent"},
    ]
    return {"view": (-1.5, 1.5, -1.5, 1.5), "shapes": edges + points}


def draw_target(goal: float, bound: float, state: Any) -> Frame:
    """The range of actions, the best one, and the one that was taken, once there is one."""
    unit = max(bound, 1e-6)
    shapes: list[dict[str, Any]] = [
        {"line": (-bound, 0.0, bound, 0.0), "width": 0.02 * unit, "stroke": "muted"},
        {"circle": (float(goal), 0.0, 0.08 * unit), "fill": "good"},
    ]
    if bool(state.made):
        shapes.append({"circle": (float(np.ravel(state.action)[0]), 0.0, 0.05 * unit), "fill": "accent"})
    reach = 1.1 * max(unit, abs(goal))
    return {"view": (-reach, reach, -0.3 * unit, 0.3 * unit), "shapes": shapes}


def draw_arm(state: Any) -> Frame:
    """The arm of :mod:`environments.arm`: two links, the goal, the puck and the obstacle if there are any."""
    first, second = np.asarray(state.arm.q, float)
    elbow = 0.5 * np.array([np.cos(first), np.sin(first)])
    tip = elbow + 0.5 * np.array([np.cos(first + second), np.sin(first + second)])
    shapes: list[dict[str, Any]] = [{"circle": (*map(float, state.goal), 0.1), "fill": "good"}]
    for place, radius, fill in ((state.obstacle, 0.15, "bad"), (state.puck.position, 0.08, "muted")):
        if abs(float(place[0])) < 2:  # what a task does not have is far away
            shapes.append({"circle": (*map(float, place), radius), "fill": fill})
    shapes += [
        {"line": (0.0, 0.0, *elbow), "width": 0.07, "stroke": "ink"},
        {"line": (*elbow, *tip), "width": 0.05, "stroke": "ink"},
        {"circle": (0.0, 0.0, 0.06), "fill": "muted"},
        {"circle": (*tip, 0.04), "fill": "accent"},
    ]
    return {"view": (-1.5, 1.5, -1.2, 1.2), "shapes": shapes}


def draw_mountain_car(goal: float, state: Any) -> Frame:
    """gymnax's MountainCar, on the hill ``sin(3 x)``, with a flag at its goal."""
    xs = np.linspace(-1.2, 0.6, 37)
    hill = [
        {"line": (xs[i], np.sin(3 * xs[i]), xs[i + 1], np.sin(3 * xs[i + 1])), "width": 0.02, "stroke": "muted"}
        for i in range(len(xs) - 1)
    ]
    x = float(state.position)
    slope = float(np.arctan(3 * np.cos(3 * x)))
    centre = (x - 0.07 * np.sin(slope), np.sin(3 * x) + 0.07 * np.cos(slope))
    flag = [{"line": (goal, np.sin(3 * goal), goal, np.sin(3 * goal) + 0.3), "width": 0.03, "stroke": "good"}]
    car = [{"rect": (*centre, 0.18, 0.1), "angle": slope, "fill": "accent"}]
    return {"view": (-1.3, 0.7, -1.15, 1.4), "shapes": hill + flag + car}


def draw_acrobot(state: Any) -> Frame:
    """gymnax's Acrobot: two links of length 1 from the origin, angles from hanging down, and the height to reach."""
    first, second = float(state.joint_angle1), float(state.joint_angle1) + float(state.joint_angle2)
    elbow = (np.sin(first), -np.cos(first))
    tip = (elbow[0] + np.sin(second), elbow[1] - np.cos(second))
    return {
        "view": (-2.2, 2.2, -2.2, 2.2),
        "shapes": [
            {"line": (-2.2, 1.0, 2.2, 1.0), "width": 0.02, "stroke": "good"},
            {"line": (0.0, 0.0, *elbow), "width": 0.16, "stroke": "ink"},
            {"line": (*elbow, *tip), "width": 0.16, "stroke": "accent"},
            {"circle": (0.0, 0.0, 0.06), "fill": "muted"},
            {"circle": (*elbow, 0.06), "fill": "muted"},
        ],
    }


_GYMNAX = {
    "MountainCar-v0": (partial(draw_mountain_car, 0.5), 0.05),
    "MountainCarContinuous-v0": (partial(draw_mountain_car, 0.45), 0.05),
    "Acrobot-v1": (draw_acrobot, 0.2),
}


def for_gymnax(name: str) -> Mapping[str, Any]:
    """The ``rendering`` of gymnax's classic control; empty for what has no drawing."""
    return drawing(*_GYMNAX[name]) if name in _GYMNAX else gymnax_drawing(name)
