"""A rollout as an animated GIF or an MP4, for environments whose ``rendering`` says "frames".

Pillow draws the shapes that :mod:`environments.rendering` describes; an MP4 also needs the program ``ffmpeg``.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageColor, ImageDraw, ImageFont

from environments.base import Environment
from environments.rendering import flat_scene, running_reward
from jaxrl.errors import UsageError
from jaxrl.types import PyTree

COLOURS = {
    "page": "#f4f2ee",
    "ink": "#23272e",
    "muted": "#7d786e",
    "accent": "#b4532a",
    "good": "#3f7d4e",
    "bad": "#a8323e",
}
WIDTH = 480  # pixels
LEAST_HEIGHT, MOST_HEIGHT = 120, 480
FOOTER = 32
SMOOTH = 2  # drawn so many times as large and shrunk, because Pillow draws hard edges
SHORTEST = 0.04  # seconds; viewers slow down frames of a GIF that are shorter than about half of this
MOST_FRAMES = 300
LAST = 1.0  # seconds that the last frame is held
PALETTE = 64


class Film(NamedTuple):
    """Pictures of one size, each shown for so long."""

    pictures: list[Image.Image]
    seconds: float


def render_gif(
    env: Environment, states: PyTree, path: str | Path, rewards: Any = None, *, lane: int = 0, title: str | None = None
) -> Path:
    """Write an animated GIF of an episode, in real time where a step is at least 40 ms; it repeats.

    Long episodes are thinned to at most 300 frames. The last state is always there, and held for a second.

    Args:
        env: the environment that the states come from; wrapped as it was when they were made.
        states: its states, a list of them or one pytree with a leading axis of frames (then of lanes, if vectorised).
        path: where to write; its folder is made.
        rewards: [frames - 1], of the steps between the states, or [frames], of the step that led to each.
        lane: which lane of a vectorised environment.
        title: written below the drawing; the environment's name unless given.

    Returns:
        The path.

    Raises:
        UsageError: for an environment that has no flat drawing, no states, or rewards of another length.
    """
    film = make_film(env, states, rewards, lane, title)
    path = _folder_made(path)
    sample = film.pictures[:: max(len(film.pictures) // 8, 1)]
    palette = _stacked(sample).quantize(PALETTE, dither=Image.Dither.NONE)
    pictures = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in film.pictures]
    hundredths = max(round(100 * film.seconds), 2)
    durations = [10 * hundredths] * (len(pictures) - 1) + [round(1000 * max(LAST, film.seconds))]
    pictures[0].save(path, "GIF", save_all=True, append_images=pictures[1:], duration=durations, loop=0, disposal=1)
    return path


def render_mp4(
    env: Environment, states: PyTree, path: str | Path, rewards: Any = None, *, lane: int = 0, title: str | None = None
) -> Path:
    """Write an MP4 of an episode with ``ffmpeg``; otherwise as :func:`render_gif`.

    Raises:
        UsageError: also where ffmpeg is not installed, or fails.
    """
    ffmpeg = shutil.which("ffmpeg")
    if ffmpeg is None:
        raise UsageError("an MP4 needs the program ffmpeg, which is not installed; use a GIF")
    film = make_film(env, states, rewards, lane, title)
    path = _folder_made(path)
    width, height = film.pictures[0].size
    still = [film.pictures[-1]] * max(round(LAST / film.seconds) - 1, 0)
    size, rate = f"{width}x{height}", f"{1 / film.seconds:.6f}"
    # fmt: off
    command = [
        ffmpeg, "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", size, "-r", rate, "-i", "-",
        "-an", "-pix_fmt", "yuv420p", "-f", "mp4", str(path),
    ]
    # fmt: on
    content = b"".join(picture.tobytes() for picture in film.pictures + still)
    done = subprocess.run(command, input=content, capture_output=True)
    if done.returncode:
        why = (done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"])[-1]
        raise UsageError(f"ffmpeg could not write {path}: {why}; use a GIF")
    return path


def make_film(env: Environment, states: PyTree, rewards: Any, lane: int, title: str | None) -> Film:
    """Draw the states, at most :data:`MOST_FRAMES` of them."""
    kind = env.rendering.get("kind")
    if kind in ("brax", "mujoco"):
        raise UsageError(f"'{env.name}' is drawn in three dimensions; write a page with render_html, or --format html")
    if kind != "frames":
        raise UsageError(f"'{env.name}' cannot be drawn: its rendering has no kind; 'gymnax:CartPole-v1' has one")
    scene = flat_scene(env, states, lane)
    running = running_reward(env, states, rewards, lane, scene["count"])
    frames, every = scene["frames"], scene["every"]
    seconds = float(env.rendering.get("dt", 0.02)) * every
    stride = max(-(-len(frames) // MOST_FRAMES), int(np.ceil(SHORTEST / seconds - 1e-6)), 1)
    chosen = list(range(0, len(frames), stride))
    if chosen[-1] != len(frames) - 1:
        chosen.append(len(frames) - 1)
    name = title or env.name
    captions = [_caption(name, i * every, running) for i in chosen]
    pictures = [draw_picture(frames[i], scene["view"], caption) for i, caption in zip(chosen, captions, strict=True)]
    return Film(pictures, seconds * stride)


def _caption(name: str, step: int, running: np.ndarray | None) -> str:
    return f"{name}    step {step}" + ("" if running is None else f"    return {running[step]:.2f}")


def draw_picture(shapes: list[dict[str, Any]], view: list[float], caption: str) -> Image.Image:
    """One frame, 480 pixels wide, of even height, with its caption below."""
    x0, x1, y0, y1 = view
    height = int(np.clip(WIDTH * (y1 - y0) / (x1 - x0), LEAST_HEIGHT, MOST_HEIGHT)) // 2 * 2
    picture = Image.new("RGB", (WIDTH * SMOOTH, (height + FOOTER) * SMOOTH), COLOURS["page"])
    pad = 8
    scale = SMOOTH * min((WIDTH - 2 * pad) / (x1 - x0), (height - 2 * pad) / (y1 - y0))
    origin = (SMOOTH * WIDTH / 2 - scale * (x0 + x1) / 2, SMOOTH * height / 2 + scale * (y0 + y1) / 2)
    pen = ImageDraw.Draw(picture)
    for shape in shapes:
        _draw_shape(pen, shape, scale, origin)
    font = ImageFont.load_default(13 * SMOOTH)
    pen.text((12 * SMOOTH, (height + FOOTER / 2) * SMOOTH), caption, COLOURS["muted"], font, anchor="lm")
    return picture.resize((WIDTH, height + FOOTER), Image.Resampling.LANCZOS)


def _draw_shape(pen: ImageDraw.ImageDraw, shape: dict[str, Any], scale: float, origin: tuple[float, float]) -> None:
    """One shape; nothing where one of its numbers is not finite."""
    what = next(name for name in ("circle", "line", "rect", "text") if name in shape)
    numbers = shape[what]
    if None in numbers:
        return
    colour = _colour(shape.get("stroke" if what == "line" else "fill", "ink"))

    def at(x: float, y: float) -> tuple[float, float]:
        return origin[0] + scale * x, origin[1] - scale * y

    if what == "circle":
        pen.circle(at(*numbers[:2]), scale * numbers[2], fill=colour)
    elif what == "text":
        pen.text(at(*numbers), str(shape.get("label", "")), colour, ImageFont.load_default(14 * SMOOTH), anchor="mm")
    elif what == "line":
        width = max(scale * (shape.get("width") or 0.0), SMOOTH)
        ends = at(*numbers[:2]), at(*numbers[2:])
        pen.line(ends, fill=colour, width=round(width))
        for end in ends:
            pen.circle(end, width / 2, fill=colour)
    else:
        x, y, width, height = numbers
        c, s = np.cos(shape.get("angle") or 0.0), np.sin(shape.get("angle") or 0.0)
        half = [(sx * width / 2, sy * height / 2) for sx, sy in ((-1, -1), (1, -1), (1, 1), (-1, 1))]
        pen.polygon([at(x + c * u - s * v, y + s * u + c * v) for u, v in half], fill=colour)


def _colour(name: str) -> tuple[int, ...]:
    try:
        return ImageColor.getrgb(COLOURS.get(name, name))[:3]
    except ValueError:
        raise UsageError(f"'{name}' is no colour; use {', '.join(COLOURS)} or a CSS colour such as #b4532a") from None


def _stacked(pictures: list[Image.Image]) -> Image.Image:
    """The pictures one above the other, so that one palette has the colours of all."""
    width, height = pictures[0].size
    stack = Image.new("RGB", (width, height * len(pictures)))
    for i, picture in enumerate(pictures):
        stack.paste(picture, (0, i * height))
    return stack


def _folder_made(path: str | Path) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
