"""Watch a run: curves, rates and time left, in the terminal or in a browser.

uv run python -m experiments.watch runs/train/RUN
uv run python -m experiments.watch runs/train              # the run written last
uv run python -m experiments.watch runs/train/RUN --serve 8000

The view follows the run folder until the run is over; --once prints it once. Nothing in the run folder is changed.
"""

import contextlib
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from experiments import cli
from jaxrl.analysis import sparks, watchpage
from jaxrl.analysis.curves import Band
from jaxrl.analysis.watching import (
    MAIN,
    Series,
    Standing,
    Watched,
    choose,
    drawn_members,
    duration,
    look,
    settings_table,
    standing,
)
from jaxrl.errors import UsageError

STYLES = {"finished": "green", "interrupted": "red", "silent": "red", "running": "cyan", "waiting": "yellow"}
OVER = ("finished", "interrupted")
MOST_SETTINGS, MOST_BARS = 8, 16
HOST = "127.0.0.1"


@dataclass(frozen=True)
class Watch:
    """Which run, and how."""

    run: Annotated[Path, tyro.conf.Positional]
    """The run folder, or a folder of runs: then the one written last."""
    once: bool = False
    """Print once and end."""
    serve: int | None = None
    """Serve the page on this port of this machine alone (127.0.0.1); 0 for any free one."""
    every: float = 1.0
    """Seconds between looks."""


def main(arguments: list[str], console: Console) -> int:
    asked = cli.parse(Watch, with_value(arguments), description=__doc__)
    if not asked.every > 0:
        raise UsageError(f"every {asked.every} cannot work; give seconds, such as 1")
    path, notes = choose(asked.run)
    for text in notes:
        console.print(Text(text, "yellow"), soft_wrap=True)
    if asked.serve is not None:
        return serve(path, asked.serve, console)
    if asked.once or not console.is_terminal:
        console.print(view(look(path), console.width, 10, 1000))
        return 0
    return follow(path, asked.every, console)


def with_value(arguments: list[str]) -> list[str]:
    """``--once`` alone means ``--once True``."""
    words = []
    for index, word in enumerate(arguments):
        words.append(word)
        if word == "--once" and arguments[index + 1 : index + 2] not in (["True"], ["False"]):
            words.append("True")
    return words


def follow(path: Path, every: float, console: Console) -> int:
    """Show the run until it is over or the reader has seen enough (Ctrl-C)."""
    watched = look(path)
    draw = lambda seen: view(seen, console.width, max(min(console.height - 24, 14), 5), console.height - 4)
    with contextlib.suppress(KeyboardInterrupt), Live(draw(watched), console=console, auto_refresh=False) as live:
        while standing(watched).state not in OVER:
            time.sleep(every)
            watched = look(path, watched)
            live.update(draw(watched), refresh=True)
    return 0


def view(watched: Watched, width: int, height: int, lines: int) -> Group:
    """Everything that the terminal shows, in at most ``lines`` lines or so."""
    now, found = standing(watched), watched.series
    folder = watched.folder
    about = " · ".join(part for part in (folder.agent, folder.environment, str(folder.path)) if part)
    parts: list[Any] = [
        Text(about, "dim"),
        Text.assemble((now.state, f"bold {STYLES[now.state]}"), f"  {now.message}"),
        facts(now),
    ]
    if now.planned:
        parts.append(ProgressBar(total=now.planned, completed=min(now.step, now.planned), width=min(width, 72)))
    parts += [Text(text, "yellow") for text in watchpage.problems(watched)]
    main_series = next((one for one in found if one.name in MAIN and one.band is not None), None)
    if main_series is not None and main_series.band is not None:
        parts += [Text(""), *chart(main_series, main_series.band, min(width, 100), height)]
        parts += settings(watched, main_series.name)
    room = max(lines - height - 12, 4)
    parts += [Text(""), columns(found[:room])] if found else []
    if len(found) > room:
        parts.append(Text(f"and {len(found) - room} more columns", "dim"))
    return Group(*parts)


def facts(now: Standing) -> Text:
    """One line of numbers."""
    parts = [f"{now.step:,}" + (f" of {now.planned:,} steps" if now.planned else " steps")]
    if now.members > 1:
        parts.append(f"{now.members:,} members")
    if math.isfinite(now.rate):
        parts.append(f"{now.rate:,.0f} steps/s")
    if math.isfinite(now.seconds):
        parts.append(f"{duration(now.seconds)} taken")
    if now.state == "running" and math.isfinite(now.left):
        parts.append(f"{duration(now.left)} left")
    return Text("  ·  ".join(parts))


