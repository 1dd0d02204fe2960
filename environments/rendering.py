"""A rollout as one HTML file that plays in any browser, without a network.

Two kinds of environments can be drawn, by what their ``rendering`` says:

* ``kind`` "brax" or "mujoco": the geoms of the MuJoCo model, moved by the poses of the bodies;
* ``kind`` "frames": ``frame(state) -> dict``, a function of one state (as ``state_of`` gives it, if there is one) on the
  host, that returns plain 2-D shapes in its own units, y upwards::

      {"view": (x_min, x_max, y_min, y_max),
       "shapes": [{"circle": (x, y, radius), "fill": "accent"},
                  {"line": (x0, y0, x1, y1), "width": 0.1, "stroke": "ink"},
                  {"rect": (x, y, width, height), "angle": 0.2, "fill": "muted"},
                  {"text": (x, y), "label": "goal", "fill": "ink"}]}

  A rectangle is given by its centre and turned about it, in radians. Colours are "ink", "muted", "accent", "good" and
  "bad", which follow the reader's light or dark theme, or any CSS colour. Later shapes are drawn over earlier ones.
"""

import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from environments.base import Environment
from jaxrl.errors import UsageError
from jaxrl.types import PyTree

# More frames than these are thinned out; a thousand steps and the start fit.
MOST_FRAMES = 1001

VIEWERS = ("plain", "brax")

# mjtGeom, for what is drawn; height fields and the rest are not.
_SHAPES = {0: "plane", 2: "sphere", 3: "capsule", 4: "ellipsoid", 5: "cylinder", 6: "box", 7: "mesh"}

# MuJoCo's grey and the brown of Brax's own models say nothing; such geoms take a colour of their body instead.
_DEFAULT_COLOURS = ((0.5, 0.5, 0.5, 1.0), (0.4, 0.33, 0.26, 1.0))


