"""Reading run folders: whole ones, broken ones, growing ones."""

import json

import numpy as np
import pytest

from jaxrl.analysis.methods import group
from jaxrl.analysis.runs import FINISHED, INTERRUPTED, OPEN, find, read_folder, read_rows, read_runs
from jaxrl.errors import UsageError
from tests.analysis.run_folders import write_run


def runs_of(*paths, metric="eval/return"):
    found, _ = find(paths)
    return [run for one in found for run in read_runs(read_folder(*one), metric)[0]]


def test_a_run_is_read_whole(tmp_path):
    folder = read_folder(write_run(tmp_path / "a", [1.0, 2.0, 4.0], seed=7))
    (run,), problems = read_runs(folder, "eval/return")
    assert problems == []
    assert (folder.agent, folder.environment, folder.planned, folder.state) == ("ppo", "toy:a", 200, FINISHED)
    assert run.settings["agent.hidden_sizes"] == (8, 8)
    assert run.seed == 7 and run.seconds == 4.0
    np.testing.assert_array_equal(run.curve.steps, [0, 100, 200])
    np.testing.assert_array_equal(run.curve.values, [1.0, 2.0, 4.0])


def test_states(tmp_path):
    assert read_folder(write_run(tmp_path / "a", [1.0], finished=False)).state == OPEN
    assert read_folder(write_run(tmp_path / "b", [1.0], interrupted=15)).state == INTERRUPTED


def test_folders_are_found_once_and_checkpoints_are_not_runs(tmp_path):
    write_run(tmp_path / "sweep" / "b", [1.0])
    write_run(tmp_path / "sweep" / "a", [1.0])
    write_run(tmp_path / "sweep" / "a" / "checkpoints" / "1", [1.0])
    (tmp_path / "sweep" / "config.json").write_text(json.dumps({"agent": "ppo"}))  # the sweep's own
    found, problems = find([tmp_path / "sweep", tmp_path / "sweep" / "a", f"mine={tmp_path / 'sweep' / 'b'}"])
    assert [path.name for path, _, _ in found] == ["a", "b"]
    assert sum("given twice" in line for line in problems) == 2


def test_numbers_in_names_go_by_their_value(tmp_path):
    names = ["rate=0.0002", "rate=0.0011", "rate=0.002", "rate=1e-1", "seed2", "seed10"]
    for name in reversed(names):
        write_run(tmp_path / name, [1.0])
    assert [path.name for path, *_ in find([tmp_path])[0]] == names


def test_a_name_is_taken_apart_unless_it_is_a_path(tmp_path):
    write_run(tmp_path / "x=y", [1.0])
    write_run(tmp_path / "z", [1.0])
    found, _ = find([str(tmp_path / "x=y"), f"mine={tmp_path / 'z'}"])
    assert [(given.rpartition("/")[2], named) for _, given, named in found] == [("x=y", False), ("mine", True)]


def test_nothing_to_read_is_refused_and_says_what_was_asked_for(tmp_path):
    with pytest.raises(UsageError, match="missing does not exist"):
        find([tmp_path / "missing"])
    with pytest.raises(UsageError, match="holds no run"):
        find([tmp_path])


def test_broken_lines_are_counted_and_the_rest_is_kept(tmp_path):
    path = write_run(tmp_path / "a", [1.0, 2.0]) / "metrics.jsonl"
    whole = path.read_bytes()
    broken = b'{"step": 1\n[1]\n{"step": true}\n{"step": "x"}\n\xff\xfe\n\x00\x00\n{"a": 1}\n\n'
    path.write_bytes(broken + whole + b'{"step": 200, "eval/re')
    rows = read_rows(path)
    assert [row["step"] for row in rows.rows] == [0, 100]
    assert (rows.skipped, rows.half) == (7, True)
    runs, problems = read_runs(read_folder(tmp_path / "a"), "eval/return")
    assert len(runs) == 1 and len(runs[0].curve.steps) == 2
    assert any("7 lines" in line for line in problems) and any("half-written" in line for line in problems)


