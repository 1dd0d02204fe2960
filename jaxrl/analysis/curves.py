"""Learning curves of many runs, put on one grid of steps and summarised.

Between two measurements a curve keeps the value of the earlier one (the last value is carried forward): nothing is
invented that no evaluation saw. Before its first and after its last measurement it is NaN: nothing is extrapolated.
"""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl.analysis import statistics
from jaxrl.errors import UsageError

POINTS = 1_000
LARGEST = 1e150
BAND_RESAMPLES = 2_000


class Curve(NamedTuple):
    """What one run measured, in order of its steps."""

    name: str
    steps: np.ndarray  # int64 [measurements], strictly increasing
    values: np.ndarray  # float64 [measurements], finite and not so large that their squares are not
    missing: int = 0  # measurements that were NaN or infinite, and are left out
    failed: bool = False  # whether the last measurement was one of those


class Curves(NamedTuple):
    """Runs on a common grid. NaN where a run has no value."""

    steps: np.ndarray  # int64 [steps]
    values: np.ndarray  # float64 [runs, steps]
    names: tuple[str, ...]


class Band(NamedTuple):
    """An aggregate over runs at every step, with its interval. ``[steps]`` each."""

    steps: np.ndarray
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray
    runs: np.ndarray  # int64: how many runs have a value there


class Reached(NamedTuple):
    """When runs reach a threshold. ``[runs]`` each."""

    steps: np.ndarray  # float64: the first step there, else the last step looked at (NaN: never measured)
    reached: np.ndarray  # bool: false is censored, the run may have got there later


def read_curves(rows: Iterable[Mapping[str, Any]], column: str = "eval/return", name: str = "") -> list[Curve]:
    """The curves of one run folder's rows, one for each member and seed.

    Rows may be out of order; of two rows of one step the later wins, as after a resumed run. Rows without the column are
    passed over, values that are not finite (or the words that stand for them) are left out and counted.

    Raises:
        UsageError: where no row holds the column, with the columns there are.
    """
    points: dict[str, dict[int, float]] = {}
    columns: set[str] = set()
    for row in rows:
        columns.update(key for key in row if "/" in key)
        value = row.get(column)
        if value is None or value == "" or row.get("step") is None:
            continue
        label = f"{name or 'run'} member {row.get('member', 0)}" + (f" seed {row['seed']}" if "seed" in row else "")
        points.setdefault(label, {})[int(row["step"])] = _number(value, column, row["step"])
    if not points:
        there = f"columns: {', '.join(sorted(columns))}" if columns else "there are no rows"
        raise UsageError(f"no row{' of ' + name if name else ''} holds '{column}'; {there}")
    return [_curve(label, of_run) for label, of_run in points.items()]


