"""Kill a training process again and again, resume it each time, and compare what comes out with a run left in peace.

    uv run python -m experiments.durability                 # 20 kills of each case, about a quarter of an hour
    uv run python -m experiments.durability --kills 3 --only sac

Every kill is a SIGKILL, which no process can prepare for. Half of the moments are drawn from the whole time, half from the
time in which a checkpoint is being written. Parameters, optimiser, environments, keys, replay and metrics must be the
same bits; columns named ``time/…`` may differ.
"""

import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from experiments import cli
from experiments.configs import load_config
from experiments.setup import build
from jaxrl.errors import UsageError
from jaxrl.training.checkpoint import PARTS, pack, restore, saved_iterations, split
from jaxrl.training.records import Row, read_rows

COMMON = ["--evaluate.episodes", "2", "--evaluate.max-steps", "20", "--agent.hidden-sizes", "8"]
SAC = [
    *["--agent", "sac", "--env", "toy:point_mass", "--steps", "640", "--loop.num-envs", "2", "--loop.batch-size", "8"],
    *["--loop.warmup", "16", "--log.every", "8", "--evaluate.every", "64", "--checkpoint.every", "16", *COMMON],
]
PPO = [
    *["--agent", "ppo", "--env", "toy:point_mass", "--steps", "5120", "--loop.num-envs", "4", "--loop.unroll", "16"],
    *[
        "--agent.minibatches",
        "2",
        "--log.every",
        "128",
        "--evaluate.every",
        "512",
        "--checkpoint.every",
        "128",
        *COMMON,
    ],
]
CASES = {"sac": SAC, "ppo": PPO, "sac_population": [*SAC, "--seeds", "2"], "ppo_population": [*PPO, "--seeds", "2"]}
PATIENCE = 600.0  # seconds after which a process that neither ends nor trains is an error
POLL = 0.002


@dataclass(frozen=True)
class Durability:
    """Show that a killed run loses nothing."""

    kills: int = 20
    """Times that the process of each case is killed."""
    only: tuple[str, ...] = ()
    """Run only these cases: sac, ppo, sac_population, ppo_population."""
    seed: int = 0
    """Of the moments."""
    out: Path = Path("runs/durability")
    """Where the runs are kept; each case needs a folder that is not there yet."""


def main(arguments: list[str], console: Console) -> int:
    asked = cli.parse(Durability, arguments, description=__doc__)
    unknown = set(asked.only) - set(CASES)
    if unknown or asked.kills < 1:
        raise UsageError(f"there are {', '.join(CASES)}, and at least one kill; got {' '.join(unknown) or asked.kills}")
    claims = []
    for name in asked.only or CASES:
        claims.append(run_case(name, CASES[name], asked.kills, random.Random(f"{name} {asked.seed}"), asked.out / name))
        console.print(table(claims))
    (asked.out / "claims.json").write_text(json.dumps(claims, indent=2) + "\n")
    return 0 if all(claim["holds"] for claim in claims) else 1


def run_case(name: str, flags: list[str], kills: int, moments: random.Random, folder: Path) -> dict:
    """One run in peace, one killed ``kills`` times, and what differs between them."""
    if folder.exists():
        raise UsageError(f"{folder} exists and is not overwritten; choose another --out")
    folder.mkdir(parents=True)
    whole, killed = folder / "whole", folder / "killed"
    with (folder / "output.txt").open("w") as output:
        if start([*flags, "--run-dir", str(whole)], output).wait(PATIENCE):
            raise UsageError(f"the run without a kill failed; see {folder / 'output.txt'}")
        rows = read_rows(whole / "metrics.jsonl")
        seconds = [row["time/seconds"] for row in rows if row["step"]]
        # Without the compilation, and so that on average half of the run is over at the last kill.
        period = (seconds[-1] - seconds[0]) / (kills + 1)
        done, while_saving = 0, 0
        while done < kills:
            if (killed / "result.json").exists():  # it was faster than the kills: the others meet it once more
                shutil.rmtree(killed)
            process = start(
                ["--resume", str(killed)] if killed.exists() else [*flags, "--run-dir", str(killed)], output
            )
            saving = kill_at_random(process, killed, moments, moments.random() < 0.5, period)
            done, while_saving = done + (saving is not None), while_saving + bool(saving)
        if not (killed / "result.json").exists() and start(["--resume", str(killed)], output).wait(PATIENCE):
            raise UsageError(f"the last resumption failed; see {folder / 'output.txt'}")
    differs = differences(whole, killed)
    return {
        "case": name,
        "claim": "a killed run ends with the same bits",
        "kills": done,
        "while saving": while_saving,
        "differs": differs,
        "holds": not differs and done == kills,
    }


