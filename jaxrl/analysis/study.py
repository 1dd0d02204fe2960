"""Runs put together into what a reader wants to know: scores, curves, profiles and verdicts, for each method and task."""

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl.analysis import comparisons, curves, methods, profiles, statistics
from jaxrl.analysis.comparisons import Verdict
from jaxrl.analysis.curves import Band, Curves
from jaxrl.analysis.methods import Group
from jaxrl.analysis.profiles import Profile
from jaxrl.analysis.runs import FINISHED, Run
from jaxrl.analysis.statistics import Interval
from jaxrl.errors import UsageError, unknown

DRAWN_POINTS = 200
THRESHOLD_SHARE = 0.9


class Cell(NamedTuple):
    """One method in one task."""

    method: str
    task: str
    counted: tuple[Run, ...]  # those that reach the step of the comparison
    left_out: tuple[Run, ...]  # those that do not; their curves are drawn all the same
    band: Band | None  # over the counted runs
    scores: np.ndarray  # [counted], at the step of the comparison
    final: Interval | None
    area: Interval | None  # of the area under the curve
    steps_to: float  # by which half of the counted runs reach the task's threshold; inf: they do not; NaN: no threshold
    reached: int  # how many of them ever do


class Study(NamedTuple):
    """Everything a table, a figure or a report shows. Methods and tasks are in the order in which they were given."""

    metric: str
    lower_is_better: bool
    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    baseline: str
    cells: dict[tuple[str, str], Cell]  # by (method, task)
    at: dict[str, int]  # the step of the comparison, by task
    threshold: dict[str, float]
    verdicts: dict[tuple[str, str], Verdict]  # by (method, task), against the baseline
    overall: dict[str, Verdict]  # over all tasks; empty for one task
    aggregate: str  # "iqm" or "mean", of scores, areas and bands alike
    normalised: dict[str, Interval]  # the aggregate of normalised scores over all tasks; empty for one task
    profiles: dict[str, Profile]  # of normalised scores; empty for one task
    differences: dict[str, dict[str, str]]
    notices: tuple[str, ...]


def make_study(
    groups: Sequence[Group],
    metric: str,
    *,
    baseline: str = "",
    at: int | None = None,
    threshold: float | None = None,
    lower_is_better: bool = False,
    aggregate: str = "auto",
    notices: Sequence[str] = (),
) -> Study:
    """Compare groups of runs.

    Args:
        baseline: the method that others are compared with; the first where empty.
        at: the step of the comparison; by default the last that all finished runs of a task reach.
        threshold: of "steps to"; by default 0.9 of the baseline's way up from its first to its final score, if any.
        aggregate: "iqm", "mean", or "auto": interquartile means where every method has the 5 runs that they need.
        notices: lines to carry on.
    Raises:
        UsageError: where the baseline is unknown, or no run reaches ``at``.
    """
    names = tuple(dict.fromkeys(one.method for one in groups))
    tasks = tuple(dict.fromkeys(one.task for one in groups))
    if baseline and baseline not in names:
        raise unknown("baseline", baseline, names)
    baseline = baseline or names[0]
    if threshold is not None and not math.isfinite(threshold):
        raise UsageError(
            f"a threshold is a score, got {threshold}; leave it out for {100 * THRESHOLD_SHARE:.0f} % of the gain"
        )
    if aggregate not in ("auto", "iqm", "mean"):
        raise unknown("aggregate", aggregate, ("auto", "iqm", "mean"))
    said = list(notices)
    cells: dict[tuple[str, str], Cell] = {}
    thresholds = {}
    by_task = {task: [one for one in groups if one.task == task] for task in tasks}
    ends = {task: end_of(here, at, said) for task, here in by_task.items()}
    aggregate = choose_aggregate(groups, ends) if aggregate == "auto" else aggregate
    for task, here in by_task.items():
        made, thresholds[task] = _task(here, ends[task], baseline, threshold, lower_is_better, aggregate, said)
        cells |= {(cell.method, task): cell for cell in made}
    if not any(len(cell.counted) for cell in cells.values()):
        raise UsageError(f"no run reaches step {at or 0:,}; the longest ends at {_longest(groups):,}")
    told = _verdicts(cells, baseline, lower_is_better, aggregate)
    overall, normalised, profile = _across(cells, names, tasks, baseline, lower_is_better, aggregate, said)
    return Study(
        metric, lower_is_better, tasks, names, baseline, cells, ends, thresholds, told, overall, aggregate, normalised, profile,
        methods.differences(groups), tuple(dict.fromkeys(said)),
    )  # fmt: skip


