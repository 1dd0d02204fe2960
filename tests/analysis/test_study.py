"""Studies, findings and the report: hand-made runs with known answers."""

import json
import math
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from jaxrl.analysis import findings, svg
from jaxrl.analysis.methods import group
from jaxrl.analysis.report import write_report
from jaxrl.analysis.runs import find, read_folder, read_runs
from jaxrl.analysis.study import make_study
from jaxrl.errors import UsageError
from tests.analysis.run_folders import write_run, write_study


def study_of(*paths, **options):
    found, notices = find(paths)
    read = [read_runs(read_folder(*one), "eval/return") for one in found]
    groups, left_out = group([run for runs, _ in read for run in runs])
    problems = [line for _, lines in read for line in lines]
    return make_study(groups, "eval/return", notices=[*notices, *problems, *left_out], **options)


def test_scores_areas_and_steps_by_hand(tmp_path):
    """Seed s rises in a line from 0 to 100 + s over 1,000 steps: area 50 + s / 2, 90 % of 102.5 at step 900 or 1,000."""
    study = study_of(write_study(tmp_path, {"a": 100}, seeds=6))
    cell = study.cells["a", "toy:a"]
    np.testing.assert_allclose(cell.scores, [100, 101, 102, 103, 104, 105])
    assert cell.final.value == pytest.approx(102.5)  # of the middle four
    assert cell.area.value == pytest.approx(51.25)
    assert study.threshold["toy:a"] == pytest.approx(0.9 * 102.5)  # 92.25: 90 + .9 s at step 900 reaches it from s = 3
    assert cell.steps_to == 900 and cell.reached == 6
    assert study.verdicts == {} and "nothing to compare" in findings.headline(study)


def test_a_clear_difference_is_found_and_paired_by_seed(tmp_path):
    study = study_of(write_study(tmp_path, {"a": 100, "b": 150}))
    verdict = study.verdicts["b", "toy:a"]
    assert verdict.better is True and verdict.comparison.paired
    assert verdict.comparison.difference.value == pytest.approx(50)
    assert findings.headline(study) == "b is better than a"
    assert study_of(tmp_path, baseline="b").verdicts["a", "toy:a"].better is False
    assert study_of(tmp_path, lower_is_better=True).verdicts["b", "toy:a"].better is False


def test_seeds_that_failed_are_not_left_out_in_silence(tmp_path):
    """b is ahead with four of its six seeds: two end in NaN, one of them from the start, and may not flatter it."""
    write_study(tmp_path, {"a": 100, "b": 150})
    files = sorted(tmp_path.rglob("metrics.jsonl"))
    for path, first in ((files[-1], 0), (files[-2], 600)):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows = [row | ({"eval/return": "NaN"} if row["step"] >= first else {}) for row in rows]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    study = study_of(tmp_path)
    cell, verdict = study.cells["b", "toy:a"], study.verdicts["b", "toy:a"]
    assert study.at["toy:a"] == 1000 and len(cell.counted) == 4 and findings.rows(study, "toy:a")["b"][0] == "4 of 6"
    assert verdict.better is None and verdict.text.startswith(
        "cannot tell: 2 of 6 runs of b ended in numbers that are not"
    )
    assert "better by" in verdict.text and any("2 of them for numbers that are not finite" in n for n in study.notices)
    # Against b nothing hinges on them, and at a step before the later failure one more has a score.
    assert study_of(tmp_path, lower_is_better=True).verdicts["b", "toy:a"].better is False
    assert len(study_of(tmp_path, at=500).cells["b", "toy:a"].counted) == 5
    write_report(study, tmp_path / "report.html")
    assert "not finite" in (tmp_path / "report.html").read_text()


def test_a_dropped_member_failed_whatever_its_last_row_says(tmp_path):
    write_run(tmp_path / "a", np.arange(11.0), members=[{"seed": s} for s in range(4)])
    path = tmp_path / "a" / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows if row["member"] != 3 or row["step"] <= 400))
    (tmp_path / "a" / "result.json").write_text(json.dumps({"dropped": [{"member": 3, "step": 500}], "interrupted": 0}))
    study = study_of(tmp_path)
    (cell,) = study.cells.values()
    assert study.at["toy:a"] == 1000 and len(cell.counted) == 3 and [run.failed for run in cell.left_out] == [True]


def test_a_run_that_stopped_early_is_told_in_the_verdict(tmp_path):
    write_study(tmp_path, {"a": 100, "b": 150}, seeds=5)
    write_run(tmp_path / "late", [0.0, 15.0], agent="b", seed=9, planned=1000, finished=False)
    text = study_of(tmp_path).verdicts["b", "toy:a"].text
    assert text.startswith("better by") and text.endswith("without 1 of 6 runs of b that have no score")


