"""The host's side: rows, guards, signals."""

import csv
import io
import json
import os
import signal
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.errors import UsageError
from jaxrl.training import NotFiniteError, make_schedule, records, run
from jaxrl.training.program import finite_leaves
from jaxrl.training.run import check_finite, stop_on_signal
from tests.training import toy


def short(program, iterations=6, **options):
    per = program.steps_per_iteration
    return make_schedule(iterations * per, per, log_every=2 * per, evaluate_every=3 * per, **options)[0]


def test_json_lines_and_csv_hold_the_same_rows(tmp_path):
    program = toy.program("ppo", seeds=(5, 6), population=True)
    sinks = records.open_sinks(tmp_path, {})
    outcome = run(program, short(program), sinks=sinks, labels=[{"seed": 5}, {"seed": 6}])
    records.close_all(sinks)
    rows = records.read_rows(tmp_path / "metrics.jsonl")
    assert [row["iteration"] for row in rows] == [0, 0, 2, 2, 3, 3, 4, 4, 6, 6]
    assert [row["seed"] for row in rows] == [5, 6] * 5
    assert [("eval/return" in row) for row in rows[::2]] == [True, False, True, False, True]
    with (tmp_path / "metrics.csv").open() as file:
        table = list(csv.DictReader(file))
    assert len(table) == len(rows)
    for row, line in zip(rows, table, strict=True):
        assert {name: str(value) for name, value in row.items()} == {k: v for k, v in line.items() if v != ""}
    assert outcome.rows == rows[-2:]
    assert not outcome.interrupted


def test_evaluating_more_often_does_not_change_the_training():
    program = toy.program("ppo")
    per = program.steps_per_iteration
    often, _ = make_schedule(6 * per, per, log_every=6 * per, evaluate_every=per)
    never, _ = make_schedule(6 * per, per, log_every=6 * per, evaluate_every=0)
    states = [run(program, schedule).state.agent.params for schedule in (often, never)]
    toy.assert_same_bits(*states)


def test_half_written_line_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "a": 2.0}\n{"step": 2, "a": ')
    assert records.read_rows(path) == [{"step": 1, "a": 2.0}]


def test_late_columns_reach_the_table(tmp_path):
    sink = records.csv_table(tmp_path / "metrics.csv")
    sink.write({"step": 1, "a": 0.5})
    sink.write({"step": 2, "b": 1.5})
    assert (tmp_path / "metrics.csv").read_text().split() == ["step,a,b", "1,0.5,", "2,,1.5"]


def test_truncating_drops_what_came_after(tmp_path):
    for sink in (records.json_lines(tmp_path / "metrics.jsonl"), records.csv_table(tmp_path / "metrics.csv")):
        for step in (1, 2, 3):
            sink.write({"step": step})
        sink.close()
    records.truncate_rows(tmp_path, 2)
    assert [row["step"] for row in records.read_rows(tmp_path / "metrics.jsonl")] == [1, 2]
    assert (tmp_path / "metrics.csv").read_text().split() == ["step", "1", "2"]


def test_infinities_are_still_json(tmp_path):
    sink = records.json_lines(tmp_path / "metrics.jsonl")
    sink.write({"step": 1, "a": float("inf"), "b": np.float32(1.5)})
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"step": 1, "a": "inf", "b": 1.5}


@pytest.mark.parametrize("members", [None, 2])
def test_nan_stops_at_the_log_point_and_names_the_leaf(members):
    program = toy.program("sac", seeds=range(members or 1), population=members is not None)

    def poison(state, first, count):
        state, chunk = program.advance(state, first, count)
        if first + count >= 4:
            bias = state.agent.params["temperature"]
            spoiled = jnp.nan if members is None else jnp.asarray([0.0, jnp.nan])
            params = state.agent.params | {"temperature": bias + spoiled}
            state = state._replace(agent=state.agent._replace(params=params))
            chunk = chunk._replace(finite=finite_leaves(state, members is not None))
        return state, chunk

    saved = []
    with pytest.raises(
        NotFiniteError, match="temperature" if members is None else r"temperature.* \(member 1\)"
    ) as error:
        run(
            program._replace(advance=poison),
            short(program, iterations=12),
            save=lambda iteration, state, score: saved.append(iteration),
        )
    assert error.value.step == 4 * program.steps_per_iteration
    assert saved == []


def test_a_mean_over_nothing_is_not_an_error():
    program = toy.program("sac")
    _, chunk = program.advance(program.init(), 0, 1)
    assert np.isnan(chunk.metrics["critic/loss"])
    check_finite(chunk, 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_at_the_next_moment_with_everything_saved(number):
    program = toy.program("ppo")
    saved = []

    def send(row):
        if row["iteration"] == 2:
            os.kill(os.getpid(), number)

    outcome = run(
        program,
        short(program, iterations=12),
        listeners=(send,),
        save=lambda iteration, state, score: saved.append(iteration),
    )
    assert outcome.interrupted and outcome.iteration == 2 and saved == [2]


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGINT)
    with stop_on_signal() as stopped:
        assert not stopped()
    assert signal.getsignal(signal.SIGINT) is before


def test_tensorboard_gets_every_number_with_a_name(tmp_path):
    pytest.importorskip("tensorboardX")
    sinks = records.open_sinks(tmp_path, {}, tensorboard=True)
    for sink in sinks:
        sink.write({"step": 1, "member": 0, "eval/return": 2.0})
    records.close_all(sinks)
    assert any(path.stat().st_size > 0 for path in (tmp_path / "tensorboard").rglob("*tfevents*"))


def test_absent_package_is_named_with_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match=r"wandb.*--extra wandb"):
        records.open_sinks(tmp_path, {}, wandb="project")


def test_rows_wait_for_room_on_the_disk_and_come_in_order(tmp_path):
    written, lines, full = [], [], [True]

    def write(row):
        if full[0]:
            raise OSError(28, "No space left on device")
        written.append(row["step"])

    sink = records.patient(records.Sink(write, lambda: None), lines.append)
    for step in (1, 2, 3):
        sink.write({"step": step})
    full[0] = False
    sink.write({"step": 4})
    assert written == [1, 2, 3, 4] and len(lines) == 1


def test_a_row_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    records.append(path, b"whole\n")

    class Full(io.FileIO):
        def write(self, data):
            return super().write(data[:3])

    monkeypatch.setattr(type(path), "open", lambda self, mode, buffering: Full(self, "a"))
    with pytest.raises(OSError, match="No space left"):
        records.append(path, b"another\n")
    monkeypatch.undo()
    assert path.read_bytes() == b"whole\n"