def _longest(groups: Sequence[Group]) -> int:
    return max(run.end for one in groups for run in one.runs)


def is_over(run: Run) -> bool:
    """Whether a run took the steps that it was asked for, or does not say how many they are."""
    planned = run.folder.planned
    return run.folder.state == FINISHED or planned is None or run.end >= planned


def end_of(groups: Sequence[Group], at: int | None, notices: list[str]) -> int:
    """The step at which the runs of a task are compared: the last that all finished ones reach."""
    runs = [run for one in groups for run in one.runs]
    task = groups[0].task
    for run in runs:
        if not is_over(run) and not run.failed:
            share = 100 * run.end / (run.folder.planned or 1)
            notices.append(f"{run.curve.name} is at {share:.0f} % of its steps: {_why(run)}")
    if at is not None:
        return at
    there = [run for run in runs if run.end >= 0]
    whole = [run for run in there if not run.failed] or there
    over = [run for run in whole if is_over(run)] or [run for run in whole if len(run.curve.steps) > 1] or whole
    if not over:
        return 0
    shortest = min(over, key=lambda run: run.end)
    end, last = shortest.end, max(run.end for run in over)
    if last > end:
        fewer = sum(run.end < last for run in over)
        notices.append(
            f"{task}: runs have different lengths and are compared at step {end:,}, where {shortest.curve.name} ends; "
            f"--at {last} leaves out the {fewer} shorter"
        )
    return end


def fitting(one: Group, end: int) -> list[Run]:
    """The runs that have a value at the step of the comparison."""
    return [run for run in one.runs if len(run.curve.steps) and run.curve.steps[0] <= end <= run.end]


def choose_aggregate(groups: Sequence[Group], ends: Mapping[str, int]) -> str:
    """Interquartile means, unless a method that can be compared at all has too few runs to be compared by them."""
    counts = [len(fitting(one, ends[one.task])) for one in groups]
    comparable = [count for count in counts if count >= comparisons.FEWEST_SEEDS]
    return "mean" if comparable and min(comparable) < statistics.FEWEST_FOR_BOOTSTRAP else "iqm"


def _why(run: Run) -> str:
    return "interrupted" if run.folder.state == "interrupted" else "still going, or killed"


def _task(
    groups: Sequence[Group],
    end: int,
    baseline: str,
    threshold: float | None,
    lower_is_better: bool,
    aggregate: str,
    notices: list[str],
) -> tuple[list[Cell], float]:
    fits = {one.method: fitting(one, end) for one in groups}
    steps = _grid([run for some in fits.values() for run in some], end)
    aligned = {method: _align(some, steps) for method, some in fits.items() if some}
    if threshold is None and aligned:
        threshold = _threshold(aligned.get(baseline) or next(iter(aligned.values())), aggregate, lower_is_better)
    threshold = math.nan if threshold is None else threshold
    cells = []
    for one in groups:
        left_out = tuple(run for run in one.runs if run not in fits[one.method])
        if left_out:
            failed = sum(run.failed for run in left_out)
            why = f", {failed} of them for numbers that are not finite," if failed else ""
            notices.append(
                f"{one.method} in {one.task}: {len(left_out)} of {len(one.runs)} runs do not reach step {end:,}{why} and are left "
                f"out of its scores ({', '.join(run.curve.name for run in left_out[:3])}{', …' if len(left_out) > 3 else ''});"
                f" if they stopped because they did badly, the rest looks better than the method is"
            )
        cells.append(
            _cell(one, fits[one.method], left_out, aligned.get(one.method), threshold, lower_is_better, aggregate)
        )
    return cells, threshold


def _grid(runs: Sequence[Run], end: int) -> np.ndarray:
    if not runs:
        return np.asarray([end])
    first = max(int(run.curve.steps[0]) for run in runs)
    union = np.unique(np.concatenate([*(run.curve.steps for run in runs), [end]]))
    union = union[(union >= first) & (union <= end)]
    return union[thinned(len(union), curves.POINTS)]


