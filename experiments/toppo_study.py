"""Does critic balancing lift the tail of many tasks? Multi-task PPO, TOPPO module by module, two controls, and multi-task SAC.

    uv run python -m experiments.toppo_study --preset smoke     # that it runs
    uv run python -m experiments.toppo_study                    # two cores
    uv run --no-dev --extra metaworld python -m experiments.toppo_study --preset paper

Meta-World end to end in minutes, far too short to learn:

    uv run --no-dev --extra metaworld python -m experiments.toppo_study --preset paper --only metaworld:MT10 \\
        --rows ppo toppo --seeds 2 --iterations 4 --unroll 500 --episodes 10

TOPPO is that of arXiv:2605.11473, of which digests were read; see :mod:`jaxrl.agents.multi_task_ppo` for what is derived.
Success of a task is that of the deterministic policy, the mean of the last third of the evaluations; *worst-k* is, seed by
seed, the mean of the k tasks with the least. Reward scales lie apart by ``spread``.

Claims, said before any run: (1) plain PPO's critic gradient is dominated by few tasks, and its tail stalls; (2) TOPPO raises
worst-k success and does not lose the mean; (3) each module against the row it is added to, as it falls; (4) TOPPO needs
fewer parameters than SAC at equal or better success. Controls: rewards normalised task by task, and advantages alone.
"""

import dataclasses
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

import environments
from experiments import cli, studies
from experiments.configs import Evaluate, Log, Train
from experiments.measuring import alternate
from experiments.toppo_settings import CPU, PAPER, PPO, ROWS, Row, Suite, published
from jaxrl.agents import make_agent, multi_task_ppo
from jaxrl.analysis.claims import Claim
from jaxrl.analysis.comparisons import compare
from jaxrl.analysis.statistics import interval
from jaxrl.errors import UsageError, unknown
from jaxrl.training import OffPolicy, OnPolicy
from jaxrl.training.loop import block_of, on_policy

LAST = 1 / 3  # of the evaluations
MEASURED = ("critic/worst_explained_variance", *(f"critic/gradients/{n}" for n in ("largest_share", "norm_spread", "mean_cosine", "condition")))  # fmt: skip
TASK_COLUMNS = 5  # panels side by side
EQUAL = 0.02  # success within which a mean counts as not lost


@dataclass(frozen=True)
class Toppo:
    """Multi-task PPO, TOPPO and SAC on a suite of unlike tasks."""

    preset: studies.Preset = "cpu"
    """smoke: that it runs. cpu: the claims, on two cores. paper: Meta-World+ MT10 and MT50."""
    only: tuple[str, ...] = ()
    """Run only these suites, such as point:MT8."""
    rows: tuple[str, ...] = ()
    """Run only these rows."""
    seeds: int | None = None
    """In place of the suite's."""
    iterations: int | None = None
    """Rollouts, in place of the suite's."""
    unroll: int | None = None
    """Steps of a lane in a rollout, in place of the suite's."""
    episodes: int | None = None
    """Of an evaluation, over all tasks, in place of the suite's."""
    out: Path = Path("runs/toppo_study")
    """Where cells, claims and figures are kept; a cell that is there is not run again."""


class Cell:
    """Success of every seed and task, and what else was measured."""

    def __init__(self, result: dict):
        self.tasks: list[str] = result["tasks"]
        curves = np.asarray([result["curves"][f"eval/success/{task}"] for task in self.tasks])  # [K, seeds, points]
        self.over_time = np.moveaxis(curves, 0, 1)
        self.success = np.stack([studies.tail_mean(task, LAST) for task in curves], 1)  # [seeds, K]
        self.measured = {n: studies.tail_mean(c, 1.0) for n, c in result["curves"].items() if n in MEASURED}
        self.parameters: int = result["parameters"]

    def mean(self) -> np.ndarray:
        return self.success.mean(1)

    def worst(self, k: int) -> np.ndarray:
        return np.sort(self.success, 1)[:, :k].mean(1)


