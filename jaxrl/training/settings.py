"""The sizes of the two training loops, and which of them cannot work."""

from dataclasses import dataclass

from jaxrl.agents.base import Agent
from jaxrl.errors import UsageError


@dataclass(frozen=True)
class OnPolicy:
    """How much experience an on-policy update sees."""

    num_envs: int = 64
    """Environments simulated side by side."""
    unroll: int = 128
    """Steps collected from each environment before each update."""


@dataclass(frozen=True)
class OffPolicy:
    """How experience is collected, stored and replayed."""

    num_envs: int = 1
    """Environments simulated side by side."""
    unroll: int = 1
    """Steps collected from each environment before each round of updates."""
    updates: int = 1
    """Gradient steps in each round."""
    batch_size: int = 256
    """Transitions (or windows) in each gradient step."""
    capacity: int = 1_000_000
    """Steps kept for replay, over all environments; rounded down to what the run can fill."""
    warmup: int = 1_000
    """Steps taken with random actions before the first update, over all environments."""
    n_step: int = 1
    """Rewards summed before the bootstrap."""


def check_settings(agent: Agent, config: OnPolicy | OffPolicy, on_policy: bool) -> None:
    """Refuse sizes that no loop can have, and an agent that learns in the other loop."""
    if agent.on_policy != on_policy:
        kind = "on_policy" if agent.on_policy else "off_policy"
        raise UsageError(f"{agent.name} is {kind.replace('_', '-')}; train it with training.{kind}")
    for name, value in vars(config).items():
        least = 0 if name in ("warmup", "updates") else 1
        if value < least:
            raise UsageError(f"{name} {value} cannot work; the least is {least}")


def check_replay(config: OffPolicy, length: int, collected: int) -> None:
    """Refuse a storage that the experience does not fit into or that is too small to learn from.

    Args:
        length: steps in a window of the sampler.
        collected: steps that are there when the first update comes, over all environments.
    """
    rows = config.capacity // config.num_envs
    if config.capacity % config.num_envs:
        raise UsageError(
            f"capacity {config.capacity} is not divisible by num_envs {config.num_envs}; nearest are "
            f"{rows * config.num_envs} and {(rows + 1) * config.num_envs}"
        )
    if rows < max(config.unroll, length):
        raise UsageError(
            f"capacity {config.capacity} holds {rows} steps of each of {config.num_envs} environments, but one round adds "
            f"{config.unroll} and a window is {length} long; the least that works is "
            f"{max(config.unroll, length) * config.num_envs}"
        )
    if config.n_step != length:
        raise UsageError(f"n_step {config.n_step} does not match the sampler's window length {length}")
    stored = min(collected, config.capacity)
    if config.updates and stored < max(config.batch_size, length * config.num_envs):
        raise UsageError(
            f"batch_size {config.batch_size} is more than the {stored} steps stored when the first update comes; use a "
            f"batch_size of at most {stored}, or warmup {config.batch_size} and a capacity of at least that"
        )