def thinned(count: int, most: int) -> np.ndarray:
    """Indices of at most ``most`` of ``count`` points, evenly spread, the first and the last among them."""
    if count <= most:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, most).round().astype(int))


def _align(runs: Sequence[Run], steps: np.ndarray | None) -> Curves:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it warns of has been said when the run was read
        if steps is not None:
            return curves.align([run.curve for run in runs], steps=steps)
        return curves.align([run.curve for run in runs], whole=True, points=DRAWN_POINTS)


def _threshold(aligned: Curves, aggregate: str, lower_is_better: bool) -> float:
    """Most of the way from the first to the final score; NaN where that is no way up."""
    value = statistics.aggregate_function(aggregate)
    first, last = (float(value(aligned.values[:, [i]])) for i in (0, -1))
    gains = last < first if lower_is_better else last > first
    return first + THRESHOLD_SHARE * (last - first) if gains else math.nan


def _cell(
    one: Group,
    counted: Sequence[Run],
    left_out: tuple[Run, ...],
    aligned: Curves | None,
    threshold: float,
    lower_is_better: bool,
    aggregate: str,
) -> Cell:
    if aligned is None:
        return Cell(one.method, one.task, (), left_out, None, np.zeros(0), None, None, math.nan, 0)
    scores = aligned.values[:, -1]
    reached = None
    if not math.isnan(threshold):
        reached = curves.steps_to(aligned, threshold, lower_is_better=lower_is_better)
    return Cell(
        one.method,
        one.task,
        tuple(counted),
        left_out,
        curves.band(_align(counted, None), aggregate),
        scores,
        statistics.interval(scores, aggregate),
        statistics.interval(curves.area(aligned), aggregate),
        math.nan if reached is None else curves.median_steps(reached),
        0 if reached is None else int(reached.reached.sum()),
    )


def _verdicts(
    cells: Mapping[tuple[str, str], Cell], baseline: str, lower_is_better: bool, aggregate: str
) -> dict[tuple[str, str], Verdict]:
    """Every method against the baseline in every task; the correction counts all of them."""
    keys, compared = [], []
    for (method, task), cell in cells.items():
        base = cells.get((baseline, task))
        if method == baseline or base is None or not cell.counted or not base.counted:
            continue
        keys.append((method, task))
        compared.append(comparisons.compare(cell.scores, base.scores, seeds=_seeds(cell, base), aggregate=aggregate))
    told = dict(zip(keys, _decided(compared, lower_is_better), strict=True))
    return {key: _weighed(verdict, [cells[key]], [cells[baseline, key[1]]]) for key, verdict in told.items()}


def _decided(compared: Sequence[comparisons.Comparison], lower_is_better: bool) -> list[Verdict]:
    usable = [c.p_value if min(c.runs) >= comparisons.FEWEST_SEEDS else math.nan for c in compared]
    many = sum(not math.isnan(p) for p in usable)
    note = f" after correcting for {many} comparisons" if many > 1 else ""
    adjusted = comparisons.holm(usable)
    return [comparisons.decide(c, float(p), lower_is_better, "", note) for c, p in zip(compared, adjusted, strict=True)]


def _weighed(verdict: Verdict, cells: Sequence[Cell], base: Sequence[Cell]) -> Verdict:
    """The verdict in the light of runs without a score, on the side that it favours.

    Where some failed, those that are left are the lucky ones, and nothing is said in their favour; where some have only not
    come far enough, the verdict says how many.
    """
    if verdict.better is None:
        return verdict
    favoured = cells if verdict.better else base
    failed, gone = (max(sum(map(of, cell.left_out)) for cell in favoured) for of in (_failed, bool))
    if not gone:
        return verdict
    runs = f"{failed or gone} of {max(len(cell.counted) + len(cell.left_out) for cell in favoured)} runs of {favoured[0].method}"
    if not failed:
        return verdict._replace(text=f"{verdict.text}, without {runs} that have no score")
    text = f"cannot tell: {runs} ended in numbers that are not finite; the others say {verdict.text}"
    return verdict._replace(text=text, better=None)


