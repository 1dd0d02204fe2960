"""One experiment over a grid of settings: on this machine, or on a cluster through submitit.

    uv run python -m experiments.sweep --out runs/sweeps/rates --grid agent.learning-rate=1e-3,3e-4 --grid seed=0,1 \\
        -- --agent ppo --env gymnax:CartPole-v1
    uv run python -m experiments.sweep --executor slurm --slurm partition=gpu gpus_per_node=1 --out … --grid … -- …

Everything behind ``--`` goes to every member. The same command again goes on where the sweep was interrupted: members
that have finished (their ``result.json`` says so) are not run again, those that trained half-way are resumed. The results
of all are in ``table.csv`` and ``table.md``. To vary seeds or hyper-parameters inside one compiled program, use
``--seeds`` and ``--sweep`` of experiments.train instead; it is faster.
"""

import csv
import itertools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rich.console import Console

from experiments import cli
from jaxrl.errors import MissingExtraError, UsageError
from jaxrl.training.records import Row

RESUMABLE = ("experiments.train",)  # others start a member again that was interrupted


@dataclass(frozen=True)
class Sweep:
    """Run an experiment for every point of a grid."""

    out: Path
    """Where the members and the table are kept; the same folder again goes on."""
    grid: tuple[str, ...]
    """Flags and their values: agent.learning-rate=1e-3,3e-4 (several make a product)."""
    experiment: str = "experiments.train"
    """A module that takes --run-dir and leaves a result.json there."""
    executor: Literal["processes", "local", "slurm"] = "processes"
    """Processes of this machine, or submitit's executor for one machine, or for Slurm."""
    jobs: int = 1
    """Members that run at a time, with --executor processes."""
    hours: float = 24.0
    """The most that a member may take, with submitit."""
    slurm: tuple[str, ...] = ()
    """Passed on to submitit: partition=gpu gpus_per_node=1 cpus_per_task=8."""


class Member(NamedTuple):
    settings: dict[str, str]  # flag -> value
    folder: Path


def main(arguments: list[str], console: Console) -> int:
    own, shared = split_at(arguments)
    asked = cli.parse(Sweep, own, description=__doc__)
    if asked.jobs < 1:
        raise UsageError(f"jobs {asked.jobs} cannot work; the least is 1")
    everyone = members(asked)
    check_same(asked, shared)
    left = [member for member in everyone if not finished(member)]
    console.print(f"{len(everyone)} members, {len(everyone) - len(left)} finished already; they are in {asked.out}")
    statuses = executor(asked, console)([command(asked, member, shared) for member in left], asked.out / "logs")
    rows = gather(everyone)
    write_tables(rows, asked.out)
    console.print((asked.out / "table.md").read_text(), markup=False, soft_wrap=True)
    failed = {member.folder.name: status for member, status in zip(left, statuses, strict=True) if status}
    for name, status in failed.items():
        console.print(f"  {name} ended with status {status}; see {asked.out / 'logs'}", style="red", soft_wrap=True)
    return 1 if failed else 0


def split_at(arguments: list[str]) -> tuple[list[str], list[str]]:
    """What is before ``--``, and what is behind it."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


def members(asked: Sweep) -> list[Member]:
    """The points of the grid, each with a folder named after its settings.

    Raises:
        UsageError: for a grid that cannot be read or names a flag twice.
    """
    grid: dict[str, list[str]] = {}
    for text in asked.grid:
        name, equals, values = text.partition("=")
        name = name.strip().lstrip("-").replace("_", "-")
        if not (name and equals and all(value.strip() for value in values.split(","))):
            raise UsageError(f"cannot read the grid '{text}'; write agent.learning-rate=1e-3,3e-4")
        if name in grid:
            raise UsageError(f"the grid names {name} twice; write all its values behind one =")
        grid[name] = list(dict.fromkeys(value.strip() for value in values.split(",")))
    if not grid:
        raise UsageError("a sweep needs a --grid, such as agent.learning-rate=1e-3,3e-4")
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return [Member(point, asked.out / slug(point)) for point in points]


def slug(settings: dict[str, str]) -> str:
    """A folder's name: ``learning-rate=0.001_seed=0``."""
    return "_".join(re.sub(r"[^\w.=+-]", "-", f"{name.rpartition('.')[2]}={value}") for name, value in settings.items())


