"""What can be asked of a training run, and how a run's folder remembers it."""

import dataclasses
import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import jax

from jaxrl import agents
from jaxrl.errors import UsageError
from jaxrl.training import OffPolicy, OnPolicy

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
    """Also measure dormant units, ranks of features, norms of weights and updates and the ages of what is replayed, in every
    update, and in evaluations how far the critics' values lie above the returns collected."""


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
    on_nan: Literal["stop", "restore", "drop"] = "stop"
    """At NaN or infinity: stop; go back to the last checkpoint and on from there with other random numbers; or leave out
    the members in which it is, while the others go on."""
    restores: int = 3
    """How often on-nan restore may go back in one run."""
    devices: int = 1
    """Devices to spread the run over, on all hosts together; 0 for all there are."""
    mesh: str = ""
    """Devices along members and environments, such as 2x4; chosen where absent."""
    evaluate: Evaluate = field(default_factory=Evaluate)
    log: Log = field(default_factory=Log)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)


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
        config = config_from_dict(content["agent"], content["config"])
        for name, kind in {"env": str, "steps": int, "seed": int, "seeds": int, "sampler": str}.items():
            if type(getattr(config, name)) is not kind:
                raise TypeError(f"{name} is {getattr(config, name)!r}")
        return config
    except OSError:
        raise UsageError(f"{folder} is not a run folder: it has no config.json") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is not a training config: {error}") from None


def load_command(folder: Path) -> str:
    """The command that started a run whose config can be read; empty where that does not say."""
    return str(json.loads((folder / "config.json").read_text()).get("command", ""))


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


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
