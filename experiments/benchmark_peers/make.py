"""Make an environment for each peer of the speed benchmark, and say which of them start.

    uv run python -m experiments.benchmark_peers.make                       # all but PureJaxRL
    uv run python -m experiments.benchmark_peers.make rejax brax
    uv run python -m experiments.benchmark_peers.make purejaxrl --checkout ../purejaxrl

Each goes into ``runs/peers/NAME`` with packages from PyPI, at the newest version that it starts with. A peer that is there is
kept; ``--anew True`` makes it again.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from experiments import cli
from jaxrl.errors import UsageError, unknown

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Peer:
    """Where a peer comes from."""

    requirements: tuple[str, ...]
    worker: str  # a file beside this one; empty where it is timed in one process with ours
    note: str = ""


PEERS = {
    # gymnax 1 steps with six values where these two expect five.
    "rejax": Peer(("rejax==0.1.3", "gymnax<1"), "rejax_worker.py"),
    "purejaxrl": Peer(
        ("jax", "flax", "optax", "distrax", "brax", "gymnax<1"), "purejaxrl_worker.py", "needs --checkout"
    ),
    "sbx": Peer(("sbx-rl",), "sbx_worker.py", "downloads PyTorch"),
    "sb3": Peer(("stable-baselines3",), "sb3_worker.py", "downloads PyTorch"),
    # Its trainers call jax.device_put_replicated, which JAX removed after 0.7.
    "brax": Peer(("brax", "jax<0.8"), "brax_worker.py"),
    # Replay is timed by experiments.replay_speed, which needs what the project needs besides.
    "flashbax": Peer(("flashbax", "-r", "pyproject.toml"), ""),
}


@dataclass(frozen=True)
class Make:
    """Which peers to make, and where."""

    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ("rejax", "sbx", "sb3", "brax", "flashbax")
    """Peers."""
    folder: Path = Path("runs/peers")
    """Where the environments go."""
    checkout: Path | None = None
    """A checkout of PureJaxRL."""
    anew: bool = False
    """Make again what is there."""


def main(arguments: list[str], console: Console) -> int:
    asked = cli.parse(Make, arguments, description=__doc__)
    for name in asked.names:
        if name not in PEERS:
            raise unknown("peer", name, PEERS)
    if "purejaxrl" in asked.names and asked.checkout is None:
        raise UsageError("purejaxrl is no package; name a checkout of it: --checkout FOLDER")
    failed = 0
    for name in asked.names:
        trouble = make(name, asked.folder / name, asked.checkout, asked.anew) or start(name, asked.folder)
        failed += trouble.startswith("cannot")
        console.print(f"  {name}: {trouble}", markup=False, soft_wrap=True)
    return 1 if failed else 0


def make(name: str, folder: Path, checkout: Path | None = None, anew: bool = False) -> str:
    """Make the environment of a peer; what went wrong in one line, or an empty text."""
    if checkout is not None and name == "purejaxrl":
        if not (checkout / "purejaxrl" / "ppo.py").exists():
            return f"cannot be made: {checkout} holds no purejaxrl/ppo.py"
        folder.mkdir(parents=True, exist_ok=True)
    python = python_of(folder)
    if anew or not python.exists():
        if shutil.which("uv") is None:
            return "cannot be made: uv is not on the path"
        for command in (
            ["uv", "venv", "--quiet", "--clear", "--python", "3.11", str(folder)],
            ["uv", "pip", "install", "--quiet", "--python", str(python), *PEERS[name].requirements],
        ):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                shutil.rmtree(folder, ignore_errors=True)
                return f"cannot be made: {last_line(done.stderr)}"
    if checkout is not None and name == "purejaxrl":
        (folder / "checkout.txt").write_text(f"{checkout.resolve()}\n")
    return ""


def start(name: str, folder: Path) -> str:
    """Start a peer's worker once, and say its versions or why it does not start."""
    worker = PEERS[name].worker
    command = worker_command(name, folder) if worker else [str(python_of(folder / name)), "-c", "import flashbax"]
    done = subprocess.run(command, input="", capture_output=True, text=True, env=os.environ | {"JAX_PLATFORMS": "cpu"})
    if done.returncode:
        return f"cannot be started: {last_line(done.stderr)}"
    if not worker:
        return "ready"
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]  # a package may print as it is imported
    if not lines:
        return f"cannot be started: its worker said nothing; {last_line(done.stderr)}"
    return ", ".join(f"{package} {version}" for package, version in json.loads(lines[0])["versions"].items())


def python_of(folder: Path) -> Path:
    """The interpreter of an environment."""
    return folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def worker_command(name: str, folder: Path) -> list[str]:
    """What starts a peer's worker."""
    command = [str(python_of(folder / name).absolute()), str(HERE / PEERS[name].worker)]
    if name == "purejaxrl":
        command.append((folder / name / "checkout.txt").read_text().strip())
    return command


def last_line(text: str) -> str:
    """The last line that says something, which is where a traceback says what it is about."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it ended without a word"


if __name__ == "__main__":
    cli.run_main(main)
