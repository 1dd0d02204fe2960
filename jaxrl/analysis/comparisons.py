"""Is one method better than another, by how much, and can these runs tell?

Paired comparisons are for runs that share a seed, so that what a seed does to both cancels; they are never less valid
than unpaired ones, only useless where seeds do not matter alike. A difference and its p-value come from one and the same
interval: the p-value is below 5 % exactly where the 95 % interval leaves 0 out.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from jaxrl.analysis import intervals, statistics
from jaxrl.analysis.statistics import RESAMPLES, Interval
from jaxrl.analysis.text import numbers
from jaxrl.errors import UsageError, unknown

FEWEST_SEEDS = 3


class Comparison(NamedTuple):
    """``a`` against the baseline ``b``. Intervals are NaN where there can be none."""

    a: float  # the aggregates themselves
    b: float
    difference: Interval  # a - b, in the scores' units
    percent: Interval | None  # 100 (a / b - 1); None where the baseline is not clearly above 0
    p_value: float  # of "there is no difference"; NaN where there is no interval
    runs: tuple[int, int]
    paired: bool


class Verdict(NamedTuple):
    """One line for a reader, and the numbers it was made from."""

    text: str
    better: bool | None  # None: cannot tell
    comparison: Comparison
    p_value: float  # after the correction, where there was one


def pair(
    a: Any, b: Any, seeds: tuple[Sequence, Sequence] | None, paired: bool | None, missing: str = "refuse"
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Checked scores of both, row by row where they are paired.

    Args:
        seeds: of ``a`` and of ``b``. With ``paired=True``, runs of seeds that only one of them has are left out.
        paired: None pairs where seeds are given and are the same set.
    Raises:
        UsageError: where they cannot be paired, or hold different tasks.
    """
    if seeds is not None:
        for scores, given in zip((a, b), seeds, strict=True):
            if len(scores) != len(given):
                raise UsageError(f"{len(given)} seeds for {len(scores)} runs; give one each")
            if len(set(given)) != len(given):
                raise UsageError(f"seeds must be distinct to be paired by, got {list(given)}")
        same = set(seeds[0]) == set(seeds[1])
        if paired is None:
            paired = same
        if paired:
            common = [seed for seed in seeds[0] if seed in set(seeds[1])]
            if not common:
                raise UsageError("no seed is in both, so that runs cannot be paired; use paired=False")
            a = [a[list(seeds[0]).index(seed)] for seed in common]
            b = [b[list(seeds[1]).index(seed)] for seed in common]
    elif paired and len(a) != len(b):
        raise UsageError(f"paired runs must be as many, got {len(a)} and {len(b)}; give seeds, or use paired=False")
    if paired and missing == "drop":
        both = np.concatenate([np.reshape(np.asarray(x, np.float64), (len(x), -1)) for x in (a, b)], 1)
        kept = statistics.check_scores(both, missing="drop")
        a, b = np.split(kept, 2, 1) if np.shape(a) == np.shape(b) else (a, b)
    a, b = statistics.check_scores(a, missing=missing), statistics.check_scores(b, missing=missing)
    if a.shape[1] != b.shape[1]:
        raise UsageError(f"both need the same tasks, got {a.shape[1]} and {b.shape[1]}")
    return a, b, bool(paired)


def compare(
    a: Any,
    b: Any,
    *,
    paired: bool | None = None,
    seeds: tuple[Sequence, Sequence] | None = None,
    aggregate: str = "mean",
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
    gamma: float = 1.0,
    missing: str = "refuse",
) -> Comparison:
    """The difference and the ratio of an aggregate of ``a`` and of ``b``, with intervals.

    Means (and optimality gaps) by Hall's transformed t of the difference, interquartile means by the expanded bootstrap
    (from 5 runs; by Yuen's t below), as :func:`jaxrl.analysis.statistics.interval` does. The ratio's interval holds those
    ratios ``r`` for which ``a - r b = 0`` is not rejected (Fieller 1954), or is the bootstrap's.

    FALSE_POSITIVES

    Args:
        a, b: ``[runs, tasks]`` or ``[runs]``, the same tasks.
        paired, seeds: see :func:`pair`.
        aggregate: ``"mean"``, ``"iqm"`` or ``"optimality_gap"``.
    """
    statistics.check_confidence(confidence, resamples)
    if aggregate not in ("mean", "iqm", "optimality_gap"):
        raise unknown("aggregate of a comparison", str(aggregate), ("mean", "iqm", "optimality_gap"))
    a, b, paired = pair(a, b, seeds, paired, missing)
    if aggregate == "optimality_gap":
        a, b, aggregate = gamma - np.minimum(a, gamma), gamma - np.minimum(b, gamma), "mean"
    value = statistics.aggregate_function(aggregate)
    of_a, of_b, runs = float(value(a)), float(value(b)), (len(a), len(b))
    if min(runs) < 2:
        nothing = Interval(of_a - of_b, math.nan, math.nan, confidence, "none", min(runs), "one run has no spread")
        return Comparison(of_a, of_b, nothing, None, math.nan, runs, paired)
    if aggregate == "iqm" and min(runs) >= statistics.FEWEST_FOR_BOOTSTRAP:
        low, high, percent, p_value = _bootstrapped(a, b, paired, confidence, resamples, seed)
        method = "expanded"
    else:
        low, high, percent, p_value = _closed_form(a, b, paired, aggregate, confidence)
        method = "student" if aggregate == "iqm" else "skew_t"
    make = partial(Interval, confidence=confidence, method=method, runs=min(runs))
    ratio = None if percent is None else make(100 * (of_a / of_b - 1), *percent)
    return Comparison(of_a, of_b, make(of_a - of_b, low, high), ratio, p_value, runs, paired)


