"""The sides of a speed comparison: each a worker in a process and an environment of its own, asked by turns."""

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from experiments.benchmark_peers.make import PEERS, last_line, python_of, worker_command
from experiments.measuring import Ratio, alternate, ratio

OURS = "jaxrl"
OURS_COMMAND = (sys.executable, "-m", "experiments.benchmarking.ours")
Clock = Literal["wall", "cpu"]
PATIENCE = 1800.0  # seconds that a worker may take for one answer


class SideError(RuntimeError):
    """A worker that cannot do what it was asked, in one line."""


class Side:
    """A worker that is running. :meth:`ask` waits for its answer."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        # Compiled programs must not come from a disk, or compiling could not be timed.
        environment = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false", "PYTHONUNBUFFERED": "1"}
        self.name, self.log = name, log
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment
            )
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.process.stdout, selectors.EVENT_READ)
        self.unread = b""
        greeting = self._read()
        self.versions, self.parts = greeting["versions"], greeting["parts"]

    def ask(self, verb: str, part: str, sizes: dict, **arguments: Any) -> dict:
        """What the worker answers.

        Raises:
            SideError: where it has no such part, fails, or has ended.
        """
        if part not in self.parts:
            raise SideError(f"{self.name} has no part {part}")
        request = {"verb": verb, "part": part, "sizes": sizes, "arguments": arguments}
        try:
            assert self.process.stdin is not None
            self.process.stdin.write((json.dumps(request) + "\n").encode())
            self.process.stdin.flush()
        except OSError:
            raise SideError(f"{self.name} has ended: {last_line(self.log.read_text())}") from None
        reply = self._read()
        if "error" in reply:
            raise SideError(f"{self.name} cannot do {part} {verb}: {reply['error']}")
        return reply

    def close(self) -> None:
        """End the worker."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.selector.close()

    def _read(self) -> dict:
        """The next JSON object; lines that a library printed before the worker could keep them off are passed over."""
        assert self.process.stdout is not None
        until = time.monotonic() + PATIENCE
        while True:
            while b"\n" not in self.unread:
                if not self.selector.select(max(0.0, until - time.monotonic())):
                    raise SideError(f"{self.name} gave no answer in {PATIENCE:.0f} s")
                more = os.read(self.process.stdout.fileno(), 65536)
                if not more:
                    raise SideError(f"{self.name} has ended: {last_line(self.log.read_text())}")
                self.unread += more
            line, _, self.unread = self.unread.partition(b"\n")
            if line.startswith(b"{"):
                return json.loads(line)


@contextmanager
def open_sides(
    peers: Sequence[str], folder: Path, logs: Path, tell: Callable[[str], None], ours: Sequence[str] = OURS_COMMAND
) -> Iterator[dict[str, Side]]:
    """Our own worker and those of the peers that are there and start; the others are told of in one line each."""
    logs.mkdir(parents=True, exist_ok=True)
    sides: dict[str, Side] = {}
    try:
        for name in (OURS, *peers):
            if name != OURS and not python_of(folder / name).exists():
                tell(
                    f"{name} is left out: no {folder / name}; uv run python -m experiments.benchmark_peers.make {name}"
                )
                continue
            command = ours if name == OURS else worker_command(name, folder)
            try:
                sides[name] = Side(name, command, logs / f"{name}.log")
            except SideError as error:
                if name == OURS:
                    raise
                tell(f"{name} is left out: {error}")
        yield sides
    finally:
        for side in sides.values():
            side.close()


def workers(asked: str) -> tuple[str, ...]:
    """``none``, ``all``, or names with commas between them; only peers that have a worker."""
    known = tuple(name for name, peer in PEERS.items() if peer.worker)
    if asked in ("none", "all"):
        return known if asked == "all" else ()
    return tuple(name for name in asked.split(",") if name in known)


class Beside(NamedTuple):
    """One side next to ours: above 1 ours needs less time."""

    peer: str
    ours: float  # seconds for one unit, median
    theirs: float
    ratio: Ratio


def compare(
    sides: dict[str, Side], tell: Callable[[str], None], part: str, verb: str, sizes: dict, turns: int, clock: Clock,
    seconds: float = 0.0,
) -> dict[str, list[float]]:  # fmt: skip
    """Seconds for one unit in every turn of every side that can do it, ours first; the first call is not among them.

    To ``run``, each side gets the amount of work that keeps it busy for so many seconds.
    """
    calls: dict[str, Callable[[], float]] = {}
    for name, side in sides.items():
        try:
            if verb == "run":
                amount = calibrate(side, part, sizes, seconds)
                calls[name] = partial(per_unit, side, "run", part, sizes, clock, amount=amount)
            elif part in side.parts:
                calls[name] = partial(per_unit, side, verb, part, sizes, clock)
                calls[name]()
        except SideError as error:
            if name == OURS:
                raise
            if part in side.parts:
                tell(str(error))
            calls.pop(name, None)
    times: dict[str, list[float]] = {name: [] for name in calls}
    alternate({name: partial(_note, times[name], call) for name, call in calls.items()}, turns, warm=0)
    return times


def beside(times: dict[str, list[float]]) -> list[Beside]:
    """Every other side next to ours."""
    middle = {name: sorted(of)[len(of) // 2] for name, of in times.items()}
    return [
        Beside(name, middle[OURS], middle[name], ratio(of, times[OURS])) for name, of in times.items() if name != OURS
    ] or [Beside("", middle[OURS], float("nan"), Ratio(float("nan"), float("nan"), float("nan"), len(times[OURS])))]


def calibrate(side: Side, part: str, sizes: dict, seconds: float) -> float:
    """Units that keep a side busy for about so long, after it has compiled."""
    for _ in range(3):  # a trainer whose state changes its types compiles again at its second call
        side.ask("run", part, sizes, amount=1)
    amount, took = 1.0, 0.0
    while took < seconds / 4 and amount < 2**40:
        reply = side.ask("run", part, sizes, amount=amount)
        took = reply["seconds"]
        amount = max(2 * amount, reply["units"])
    return max(1.0, seconds * reply["units"] / max(took, 1e-9))


def per_unit(side: Side, verb: str, part: str, sizes: dict, clock: Clock, **arguments: Any) -> float:
    reply = side.ask(verb, part, sizes, **arguments)
    return reply["cpu" if clock == "cpu" else "seconds"] / reply.get("units", 1)


def _note(times: list[float], call: Callable[[], float]) -> None:
    times.append(call())
