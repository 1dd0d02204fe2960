"""What a run leaves to look at: a learning curve, and a rollout page for the browser."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl.agents.base import Agent
from jaxrl.training.evaluation import NEVER_ENDING, record
from jaxrl.training.records import Row, read_rows
from jaxrl.types import PyTree

MOST_FRAMES = 1000


def write_curve(folder: Path, title: str) -> Path | None:
    """The evaluation returns of a run folder against steps, or its training returns where it was never evaluated.

    The band is a 95 % interval of the mean: over members where there are several, else over the evaluation's episodes.
    """
    from jaxrl.analysis import figures

    rows = read_rows(folder / "metrics.jsonl")
    column = next((c for c in ("eval/return", "episode/return") if any(c in row for row in rows)), None)
    if column is None:
        return None
    steps, middle, half = curve_of(rows, column)
    figure, axis = figures.new_figure()
    what = "evaluation return" if column == "eval/return" else "training return"
    figures.draw_band(axis, steps, middle, middle - half, middle + half, what)
    axis.set(xlabel="environment steps", ylabel=what)
    axis.set_title(title, fontsize=8)
    return figures.save(figure, folder / "curve.png")


def curve_of(rows: list[Row], column: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps, mean, and the half-width of its 95 % interval at each step where the column was measured."""
    from scipy import stats

    by_step: dict[int, list[Row]] = {}
    for row in rows:
        if column in row:
            by_step.setdefault(row["step"], []).append(row)
    steps = np.asarray(sorted(by_step))
    means, halves = [], []
    for step in steps:
        group = by_step[step]
        values = np.asarray([row[column] for row in group])
        if len(values) > 1:
            error, freedom = values.std(ddof=1) / np.sqrt(len(values)), len(values) - 1
        else:
            episodes = group[0].get("eval/episodes", 1)
            error, freedom = group[0].get(f"{column}_std", 0.0) / np.sqrt(max(episodes - 1, 1)), max(episodes - 1, 1)
        means.append(values.mean())
        halves.append(stats.t.ppf(0.975, freedom) * error)
    return steps, np.asarray(means), np.asarray(halves)


def write_rollout(env: Any, agent: Agent, agent_state: PyTree, path: Path, seed: int = 0) -> Path | None:
    """Play one deterministic episode and write it as a page; None where the environment cannot be drawn."""
    if not getattr(env, "rendering", {}).get("kind"):
        return None
    from environments.rendering import render_html

    limit = min(env.max_steps or NEVER_ENDING, MOST_FRAMES)
    play = jax.jit(lambda state, key: record(agent, env, state, key, limit))
    states, rewards, length = jax.device_get(play(agent_state, jax.random.key(seed)))
    frames = int(length) + 1
    render_html(env, jax.tree.map(lambda x: x[:frames], states), path, rewards=rewards[: frames - 1])
    return path
