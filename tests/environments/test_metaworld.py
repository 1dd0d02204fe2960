"""Meta-World's adapter: with a stand-in of the same shape everywhere, with the real benchmark where it is installed."""

import importlib.util
import sys
from functools import partial
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")

import environments  # noqa: E402
from environments.adapters import metaworld as adapter  # noqa: E402
from jaxrl.errors import UsageError  # noqa: E402
from jaxrl.training import OnPolicy, on_policy  # noqa: E402
from jaxrl.training.evaluation import task_columns  # noqa: E402
from jaxrl.training.host import host_program  # noqa: E402
from tests.training import toy  # noqa: E402

REAL = importlib.util.find_spec("metaworld") is not None


class StandIn(gymnasium.Env):
    """Solved at the step of number ``solved_at`` alone; rewards 1; observes its start, drawn from ``np_random``."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)

    def __init__(self, solved_at, limit, terminate):
        self.solved_at, self.limit, self.terminate = solved_at, limit, terminate

    def _observe(self):
        return np.array([self.start, self.time, 0.0])

    def reset(self, seed=None, options=None):  # as the benchmark: the seed is ignored
        self.start, self.time = self.np_random.uniform(), 0
        return self._observe(), {}

    def step(self, action):
        self.time += 1
        success = self.time == self.solved_at
        ends = bool(self.terminate and success)
        return self._observe(), 1.0, ends, self.time >= self.limit, {"success": float(success)}


def made(terminate=False, lanes=2):
    kinds = [(2, 4), (9, 3)]  # the second is never solved
    thunks = [partial(StandIn, *kind, terminate) for kind in kinds for _ in range(lanes)]
    return adapter.host_tasks("metaworld:stand-in", thunks, ("a", "b"), 4, processes=False)


def test_success_at_any_time_by_hand():
    env = made()
    first = env.reset(0)
    assert first.metrics.keys() == {"episode/return", "episode/length", "success", "episode/success"}
    steps = [env.step(np.zeros((4, 4))) for _ in range(4)]
    taken = lambda name: np.stack([step.metrics[name] for step in steps])[:, [0, 2]].tolist()
    assert taken("success") == [[0, 0], [1, 0], [0, 0], [0, 0]]
    assert taken("episode/success") == [[0, 0], [1, 0], [1, 0], [1, 0]]
    assert [step.truncated.tolist() for step in steps[2:]] == [[False, False, True, True], [True, True, False, False]]
    assert env.step(np.zeros((4, 4))).metrics["episode/success"].tolist() == [0, 0, 0, 0]
    env.close()


def test_a_seed_gives_the_same_episodes_and_every_lane_its_own():
    env = made()
    starts = [env.reset(seed).observation[:, 0] for seed in (5, 5, 6)]
    np.testing.assert_array_equal(starts[0], starts[1])
    assert len(set(starts[0].tolist()) | set(starts[2].tolist())) == 8


def test_the_last_success_is_seen_where_it_ends_the_episode():
    env = made(terminate=True)
    env.reset(0)
    env.step(np.zeros((4, 4)))
    step = env.step(np.zeros((4, 4)))
    assert step.terminated.tolist() == [True, True, False, False] and not step.truncated.any()
    assert step.metrics["success"].tolist() == [1, 1, 0, 0] == step.metrics["episode/success"].tolist()


def test_a_program_reports_each_task():
    agent = toy.gaussian_agent(4)._replace(
        on_policy=True,
        act=lambda state, observation, key, explore: jnp.zeros((observation.shape[0], 4)),
        update=lambda state, batch, key: (state, {}),
    )
    loop = on_policy(agent, OnPolicy(4, 12))
    program = host_program(loop, agent, made(), made(True, 1), seed=0, episodes=6)
    state, chunk = program.advance(program.init(), 0, 1)
    metrics = {name: float(value) for name, value in chunk.metrics.items()}
    assert (metrics["episode/success/a"], metrics["episode/success/b"]) == (1, 0)
    assert (metrics["episode/return/a"], metrics["episode/return/b"]) == (4, 3)
    episodes = program.evaluate(state, 1)
    assert episodes.returns.tolist() == [2, 2, 2, 3, 3, 3]  # task by task, though played in rounds
    columns = task_columns(episodes, ("a", "b"))
    assert (columns["eval/success/a"], columns["eval/success/b"], columns["eval/success"]) == (1, 0, 0.5)


@pytest.fixture
def pretended(monkeypatch):
    """Enough of the package to be refused by."""
    package = SimpleNamespace(__spec__=SimpleNamespace(), __name__="metaworld")
    tasks = SimpleNamespace(MT10_V3={"reach-v3": None, "push-v3": None})
    monkeypatch.setitem(sys.modules, "metaworld", package)
    monkeypatch.setitem(sys.modules, "metaworld.env_dict", tasks)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_envs": 3}, "num_envs=3 is not divisible by the 2 tasks; nearest: 2 and 4"),
        ({"tasks": "reach-v2"}, "unknown task 'reach-v2'; did you mean 'reach-v3'"),
        ({"tasks": ("push-v3", "push-v3")}, "'push-v3' is there twice"),
        ({"reward_function_version": "v3"}, "unknown reward_function_version 'v3'"),
        ({"max_steps": 0}, "max_steps must be at least 1"),
    ],
)
def test_bad_input_is_refused(pretended, options, words):
    with pytest.raises(UsageError, match=words):
        environments.make("metaworld:MT10", **options)


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"--extra metaworld\)"):
        environments.make("metaworld:MT10")


@pytest.mark.skipif(not REAL, reason="needs Meta-World")
def test_two_tasks_of_the_real_benchmark():
    options = {"tasks": ("reach-v3", "window-close-v3"), "num_envs": 4, "max_steps": 3, "processes": False}
    env = environments.make("metaworld:MT10", **options)
    assert env.observation_space.shape == (41,) and env.tasks == ("reach-v3", "window-close-v3")
    first = env.reset(3)
    np.testing.assert_array_equal(first.observation[:, 39:], np.repeat(np.eye(2), 2, axis=0))
    steps = [env.step(np.zeros((4, 4))) for _ in range(3)]
    assert steps[2].truncated.all() and not steps[2].terminated.any()
    assert all(np.all((step.reward >= 0) & (step.reward <= 10)) for step in steps)
    np.testing.assert_array_equal(env.reset(3).observation, first.observation)
    assert not np.array_equal(env.reset(4).observation, first.observation)
    env.close()
