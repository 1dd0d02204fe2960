"""A run while it goes on: what its folder says by now, how fast it is, how long it still takes, whether it lives."""

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl.analysis.curves import Band, Curve, Curves, align, band
from jaxrl.analysis.runs import (
    FINISHED,
    INTERRUPTED,
    PLAIN_COLUMNS,
    Folder,
    as_number,
    find,
    read_folder,
    read_rows,
)

MAIN = ("eval/return", "episode/return")
SAME = ("eval/episodes",)  # set by the config, not measured
PATIENCE, LEAST_PATIENCE = 10.0, 120.0  # usual gaps between rows, seconds
STARTING_PATIENCE = 1800.0  # seconds to compile in
RECENT = 5  # log points that the rate is taken over
MOST_LINES = 16  # members drawn one by one


class Watched(NamedTuple):
    """What has been read of a run folder so far."""

    folder: Folder
    rows: list[dict[str, Any]]
    offset: int
    file: int  # the inode that the offset belongs to; a resumed run replaces the file
    written: float  # when it was last written, in seconds since the epoch; 0 for never
    skipped: int
    half: bool
    series: tuple["Series", ...] = ()  # of the rows


class Standing(NamedTuple):
    """How a run stands. Numbers that are not known are NaN."""

    state: str  # "waiting", "running", "silent", "interrupted" or "finished"
    message: str  # one sentence
    step: int
    planned: int | None
    members: int
    seconds: float  # that the run has taken
    rate: float  # environment steps a second, all members together
    left: float  # seconds


class Series(NamedTuple):
    """One column over steps, over the members."""

    name: str
    curves: tuple[Curve, ...]
    band: Band | None  # the mean over members, with its 95 % interval
    latest: np.ndarray  # [members], the last value of each


def choose(run: str | Path) -> tuple[Path, list[str]]:
    """The run folder to watch: the one given, or the one below it that was written last.

    Raises:
        UsageError: where there is none.
    """
    found, problems = find([run])
    paths = [path for path, _, _ in found]
    newest = max(paths, key=last_written)
    if len(paths) > 1:
        problems.append(f"{len(paths)} runs in {run}; this is the one written last")
    return newest, problems


def last_written(path: Path) -> float:
    """When a run last wrote a row, or its config; in seconds since the epoch, 0 for never."""
    for name in ("metrics.jsonl", "config.json"):
        try:
            return (path / name).stat().st_mtime
        except OSError:
            continue
    return 0.0


def look(path: Path, before: Watched | None = None) -> Watched:
    """Read what is new since ``before``; from the beginning where the file was replaced or cut."""
    folder = read_folder(path)
    try:
        facts = (path / "metrics.jsonl").stat()
        if before is not None and (before.file != facts.st_ino or before.offset > facts.st_size):
            before = None
        new = read_rows(path / "metrics.jsonl", before.offset if before else 0)
    except OSError:
        return Watched(folder, [], 0, 0, last_written(path), 0, False)
    rows, skipped, found = (before.rows, before.skipped, before.series) if before else ([], 0, ())
    if new.rows:
        rows = [*rows, *new.rows]
        found = tuple(series(rows))
    return Watched(folder, rows, new.offset, facts.st_ino, facts.st_mtime, skipped + new.skipped, new.half, found)


def standing(watched: Watched, now: float | None = None) -> Standing:
    """How the run stands at a time (seconds since the epoch; now where absent)."""
    now = time.time() if now is None else now
    folder, silent = watched.folder, max((now - watched.written), 0.0)
    go_on = f"go on with: uv run python -m experiments.train --resume {folder.path}"
    if not watched.rows:
        return _without_rows(watched, silent, go_on)
    members = len({row.get("member", 0) for row in watched.rows})
    step = int(watched.rows[-1]["step"])
    seconds = as_number(watched.rows[-1].get("time/seconds"))
    pace, gap = rates(watched.rows)
    planned, rate = folder.planned, pace * members
    left = max((planned - step) / pace - silent, 0.0) if planned and pace > 0 else math.nan
    made = Standing("running", "", step, planned, members, seconds, rate, left)
    if folder.state == FINISHED:
        return made._replace(state="finished", message=f"{step:,} steps taken", left=0.0)
    if folder.state == INTERRUPTED:
        return made._replace(state="interrupted", message=f"after {step:,} steps; {go_on}", left=math.nan)
    patience = max(LEAST_PATIENCE, PATIENCE * gap if math.isfinite(gap) else 0.0)
    if silent > patience:
        usual = f"; rows used to come every {duration(gap)}" if math.isfinite(gap) else ""
        message = f"no row for {duration(silent)}{usual}. It was probably killed, or stopped at a number that was not finite; {go_on}"
        return made._replace(state="silent", message=message, left=math.nan)
    if planned and step >= planned:
        return made._replace(message="all steps are taken; figures and checkpoints are being written", left=0.0)
    return made._replace(message=f"last row {duration(silent)} ago")


