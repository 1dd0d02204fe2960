"""A grid runs once, goes on after an interruption, and ends in one table."""

import csv
import json
import sys
import types

import pytest

from experiments import sweep
from jaxrl.errors import MissingExtraError, UsageError
from tests.experiments.test_train import call

# An experiment that takes no time: it fails on request, and counts its starts.
MODULE = """
import json, sys
from pathlib import Path
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
folder = Path(flags["--run-dir"])
folder.mkdir(parents=True)
with open("starts.txt", "a") as starts:
    starts.write(folder.name + "\\n")
if flags["--x"] == "2" and not Path("mended").exists():
    (folder / "result.json").write_text(json.dumps({"return": 0.0, "interrupted": 15}))
    sys.exit(143)
(folder / "result.json").write_text(json.dumps({"return": 10 * float(flags["--x"]) + float(flags["--a.y"]), "interrupted": 0}))
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "tiny.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


WORDS = ["--out", "out", "--experiment", "tiny", "--jobs", "2", "--grid", "x=1,2", "a.y=3,4.5"]


def test_grid_runs_once_and_what_was_interrupted_runs_again(here):
    status, text = call(sweep.main, WORDS)
    assert status == 1 and "x=2_y=3 ended with status 143" in text
    (here / "mended").touch()
    assert call(sweep.main, WORDS)[0] == 0
    starts = (here / "starts.txt").read_text().split()
    assert sorted(starts) == ["x=1_y=3", "x=1_y=4.5", *["x=2_y=3"] * 2, *["x=2_y=4.5"] * 2]
    with (here / "out" / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["x"], row["a.y"], row["return"], row["finished"]) for row in rows] == [
        ("1", "3", "13.0", "True"),
        ("1", "4.5", "14.5", "True"),
        ("2", "3", "23.0", "True"),
        ("2", "4.5", "24.5", "True"),
    ]
    assert (here / "out" / "table.md").read_text().splitlines()[2] == "| 1 | 3 | 13 | 0 | True |"
    call(sweep.main, WORDS)
    assert len((here / "starts.txt").read_text().split()) == 6


def test_grid_may_grow_but_the_experiment_stays(here):
    (here / "mended").touch()
    call(sweep.main, WORDS)
    call(sweep.main, [*WORDS[:-1], "a.y=3,4.5,5"])
    assert len((here / "starts.txt").read_text().split()) == 6
    with pytest.raises(UsageError, match="holds a sweep of 'tiny'"):
        call(sweep.main, [*WORDS, "--", "--other", "1"])


def test_half_trained_member_is_resumed(tmp_path):
    asked = sweep.Sweep(out=tmp_path, grid=("seed=0,1",))
    half, fresh = sweep.members(asked)
    half.folder.mkdir()
    (half.folder / "config.json").write_text("{}")
    assert sweep.command(asked, half, ["--agent", "ppo"])[2:] == ["experiments.train", "--resume", str(half.folder)]
    assert sweep.command(asked, fresh, ["--agent", "ppo"])[3:] == [
        *("--agent", "ppo", "--seed", "1", "--run-dir", str(fresh.folder))
    ]


def test_slurm_goes_through_submitit(here, monkeypatch):
    """What submitit is told; its jobs run at once here."""
    told = {}

    class Executor:
        def __init__(self, folder, cluster):
            told["cluster"] = cluster

        def update_parameters(self, **parameters):
            told.update(parameters)

        def batch(self):
            return sweep.ThreadPoolExecutor(1)  # any context

        def submit(self, function, words):
            status = function(words)
            return types.SimpleNamespace(job_id=1, result=lambda: status)

    monkeypatch.setitem(sys.modules, "submitit", types.SimpleNamespace(AutoExecutor=Executor))
    (here / "mended").touch()
    slurm = ["--executor", "slurm", "--slurm", "partition=gpu", "gpus_per_node=2", "--hours", "1.5"]
    assert call(sweep.main, [*WORDS, *slurm])[0] == 0
    assert told == {"cluster": "slurm", "timeout_min": 90, "slurm_partition": "gpu", "slurm_gpus_per_node": 2}
    assert json.loads((here / "out" / "x=1_y=3" / "result.json").read_text())["return"] == 13.0


def test_missing_submitit_says_what_to_install(here, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(MissingExtraError, match="sweep"):
        call(sweep.main, [*WORDS, "--executor", "local"])


@pytest.mark.parametrize(
    "grid, words",
    [(["x"], "cannot read the grid 'x'"), (["x=1,"], "cannot read"), (["x=1", "--x=2"], "twice"), ([], "--grid")],
)
def test_grid_that_cannot_be_read_is_refused(grid, words, tmp_path):
    with pytest.raises(UsageError, match=words):
        sweep.members(sweep.Sweep(out=tmp_path, grid=tuple(grid)))
    assert list(tmp_path.iterdir()) == []
