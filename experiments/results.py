"""The table of returns in the README: ten seeds of each agent where a peer or a published value gives a target.

    uv run python -m experiments.results                    # all of it; well under an hour on two cores
    uv run python -m experiments.results --only ppo gymnax:CartPole-v1

Every case runs with the settings of ``experiments.defaults``, its seeds side by side in one program, and is judged by
100 fresh episodes a seed of the final policy. Rows are written as they finish, so an interrupted table can go on.
"""

import dataclasses
import json
import time
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from rich.console import Console

from experiments import cli, defaults
from experiments.configs import Evaluate
from experiments.setup import build
from jaxrl.analysis.statistics import interval
from jaxrl.errors import UsageError
from jaxrl.training import evaluate
from jaxrl.training.progress import progress_bar
from jaxrl.training.run import run


@dataclass(frozen=True)
class Case:
    agent: str
    env: str
    target: float | None  # the interquartile mean must reach this
    rule: str  # where the target comes from


CASES = (
    Case("ppo", "gymnax:CartPole-v1", 475.0, "solved: 475 of 500"),
    Case("dqn", "gymnax:CartPole-v1", 475.0, "solved: 475 of 500"),
    Case("sac", "gymnax:Pendulum-v1", -200.0, "usual threshold -200"),
    Case("td3", "gymnax:Pendulum-v1", -200.0, "usual threshold -200"),
    Case("ppo", "brax:inverted_pendulum", 950.0, "solved: 950 of 1,000"),
    Case("sac", "brax:inverted_pendulum", 950.0, "solved: 950 of 1,000"),
    Case("ppo", "brax:reacher", None, "no solved return is defined"),
    Case("sac", "brax:reacher", None, "no solved return is defined"),
)


@dataclass(frozen=True)
class Results:
    """Reproduce the README's table of returns."""

    only: tuple[str, ...] = ()
    """Run only the cases whose agent or environment is named."""
    seeds: int = 10
    """Seeds of each case, side by side."""
    episodes: int = 100
    """Fresh episodes for each seed at the end."""
    out: Path = Path("runs/results")
    """Where rows are kept; a case that is there already is not run again."""


def main(arguments: list[str], console: Console) -> None:
    asked = cli.parse(Results, arguments, description=__doc__)
    cases = [case for case in CASES if not asked.only or {case.agent, case.env} & set(asked.only)]
    if not cases:
        raise UsageError(f"no case is named {' '.join(asked.only)}; there are {', '.join(c.env for c in CASES)}")
    asked.out.mkdir(parents=True, exist_ok=True)
    for case in cases:
        path = asked.out / f"{case.agent}_{case.env.replace(':', '_')}.json"
        if not path.exists():
            path.write_text(json.dumps(run_case(case, asked, console), indent=2) + "\n")
    table = markdown([json.loads(p.read_text()) for p in sorted(asked.out.glob("*.json"))])
    (asked.out / "table.md").write_text(table)
    console.print(table, markup=False)


def run_case(case: Case, asked: Results, console: Console) -> dict:
    """Train all seeds, judge their final policies, and say what came out."""
    # Only the final policies are judged: evaluations on the way would cost as much again.
    config = dataclasses.replace(defaults.for_run(case.agent, case.env), seeds=asked.seeds, evaluate=Evaluate(every=0))
    built = build(config)
    console.print(f"{case.agent} in {case.env}, {built.plan.steps:,} steps × {asked.seeds} seeds")
    began = time.perf_counter()
    with progress_bar(built.plan, console) as listener:
        outcome = run(built.program, built.plan.schedule, labels=built.labels, listeners=(listener,))
    seconds = time.perf_counter() - began
    if outcome.interrupted:
        raise UsageError(f"interrupted during {case.agent} in {case.env}; finished cases are kept in {asked.out}")
    judge = jax.jit(jax.vmap(lambda state, key: evaluate(built.agent, built.env, state, key, asked.episodes)))
    state = outcome.state.agent if asked.seeds > 1 else jax.tree.map(lambda x: x[None], outcome.state.agent)
    episodes = jax.device_get(judge(state, jax.random.split(jax.random.key(2**31), asked.seeds)))
    scores = np.mean(episodes.returns, axis=1).astype(np.float64)
    bounds = interval(scores, "iqm")
    return {
        **dataclasses.asdict(case),
        "steps": built.plan.steps,
        "seeds": asked.seeds,
        "scores": scores.tolist(),
        "iqm": float(bounds.value),
        "low": float(bounds.low),
        "high": float(bounds.high),
        "seconds": round(seconds),
        "command": cli.command_line(
            "experiments.train", ["--agent", case.agent, "--env", case.env, "--seeds", str(asked.seeds)]
        ),
    }


def markdown(rows: list[dict]) -> str:
    """The table as it stands in the README."""
    lines = [
        "| agent | environment | steps | return: interquartile mean [95 % interval] | target | reached |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        target = "–" if row["target"] is None else f"{row['target']:g} ({row['rule']})"
        reached = "–" if row["target"] is None else "yes" if row["iqm"] >= row["target"] else "no"
        lines.append(
            f"| {row['agent']} | {row['env']} | {row['steps']:,} | "
            f"{row['iqm']:,.1f} [{row['low']:,.1f}, {row['high']:,.1f}], {row['seeds']} seeds | {target} | {reached} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    cli.run_main(main)
