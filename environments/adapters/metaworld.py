"""Meta-World+ on the host: ``metaworld:MT10``, ``MT25`` and ``MT50``, a process a lane.

Needs Meta-World 3.1, which pins MuJoCo 3.3.0 and so cannot share an environment with the ``playground`` extra.

Lane ``i`` of ``N`` runs task ``i // (N // K)``, as everywhere (:mod:`environments.multi_task`). Observed are the
benchmark's 39 numbers and the one-hot identity of the task; the action has 4 in [-1, 1]. Episodes have 500 steps. Training
does not end at success; with ``evaluation=True`` an episode terminates at its first. Either way ``episode/success`` is
success at any time, the benchmark's measure. An episode's goal is drawn from the task's 50 with replacement.
"""

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np

from environments.adapters import gymnasium as host
from environments.adapters.gymnasium import HostEnvironment
from environments.multi_task import share
from jaxrl.checks import positive_int
from jaxrl.errors import MissingExtraError, UsageError, unknown
from jaxrl.types import Step

SETS = {"MT10": 10, "MT25": 25, "MT50": 50}
HORIZON = 500
REWARDS = ("v1", "v2")


@dataclass(frozen=True)
class HostTasks(HostEnvironment):
    """Lanes that step on the host, in an equal contiguous block for each task; measures ``success`` besides."""

    tasks: tuple[str, ...] = ()


def names() -> list[str]:
    """The benchmark's sets, without the scheme."""
    if importlib.util.find_spec("metaworld") is None:
        raise MissingExtraError("metaworld environments", "metaworld")
    return list(SETS)


def make(
    name: str,
    max_steps: int | None = None,
    num_envs: int | None = None,
    processes: bool = True,
    evaluation: bool = False,
    reward_function_version: Literal["v1", "v2"] = "v2",
    benchmark_seed: int = 1,
    tasks: str | Sequence[str] = (),
) -> HostTasks:
    """A set of the benchmark.

    Args:
        name: "MT10".
        max_steps: a time limit in place of 500.
        num_envs: lanes, divisible by the number of tasks; one for each task where absent.
        processes: a process a lane, started anew (a script needs its ``if __name__ == "__main__"``).
        evaluation: end an episode at its first success, as the benchmark's evaluation does.
        reward_function_version: "v2" rewards are within 0 to 10; results of the two cannot be compared.
        benchmark_seed: draws the 50 goals of each task. It takes about a second for each task.
        tasks: some of the set, as a sequence or with commas between them; all where empty. They keep the goals that they
            have in the whole set.

    Raises:
        UsageError: for an unknown task or reward version, or lanes that the tasks cannot share.
        MissingExtraError: where Meta-World is not installed.
    """
    if name not in names():
        raise unknown("metaworld set", name, SETS)
    if reward_function_version not in REWARDS:
        raise unknown("reward_function_version", str(reward_function_version), REWARDS)
    max_steps = HORIZON if max_steps is None else positive_int(max_steps, "max_steps")
    metaworld = importlib.import_module("metaworld")
    known = list(importlib.import_module("metaworld.env_dict").__dict__[f"{name}_V3"])
    chosen = _chosen(tasks, known)
    each = 1 if num_envs is None else share(num_envs, "num_envs", chosen)
    benchmark = _benchmark(name, benchmark_seed)
    # Their own constructor is given, not one of ours: then the processes of the lanes need not import JAX.
    lanes = [
        partial(
            metaworld._init_each_env,
            env_cls=benchmark.train_classes[task],
            tasks=[goal for goal in benchmark.train_tasks if goal.env_name == task],
            max_episode_steps=max_steps,
            terminate_on_success=evaluation,
            use_one_hot=True,
            env_id=k,
            num_tasks=len(chosen),
            reward_function_version=reward_function_version,
        )
        for k, task in enumerate(chosen)
        for _ in range(each)
    ]
    return host_tasks(f"metaworld:{name}", lanes, chosen, max_steps, processes)


def host_tasks(
    name: str, lanes: Sequence[Any], tasks: tuple[str, ...], max_steps: int | None, processes: bool
) -> HostTasks:
    """Lanes of several tasks as one environment.

    Args:
        lanes: functions that make Gymnasium environments of one pair of spaces, whose ``info`` has ``success``; in equal
            contiguous blocks for the tasks. With processes they are pickled.
    """
    made = host.vector_of(lanes, processes)
    vector = _Seen(made)
    zeros = np.zeros(len(lanes), np.float32)
    tally = host._Tally(zeros, zeros)
    return HostTasks(
        name=name,
        reset=partial(_reset, vector, tally),
        step=partial(_step, vector, tally),
        close=partial(host._close, made),
        observation_space=host.convert_space(made.single_observation_space),
        action_space=host.convert_space(made.single_action_space),
        num_envs=len(lanes),
        max_steps=max_steps,
        tasks=tuple(tasks),
    )


class _Seen:
    """A vector of environments that remembers what it last said besides, and the success of the episodes so far."""

    def __init__(self, vector: Any):
        self.vector = vector
        self.info: dict[str, Any] = {}
        self.success = np.zeros(vector.num_envs, np.float32)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.vector, name)

    def reset(self, seed: list[int]) -> tuple[Any, dict]:
        # The benchmark ignores the seed of a reset, and draws an episode's goal with this generator.
        self.vector.set_attr("np_random", [np.random.default_rng(word) for word in seed])
        self.success = np.zeros(self.vector.num_envs, np.float32)
        return self.vector.reset()

    def step(self, action: np.ndarray) -> tuple:
        *rest, self.info = self.vector.step(action)
        return *rest, self.info


def _chosen(tasks: str | Sequence[str], known: list[str]) -> tuple[str, ...]:
    chosen = tuple(tasks.split(",")) if isinstance(tasks, str) and tasks else tuple(tasks)
    for i, task in enumerate(chosen):
        if task not in known:
            raise unknown("task", task, known)
        if task in chosen[:i]:
            raise UsageError(f"the task '{task}' is there twice; name it once")
    return chosen or tuple(known)


@lru_cache(maxsize=4)
def _benchmark(name: str, seed: int) -> Any:
    return getattr(importlib.import_module("metaworld"), name)(seed=seed)


def _reset(vector: _Seen, tally: Any, seed: int) -> Step:
    step = host._reset(vector, tally, seed)
    no = np.zeros(vector.num_envs, np.float32)
    return _with_success(step, no, no)


def _step(vector: _Seen, tally: Any, action: np.ndarray) -> Step:
    step = host._step(vector, tally, action)
    ended = step.terminated | step.truncated
    now = np.asarray(vector.info.get("success", np.zeros(vector.num_envs)), np.float32)
    if ended.any():  # what an ended episode said is kept apart from what the next one says
        now = np.where(ended, np.asarray(vector.info["final_info"]["success"], np.float32), now)
    episode = np.maximum(vector.success, now)
    vector.success = np.where(ended, np.float32(0), episode)
    return _with_success(step, now, episode)


def _with_success(step: Step, now: Any, episode: Any) -> Step:
    return step._replace(metrics={**step.metrics, "success": now, "episode/success": episode})
