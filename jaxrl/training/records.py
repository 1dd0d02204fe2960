"""What a run writes while it goes on: JSON lines and CSV always, TensorBoard and wandb when asked for.

A row is a flat dict of plain numbers with ``step`` (environment steps of one member), ``member`` and ``seed``; what was
not measured is absent. Columns named ``time/…`` are the only ones that differ between two runs of one seed.
"""

import csv
import errno
import importlib.util
import io
import json
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl.errors import MissingExtraError

Row = dict[str, Any]


class Sink(NamedTuple):
    """Somewhere rows go."""

    write: Callable[[Row], None]
    close: Callable[[], None]


def open_sinks(
    folder: Path,
    config: Row,
    *,
    tensorboard: bool = False,
    wandb: str | None = None,
    warn: Callable[[str], None] = print,
) -> tuple[Sink, ...]:
    """All sinks of a run folder.

    Args:
        wandb: a project's name, or None. Without an account it works offline (``WANDB_MODE=offline``).
        warn: told in one line when the disk is full; training goes on.
    Raises:
        MissingExtraError: where a package that was asked for is not installed.
    """
    sinks = [patient(json_lines(folder / "metrics.jsonl"), warn), patient(csv_table(folder / "metrics.csv"), warn)]
    if tensorboard:
        sinks.append(_tensorboard(folder / "tensorboard"))
    if wandb is not None:
        sinks.append(_wandb(wandb, folder, config))
    return tuple(sinks)


def check_sinks(tensorboard: bool, wandb: str | None) -> None:
    """Refuse, before a folder is made, sinks whose package is not installed."""
    for wanted, module, extra in ((tensorboard, "tensorboardX", "tensorboard"), (wandb is not None, "wandb", "wandb")):
        if wanted and importlib.util.find_spec(module) is None:
            raise MissingExtraError(module, extra)


def json_lines(path: Path) -> Sink:
    """One JSON object a line, on disk before the next row is computed."""

    def write(row: Row) -> None:
        append(path, (json.dumps({name: jsonable(value) for name, value in row.items()}) + "\n").encode())

    return Sink(write, lambda: None)


def csv_table(path: Path) -> Sink:
    """The same rows as a table. A column that first appears late (an evaluation) is added to the rows before it, empty."""

    def write(row: Row) -> None:
        columns: list[str] = []
        if path.exists():
            with path.open(newline="", encoding="utf-8") as file:
                columns = next(csv.reader(file), [])
        new = [name for name in row if name not in columns]
        if new:
            columns.extend(new)
            _rewrite_csv(path, columns)
        line = io.StringIO(newline="")
        csv.DictWriter(line, columns, restval="").writerow(row)
        append(path, line.getvalue().encode())

    return Sink(write, lambda: None)


def append(path: Path, data: bytes) -> None:
    """Add to the end of a file, all of it or, where the disk is full, nothing.

    Nothing is buffered or held open between rows, so that a file may be cut or replaced while a run goes on.
    """
    with path.open("ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            written = file.write(data)
            if written != len(data):  # what fitted of a row is no row
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        except OSError:
            file.truncate(size)
            raise


def patient(sink: Sink, warn: Callable[[str], None]) -> Sink:
    """A sink that keeps rows it cannot write, says so once, and writes them in order when there is room again."""
    waiting: list[Row] = []

    def write(row: Row) -> None:
        waiting.append(row)
        try:
            while waiting:
                sink.write(waiting[0])
                waiting.pop(0)
        except OSError as error:
            if len(waiting) == 1:
                warn(f"a row cannot be written ({error.strerror}): rows are held in memory until it can")

    return Sink(write, sink.close)


def _rewrite_csv(path: Path, columns: list[str]) -> None:
    rows: list[Row] = []
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    partial = path.with_name(f"{path.name}.new")
    with partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)
    partial.replace(path)


def _tensorboard(folder: Path) -> Sink:
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise MissingExtraError("TensorBoard", "tensorboard") from error
    writers: dict[int, Any] = {}

    def write(row: Row) -> None:
        member = row.get("member", 0)
        if member not in writers:
            writers[member] = SummaryWriter(str(folder / f"member_{member}"))
        for name, value in row.items():
            if "/" in name:
                writers[member].add_scalar(name, value, row["step"])

    def close() -> None:
        for writer in writers.values():
            writer.close()

    return Sink(write, close)


def _wandb(project: str, folder: Path, config: Row) -> Sink:
    try:
        import wandb
    except ImportError as error:
        raise MissingExtraError("wandb", "wandb") from error
    run = wandb.init(project=project, dir=str(folder), name=folder.name, config=config)

    def write(row: Row) -> None:
        prefix = f"member_{row['member']}/" if row.get("member") else ""
        run.log({prefix + name: value for name, value in row.items() if "/" in name} | {"step": row["step"]})

    return Sink(write, run.finish)


def read_rows(path: Path) -> list[Row]:
    """The rows of a ``metrics.jsonl``; a half-written last line, as a kill leaves it, is left out."""
    rows = []
    for line in path.read_bytes().splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return [row for row in rows if isinstance(row, dict) and "step" in row]


def truncate_rows(folder: Path, step: int) -> list[Row]:
    """Drop rows after ``step``, so that a resumed run continues without a gap or a repeated row; returns those kept.

    Both files are replaced whole: a kill in the middle leaves the old one or the new one.
    """
    path = folder / "metrics.jsonl"
    kept = [row for row in read_rows(path) if row["step"] <= step] if path.exists() else []
    for name, sink_of in (("metrics.jsonl", json_lines), ("metrics.csv", csv_table)):
        partial = folder / f"{name}.partial"
        partial.write_bytes(b"")
        sink = sink_of(partial)
        for row in kept:
            sink.write(row)
        partial.replace(folder / name)
    return kept


def close_all(sinks: Iterable[Sink]) -> None:
    for sink in sinks:
        sink.close()


def jsonable(value: Any) -> Any:
    """A plain value that JSON can hold; infinities and NaN become their names, which JSON lacks."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
