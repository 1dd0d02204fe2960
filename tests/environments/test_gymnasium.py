import os
import subprocess
import sys
from pathlib import Path

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest

import environments
from environments import HostEnvironment, vectorise
from jaxrl.errors import UsageError
from jaxrl.spaces import Box, Discrete


class Walk(gymnasium.Env):
    """Counts its steps, dies at ``edge``, and writes every observation, a reset's too, into one array."""

    def __init__(self, edge=3, kind="box"):
        self.edge, self.kind = edge, kind
        box = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        parts = {"box": box, "count": gymnasium.spaces.Discrete(100, start=5)}
        self.observation_space = box if kind == "box" else gymnasium.spaces.Dict(parts)
        self.action_space = gymnasium.spaces.Discrete(3, start=-1)
        self.buffer = np.zeros(2)

    def _observe(self):
        return self.buffer if self.kind == "box" else {"box": self.buffer, "count": 5 + int(self.buffer[0])}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.buffer[:] = 0, self.np_random.uniform()
        return self._observe(), {}

    def step(self, action):
        assert action in (-1, 0, 1)
        self.buffer[0] += 1
        return self._observe(), float(action), bool(self.buffer[0] >= self.edge), False, {"extra": 1}


@pytest.fixture(scope="module", autouse=True)
def registered():
    gymnasium.register("JaxrlWalk-v0", entry_point=Walk, max_episode_steps=5)
    yield
    del gymnasium.registry["JaxrlWalk-v0"]


def play(env, steps, seed=0, action=1):
    first = env.reset(seed)
    return first, [env.step(np.full(env.num_envs, action)) for _ in range(steps)]


