"""What ``--resume`` meets after something went wrong."""

import json
import shutil

import pytest

from experiments import durability, train
from jaxrl.errors import UsageError
from jaxrl.training.checkpoint import saved_iterations
from jaxrl.training.records import read_rows
from tests.experiments.test_train import TINY, call


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("resume") / "run"
    every = ["--checkpoint.every", "16", "--log.every", "8", "--evaluate.every", "32"]
    assert call(train.main, [*TINY["sac"], *every, "--run-dir", str(folder)])[0] == 0
    assert saved_iterations(folder / "checkpoints") == [16, 24, 32]
    return folder


@pytest.fixture
def run(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "run")


def resume(folder, *flags):
    return call(train.main, ["--resume", str(folder), *flags])


def test_damaged_checkpoint_is_refused_and_the_one_offered_gives_the_same_bits(run, whole):
    for path in (run / "checkpoints" / "32" / "agent").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:10])
    with pytest.raises(UsageError, match=r"32 cannot be read .* newest other one is --iteration 24"):
        resume(run)
    assert resume(run, "--iteration", "24")[0] == 0
    assert durability.differences(whole, run) == []


def test_run_killed_after_its_last_checkpoint_still_gets_its_result(run, whole):
    for name in ("result.json", "curve.png"):
        (run / name).unlink()
    assert resume(run)[0] == 0
    ours, theirs = (json.loads((folder / "result.json").read_text()) for folder in (run, whole))
    assert ours == theirs and (run / "curve.png").exists()
    assert durability.differences(whole, run) == []
    with pytest.raises(UsageError, match="has already taken 64 of 64 steps"):
        resume(run)


def test_run_killed_before_its_first_checkpoint_starts_again(run, whole):
    for path in (run / "checkpoints").iterdir():
        shutil.move(path, path.with_name(f"{path.name}.orbax-checkpoint-tmp"))
    status, text = resume(run)
    assert status == 0 and "starts again from its beginning" in text
    assert durability.differences(whole, run) == []


def test_row_that_a_kill_cut_in_the_middle_leaves_no_trace(run, whole):
    shutil.rmtree(run / "checkpoints" / "32")
    (run / "result.json").unlink()
    for name in ("metrics.jsonl", "metrics.csv"):
        text = (run / name).read_bytes()
        (run / name).write_bytes(text[: len(text) - 30])
    assert resume(run)[0] == 0
    assert durability.differences(whole, run) == []
    seconds = [row["time/seconds"] for row in read_rows(run / "metrics.jsonl")]
    assert seconds == sorted(seconds)  # time goes on from where the first process was


def test_lost_rows_and_settings_edited_by_hand_are_told(run, whole):
    for name in ("metrics.jsonl", "metrics.csv"):
        (run / name).unlink()
    shutil.rmtree(run / "checkpoints" / "32")
    (run / "result.json").unlink()
    status, text = resume(run)
    assert status == 0 and "metrics.jsonl is gone" in text
    with pytest.raises(UsageError, match="more with --steps 128"):
        resume(run, "--steps", "8")
    content = json.loads((run / "config.json").read_text())
    content["config"]["steps"] = "many"
    (run / "config.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match="not a training config: steps is 'many'"):
        resume(run)


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--iteration", "5"], "no checkpoint .*/5: the newest other one is --iteration 32"),
        (["--iteration", "x"], "iteration x cannot work"),
        (["--agent.discount", "0.5"], "keeps its settings"),
        (["--mesh", "2x2"], "2x2 needs|4 devices were asked for"),
    ],
)
def test_what_cannot_go_on_is_refused(run, flags, words):
    with pytest.raises(UsageError, match=words):
        resume(run, *flags)