def test_a_growing_file_is_read_from_where_it_was_left(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2')
    first = read_rows(path)
    assert ([row["step"] for row in first.rows], first.half, first.offset) == ([1], True, 12)
    path.write_bytes(b'{"step": 1}\n{"step": 23}\n{"step": 3}\n')
    second = read_rows(path, first.offset)
    assert ([row["step"] for row in second.rows], second.half, second.skipped) == ([23, 3], False, 0)
    path.write_bytes(b'{"step": 9}\n')  # cut, as a resumed run does
    assert [row["step"] for row in read_rows(path, second.offset).rows] == [9]


def test_values_that_are_not_finite_are_left_out_and_told(tmp_path):
    write_run(tmp_path / "a", [1.0, "nan", 3.0, float("inf"), "what"])
    (run,), problems = read_runs(read_folder(tmp_path / "a"), "eval/return")
    np.testing.assert_array_equal(run.curve.values, [1.0, 3.0])
    assert any("3 values" in line for line in problems)


def test_missing_parts_are_told_and_the_usable_part_is_kept(tmp_path):
    write_run(tmp_path / "bare", [1.0, 2.0], config=False)
    write_run(tmp_path / "bad", [1.0, 2.0])
    (tmp_path / "bad" / "config.json").write_text('{"agent": "pp')
    write_run(tmp_path / "empty", [1.0])
    (tmp_path / "empty" / "metrics.jsonl").unlink()
    read = {name: read_runs(read_folder(tmp_path / name), "eval/return") for name in ("bare", "bad", "empty")}
    assert {name: len(runs) for name, (runs, _) in read.items()} == {"bare": 1, "bad": 1, "empty": 0}
    assert "has no config.json" in read["bare"][1][0]
    assert "cannot be read" in read["bad"][1][0]
    assert "has not written a row yet" in read["empty"][1][0]


def test_an_unknown_metric_names_those_there_are(tmp_path):
    runs, problems = read_runs(read_folder(write_run(tmp_path / "a", [1.0], extra={"critic/loss": 1.0})), "eval/retrun")
    assert runs == [] and "critic/loss, eval/return" in problems[0]


def test_runs_that_differ_in_their_seed_are_one_method_and_swept_values_split(tmp_path):
    labels = [{"seed": s, "learning_rate": lr} for lr in (0.001, 0.01) for s in (0, 1)]
    write_run(tmp_path / "population", [1.0, 2.0], members=labels)
    write_run(tmp_path / "single", [1.0, 2.0], seed=2, settings={"learning_rate": 0.01})
    groups, notes = group(runs_of(tmp_path))
    assert notes == []
    assert {one.method: [run.seed for run in one.runs] for one in groups} == {
        "learning rate 0.001": [0, 1],
        "learning rate 0.01": [0, 1, 2],
    }


def test_settings_may_differ_between_tasks_without_making_methods(tmp_path):
    write_run(tmp_path / "a", [1.0, 2.0], env="toy:a", settings={"learning_rate": 0.1})
    write_run(tmp_path / "b", [1.0, 2.0], env="toy:b", settings={"learning_rate": 0.2})
    groups, _ = group(runs_of(tmp_path))
    assert [(one.method, one.task) for one in groups] == [("ppo", "toy:a"), ("ppo", "toy:b")]


def test_a_name_takes_as_few_settings_as_tell_methods_apart(tmp_path):
    for i, lr in enumerate((0.1, 0.2)):
        write_run(tmp_path / f"a{i}", [1.0, 2.0], settings={"learning_rate": lr, "hidden_sizes": [i + 1], "clip": lr})
    assert [one.method for one in group(runs_of(tmp_path))[0]] == ["learning rate 0.1", "learning rate 0.2"]


def test_the_same_seed_twice_counts_once_and_names_tell_them_apart(tmp_path):
    write_run(tmp_path / "old", [1.0, 2.0], seed=3)
    write_run(tmp_path / "new", [1.0, 2.0, 3.0], seed=3)
    (one,), notes = group(runs_of(tmp_path / "old", tmp_path / "new"))
    assert [run.folder.path.name for run in one.runs] == ["new"]
    assert len(notes) == 1 and "NAME=RUN" in notes[0]
    groups, notes = group(runs_of(f"before={tmp_path / 'old'}", f"after={tmp_path / 'new'}"))
    assert [one.method for one in groups] == ["before", "after"] and notes == []


def test_grouping_by_a_setting(tmp_path):
    for i, lr in enumerate((0.1, 0.1, 0.2)):
        write_run(tmp_path / f"a{i}", [1.0], seed=i, settings={"learning_rate": lr, "clip": 0.1 * i})
    runs = runs_of(tmp_path)
    assert [len(one.runs) for one in group(runs, ["learning_rate"])[0]] == [2, 1]
    assert len(group(runs, ["folder"])[0]) == 3
    with pytest.raises(UsageError, match=r"did you mean 'agent\.learning_rate'"):
        group(runs, ["agent.learning_rat"])


def test_a_replay_that_holds_everything_is_one_setting_whatever_its_size(tmp_path):
    for i, points in enumerate((3, 5)):
        path = write_run(tmp_path / f"a{i}", [1.0] * points, seed=i)
        content = json.loads((path / "config.json").read_text())
        content["config"]["loop"]["capacity"] = content["config"]["steps"]
        (path / "config.json").write_text(json.dumps(content))
    assert len(group(runs_of(tmp_path))[0]) == 1
