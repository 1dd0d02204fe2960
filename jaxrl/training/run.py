"""The host's side of a run: call the compiled programs, write down what they say, stop where something is wrong."""

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.errors import UsageError
from jaxrl.training.distributed import agree
from jaxrl.training.evaluation import task_columns
from jaxrl.training.plan import Schedule
from jaxrl.training.program import Chunk, Program
from jaxrl.training.records import Row, Sink
from jaxrl.types import PyTree


class Outcome(NamedTuple):
    """What a run came to."""

    state: PyTree  # usable: a member is program.member(state, i)
    iteration: int
    rows: list[Row]  # the last row of each member that was not dropped
    interrupted: int  # the signal that stopped it, or 0
    dropped: tuple[int, ...] = ()  # members left out because a number of theirs was not finite


class NotFiniteError(RuntimeError):
    """NaN or infinity in the run; names the leaf or metric, the member, the step, and what to go back to.

    Args:
        members: those in which it is; ``[0]`` for a single run.
        remedy: a sentence on the last good checkpoint.
    """

    def __init__(self, what: list[str], step: int, members: tuple[int, ...] = (0,), remedy: str = ""):
        self.what, self.step, self.members = what, step, members
        more = f" and {len(what) - 3} more" if len(what) > 3 else ""
        super().__init__(f"not finite at step {step:,}: {', '.join(what[:3])}{more}{remedy and '; '}{remedy}")


class Origin(NamedTuple):
    """Where a run goes on from. The state is donated to the run."""

    state: PyTree
    iteration: int
    score: float = float("nan")  # of the last evaluation before it
    seconds: float = 0.0  # that the run has already taken
    columns: Row = MappingProxyType({})  # type: ignore[assignment]  # what every row from here on says besides


Save = Callable[[int, PyTree, float | None], None]  # (iteration, state, score)
Recover = Callable[[NotFiniteError], Origin]
Drop = Callable[[NotFiniteError], None]
Listener = Callable[[Row], None]


def run(
    program: Program,
    schedule: Schedule,
    *,
    origin: Origin | None = None,
    labels: list[Row] | None = None,
    sinks: tuple[Sink, ...] = (),
    listeners: tuple[Listener, ...] = (),
    save: Save | None = None,
    recover: Recover | None = None,
    drop: Drop | None = None,
    score: str = "eval/return",
) -> Outcome:
    """Train until the schedule ends, SIGINT or SIGTERM arrives, or a number is not finite and nobody is asked what then.

    A signal stops the run at the next moment of the schedule, with everything written.

    Args:
        origin: where to go on from; a fresh start where absent.
        labels: what to put into every row of each member, such as its seed.
        sinks: where rows are written; listeners: who else hears of them, such as a progress display.
        save: called at the schedule's checkpoints, at the end and when interrupted.
        recover: asked where to go on from after a number that is not finite; raises where nowhere.
        drop: told of members with such a number, which from then on have no rows while the others go on. Where none is
            left, and in a single run, it is as if it were absent.
        score: the column by which the best checkpoint is kept.
    Raises:
        NotFiniteError: at the log point after the number appeared. Nothing is saved of that state.
    """
    labels = labels or [{} for _ in range(program.members or 1)]
    if len(labels) != (program.members or 1):
        raise UsageError(f"{len(labels)} labels for {program.members or 1} members")
    rows: list[Row] = []
    columns: Row
    dropped: frozenset[int] = frozenset()
    with stop_on_signal() as stopped:
        if origin is None:
            clock, saved = _Clock(), -1
            state, iteration, best, columns = jax.block_until_ready(program.init()), 0, float("nan"), {}
            if schedule.evaluates_at(0):
                first, told = evaluation_columns(program, state, 0), dict(enumerate(labels))
                rows = _write(program, 0, told, {}, first, clock, sinks, listeners)
                best = mean_of(rows, score)
        else:
            state, iteration, best, seconds, columns = origin
            clock, saved = _Clock(seconds), iteration
        while iteration < schedule.iterations and not agree(stopped()):
            until = schedule.next_stop(iteration)
            began = time.perf_counter()
            state, chunk = program.advance(state, iteration, until - iteration)
            chunk = jax.device_get(chunk)
            clock.trained(time.perf_counter() - began, (until - iteration) * program.steps_per_iteration * len(labels))
            try:
                check_finite(chunk, until * program.steps_per_iteration, dropped)
            except NotFiniteError as error:
                gone = dropped.union(error.members)
                if drop is not None and len(gone) < len(labels):
                    drop(error)
                    dropped = gone
                elif recover is None:
                    raise
                else:
                    del state  # the memory is needed for what comes in its place
                    state, iteration, best, _, columns = recover(error)
                    saved = iteration
                    continue
            iteration = until
            evaluated = evaluation_columns(program, state, iteration) if schedule.evaluates_at(iteration) else {}
            told = {i: {**label, **columns} for i, label in enumerate(labels) if i not in dropped}
            rows = _write(program, iteration, told, metric_columns(chunk), evaluated, clock, sinks, listeners)
            if evaluated:
                best = mean_of(rows, score)
            if save and schedule.checkpoints_at(iteration):
                save(iteration, state, best)
                saved = iteration
        interrupted = agree(stopped())
    if save and saved != iteration:
        save(iteration, state, best)
    return Outcome(state, iteration, rows, interrupted, tuple(sorted(dropped)))


