"""Two processes of two devices each, over the loopback address, against one process with one device."""

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from experiments import durability, train
from experiments.configs import load_config
from experiments.setup import build
from jaxrl.training.checkpoint import pack, restore
from jaxrl.training.records import read_rows
from tests.experiments.test_train import call
from tests.processes import with_devices

ROOT = Path(__file__).parents[2]
COMMON = "--env toy:point_mass --agent.normalise-observations True --evaluate.episodes 4 --evaluate.max-steps 20 "
RUNS = {
    "ppo": "--agent ppo --steps 1280 --loop.num-envs 4 --loop.unroll 16 --agent.minibatches 2 --checkpoint.every 640 ",
    "sac": "--agent sac --seeds 2 --steps 96 --loop.num-envs 4 --loop.batch-size 8 --loop.warmup 16 --checkpoint.every 48 ",
}


def two_processes(flags):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    hosts = ["--coordinator", f"localhost:{port}", "--num-processes", "2"]
    return [
        subprocess.Popen(
            [sys.executable, "-m", "experiments.train", *flags, *hosts, "--process-id", str(i)],
            cwd=ROOT,
            env=with_devices(2),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for i in range(2)
    ]


def arrays(folder):
    program = build(load_config(folder)).program
    state, _ = restore(folder / "checkpoints", program.template())
    return {name: np.asarray(leaf, np.float64) for name, leaf in pack(state._replace(key=())).items()}


def assert_close(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


SLOW_BUT_ONE = [pytest.param(name, marks=() if name == "ppo" else pytest.mark.slow) for name in RUNS]


@pytest.mark.parametrize("agent", SLOW_BUT_ONE)
def test_two_processes_equal_one_and_their_checkpoint_goes_on_in_one(agent, tmp_path):
    flags = (RUNS[agent] + COMMON + "--agent.hidden-sizes 8").split()
    processes = two_processes([*flags, "--run-dir", str(tmp_path / "two")])
    said = [process.communicate(timeout=400)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert "finished" in said[0] and said[1].count("\n") < 5  # the second process has nothing to tell
    call(train.main, [*flags, "--run-dir", str(tmp_path / "one")])
    rows = [durability.without_time(read_rows(tmp_path / name / "metrics.jsonl")) for name in ("two", "one")]
    assert len(rows[0]) == len(rows[1])
    for ours, theirs in zip(*rows, strict=True):
        assert_close(ours, theirs)
    one = arrays(tmp_path / "one")
    assert_close(arrays(tmp_path / "two"), one)
    status, _ = call(
        train.main,
        ["--resume", str(tmp_path / "two"), "--devices", "1", "--iteration", "10" if agent == "ppo" else "12"],
    )
    assert status == 0
    assert_close(arrays(tmp_path / "two"), one)
    assert [row["step"] for row in read_rows(tmp_path / "two" / "metrics.jsonl")] == [row["step"] for row in rows[1]]


@pytest.mark.slow
def test_when_a_host_dies_the_other_ends_and_leaves_a_checkpoint(tmp_path):
    flags = (
        RUNS["ppo"].replace("1280", "640000") + COMMON + "--agent.hidden-sizes 8 --log.every 640 --heartbeat 10"
    ).split()
    processes = two_processes([*flags, "--run-dir", str(tmp_path / "run")])
    checkpoints = tmp_path / "run" / "checkpoints"
    try:
        deadline = time.monotonic() + 300
        while not durability.saved_iterations(checkpoints) and time.monotonic() < deadline:
            time.sleep(0.05)
        processes[1].send_signal(signal.SIGKILL)
        assert processes[0].wait(timeout=60) != 0
    finally:
        for process in processes:
            process.kill()
    assert durability.saved_iterations(checkpoints)