@pytest.mark.parametrize(
    ("edge", "terminated", "truncated"),
    [
        (3, [0, 0, 1, 0, 0, 1], [0, 0, 0, 0, 0, 0]),
        (9, [0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 0]),
        (5, [0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 1, 0]),
    ],
    ids=["death", "limit", "both"],
)
def test_flags_and_last_observations(edge, terminated, truncated):
    env = environments.make("gymnasium:JaxrlWalk-v0", num_envs=2, edge=edge)
    first, steps = play(env, 6)
    length = min(edge, 5)
    counted = np.array([t % length + 1 for t in range(6)])
    np.testing.assert_array_equal([step.terminated[1] for step in steps], terminated)
    np.testing.assert_array_equal([step.truncated[1] for step in steps], truncated)
    np.testing.assert_array_equal([step.next_observation[1, 0] for step in steps], counted)
    np.testing.assert_array_equal([step.observation[1, 0] for step in steps], np.where(counted == length, 0, counted))
    np.testing.assert_array_equal([step.metrics["episode/length"][1] for step in steps], counted)
    # Action 1 of three from -1 is what the environment calls 0; 2 is its 1.
    np.testing.assert_array_equal([step.reward[0] for step in steps], np.zeros(6))
    assert isinstance(env, HostEnvironment) and env.max_steps == 5 and env.num_envs == 2
    starts = [first.observation[:, 1], *(step.observation[:, 1] for step in steps)]
    assert len(np.unique(starts)) == 2 * (1 + 6 // length)
    env.close()
    env.close()


def test_steps_have_one_structure_and_narrow_dtypes():
    env = environments.make("gymnasium:JaxrlWalk-v0", num_envs=3, kind="dict")
    first, steps = play(env, 4, action=2)
    assert env.observation_space == {"box": Box(-np.inf, np.inf, (2,)), "count": Discrete(100)}
    assert env.action_space == Discrete(3)
    for step in (first, *steps):
        assert step.observation["box"].dtype == np.float32 and step.observation["box"].shape == (3, 2)
        assert step.next_observation["count"].dtype == np.int32 and step.next_observation["count"].shape == (3,)
        assert step.reward.dtype == np.float32 and step.terminated.dtype == step.truncated.dtype == np.bool_
        assert set(step.metrics) == {"episode/return", "episode/length"}
        assert all(metric.dtype == np.float32 for metric in step.metrics.values())
    np.testing.assert_array_equal([step.next_observation["count"][0] for step in steps], [1, 2, 3, 1])
    np.testing.assert_array_equal([step.observation["count"][0] for step in steps], [1, 2, 0, 1])
    np.testing.assert_array_equal([step.metrics["episode/return"][0] for step in steps], [1, 2, 3, 1])
    again = env.reset(0)
    np.testing.assert_array_equal(again.observation["box"], first.observation["box"])
    np.testing.assert_array_equal(again.metrics["episode/return"], np.zeros(3))
    env.close()


def test_lanes_of_neighbouring_seeds_are_different():
    env = environments.make("gymnasium:CartPole-v1", num_envs=4)
    starts = np.concatenate([env.reset(seed).observation for seed in range(4)])
    assert len(np.unique(starts, axis=0)) == 16
    np.testing.assert_array_equal(env.reset(2).observation, starts[8:12])
    env.close()


def test_cart_pole_dies_and_is_limited():
    env = environments.make("gymnasium:CartPole-v1", num_envs=2, max_steps=6)
    assert env.max_steps == 6 and env.action_space == Discrete(2) and env.observation_space.shape == (4,)
    _, steps = play(env, 6)
    np.testing.assert_array_equal([step.truncated[0] for step in steps], [0, 0, 0, 0, 0, 1])
    assert not np.any([step.terminated for step in steps])
    env.close()
    env = environments.make("gymnasium:CartPole-v1", num_envs=2)
    assert env.max_steps == 500
    env.reset(0)
    steps = [env.step(jnp.ones(2, jnp.int32)) for _ in range(12)]
    assert np.any([step.terminated for step in steps]) and not np.any([step.truncated for step in steps])
    for step in steps:
        for lane in np.flatnonzero(step.terminated):
            assert abs(step.next_observation[lane, 2]) > 12 * np.pi / 180 and abs(step.observation[lane, 2]) <= 0.05
    env.close()


def test_processes_step_as_one_process_does():
    ends = []
    for processes in (False, True):
        env = environments.make("gymnasium:CartPole-v1", num_envs=2, max_steps=3, processes=processes)
        first, steps = play(env, 4, seed=3)
        ends.append([first, *steps])
        env.close()
    for one, many in zip(*ends, strict=True):
        np.testing.assert_array_equal(one.observation, many.observation)
        np.testing.assert_array_equal(one.next_observation, many.next_observation)
        np.testing.assert_array_equal(one.truncated, many.truncated)


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("JaxrlWalk-v0", {"speed": 2}, "takes no 'speed'; it takes edge, kind, num_envs, max_steps, processes"),
        ("JaxrlWalk-v0", {"num_envs": 0}, "num_envs must be at least 1, got 0"),
        ("JaxrlWalk-v0", {"max_steps": -1}, "max_steps must be at least 1, got -1"),
        ("CartPole-v7", {}, "did you mean 'gymnasium:CartPole-v"),
    ],
)
def test_what_cannot_be_is_refused(name, kwargs, message):
    with pytest.raises(UsageError, match=message):
        environments.make(f"gymnasium:{name}", **kwargs)


def test_actions_of_another_shape_and_wrappers_are_refused():
    env = environments.make("gymnasium:CartPole-v1", num_envs=2)
    env.reset(0)
    with pytest.raises(UsageError, match=r"expected actions of shape \(2,\), got \(3,\)"):
        env.step(np.zeros(3))
    with pytest.raises(UsageError, match="vectorise wraps an Environment, got HostEnvironment"):
        vectorise(env, 2)
    env.close()


SIGNALLED = """
import multiprocessing, os, signal
import numpy as np
import environments

if __name__ == "__main__":
    env = environments.make("gymnasium:CartPole-v1", num_envs=2, processes=True)
    env.reset(0)
    for child in multiprocessing.active_children():
        os.kill(child.pid, signal.SIGINT)
        os.kill(child.pid, signal.SIGTERM)
    step = env.step(np.zeros(2, np.int32))
    print("stepped", step.reward.tolist(), signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""


def test_lanes_in_processes_outlive_signals_to_the_group_and_end_with_it(tmp_path):
    """The main process still needs them to come to a stop; at its end, without a close, they end too."""
    (tmp_path / "signalled.py").write_text(SIGNALLED)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "signalled.py")],
        capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[2],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "stepped [1.0, 1.0] set()"
