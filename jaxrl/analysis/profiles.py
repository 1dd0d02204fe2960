"""Whole distributions rather than one number: performance profiles, and how likely one method beats another."""

import math
from typing import Any, NamedTuple

import numpy as np

from jaxrl.analysis import intervals
from jaxrl.analysis.statistics import Interval, check_confidence, check_scores, two_quantiles
from jaxrl.errors import UsageError, unknown


class Profile(NamedTuple):
    """The share of runs (or of tasks) above each threshold, ``[thresholds]`` each, with pointwise bounds."""

    thresholds: np.ndarray
    share: np.ndarray
    low: np.ndarray
    high: np.ndarray


def performance_profile(
    scores: Any,
    thresholds: Any,
    *,
    of: str = "runs",
    confidence: float = 0.95,
    missing: str = "refuse",
    resamples: int = 2_000,
    seed: int = 0,
) -> Profile:
    """The share of scores above each threshold (strictly), with pointwise bounds.

    The area under it from 0 is the mean of non-negative scores.

    Args:
        thresholds: ``[thresholds]``.
        of: ``"runs"``: the share of all runs' scores (the score distribution); bounds are Wilson's, with the number of
            scores raised where tasks differ, since each task's number of runs is fixed. ``"tasks"``: the share of tasks
            whose mean is above; bounds from each task's t distribution.
    Returns:
        NaN bounds for a single run.
    """
    check_confidence(confidence, resamples)
    array = check_scores(scores, missing=missing)
    levels = np.atleast_1d(np.asarray(thresholds, np.float64))
    if of not in ("runs", "tasks"):
        raise unknown("kind of profile", str(of), ("runs", "tasks"))
    if of == "tasks":
        share = np.mean(array.mean(0) > levels[:, None], -1)
        if len(array) < 2:
            return Profile(levels, share, np.full_like(share, np.nan), np.full_like(share, np.nan))
        drawn = np.sort(intervals.task_t_draws(array, resamples, (seed,)), -1)
        above = 1 - np.stack([np.searchsorted(row, levels, "right") for row in drawn], -1) / array.shape[1]
        return Profile(levels, share, *two_quantiles(above, np.asarray((1 - confidence) / 2)))
    of_task = np.mean(array[None] > levels[:, None, None], 1)  # [thresholds, tasks]
    share = of_task.mean(-1)
    if len(array) < 2:
        return Profile(levels, share, np.full_like(share, np.nan), np.full_like(share, np.nan))
    return Profile(levels, share, *_wilson(share, of_task, len(array), confidence))


def _wilson(share: np.ndarray, of_task: np.ndarray, runs: int, confidence: float) -> tuple[np.ndarray, np.ndarray]:
    from scipy.special import ndtri

    tasks = of_task.shape[-1]
    careful = (of_task * runs + 0.5) / (runs + 1)  # a task all above (or below) is not known to be so
    pooled = careful.mean(-1)
    number = runs * tasks * pooled * (1 - pooled) / (careful * (1 - careful)).mean(-1)
    z2 = ndtri((1 + confidence) / 2) ** 2
    centre = (share + z2 / (2 * number)) / (1 + z2 / number)
    half = np.sqrt(z2 * (share * (1 - share) / number + z2 / (4 * number**2))) / (1 + z2 / number)
    return np.clip(centre - half, 0, 1), np.clip(centre + half, 0, 1)


def probability_of_improvement(a: Any, b: Any, *, confidence: float = 0.95, missing: str = "refuse") -> Interval:
    """How likely a run of ``a`` beats a run of ``b`` on the same task (ties count half), averaged over tasks.

    Mann and Whitney's U over the number of pairs. The interval is Newcombe's (2006) method 5: it holds the probabilities
    whose own standard error (Hanley and McNeil 1982) explains what was seen, so that it has a width even where every run
    of ``a`` beats every one of ``b``. Measured coverage of the 95 % interval: 93 to 97 % with one task and 5 to 20 runs,
    95 to 98 % with ten unlike tasks; a percentile bootstrap of 5 runs that never lose has none.

    Args:
        a, b: ``[runs, tasks]`` or ``[runs]``; the numbers of runs may differ.
    """
    check_confidence(confidence)
    a, b = check_scores(a, missing=missing), check_scores(b, missing=missing)
    if a.shape[1] != b.shape[1]:
        raise UsageError(f"both need the same tasks, got {a.shape[1]} and {b.shape[1]}")
    wins = np.mean(np.sign(a[:, None] - b[None]) / 2 + 0.5, (0, 1))
    value, smaller = float(wins.mean()), min(len(a), len(b))
    if smaller < 2:
        return Interval(value, math.nan, math.nan, confidence, "none", smaller, "one run has no spread")
    low = _newcombe(value, len(a), len(b), a.shape[1], confidence)
    high = 1 - _newcombe(1 - value, len(a), len(b), a.shape[1], confidence)
    return Interval(value, low, high, confidence, "newcombe", smaller)


def _newcombe(value: float, runs_a: int, runs_b: int, tasks: int, confidence: float) -> float:
    from scipy.special import ndtri

    z2, more = ndtri((1 + confidence) / 2) ** 2, (runs_a + runs_b) / 2 - 1

    def surplus(p: float) -> float:
        variance = p * (1 - p) * (1 + more * ((1 - p) / (2 - p) + p / (1 + p))) / (runs_a * runs_b * tasks)
        return (value - p) ** 2 - z2 * variance

    below, above = 0.0, value
    for _ in range(60):
        middle = (below + above) / 2
        below, above = (middle, above) if surplus(middle) > 0 else (below, middle)
    return (below + above) / 2