def check_same(asked: Sweep, shared: list[str]) -> None:
    """A folder belongs to one experiment with one set of shared flags; the grid may grow."""
    path = asked.out / "sweep.json"
    own = {"experiment": asked.experiment, "flags": shared}
    if path.exists():
        known = json.loads(path.read_text())
        if {name: known.get(name) for name in own} != own:
            was = " ".join([known["experiment"], *known["flags"]])
            raise UsageError(f"{asked.out} holds a sweep of '{was}'; choose another --out for another one")
    elif asked.out.exists() and any(asked.out.iterdir()):
        raise UsageError(f"{asked.out} exists and holds no sweep; choose another --out")
    asked.out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**own, "grid": asdict(asked)["grid"]}, indent=2) + "\n")


def finished(member: Member) -> bool:
    """Whether a member came to its end, rather than to a signal."""
    result = read_result(member)
    return result is not None and not result.get("interrupted")


def read_result(member: Member) -> dict[str, Any] | None:
    try:
        return json.loads((member.folder / "result.json").read_text())
    except (OSError, ValueError):
        return None


def command(asked: Sweep, member: Member, shared: list[str]) -> list[str]:
    """What starts a member, or goes on with it."""
    start = [sys.executable, "-m", asked.experiment]
    if asked.experiment in RESUMABLE and (member.folder / "config.json").exists():
        return [*start, "--resume", str(member.folder)]
    shutil.rmtree(member.folder, ignore_errors=True)  # what cannot go on would be in the way
    flags = [word for name, value in member.settings.items() for word in (f"--{name}", value)]
    return [*start, *shared, *flags, "--run-dir", str(member.folder)]


Executor = Callable[[list[list[str]], Path], list[int]]  # (commands, folder for logs) -> exit statuses


def executor(asked: Sweep, console: Console) -> Executor:
    """What runs the commands.

    Raises:
        MissingExtraError: where submitit is asked for and not installed.
    """
    if asked.executor == "processes":
        return lambda commands, logs: run_processes(commands, logs, asked.jobs)
    try:
        import submitit
    except ImportError as error:
        raise MissingExtraError("submitit", "sweep") from error
    options = dict(text.split("=", 1) for text in asked.slurm)
    prefixed = {f"slurm_{name}": int(value) if value.isdigit() else value for name, value in options.items()}

    def submit(commands: list[list[str]], logs: Path) -> list[int]:
        queue = submitit.AutoExecutor(folder=logs, cluster=asked.executor)
        queue.update_parameters(timeout_min=int(asked.hours * 60), **(prefixed if asked.executor == "slurm" else {}))
        with queue.batch():
            jobs = [queue.submit(subprocess.call, words) for words in commands]
        for job in jobs:
            console.print(f"  job {job.job_id}")
        return [status_of(job) for job in jobs]

    return submit


def status_of(job: Any) -> int:
    """A job's exit status; 1 where the cluster lost it."""
    try:
        return job.result()
    except Exception:  # submitit has an error of its own for every way in which a job can be lost
        return 1


def run_processes(commands: list[list[str]], logs: Path, jobs: int) -> list[int]:
    """Run commands as processes, a few at a time, their output in one file each."""
    logs.mkdir(parents=True, exist_ok=True)

    def run(numbered: tuple[int, list[str]]) -> int:
        with (logs / f"{numbered[0]}.txt").open("w") as output:
            return subprocess.call(numbered[1], stdout=output, stderr=subprocess.STDOUT)

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(run, enumerate(commands)))


def gather(everyone: list[Member]) -> list[Row]:
    """One row a member: its settings, what came out, and whether it has finished."""
    rows = []
    for member in everyone:
        result = read_result(member) or {}
        plain = {name: value for name, value in result.items() if isinstance(value, int | float | str)}
        rows.append({**member.settings, **plain, "finished": finished(member)})
    return rows


def write_tables(rows: list[Row], out: Path) -> None:
    """``table.csv`` and ``table.md``."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with (out / "table.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)
    lines = [columns, ["---"] * len(columns), *([shown(row.get(name, "")) for name in columns] for row in rows)]
    (out / "table.md").write_text("".join(f"| {' | '.join(line)} |\n" for line in lines))


def shown(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    cli.run_main(main)
