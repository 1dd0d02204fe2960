"""What a measurement of the speed benchmark comes to, and how it is printed and put into the README."""

import json
import math
import os
import platform
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import jax
from rich.table import Table

from experiments.measuring import Ratio


class Row(NamedTuple):
    """One measure, beside one peer where there is one."""

    measure: str
    ours: str  # with its unit
    peer: str = ""
    theirs: str = ""
    ratio: Ratio | None = None
    target: str = ""
    holds: bool | None = None  # None where nothing is asked, or nobody to be asked about


COLUMNS = ("measure", "ours", "peer", "theirs", "ratio [least, most]", "asked", "holds")


def cells(row: Row) -> tuple[str, ...]:
    """The row as texts."""
    against = "" if row.ratio is None or math.isnan(row.ratio.median) else str(row.ratio)
    holds = "" if row.holds is None else "yes" if row.holds else "no"
    return row.measure, row.ours, row.peer, row.theirs, against, row.target, holds


def table(rows: Iterable[Row], title: str = "") -> Table:
    """For the terminal."""
    made = Table(*COLUMNS, title=title, title_justify="left")
    for row in rows:
        made.add_row(*cells(row))
    return made


def markdown(rows: Sequence[Row], record: dict[str, Any]) -> str:
    """For the README: when, by which command, on what, and the table."""
    machine = record["machine"]
    versions = "; ".join(
        f"{name}: " + ", ".join(f"{package} {version}" for package, version in of.items())
        for name, of in record["versions"].items()
    )
    words = (
        f"Measured on {record['date']} by `{record['command']}` on {machine['processor']}, {machine['cores']} cores, load "
        f"{machine['load']:.1f} when it began. A ratio is the median of {record['turns']} turns, with its least and its most; "
        f"times by turns of live processes. Versions: {versions}."
    )
    lines = [words, "", f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    lines += [f"| {' | '.join(text.replace('|', '/') for text in cells(row))} |" for row in rows]
    return "\n".join(lines) + "\n"


def record_of(command: str, turns: int, sizes: dict, versions: dict[str, dict[str, str]]) -> dict[str, Any]:
    """What every result is kept with."""
    return {
        "date": date.today().isoformat(), "command": command, "turns": turns, "sizes": sizes, "machine": machine(),
        "versions": versions,
    }  # fmt: skip


def machine() -> dict[str, Any]:
    """Processor, cores that this process may use, load and accelerator."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "processor": processor(), "cores": cores, "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan"),
        "device": str(jax.devices()[0].device_kind), "system": platform.platform(),
    }  # fmt: skip


def processor() -> str:
    """Its name, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def save(path: Path, rows: Sequence[Row], record: dict[str, Any], details: dict[str, Any]) -> None:
    """Everything as JSON, and the table beside it as Markdown."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {**record, "rows": [plain(row) for row in rows], "details": details}
    path.write_text(json.dumps(content, indent=1) + "\n")
    path.with_suffix(".md").write_text(markdown(rows, record))


def plain(row: Row) -> dict[str, Any]:
    return {**row._asdict(), "ratio": None if row.ratio is None else row.ratio._asdict()}


def rate(seconds: float, unit: str) -> str:
    """Seconds for one unit as units a second: ``12,345 steps/s``."""
    value = 1.0 / seconds if seconds > 0 else math.nan
    return "" if math.isnan(value) else f"{value:,.0f} {unit}/s" if value >= 100 else f"{value:.1f} {unit}/s"


def duration(seconds: float) -> str:
    return "" if math.isnan(seconds) else f"{seconds:.2f} s" if seconds >= 0.1 else f"{1e3 * seconds:.2f} ms"
