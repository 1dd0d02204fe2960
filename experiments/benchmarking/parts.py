"""The parts of the speed benchmark in which others stand beside us, each side in its own process."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from experiments.benchmarking.rows import Row, duration, rate
from experiments.benchmarking.sides import OURS, Beside, Clock, Side, SideError, beside, compare
from experiments.benchmarking.sizes import Sizes
from experiments.measuring import Ratio, ratio
from jaxrl.analysis.statistics import interquartile_mean

JAX_PPO, JAX_SAC = ("rejax", "purejaxrl"), ("rejax", "sbx", "brax")


@dataclass
class Bench:
    """What every part is measured with, and where it leaves its numbers."""

    sides: dict[str, Side]
    sizes: dict[str, Any]
    turns: int
    seconds: float  # of one timed call
    tell: Callable[[str], None]
    clock: Clock = "wall"
    details: dict[str, Any] = field(default_factory=dict)


def throughput(part: str, title: str, unit: str, asked: float, rivals: tuple[str, ...], bench: Bench) -> list[Row]:
    """Work a second of every side. The target is against the fastest of the rivals that are there."""
    times = compare(bench.sides, bench.tell, part, "run", bench.sizes, bench.turns, bench.clock, bench.seconds)
    bench.details[part] = {"seconds_per_unit": times}
    found = beside(times)
    judged = [each for each in found if each.peer in rivals]
    fastest = min(judged, key=lambda each: each.ratio.median, default=None)
    return [
        Row(
            title, rate(each.ours, unit), each.peer, rate(each.theirs, unit), each.ratio,
            f"≥ {asked:g} × the fastest" if each is fastest else "",
            each.ratio.median >= asked if each is fastest else None,
        )
        for each in found
    ]  # fmt: skip


def compiling(part: str, title: str, bench: Bench) -> list[Row]:
    """How long the programs of an agent take to compile, from nothing."""
    sides = {name: side for name, side in bench.sides.items() if name in (OURS, *JAX_PPO)}
    times = compare(sides, bench.tell, part, "compile", bench.sizes, bench.turns, bench.clock)
    bench.details[f"compile_{part}"] = {"seconds": times}
    rows = []
    for each in beside(times):
        shorter = inverse(each, times)
        asked = each.peer == "rejax"
        holds = shorter.median <= 0.7 if asked else None
        rows.append(
            Row(title, duration(each.ours), each.peer, duration(each.theirs), shorter, "≤ 0.7 ×" * asked, holds)
        )
    return rows


def inverse(each: Beside, times: dict[str, list[float]]) -> Ratio:
    """What ours took over what theirs took."""
    return ratio(times[OURS], times[each.peer]) if each.peer else each.ratio


def time_to_return(bench: Bench) -> list[Row]:
    """Seconds from nothing, compiling included, to the interquartile mean over seeds that is asked for."""
    sizes, curves = bench.sizes, {name: [] for name, side in bench.sides.items() if "ppo" in side.parts}  # type: ignore[var-annotated]
    every = sizes["ppo_every"] * sizes["num_envs"] * sizes["unroll"]
    points = sizes["ppo_budget"] // sizes["ppo_every"]
    for turn in range(bench.turns):
        for name in rotated(list(curves), turn):
            found = learn(bench, name, "ppo", 100 * turn, sizes["seeds"], every, points, sizes["target_return"])
            if found is None:
                del curves[name]
            else:
                curves[name].append(found)
    bench.details["time_to_return"] = curves
    reached = {name: [c["seconds"][-1] if c["reached"] else math.inf for c in of] for name, of in curves.items()}
    title = f"PPO CartPole, {sizes['seeds']} seeds: from nothing to an interquartile mean of {sizes['target_return']:g}"
    rows = []
    for name in curves:
        if name == OURS:
            continue
        usable = all(map(math.isfinite, reached[name] + reached[OURS]))
        against = ratio(reached[OURS], reached[name]) if usable else None
        rows.append(
            Row(
                title,
                reaching(curves[OURS], every),
                name,
                reaching(curves[name], every),
                against,
                "≤ 0.8 ×" if name in JAX_PPO else "",
                against.median <= 0.8 if against and name in JAX_PPO else None,
            )
        )
    return rows or [Row(title, reaching(curves[OURS], every))]


def reaching(curves: list[dict], every: int) -> str:
    """Median seconds and steps of the turns that reached it."""
    reached = [curve for curve in curves if curve["reached"]]
    if not reached:
        best = max((max(curve["iqm"], default=math.nan) for curve in curves), default=math.nan)
        return f"not reached (best {best:.0f})"
    steps = int(np.median([every * len(curve["iqm"]) for curve in reached]))
    missed = f", {len(curves) - len(reached)} turns missed it" if len(reached) < len(curves) else ""
    return f"{np.median([curve['seconds'][-1] for curve in reached]):.1f} s, {steps:,} steps a seed{missed}"


def learn(
    bench: Bench, name: str, part: str, seed: int, seeds: int, every: int, points: int, until: float
) -> dict[str, Any] | None:
    """Train a side from nothing and judge it as it goes, until it is as good as asked; None where it cannot."""
    side = bench.sides[name]
    try:
        passed = side.ask("begin", part, bench.sizes, seed=seed, seeds=seeds)["seconds"]
        curve: dict[str, Any] = {"compile_and_start": passed, "seconds": [], "returns": [], "iqm": [], "reached": False}
        for _ in range(points):
            reply = side.ask("advance", part, bench.sizes, units=every)
            passed += reply["seconds"]
            curve["seconds"].append(passed)
            curve["returns"].append(reply["returns"])
            curve["iqm"].append(float(interquartile_mean(np.asarray(reply["returns"], float)[:, None])))
            if curve["iqm"][-1] >= until:
                curve["reached"] = True
                break
    except SideError as error:
        if name == OURS:
            raise
        bench.tell(str(error))
        return None
    return curve


def sac_curves(bench: Bench) -> list[Row]:
    """What SAC has learnt after a fixed number of steps, side by side: so that nobody is fast by learning less."""
    sizes, curves = bench.sizes, {}
    for name, side in bench.sides.items():
        if "sac" in side.parts:
            found = learn(bench, name, "sac", 0, sizes["sac_seeds"], sizes["sac_every"], sizes["sac_points"], math.inf)
            if found is not None:
                curves[name] = found
    bench.details["sac_curves"] = curves
    steps = sizes["sac_every"] * sizes["sac_points"]
    title = f"SAC Pendulum: return after {steps:,} steps, mean of {sizes['sac_seeds']} seeds (nothing is timed)"
    text = {name: f"{np.mean(curve['returns'][-1]):.0f}" for name, curve in curves.items()}
    peers = [name for name in text if name != OURS]
    return [Row(title, text[OURS], name, text[name]) for name in peers] or [Row(title, text[OURS])]


def rotated(names: list[str], turn: int) -> list[str]:
    return names[turn % len(names) :] + names[: turn % len(names)]


def parts(sizes: Sizes) -> dict[str, Callable[[Bench], list[Row]]]:
    """The parts of this module, by name, in their order."""
    shape = f"{sizes.num_envs} × {sizes.unroll} × {sizes.epochs} × {sizes.minibatches}"
    wide = f"{len(sizes.sac_hidden)} × {sizes.sac_hidden[0]}, batch {sizes.batch_size}"
    population = f"PPO CartPole, {sizes.seeds} seeds in one program, steps of all"
    updates = f"SAC updates in a loop, observation {sizes.observation}, action {sizes.action}"
    return {
        "ppo": partial(throughput, "ppo", f"PPO CartPole, {shape}", "steps", 1.3, JAX_PPO),
        "ppo_seeds": partial(throughput, "ppo_seeds", population, "steps", 1.3, ("rejax",)),
        "ppo_time": time_to_return,
        "sac": partial(throughput, "sac", f"SAC Pendulum, {wide}, one update a step", "steps", 1.3, JAX_SAC),
        "sac_updates": partial(throughput, "sac_updates", updates, "updates", 1.15, (*JAX_SAC, "sb3")),
        "sac_curves": sac_curves,
        "compile_ppo": partial(compiling, "ppo", "compiling PPO: start, training, evaluation"),
        "compile_sac": partial(compiling, "sac", "compiling SAC: start, training, evaluation"),
    }
