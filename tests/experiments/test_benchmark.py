"""The speed benchmark itself: sides that answer, die or lack a part, its table, and the short script for an accelerator."""

import dataclasses
import json
import math
import sys
import textwrap

import numpy as np
import pytest
from rich.console import Console

from experiments import benchmark, benchmark_gpu
from experiments.benchmark_peers.make import PEERS, make
from experiments.benchmarking import alone
from experiments.benchmarking.alone import environment_counts, powers, replay_rows, row_counts
from experiments.benchmarking.parts import Bench, learn, parts, time_to_return
from experiments.benchmarking.profile import Cost, Rates, cost
from experiments.benchmarking.rows import Row, duration, markdown, rate, record_of
from experiments.benchmarking.sides import Side, SideError, beside, compare, open_sides, workers
from experiments.benchmarking.sizes import SMOKE, Sizes, chosen
from experiments.measuring import Ratio, ratio
from jaxrl.errors import UsageError

QUIET = Console(quiet=True)

WORKER = """
import json, sys
sys.path.insert(0, "experiments/benchmark_peers")
print("a banner that a library prints")
from protocol import serve, whole

class Part:
    def __init__(self, sizes): self.sizes, self.score = sizes, 0.0
    def run(self, amount):
        print("noise")
        return {"units": 4 * whole(amount, 4), "seconds": COST * 4 * whole(amount, 4)}
    def compile(self): return {"seconds": COST}
    def begin(self, seed, seeds): self.seeds, self.score = seeds, 0.0; return {"seconds": 1.0}
    def advance(self, units):
        self.score += units * COST
        return {"returns": [self.score] * self.seeds, "seconds": 1.0}

class Broken:
    def __init__(self, sizes): raise ValueError("no such thing\\nmore")

class Dying:
    def __init__(self, sizes): sys.stderr.write("out of memory\\n"); sys.exit(3)

serve({"ppo": Part, "broken": Broken, "dying": Dying}, ())
"""


@pytest.fixture
def side(tmp_path):
    made = []

    def start(name: str, cost: float) -> Side:
        path = tmp_path / f"{name}.py"
        path.write_text(textwrap.dedent(WORKER).replace("COST", str(cost)))
        made.append(Side(name, [sys.executable, str(path)], tmp_path / f"{name}.log"))
        return made[-1]

    yield start
    for each in made:
        each.close()
        assert each.process.returncode is not None


def test_sides_are_asked_by_turns_for_what_keeps_them_busy(side):
    sides = {"jaxrl": side("jaxrl", 0.5), "other": side("other", 2.0)}
    times = compare(sides, print, "ppo", "run", {"a": 1}, 3, "wall", 8.0)
    assert times == {"jaxrl": [0.5] * 3, "other": [2.0] * 3}  # seconds for one unit, as the workers say them
    (found,) = beside(times)
    assert found.peer == "other" and found.ratio == Ratio(4.0, 4.0, 4.0, 3)
    assert compare(sides, print, "ppo", "compile", {}, 2, "wall")["other"] == [2.0, 2.0]
    assert (
        min(compare(sides, print, "ppo", "compile", {}, 2, "cpu")["other"]) < 1.0
    )  # processor seconds of doing nothing


def test_a_side_that_fails_says_so_in_one_line_and_goes_on(side):
    one = side("one", 1.0)
    with pytest.raises(SideError, match=r"^one cannot do broken run: ValueError: no such thing$"):
        one.ask("run", "broken", {}, amount=1)
    with pytest.raises(SideError, match="one has no part sac"):
        one.ask("run", "sac", {}, amount=1)
    assert one.ask("run", "ppo", {}, amount=5)["units"] == 8


def test_a_side_that_dies_says_its_last_words(side):
    one = side("one", 1.0)
    with pytest.raises(SideError, match="one has ended: out of memory"):
        one.ask("run", "dying", {}, amount=1)


def test_the_time_to_a_return_counts_what_went_before_it(side):
    sizes = vars(Sizes(num_envs=1, unroll=1, ppo_every=10, ppo_budget=100, target_return=35.0, seeds=3))
    sides = {"jaxrl": side("jaxrl", 1.0), "rejax": side("rejax", 0.5)}
    bench = Bench(sides, sizes, 2, 1.0, print)
    found = learn(bench, "jaxrl", "ppo", 0, 3, 10, 10, 35.0)
    assert found["iqm"] == [10.0, 20.0, 30.0, 40.0] and found["seconds"][-1] == 5.0 and found["reached"]
    (row,) = time_to_return(bench)
    assert row.peer == "rejax" and row.ours.startswith("5.0 s, 40 steps")


def test_what_is_not_installed_is_left_out_in_one_line(tmp_path):
    told = []
    (tmp_path / "ours.py").write_text(WORKER)
    with open_sides(("sbx",), tmp_path, tmp_path, told.append, [sys.executable, str(tmp_path / "ours.py")]) as sides:
        assert list(sides) == ["jaxrl"] and sides["jaxrl"].versions["python"]
    assert len(told) == 1 and told[0].startswith("sbx is left out") and "benchmark_peers.make sbx" in told[0]
    assert "flashbax" not in workers("all") and workers("none") == () and workers("rejax,brax") == ("rejax", "brax")
    assert make("purejaxrl", tmp_path / "p", tmp_path).startswith("cannot be made") and "rejax" in PEERS


