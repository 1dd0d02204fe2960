"""Train an agent: the plan, a progress bar, a learning curve, a rollout to look at, a checkpoint.

With no arguments, PPO balances Brax's inverted pendulum in about two minutes on a CPU. ``--agent`` and ``--env`` choose
others, ``--seeds 8`` trains eight side by side, and every setting is a flag (``--help``).
"""

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from experiments import cli, defaults
from experiments.configs import Train, differing_flags, load_command, load_config, save_config
from experiments.setup import Built, build, latest_return
from experiments.showing import write_curve, write_rollout
from jaxrl import agents
from jaxrl.errors import UsageError
from jaxrl.training import member
from jaxrl.training.checkpoint import PARTS, saved_iterations
from jaxrl.training.distributed import is_first, readable, same_text
from jaxrl.training.keeper import discard_after, open_checkpoints
from jaxrl.training.progress import print_plan, progress_bar
from jaxrl.training.records import Sink, close_all, jsonable, open_sinks, read_rows, truncate_rows
from jaxrl.training.recovery import Recovery, load_state, origin_of, recover
from jaxrl.training.run import NotFiniteError, Origin, Outcome, run, stop_on_signal


def main(arguments: list[str], console: Console) -> int:
    resume, rest = cli.take_option(cli.take_hosts(arguments), "resume", "")
    console.quiet = console.quiet or not is_first()
    if resume:
        return go_on(Path(resume), rest, console)
    config, run_dir, command = read_command(rest)
    built = build(config)
    short = config.env.partition(":")[2].lower().replace("/", "-")
    folder = Path()
    if is_first():
        folder = cli.new_folder(run_dir, "train", f"{agents.name_of(config.agent)}_{short}")
        save_config(built.config, folder / "config.json", command)
    folder = Path(same_text(str(folder)))
    return train(built, folder, command, console)


def go_on(folder: Path, arguments: list[str], console: Console) -> int:
    """Continue a run from its newest checkpoint, perhaps for more steps or on other devices than it was started with."""
    config_steps = load_config(folder).steps
    config, iteration = read_resume(load_config(folder), arguments)
    built = build(config)
    checkpoints, per_iteration = folder / "checkpoints", built.program.steps_per_iteration
    command = load_command(folder)
    if config.steps != config_steps:
        command = cli.with_option(command, "steps", str(config.steps))
    if not saved_iterations(checkpoints) and iteration is None:
        console.print(
            "  No checkpoint was finished: the run starts again from its beginning, which gives the same bits."
        )
        if is_first():
            truncate_rows(folder, -1)
        return train(built, folder, command, console)
    state, meta = load_state(built.program, checkpoints, iteration, parts_of(config))
    if meta["iteration"] >= built.plan.schedule.iterations and (folder / "result.json").exists():
        done = f"{meta['iteration'] * per_iteration:,} of {built.plan.steps:,} steps"
        more = 2 * max(built.plan.steps, meta["iteration"] * per_iteration)
        raise UsageError(f"{folder} has already taken {done}; give more with --steps {more}")
    longer = built.config.steps > config_steps
    rows_held = getattr(built.config.loop, "capacity", 0)
    lost = {
        "The learning rate falls to zero over the whole run": longer and config.anneal,
        f"The replay holds {rows_held:,} rows, as the run was started": config_steps <= rows_held < built.config.steps,
        "The replay was not saved: it starts empty": not config.checkpoint.replay and jax.tree.leaves(state.replay),
        "The environments live on the host: they start new episodes": not jax.tree.leaves(state.env),
    }
    for what in (what for what, is_lost in lost.items() if is_lost):
        console.print(f"  {what}, and this is not exactly the run it would have been.", soft_wrap=True)
    rows = []
    if is_first():
        (folder / "result.json").unlink(missing_ok=True)
        discard_after(checkpoints, meta["iteration"])
        if not (folder / "metrics.jsonl").exists():
            console.print("  metrics.jsonl is gone: the rows before this checkpoint are lost, the run itself is whole.")
        rows = truncate_rows(folder, meta["iteration"] * per_iteration)
        save_config(built.config, folder / "config.json", command)
    return train(built, folder, command, console, origin_of(state, meta, rows, meta["restores"]), meta["restores"])


def read_resume(config: Train, arguments: list[str]) -> tuple[Train, int | None]:
    """The config with what may change when a run goes on, and the checkpoint that was named."""
    numbers: dict[str, int] = {}
    for name in ("steps", "devices", "iteration"):
        text, arguments = cli.take_option(arguments, name, "")
        if text and not text.isdigit():
            raise UsageError(f"{name} {text} cannot work; give a whole number")
        if text:
            numbers[name] = int(text)
    mesh, rest = cli.take_option(arguments, "mesh", config.mesh if "devices" not in numbers else "")
    if rest:
        raise UsageError(
            f"a resumed run keeps its settings; only --steps, --devices, --mesh and --iteration can be given, "
            f"not {' '.join(rest)}"
        )
    iteration = numbers.pop("iteration", None)
    return dataclasses.replace(config, mesh=mesh, **numbers), iteration


def parts_of(config: Train) -> tuple[str, ...]:
    return PARTS if config.checkpoint.replay else ("agent", "loop")


