"""Run folders: find them, and read what can be read of each, whatever state it is in.

A run folder holds ``config.json`` (settings, command, versions), ``metrics.jsonl`` (a row for each member at each log
point) and, once it is over, ``result.json``. Nothing here stops at a fault: what cannot be read is left out and said so.
"""

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl.analysis.curves import Curve, read_curves
from jaxrl.errors import UsageError

# Columns without a "/" that are not swept values.
PLAIN_COLUMNS = ("step", "iteration", "member", "seed", "restores")
LARGEST_STEP = 2**63
FINISHED, INTERRUPTED, OPEN = "finished", "interrupted", "open"
_NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)")
_NOT_RUNS = {"checkpoints", "tensorboard", "wandb"}


class Folder(NamedTuple):
    """What a run folder says about itself, before its rows."""

    path: Path
    given: str  # the name or the path under which it was asked for
    named: bool  # whether ``given`` is a name that the reader chose
    agent: str  # "" where there is no config
    environment: str
    settings: dict[str, Any]  # flat: "agent.learning_rate", "loop.num_envs"; "agent" is the agent's name
    command: str
    versions: dict[str, str]
    device: str
    planned: int | None  # environment steps of one member
    state: str  # FINISHED, INTERRUPTED, or OPEN: still going, or killed
    dropped: frozenset[int]  # members that were left out on the way, for numbers that were not finite
    problems: tuple[str, ...]


class Run(NamedTuple):
    """One member of a run folder: one seed with one setting of every hyper-parameter."""

    folder: Folder
    member: int
    seed: int | None
    settings: dict[str, Any]  # the folder's, with this member's swept values in their place
    curve: Curve  # of the metric that was asked for
    seconds: float  # since the start, NaN where no row says
    restores: int  # how often it went back after a number that was not finite

    @property
    def end(self) -> int:
        """The last step with a finite value; -1 where there is none."""
        return int(self.curve.steps[-1]) if len(self.curve.steps) else -1

    @property
    def failed(self) -> bool:
        """Whether it ended in numbers that are not finite."""
        return self.curve.failed or self.member in self.folder.dropped


class Rows(NamedTuple):
    """Rows of a ``metrics.jsonl``, from an offset on."""

    rows: list[dict[str, Any]]
    offset: int  # where the next reading starts
    skipped: int  # lines that are no rows
    half: bool  # whether the last line is not (yet) whole


def find(given: Sequence[str | Path]) -> tuple[list[tuple[Path, str, bool]], list[str]]:
    """The run folders below what was asked for, each once, as ``(path, given, named)``.

    Args:
        given: run folders, folders of runs, or ``name=folder``.
    Returns:
        And what is wrong with what was asked for, a line each.
    Raises:
        UsageError: where nothing is a run.
    """
    found: dict[Path, tuple[Path, str, bool]] = {}
    problems = []
    for text in map(str, given):
        name, separator, rest = text.partition("=")
        named = bool(separator and name and rest) and "/" not in name and not Path(text).exists()
        path = Path(rest if named else text)
        path = path.parent if path.is_file() else path
        here = list(_below(path)) if path.is_dir() else []
        if not here:
            problems.append(f"{path} {'holds no run' if path.is_dir() else 'does not exist'}")
        for folder in here:
            key = folder.resolve()
            if key in found:
                problems.append(f"{folder} was given twice; it counts once")
            found.setdefault(key, (folder, name if named else text, named))
    if not found:
        raise UsageError(f"no run to read: {'; '.join(problems) or 'none was given'}")
    return list(found.values()), problems


def _below(top: Path) -> Iterator[Path]:
    """Folders with rows; those with a training config but no rows and no runs below are runs that have not begun."""
    seen: set[Path] = set()
    begun: list[Path] = []
    empty: list[Path] = []
    for here, folders, files in os.walk(top, followlinks=True):
        if Path(here).resolve() in seen:
            folders.clear()
            continue
        seen.add(Path(here).resolve())
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _NOT_RUNS)
        if "metrics.jsonl" in files:
            begun.append(Path(here))
        elif "config.json" in files and "agent" in _object(Path(here, "config.json"), []):
            empty.append(Path(here))
    within = {above for path in [*begun, *empty] for above in path.parents}
    yield from sorted(begun + [path for path in empty if path not in within], key=_natural)


def _natural(path: Path) -> list[tuple[float, str]]:
    """Numbers in a path in the order of their values: 0.0002 before 0.0011, seed 2 before seed 10."""
    parts = _NUMBER.split(str(path))
    return [(-1.0 if k % 2 == 0 else float(part), part) for k, part in enumerate(parts)]


def read_folder(path: Path, given: str = "", named: bool = False) -> Folder:
    """What a run folder says about itself; ``problems`` where a file is missing or broken."""
    problems: list[str] = []
    content, config = _object(path / "config.json", problems), {}
    if isinstance(content.get("config"), dict):
        config = content["config"]
    elif content:
        problems.append(f"{path / 'config.json'} is not a training config")
    settings = dict(flatten(config))
    agent = str(content.get("agent") or "")
    if agent:
        settings["agent"] = agent
    planned = config.get("steps")
    versions = content.get("versions")
    return Folder(
        path,
        given or str(path),
        named,
        agent,
        str(config.get("env") or ""),
        settings,
        str(content.get("command") or ""),
        {str(k): str(v) for k, v in versions.items()} if isinstance(versions, dict) else {},
        str(content.get("device") or ""),
        int(planned) if isinstance(planned, int | float) and math.isfinite(planned) else None,
        state_of(path),
        _dropped(path),
        tuple(problems),
    )