def test_no_difference_and_one_seed_cannot_tell(tmp_path):
    same = study_of(write_study(tmp_path / "same", {"a": 100, "b": 100}))
    assert same.verdicts["b", "toy:a"].better is None
    assert "cannot tell" in findings.headline(same)
    one = study_of(write_study(tmp_path / "one", {"a": 100, "b": 150}, seeds=1))
    assert one.verdicts["b", "toy:a"].text == "cannot tell: 1 seed; at least 3 of each are needed"
    assert math.isnan(one.cells["a", "toy:a"].final.low)


def test_p_values_are_corrected_over_all_tasks(tmp_path):
    for env in ("toy:a", "toy:b"):
        write_study(tmp_path, {"a": 100, "b": 150, "c": 100}, env=env)
    study = study_of(tmp_path)
    raw = {key: verdict.comparison.p_value for key, verdict in study.verdicts.items()}
    smallest = min(raw, key=raw.get)
    assert len(raw) == 4 and raw[smallest] > 0
    assert study.verdicts[smallest].p_value == pytest.approx(4 * raw[smallest])


def test_few_runs_are_compared_by_means(tmp_path):
    study = study_of(write_study(tmp_path, {"a": 100, "b": 150}, seeds=4))
    assert study.aggregate == "mean" and "the mean of" in findings.lead(study)
    assert study_of(tmp_path, aggregate="iqm").aggregate == "iqm"
    with pytest.raises(UsageError, match="median"):
        study_of(tmp_path, aggregate="median")


def test_a_run_still_going_is_drawn_but_does_not_count(tmp_path):
    write_study(tmp_path, {"a": 100, "b": 150})
    write_run(tmp_path / "late", [0.0, 10.0, 20.0], seed=9, planned=1000, finished=False)
    content = json.loads((tmp_path / "late" / "config.json").read_text())
    (tmp_path / "late" / "config.json").write_text(json.dumps({**content, "agent": "b"}))
    study = study_of(tmp_path)
    cell = study.cells["b", "toy:a"]
    assert (len(cell.counted), len(cell.left_out), study.at["toy:a"]) == (6, 1, 1000)
    assert any("20 % of its steps: still going, or killed" in text for text in study.notices)
    assert any("1 of 7 runs do not reach" in text for text in study.notices)
    assert findings.rows(study, "toy:a")["b"][0] == "6 of 7"
    page = write_report(study, tmp_path / "report.html").read_text()
    assert page.count("line faint") == 1


def test_a_method_that_does_not_get_better_sets_no_threshold(tmp_path):
    for seed in range(3):
        write_run(tmp_path / f"a{seed}", [5.0, 4.0], seed=seed)
    study = study_of(tmp_path)
    assert math.isnan(study.threshold["toy:a"]) and findings.rows(study, "toy:a")["ppo"][3] == ""
    assert study_of(tmp_path, lower_is_better=True).threshold["toy:a"] == pytest.approx(4.1)
    assert study_of(tmp_path, threshold=4.5).cells["ppo", "toy:a"].steps_to == 0


def test_runs_of_different_lengths_are_compared_where_all_have_been(tmp_path):
    write_study(tmp_path, {"a": 100})
    write_study(tmp_path, {"b": 150}, points=6)  # rises to its level in 500 steps
    study = study_of(tmp_path)
    assert study.at["toy:a"] == 500
    np.testing.assert_allclose(study.cells["a", "toy:a"].scores, [50, 50.5, 51, 51.5, 52, 52.5])
    assert any("different lengths" in text and "--at 1000" in text for text in study.notices)
    assert len(study_of(tmp_path, at=1000).cells["b", "toy:a"].counted) == 0
    with pytest.raises(UsageError, match="no run reaches step 5,000; the longest ends at 1,000"):
        study_of(tmp_path, at=5000)


def test_unknown_baselines_are_refused(tmp_path):
    with pytest.raises(UsageError, match="did you mean 'alpha'"):
        study_of(write_study(tmp_path, {"alpha": 1, "b": 2}), baseline="alpah")


def test_scores_are_normalised_over_tasks(tmp_path):
    """Every run starts at 0, so 0 stays 0; the best method's aggregate is 1 in each task."""
    write_study(tmp_path, {"a": 100, "b": 200}, env="toy:a")
    write_study(tmp_path, {"a": 1000, "b": 500}, env="toy:b")
    study = study_of(tmp_path)
    assert study.normalised["a"].value == pytest.approx(np.mean(sorted(
        [(100 + s) / 202.5 for s in range(6)] + [(1000 + s) / 1002.5 for s in range(6)]
    )[3:9]))  # fmt: skip
    assert set(study.profiles) == {"a", "b"} and set(study.overall) == {"b"}
    profile = study.profiles["a"]
    assert profile.share[0] == 1.0 and profile.share[-1] == 0.0
    assert "brax" not in findings.headline(study)


