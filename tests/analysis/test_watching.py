"""A run while it goes on: its state, rate and time left, whatever its folder holds by now."""

import json
import math
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from jaxrl.analysis import sparks, watchpage
from jaxrl.analysis.watching import choose, drawn_members, duration, look, rates, settings_table, standing
from jaxrl.errors import UsageError
from tests.analysis.run_folders import write_run


def named(watched, name):
    return next(one for one in watched.series if one.name == name)


def test_a_running_run_says_its_rate_and_time_left(tmp_path):
    """100 steps every 2 seconds, two members: 100 steps/s together; 700 steps are left, of which 3 seconds have passed."""
    members = [{"seed": 0}, {"seed": 1}]
    watched = look(write_run(tmp_path / "a", [0.0, 1, 2, 3], planned=1000, finished=False, members=members))
    now = standing(watched, watched.written + 3.0)
    assert (now.state, now.step, now.planned, now.members) == ("running", 300, 1000, 2)
    assert now.rate == pytest.approx(100.0) and now.left == pytest.approx(14.0 - 3.0)
    assert "3.0 s ago" in now.message


def test_every_other_state(tmp_path):
    silent = look(write_run(tmp_path / "silent", [0.0, 1, 2], planned=1000, finished=False))
    now = standing(silent, silent.written + 600)
    assert now.state == "silent" and math.isnan(now.left)
    assert "10 min" in now.message and f"--resume {tmp_path / 'silent'}" in now.message
    assert standing(look(write_run(tmp_path / "done", [0.0, 1]))).state == "finished"
    assert standing(look(write_run(tmp_path / "stopped", [0.0, 1], interrupted=2))).state == "interrupted"
    last = look(write_run(tmp_path / "last", [0.0, 1], finished=False))
    assert "all steps are taken" in standing(last, last.written).message


def test_a_run_that_has_written_nothing_yet(tmp_path):
    path = write_run(tmp_path / "a", [1.0], finished=False)
    (path / "metrics.jsonl").unlink()
    watched = look(path)
    assert standing(watched, watched.written + 5).state == "waiting"
    assert standing(watched, watched.written + 7200).state == "silent"
    (path / "metrics.jsonl").write_bytes(b"")
    assert standing(look(path, watched)).state == "waiting"


def test_what_is_new_is_added_and_a_replaced_file_is_read_again(tmp_path):
    path = write_run(tmp_path / "a", [1.0, 2.0], finished=False)
    first = look(path)
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 200, "member": 0, "eval/return": 5.0}\n{"step": 300, "mem')
    second = look(path, first)
    assert [row["step"] for row in second.rows] == [0, 100, 200] and second.half
    np.testing.assert_array_equal(named(second, "eval/return").curves[0].values, [1, 2, 5])
    assert look(path, second).series is second.series  # nothing new: nothing is done again
    (path / "new").write_text('{"step": 0, "eval/return": 9.0}\n' * 30)
    (path / "new").replace(path / "metrics.jsonl")
    third = look(path, second)
    assert len(third.rows) == 30 and named(third, "eval/return").latest == [9.0]


def test_rates_leave_out_the_start_when_everything_compiles():
    rows = [{"step": s, "time/seconds": t} for s, t in ((0, 0.0), (100, 60.0), (200, 62.0), (300, 64.0))]
    assert rates(rows) == pytest.approx((50.0, 2.0))
    assert all(map(math.isnan, rates(rows[:1]))) and all(map(math.isnan, rates([{"step": 1}, {"step": 2}])))


def test_the_newest_run_of_a_folder_is_chosen(tmp_path):
    import os

    for name, when in (("a", 200), ("b", 100)):
        write_run(tmp_path / name, [1.0])
        os.utime(tmp_path / name / "metrics.jsonl", (when, when))
    path, notes = choose(tmp_path)
    assert path.name == "a" and "2 runs" in notes[0]
    with pytest.raises(UsageError, match="does not exist"):
        choose(tmp_path / "c")


def test_swept_settings_are_ranked_and_many_members_become_a_range(tmp_path):
    members = [{"seed": s, "learning_rate": lr} for lr in (0.1, 0.2) for s in range(10)]
    path = write_run(tmp_path / "a", [1.0, 2.0], members=members)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        row["eval/return"] = 100 * row["learning_rate"] + row["seed"]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    watched = look(path)
    table = settings_table(watched, "eval/return")
    assert [(name, values.mean()) for name, values in table] == [
        ("learning rate 0.2", 24.5),
        ("learning rate 0.1", 14.5),
    ]
    low, high = drawn_members(named(watched, "eval/return"))
    assert (low.values[-1], high.values[-1]) == (10.0, 29.0)


def test_the_page_holds_state_numbers_and_charts_and_survives_nan(tmp_path):
    path = write_run(tmp_path / "a<b", [1.0, 2.0, "nan"], extra={"critic/loss": "inf"}, finished=False, planned=400)
    page = watchpage.page(look(path))
    for words in (
        "Running",
        "a&lt;b",
        "eval/return",
        "critic/loss",
        "no finite value yet",
        "200 <small>of 400</small>",
    ):
        assert words in page
    for chart in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(chart)
    (path / "metrics.jsonl").unlink()
    assert "Waiting" in watchpage.page(look(path))


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0.44, "0.4 s"),
        (42.4, "42 s"),
        (180, "3 min"),
        (7500, "2 h 05 min"),
        (273600, "3 d 4 h"),
        (math.nan, "–"),
        (0, "0 s"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_sparklines():
    assert sparks.sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparks.sparkline([0, 0, 8, 8], width=2) == "▁█"
    assert sparks.sparkline([1, math.nan, 1]) == "▅ ▅"
    assert sparks.sparkline([]) == "" and sparks.sparkline([math.nan]) == " "


def test_a_plot_in_dots():
    """A line from the lower left to the upper right of two cells by one: dots in the first and the last column."""
    (row,) = sparks.plot(np.array([0, 3]), [np.array([0.0, 3.0])], 2, 1, (0.0, 3.0))
    assert [ord(character) - 0x2800 for character, _ in row] == [0x40 | 0x20 | 0x80, 0x02 | 0x04 | 0x08 | 0x10]
    assert [owner for _, owner in row] == [0, 0]
    (row,) = sparks.plot(np.array([0, 3]), [np.full(2, np.nan), np.zeros(2)], 1, 1, (0.0, 3.0))
    assert row == [(chr(0x2800 + 0x40 + 0x80), 1)]
