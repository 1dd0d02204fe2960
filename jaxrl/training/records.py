"""What a run writes while it goes on: JSON lines and CSV always, TensorBoard and wandb when asked for.

A row is a flat dict of plain numbers with ``step`` (environment steps of one member), ``member`` and ``seed``; what was
not measured is absent. Columns named ``time/…`` are the only ones that differ between two runs of one seed.
"""

import csv
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl.errors import MissingExtraError

Row = dict[str, Any]


class Sink(NamedTuple):
    """Somewhere rows go."""

    write: Callable[[Row], None]
    close: Callable[[], None]


def open_sinks(folder: Path, config: Row, *, tensorboard: bool = False, wandb: str | None = None) -> tuple[Sink, ...]:
    """All sinks of a run folder.

    Args:
        wandb: a project's name, or None. Without an account it works offline (``WANDB_MODE=offline``).
    Raises:
        MissingExtraError: where a package that was asked for is not installed.
    """
    sinks = [json_lines(folder / "metrics.jsonl"), csv_table(folder / "metrics.csv")]
    if tensorboard:
        sinks.append(_tensorboard(folder / "tensorboard"))
    if wandb is not None:
        sinks.append(_wandb(wandb, folder, config))
    return tuple(sinks)


def json_lines(path: Path) -> Sink:
    """One JSON object a line, on disk before the next row is computed."""
    file = path.open("a", encoding="utf-8")

    def write(row: Row) -> None:
        file.write(json.dumps({name: jsonable(value) for name, value in row.items()}) + "\n")
        file.flush()

    return Sink(write, file.close)


def csv_table(path: Path) -> Sink:
    """The same rows as a table. A column that first appears late (an evaluation) is added to the rows before it, empty."""
    columns: list[str] = []
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            columns = next(csv.reader(file), [])

    def write(row: Row) -> None:
        new = [name for name in row if name not in columns]
        if new:
            columns.extend(new)
            _rewrite_csv(path, columns)
        with path.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, columns, restval="").writerow(row)

    return Sink(write, lambda: None)


def _rewrite_csv(path: Path, columns: list[str]) -> None:
    rows: list[Row] = []
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    partial = path.with_suffix(".csv.partial")
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
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def truncate_rows(folder: Path, step: int) -> None:
    """Drop rows after ``step``, so that a resumed run continues without a gap or a repeated row."""
    path = folder / "metrics.jsonl"
    kept = [row for row in read_rows(path) if row["step"] <= step] if path.exists() else []
    for name in ("metrics.jsonl", "metrics.csv"):
        (folder / name).unlink(missing_ok=True)
    sinks = (json_lines(path), csv_table(folder / "metrics.csv"))
    for row in kept:
        for sink in sinks:
            sink.write(row)
    close_all(sinks)


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
