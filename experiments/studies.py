"""What every study does: cells that are run once and kept, scores of a trained population, and the claims at the end."""

import dataclasses
import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from rich.console import Console

from experiments.configs import Train
from experiments.measuring import quartiles, ratio
from experiments.setup import build
from jaxrl.analysis.claims import Claim, claim_above, claims_table, write_claims
from jaxrl.analysis.comparisons import Comparison
from jaxrl.analysis.statistics import interval
from jaxrl.errors import UsageError
from jaxrl.training.records import Row
from jaxrl.training.run import run

Preset = Literal["smoke", "cpu", "paper"]


def cell(folder: Path, name: str, settings: Any, measure: Callable[[], dict], console: Console) -> dict:
    """What ``measure`` returns, kept in ``folder/name.json``: an interrupted study goes on where it stopped.

    Args:
        settings: everything that the result depends on; a kept cell of other settings stays, under another name, for the
            day on which they are asked for again.
    """
    path = folder / f"{name}.json"
    words = json.dumps(settings, sort_keys=True, default=_plain)
    identity = hashlib.sha256(words.encode()).hexdigest()[:16]
    kept, aside = _read_cell(path), path.with_suffix(f".{identity}.json")
    if kept is not None and kept["identity"] == identity:
        return kept["result"]
    if kept is not None:
        path.replace(path.with_suffix(f".{kept['identity']}.json"))
    if (again := _read_cell(aside)) is not None:
        aside.replace(path)
        return again["result"]
    began = time.perf_counter()
    result = measure()
    seconds = round(time.perf_counter() - began)
    folder.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    content = {"identity": identity, "seconds": seconds, "settings": settings, "result": result}
    partial.write_text(json.dumps(content, indent=1, default=_plain) + "\n")
    partial.replace(path)
    console.print(f"  {name}  {seconds} s", markup=False)
    return result


def _read_cell(path: Path) -> dict | None:
    """A kept cell, or None where there is none.

    Raises:
        UsageError: for a file that is no cell: it may be hours of work, and only its owner can say that it is lost.
    """
    if not path.exists():
        return None
    try:
        kept = json.loads(path.read_text())
        return {"identity": kept["identity"], "result": kept["result"]}
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{path} is no kept result; remove it to measure it anew") from None


class Trained(NamedTuple):
    """What a run came to."""

    rows: list[Row]  # every one, of all members
    parameters: int  # of one member


def train_rows(config: Train) -> Trained:
    """Train without a run folder.

    Raises:
        UsageError: where the run was interrupted.
    """
    built = build(config)
    rows: list[Row] = []
    try:
        outcome = run(built.program, built.plan.schedule, labels=built.labels, listeners=(rows.append,))
    finally:
        built.program.close()
    if outcome.interrupted:
        raise UsageError("interrupted; the cells that are finished are kept, and the same command goes on")
    return Trained([dict(row) for row in rows], built.plan.parameters)


def by_seed(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> dict[str, list[list[float]]]:
    """``column -> [seeds][points]`` of rows that have the columns, seeds and steps in order."""
    told = [row for row in rows if all(column in row for column in columns)]
    seeds = sorted({row["seed"] for row in told})
    return {
        column: [[float(row[column]) for row in told if row["seed"] == seed] for seed in seeds] for column in columns
    }


def tail_mean(curves: Sequence[Sequence[float]], share: float) -> np.ndarray:
    """The mean of the last ``share`` of each curve's points, ``[seeds]``; all but the point before training at 1."""
    points = np.asarray(curves, np.float64)[:, 1:]
    return points[:, -max(1, round(share * points.shape[1])) :].mean(1)


def gain_claim(name: str, statement: str, of: Comparison, threshold: float = 0.0) -> Claim:
    """That one side exceeds another by more than a threshold, from a paired comparison."""
    d = of.difference
    detail = f"{of.runs[0]} paired seeds; {of.a:.4g} against {of.b:.4g}"
    return claim_above(name, statement, d.value, d.low, d.high, threshold, detail)


def mean_claim(name: str, statement: str, values: Any, threshold: float = 0.0, detail: str = "") -> Claim:
    """That the mean over seeds exceeds a threshold."""
    found = interval(values, "mean")
    seeds = f"{found.runs} seeds" + (f"; {detail}" if detail else "")
    return claim_above(name, statement, found.value, found.low, found.high, threshold, seeds)


def cost_claim(name: str, statement: str, ours: list[float], other: list[float], most: float) -> Claim:
    """That one side takes at most so many times as long as another, by the median of the turns; with their quartiles."""
    cost = ratio(ours, other)
    detail = f"median of {cost.turns} turns, and its quartiles"
    return Claim(name, statement, cost.median, *quartiles(ours, other), cost.median <= most, detail)


def slower_claim(
    name: str, statement: str, slow: list[float], fast: list[float], least: float, more: str = ""
) -> Claim:
    """That one side takes more than so many times as long as another; the interval is the quartiles of the turns."""
    found = ratio(slow, fast)
    detail = f"median of {found.turns} turns, and its quartiles" + (f"; {more}" if more else "")
    return claim_above(name, statement, found.median, *quartiles(slow, fast), least, detail)


def told_in(folder: Path, only: Sequence[str]) -> Path:
    """Where claims, tables and figures go: beside the kept cells, or below them if only a part of the study was asked for."""
    if not only:
        return folder
    return folder / ("only_" + "_".join(re.sub(r"[^\w.-]+", "-", name) for name in only))


def finish(folder: Path, claims: Sequence[Claim], console: Console) -> None:
    """Write the claims and print them."""
    path = write_claims(folder / "claims.json", claims)
    console.print(claims_table(claims))
    console.print(f"  claims     {path}", soft_wrap=True, markup=False)


def machine() -> dict[str, Any]:
    """What a study ran on, for its record."""
    return {"jax": jax.__version__, "device": str(jax.devices()[0].device_kind)}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {"class": f"{type(value).__module__}.{type(value).__qualname__}", **dataclasses.asdict(value)}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