def start(flags: list[str], output) -> subprocess.Popen:
    command = [sys.executable, "-m", "experiments.train", *flags]
    return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)


def kill_at_random(
    process: subprocess.Popen, folder: Path, moments: random.Random, saving: bool, period: float
) -> bool | None:
    """Wait until the process trains, then for a random moment, and kill it.

    Args:
        saving: wait for a checkpoint that is being written.
        period: the longest that is waited for a moment of the whole time, in seconds.
    Returns:
        Whether a checkpoint was being written; None where the process had ended by itself.
    """
    known = progress(folder)
    wait_until(process, lambda: progress(folder) != known)
    if saving:
        wait_until(process, lambda: unfinished(folder))
        time.sleep(moments.uniform(0.0, 0.1))
    else:
        time.sleep(moments.uniform(0.0, period))
    if process.poll() is not None:
        return None
    process.send_signal(signal.SIGSTOP)  # so that what is seen is what the kill meets
    was_saving = unfinished(folder)
    process.kill()
    process.wait()
    return was_saving


def wait_until(process: subprocess.Popen, condition) -> None:
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and not condition():
        if time.monotonic() > deadline:
            process.kill()
            raise UsageError(f"the process did nothing for {PATIENCE:.0f} s")
        time.sleep(POLL)


def progress(folder: Path) -> tuple:
    """Changes when the process writes a row or a checkpoint."""
    path = folder / "metrics.jsonl"
    return (path.stat().st_size if path.exists() else 0, tuple(saved_iterations(folder / "checkpoints")))


def unfinished(folder: Path) -> bool:
    checkpoints = folder / "checkpoints"
    return checkpoints.is_dir() and any("orbax-checkpoint-tmp" in name for name in os.listdir(checkpoints))


def differences(whole: Path, killed: Path) -> list[str]:
    """Names of arrays and of columns in which two runs differ, and what else is not the same."""
    program = build(load_config(whole)).program
    states = [split(restore(folder / "checkpoints", program.template(), parts=PARTS)[0]) for folder in (whole, killed)]
    packed = [{f"{part}/{n}": np.asarray(x) for part in PARTS for n, x in pack(s[part]).items()} for s in states]
    found = [name for name in packed[0] if packed[0][name].tobytes() != packed[1][name].tobytes()]
    rows = [without_time(read_rows(folder / "metrics.jsonl")) for folder in (whole, killed)]
    tables = [without_time(read_table(folder / "metrics.csv")) for folder in (whole, killed)]
    found += [name for name, (a, b) in {"metrics.jsonl": rows, "metrics.csv": tables}.items() if a != b]
    if saved_iterations(whole / "checkpoints") != saved_iterations(killed / "checkpoints"):
        found.append("which checkpoints are kept")
    return found


def read_table(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def without_time(rows: list[Row]) -> list[Row]:
    return [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows]


def table(claims: list[dict]) -> Table:
    shown = Table("case", "claim", "kills", "while saving", "differs", "holds")
    for claim in claims:
        differs = ", ".join(claim["differs"][:3]) or "nothing"
        cells = (claim["case"], claim["claim"], claim["kills"], claim["while saving"], differs, claim["holds"])
        shown.add_row(*(str(cell) for cell in cells))
    return shown


if __name__ == "__main__":
    cli.run_main(main)
