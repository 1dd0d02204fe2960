"""The commands that take a policy out of a run folder: what they leave, what they refuse."""

import json

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from experiments import export, rollout, train
from jaxrl import policy_numpy
from jaxrl.errors import UsageError

TINY = (
    "--agent ppo --env toy:gridworld --steps 128 --loop.num-envs 4 --loop.unroll 16 --agent.minibatches 2 --seeds 2 "
    "--agent.hidden-sizes 8 --evaluate.episodes 2 --env-options max_steps 9 --checkpoint.every 64"
).split()


def call(main, *arguments):
    console = Console(width=200, force_terminal=False, highlight=False)
    with console.capture() as captured:
        status = main([str(argument) for argument in arguments], console)
    assert not status
    return captured.get()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    call(train.main, *TINY, "--run-dir", folder)
    return folder


def test_export_leaves_both_kinds_and_says_how_far_they_are_off(run, tmp_path):
    said = call(export.main, run, "--member", 1, "--iteration", 1)
    assert "largest difference from the live policy 0.0e+00" in said
    names = {path.name for path in (run / "export").iterdir()}
    assert names == {"policy.stablehlo", "load_policy.py", "policy.npz", "policy_numpy.py", "policy.json"}
    spec = json.loads((run / "export" / "policy.json").read_text())
    assert (spec["environment"], spec["iteration"], spec["member"]) == ("toy:gridworld", 1, 1)
    assert policy_numpy.act(policy_numpy.load(run / "export" / "policy.npz"), np.eye(25)).shape == (25,)
    call(export.main, run, "--out", tmp_path / "x", "--kinds", "numpy")
    assert not (tmp_path / "x" / "policy.stablehlo").exists()
    weights = [np.load(folder / "policy.npz")["kernel_0"] for folder in (run / "export", tmp_path / "x")]
    assert np.abs(weights[0] - weights[1]).max() > 0.01  # another member


@pytest.mark.parametrize("arguments, message", [(("--member", 2), "0 to 1"), (("--iteration", 7), "no checkpoint")])
@pytest.mark.parametrize("main", [export.main, rollout.main])
def test_a_member_or_checkpoint_that_is_not_there_is_refused(run, main, arguments, message):
    with pytest.raises(UsageError, match=message):
        call(main, run, *arguments)


def test_rollouts_of_chosen_checkpoints_in_each_format(run):
    said = call(rollout.main, run, "--format", "gif", "--iteration", 1)
    steps = int(said.split(" in ")[1].split()[0])
    gif = Image.open(run / "rollout_1.gif")
    total = 0
    for i in range(gif.n_frames):
        gif.seek(i)
        total += gif.info["duration"]
    assert total == 250 * steps + 1000  # equal frames may be merged, their time is kept
    call(rollout.main, run)
    assert "toy:gridworld" in (run / "rollout_2.html").read_text()
