"""When does it matter who is replayed? Samplers against replay volume, seeds paired.

    uv run python -m experiments.replay_study --preset smoke     # that it runs
    uv run python -m experiments.replay_study                    # two cores
    uv run python -m experiments.replay_study --preset paper     # an accelerator: large parallel simulation, single task, many tasks

Replay volume V is the number of replayed transitions for each new one (updates x batch size / environments). The question
and truncated geometric replay are those of "When Does Non-Uniform Replay Matter in RL?" (arXiv:2605.10236), of which the
opening and digests were read; settings, the frontier task and the samplers' exact form are derived here.

Settings, named before any was run, all of them reported:

* ``frontier``, DQN on a combination lock: what was learned first fills the memory and teaches nothing any more. Here the
  claims are made: if recency helps nowhere but here, it helps little.
* ``pendulum``, TD3, and ``single``, SimbaV2, on Pendulum: few states, soon covered, so no experience is stale and recency
  only loses entropy. A control that bounds the claim; in a prototype uniform was best.
* ``parallel``, FastTD3 on Brax's inverted pendulum: many environments and a large batch, the regime of low volume.
* ``tasks``, BRC on eight reaching tasks whose rewards are alike: many tasks share one network.

Volume is varied by batch size, and in ``frontier`` also by updates at a fixed batch. The score is the mean over training
of the deterministic evaluations (area under the curve): levels passed of 24, return, or share of success.
"""

import dataclasses
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from rich.console import Console

from environments.lock import lock_depth
from experiments import cli, studies
from experiments.configs import Evaluate, Log, Train
from experiments.replay_settings import CPU, GEOMETRIC, MATCHED, PAPER, UNIFORM, Setting
from experiments.replay_speed import draw_times
from experiments.setup import make_sampler
from jaxrl.analysis.claims import Claim, claim_above
from jaxrl.analysis.comparisons import Comparison, compare
from jaxrl.analysis.trends import slope
from jaxrl.errors import unknown
from jaxrl.samplers import ages
from jaxrl.training import OffPolicy

LEVEL = 5.0  # per cent of uniform's score within which two samplers count as level


@dataclass(frozen=True)
class Replay:
    """Samplers against replay volume."""

    preset: studies.Preset = "cpu"
    """smoke: that it runs. cpu: the claims, on two cores. paper: published sizes."""
    only: tuple[str, ...] = ()
    """Run only these settings."""
    out: Path = Path("runs/replay_study")
    """Where cells, claims and figures are kept; a cell that is there is not run again."""


def main(arguments: list[str], console: Console) -> None:
    asked = cli.parse(Replay, arguments, description=__doc__)
    settings = chosen(asked)
    folder = asked.out / asked.preset
    claims, scores = [], {}
    for setting in settings:
        console.print(setting.name)
        found = {}
        for batch, updates, samplers, seeds in setting.cells:
            for sampler in samplers:
                found[batch, updates, sampler] = score(setting, batch, updates, sampler, seeds, folder, console)
        scores[setting.name] = found
        claims += frontier_claims(setting, found) if setting.name == "frontier" else other_claims(setting, found)
    claims.append(draw_claim(folder, asked.preset, console))
    told = studies.told_in(folder, asked.only)
    told.mkdir(parents=True, exist_ok=True)
    write_figures(settings, scores, told)
    (told / "table.md").write_text(table(settings, scores))
    console.print(table(settings, scores), markup=False, soft_wrap=True)
    studies.finish(told, claims, console)


def chosen(asked: Replay) -> list[Setting]:
    """The settings of the preset; for smoke, each shrunk to two cells of two seeds."""
    known = PAPER if asked.preset == "paper" else CPU
    for name in asked.only:
        if name not in {setting.name for setting in known}:
            raise unknown("setting", name, [setting.name for setting in known])
    kept = [setting for setting in known if not asked.only or setting.name in asked.only]
    return [tiny(setting) for setting in kept] if asked.preset == "smoke" else kept


