"""The command that compares runs: what it prints, what it leaves, what it refuses."""

import json
import subprocess
import sys

import pytest
from rich.console import Console

from experiments import compare
from jaxrl.errors import UsageError
from tests.analysis.run_folders import write_run, write_study

FILES = (
    "comparison.json",
    "curves.png",
    "curves.svg",
    "report.html",
    "scores.png",
    "scores.svg",
    "table.md",
    "table.tex",
)


def call(*arguments):
    console = Console(width=160, force_terminal=False)
    with console.capture() as captured:
        status = compare.main([str(word) for word in arguments], console)
    return status, captured.get()


def test_a_comparison_leaves_every_file_and_says_what_is_better(tmp_path):
    runs, out = write_study(tmp_path / "runs", {"a": 100, "b": 150}, env="brax:ant"), tmp_path / "out"
    status, text = call(runs, "--out", out)
    assert status == 0 and sorted(path.name for path in out.iterdir()) == sorted(FILES)
    assert text.startswith("b is better than a\n  b against a: better by 49 %")
    assert "\nbrax:ant" in text and "not reached" not in text
    assert f"--out {out}" in json.loads((out / "comparison.json").read_text())["command"]
    assert call(runs, "--out", out)[0] == 0  # an earlier comparison is replaced


def test_an_interrupted_comparison_leaves_the_earlier_one_whole_and_can_be_run_again(tmp_path, monkeypatch):
    runs, out = write_study(tmp_path / "runs", {"a": 100, "b": 150}), tmp_path / "out"

    def fail(*_):
        raise KeyboardInterrupt

    for earlier in ([], sorted(FILES)):
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(compare, "write_report", fail)
            call(runs, "--out", out)
        assert sorted(path.name for path in out.iterdir() if path.name != ".partial") == earlier
        assert call(runs, "--out", out)[0] == 0 and sorted(path.name for path in out.iterdir()) == sorted(FILES)


def test_one_impossible_row_does_not_stop_the_rest(tmp_path):
    runs = write_study(tmp_path / "runs", {"a": 100, "b": 150})
    with next(runs.rglob("metrics.jsonl")).open("a") as file:
        file.write('{"step": 1e30, "member": 0, "seed": 0, "eval/return": 5.0}\n{"step": -4, "eval/return": 5.0}\n')
        file.write('{"step": 1000, "member": 0, "seed": 0, "eval/return": 1e308}\n')
    _, text = call(runs, "--out", tmp_path / "out")
    assert "2 lines of metrics.jsonl cannot be read" in text.replace("\n", " ") and "b against a" in text


def test_several_tasks_have_a_profile(tmp_path):
    for env in ("brax:ant", "toy:b"):
        write_study(tmp_path / "runs", {"a": 100, "b": 150}, env=env)
    _, text = call(tmp_path / "runs", "--out", tmp_path / "out")
    assert (tmp_path / "out" / "profile.svg").exists() and "over all tasks" in text
    assert "b against a in brax:ant: better" in text  # and not an emoji


def test_what_is_wrong_is_said_and_the_rest_is_compared(tmp_path):
    runs = write_study(tmp_path / "runs", {"a": 100, "b": 150})
    write_run(runs / "going", [0.0, 1.0], agent="b", seed=20, planned=1000, finished=False)
    write_run(runs / "bare", [1.0] * 11, config=False)
    (runs / "bare" / "metrics.jsonl").write_bytes((runs / "bare" / "metrics.jsonl").read_bytes() + b'{"st')
    _, text = call(runs, tmp_path / "missing", "--out", tmp_path / "out")
    for words in ("missing does not exist", "10 % of its steps", "has no config.json", "half-written", "better by"):
        assert words in text
    assert "half-written" in (tmp_path / "out" / "report.html").read_text()


def test_training_returns_stand_in_where_nothing_was_evaluated(tmp_path):
    path = write_run(tmp_path / "a", [1.0, 2.0])
    file = path / "metrics.jsonl"
    file.write_text(file.read_text().replace("eval/return", "episode/return"))
    assert "episode/return at 100" in call(path, "--out", tmp_path / "out")[1].replace("\n", " ")


def test_refusals(tmp_path):
    run = write_run(tmp_path / "a", [1.0, 2.0])
    with pytest.raises(UsageError, match="threshold is a score, got nan"):
        call(run, "--threshold", "nan", "--out", tmp_path / "other")
    with pytest.raises(UsageError, match="no run to read"):
        call(tmp_path / "none", "--out", tmp_path / "out")
    with pytest.raises(UsageError, match=r"no run has a finite value of eval/x: .* it has eval/return"):
        call(run, "--metric", "eval/x", "--out", tmp_path / "out")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years")
    with pytest.raises(UsageError, match="is not overwritten"):
        call(run, "--out", tmp_path / "mine")
    assert not (tmp_path / "out").exists() and len(list((tmp_path / "mine").iterdir())) == 1


def test_a_mistake_is_one_line_and_status_2(tmp_path):
    command = [sys.executable, "-m", "experiments.compare", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: no run to read") and done.stderr.count("\n") == 1
