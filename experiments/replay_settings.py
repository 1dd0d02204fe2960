"""The settings of the replay study: who learns what, at which replay volumes, by which samplers, with how many seeds."""

from dataclasses import dataclass, field
from typing import Any

from jaxrl.agents import brc, dqn, fast_td3, simba_v2, td3

UNIFORM, GEOMETRIC, WINDOW = "uniform", "truncated_geometric(beta=4.6)", "window(share=0.4145)"
STEEP, NARROW = "truncated_geometric(beta=20)", "window(share=0.1)"
# Mean ages are alike in a pair, to 1e-3 of what is stored; the geometric one has the larger entropy.
MATCHED = ((GEOMETRIC, WINDOW), (STEEP, NARROW))
OTHERS = ("newest_mixture(share=0.5)", "linear", "emphasising_recent", "proportional")


@dataclass(frozen=True)
class Setting:
    """One agent in one environment, over volumes and samplers."""

    name: str
    agent: Any
    env: str
    num_envs: int
    iterations: int
    cells: tuple[tuple[int, int, tuple[str, ...], int], ...]  # (batch size, updates, samplers, seeds)
    column: str = "eval/return"
    options: dict[str, str] = field(default_factory=dict)
    warmup: int = 0
    episodes: int = 16


CPU = (
    Setting(
        "frontier",
        dqn.Config(1e-3, 0.97, epsilon_start=0.1, epsilon_end=0.1, tau=0.02, hidden_sizes=(64, 64)),
        "toy:lock",
        num_envs=16,
        iterations=3000,
        cells=(
            (16, 1, (UNIFORM, GEOMETRIC, WINDOW, STEEP, NARROW, *OTHERS), 24),
            (64, 1, (UNIFORM, GEOMETRIC, WINDOW, STEEP, NARROW), 24),
            (256, 1, (UNIFORM, GEOMETRIC, WINDOW), 12),
            (256, 4, (UNIFORM, GEOMETRIC), 12),
            (16, 4, (UNIFORM, GEOMETRIC), 12),
            (16, 16, (UNIFORM, GEOMETRIC), 12),
        ),
    ),
    Setting(
        "pendulum",
        td3.Config(actor_learning_rate=1e-3, critic_learning_rate=1e-3, hidden_sizes=(64, 64)),
        "gymnax:Pendulum-v1",
        num_envs=64,
        iterations=1500,
        cells=((128, 1, (UNIFORM, GEOMETRIC, WINDOW), 8), (128, 4, (UNIFORM, GEOMETRIC), 8)),
        warmup=1024,
    ),
    Setting(
        "single",
        simba_v2.Config(1e-3, 1e-3, 1e-3, actor_width=32, critic_width=64, critic_blocks=1, followed_envs=64),
        "gymnax:Pendulum-v1",
        num_envs=16,
        iterations=1500,
        cells=((64, 1, (UNIFORM, GEOMETRIC), 8), (64, 4, (UNIFORM, GEOMETRIC), 8)),
        warmup=1024,
    ),
    Setting(
        "parallel",
        fast_td3.Config(
            actor_hidden_sizes=(64, 64), critic_hidden_sizes=(64, 64), value_min=0.0, value_max=120.0, num_bins=51
        ),
        "brax:inverted_pendulum",
        num_envs=64,
        iterations=600,
        cells=((256, 1, (UNIFORM, GEOMETRIC), 8), (256, 4, (UNIFORM, GEOMETRIC), 8)),
        warmup=1024,
        episodes=4,
    ),
    Setting(
        "tasks",
        brc.Config(
            num_tasks=8, embedding_size=8, critic_width=64, critic_depth=1, actor_width=64, episode_length=40,
            actor_learning_rate=1e-3, critic_learning_rate=1e-3,
        ),
        "point:MT8",
        num_envs=64,
        iterations=1500,
        cells=((128, 1, (UNIFORM, GEOMETRIC), 8), (128, 4, (UNIFORM, GEOMETRIC), 8)),
        column="eval/success",
        warmup=2048,
        episodes=32,
    ),
)  # fmt: skip

# Published sizes: FastTD3 for large parallel simulation, SimbaV2 for a single task, BRC for many tasks.
LADDER = (UNIFORM, GEOMETRIC, WINDOW, STEEP, NARROW)
PAPER = (
    *(setting for setting in CPU if setting.name == "frontier"),
    Setting(
        "parallel", fast_td3.Config(), "brax:humanoid", 4096, 25_000,
        tuple((batch, 2, LADDER, 8) for batch in (2048, 8192, 32_768)), warmup=40_960, episodes=64,
    ),
    Setting(
        "single", simba_v2.Config(), "brax:halfcheetah", 8, 125_000,
        tuple((batch, 8, LADDER, 10) for batch in (16, 64, 256)), warmup=5000,
    ),
    Setting(
        "tasks", brc.Config(num_tasks=10, episode_length=100), "arm:MT10", 10, 100_000,
        tuple((batch, 2, LADDER, 10) for batch in (64, 256, 1024)), column="eval/success", warmup=5000, episodes=100,
    ),
)  # fmt: skip