def render_html(
    env: Environment,
    states: PyTree,
    path: str | Path,
    rewards: Any = None,
    *,
    viewer: str = "plain",
    lane: int = 0,
    title: str | None = None,
) -> Path:
    """Write a page that plays an episode.

    Args:
        env: the environment that the states come from; wrapped as it was when they were made.
        states: its states, a list of them or one pytree with a leading axis of frames (then of lanes, if vectorised).
        path: where to write; its folder is made.
        rewards: [frames - 1], of the steps between the states, or [frames], of the step that led to each. Taken from the
            states where they hold them.
        viewer: "plain", a page of about 100 kB to 1 MB that needs nothing else; or "brax", Brax's own, whose scripts come
            from the network when it is opened.
        lane: which lane of a vectorised environment.
        title: the page's heading; the environment's name unless given.

    Returns:
        The path.

    Raises:
        UsageError: for an environment that cannot be drawn, no states, or rewards of another length.
    """
    if viewer not in VIEWERS:
        raise UsageError(f"unknown viewer '{viewer}'; use {' or '.join(VIEWERS)}")
    kind = env.rendering.get("kind")
    if kind not in ("brax", "mujoco", "frames"):
        raise UsageError(f"'{env.name}' cannot be drawn: its rendering has no kind; 'brax:ant' has one")
    path = Path(path)
    if viewer == "brax":
        page = _brax_page(env, states, lane)
    else:
        scene = flat_scene(env, states, lane) if kind == "frames" else _solid_scene(env, states, lane)
        running = running_reward(env, states, rewards, lane, scene.pop("count"))
        page = _plain_page(env, scene, running, title or env.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


def draw_cartpole(state: Any) -> dict[str, Any]:
    """A frame of gymnax's CartPole: ``x`` [m] and ``theta`` [rad from upright], drawn with the pole at its length of 1."""
    x, theta = float(state.x), float(state.theta)
    tip = (x + np.sin(theta), np.cos(theta))
    return {
        "view": (-2.6, 2.6, -0.6, 1.4),
        "shapes": [
            {"line": (-2.4, -0.15, 2.4, -0.15), "width": 0.02, "stroke": "muted"},
            {"rect": (x, 0.0, 0.5, 0.3), "fill": "ink"},
            {"line": (x, 0.0, *tip), "width": 0.1, "stroke": "accent"},
            {"circle": (x, 0.0, 0.05), "fill": "muted"},
        ],
    }


def draw_pendulum(state: Any) -> dict[str, Any]:
    """A frame of gymnax's Pendulum: ``theta`` [rad from upright], counter-clockwise."""
    theta = float(state.theta)
    return {
        "view": (-1.3, 1.3, -1.3, 1.3),
        "shapes": [
            {"line": (0.0, 0.0, -np.sin(theta), np.cos(theta)), "width": 0.18, "stroke": "accent"},
            {"circle": (0.0, 0.0, 0.06), "fill": "ink"},
        ],
    }


def drawing(draw: Callable[[Any], dict[str, Any]], dt: float = 0.02) -> dict[str, Any]:
    """The ``rendering`` of a single environment whose state ``draw`` takes; wrappers keep it right. ``dt`` in seconds."""
    return {"kind": "frames", "frame": draw, "state_of": _itself, "dt": dt}


def gymnax_drawing(name: str) -> dict[str, Any]:
    """The ``rendering`` of the gymnax environment of that name; empty for those without a drawing."""
    known = {"CartPole-v1": (draw_cartpole, 0.02), "Pendulum-v1": (draw_pendulum, 0.05)}
    return drawing(*known[name]) if name in known else {}


def _itself(state: Any) -> Any:
    return state


# --- what is drawn ----------------------------------------------------------------------------------------------------


def _lane_of(array: Any, lane: int, env: Environment) -> np.ndarray:
    """From [frames, …] or [frames, lanes, …] to [frames, …]."""
    array = np.asarray(array)
    return array if env.num_envs is None else array[:, lane]


def _frame_list(states: PyTree) -> list[Any] | None:
    """The states as a list if they are one, None where they are stacked. A NamedTuple is a state, not a list of them."""
    if type(states) not in (list, tuple):
        return None
    if not states:
        raise UsageError("there is nothing to draw: no states; record at least the one after reset")
    return list(states)


def _poses(env: Environment, states: PyTree, lane: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions [frames, bodies, 3] in metres and quaternions [frames, bodies, 4] (w first), without the world."""
    state_of = env.rendering["state_of"]
    frames = _frame_list(states)
    inner = [state_of(state) for state in frames] if frames is not None else [state_of(states)]
    names = ("x.pos", "x.rot") if env.rendering["kind"] == "brax" else ("xpos", "xquat")
    arrays = []
    for name in names:
        parts = [np.asarray(_attribute(state, name)) for state in inner]
        array = _lane_of(parts[0] if frames is None else np.stack(parts), lane, env)
        if array.ndim != 3 or len(array) == 0:
            raise UsageError(f"states need one leading axis of frames, got bodies of shape {array.shape}; pass a list")
        arrays.append(array if env.rendering["kind"] == "brax" else array[:, 1:])
    return arrays[0], arrays[1]


def _attribute(state: Any, dotted: str) -> Any:
    for name in dotted.split("."):
        state = getattr(state, name)
    return state


def _solid_scene(env: Environment, states: PyTree, lane: int) -> dict[str, Any]:
    system = env.rendering["system"]
    model = getattr(system, "mj_model", system)
    if model is None:
        raise UsageError(f"'{env.name}' cannot be drawn: its system was built without a MuJoCo model")
    position, rotation = _poses(env, states, lane)
    every = _stride(len(position))
    poses = _held_where_broken(np.concatenate([position, rotation], axis=-1)[::every])
    return {
        "kind": "solid",
        "count": len(position),
        "every": every,
        "geoms": [geom for i in range(model.ngeom) if (geom := _geom(model, i)) is not None],
        "poses": [_short(frame.ravel()) for frame in poses],
    }


def _held_where_broken(poses: np.ndarray) -> np.ndarray:
    """A frame with a number that is not finite repeats the frame before it."""
    poses = poses.copy()
    for i in np.flatnonzero(~np.isfinite(poses).all(axis=(1, 2))):
        poses[i] = poses[i - 1] if i else np.array([0, 0, 0, 1, 0, 0, 0])
    return poses


def _geom(model: Any, i: int) -> dict[str, Any] | None:
    """One geom in the frame of its body (-1 is the world); None where it is not visible."""
    shape = _SHAPES.get(int(model.geom_type[i]))
    rgba = np.asarray(model.geom_rgba[i])
    material = int(model.geom_matid[i])
    plain = any(np.allclose(rgba, default) for default in _DEFAULT_COLOURS)
    if plain and material >= 0:
        rgba, plain = np.asarray(model.mat_rgba[material]), False
    if shape is None or rgba[3] <= 0 or model.geom_group[i] > 2:
        return None
    size, position = np.asarray(model.geom_size[i]), np.asarray(model.geom_pos[i], float)
    if shape == "mesh":  # drawn as its bounding box
        centre, size = model.geom_aabb[i, :3], np.asarray(model.geom_aabb[i, 3:])
        position, shape = position + _rotate(model.geom_quat[i], centre), "box"
    return {
        "shape": shape,
        "body": int(model.geom_bodyid[i]) - 1,
        "size": _short(size),
        "at": _short([*position, *model.geom_quat[i]]),
        "colour": None if plain else [round(255 * float(np.clip(c, 0, 1))) for c in rgba[:3]],
    }


def _rotate(quaternion: Any, vector: Any) -> np.ndarray:
    w, xyz = float(quaternion[0]), np.asarray(quaternion[1:], float)
    turned = 2 * np.cross(xyz, vector)
    return np.asarray(vector) + w * turned + np.cross(xyz, turned)


def flat_scene(env: Environment, states: PyTree, lane: int) -> dict[str, Any]:
    """The shapes of every drawn state: ``frames``, each a list of shapes, every ``every``-th of ``count`` states."""
    state_of, frame = env.rendering.get("state_of", _itself), env.rendering["frame"]
    frames = _frame_list(states)
    if frames is None:
        stacked = jax.tree.map(lambda leaf: _lane_of(leaf, lane, env), jax.device_get(state_of(states)))
        count = len(jax.tree.leaves(stacked)[0])
        states_at = [jax.tree.map(lambda leaf, i=i: leaf[i], stacked) for i in range(count)]
    else:
        states_at = [state_of(state) for state in frames]
        if env.num_envs is not None:
            states_at = [jax.tree.map(lambda leaf: np.asarray(leaf)[lane], state) for state in states_at]
    every = _stride(len(states_at))
    drawn = [frame(state) for state in states_at[::every]]
    return {
        "kind": "flat",
        "count": len(states_at),
        "every": every,
        "view": _short(drawn[0]["view"]),
        "frames": [[_flat_shape(shape) for shape in frame["shapes"]] for frame in drawn],
    }


def _flat_shape(shape: dict[str, Any]) -> dict[str, Any]:
    what = next((name for name in ("circle", "line", "rect", "text") if name in shape), None)
    if what is None:
        raise UsageError(f"a shape is a circle, line, rect or text, got {sorted(shape)}")
    numbers: dict[str, Any] = {name: _short([shape[name]])[0] for name in ("width", "angle") if name in shape}
    return {**shape, **numbers, what: _short(shape[what])}


def _stride(frames: int) -> int:
    return -(-frames // MOST_FRAMES)


def _short(numbers: Any) -> list[float | None]:
    """Rounded to a tenth of a millimetre; null where not finite, which JSON cannot say."""
    return [round(float(x), 4) if np.isfinite(x) else None for x in numbers]


def running_reward(env: Environment, states: PyTree, rewards: Any, lane: int, count: int) -> np.ndarray | None:
    """The reward so far, float64 [frames]; None where nobody knows it."""
    frames = _frame_list(states)
    if rewards is None:
        held = [_held_reward(state) for state in (frames if frames is not None else [states])]
        if held[0] is None:
            return None
        rewards = _lane_of(held[0] if frames is None else np.stack(held), lane, env)
    rewards = np.asarray(rewards, np.float64)
    if rewards.shape == (count - 1,):
        rewards = np.concatenate([[0.0], rewards])
    if rewards.shape != (count,):
        raise UsageError(
            f"{count} states go with {count - 1} or {count} rewards, got an array of shape {rewards.shape}"
        )
    return np.cumsum(rewards)


def _held_reward(state: Any) -> np.ndarray | None:
    """The reward that a state remembers, looked for through the states of wrappers around it."""
    while state is not None:
        if hasattr(state, "reward"):
            return np.asarray(state.reward)
        state = getattr(state, "inner", getattr(state, "brax", None))
    return None


# --- the page ---------------------------------------------------------------------------------------------------------


def _plain_page(env: Environment, scene: dict[str, Any], running: np.ndarray | None, title: str) -> str:
    every = scene["every"]
    data = {
        **scene,
        "title": title,
        "dt": float(env.rendering.get("dt", 0.02)),
        "reward": None if running is None else _short(running[::every]),
    }
    template = Path(__file__).with_name("viewer.html").read_text(encoding="utf-8")
    # "</" inside a script would end it; in JSON the slash may be escaped.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("</", "<\\/")
    parts = {"{{title}}": html.escape(title), "{{data}}": text}
    # In one pass, so that a title that looks like a placeholder stays as it is.
    return re.sub(r"\{\{\w+\}\}", lambda match: parts[match.group()], template)


def _brax_page(env: Environment, states: PyTree, lane: int) -> str:
    if env.rendering["kind"] != "brax":
        raise UsageError(f"viewer='brax' draws Brax environments, '{env.name}' is not one; use viewer='plain'")
    from brax.base import Transform
    from brax.io import html as brax_html

    position, rotation = _poses(env, states, lane)
    every = _stride(len(position))
    trajectory = [
        SimpleNamespace(x=Transform(pos=pos, rot=rot))
        for pos, rot in zip(position[::every], rotation[::every], strict=True)
    ]
    return brax_html.render(env.rendering["system"], trajectory, colab=False)