def test_the_table_says_when_how_on_what_and_whether_it_holds():
    rows = [Row("speed", rate(1e-4, "steps"), "rejax", rate(0.5, "steps"), Ratio(1.5, 1.25, 2, 5), "≥ 1.3 ×", True)]
    text = markdown(rows, record_of("uv run it", 5, {}, {"rejax": {"jax": "1"}}))
    assert "| speed | 10,000 steps/s | rejax | 2.0 steps/s | 1.50 [1.25, 2.00] | ≥ 1.3 × | yes |" in text
    assert "`uv run it`" in text and "rejax: jax 1" in text
    assert duration(0.0123) == "12.30 ms" and duration(math.nan) == ""


def test_the_readme_gets_what_is_between_its_marks(tmp_path):
    path = tmp_path / "README.md"
    path.write_text("a\n<!-- benchmark -->\nold\n<!-- /benchmark -->\nb\n")
    benchmark.put(path, "new")
    assert path.read_text() == "a\n<!-- benchmark -->\n\nnew\n<!-- /benchmark -->\nb\n"
    path.write_text("no marks")
    with pytest.raises(UsageError, match="no marks"):
        benchmark.main(["--peers", "none", "--readme", str(path)], QUIET)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--only", "pppo"], "did you mean 'ppo'"),
        (["--peers", "rejaxx"], "rejax"),
        (["--turns", "0"], "turns 0"),
    ],
)
def test_what_cannot_work_is_refused(flags, message):
    with pytest.raises(UsageError, match=message):
        benchmark.main(flags, QUIET)


def test_sizes_shrink_and_bend():
    assert chosen("smoke", {"num_envs": None}) == SMOKE and chosen("cpu", {"num_envs": 3}).num_envs == 3
    assert list(parts(Sizes()))[:3] == ["ppo", "ppo_seeds", "ppo_time"]
    assert powers(1, 64, 4) == [1, 4, 16, 64] and powers(1, 5, 2) == [1, 2, 4, 5]
    assert all(count % 512 == 0 for count in row_counts(10**6))
    assert environment_counts(vars(Sizes())) == [1, 8, 64, 512, 2048]


def test_replay_rows_are_judged_by_their_peer():
    of = {"microseconds": 10.0, "ratio": Ratio(2.0, 1.0, 3.0, 7)._asdict()}
    rows = replay_rows(
        {"uniform": of, "numpy": of, "truncated geometric": of}, "full storage", "uniform", {"numpy": 1.5}
    )
    assert [(row.peer, row.holds) for row in rows] == [("numpy", True), ("truncated geometric", None)]


def test_a_part_costs_what_the_compiler_counts_and_its_bound_is_the_longer_one():
    import jax.numpy as jnp

    one = cost(lambda i, x: x @ x * 0.1, jnp.ones((32, 32)), 0.01)
    np.testing.assert_allclose(one.flops, 2 * 32**3, rtol=0.1)
    assert one.seconds > 0
    assert Cost(1.0, 100.0, 10.0).bound(Rates(50.0, 1.0)) == 10.0
    assert Cost(1.0, 100.0, 10.0).less(Cost(2.0, 50.0, 1.0)) == Cost(0.0, 50.0, 9.0)


def test_the_short_script_runs_and_says_what_it_left_out(tmp_path):
    out = tmp_path / "gpu.json"
    assert benchmark_gpu.main(["--preset", "smoke", "--only", "replay", "sac", "--out", str(out)], QUIET) == 0
    found = json.loads(out.read_text())
    assert [number["unit"] for number in found["numbers"]] == ["updates/s", "µs"] and found["left_out"] == []
    assert "updates/s" in out.with_suffix(".md").read_text()
    benchmark_gpu.main(["--preset", "smoke", "--seconds", "0.5", "--out", str(out)], QUIET)
    assert json.loads(out.read_text())["left_out"] == ["sac", "replay", "toy", "ant", "hopper"]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["toy", "ant", "hopper"])
def test_every_training_of_the_short_script_runs(tmp_path, part):
    out = tmp_path / "gpu.json"
    assert benchmark_gpu.main(["--preset", "smoke", "--only", part, "--out", str(out)], QUIET) == 0
    assert json.loads(out.read_text())["numbers"][0]["value"] > 0


@pytest.mark.slow
def test_the_benchmark_runs_at_its_smallest(tmp_path):
    out = tmp_path / "benchmark.json"
    flags = ["--preset", "smoke", "--turns", "1", "--seconds", "0.02", "--peers", "none", "--out", str(out)]
    benchmark.main([*flags, "--only", "ppo", "sac", "ppo_time", "sac_curves", "compile_ppo", "loop", "growth"], QUIET)
    assert len(json.loads(out.read_text())["rows"]) >= 7


def test_saving_is_timed_beside_the_disk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bench = Bench({}, dataclasses.asdict(SMOKE), 2, 0.01, print)
    cost, wait = alone.saving(bench)
    found = bench.details["saving"]
    assert found["bytes"] > 2**10 * 4 * (17 + 6 + 1) and len(found["saved"]) == len(found["raw"]) == 2
    assert cost.ratio.median == ratio(found["saved"], found["raw"]).median and wait.holds is not None
    assert not list((tmp_path / "runs").iterdir())
