"""What the pages hold; how they look is for eyes."""

import json
import re
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from environments import rendering
from environments.base import Environment
from environments.rendering import draw_cartpole, draw_pendulum, drawing, gymnax_drawing, render_html
from jaxrl.errors import UsageError
from jaxrl.spaces import Box

MODEL = """
<mujoco>
  <asset><material name="red" rgba="1 0 0 1"/></asset>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 .1" pos="0 0 -1"/>
    <body pos="0 0 1">
      <freejoint/>
      <geom name="ball" type="sphere" size=".1" pos=".2 0 0"/>
      <body pos=".5 0 0">
        <joint type="hinge" axis="0 1 0"/>
        <geom name="limb" type="capsule" fromto="0 0 0 .4 0 0" size=".05" material="red"/>
        <geom name="block" type="box" size=".1 .2 .3" rgba="0 .5 1 1"/>
        <geom name="unseen" type="box" size=".1 .2 .3" rgba="0 .5 1 0"/>
        <geom name="collision" type="box" size=".1 .2 .3" group="3"/>
      </body>
    </body>
  </worldbody>
</mujoco>
"""


class Poses(NamedTuple):
    xpos: Any
    xquat: Any


class Held(NamedTuple):
    """A state of a wrapper around a state that remembers its reward."""

    inner: Any


def physics(state):
    return state.inner.data


@pytest.fixture(scope="module")
def solid():
    """An environment of a body and a limb, with the poses and MuJoCo's own geom positions of 5 frames."""
    import mujoco

    model = mujoco.MjModel.from_xml_string(MODEL)
    data = mujoco.MjData(model)
    states, positions = [], []
    for i in range(5):
        data.qpos[:] = [0.1 * i, 0, 1, np.cos(0.1 * i), 0, 0, np.sin(0.1 * i), 0.3 * i]
        mujoco.mj_kinematics(model, data)
        poses = Poses(data.xpos.copy(), data.xquat.copy())
        states.append(Held(SimpleNamespace(data=poses, reward=np.float32(i))))
        positions.append(data.geom_xpos.copy())
    look = {"kind": "mujoco", "system": model, "state_of": physics, "dt": 0.05}
    return environment("playground:Toy", look), states, positions


def environment(name, look, num_envs=None):
    box = Box(-1, 1, (1,))
    return Environment(name, None, None, box, box, rendering=look, num_envs=num_envs)


def page_data(path):
    text = path.read_text(encoding="utf-8")
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.S).group(1))


def stacked(states):
    data = Poses(*(np.stack(x) for x in zip(*(s.inner.data for s in states), strict=True)))
    return Held(SimpleNamespace(data=data, reward=np.stack([s.inner.reward for s in states])))


def test_geoms_come_to_lie_where_mujoco_puts_them(solid, tmp_path):
    env, states, positions = solid
    data = page_data(render_html(env, states, tmp_path / "deep" / "page.html"))
    assert [g["shape"] for g in data["geoms"]] == ["plane", "sphere", "capsule", "box"]
    assert [g["body"] for g in data["geoms"]] == [-1, 0, 1, 1]
    assert [g["colour"] for g in data["geoms"]] == [None, None, [255, 0, 0], [0, 128, 255]]
    assert data["geoms"][2]["size"][:2] == [0.05, 0.2]
    for frame, expected in zip(data["poses"], positions, strict=True):
        poses = np.asarray(frame).reshape(2, 7)
        for geom, at in zip(data["geoms"][1:], expected[1:4], strict=True):
            pose = poses[geom["body"]]
            np.testing.assert_allclose(pose[:3] + rotate(pose[3:], geom["at"][:3]), at, atol=3e-4)


def rotate(q, v):
    """By the rotation matrix of the quaternion, written out."""
    w, x, y, z = q
    matrix = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.asarray(matrix) @ np.asarray(v)


def test_the_page_needs_nothing_else_and_says_reward_and_time(solid, tmp_path):
    env, states, _ = solid
    path = render_html(env, states, tmp_path / "page.html")
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"https?://|<link|src=|import\s|@import|fetch\(", text)
    assert "{{" not in text and "prefers-color-scheme: dark" in text and "width=device-width" in text
    data = page_data(path)
    assert data["reward"] == [0, 1, 3, 6, 10]  # found in the states and added up
    assert data["dt"] == 0.05 and data["every"] == 1 and data["title"] == "playground:Toy"
    # Rewards of the four steps between five states.
    assert page_data(render_html(env, states, path, rewards=[1, 1, 2, np.nan]))["reward"] == [0, 1, 2, 4, None]


def test_a_list_and_a_stack_and_a_lane_give_the_same_page(solid, tmp_path):
    env, states, _ = solid
    one = render_html(env, states, tmp_path / "list.html").read_text(encoding="utf-8")
    assert render_html(env, stacked(states), tmp_path / "stack.html").read_text(encoding="utf-8") == one
    still = [states[0]] * 5
    pair = [stacked(still), stacked(states)]
    lanes = Held(
        SimpleNamespace(
            data=Poses(*(np.stack([p.inner.data[k] for p in pair], axis=1) for k in (0, 1))),
            reward=np.stack([p.inner.reward for p in pair], axis=1),
        )
    )
    vector = environment("playground:Toy", env.rendering, num_envs=2)
    assert render_html(vector, lanes, tmp_path / "lane.html", lane=1).read_text(encoding="utf-8") == one
    assert render_html(vector, lanes, tmp_path / "lane.html", lane=0).read_text(encoding="utf-8") != one