def tiny(setting: Setting) -> Setting:
    """The same with two volumes, two seeds and a fortieth of the steps."""
    pair = (UNIFORM, GEOMETRIC)
    cells = tuple((batch, updates, pair, 2) for batch, updates, _, _ in setting.cells[:2])
    return dataclasses.replace(setting, cells=cells, iterations=max(40, setting.iterations // 40))


def config_of(setting: Setting, batch: int, updates: int, sampler: str, seeds: int) -> Train:
    """One cell as a training run: everything that was collected stays stored."""
    steps = setting.num_envs * setting.iterations
    every = max(setting.num_envs, steps // 30)
    loop = OffPolicy(
        setting.num_envs,
        updates=updates,
        batch_size=batch,
        capacity=steps,
        warmup=max(setting.warmup, batch, setting.num_envs),
    )
    return Train(
        setting.agent, loop, setting.env, steps, setting.options, sampler, seeds=seeds,
        evaluate=Evaluate(every=every, episodes=setting.episodes), log=Log(every=every),
    )  # fmt: skip


def score(
    setting: Setting, batch: int, updates: int, sampler: str, seeds: int, folder: Path, console: Console
) -> np.ndarray:
    """The mean over training of each seed's evaluations, ``[seeds]``."""
    config = config_of(setting, batch, updates, sampler, seeds)
    name = f"{setting.name}_{batch}x{updates}_{re.sub('[^a-z0-9.]+', '_', sampler).strip('_')}"

    def measure() -> dict:
        return studies.by_seed(studies.train_rows(config).rows, [setting.column])

    curves = studies.cell(folder / "cells", name, config, measure, console)[setting.column]
    points = lock_depth(np.asarray(curves)) if setting.env == "toy:lock" else curves
    return studies.tail_mean(points, 1.0)


def volume(setting: Setting, batch: int, updates: int) -> float:
    return batch * updates / setting.num_envs


Scores = dict[tuple[int, int, str], np.ndarray]


def gain(found: Scores, batch: int, updates: int, sampler: str = GEOMETRIC, against: str = UNIFORM) -> Comparison:
    """What a sampler gains over another at one volume, seeds paired."""
    return compare(found[batch, updates, sampler], found[batch, updates, against], paired=True)


def ladder(setting: Setting, by_batch: bool) -> list[tuple[int, int]]:
    """Volumes that are reached by batch size at one update, or by updates at the smallest batch; rising."""
    sizes = [(batch, updates) for batch, updates, _, _ in setting.cells]
    smallest = min(sizes)[0]
    rungs = [s for s in sizes if (s[1] == 1 if by_batch else s[0] == smallest)]
    if by_batch:
        rungs += [max(sizes)] if max(sizes)[1] > 1 else []
    return sorted(rungs, key=lambda size: size[0] * size[1])


def frontier_claims(setting: Setting, found: Scores) -> list[Claim]:
    """The claims of the page, on the task that has a frontier."""
    low, high = ladder(setting, True)[0], ladder(setting, True)[-1]
    at_low = gain(found, *low)
    claims = [
        studies.gain_claim("frontier/low", f"truncated geometric beats uniform at V={volume(setting, *low):g}", at_low)
    ]
    for name, by_batch in (("batch", True), ("updates", False)):
        rungs = ladder(setting, by_batch)
        if len(rungs) > 1:
            claims.append(falling_claim(setting, found, rungs, name))
    claims.append(level_claim("frontier/high", setting, high, gain(found, *high)))
    for steep, window in MATCHED:
        sizes = [size for size in ladder(setting, True) if (*size, window) in found and (*size, steep) in found]
        # Volumes with the most seeds: a small difference needs many pairs, and a pair needs its seed at every volume.
        least = max((len(found[*size, window]) for size in sizes), default=0)
        shared = [size for size in sizes if len(found[*size, window]) == least]
        if shared:
            mean = [np.mean([found[*size, s][:least] for size in shared], 0) for s in (steep, window)]
            volumes = ", ".join(f"{volume(setting, *size):g}" for size in shared)
            text = f"{steep} beats {window}, which has its mean age and less entropy (mean over V = {volumes})"
            claims.append(studies.gain_claim(f"frontier/entropy/{steep}", text, compare(*mean, paired=True)))
    return claims


def falling_claim(setting: Setting, found: Scores, rungs: Sequence[tuple[int, int]], how: str) -> Claim:
    """That the gain falls with the logarithm of volume: the mean of each seed's own slope."""
    seeds = min(len(found[*size, s]) for size in rungs for s in (UNIFORM, GEOMETRIC))
    gains = np.stack([(found[*size, GEOMETRIC] - found[*size, UNIFORM])[:seeds] for size in rungs], 1)
    found_slope = slope([math.log2(volume(setting, *size)) for size in rungs], gains)
    text = f"the gain falls as volume grows, by {how}: change of gain for each doubling, turned round"
    shown = ", ".join(f"{g:+.2f} at V={volume(setting, *size):g}" for g, size in zip(gains.mean(0), rungs, strict=True))
    return claim_above(
        f"frontier/falling/{how}", text, -found_slope.value, -found_slope.high, -found_slope.low, 0.0,
        f"{seeds} paired seeds; gain {shown}",
    )  # fmt: skip


def level_claim(name: str, setting: Setting, size: tuple[int, int], of: Comparison) -> Claim:
    """That two samplers are level: the whole interval of the difference within some per cent of uniform's score."""
    margin = LEVEL / 100 * abs(of.b)
    d = of.difference
    holds = True if -margin < d.low and d.high < margin else False if d.low > margin or d.high < -margin else None
    text = (
        f"truncated geometric is level with uniform at V={volume(setting, *size):g} (within {LEVEL:g} % of its score)"
    )
    return Claim(name, text, d.value, d.low, d.high, holds, f"{of.runs[0]} paired seeds; uniform {of.b:.3g}")


def other_claims(setting: Setting, found: Scores) -> list[Claim]:
    """The same comparison elsewhere, at every volume. On Pendulum the expectation is the other way round."""
    control = "Pendulum" in setting.env
    claims = []
    for batch, updates, _, _ in setting.cells:
        a, b = (UNIFORM, GEOMETRIC) if control else (GEOMETRIC, UNIFORM)
        name = f"{setting.name}/{volume(setting, batch, updates):g}"
        words = "uniform beats truncated geometric" if control else "truncated geometric beats uniform"
        text = f"{setting.name}: {words} at V={volume(setting, batch, updates):g}"
        claims.append(studies.gain_claim(name, text, gain(found, batch, updates, a, b)))
    return claims


def draw_claim(folder: Path, preset: str, console: Console) -> Claim:
    """That drawing by the truncated geometric costs no more than drawing uniformly, within 5 %."""
    turns = 5 if preset == "smoke" else 31
    times = studies.cell(folder / "cells", "draw", [turns, studies.machine()], lambda: draw_times(turns), console)
    text = "drawing 256 of 2^20 rows costs at most 1.05 times what uniform costs"
    return studies.cost_claim("draw", text, times["truncated_geometric"], times["uniform"], 1.05)


def table(settings: Sequence[Setting], scores: dict[str, Scores]) -> str:
    """Scores with their standard errors, and gains over uniform."""
    lines = [
        "| setting | V | batch x updates | sampler | score | gain over uniform [95 %] | seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    for setting in settings:
        for (batch, updates, sampler), of in scores[setting.name].items():
            d = gain(scores[setting.name], batch, updates, sampler).difference
            shown = "" if sampler == UNIFORM else f"{d.value:+.3g} [{d.low:+.3g}, {d.high:+.3g}]"
            error = np.std(of, ddof=1) / math.sqrt(len(of))
            lines.append(
                f"| {setting.name} | {volume(setting, batch, updates):g} | {batch} x {updates} | {sampler} | "
                f"{of.mean():.4g} ± {error:.2g} | {shown} | {len(of)} |"
            )
    return "\n".join(lines) + "\n"


def write_figures(settings: Sequence[Setting], scores: dict[str, Scores], folder: Path) -> None:
    """Gain against volume for every setting; the plane of recency and entropy at the frontier's lowest volume."""
    from jaxrl.analysis import figures

    figure, axis = figures.new_figure(height=2.8)
    for index, setting in enumerate(settings):
        rungs = ladder(setting, True)
        found = [gain(scores[setting.name], *size) for size in rungs]
        unit = np.array([abs(of.b) for of in found]) / 100
        value, low, high = np.array([of.difference[:3] for of in found]).T / unit
        volumes = [volume(setting, *size) for size in rungs]
        figures.draw_band(axis, volumes, value, low, high, setting.name, index)
    axis.axhline(0, color="0.4", linewidth=0.8)
    axis.set(xscale="log", xlabel="replay volume", ylabel="gain over uniform [% of its score]")
    axis.legend(fontsize=7)
    figures.save(figure, folder / "gain.png")
    for setting in settings:
        if setting.name == "frontier":
            write_plane(setting, scores["frontier"], folder)


def write_plane(setting: Setting, found: Scores, folder: Path) -> None:
    """Expected recency and entropy of each sampler, its score as colour. Prioritised replay has no place in it by age."""
    from jaxrl.analysis import figures

    size = ladder(setting, True)[0]
    rows = setting.iterations  # of each lane, at the end
    figure, axis = figures.new_figure(height=2.8)
    at = {sampler: place(sampler, rows) for batch, updates, sampler in found if (batch, updates) == size}
    at = {sampler: where for sampler, where in at.items() if where is not None}
    values = [found[*size, sampler].mean() for sampler in at]
    points = axis.scatter(*zip(*at.values(), strict=True), c=values, cmap="viridis", s=30)
    for sampler, where in at.items():
        axis.annotate(sampler, where, fontsize=5, xytext=(3, 3), textcoords="offset points")
    figure.colorbar(points, label="score").ax.tick_params(labelsize=6)
    axis.set(xlabel="expected recency", ylabel="entropy / log n")
    figures.save(figure, folder / "plane.png")


def place(sampler: str, rows: int) -> tuple[float, float] | None:
    """(expected recency, entropy over its largest) of a sampler by age; None for one that is not by age alone."""
    name, _, arguments = sampler.partition("(")
    make_sampler(sampler, 1)  # refuses what is misspelt
    if not hasattr(ages, name):
        return None
    options = dict(part.split("=") for part in arguments.rstrip(")").split(",") if part)
    distribution = getattr(ages, name)(**{key: float(value) for key, value in options.items()})
    age, nats = jax.device_get((ages.expected_age(distribution, rows), ages.entropy(distribution, rows)))
    return 1 - float(age) / rows, float(nats) / math.log(rows)


if __name__ == "__main__":
    cli.run_main(main)