def _without_rows(watched: Watched, silent: float, go_on: str) -> Standing:
    nothing = Standing("waiting", "", 0, watched.folder.planned, 0, math.nan, math.nan, math.nan)
    if watched.folder.state == FINISHED:
        return nothing._replace(state="finished", message="its rows are gone")
    if watched.folder.state == INTERRUPTED:
        return nothing._replace(state="interrupted", message=f"before its first row; {go_on}")
    if silent > STARTING_PATIENCE:
        return nothing._replace(
            state="silent", message=f"no row in {duration(silent)}; it was probably killed before its first; {go_on}"
        )
    return nothing._replace(message=f"no row yet: compiling, or about to start ({duration(silent)} ago)")


def rates(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Environment steps a second of one member, and the seconds between log points, over the last few; NaN if unknown."""
    at: dict[int, float] = {}
    for row in reversed(rows):
        seconds = as_number(row.get("time/seconds"))
        if math.isfinite(seconds):
            at.setdefault(int(row["step"]), seconds)
        if len(at) > RECENT:
            break
    points = sorted(at.items())
    points = points[1:] if len(points) > 2 and points[0][0] == 0 else points  # before it everything compiles
    if len(points) < 2 or points[-1][1] <= points[0][1]:
        return math.nan, math.nan
    seconds = points[-1][1] - points[0][1]
    return (points[-1][0] - points[0][0]) / seconds, seconds / (len(points) - 1)


def series(rows: Sequence[Mapping[str, Any]]) -> list[Series]:
    """Every measured column, the returns first, then evaluations, episodes and the rest by name."""
    columns: dict[str, dict[int, list[tuple[int, float]]]] = {}
    for row in rows:
        member, step = row.get("member", 0), int(row["step"])
        for name, value in row.items():
            if "/" in name and not name.startswith("time/") and name not in SAME:
                columns.setdefault(name, {}).setdefault(member, []).append((step, as_number(value)))
    return [_series(name, columns[name]) for name in sorted(columns, key=_order)]


def _order(name: str) -> tuple[int, int, str]:
    place = MAIN.index(name) if name in MAIN else len(MAIN)
    return place, 0 if name.startswith("eval/") else 1 if name.startswith("episode/") else 2, name


def _series(name: str, members: Mapping[int, Sequence[tuple[int, float]]]) -> Series:
    curves, latest = [], []
    for member, points in sorted(members.items()):
        kept = dict(points)
        steps = np.asarray(sorted(kept), np.int64)
        values = np.asarray([kept[step] for step in steps.tolist()])
        finite = np.isfinite(values)
        latest.append(values[-1])
        if finite.any():
            curves.append(Curve(f"member {member}", steps[finite], values[finite]))
    together = band(align(curves, whole=True, points=200), "mean") if curves else None
    return Series(name, tuple(curves), together, np.asarray(latest))


def settings_table(watched: Watched, column: str) -> list[tuple[str, np.ndarray]]:
    """The latest values of a column for each combination of swept values, best mean first; empty without a sweep."""
    latest: dict[int, dict[str, Any]] = {}
    for row in watched.rows:
        if column in row:
            latest[row.get("member", 0)] = row
    found: dict[str, list[float]] = {}
    for row in latest.values():
        swept = {k: v for k, v in row.items() if "/" not in k and k not in PLAIN_COLUMNS}
        if swept:
            name = ", ".join(f"{k.replace('_', ' ')} {as_number(v):g}" for k, v in swept.items())
            found.setdefault(name, []).append(as_number(row[column]))
    pairs = [(name, np.asarray(values)) for name, values in found.items()]
    return sorted(pairs, key=lambda pair: -np.nan_to_num(pair[1].mean(), nan=-np.inf))


def drawn_members(one: Series) -> list[Curve]:
    """Members to draw one by one; where they are many, the lowest and the highest at each step instead."""
    if len(one.curves) <= 1:
        return []
    if len(one.curves) <= MOST_LINES:
        return list(one.curves)
    together: Curves = align(one.curves, whole=True, points=200)
    low, high = np.nanmin(together.values, 0), np.nanmax(together.values, 0)
    return [Curve("lowest", together.steps, low), Curve("highest", together.steps, high)]


def duration(seconds: float) -> str:
    """``0.4 s``, ``42 s``, ``3 min``, ``2 h 05 min``, ``3 d 4 h``; a dash for what is not known."""
    if not math.isfinite(seconds):
        return "–"
    if 0 < seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    if whole < 5940:
        return f"{round(whole / 60)} min"
    hours, minutes = whole // 3600, whole % 3600 // 60
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