def test_a_long_episode_is_thinned_and_stays_small(solid, tmp_path):
    env, states, _ = solid
    path = render_html(env, [states[i % 5] for i in range(2500)], tmp_path / "page.html")
    data = page_data(path)
    assert data["every"] == 3 and len(data["poses"]) == 834 == len(data["reward"])
    assert data["poses"][1] == data["poses"][6] and data["poses"][0] != data["poses"][1]
    assert data["reward"][1] == 0 + 1 + 2 + 3
    assert path.stat().st_size < 300_000


def test_a_frame_that_is_not_finite_repeats_the_one_before(solid, tmp_path):
    env, states, _ = solid
    broken = states[1]._replace(
        inner=SimpleNamespace(data=Poses(np.full((3, 3), np.nan), states[1].inner.data.xquat), reward=np.nan)
    )
    data = page_data(render_html(env, [states[0], broken, states[2]], tmp_path / "page.html"))
    assert data["poses"][1] == data["poses"][0] and data["reward"] == [0, None, None]


def test_a_title_cannot_break_out_of_the_page(solid, tmp_path):
    env, states, _ = solid
    path = render_html(env, states, tmp_path / "page.html", title="</script><b>{{data}}")
    text = path.read_text(encoding="utf-8")
    assert "<b>" not in text.split("<header>")[1].split("</header>")[0].replace('<b id="', "")
    assert page_data(path)["title"] == "</script><b>{{data}}"


class Cart(NamedTuple):
    x: Any
    theta: Any


def test_flat_drawings(tmp_path):
    env = environment("gymnax:CartPole-v1", gymnax_drawing("CartPole-v1"))
    states = [Cart(np.float32(0.1 * i), np.float32(np.pi / 2)) for i in range(3)]
    data = page_data(render_html(env, states, tmp_path / "page.html", rewards=np.ones(2)))
    assert data["kind"] == "flat" and data["view"] == [-2.6, 2.6, -0.6, 1.4] and data["reward"] == [0, 1, 2]
    cart, pole = data["frames"][2][1], data["frames"][2][2]
    assert cart["rect"][:2] == [0.2, 0] and pole["line"] == [0.2, 0, 1.2, 0]
    stack = Cart(np.float32([0, 0.1, 0.2]), np.full(3, np.pi / 2, np.float32))
    assert page_data(render_html(env, stack, tmp_path / "page.html", rewards=np.ones(2)))["frames"] == data["frames"]
    assert "reward" in data and page_data(render_html(env, states, tmp_path / "page.html"))["reward"] is None
    # Hanging down: theta = pi from upright. A quarter turn counter-clockwise points to -x.
    assert draw_pendulum(SimpleNamespace(theta=np.pi))["shapes"][0]["line"][3] == pytest.approx(-1)
    assert draw_pendulum(SimpleNamespace(theta=np.pi / 2))["shapes"][0]["line"][2] == pytest.approx(-1)
    assert draw_cartpole(SimpleNamespace(x=0, theta=0))["shapes"][2]["line"] == (0, 0, 0, 1)
    assert gymnax_drawing("Acrobot-v1") == {}


def test_brax_has_both_viewers_and_both_draw_the_same_poses(tmp_path):
    from environments.adapters import brax

    env = brax.make("inverted_pendulum", max_steps=5)
    position, rotation = np.zeros((4, 2, 3)), np.tile([1.0, 0, 0, 0], (4, 2, 1))
    position[:, :, 0] = 0.1 * np.arange(4)[:, None]
    x = SimpleNamespace(pos=position, rot=rotation)
    states = Held(SimpleNamespace(pipeline_state=SimpleNamespace(x=x), reward=np.ones(4)))
    data = page_data(render_html(env, states, tmp_path / "plain.html", rewards=np.ones(3)))
    assert [g["shape"] for g in data["geoms"]] == ["capsule"] * 3
    assert [g["body"] for g in data["geoms"]] == [-1, 0, 1]  # the rail is fixed, the cart and the pole move
    assert data["poses"][2] == [0.2, 0, 0, 1, 0, 0, 0] * 2
    theirs = render_html(env, states, tmp_path / "brax.html", viewer="brax").read_text(encoding="utf-8")
    assert "viewer.js" in theirs


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda env, states: render_html(env, states, "x", viewer="unity"), "'unity'"),
        (lambda env, states: render_html(env, states, "x", viewer="brax"), "viewer='plain'"),
        (lambda env, states: render_html(environment("toy:chain", {}), states, "x"), "cannot be drawn"),
        (lambda env, states: render_html(env, [], "x"), "no states"),
        (lambda env, states: render_html(env, states[0], "x"), "leading axis"),
        (lambda env, states: render_html(env, states, "x", rewards=[1, 2]), "4 or 5 rewards"),
        (
            lambda env, states: render_html(environment("mine", drawing(lambda s: {"view": (0, 1, 0, 1), "shapes": [{}]})),
                                            [Cart(0, 0)], "x"),
            "circle, line, rect or text",
        ),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(solid, change, message):
    env, states, _ = solid
    with pytest.raises(UsageError, match=message):
        change(env, states)


def test_the_page_is_package_data():
    from pathlib import Path

    assert Path(rendering.__file__).with_name("viewer.html").is_file()
