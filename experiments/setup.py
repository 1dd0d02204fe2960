"""From a config to something that runs: environment, agent, loop, program and plan. Every script starts here."""

import ast
import dataclasses
import itertools
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import jax
import numpy as np

import environments
from environments import wrappers
from jaxrl import agents, samplers
from jaxrl.agents.base import Agent
from jaxrl.analysis.diagnosing import diagnosed
from jaxrl.errors import UsageError, unknown
from jaxrl.training import OffPolicy, OnPolicy, off_policy, on_policy, sharding
from jaxrl.training.host import host_program, refuse_population
from jaxrl.training.keeper import check_keeping
from jaxrl.training.loop import Loop, tasks_of
from jaxrl.training.plan import Plan, make_plan, make_schedule
from jaxrl.training.program import Program, compile_program
from jaxrl.training.records import Row, check_sinks

ON_HOST = ("gymnasium", "metaworld")  # schemes whose environments step on the host

AgentConfig = TypeVar("AgentConfig")
LoopConfig = TypeVar("LoopConfig", OnPolicy, OffPolicy)


@dataclass(frozen=True)
class Evaluate:
    """When and how the policy is judged: whole episodes, deterministic, in environments of their own."""

    every: int | None = None
    """Environment steps between evaluations; a tenth of the run where absent, 0 for none."""
    episodes: int = 16
    """Episodes in each evaluation, side by side."""
    max_steps: int | None = None
    """Cut an episode here; the environment's own limit where absent."""


@dataclass(frozen=True)
class Log:
    """Where rows go besides metrics.jsonl and metrics.csv, and how often."""

    every: int = 0
    """Environment steps between rows; 0 for a fiftieth of the run."""
    tensorboard: bool = False
    """Also write TensorBoard events."""
    wandb: str | None = None
    """Also log to this wandb project."""
    diagnostics: bool = False
    """Also measure dormant units, ranks of features, and norms of weights and updates, in every update."""


@dataclass(frozen=True)
class Checkpoint:
    """What is kept to go on from."""

    every: int | None = None
    """Environment steps between checkpoints; with every evaluation where absent, 0 for one at the end."""
    keep: int = 3
    """Keep this many of the newest."""
    keep_best: int = 1
    """And this many with the highest evaluation return."""
    replay: bool = True
    """Write the replay storage too; without it a resumed run is not exactly the run it would have been."""


@dataclass(frozen=True)
class Train(Generic[AgentConfig, LoopConfig]):
    """Train one agent in one environment, with one seed or many."""

    agent: AgentConfig
    """The agent's own settings; --agent NAME picks which agent."""
    loop: LoopConfig
    """How experience is collected and used."""
    env: str
    """scheme:name, such as brax:ant, gymnax:CartPole-v1 or toy:chain."""
    steps: int
    """Environment steps of each member; rounded to whole iterations."""
    env_options: dict[str, str] = field(default_factory=dict)
    """Passed to the environment: --env-options backend spring."""
    sampler: str = "uniform"
    """Who is replayed, off-policy: a factory of jaxrl.samplers, such as 'truncated_geometric(beta=4.6)'."""
    anneal: bool = False
    """Let the learning rate fall to zero over the run, for agents that have anneal_updates."""
    normalise_rewards: bool = False
    """Divide training rewards by the deviation of the running discounted return; records show the raw ones."""
    seed: int = 0
    """Seed of the first member; the others count on from it."""
    seeds: int = 1
    """Members that differ in their seed, trained side by side in one program."""
    sweep: tuple[str, ...] = ()
    """Hyper-parameters to vary over the members: learning_rate=1e-3,3e-4 (several make a grid)."""
    on_nan: Literal["stop", "restore"] = "stop"
    """At NaN or infinity: stop, or go back to the last checkpoint and on from there with other random numbers."""
    restores: int = 3
    """How often on-nan restore may go back in one run."""
    devices: int = 1
    """Devices to spread the run over, on all hosts together; 0 for all there are."""
    mesh: str = ""
    """Devices along members and environments, such as 2x4; chosen where absent."""
    evaluate: Evaluate = field(default_factory=Evaluate)
    log: Log = field(default_factory=Log)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)


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
    host = config.env.partition(":")[0] in ON_HOST
    options = {name: _value(text) for name, text in config.env_options.items()}
    if host:
        refuse_population(len(labels))
        if mesh is not None:
            raise UsageError(f"{config.env} lives on the host and cannot be spread over devices; use --devices 1")
        if config.normalise_rewards:
            raise UsageError("normalise_rewards is for environments on the device; wrap this one with Gymnasium's own")
        env = environments.make(config.env, num_envs=config.loop.num_envs, **options)
    else:
        env = environments.make(config.env, **options)
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
    loop = make_loop(agent, env.action_space, settings, config.sampler)
    shared = {"episodes": config.evaluate.episodes, "max_steps": config.evaluate.max_steps}
    if host:
        lanes = environments.make(config.env, **evaluation_lanes(config, tasks_of(env)), **options)
        values = {name: float(value[0]) for name, value in hyper.items()}
        program = host_program(loop, agent, env, lanes, seed=config.seed, hyper=values, **shared)
    else:
        vector = wrappers.vectorise(env, loop.num_envs)
        if config.normalise_rewards:
            vector = wrappers.normalise_reward(vector, config.agent.discount)
        seeds = [label["seed"] for label in labels]
        program = compile_program(
            loop, agent, vector, env, seeds=seeds, hyper=hyper, population=len(seeds) > 1, mesh=mesh, **shared
        )
    plan = make_plan(program, schedule, notes + rounded)
    return Built(resolved(config, settings, plan), env, agent, loop, program, plan, labels)


