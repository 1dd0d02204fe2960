"""``--on-nan`` as a user meets it: what the command says, leaves behind, and exits with."""

import json
import sys

import pytest

from experiments import cli, train
from jaxrl.training.checkpoint import load_meta, saved_iterations
from jaxrl.training.records import read_rows
from tests.experiments.test_train import TINY, call
from tests.training.test_recovery import poisoned

# 32 iterations of two steps, with a checkpoint every eight and a row every four.
SAC = [*TINY["sac"], "--checkpoint.every", "16", "--log.every", "8", "--evaluate.every", "0"]


@pytest.fixture
def spoiled(monkeypatch):
    """Runs whose parameters become NaN the first time that they pass iteration 18."""
    real = train.build

    def build(config):
        built = real(config)
        return built._replace(program=poisoned(built.program, at=18))

    monkeypatch.setattr(train, "build", build)


def exit_code(monkeypatch, capsys, arguments):
    """Of the command, with what it wrote."""
    monkeypatch.setattr(cli, "enable_compilation_cache", lambda: None)
    monkeypatch.setattr(sys, "argv", ["experiments.train", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.run_main(train.main)
    captured = capsys.readouterr()
    return ended.value.code, " ".join((captured.out + captured.err).split())


def test_restore_goes_back_once_records_it_and_ends(spoiled, tmp_path):
    folder = tmp_path / "run"
    status, text = call(train.main, [*SAC, "--on-nan", "restore", "--run-dir", str(folder)])
    assert status == 0 and "finished 64 steps" in text
    entry = {"step": 40, "what": ["agent/params/temperature"], "members": [0], "back_to": 32}
    assert json.loads((folder / "result.json").read_text())["restores"] == [entry]
    rows = read_rows(folder / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(8, 72, 8))  # none twice, none missing
    assert [row.get("restores") for row in rows] == [None] * 4 + [1] * 4
    assert load_meta(folder / "checkpoints", 16)["restores"] == []
    assert load_meta(folder / "checkpoints", 32)["restores"] == [entry]


def test_stop_names_leaf_step_and_last_good_checkpoint_and_exits_with_3(spoiled, monkeypatch, capsys, tmp_path):
    folder = tmp_path / "run"
    code, said = exit_code(monkeypatch, capsys, [*SAC, "--run-dir", str(folder)])
    assert code == cli.EXIT_NOT_FINITE == 3
    assert "not finite at step 40: agent/params/temperature" in said
    assert "the last good checkpoint is iteration 16 (step 32)" in said
    assert saved_iterations(folder / "checkpoints") == [8, 16]  # nothing is saved of what is not finite
    assert read_rows(folder / "metrics.jsonl")[-1]["step"] == 32
    assert not (folder / "result.json").exists()


@pytest.mark.slow
def test_a_run_that_really_diverges_uses_up_its_restores(monkeypatch, capsys, tmp_path):
    """Steps so large that the parameters overflow at the first update, whatever the random numbers."""
    folder = tmp_path / "run"
    flags = "--agent.critic-learning-rate 3e38 --log.every 4 --checkpoint.every 4 --on-nan restore --restores 1".split()
    code, said = exit_code(
        monkeypatch, capsys, [*TINY["sac"], "--evaluate.every", "0", *flags, "--run-dir", str(folder)]
    )
    assert code == 3
    assert "not finite at step" in said and "gone back 1 times already, the last good checkpoint" in said
    assert saved_iterations(folder / "checkpoints")