def chart(one: Series, band: Band, width: int, height: int) -> list[Text]:
    """A plot of a column: the mean over members in colour, the members behind it."""
    members = drawn_members(one)
    behind = [np.interp(band.steps, c.steps, c.values, left=np.nan, right=np.nan) for c in members]
    known = np.concatenate([line[np.isfinite(line)] for line in (band.middle, *behind)])
    low, high = float(known.min()), float(known.max())
    low, high = (low, high) if high > low else (low - 1, high + 1)
    labels = [watchpage.number(high), *[""] * (height - 2), watchpage.number(low)]
    margin = max(map(len, labels)) + 1
    cells = sparks.plot(band.steps, [band.middle, *behind], max(width - margin - 2, 10), height, (low, high))
    rows = [Text.assemble((one.name, "bold"), f"  {watchpage.latest_text(one)}")]
    for label, row in zip(labels, cells, strict=True):
        line = Text(f"{label:>{margin}} ", "dim")
        for character, owner in row:
            line.append(character, "cyan" if owner == 0 else "bright_black")
        rows.append(line)
    first, last = f"{band.steps[0]:,}", f"{band.steps[-1]:,} steps"
    space = max(width - margin - 2 - len(first) - len(last), 1)
    rows.append(Text(" " * (margin + 1) + first + " " * space + last, "dim"))
    return rows


def settings(watched: Watched, column: str) -> list[Text]:
    """The swept settings, best first."""
    found = settings_table(watched, column)
    lines = [
        Text.assemble(
            f"  {name}  ",
            (watchpage.number(float(values.mean())), "bold"),
            (f"  {watchpage.number(float(values.min()))} to {watchpage.number(float(values.max()))}", "dim"),
        )
        for name, values in found[:MOST_SETTINGS]
    ]
    more = [Text(f"  and {len(found) - MOST_SETTINGS} more settings", "dim")] if len(found) > MOST_SETTINGS else []
    return [Text(""), *lines, *more] if lines else []


def columns(found: Sequence[Series]) -> Table:
    """The latest value of every column, with where it came from."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), show_edge=False)
    table.add_column("column", overflow="ellipsis", no_wrap=True)
    table.add_column("", no_wrap=True, min_width=MOST_BARS)
    table.add_column("latest", justify="right", no_wrap=True)
    for one in found:
        line = sparks.sparkline(one.band.middle, MOST_BARS) if one.band is not None else ""
        table.add_row(Text(one.name), Text(line, "cyan"), Text(watchpage.latest_text(one)))
    return table


class Handler(BaseHTTPRequestHandler):
    """Answers for one run folder; ``server.seen`` holds what was read of it."""

    def do_GET(self) -> None:
        answer(self)

    def log_message(self, *_) -> None:
        pass


def answer(handler: BaseHTTPRequestHandler) -> None:
    """The page, what changes of it, or the rollout; to this machine alone."""
    name = (handler.headers.get("Host") or "").rpartition(":")[0]
    if name not in (HOST, "localhost"):  # a page elsewhere that calls itself by our address
        return handler.send_error(403)
    server: Server = handler.server  # type: ignore[assignment]
    makers = {"/": watchpage.page, "/fragment": watchpage.fragment}
    maker = makers.get(handler.path.partition("?")[0])
    if maker is None:
        return handler.send_error(404)
    with server.lock:
        server.seen = look(server.path, server.seen)
        body = maker(server.seen).encode()
    handler.send_response(200)
    for header, value in {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Length": str(len(body)),
        "Cache-Control": "no-store",
    }.items():
        handler.send_header(header, value)
    handler.end_headers()
    handler.wfile.write(body)
    return None


class Server(ThreadingHTTPServer):
    """A server of one run folder."""

    daemon_threads = True
    path: Path
    seen: Watched | None = None
    lock: threading.Lock


def open_server(path: Path, port: int) -> Server:
    """A server that listens on this machine alone.

    Raises:
        UsageError: where the port cannot be had.
    """
    try:
        server = Server((HOST, port), Handler)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"port {port} cannot be had: {reason}; --serve 0 takes a free one") from None
    server.path, server.lock = path, threading.Lock()
    return server


def serve(path: Path, port: int, console: Console) -> int:
    """Serve the page until Ctrl-C."""
    with open_server(path, port) as server:
        console.print(f"http://{HOST}:{server.server_port}/  (Ctrl-C ends it)", soft_wrap=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0


if __name__ == "__main__":
    cli.run_main(main)
