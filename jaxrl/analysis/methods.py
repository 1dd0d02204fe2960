"""Which runs are the same method in the same task, and in which settings methods differ.

A task is an environment with its options. Within a task, runs of one agent whose settings agree are one method and are
pooled over their seeds. Settings that say how a run was watched, kept or placed make no method of their own.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxrl.analysis.runs import Run
from jaxrl.errors import unknown

_TASK = ("env", "env_options")
_SEEDS = ("seed", "seeds", "sweep")
_HANDLING = ("steps", "devices", "mesh", "on_nan", "restores")
_HANDLING_OF = ("log.", "checkpoint.", "evaluate.")
MOST_NAMED = 3  # settings in a method's name


class Group(NamedTuple):
    """Runs of one method in one task, one of each seed."""

    method: str
    task: str
    runs: tuple[Run, ...]


def group(runs: Sequence[Run], by: Sequence[str] = ()) -> tuple[list[Group], list[str]]:
    """Pool runs into methods and tasks, in the order in which they come.

    Args:
        by: settings that make a method ("agent", "agent.learning_rate" or its last part), "run" for what was given on
            the command line, "folder" for each run folder; found out where empty.
    Returns:
        The groups, and what was left out: of runs that share method, task and seed only the longest counts.
    Raises:
        UsageError: for a setting that no run has.
    """
    names = method_names(runs, by)
    pooled: dict[tuple[str, str], list[Run]] = {}
    for run, name in zip(runs, names, strict=True):
        pooled.setdefault((name, task_of(run)), []).append(run)
    notes: list[str] = []
    return [Group(method, task, _one_a_seed(some, method, notes)) for (method, task), some in pooled.items()], notes


def task_of(run: Run) -> str:
    """The environment, with its options where it has any."""
    options = run.folder.settings.get("env_options") or ()
    return (run.folder.environment or "unknown environment") + (f" ({', '.join(options)})" if options else "")


def _one_a_seed(runs: Sequence[Run], method: str, notes: list[str]) -> tuple[Run, ...]:
    longest: dict[Any, Run] = {}
    for index, run in enumerate(runs):
        key = index if run.seed is None else ("seed", run.seed)
        other = longest.get(key)
        if other is None or run.end > other.end:
            longest[key] = run
    left_out = len(runs) - len(longest)
    if left_out:
        some = next(run for run in runs if run not in longest.values())
        notes.append(
            f"{method}: {left_out} run{'s' if left_out > 1 else ''} left out, such as {some.curve.name}: same settings and "
            f"seed as another (the longest counts); tell them apart with NAME=RUN or --group-by run"
        )
    return tuple(longest.values())


def method_names(runs: Sequence[Run], by: Sequence[str] = ()) -> list[str]:
    """What each run's method is called."""
    if by:
        fields = [_field(name, runs) for name in by]
        return [", ".join(_worded(field, value_of(run, field), fields) for field in fields) for run in runs]
    bases = [_base(run) for run in runs]
    names = list(bases)
    for base in dict.fromkeys(bases):
        same = [i for i, other in enumerate(bases) if other == base]
        fields = _telling([runs[i] for i in same])
        for i in same:
            parts = [_worded(field, value_of(runs[i], field), fields) for field in fields]
            names[i] = ", ".join(parts if parts and len(set(bases)) == 1 else [base, *parts])
    return names


def _base(run: Run) -> str:
    return run.folder.given if run.folder.named else run.folder.agent or run.folder.path.name


def value_of(run: Run, field: str) -> Any:
    """A run's setting, or where it comes from ("run", "folder"); None where it has none.

    A replay larger than the run can fill counts as "all": it holds everything, however long the run is.
    """
    if field in ("run", "folder"):
        return run.folder.given if field == "run" else str(run.folder.path)
    value = run.settings.get(field)
    if field == "loop.capacity" and isinstance(value, int) and run.folder.planned and value >= run.folder.planned:
        return "all"
    return value


def _field(name: str, runs: Sequence[Run]) -> str:
    name = name.replace("-", "_")
    known = list(dict.fromkeys(field for run in runs for field in run.settings))
    if name in ("run", "folder", *known):
        return name
    ends = [field for field in known if field.endswith(f".{name}")]
    if len(ends) != 1:
        raise unknown("setting to group by", name, ends or ["run", "folder", *known])
    return ends[0]


def makes_a_method(field: str) -> bool:
    """Whether runs that differ in a setting are different methods."""
    return field not in (*_TASK, *_SEEDS, *_HANDLING) and not field.startswith(_HANDLING_OF)


def _telling(runs: Sequence[Run]) -> list[str]:
    """Settings, as few as will do, by which the methods among runs of one agent are told apart within each task."""
    by_task: dict[str, list[Run]] = {}
    for run in runs:
        by_task.setdefault(task_of(run), []).append(run)
    varying: dict[str, None] = {}
    for some in by_task.values():
        for field in dict.fromkeys(field for run in some for field in run.settings):
            if makes_a_method(field) and len({value_of(run, field) for run in some}) > 1:
                varying[field] = None
    chosen: list[str] = []
    count = _distinct(by_task, list(varying))
    while _distinct(by_task, chosen) < count:
        left = [field for field in varying if field not in chosen]
        chosen.append(max(left, key=lambda field: _distinct(by_task, [*chosen, field])))
    return chosen


def _distinct(by_task: Mapping[str, Sequence[Run]], fields: Sequence[str]) -> int:
    return sum(len({tuple(value_of(run, field) for field in fields) for run in some}) for some in by_task.values())


def _worded(field: str, value: Any, fields: Sequence[str]) -> str:
    if field in ("agent", "run", "folder"):
        return str(value)
    short = field.rpartition(".")[2]
    alike = sum(other.rpartition(".")[2] == short for other in fields)
    return f"{(short if alike == 1 else field).replace('_', ' ')} {show(value)}"


def show(value: Any) -> str:
    """A setting as a reader writes it."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, tuple):
        return "×".join(show(v) for v in value) if value else "none"
    return str(value)


def differences(groups: Sequence[Group]) -> dict[str, dict[str, str]]:
    """Settings in which methods, or runs of one method, differ: field -> method -> its values.

    Seeds and where a run was kept are no differences. A setting that only some agents have follows after those of all.
    """
    values: dict[str, dict[str, dict[str, None]]] = {}
    methods = list(dict.fromkeys(one.method for one in groups))
    for one in groups:
        for run in one.runs:
            for field, value in _compared(run):
                values.setdefault(field, {}).setdefault(one.method, {})[show(value)] = None
    shown: dict[str, dict[str, str]] = {}
    partial: dict[str, dict[str, str]] = {}
    for field, of in values.items():
        texts = {method: ", ".join(of.get(method, {"–": None})) for method in methods}
        if len(set(texts.values())) > 1 or any("," in text and len(of.get(m, ())) > 1 for m, text in texts.items()):
            (shown if len(of) == len(methods) else partial)[field] = texts
    return shown | partial


def _compared(run: Run) -> Iterable[tuple[str, Any]]:
    for field in sorted(run.settings, key=lambda name: name != "agent"):
        if field not in (*_TASK, *_SEEDS) and not field.startswith(("log.", "checkpoint.")):
            yield field, value_of(run, field)
    for name, version in run.folder.versions.items():
        yield f"version of {name}", version
    if run.folder.device:
        yield "device", run.folder.device
