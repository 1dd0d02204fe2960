"""From a config to something that runs: environment, agent, loop, program and plan. Every script starts here."""

import ast
import dataclasses
import itertools
import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import environments
from environments import wrappers
from experiments.configs import Train
from jaxrl import agents, samplers
from jaxrl.agents.base import Agent
from jaxrl.analysis.diagnosing import diagnosed, replay_ages
from jaxrl.analysis.diagnostics import value_overestimation
from jaxrl.errors import UsageError, unknown
from jaxrl.training import OffPolicy, OnPolicy, off_policy, on_policy, sharding
from jaxrl.training.host import host_program, refuse_population
from jaxrl.training.keeper import check_keeping
from jaxrl.training.loop import Loop, Watch
from jaxrl.training.measuring import tasks_of
from jaxrl.training.plan import Plan, make_plan, make_schedule
from jaxrl.training.program import Program, compile_program
from jaxrl.training.records import Row, check_sinks
from jaxrl.training.run import mean_of

ON_HOST = ("gymnasium", "metaworld")  # schemes whose environments step on the host


class Built(NamedTuple):
    """A config made real. Nothing has been compiled yet."""

    config: Train  # with every default and rounding filled in, so that it means the same when steps are added later
    env: Any  # the single environment
    agent: Agent
    loop: Loop
    program: Program
    plan: Plan
    labels: list[Row]  # what tells the members apart


def build(config: Train) -> Built:
    """Make everything a run needs, and refuse what cannot work.

    Raises:
        UsageError: one line; nothing has been compiled or written.
    """
    if config.seeds < 1:
        raise UsageError(f"seeds {config.seeds} cannot work; the least is 1")
    if config.seed < 0 or config.seed + config.seeds > 2**32:
        raise UsageError(f"seed {config.seed} cannot work; seeds are whole numbers from 0 to 4,294,967,295")
    if config.restores < 0:
        raise UsageError(f"restores {config.restores} cannot work; 0 never goes back")
    check_sinks(config.log.tensorboard, config.log.wandb)
    check_keeping(config.checkpoint.keep, config.checkpoint.keep_best)
    hyper, labels = members(config)
    mesh = sharding.choose_mesh(config.devices, config.mesh, len(labels), config.loop.num_envs)
    if config.env.partition(":")[0] in ON_HOST:
        refuse_on_host(config, len(labels), mesh)
        env = environments.make(config.env, num_envs=config.loop.num_envs, **options_of(config))
    else:
        env = environments.make(config.env, **options_of(config))
    config = with_tasks(config, tasks_of(env))
    settings, notes = fitting_loop(config)
    schedule, rounded = make_schedule(
        config.steps,
        max(1, settings.num_envs * settings.unroll),
        log_every=config.log.every,
        evaluate_every=config.evaluate.every,
        checkpoint_every=config.checkpoint.every,
    )
    agent_config = annealed(config, schedule.iterations)
    for label in labels:
        point = {name: value for name, value in label.items() if hasattr(agent_config, name)}
        # Once for each member, so that a swept value is refused as the same value alone would be.
        agent = agents.make_agent(dataclasses.replace(agent_config, **point), env.observation_space, env.action_space)
    agent = agents.make_agent(agent_config, env.observation_space, env.action_space)
    if config.log.diagnostics:
        agent = diagnosed(agent)
    watch = partial(replay_ages, settings.num_envs) if config.log.diagnostics else None
    loop = make_loop(agent, env.action_space, settings, config.sampler, watch)
    program = make_program(config, env, agent, loop, hyper, labels, mesh)
    plan = make_plan(program, schedule, notes + rounded)
    return Built(resolved(config, settings, plan), env, agent, loop, program, plan, labels)


def make_program(
    config: Train, env: Any, agent: Agent, loop: Loop, hyper: dict[str, np.ndarray], labels: list[Row], mesh: Any
) -> Program:
    """The loop in its environment, which is that of all lanes where it lives on the host, and a single one elsewhere."""
    shared = {"episodes": config.evaluate.episodes, "max_steps": config.evaluate.max_steps}
    if config.env.partition(":")[0] in ON_HOST:
        lanes = environments.make(config.env, **evaluation_lanes(config, tasks_of(env)), **options_of(config))
        values = {name: float(value[0]) for name, value in hyper.items()}
        return host_program(loop, agent, env, lanes, seed=config.seed, hyper=values, **shared)
    vector = wrappers.vectorise(env, loop.num_envs)
    if config.normalise_rewards:
        vector = wrappers.normalise_reward(vector, config.agent.discount)
    # Critics of normalised rewards say nothing about the raw ones that an evaluation collects.
    judge = value_overestimation if config.log.diagnostics and not config.normalise_rewards else None
    seeds = [label["seed"] for label in labels]
    return compile_program(
        loop, agent, vector, env, seeds=seeds, hyper=hyper, population=len(seeds) > 1, mesh=mesh, judge=judge, **shared
    )


def refuse_on_host(config: Train, members: int, mesh: Any) -> None:
    """What an environment on the host cannot do."""
    refuse_population(members)
    if mesh is not None:
        raise UsageError(f"{config.env} lives on the host and cannot be spread over devices; use --devices 1")
    if config.normalise_rewards:
        raise UsageError("normalise_rewards is for environments on the device; wrap this one with Gymnasium's own")


def options_of(config: Train) -> dict[str, Any]:
    """The environment's options as Python values."""
    return {name: _value(text) for name, text in config.env_options.items()}


