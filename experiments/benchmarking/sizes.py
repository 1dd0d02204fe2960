"""The sizes of the speed benchmark, the same for every side."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

Preset = Literal["smoke", "cpu"]


@dataclass(frozen=True)
class Sizes:
    """What is trained, and how much of it."""

    num_envs: int = 64
    """PPO on CartPole: environments."""
    unroll: int = 128
    """Steps of each before an update."""
    epochs: int = 4
    """Passes over a rollout."""
    minibatches: int = 8
    """Gradient steps in a pass."""
    ppo_hidden: tuple[int, ...] = (64, 64)
    """Hidden layers of policy and critic, with tanh."""
    ppo_learning_rate: float = 1e-3
    """Adam's, constant."""
    entropy: float = 0.01
    """Weight of the entropy bonus."""
    ppo_budget: int = 60
    """Iterations after which a side has not reached the return."""
    ppo_every: int = 2
    """Iterations between two evaluations on the way there."""
    target_return: float = 475.0
    """The interquartile mean over seeds that is reached."""
    seeds: int = 8
    """Members of the population, and seeds of a learning curve."""
    sac_hidden: tuple[int, ...] = (256, 256)
    """Hidden layers of policy and critics, with relu."""
    sac_learning_rate: float = 1e-3
    """Adam's, of policy, critics and temperature."""
    batch_size: int = 256
    """Transitions in an update of SAC."""
    capacity: int = 100_000
    """Rows of SAC's storage."""
    warmup: int = 1_000
    """Steps before the first update of SAC."""
    observation: int = 17
    """Numbers in an observation, where updates alone are timed."""
    action: int = 6
    """Numbers in an action there."""
    pool: int = 32
    """Batches that lie ready there."""
    sac_every: int = 1_000
    """Steps between the points of SAC's learning curve."""
    sac_points: int = 6
    """Points of that curve."""
    sac_seeds: int = 3
    """Seeds of that curve."""
    episodes: int = 16
    """Episodes of an evaluation."""
    loop_iterations: int = 100
    """Iterations of PPO that are run with and without logging and evaluation; 50 rows and 10 evaluations."""
    saved_rows: int = 2**17
    """Rows of replay in the checkpoint that is timed."""
    most_seeds: int = 64
    """The largest population of the growth curves."""
    most_envs: int = 2_048
    """The most environments of the growth curves."""
    most_rows: int = 10_000_000
    """The largest storage of the growth curves; what does not fit into a third of the memory is left out."""


SMOKE = Sizes(
    num_envs=8, unroll=16, epochs=1, minibatches=2, ppo_hidden=(8,), ppo_budget=2, ppo_every=1, seeds=2, sac_hidden=(16,),
    batch_size=16, capacity=512, warmup=32, pool=2, sac_every=16, sac_points=2, sac_seeds=2, episodes=2,
    loop_iterations=4, saved_rows=2**10, most_seeds=4, most_envs=32, most_rows=20_000, target_return=20.0,
)  # fmt: skip


def chosen(preset: Preset, changes: dict[str, Any]) -> Sizes:
    """The preset's sizes with some of them changed; None keeps what the preset says."""
    base = SMOKE if preset == "smoke" else Sizes()
    return dataclasses.replace(base, **{name: value for name, value in changes.items() if value is not None})