def check_finite(chunk: Chunk, step: int, dropped: frozenset[int] = frozenset()) -> None:
    """Raise :class:`NotFiniteError` if a leaf of the agent or a measured mean is NaN or infinite, but for ``dropped``."""

    def where(name: str, ok: np.ndarray) -> list[str]:
        return [name] if ok.ndim == 0 else [f"{name} (member {i})" for i in np.flatnonzero(~ok)]

    flags = dict(chunk.finite)
    flags |= {name: np.isfinite(value) | (chunk.counts[name] == 0) for name, value in chunk.metrics.items()}
    if dropped:
        flags = {name: np.asarray(ok) | np.isin(np.arange(len(ok)), [*dropped]) for name, ok in flags.items()}
    # Parameters first: what they spoil comes after them.
    ordered = sorted(flags.items(), key=lambda item: not item[0].startswith("agent/params"))
    bad = [found for name, ok in ordered if not np.all(ok) for found in where(name, np.asarray(ok))]
    if bad:
        members = {int(i) for _, ok in ordered for i in np.flatnonzero(~np.atleast_1d(ok))}
        raise NotFiniteError(bad, step, tuple(sorted(members)))


def metric_columns(chunk: Chunk) -> dict[str, np.ndarray]:
    """Means by name; entries over nothing are NaN and will be left out of the row."""
    return {name: np.asarray(value) for name, value in chunk.metrics.items()}


def evaluation_columns(program: Program, state: PyTree, iteration: int) -> dict[str, np.ndarray]:
    """Evaluate, and reduce the episodes of each member to columns."""
    episodes = jax.device_get(program.evaluate(state, iteration))
    columns = {
        "eval/return": np.mean(episodes.returns, -1),
        "eval/return_std": np.std(episodes.returns, -1),
        "eval/return_min": np.min(episodes.returns, -1),
        "eval/return_max": np.max(episodes.returns, -1),
        "eval/episodes": np.full(np.shape(episodes.returns)[:-1], np.shape(episodes.returns)[-1]),
        "eval/length": np.mean(episodes.lengths, -1),
        "eval/terminated": np.mean(episodes.terminated, -1),
        **task_columns(episodes, program.tasks),
        **{f"eval/{name}": value for name, value in (episodes.values or {}).items()},
    }
    return {name: np.asarray(value, np.float64) for name, value in columns.items()}


def mean_of(rows: list[Row], column: str) -> float:
    """The members' mean of a column; NaN if it was not measured."""
    values = [row[column] for row in rows if column in row]
    return sum(values) / len(values) if values else float("nan")


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], int]]:
    """Note SIGINT and SIGTERM instead of dying of them; a second one kills as usual. A no-op outside the main thread."""
    noted: list[int] = []

    def note(number: int, frame: Any) -> None:
        noted.append(number)
        signal.signal(number, previous[signal.Signals(number)])

    try:
        previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: whoever owns it handles signals
        yield lambda: 0
        return
    try:
        yield lambda: noted[0] if noted else 0
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class _Clock:
    """Seconds since the start, over all processes that the run has had, and the rate of the last chunk."""

    def __init__(self, already: float = 0.0) -> None:
        self.start = time.perf_counter() - already
        self.rate = 0.0

    def trained(self, seconds: float, steps: int) -> None:
        self.rate = steps / max(seconds, 1e-9)

    def columns(self) -> Row:
        return {"time/seconds": time.perf_counter() - self.start, "time/steps_per_second": self.rate}


def _write(
    program: Program,
    iteration: int,
    labels: dict[int, Row],
    metrics: dict[str, np.ndarray],
    evaluated: dict[str, np.ndarray],
    clock: _Clock,
    sinks: tuple[Sink, ...],
    listeners: tuple[Listener, ...],
) -> list[Row]:
    """A row for each member that has a label."""
    rows = []
    for index, label in labels.items():
        pick = (lambda value: value) if program.members is None else (lambda value, i=index: value[i])
        values = {name: float(pick(value)) for name, value in (metrics | evaluated).items()}
        row = {"step": iteration * program.steps_per_iteration, "iteration": iteration, "member": index, **label}
        row |= {name: value for name, value in values.items() if not math.isnan(value)} | clock.columns()
        rows.append(row)
        for sink in sinks:
            sink.write(row)
        for listener in listeners:
            listener(row)
    return rows