Bounds = tuple[float, float]


def _closed_form(
    a: np.ndarray, b: np.ndarray, paired: bool, aggregate: str, confidence: float
) -> tuple[float, float, Bounds | None, float]:
    of, p_of = (
        (intervals.student_t, intervals.student_p) if aggregate == "iqm" else (intervals.skew_t, intervals.skew_t_p)
    )
    value = statistics.aggregate_function(aggregate)

    def against(ratio: float) -> tuple[float, intervals.Moments]:
        return value(a) - ratio * value(b), _difference_moments(a, b, ratio, paired, aggregate)

    estimate, error = against(1.0)
    low, high = of(estimate, error, confidence)
    percent = None
    if of(value(b), statistics.error_moments(b, aggregate), confidence)[0] > 0:
        bounds = [_root(lambda ratio, side=side: of(*against(ratio), confidence)[side]) for side in (0, 1)]
        percent = (100 * (bounds[0] - 1), 100 * (bounds[1] - 1)) if None not in bounds else None
    return float(low), float(high), percent, float(p_of(estimate, error))


def _difference_moments(a: np.ndarray, b: np.ndarray, ratio: float, paired: bool, aggregate: str) -> intervals.Moments:
    """Moments of the error of ``a - ratio b``."""
    if not paired:
        of_b = intervals.scaled(statistics.error_moments(b, aggregate), ratio)
        return intervals.minus(statistics.error_moments(a, aggregate), of_b)
    if aggregate == "iqm":
        return intervals.trimmed_moments(intervals.winsorised(a) - ratio * intervals.winsorised(b), a.size)
    return intervals.moments(a - ratio * b)


def _root(bound: Any) -> float | None:
    """The ratio at which a bound of ``a - ratio b`` crosses 0, found outwards from 1 and by bisection."""
    start, step = 1.0, 0.25
    sign = 1.0 if bound(start) > 0 else -1.0  # the bound falls with the ratio
    inside, outside = start, start + sign * step
    while sign * bound(outside) > 0:
        inside, step = outside, 2 * step
        outside = inside + sign * step
        if step > 1e4:
            return None
    for _ in range(50):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if sign * bound(middle) > 0 else (inside, middle)
    return (inside + outside) / 2


def _bootstrapped(
    a: np.ndarray, b: np.ndarray, paired: bool, confidence: float, resamples: int, seed: int
) -> tuple[float, float, Bounds | None, float]:
    streams = ((seed,), (seed,)) if paired else ((seed, 1), (seed, 2))
    of_a, of_b = (
        intervals.bootstrap(x, intervals.iqm_of_counts, resamples, s) for x, s in zip((a, b), streams, strict=True)
    )
    if paired:
        freedom = intervals.moments(intervals.winsorised(a) - intervals.winsorised(b)).freedom
    else:
        spread = (intervals.moments(intervals.winsorised(x)) for x in (a, b))
        freedom = intervals.minus(*spread).freedom
    runs = min(len(a), len(b))
    level = intervals.expanded_level((1 - confidence) / 2, freedom, runs)
    low, high = statistics.two_quantiles(of_a - of_b, level)
    percent = None
    baseline_level = intervals.expanded_level((1 - confidence) / 2, statistics.spread_freedom(b, "iqm"), len(b))
    if statistics.two_quantiles(of_b, baseline_level)[0] > 0:
        ratio = of_a / np.where(of_b > 0, of_b, np.finfo(float).tiny)
        percent = tuple(100 * (float(x) - 1) for x in statistics.two_quantiles(ratio, level))
    return float(low), float(high), percent, intervals.expanded_p(of_a - of_b, float(freedom), runs)