def evaluation_lanes(config: Train, tasks: tuple[str, ...]) -> dict[str, Any]:
    """Options of the environment that a run on the host is judged in: at most 16 lanes, or one for each task."""
    if not tasks:
        return {"num_envs": min(config.evaluate.episodes, 16)}
    # Meta-World's protocol ends an episode at its first success, when it is judged.
    return {"num_envs": len(tasks), "evaluation": True}


def with_tasks(config: Train, tasks: tuple[str, ...]) -> Train:
    """The config whose agent knows how many tasks there are, where it can know.

    Raises:
        UsageError: where it was told another number.
    """
    told, there = getattr(config.agent, "num_tasks", None), max(1, len(tasks))
    if told is None or told == there:
        return config
    if told != 1:
        raise UsageError(f"agent.num_tasks {told} does not fit {config.env}, which has {there}; leave it out")
    return dataclasses.replace(config, agent=dataclasses.replace(config.agent, num_tasks=len(tasks)))


def resolved(config: Train, settings: Any, plan: Plan) -> Train:
    """The config as the plan understood it."""
    per_iteration = plan.steps // plan.schedule.iterations
    return dataclasses.replace(
        config,
        loop=settings,
        steps=plan.steps,
        log=dataclasses.replace(config.log, every=plan.schedule.log_every * per_iteration),
        evaluate=dataclasses.replace(config.evaluate, every=plan.schedule.evaluate_every * per_iteration),
        checkpoint=dataclasses.replace(config.checkpoint, every=plan.schedule.checkpoint_every * per_iteration),
    )


def annealed(config: Train, iterations: int) -> Any:
    """The agent's config, with its learning rate falling over the whole run if that was asked for."""
    if not config.anneal:
        return config.agent
    if not hasattr(config.agent, "anneal_updates"):
        raise UsageError(f"{agents.name_of(config.agent)} has no annealing; leave out --anneal True")
    return dataclasses.replace(config.agent, anneal_updates=iterations)


def make_loop(
    agent: Agent, action_space: Any, settings: OnPolicy | OffPolicy, sampler: str, watch: Watch | None = None
) -> Loop:
    """The loop of the settings' kind."""
    if isinstance(settings, OnPolicy):
        return on_policy(agent, settings)
    return off_policy(agent, make_sampler(sampler, max(1, settings.n_step)), action_space, settings, watch)


SAMPLERS = (
    "emphasising_recent",
    "linear",
    "newest_mixture",
    "proportional",
    "ranked",
    "truncated_geometric",
    "uniform",
    "window",
)


def make_sampler(text: str, length: int) -> samplers.Sampler:
    """``name`` or ``name(argument=number, …)`` of a factory in :mod:`jaxrl.samplers`.

    Raises:
        UsageError: for a name that is not there, or arguments that it does not take.
    """
    name, _, arguments = text.partition("(")
    if name not in SAMPLERS:
        raise unknown("sampler", name, SAMPLERS)
    try:
        call = ast.parse(f"f({arguments.removesuffix(')')})", mode="eval").body
        options = {keyword.arg: _number_in(keyword.value) for keyword in call.keywords}  # type: ignore[attr-defined]
        return getattr(samplers, name)(length=length, **options)
    except (SyntaxError, TypeError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"cannot read the sampler '{text}' ({error}); write truncated_geometric(beta=4.6)") from None


def _number_in(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"{ast.unparse(node)} is no number") from None


def fitting_loop(config: Train) -> tuple[Any, tuple[str, ...]]:
    """The loop's settings, with a capacity that the run can fill where the user names none; the notes say so."""
    settings = config.loop
    if isinstance(settings, OnPolicy) or settings.num_envs < 1 or settings.capacity != OffPolicy.capacity:
        return settings, ()
    block = settings.num_envs * max(settings.unroll, settings.n_step, 1)
    needed = max(config.steps + block, settings.warmup + block, settings.batch_size)
    most = -(-needed // settings.num_envs) * settings.num_envs
    if settings.capacity <= most:
        return dataclasses.replace(settings, capacity=settings.capacity // settings.num_envs * settings.num_envs), ()
    note = (
        f"capacity {settings.capacity:,} becomes {most:,}: the run fills no more. Name one with --loop.capacity if it may "
        f"go on for more steps later."
    )
    return dataclasses.replace(settings, capacity=most), (note,)


def members(config: Train) -> tuple[dict[str, np.ndarray], list[Row]]:
    """Seeds × the grid of swept values: name -> ``[members]``, and a label for each member.

    Raises:
        UsageError: for a sweep that is not ``name=value,value``.
    """
    grid: dict[str, list[float]] = {}
    for text in config.sweep:
        name, _, values = text.partition("=")
        name = name.strip().replace("-", "_")
        if name in grid:
            raise UsageError(f"{name} is swept twice; write all its values in one, {name}=1e-3,3e-4")
        try:
            grid[name] = [float(value) for value in values.split(",")]
        except ValueError:
            raise UsageError(f"cannot read the sweep '{text}'; write learning_rate=1e-3,3e-4") from None
        if not isinstance(getattr(config.agent, name, 0.0), int | float):
            raise UsageError(f"{name} is no number and cannot be swept in one program; use experiments.sweep for it")
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    labels = [{"seed": config.seed + i, **point} for point in points for i in range(config.seeds)]
    return {name: np.asarray([label[name] for label in labels], np.float32) for name in grid}, labels


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def latest_return(rows: list[Row]) -> tuple[float, int]:
    """The members' mean of the last evaluation, or where there is none of the last training episodes, and its step.

    NaN at step 0 without either.
    """
    for column in ("eval/return", "episode/return"):
        told = [row for row in rows if column in row]
        if told:
            at = told[-1]["step"]
            return mean_of([row for row in told if row["step"] == at], column), at
    return math.nan, 0
