"""Toys and classic control as pictures: what is drawn where, and files that play."""

import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from PIL import Image

import environments
from environments import animation, drawings
from environments.animation import COLOURS, draw_picture, make_film, render_gif, render_mp4
from environments.base import Environment
from environments.rendering import drawing
from jaxrl.errors import UsageError
from jaxrl.spaces import Discrete

TOYS = environments.list_environments("toy")


def colour_at(picture, x, y):
    return "#{:02x}{:02x}{:02x}".format(*picture.getpixel((x, y)))


def played(name, steps, **options):
    """The states and rewards of some steps to the right, or with a point of the box off its middle."""
    env = environments.make(name, **options)
    state, _ = env.reset(jax.random.key(0))
    states, rewards = [state], []
    space = env.action_space
    action = np.int32(1) if isinstance(space, Discrete) else (0.25 * space.low + 0.75 * space.high)
    for i in range(steps):
        state, step = env.step(state, action, jax.random.key(i + 1))
        states.append(state)
        rewards.append(float(step.reward))
    return env, jax.device_get(states), rewards


def test_shapes_land_where_their_numbers_say():
    """A view of 4 by 2 in 480 by 240 pixels with 8 of margin: 112 pixels a unit, y upwards."""
    shapes = [
        {"rect": [1.0, 0.5, 1.0, 0.2], "angle": np.pi / 2, "fill": "ink"},
        {"circle": [-1.0, 0.5, 0.25], "fill": "accent"},
        {"line": [-1.5, -0.5, 1.5, -0.5], "width": 0.1, "stroke": "good"},
        {"circle": [None, 0.0, 5.0], "fill": "bad"},
    ]
    picture = draw_picture(shapes, [-2.0, 2.0, -1.0, 1.0], "caption")
    assert picture.size == (480, 240 + animation.FOOTER)
    assert colour_at(picture, 240 + 112, 120 - 56 - 50) == COLOURS["ink"]  # the rectangle stands upright
    assert colour_at(picture, 240 + 112 + 40, 120 - 56) == COLOURS["page"]
    assert colour_at(picture, 240 - 112, 120 - 56) == COLOURS["accent"]
    assert colour_at(picture, 240 - 112 + 32, 120 - 56) == COLOURS["page"]
    assert colour_at(picture, 240 - 160, 120 + 56) == COLOURS["good"]
    assert colour_at(picture, 240, 120) == COLOURS["page"]  # a shape that is not finite is left out
    assert np.asarray(picture)[240:].min() < 180  # the caption


@pytest.mark.parametrize("name", TOYS)
def test_every_toy_becomes_a_gif(name, tmp_path):
    options = {"max_steps": 3} if name in ("toy:endless", "toy:target") else {}
    env, states, rewards = played(name, 1 if name == "toy:target" else 3, **options)
    path = render_gif(env, states, tmp_path / "deep" / "episode.gif", rewards)
    gif = Image.open(path)
    assert gif.n_frames == len(states) and gif.info["loop"] == 0 and gif.info["duration"] == 250
    first = np.asarray(gif.convert("RGB")).astype(int)
    gif.seek(gif.n_frames - 1)
    last = np.asarray(gif.convert("RGB")).astype(int)
    assert gif.info["duration"] == 1000
    drawn = slice(0, first.shape[0] - animation.FOOTER)
    assert np.abs(first[drawn] - last[drawn]).max() > 50  # something moved


def test_the_walker_is_drawn_in_its_cell():
    """Down from S is free: row 1, column 0 of five rows, so the circle is at (0.5, 3.5)."""
    env, states, _ = played("toy:gridworld", 0)
    frame = env.rendering["frame"]
    state, _ = env.step(states[0], np.int32(2), jax.random.key(0))
    shapes = frame(env.rendering["state_of"](state))["shapes"]
    assert shapes[-1]["circle"] == (0.5, 3.5, 0.3)
    goal = next(shape for shape in shapes if shape.get("fill") == "good")
    assert goal["rect"][:2] == (4.5, 0.5)
    assert sum(shape.get("fill") == "ink" and "rect" in shape for shape in shapes) == 1 + 6  # the frame and six walls