def holm(p_values: Sequence[float]) -> np.ndarray:
    """p-values of several comparisons, so that the chance of any false one stays below the level (Holm 1979).

    NaN (a comparison that cannot be made) stays NaN and does not count.
    """
    return _adjusted(p_values, "holm")


def benjamini_hochberg(p_values: Sequence[float]) -> np.ndarray:
    """p-values so that the expected share of false ones among those called different stays below the level (1995)."""
    return _adjusted(p_values, "benjamini_hochberg")


def _adjusted(p_values: Sequence[float], how: str) -> np.ndarray:
    p = np.asarray(p_values, np.float64)
    known = np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known], kind="stable")]
    count = len(order)
    out = np.full(p.shape, np.nan)
    if how == "holm":
        out[order] = np.minimum(np.maximum.accumulate(p[order] * (count - np.arange(count))), 1.0)
    else:
        scaled = p[order] * count / np.arange(1, count + 1)
        out[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return out


CORRECTIONS = {"holm": holm, "benjamini_hochberg": benjamini_hochberg}


def verdict(
    a: Any, b: Any, paired: bool | None = None, *, lower_is_better: bool = False, unit: str = "", **options: Any
) -> Verdict:
    """Whether ``a`` is better than the baseline ``b``, in one line.

    "better by 12 % [4, 21], 10 seeds", "worse by 3.1 [0.4, 5.8], 8 and 10 seeds", "cannot tell: -1 % [-9, 7], 10 seeds".
    Percent of the baseline where that is clearly above 0, else the scores' own units. A positive number after "cannot
    tell" leans towards better, whichever direction that is.

    Args:
        unit: what to write after a number that is not in percent.
        options: of :func:`jaxrl.analysis.comparisons.compare`.
    """
    compared = compare(a, b, paired=paired, **options)
    return _decide(compared, compared.p_value, lower_is_better, unit, "")


def verdicts(
    results: Mapping[str, Any],
    baseline: str,
    *,
    correction: str = "holm",
    seeds: Mapping[str, Any] | None = None,
    lower_is_better: bool = False,
    unit: str = "",
    **options: Any,
) -> dict[str, Verdict]:
    """Every other method against the baseline, with a correction for how many there are.

    The intervals in the text are those of each comparison alone; a line whose own interval leaves out 0 but that does
    not survive the correction says so.

    Args:
        results: scores by method; ``seeds`` likewise, to pair by.
        correction: ``"holm"`` or ``"benjamini_hochberg"``.
    """
    if baseline not in results:
        raise unknown("baseline", baseline, results)
    if correction not in CORRECTIONS:
        raise unknown("correction", correction, CORRECTIONS)
    others = [name for name in results if name != baseline]
    if not others:
        raise UsageError(f"nothing to compare with '{baseline}'; give at least one more method")
    compared = []
    for name in others:
        by = None if seeds is None else (seeds[name], seeds[baseline])
        compared.append(compare(results[name], results[baseline], seeds=by, **options))
    usable = [c.p_value if min(c.runs) >= FEWEST_SEEDS else math.nan for c in compared]
    adjusted = CORRECTIONS[correction](usable)
    many = sum(not math.isnan(p) for p in usable)
    note = f" after correcting for {many} comparisons" if many > 1 else ""
    return {
        name: _decide(c, float(p), lower_is_better, unit, note)
        for name, c, p in zip(others, compared, adjusted, strict=True)
    }


def _decide(c: Comparison, p_value: float, lower_is_better: bool, unit: str, note: str) -> Verdict:
    sign = -1.0 if lower_is_better else 1.0
    seeds = f"{c.runs[0]} seeds" if c.runs[0] == c.runs[1] else f"{c.runs[0]} and {c.runs[1]} seeds"
    if min(c.runs) < FEWEST_SEEDS:
        few = "1 seed" if c.runs == (1, 1) else seeds
        return Verdict(f"cannot tell: {few}; at least {FEWEST_SEEDS} of each are needed", None, c, math.nan)
    shown = c.difference if c.percent is None else c.percent
    suffix = " %" if c.percent is not None else (f" {unit}" if unit else "")
    low, high = sorted((sign * shown.low, sign * shown.high))
    alpha = 1 - c.difference.confidence
    if p_value < alpha:
        better = sign * c.difference.value > 0
        value = abs(shown.value)
        ends = sorted((abs(low), abs(high)))
        line = f"{'better' if better else 'worse'} by {numbers(value, *ends, suffix)}, {seeds}"
        return Verdict(line, better, c, p_value)
    separates = c.p_value < alpha
    line = f"cannot tell{note if separates else ''}: {numbers(sign * shown.value, low, high, suffix)}, {seeds}"
    return Verdict(line, None, c, p_value)
