"""Play one episode of a trained policy and write it as a page, a GIF or an MP4.

uv run python -m experiments.rollout runs/train/…  --format gif --iteration 40
"""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import numpy as np
import tyro
from rich.console import Console

from experiments import cli
from experiments.export import load_policy
from experiments.showing import MOST_FRAMES
from jaxrl.errors import UsageError
from jaxrl.training.evaluation import NEVER_ENDING, record

# format -> the function that writes it
WRITERS = {
    "html": ("environments.rendering", "render_html"),
    "gif": ("environments.animation", "render_gif"),
    "mp4": ("environments.animation", "render_mp4"),
}


@dataclass(frozen=True)
class RolloutRun:
    """Write an episode of the deterministic policy of a run folder."""

    run: Annotated[Path, tyro.conf.Positional]
    """The run folder."""
    format: Literal["html", "gif", "mp4"] = "html"
    """A page for the browser, or (for environments that are drawn flat) an animation."""
    iteration: int | None = None
    """Which checkpoint; the newest where absent."""
    member: int = 0
    """Which member of a population."""
    seed: int = 0
    """Seed of the start."""
    out: Path | None = None
    """The file; rollout_ITERATION in the run's folder where absent."""


def main(arguments: list[str], console: Console) -> None:
    asked = cli.parse(RolloutRun, arguments, description=__doc__)
    cli.check_seed(asked.seed)
    built, state, iteration = load_policy(asked.run, asked.iteration, asked.member)
    env: Any = built.env
    if not getattr(env, "rendering", {}).get("kind"):
        raise UsageError(f"{built.config.env} cannot be drawn: its rendering has no kind; 'brax:ant' has one")
    limit = min(env.max_steps or NEVER_ENDING, MOST_FRAMES)
    play = jax.jit(lambda agent_state, key: record(built.agent, env, agent_state, key, limit))
    states, rewards, length = jax.device_get(play(state, jax.random.key(asked.seed)))
    frames = int(length) + 1
    path = asked.out or asked.run / f"rollout_{iteration}.{asked.format}"
    module, writer = WRITERS[asked.format]
    write = getattr(importlib.import_module(module), writer)
    write(env, jax.tree.map(lambda x: x[:frames], states), path, rewards=rewards[: frames - 1])
    console.print(f"return {np.sum(rewards[: frames - 1]):,.2f} in {frames - 1} steps")
    console.print(f"  rollout    {path}", soft_wrap=True)


if __name__ == "__main__":
    cli.run_main(main)