def read_command(arguments: list[str]) -> tuple[Train, str | None, str]:
    """The config, the chosen run folder, and the command that reproduces the run."""
    agent, rest = cli.take_option(arguments, "agent", defaults.AGENT)
    env, rest = cli.take_option(rest, "env", defaults.environment_for(agent))
    run_dir, rest = cli.take_option(rest, "run-dir", "")
    usual = defaults.for_run(agent, env)
    about = (
        f"Train an agent. These are the settings of --agent {agent} (others: {', '.join(agents.names())}) "
        f"in --env {env} (see environments.list_environments()). --run-dir names the run's folder; --resume RUN goes on "
        f"with a run, perhaps for more --steps, on other --devices, or from an earlier --iteration."
    )
    kind = Train[type(usual.agent), type(usual.loop)]  # type: ignore[misc, valid-type]
    config = cli.parse(kind, rest, default=usual, description=about)
    flags = [
        "--agent",
        agent,
        "--env",
        config.env,
        *differing_flags(config, dataclasses.replace(usual, env=config.env)),
    ]
    return config, run_dir or None, cli.command_line("experiments.train", flags)


def train(
    built: Built,
    folder: Path,
    command: str,
    console: Console,
    origin: Origin | None = None,
    restores: list[dict] | None = None,
) -> int:
    """Run to the end, writing rows and checkpoints into the folder; then the figures. Returns the exit status."""
    config = built.config
    facts = {"agent": built.agent.name, "environment": config.env, "folder": str(folder), "again": command}
    if origin is not None:
        facts["resumed at"] = f"{origin.iteration * built.program.steps_per_iteration:,} steps"
    print_plan(built.plan, console, facts)
    warn = lambda text: console.print(f"  {text}", style="yellow", soft_wrap=True, markup=False)
    log, settings = config.log, config.checkpoint
    sinks: tuple[Sink, ...] = ()
    if is_first():
        sinks = open_sinks(folder, dataclasses.asdict(config), tensorboard=log.tensorboard, wandb=log.wandb, warn=warn)
    keeper = open_checkpoints(
        folder / "checkpoints", keep=settings.keep, keep_best=settings.keep_best, replay=settings.replay, warn=warn
    )
    attempts = config.restores if config.on_nan == "restore" else 0
    recovery = Recovery(folder, built.program, parts_of(config), attempts, keeper.wait, list(restores or []))
    meta = {"command": command, "agent": built.agent.name, "members": len(built.labels), "restores": recovery.taken}
    dropped: list[dict[str, Any]] = []
    try:
        with progress_bar(built.plan, console) as listener:
            outcome = run(
                built.program,
                built.plan.schedule,
                origin=origin,
                labels=built.labels,
                sinks=sinks,
                listeners=(listener,),
                save=lambda at, state, score: keeper.save(at, state, {**meta, "restores": [*recovery.taken]}, score),
                recover=partial(recover, recovery),
                drop=partial(note_dropped, built, dropped, warn) if config.on_nan == "drop" else None,
            )
    finally:
        close_all(sinks)
        keeper.close()
    outcome = outcome._replace(state=readable(outcome.state.agent))
    if is_first():
        events = {"restores": recovery.taken} | ({"dropped": dropped} if dropped else {})
        with stop_on_signal():  # what is left to write is short, and a run without it looks killed
            report(built, outcome, folder, command, console, events)
    if outcome.interrupted:
        return 128 + outcome.interrupted
    return cli.EXIT_DISK if keeper.stopped() else 0


def note_dropped(built: Built, dropped: list[dict], warn: Callable[[str], None], error: NotFiniteError) -> None:
    """Say which members are left out from here on, and why."""
    for i in error.members:
        label = ", ".join(f"{name} {value:g}" for name, value in built.labels[i].items())
        named = {"what": error.what[:3], "more": len(error.what[3:])}
        dropped.append({"member": i, "step": error.step, **named, **built.labels[i]})
        warn(f"member {i} ({label}) is left out from step {error.step:,} on: {error}")


def report(built: Built, outcome: Outcome, folder: Path, command: str, console: Console, events: dict) -> None:
    """The figures, and the lines a person reads last."""
    config = built.config
    written = read_rows(folder / "metrics.jsonl")
    rows = outcome.rows or written[-len(built.labels) :]
    # The first member that is still there.
    state = outcome.state if built.program.members is None else member(outcome.state, int(rows[0]["member"]))
    curve = write_curve(folder, f"{built.agent.name} in {config.env}")
    page = write_rollout(built.env, built.agent, state, folder / "rollout.html")
    score, at = latest_return(written)
    result: dict[str, Any] = {
        "return": score,
        "return_step": at,
        "step": outcome.iteration * built.program.steps_per_iteration,
    }
    result |= {"interrupted": outcome.interrupted, **events}
    (folder / "result.json").write_text(json.dumps({name: jsonable(value) for name, value in result.items()}) + "\n")
    steps = f"{result['step']:,} steps"
    when = "" if at == result["step"] else f" at step {at:,}, when it was last measured"
    console.print(f"{'interrupted after' if outcome.interrupted else 'finished'} {steps}, return {score:,.1f}{when}")
    for name, path in {"curve": curve, "rollout": page, "metrics": folder / "metrics.jsonl"}.items():
        if path is not None:
            console.print(f"  {name:<10} {path}", soft_wrap=True)
    console.print(f"  evaluate   uv run python -m experiments.evaluate {folder}", soft_wrap=True)
    if outcome.interrupted:
        console.print(f"  go on      uv run python -m experiments.train --resume {folder}", soft_wrap=True)
    elif built.program.members is None and built.env.num_envs is None:
        console.print(f"  64 seeds   {command} --seeds 64", soft_wrap=True)


if __name__ == "__main__":
    cli.run_main(main)