def _failed(run: Run) -> bool:
    return run.failed


def _seeds(cell: Cell, base: Cell) -> tuple[list[Any], list[Any]] | None:
    both = [run.seed for run in cell.counted], [run.seed for run in base.counted]
    return None if None in both[0] + both[1] else both


def _across(
    cells: Mapping[tuple[str, str], Cell],
    names: Sequence[str],
    tasks: Sequence[str],
    baseline: str,
    lower_is_better: bool,
    aggregate: str,
    notices: list[str],
) -> tuple[dict[str, Verdict], dict[str, Interval], dict[str, Profile]]:
    """Over all tasks: scores from 0 (the first evaluation, over all runs of the task) to 1 (the best method's final)."""
    if len(tasks) < 2:
        return {}, {}, {}
    whole = [m for m in names if all((m, task) in cells and cells[m, task].counted for task in tasks)]
    partly = [m for m in names if m not in whole]
    if partly:
        called = ", ".join(partly[:3]) + (f" and {len(partly) - 3} more" if len(partly) > 3 else "")
        notices.append(f"left out of what is said over all tasks, for want of a score in some: {called}")
    if not whole:
        return {}, {}, {}
    scales = {task: _scale([cells[m, task] for m in whole], lower_is_better, aggregate) for task in tasks}
    flat = [task for task in tasks if scales[task][1] == scales[task][0]]
    used = [task for task in tasks if task not in flat]
    notices.extend(f"{task}: no method gets away from its start, which says nothing over all tasks" for task in flat)
    if not used:
        return {}, {}, {}
    scores = {m: _rectangle([cells[m, task] for task in used], [scales[task] for task in used], notices) for m in whole}
    normalised = {m: statistics.interval(values, aggregate) for m, (values, _) in scores.items()}
    levels = np.linspace(0.0, max(1.0, max(float(values.max()) for values, _ in scores.values())), 101)
    profile = {m: profiles.performance_profile(values, levels) for m, (values, _) in scores.items()}
    if baseline not in scores:
        return {}, normalised, profile
    (base, base_seeds), others = scores[baseline], [m for m in whole if m != baseline]
    compared = []
    for m in others:
        values, seeds = scores[m]
        by = (seeds, base_seeds) if seeds and base_seeds else None
        compared.append(comparisons.compare(values, base, seeds=by, aggregate=aggregate))
    over_tasks = lambda method: [cells[method, task] for task in used]
    told = zip(others, _decided(compared, False), strict=True)
    verdicts = {method: _weighed(verdict, over_tasks(method), over_tasks(baseline)) for method, verdict in told}
    return verdicts, normalised, profile


def _scale(cells: Sequence[Cell], lower_is_better: bool, aggregate: str) -> tuple[float, float]:
    starts = np.asarray([run.curve.values[0] for cell in cells for run in cell.counted])
    finals = [cell.final.value for cell in cells if cell.final is not None]
    return float(statistics.aggregate_function(aggregate)(starts[:, None])), min(finals) if lower_is_better else max(
        finals
    )


def _rectangle(
    cells: Sequence[Cell], scales: Sequence[tuple[float, float]], notices: list[str]
) -> tuple[np.ndarray, list[int]]:
    """Normalised scores ``[runs, tasks]`` of one method, a row a seed where the tasks share seeds; and those seeds."""
    by_seed = [{run.seed: score for run, score in zip(cell.counted, cell.scores, strict=True)} for cell in cells]
    seeds = [seed for seed in by_seed[0] if seed is not None and all(seed in of for of in by_seed)]
    fewest = min(len(cell.counted) for cell in cells)
    if len(seeds) >= fewest:
        columns = [[of[seed] for seed in seeds] for of in by_seed]
    else:
        seeds, columns = [], [list(cell.scores[:fewest]) for cell in cells]
    if max(len(cell.counted) for cell in cells) > len(columns[0]):
        notices.append(f"{cells[0].method}: over all tasks {len(columns[0])} runs count, as many as every task has")
    table = np.asarray(columns).T
    low, high = (np.asarray([scale[i] for scale in scales]) for i in (0, 1))
    return (table - low) / (high - low), seeds
