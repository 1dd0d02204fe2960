"""Train an agent: the plan, a progress bar, a learning curve, a rollout to look at, a checkpoint.

With no arguments, PPO balances Brax's inverted pendulum in about two minutes on a CPU. ``--agent`` and ``--env`` choose
others, ``--seeds 8`` trains eight side by side, and every setting is a flag (``--help``).
"""

import dataclasses
import json
from pathlib import Path

import jax
from rich.console import Console

from experiments import cli, defaults
from experiments.setup import Built, Train, build, differing_flags, latest_return, load_config, save_config
from experiments.showing import write_curve, write_rollout
from jaxrl import agents
from jaxrl.errors import UsageError
from jaxrl.training import member
from jaxrl.training.checkpoint import PARTS, open_checkpoints, restore
from jaxrl.training.progress import print_plan, progress_bar
from jaxrl.training.records import close_all, open_sinks, truncate_rows
from jaxrl.training.run import Outcome, run
from jaxrl.types import PyTree


def main(arguments: list[str], console: Console) -> int:
    resume, rest = cli.take_option(arguments, "resume", "")
    if resume:
        return go_on(Path(resume), rest, console)
    config, run_dir, command = read_command(rest)
    built = build(config)
    short = config.env.partition(":")[2].lower().replace("/", "-")
    folder = cli.new_folder(run_dir, "train", f"{agents.name_of(config.agent)}_{short}")
    save_config(built.config, folder / "config.json", command)
    return train(built, folder, command, console)


def go_on(folder: Path, arguments: list[str], console: Console) -> int:
    """Continue a run from its newest checkpoint, perhaps for more steps than it was started with."""
    config = load_config(folder)
    steps, rest = cli.take_option(arguments, "steps", str(config.steps))
    if rest:
        raise UsageError(f"a resumed run keeps its settings; only --steps can change, not {' '.join(rest)}")
    if not steps.isdigit() or int(steps) < 1:
        raise UsageError(f"steps {steps} cannot work; give a whole number")
    built = build(dataclasses.replace(config, steps=int(steps)))
    template = jax.eval_shape(built.program.init)
    parts = PARTS if config.checkpoint.replay else ("agent", "loop")
    state, meta = restore(folder / "checkpoints", template, parts=parts)
    iteration, per_iteration = meta["iteration"], built.program.steps_per_iteration
    if iteration >= built.plan.schedule.iterations:
        done = f"{iteration * per_iteration:,} of {built.plan.steps:,} steps"
        raise UsageError(f"{folder} has already taken {done}; give more with --steps {2 * iteration * per_iteration}")
    if not config.checkpoint.replay and built.plan.memory["replay"]:
        state = state._replace(replay=built.program.init().replay)
        console.print(
            "  The replay was not saved: it starts empty, and this is not exactly the run it would have been."
        )
    truncate_rows(folder, iteration * per_iteration)
    save_config(built.config, folder / "config.json", meta["command"])
    return train(built, folder, meta["command"], console, state, iteration)


def read_command(arguments: list[str]) -> tuple[Train, str | None, str]:
    """The config, the chosen run folder, and the command that reproduces the run."""
    agent, rest = cli.take_option(arguments, "agent", defaults.AGENT)
    env, rest = cli.take_option(rest, "env", defaults.environment_for(agent))
    run_dir, rest = cli.take_option(rest, "run-dir", "")
    usual = defaults.for_run(agent, env)
    about = (
        f"Train an agent. These are the settings of --agent {agent} (others: {', '.join(agents.names())}) "
        f"in --env {env} (see environments.list_environments()). --run-dir names the run's folder; --resume RUN goes on "
        f"with a run, perhaps for more --steps."
    )
    config = cli.parse(type(usual)[type(usual.agent), type(usual.loop)], rest, default=usual, description=about)
    flags = [
        "--agent",
        agent,
        "--env",
        config.env,
        *differing_flags(config, dataclasses.replace(usual, env=config.env)),
    ]
    return config, run_dir or None, cli.command_line("experiments.train", flags)


def train(
    built: Built, folder: Path, command: str, console: Console, state: PyTree | None = None, iteration: int = 0
) -> int:
    """Run to the end, writing rows and checkpoints into the folder; then the figures. Returns the exit status."""
    config = built.config
    facts = {"agent": built.agent.name, "environment": config.env, "folder": str(folder), "again": command}
    if iteration:
        facts["resumed at"] = f"{iteration * built.program.steps_per_iteration:,} steps"
    print_plan(built.plan, console, facts)
    meta = {"command": command, "agent": built.agent.name, "members": len(built.labels)}
    sinks = open_sinks(folder, dataclasses.asdict(config), tensorboard=config.log.tensorboard, wandb=config.log.wandb)
    settings = config.checkpoint
    keeper = open_checkpoints(
        folder / "checkpoints", keep=settings.keep, keep_best=settings.keep_best, replay=settings.replay
    )
    try:
        with progress_bar(built.plan, console) as listener:
            outcome = run(
                built.program,
                built.plan.schedule,
                state=state,
                iteration=iteration,
                labels=built.labels,
                sinks=sinks,
                listeners=(listener,),
                save=lambda at, state, score: keeper.save(at, state, meta, score),
            )
    finally:
        close_all(sinks)
        keeper.close()
    report(built, outcome, folder, command, console)
    return 128 + outcome.interrupted if outcome.interrupted else 0


def report(built: Built, outcome: Outcome, folder: Path, command: str, console: Console) -> None:
    """The figures, and the lines a person reads last."""
    config = built.config
    state = outcome.state.agent if built.program.members is None else member(outcome.state.agent, 0)
    curve = write_curve(folder, f"{built.agent.name} in {config.env}")
    page = write_rollout(built.env, built.agent, state, folder / "rollout.html")
    result = {"return": latest_return(outcome.rows), "step": outcome.iteration * built.program.steps_per_iteration}
    (folder / "result.json").write_text(json.dumps(result | {"interrupted": outcome.interrupted}) + "\n")
    steps = f"{result['step']:,} steps"
    console.print(
        f"{'interrupted after' if outcome.interrupted else 'finished'} {steps}, return {result['return']:,.1f}"
    )
    for name, path in {"curve": curve, "rollout": page, "metrics": folder / "metrics.jsonl"}.items():
        if path is not None:
            console.print(f"  {name:<10} {path}", soft_wrap=True)
    console.print(f"  evaluate   uv run python -m experiments.evaluate {folder}", soft_wrap=True)
    if outcome.interrupted:
        console.print(f"  go on      uv run python -m experiments.train --resume {folder}", soft_wrap=True)
    elif len(built.labels) == 1:
        console.print(f"  64 seeds   {command} --seeds 64", soft_wrap=True)


if __name__ == "__main__":
    cli.run_main(main)