def test_a_method_missing_in_a_task_is_said(tmp_path):
    write_study(tmp_path, {"a": 100, "b": 200}, env="toy:a")
    write_study(tmp_path, {"a": 100}, env="toy:b")
    study = study_of(tmp_path)
    assert set(study.normalised) == {"a"} and any(
        text.endswith("for want of a score in some: b") for text in study.notices
    )
    assert "final eval/return in each task" in findings.lead(study)


def test_differences_are_only_those(tmp_path):
    write_run(tmp_path / "a", [1.0, 2.0], agent="ppo", settings={"clip": 0.2}, version="1.0")
    write_run(tmp_path / "b", [1.0, 2.0], agent="sac", settings={"learning_rate": 0.01}, version="1.1")
    differences = study_of(tmp_path).differences
    assert list(differences) == ["agent", "agent.learning_rate", "version of jax", "agent.clip"]
    assert differences["agent.clip"] == {"ppo": "0.2", "sac": "–"}


def test_the_report_is_one_offline_page_that_escapes_what_it_shows(tmp_path):
    evil = '<script>alert("x")</script>&'
    write_study(tmp_path / "runs", {evil.replace("/", "|"): 100, "b": 150})
    (tmp_path / "runs" / "b_toy_a_0" / "rollout.html").write_text('<p class="x">hello &amp; goodbye</p>')
    study = study_of(tmp_path / "runs")
    page = write_report(study, tmp_path / "report.html", "compare --now").read_text()
    assert "<script>alert" not in page and "&lt;script&gt;" in page
    assert not re.search(r"(?:src|href)\s*=\s*[\"'](?:https?:)?//", page) and "@import" not in page
    assert "&lt;p class=&quot;x&quot;&gt;hello &amp;amp; goodbye" in page
    assert page.index("better by") < page.index("<svg")
    for words in ("compare --now", "experiments.train --agent b", "jax 1.0", "What differs"):
        assert words in page
    for chart in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(chart)


def test_a_large_rollout_is_copied_beside_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr("jaxrl.analysis.report.LARGEST_EMBEDDED", 10)
    write_study(tmp_path / "runs", {"a": 100})
    (tmp_path / "runs" / "a_toy_a_2" / "rollout.html").write_text("x" * 11)
    page = write_report(study_of(tmp_path / "runs"), tmp_path / "report.html").read_text()
    (link,) = re.findall(r'href="(rollouts/[^"]+)"', page)
    assert (tmp_path / link).read_text() == "x" * 11


def test_more_methods_than_colours_keep_the_baseline_and_the_best(tmp_path):
    levels = {f"m{i}": 100 - 5 * i if i else 10 for i in range(12)}
    page = write_report(study_of(write_study(tmp_path, levels, seeds=1)), tmp_path / "r.html").read_text()
    assert "the best 7 others of 12" in page
    drawn = re.findall(r'class="name"[^>]*>([^<]+)<', page)
    assert sorted(drawn) == sorted(["m0", *(f"m{i}" for i in range(1, 8))])


def test_tables_and_data_hold_the_same_numbers(tmp_path):
    study = study_of(write_study(tmp_path, {"a_1": 100, "b": 150}))
    assert "a\\_1" in findings.markdown(study) and "a\\_1" in findings.latex(study)
    data = json.loads(json.dumps(findings.as_data(study), allow_nan=False))
    assert data["tasks"]["toy:a"]["methods"]["b"]["final"]["value"] == pytest.approx(152.5)
    assert data["tasks"]["toy:a"]["methods"]["a_1"]["runs"][0]["score"] == pytest.approx(100)


def test_ticks_are_round():
    assert svg.ticks(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert svg.ticks(-130, 450) == [-100, 0, 100, 200, 300, 400]
    assert svg.ticks(5, 5) == [5]
    assert [svg.short(x) for x in (0, 0.25, 1500, 2e6, -3e4)] == ["0", "0.25", "1.5k", "2M", "-30k"]


def test_a_wide_band_does_not_flatten_the_lines():
    line = svg.Line(0, np.arange(3), np.array([0.0, 1, 2]), np.array([-1000.0, 0.9, 1.9]), np.array([0.1, 1.1, 900]))
    assert svg.bounds([line]) == (0, 2, -0.5, 2.5)
    assert svg.bounds([svg.Line(0, np.arange(2), np.full(2, np.nan))]) == (0, 1, 0, 1)