def test_drawings_of_classic_control():
    hanging = drawings.draw_acrobot(SimpleNamespace(joint_angle1=0.0, joint_angle2=0.0))["shapes"]
    assert hanging[1]["line"] == (0, 0, 0, -1) and hanging[2]["line"] == (0, -1, 0, -2)
    bent = drawings.draw_acrobot(SimpleNamespace(joint_angle1=np.pi / 2, joint_angle2=np.pi / 2))["shapes"]
    np.testing.assert_allclose(bent[2]["line"], (1, 0, 1, 1), atol=1e-12)
    car = drawings.draw_mountain_car(0.5, SimpleNamespace(position=-np.pi / 6))["shapes"][-1]
    assert car["angle"] == pytest.approx(0.0) and car["rect"][1] == pytest.approx(-0.93)  # level, at the bottom
    names = ("CartPole-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1")
    assert all(drawings.for_gymnax(name)["kind"] == "frames" for name in names)
    assert drawings.for_gymnax("Catch-bsuite") == {}


def test_long_episodes_are_thinned_and_keep_their_end(monkeypatch):
    """At 0.02 s a step every second is drawn; of 1,000 states every 34th, if 30 is the most, and the last."""
    monkeypatch.setattr(animation, "MOST_FRAMES", 30)
    dot = drawing(lambda x: {"view": (0, 1, 0, 1), "shapes": [{"circle": (float(x), 0.5, 0.1)}]}, dt=0.02)
    env = Environment("mine:dot", None, None, None, None, rendering=dot)
    film = make_film(env, np.linspace(0, 1, 10), None, 0, None)
    assert len(film.pictures) == 6 and film.seconds == pytest.approx(0.04)
    film = make_film(env, np.linspace(0, 1, 1000), np.ones(999), 0, None)
    assert len(film.pictures) == 31 and film.seconds == pytest.approx(0.68)
    assert colour_at(film.pictures[-1], 470, 240) == COLOURS["ink"]
    lanes = np.stack([np.zeros(3), np.ones(3)], 1)
    vector = Environment("mine:dot", None, None, None, None, num_envs=2, rendering=dot)
    assert colour_at(make_film(vector, lanes, None, 1, None).pictures[0], 470, 240) == COLOURS["ink"]


def test_what_cannot_be_animated_is_refused(tmp_path, monkeypatch):
    env, states, _ = played("toy:chain", 1)
    with pytest.raises(UsageError, match="1 or 2 rewards"):
        render_gif(env, states, tmp_path / "x.gif", [1.0, 2.0, 3.0])
    with pytest.raises(UsageError, match="three dimensions"):
        render_gif(Environment("brax:x", None, None, None, None, rendering={"kind": "brax"}), states, "x.gif")
    with pytest.raises(UsageError, match="cannot be drawn"):
        render_gif(Environment("mine:x", None, None, None, None), states, "x.gif")
    with pytest.raises(UsageError, match="no colour"):
        draw_picture([{"circle": [0, 0, 1], "fill": "acent"}], [0, 1, 0, 1], "")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(UsageError, match="ffmpeg"):
        render_mp4(env, states, tmp_path / "x.mp4")
    assert list(tmp_path.iterdir()) == []


def test_mp4_is_what_ffmpeg_makes_of_the_pictures(tmp_path, monkeypatch):
    """A stand-in for ffmpeg that writes down how many bytes it got, and one that fails."""
    env, states, rewards = played("toy:chain", 3)
    ffmpeg = tmp_path / "ffmpeg"
    ffmpeg.write_text('#!/bin/sh\nfor last; do :; done\nwc -c > "$last"\necho "$@" > "$last.args"\n')
    ffmpeg.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda _: str(ffmpeg))
    path = render_mp4(env, states, tmp_path / "x.mp4", rewards)
    width, height = make_film(env, states, rewards, 0, None).pictures[0].size
    assert width % 2 == height % 2 == 0
    assert int(path.read_text()) == 3 * width * height * (4 + 3)  # four states, the last held for a second
    assert f"-s {width}x{height} -r 4.0" in path.with_name("x.mp4.args").read_text()
    ffmpeg.write_text("#!/bin/sh\ncat > /dev/null\necho 'Unknown encoder' >&2\nexit 1\n")
    with pytest.raises(UsageError, match="Unknown encoder"):
        render_mp4(env, states, tmp_path / "y.mp4", rewards)