def _number(value: Any, column: str, step: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise UsageError(f"'{column}' at step {step} is not a number: {value!r}") from error


def _curve(name: str, points: Mapping[int, float]) -> Curve:
    steps = np.array(sorted(points), np.int64)
    values = np.array([points[step] for step in steps.tolist()], np.float64)
    kept = np.abs(values) < LARGEST  # false for NaN
    return Curve(name, steps[kept], values[kept], int((~kept).sum()), not kept[-1])


def align(curves: Sequence[Curve], *, steps: Any = None, whole: bool = False, points: int = POINTS) -> Curves:
    """Put curves on one grid, carrying the last value forward.

    Args:
        steps: the grid; by default every step at which any curve was measured, thinned evenly to ``points``.
        whole: keep the range in which any run has a value. By default only the range that all runs share is kept, so
            that every step averages over the same runs.
        points: the most steps a default grid has.
    Raises:
        UsageError: where there is nothing to align, or no step that all share.
    """
    usable = [curve for curve in curves if len(curve.steps)]
    for curve in curves:
        if not len(curve.steps):
            warnings.warn(f"left out {curve.name}: it has no finite value", stacklevel=2)
        elif curve.missing:
            warnings.warn(f"{curve.name}: {curve.missing} values are not finite and left out", stacklevel=2)
    if not usable:
        raise UsageError("no curve has a finite value")
    grid = _grid(usable, whole, points) if steps is None else np.asarray(steps, np.int64)
    if grid.ndim != 1 or not grid.size or np.any(np.diff(grid) <= 0):
        raise UsageError(f"a grid of steps must be one strictly increasing row, got shape {grid.shape}")
    values = np.stack([carried_forward(curve, grid) for curve in usable])
    return Curves(grid, values, tuple(curve.name for curve in usable))


def carried_forward(curve: Curve, grid: np.ndarray) -> np.ndarray:
    """The curve's value at each step of the grid; NaN outside of what it measured. ``[steps]``."""
    index = np.searchsorted(curve.steps, grid, side="right") - 1
    inside = (index >= 0) & (grid <= curve.steps[-1])
    return np.where(inside, curve.values[np.maximum(index, 0)], np.nan)


def _grid(curves: Sequence[Curve], whole: bool, points: int) -> np.ndarray:
    first, last = [int(curve.steps[0]) for curve in curves], [int(curve.steps[-1]) for curve in curves]
    low, high = (min(first), max(last)) if whole else (max(first), min(last))
    if low > high:
        early, late = curves[int(np.argmin(last))].name, curves[int(np.argmax(first))].name
        raise UsageError(
            f"{early} ends at step {high:,} before {late} starts at {low:,}; use whole=True, or leave one out"
        )
    if not whole and max(last) > high:
        short = curves[int(np.argmin(last))].name
        warnings.warn(f"curves are cut at step {high:,}, where {short} ends (others: {max(last):,})", stacklevel=3)
    union = np.unique(np.concatenate([curve.steps for curve in curves]))
    union = union[(union >= low) & (union <= high)]
    if len(union) > points:
        union = union[np.unique(np.linspace(0, len(union) - 1, max(points, 2)).round().astype(int))]
    return union


def band(
    curves: Curves,
    aggregate: str = "iqm",
    *,
    confidence: float = 0.95,
    resamples: int = BAND_RESAMPLES,
    seed: int = 0,
) -> Band:
    """The aggregate (``"iqm"`` or ``"mean"``) over runs at every step, with the pointwise interval of ``interval``.

    Steps are taken over the runs that have a value there; bounds are NaN where fewer than 2 have.
    """
    statistics.check_confidence(confidence, resamples)
    if aggregate not in ("iqm", "mean"):
        raise UsageError(f"a band shows 'iqm' or 'mean', got '{aggregate}'")
    there = np.isfinite(curves.values)
    middle, low, high = (np.full(len(curves.steps), np.nan) for _ in range(3))
    masks, group = np.unique(there, axis=1, return_inverse=True)
    for index in range(masks.shape[1]):
        at, runs = np.flatnonzero(group.ravel() == index), int(masks[:, index].sum())
        if not runs:
            continue
        scores = curves.values[masks[:, index]][:, at].T[..., None]  # [steps, runs, 1]
        middle[at] = statistics.aggregate_function(aggregate)(scores)
        if runs > 1:
            method = statistics.choose_method("auto", aggregate, runs, 1)
            low[at], high[at] = statistics.bounds(scores, aggregate, method, confidence, resamples, seed)
    return Band(curves.steps, middle, low, high, there.sum(0))


def area(curves: Curves) -> np.ndarray:
    """The area under each curve over the length of the grid, in the values' own unit. ``[runs]``.

    By the trapezium rule, so that a first and a last evaluation count alike; with one step, the value there. NaN for a run
    that does not span the grid: its mean over fewer steps is another quantity.
    """
    if len(curves.steps) == 1:
        return curves.values[:, 0].copy()
    length = float(curves.steps[-1] - curves.steps[0])
    return np.trapezoid(curves.values, curves.steps.astype(np.float64), axis=1) / length


def steps_to(curves: Curves, threshold: float, *, lower_is_better: bool = False) -> Reached:
    """The first step of the grid at which each run is at the threshold or beyond it.

    A run that never is counts as censored at the last step at which it has a value.
    """
    if not math.isfinite(threshold):
        raise UsageError(f"a threshold must be finite, got {threshold}")
    there = np.isfinite(curves.values)
    values = np.where(there, curves.values, np.inf if lower_is_better else -np.inf)
    hits = values <= threshold if lower_is_better else values >= threshold
    reached = hits.any(1)
    last = len(curves.steps) - 1 - np.argmax(there[:, ::-1], 1)
    steps = np.where(reached, curves.steps[np.argmax(hits, 1)], curves.steps[last]).astype(np.float64)
    return Reached(np.where(there.any(1), steps, np.nan), reached)


def median_steps(reached: Reached) -> float:
    """The step by which half of the runs are there, censoring taken into account (Kaplan and Meier 1958).

    Infinity where fewer than half get there while they are watched.
    """
    known = ~np.isnan(reached.steps)
    steps, events = reached.steps[known], reached.reached[known]
    surviving = 1.0
    for step in np.unique(steps[events]):
        at_risk = np.sum(steps >= step)
        surviving *= 1 - np.sum(events & (steps == step)) / at_risk
        if surviving <= 0.5 + 1e-12:
            return float(step)
    return math.inf
