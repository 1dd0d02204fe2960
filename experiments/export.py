"""Export a trained policy as files that run without jaxrl: StableHLO for JAX alone, weights for NumPy alone, ONNX.

uv run python -m experiments.export runs/train/…
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from experiments import cli
from experiments.configs import load_config
from experiments.setup import Built, build
from jaxrl import export
from jaxrl.errors import UsageError
from jaxrl.training.checkpoint import restore
from jaxrl.training.program import member
from jaxrl.types import PyTree


@dataclass(frozen=True)
class ExportRun:
    """Export the deterministic policy of a run folder."""

    run: Annotated[Path, tyro.conf.Positional]
    """The run folder."""
    out: Path | None = None
    """Where the files go; the run's folder export where absent."""
    iteration: int | None = None
    """Which checkpoint; the newest where absent."""
    member: int = 0
    """Which member of a population."""
    kinds: tuple[Literal["jax", "numpy", "onnx"], ...] = ()
    """What to write; jax and, where the policy is a multi-layer perceptron, numpy where absent."""
    platforms: tuple[Literal["cpu", "cuda", "rocm", "tpu"], ...] = ("cpu", "cuda", "tpu")
    """What the JAX artefact runs on."""


def main(arguments: list[str], console: Console) -> None:
    asked = cli.parse(ExportRun, arguments, description=__doc__)
    built, state, iteration = load_policy(asked.run, asked.iteration, asked.member)
    facts = {"environment": built.config.env, "run": str(asked.run), "iteration": iteration, "member": asked.member}
    written = export.write_policy(
        asked.out or asked.run / "export",
        built.agent,
        state,
        built.env.observation_space,
        built.env.action_space,
        kinds=asked.kinds or None,
        platforms=asked.platforms,
        facts=facts,
    )
    for kind, path in written.files.items():
        checked = written.differences.get(kind)
        note = "" if checked is None else f"  (largest difference from the live policy {checked:.1e})"
        console.print(f"  {kind:<10} {path}{note}", soft_wrap=True)
    for kind, why in written.left_out.items():
        console.print(f"  no {kind}: {why}", soft_wrap=True)


def load_policy(run: Path, iteration: int | None, index: int) -> tuple[Built, PyTree, int]:
    """What a run was made of, and one member's agent at a checkpoint (the newest, unless one is named).

    Raises:
        UsageError: no such run, checkpoint or member.
    """
    built = build(dataclasses.replace(load_config(run), devices=1, mesh=""))
    count = built.program.members or 1
    if not 0 <= index < count:
        raise UsageError(f"member {index} is not in this run; its members are 0 to {count - 1}")
    state, meta = restore(run / "checkpoints", built.program.template(), iteration, parts=("agent",))
    return built, state.agent if built.program.members is None else member(state.agent, index), meta["iteration"]


if __name__ == "__main__":
    cli.run_main(main)
