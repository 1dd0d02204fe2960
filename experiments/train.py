"""Train an agent: the plan, a progress bar, a learning curve, a rollout to look at, a checkpoint.

With no arguments, PPO balances Brax's inverted pendulum in about two minutes on a CPU. ``--agent`` and ``--env`` choose
others, ``--seeds 8`` trains eight side by side, and every setting is a flag (``--help``).
"""

import dataclasses
import json
from pathlib import Path

from rich.console import Console

from experiments import cli, defaults
from experiments.setup import Built, Train, build, differing_flags, latest_return, save_config
from experiments.showing import write_curve, write_rollout
from jaxrl import agents
from jaxrl.training import member
from jaxrl.training.checkpoint import open_checkpoints
from jaxrl.training.progress import print_plan, progress_bar
from jaxrl.training.records import close_all, open_sinks
from jaxrl.training.run import Outcome, run


def main(arguments: list[str], console: Console) -> int:
    config, run_dir, command = read_command(arguments)
    built = build(config)
    short = config.env.partition(":")[2].lower().replace("/", "-")
    folder = cli.new_folder(run_dir, "train", f"{agents.name_of(config.agent)}_{short}")
    save_config(config, folder / "config.json", command)
    facts = {"agent": built.agent.name, "environment": config.env, "folder": str(folder), "again": command}
    print_plan(built.plan, console, facts)
    outcome = train(config, built, folder, command, console)
    report(config, built, outcome, folder, command, console)
    return cli.EXIT_INTERRUPTED if outcome.interrupted else 0


def read_command(arguments: list[str]) -> tuple[Train, str | None, str]:
    """The config, the chosen run folder, and the command that reproduces the run."""
    agent, rest = cli.take_option(arguments, "agent", defaults.AGENT)
    env, rest = cli.take_option(rest, "env", defaults.environment_for(agent))
    run_dir, rest = cli.take_option(rest, "run-dir", "")
    usual = defaults.for_run(agent, env)
    about = (
        f"Train an agent. These are the settings of --agent {agent} (others: {', '.join(agents.names())}) "
        f"in --env {env} (see environments.list_environments()). --run-dir names the run's folder."
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


def train(config: Train, built: Built, folder: Path, command: str, console: Console) -> Outcome:
    """Run to the end, writing rows and checkpoints into the folder."""
    facts = {"command": command, "agent": agents.name_of(config.agent), "members": len(built.labels)}
    sinks = open_sinks(folder, dataclasses.asdict(config), tensorboard=config.log.tensorboard, wandb=config.log.wandb)
    settings = config.checkpoint
    keeper = open_checkpoints(
        folder / "checkpoints", keep=settings.keep, keep_best=settings.keep_best, replay=settings.replay
    )
    try:
        with progress_bar(built.plan, console) as listener:
            return run(
                built.program,
                built.plan.schedule,
                labels=built.labels,
                sinks=sinks,
                listeners=(listener,),
                save=lambda iteration, state, score: keeper.save(iteration, state, facts, score),
            )
    finally:
        close_all(sinks)
        keeper.close()


def report(config: Train, built: Built, outcome: Outcome, folder: Path, command: str, console: Console) -> None:
    """The figures, and the lines a person reads last."""
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
    if len(built.labels) == 1:
        console.print(f"  64 seeds   {command} --seeds 64", soft_wrap=True)


if __name__ == "__main__":
    cli.run_main(main)