def state_of(path: Path) -> str:
    """Whether the run says that it is over."""
    if not (path / "result.json").exists():
        return OPEN
    return INTERRUPTED if _object(path / "result.json", []).get("interrupted") else FINISHED


def _dropped(path: Path) -> frozenset[int]:
    told = _object(path / "result.json", []).get("dropped")
    members = [one.get("member") for one in told if isinstance(one, dict)] if isinstance(told, list) else []
    return frozenset(member for member in members if isinstance(member, int))


def _object(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        problems.append(f"{path.parent} has no {path.name}")
        return {}
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"{path} cannot be read: {error}")
        return {}
    if not isinstance(content, dict):
        problems.append(f"{path} is not an object")
        return {}
    return content


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings as ``("agent.learning_rate", value)``; lists become tuples, so that values can be compared."""
    for name, value in config.items():
        if isinstance(value, dict) and name != "env_options":
            yield from flatten(value, f"{prefix}{name}.")
        elif isinstance(value, dict):
            yield f"{prefix}{name}", tuple(sorted(f"{k} {v}" for k, v in value.items()))
        else:
            yield f"{prefix}{name}", _hashable(value)


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((k, _hashable(v)) for k, v in value.items())
    return tuple(_hashable(v) for v in value) if isinstance(value, list) else value


def read_rows(path: Path, offset: int = 0) -> Rows:
    """The rows from an offset on. A last line that is not whole is left for the next reading.

    A file that is shorter than the offset was cut (a resumed run does so) and is read from its beginning.
    """
    rows, skipped, half = [], 0, False
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        offset = 0 if offset > size else offset
        file.seek(offset)
        for line in file:
            row = _row(line)
            half = row is None and not line.endswith(b"\n")
            if half:
                break
            offset += len(line)
            if row is not None:
                rows.append(row)
            elif line.strip():
                skipped += 1
    return Rows(rows, offset, skipped, half)


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    step = row.get("step") if isinstance(row, dict) else None
    if isinstance(step, bool) or not isinstance(step, int | float) or not 0 <= step < LARGEST_STEP:
        return None
    return row if isinstance(row.get("member", 0), int) else None


def columns_of(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The measured columns, sorted."""
    return sorted({name for row in rows for name in row if "/" in name})


def read_runs(folder: Folder, metric: str) -> tuple[list[Run], list[str]]:
    """Every member of a run folder that measured the metric, and what is wrong with them.

    A member with no finite value is among them: that it failed belongs to what its method does.
    """
    problems = list(folder.problems)
    try:
        rows, _, skipped, half = read_rows(folder.path / "metrics.jsonl")
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        problems.append(
            f"{folder.path} has not written a row yet" if missing else f"{folder.path}: {error.strerror or error}"
        )
        return [], problems
    if skipped:
        problems.append(f"{folder.path}: {skipped} line{'s' if skipped > 1 else ''} of metrics.jsonl cannot be read")
    if half:
        problems.append(f"{folder.path}: the last line of metrics.jsonl is half-written and left out")
    by_member: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        by_member.setdefault(row.get("member", 0), []).append(row)
    if not any(metric in row for row in rows):
        there = ", ".join(name for name in columns_of(rows) if not name.startswith("time/"))
        problems.append(f"{folder.path} has no '{metric}'" + (f"; it has {there}" if there else " yet"))
        return [], problems
    runs = []
    for member, of_member in sorted(by_member.items()):
        made = _run(folder, member, of_member, metric)
        if made.curve.missing:
            problems.append(f"{made.curve.name}: {made.curve.missing} values of {metric} are not finite and left out")
        if made.restores:
            problems.append(f"{made.curve.name} went back {made.restores} times after a number that was not finite")
        if len(made.curve.steps) or made.curve.missing:
            runs.append(made)
        else:
            problems.append(f"{made.curve.name} has no '{metric}'")
    return runs, problems


def _run(folder: Folder, member: int, rows: list[dict[str, Any]], metric: str) -> Run:
    swept = {k: v for k, v in rows[0].items() if "/" not in k and k not in PLAIN_COLUMNS}
    settings = dict(folder.settings)
    for name, value in swept.items():
        settings[f"agent.{name}" if f"agent.{name}" in settings else name] = value
    seed = rows[0].get("seed", folder.settings.get("seed"))
    seed = seed if isinstance(seed, int) else None
    name = f"{folder.path}" + (f" member {member}" if member or len(swept) else "")
    points = [{"step": row["step"], metric: as_number(row[metric])} for row in rows if metric in row]
    curves = read_curves(points, metric) if points else [Curve(name, np.zeros(0, np.int64), np.zeros(0))]
    seconds = as_number(rows[-1].get("time/seconds", math.nan))
    restores = int(rows[-1]["restores"]) if isinstance(rows[-1].get("restores"), int) else 0
    return Run(folder, member, seed, settings, curves[0]._replace(name=name), seconds, restores)


def as_number(value: Any) -> float:
    """A float; NaN for what is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
