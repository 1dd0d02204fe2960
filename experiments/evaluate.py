"""Judge a trained run: returns of fresh episodes with an interval, and a rollout page.

uv run python -m experiments.evaluate runs/train/…  --episodes 100
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import jax
import numpy as np
import tyro
from rich.console import Console
from scipy import stats

from experiments import cli
from experiments.configs import load_config
from experiments.setup import build
from experiments.showing import write_rollout
from jaxrl.errors import UsageError
from jaxrl.training import evaluation
from jaxrl.training.checkpoint import restore
from jaxrl.training.program import member


@dataclass(frozen=True)
class EvaluateRun:
    """Evaluate the policy of a run folder."""

    run: Annotated[Path, tyro.conf.Positional]
    """The run folder."""
    episodes: int = 100
    """Fresh episodes for each member."""
    seed: int = 1_000_000
    """Seed of the starts; away from those of training."""
    iteration: int | None = None
    """Which checkpoint; the newest where absent."""
    explore: bool = False
    """Sample actions instead of taking the policy's mode."""
    rollout: bool = True
    """Write a page with one episode of the first member."""


def main(arguments: list[str], console: Console) -> None:
    asked = cli.parse(EvaluateRun, arguments, description=__doc__)
    cli.check_seed(asked.seed)
    config = dataclasses.replace(load_config(asked.run), devices=1, mesh="")
    config = dataclasses.replace(config, evaluate=dataclasses.replace(config.evaluate, episodes=asked.episodes))
    built = build(config)
    state, meta = restore(asked.run / "checkpoints", built.program.template(), asked.iteration, parts=("agent",))
    on_host = built.env.num_envs is not None
    if on_host and asked.explore:
        raise UsageError(f"{config.env} lives on the host, where the policy is judged by its mode; leave out --explore")
    play = jax.jit(
        lambda agent_state, key: evaluation.evaluate(
            built.agent, built.env, agent_state, key, asked.episodes, config.evaluate.max_steps, asked.explore
        )
    )
    results = []
    for index, label in enumerate(built.labels):
        own = state.agent if built.program.members is None else member(state.agent, index)
        episodes = built.program.evaluate(state, asked.seed) if on_host else play(own, jax.random.key(asked.seed))
        episodes = jax.device_get(episodes)
        results.append({**label, **summarise(episodes.returns), "length": float(np.mean(episodes.lengths))})
        console.print(describe(results[-1], asked.episodes))
        if index == 0 and asked.rollout and not on_host:
            page = write_rollout(built.env, built.agent, own, asked.run / "rollout.html", seed=asked.seed)
            if page is not None:
                console.print(f"  rollout    {page}", soft_wrap=True)
    path = asked.run / "evaluation.json"
    path.write_text(
        json.dumps({"iteration": meta["iteration"], "episodes": asked.episodes, "members": results}, indent=2) + "\n"
    )


def summarise(returns: np.ndarray) -> dict[str, float]:
    """Mean and its 95 % interval (Student's t over episodes)."""
    mean = float(np.mean(returns))
    if len(returns) < 2 or np.ptp(returns) == 0:
        return {"return": mean, "low": mean, "high": mean}
    half = float(stats.t.ppf(0.975, len(returns) - 1) * stats.sem(returns))
    return {"return": mean, "low": mean - half, "high": mean + half}


def describe(result: dict[str, float], episodes: int) -> str:
    facts = ", ".join(
        f"{name} {value:g}" for name, value in result.items() if name not in ("return", "low", "high", "length")
    )
    return (
        f"return {result['return']:,.2f} [{result['low']:,.2f}, {result['high']:,.2f}] "
        f"over {episodes} episodes of {result['length']:,.0f} steps ({facts})"
    )


if __name__ == "__main__":
    cli.run_main(main)
