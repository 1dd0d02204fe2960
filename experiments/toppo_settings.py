"""The rows of the TOPPO study: what each agent has that the one before it has not, and what is measured of it."""

from dataclasses import dataclass, replace
from typing import Any

from jaxrl.agents import multi_task_ppo, sac
from jaxrl.agents.multi_task_ppo import Config, toppo

PPO = Config(
    learning_rate=1e-3, discount=0.95, epochs=4, minibatches=4, hidden_sizes=(64, 64), max_grad_norm=0.5,
    entropy_coefficient=0.0, conditioning=True,
)  # fmt: skip
BY_TASK = replace(PPO, normalise_advantages_by_task=True)
POPART = replace(BY_TASK, popart=True)
NORMED = replace(POPART, critic_layer_norm=True)
FAIR = replace(NORMED, critic_combiner="fairgrad", clip_each=True)
SAC = sac.Config(
    actor_learning_rate=1e-3, critic_learning_rate=1e-3, temperature_learning_rate=1e-3, discount=0.95,
    hidden_sizes=(128, 128),
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One agent of the study."""

    name: str
    agent: Any
    against: str = ""  # the row that it adds one thing to
    normalise_rewards: bool = False


ROWS = (
    Row("ppo", PPO),
    Row("reward normalisation", PPO, "ppo", normalise_rewards=True),
    Row("task advantages", BY_TASK, "ppo"),
    Row("popart", POPART, "task advantages"),
    Row("layer norm", replace(BY_TASK, critic_layer_norm=True), "task advantages"),
    Row("fairgrad", replace(BY_TASK, critic_combiner="fairgrad", clip_each=True), "task advantages"),
    Row("popart + layer norm", NORMED, "popart"),
    Row("popart + layer norm + fairgrad", FAIR, "popart + layer norm"),
    Row("toppo", toppo(PPO), "popart + layer norm + fairgrad"),
    Row("mt-sac", SAC),
)


@dataclass(frozen=True)
class Suite:
    """Where the rows are run, and how long."""

    env: str
    spreads: tuple[float, ...]  # the largest reward scale over the smallest; (0,) where the suite has no such thing
    rows: tuple[str, ...]
    num_envs: int
    unroll: int
    iterations: int
    seeds: int
    episodes: int
    worst: int  # how many tasks the tail has


CPU = (
    Suite("point:MT8", (1e4, 1.0), tuple(row.name for row in ROWS), 128, 40, 60, 10, 64, 2),
    Suite("arm:MT10", (1e4, 1.0), tuple(row.name for row in ROWS), 160, 50, 100, 10, 80, 3),
)
# Sizes and budgets of Meta-World+ (20 and 100 million steps), the agents' networks three layers of 400.
PAPER = (
    Suite("metaworld:MT10", (0,), tuple(row.name for row in ROWS), 10, 10_000, 200, 5, 500, 3),
    Suite("metaworld:MT50", (0,), tuple(row.name for row in ROWS), 50, 10_000, 200, 5, 2500, 10),
)


def published(agent: Any) -> Any:
    """The agent at the sizes of the public Meta-World+ code, which the paper is read to share."""
    if not isinstance(agent, multi_task_ppo.Config):
        return replace(
            agent, hidden_sizes=(400, 400, 400), discount=0.99,
            actor_learning_rate=3e-4, critic_learning_rate=3e-4, temperature_learning_rate=3e-4,
        )  # fmt: skip
    return replace(
        agent, hidden_sizes=(400, 400, 400), activation="relu", learning_rate=3e-4, discount=0.99, gae_lambda=0.97,
        epochs=16, minibatches=32, max_grad_norm=1.0, entropy_coefficient=5e-3, std="state",
    )  # fmt: skip