def evaluation_lanes(config: Train, tasks: tuple[str, ...]) -> dict[str, Any]:
    """Options of the environment that a run on the host is judged in: at most 16 lanes, or one for each task."""
    if not tasks:
        return {"num_envs": min(config.evaluate.episodes, 16)}
    # Meta-World's protocol ends an episode at its first success, when it is judged.
    return {"num_envs": len(tasks), "evaluation": True}


def with_tasks(config: Train, tasks: tuple[str, ...]) -> Train:
    """The config whose agent knows how many tasks there are, where it can know and was not told."""
    if not tasks or getattr(config.agent, "num_tasks", None) != 1:
        return config
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


def make_loop(agent: Agent, action_space: Any, settings: OnPolicy | OffPolicy, sampler: str) -> Loop:
    """The loop of the settings' kind."""
    if isinstance(settings, OnPolicy):
        return on_policy(agent, settings)
    return off_policy(agent, make_sampler(sampler, max(1, settings.n_step)), action_space, settings)


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
        options = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}  # type: ignore[attr-defined]
        return getattr(samplers, name)(length=length, **options)
    except (SyntaxError, TypeError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"cannot read the sampler '{text}' ({error}); write truncated_geometric(beta=4.6)") from None


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
        try:
            grid[name.strip().replace("-", "_")] = [float(value) for value in values.split(",")]
        except ValueError:
            raise UsageError(f"cannot read the sweep '{text}'; write learning_rate=1e-3,3e-4") from None
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    labels = [{"seed": config.seed + i, **point} for point in points for i in range(config.seeds)]
    return {name: np.asarray([label[name] for label in labels], np.float32) for name in grid}, labels


def save_config(config: Train, path: Path, command: str) -> None:
    """Everything that was asked for, and what it ran on."""
    versions = {name: __import__(name).__version__ for name in ("jax", "flax", "optax", "jaxrl")}
    content = {
        "command": command,
        "agent": agents.name_of(config.agent),
        "config": dataclasses.asdict(config),
        "versions": versions,
        "device": str(jax.devices()[0].device_kind),
    }
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(content, indent=2) + "\n")
    partial.replace(path)


def load_config(folder: Path) -> Train:
    """The config of a run folder.

    Raises:
        UsageError: where there is none, or where it was written by something else.
    """
    path = folder / "config.json"
    try:
        content = json.loads(path.read_text())
        return config_from_dict(content["agent"], content["config"])
    except OSError:
        raise UsageError(f"{folder} is not a run folder: it has no config.json") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is not a training config: {error}") from None


def load_command(folder: Path) -> str:
    """The command that started a run whose config can be read."""
    return json.loads((folder / "config.json").read_text())["command"]


def config_from_dict(agent: str, values: dict[str, Any]) -> Train:
    """The inverse of ``dataclasses.asdict`` for :class:`Train`."""
    agent_class = agents.config_class(agent)
    parts = {
        "agent": agent_class,
        "loop": loop_class(agent),
        "evaluate": Evaluate,
        "log": Log,
        "checkpoint": Checkpoint,
    }
    made = {name: kind(**{k: _tuples(v) for k, v in values[name].items()}) for name, kind in parts.items()}
    rest = {name: _tuples(value) for name, value in values.items() if name not in parts}
    return Train(**made, **rest)


def loop_class(agent: str) -> type[OnPolicy] | type[OffPolicy]:
    return OnPolicy if agents.is_on_policy(agent) else OffPolicy


def differing_flags(config: Any, default: Any, prefix: str = "") -> list[str]:
    """Command-line flags for every field that differs from a default; together they reproduce the config."""
    flags = []
    for part in dataclasses.fields(config):
        value, usual = getattr(config, part.name), getattr(default, part.name)
        name = prefix + part.name.replace("_", "-")
        if dataclasses.is_dataclass(value):
            flags += differing_flags(value, usual, f"{name}.")
        elif value != usual:
            words = itertools.chain(*value.items()) if isinstance(value, dict) else value
            flags += [f"--{name}", *([str(w) for w in words] if isinstance(value, tuple | dict) else [str(value)])]
    return flags


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


def latest_return(rows: list[Row]) -> float:
    """The members' mean of the last evaluation, or of the last training episodes."""
    for column in ("eval/return", "episode/return"):
        values = [row[column] for row in rows if column in row]
        if values:
            return sum(values) / len(values)
    return math.nan