def main(arguments: list[str], console: Console) -> None:
    asked = cli.parse(Toppo, arguments, description=__doc__)
    folder = asked.out / asked.preset
    told = studies.told_in(folder, (*asked.only, *asked.rows))
    claims: list[Claim] = []
    lines = ["| suite | spread | row | mean | worst-k | parameters | largest share | worst explained |", "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for suite in chosen(asked):
        for spread in suite.spreads:
            console.print(f"{suite.env}, spread {spread:g}", markup=False)
            cells = {row.name: run_cell(suite, row, spread, asked.preset, folder, console) for row in ROWS if row.name in suite.rows}  # fmt: skip
            claims += suite_claims(suite, spread, cells)
            lines += [table_line(suite, spread, name, cell) for name, cell in cells.items()]
            write_figure(told / f"{slug(suite.env)}_{spread:g}.png", suite, cells)
            write_tasks_figure(told / f"{slug(suite.env)}_{spread:g}_tasks.png", cells)
    claims.append(cost_claim(folder, asked.preset, console))
    told.mkdir(parents=True, exist_ok=True)
    (told / "table.md").write_text("\n".join(lines) + "\n")
    console.print("\n".join(lines), markup=False, soft_wrap=True)
    studies.finish(told, claims, console)


def chosen(asked: Toppo) -> list[Suite]:
    """The suites of the preset with the rows and sizes asked for; for smoke shrunk to a few rollouts of two seeds.

    Raises:
        UsageError: for a suite or a row that is not there, or a size below 1.
    """
    known = PAPER if asked.preset == "paper" else CPU
    for name in asked.only:
        if name not in {suite.env for suite in known}:
            raise unknown("suite", name, [suite.env for suite in known])
    for name in asked.rows:
        if name not in {row.name for row in ROWS}:
            raise unknown("row", name, [row.name for row in ROWS])
    sizes = {name: getattr(asked, name) for name in ("seeds", "iterations", "unroll", "episodes")}
    sizes = {name: size for name, size in sizes.items() if size is not None}
    for name, size in sizes.items():
        if size < 1:
            raise UsageError(f"{name} must be at least 1, got {size}")
    suites = [suite for suite in known if not asked.only or suite.env in asked.only]
    if asked.rows:
        suites = [dataclasses.replace(s, rows=asked.rows) for s in suites]
    if asked.preset == "smoke":
        rows = asked.rows or ("ppo", "toppo", "mt-sac")
        suites = [dataclasses.replace(s, rows=rows, iterations=4, seeds=2, spreads=s.spreads[:1]) for s in suites]
    return [dataclasses.replace(suite, **sizes) for suite in suites]


def config_of(suite: Suite, row: Row, spread: float, preset: str) -> Train:
    """One cell as a training run."""
    agent = published(row.agent) if preset == "paper" else row.agent
    steps = suite.num_envs * suite.unroll * suite.iterations
    every = suite.num_envs * suite.unroll * max(1, suite.iterations // 20)
    loop: OnPolicy | OffPolicy = OnPolicy(suite.num_envs, suite.unroll)
    if row.name == "mt-sac":
        batch = 128 * suite.num_envs if preset == "paper" else 512
        warmup = min(steps // 4, 400 * suite.num_envs)
        capacity = min(steps, 100_000 * suite.num_envs) // suite.num_envs * suite.num_envs
        loop = OffPolicy(suite.num_envs, batch_size=batch, capacity=capacity, warmup=warmup)
    return Train(
        agent, loop, suite.env, steps, {"spread": str(spread)} if spread else {},
        normalise_rewards=row.normalise_rewards, seeds=suite.seeds,
        evaluate=Evaluate(every=every, episodes=suite.episodes), log=Log(every=every),
    )  # fmt: skip


def run_cell(suite: Suite, row: Row, spread: float, preset: str, folder: Path, console: Console) -> Cell:
    """Train all seeds side by side; on the host one after another."""
    config = config_of(suite, row, spread, preset)

    def measure() -> dict:
        apart = suite.env.startswith("metaworld:")
        parts = [dataclasses.replace(config, seeds=1, seed=i) for i in range(suite.seeds)] if apart else [config]
        trained = [studies.train_rows(part) for part in parts]
        rows = [told for part in trained for told in part.rows]
        tasks = [name.removeprefix("eval/success/") for name in rows[-1] if name.startswith("eval/success/")]
        columns = [f"eval/success/{task}" for task in tasks]
        later = [told for told in rows if told["step"] > 0]
        extra = studies.by_seed(later, [name for name in MEASURED if name in later[0]])
        # A point before training stands first in every curve; what only updates measure repeats its first.
        extra = {name: [[c[0], *c] for c in curves] for name, curves in extra.items()}
        curves = studies.by_seed(rows, columns) | extra
        return {"tasks": tasks, "curves": curves, "parameters": trained[0].parameters}

    name = f"{slug(suite.env)}_{spread:g}_{slug(row.name)}"
    return Cell(studies.cell(folder / "cells", name, config, measure, console))


def suite_claims(suite: Suite, spread: float, cells: dict[str, Cell]) -> list[Claim]:
    """What the page claims, where the rows for it are there."""
    at = f"{suite.env} spread {spread:g}"
    claims = []
    ppo, toppo, sac = (cells.get(name) for name in ("ppo", "toppo", "mt-sac"))
    if ppo is not None:
        if spread > 1:
            share = ppo.measured["critic/gradients/largest_share"]
            text = f"{at}: more than half of all critic gradient norm is one task's under plain PPO"
            equal = f"equal shares are {1 / len(ppo.tasks):.2f}"
            claims.append(studies.mean_claim(f"{at}/dominated", text, share, 0.5, equal))
        text = f"{at}: plain PPO's tail stalls (worst-{suite.worst} success below 0.1): success turned round"
        claims.append(studies.mean_claim(f"{at}/stalls", text, -ppo.worst(suite.worst), -0.1))
    if ppo is not None and toppo is not None:
        claims.append(gain(f"{at}/tail", f"{at}: TOPPO raises worst-{suite.worst} success over PPO", toppo.worst(suite.worst), ppo.worst(suite.worst)))  # fmt: skip
        claims.append(gain(f"{at}/mean", f"{at}: TOPPO does not lose the mean (within {EQUAL})", toppo.mean(), ppo.mean(), -EQUAL))  # fmt: skip
    for row in ROWS:
        if row.against and row.name in cells and row.against in cells:
            text = f"{at}: {row.name} raises worst-{suite.worst} success over {row.against}"
            a, b = cells[row.name], cells[row.against]
            claims.append(gain(f"{at}/{row.name}", text, a.worst(suite.worst), b.worst(suite.worst)))
    for control in ("reward normalisation", "task advantages"):
        if toppo is not None and control in cells:
            text = f"{at}: TOPPO beats {control} alone in worst-{suite.worst} success"
            claims.append(gain(f"{at}/control/{control}", text, toppo.worst(suite.worst), cells[control].worst(suite.worst)))  # fmt: skip
    if toppo is not None and sac is not None:
        text = f"{at}: TOPPO, with {sac.parameters / toppo.parameters:.1f} times fewer parameters, is not below multi-task SAC in mean success (within {EQUAL})"  # fmt: skip
        claims.append(gain(f"{at}/sac", text, toppo.mean(), sac.mean(), -EQUAL))
    return claims


def gain(name: str, text: str, a: np.ndarray, b: np.ndarray, threshold: float = 0.0) -> Claim:
    return studies.gain_claim(name, text, compare(a, b, paired=True), threshold)


def cost_claim(folder: Path, preset: str, console: Console) -> Claim:
    """That an update of TOPPO takes at most 2.5 times one of plain PPO on the same batch, at ten tasks."""
    turns = 3 if preset == "smoke" else 15
    times = studies.cell(folder / "cells", "cost", [turns, studies.machine()], partial(update_times, turns), console)
    text = "an update of TOPPO at ten tasks takes at most 2.5 times one of PPO on the same batch"
    return studies.cost_claim("cost", text, times["toppo"], times["ppo"], 2.5)


def update_times(turns: int, tasks: int = 10, lanes: int = 160, unroll: int = 50) -> dict[str, list[float]]:
    """Seconds of one update on a rollout of ten tasks, by PPO and by TOPPO, by turns."""
    env = environments.make("arm:MT10", num_envs=lanes)
    plain = dataclasses.replace(PPO, conditioning=False, num_tasks=tasks)
    sides = {}
    for name, config in {"ppo": plain, "toppo": multi_task_ppo.toppo(plain)}.items():
        agent = make_agent(config, env.observation_space, env.action_space)
        loop = on_policy(agent, OnPolicy(lanes, unroll))
        shapes = block_of(loop, jax.eval_shape(env.reset, jax.random.key(0))[1].observation, env.action_space)
        rollout = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        reward = jax.random.normal(jax.random.key(1), rollout.reward.shape)
        observation = jax.random.normal(jax.random.key(2), rollout.observation.shape)
        rollout = rollout._replace(reward=reward, observation=observation, next_observation=observation)
        call = partial(jax.jit(agent.update), agent.init(jax.random.key(0)), rollout, jax.random.key(3))
        sides[name] = lambda call=call: jax.block_until_ready(call())
    return alternate(sides, turns)


def table_line(suite: Suite, spread: float, name: str, cell: Cell) -> str:
    mean, worst = interval(cell.mean(), "mean"), interval(cell.worst(suite.worst), "mean")
    shown = [f"{cell.measured[n].mean():.2f}" if n in cell.measured else "–" for n in (MEASURED[1], MEASURED[0])]
    bounds = [f"{x.value:.3f} [{x.low:.3f}, {x.high:.3f}]" for x in (mean, worst)]
    return f"| {suite.env} | {spread:g} | {name} | {' | '.join(bounds)} | {cell.parameters:,} | {' | '.join(shown)} |"


def write_figure(path: Path, suite: Suite, cells: dict[str, Cell]) -> None:
    """Mean success against k, the tasks of each seed in rising order: the worst-k curve, whose end is the mean."""
    from jaxrl.analysis import figures

    figure, axes = figures.new_figure(width=6.8, height=2.8, columns=2)
    for index, (name, cell) in enumerate(cells.items()):
        ks = range(1, len(cell.tasks) + 1)
        bounds = [interval(cell.worst(k), "mean") for k in ks]
        value, low, high = np.array([b[:3] for b in bounds]).T
        figures.draw_band(axes[0], ks, value, low, high, name, index)
        over = cell.over_time.mean(1)
        axes[1].plot(np.linspace(0, 1, over.shape[1]), over.mean(0), color=figures.COLOURS[index % 8], linewidth=1.2)
    axes[0].set(xlabel="k", ylabel="success of the worst k tasks", title=suite.env)
    axes[1].set(xlabel="share of training", ylabel="mean success")
    axes[0].legend(fontsize=5)
    path.parent.mkdir(parents=True, exist_ok=True)
    figures.save(figure, path)


def write_tasks_figure(path: Path, cells: dict[str, Cell]) -> None:
    """Success of each task over training, a panel a task: the mean over seeds of every agent."""
    from jaxrl.analysis import figures

    tasks = next(iter(cells.values())).tasks
    rows = -(-len(tasks) // TASK_COLUMNS)
    figure, axes = figures.new_figure(width=6.8, height=1.5 * rows + 0.4, columns=TASK_COLUMNS, rows=rows)
    panels = np.ravel(axes)
    for task, axis in zip(tasks, panels, strict=False):
        for index, (name, cell) in enumerate(cells.items()):
            over = cell.over_time[:, cell.tasks.index(task)].mean(0)
            axis.plot(np.linspace(0, 1, len(over)), over, color=figures.COLOURS[index % 8], linewidth=1.0, label=name)
        axis.set_title(task, fontsize=7)
        axis.set_ylim(-0.03, 1.03)
    for axis in panels[len(tasks) :]:
        axis.set_visible(False)
    figure.supxlabel("share of training", fontsize=8)
    figure.supylabel("success", fontsize=8)
    panels[0].legend(fontsize=4)
    path.parent.mkdir(parents=True, exist_ok=True)
    figures.save(figure, path)


def slug(text: str) -> str:
    return re.sub("[^a-z0-9]+", "_", text.lower()).strip("_")


if __name__ == "__main__":
    cli.run_main(main)
