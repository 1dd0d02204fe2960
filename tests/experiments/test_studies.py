import dataclasses

import numpy as np
import pytest
from rich.console import Console

from experiments import replay_study, studies, toppo_study
from experiments.configs import Evaluate, Train
from experiments.measuring import alternate, ratio
from experiments.replay_settings import CPU, GEOMETRIC, MATCHED, UNIFORM
from experiments.setup import build
from experiments.toppo_settings import ROWS
from jaxrl.agents import multi_task_ppo
from jaxrl.analysis.comparisons import compare
from jaxrl.errors import UsageError
from jaxrl.training import OnPolicy

QUIET = Console(quiet=True)


def test_a_cell_is_measured_once_unless_its_settings_change(tmp_path):
    called = []

    def measure():
        called.append(1)
        return {"score": len(called)}

    assert studies.cell(tmp_path, "a", {"steps": 1}, measure, QUIET) == {"score": 1}
    assert studies.cell(tmp_path, "a", {"steps": 1}, measure, QUIET) == {"score": 1}
    assert studies.cell(tmp_path, "a", {"steps": 2}, measure, QUIET) == {"score": 2}
    assert studies.cell(tmp_path, "b", CPU[0], measure, QUIET) == {"score": 3}  # a config is told apart by its fields
    assert studies.cell(tmp_path, "a", {"steps": 1}, measure, QUIET) == {"score": 1}  # kept all the while
    assert studies.cell(tmp_path, "a", {"steps": 2}, measure, QUIET) == {"score": 2} and len(called) == 3
    for broken in ('{"identity": "12', "[]", '{"identity": "x"}'):
        (tmp_path / "b.json").write_text(broken)
        with pytest.raises(UsageError, match="is no kept result"):
            studies.cell(tmp_path, "b", CPU[0], measure, QUIET)


def test_rows_become_curves_by_seed_and_tails():
    rows = [{"seed": s, "step": t, "x": 10 * s + t} for t in range(4) for s in (1, 0)] + [{"seed": 0, "step": 9}]
    curves = studies.by_seed(rows, ["x"])["x"]
    assert curves == [[0, 1, 2, 3], [10, 11, 12, 13]]
    np.testing.assert_allclose(studies.tail_mean(curves, 1.0), [2, 12])  # the point before training does not count
    np.testing.assert_allclose(studies.tail_mean(curves, 1 / 3), [3, 13])


def test_sides_take_turns_and_their_ratio_is_of_turns():
    order = []
    times = alternate({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, turns=2, warm=1)
    assert order == ["a", "b", "a", "b", "b", "a"] and all(len(of) == 2 for of in times.values())
    assert ratio([2.0, 6.0, 4.0], [1.0, 2.0, 4.0])[:3] == (2.0, 1.0, 3.0)


def test_volume_rises_by_batch_and_by_updates():
    frontier = CPU[0]
    assert [replay_study.volume(frontier, *s) for s in replay_study.ladder(frontier, True)] == [1, 4, 16, 64]
    assert [replay_study.volume(frontier, *s) for s in replay_study.ladder(frontier, False)] == [1, 4, 16]


def test_matched_samplers_have_one_recency_and_the_geometric_one_more_entropy():
    for steep, window in MATCHED:
        (a, more), (b, less) = (replay_study.place(sampler, 3000) for sampler in (steep, window))
        assert a == pytest.approx(b, abs=1e-3) and more > less
    assert replay_study.place("proportional", 3000) is None
    assert replay_study.place(UNIFORM, 3000) == pytest.approx((0.5, 1.0), abs=1e-3)


@pytest.mark.parametrize(("gain", "holds"), [(0.0, True), (3.0, None), (9.0, False)])
def test_level_means_the_whole_interval_within_the_margin(gain, holds):
    uniform = 60 + np.array([0.0, 1, 2, 3, 4, 5, 6, 7])
    of = compare(uniform + gain + np.array([1.0, -1, 1, -1, 1, -1, 1, -1]), uniform, paired=True)
    assert replay_study.level_claim("x", CPU[0], (16, 1), of).holds is holds


def test_claims_of_made_up_scores_fall_as_they_should():
    rng = np.random.default_rng(0)
    found = {}
    for batch, updates, names, seeds in CPU[0].cells:
        fall = 4 / (1 + np.log2(batch * updates / 16))
        for name in names:
            bonus = fall if name == GEOMETRIC else 0.0
            found[batch, updates, name] = 15 + bonus + np.arange(seeds) * 0.1 + rng.normal(0, 0.01, seeds)
    told = {claim.name: claim.holds for claim in replay_study.frontier_claims(CPU[0], found)}
    assert told["frontier/low"] and told["frontier/falling/batch"] and told["frontier/falling/updates"]
    assert told[f"frontier/entropy/{GEOMETRIC}"]


def test_unknown_settings_are_refused():
    with pytest.raises(UsageError, match="frontier"):
        replay_study.main(["--only", "fronteer"], QUIET)


def cell_of(success):
    tasks = [f"t{k}" for k in range(len(success[0]))]
    curves = {f"eval/success/{task}": [[0.0, row[k]] for row in success] for k, task in enumerate(tasks)}
    return toppo_study.Cell({"tasks": tasks, "curves": curves, "parameters": 10})


def test_worst_tasks_are_those_of_each_seed():
    cell = cell_of([[0.9, 0.1, 0.5], [0.2, 0.8, 0.6]])
    np.testing.assert_allclose(cell.worst(2), [0.3, 0.4])
    np.testing.assert_allclose(cell.mean(), [0.5, 1.6 / 3])


def test_every_row_adds_to_one_that_is_there():
    names = [row.name for row in ROWS]
    assert all(not row.against or row.against in names for row in ROWS) and len(set(names)) == len(names)


def test_a_run_measures_every_task():
    """From a config to rows: the agent is told how many tasks there are, and each has its columns."""
    loop = OnPolicy(num_envs=16, unroll=40)
    agent = multi_task_ppo.Config(hidden_sizes=(8,), epochs=1, minibatches=2)
    config = Train(agent, loop, "point:MT8", 640, evaluate=Evaluate(every=640, episodes=8))
    built = build(config)
    assert built.config.agent.num_tasks == 8 and built.program.tasks == built.env.tasks
    for env, agent, said in (
        ("point:MT8", config.agent, "has 8; leave it out"),
        ("toy:point_mass", config.agent, "has 1"),
    ):
        told = dataclasses.replace(config, env=env, agent=dataclasses.replace(agent, num_tasks=4))
        with pytest.raises(UsageError, match=said):
            build(told)
    row = studies.train_rows(config).rows[-1]
    for task in built.env.tasks:
        assert {f"eval/success/{task}", f"eval/return/{task}", f"episode/return/{task}"} <= set(row)
    np.testing.assert_allclose(
        row["eval/return"], np.mean([row[f"eval/return/{t}"] for t in built.env.tasks]), rtol=1e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize("study", [replay_study, toppo_study])
def test_smoke(study, tmp_path):
    study.main(["--preset", "smoke", "--out", str(tmp_path)], QUIET)
    assert (tmp_path / "smoke" / "claims.json").exists()


def test_every_task_has_a_panel(tmp_path):
    rng = np.random.default_rng(0)
    cells = {name: cell_of(rng.random((3, 7))) for name in ("ppo", "toppo")}
    toppo_study.write_tasks_figure(tmp_path / "tasks.png", cells)
    drawn = (tmp_path / "tasks.svg").read_text()
    assert (tmp_path / "tasks.png").stat().st_size > 10_000 and "<!-- t6 -->" in drawn and "<!-- toppo -->" in drawn
