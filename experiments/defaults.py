"""Settings that work, by agent and environment. A flag overrides any of them."""

import dataclasses
from typing import Any

from experiments.configs import Train, loop_class
from jaxrl import agents

AGENT = "ppo"


def environment_for(agent: str) -> str:
    """Where an agent is tried first."""
    return {"dqn": "gymnax:CartPole-v1", "sac": "gymnax:Pendulum-v1", "td3": "gymnax:Pendulum-v1"}.get(
        agent, "brax:inverted_pendulum"
    )


# Networks as large as small problems need: on a CPU the wide ones of the papers cost ten times as much for the same.
SMALL = {"hidden_sizes": (64, 64), "actor_learning_rate": 1e-3}

# (agent, environment) -> settings that differ from the classes' own, found by running them.
TUNED: dict[tuple[str, str], dict[str, Any]] = {
    ("ppo", "brax:inverted_pendulum"): {
        "agent": {"learning_rate": 1e-3, "minibatches": 8, "normalise_observations": True},
        "loop": {"num_envs": 64, "unroll": 32},
        "steps": 491_520,
        "anneal": True,
    },
    ("ppo", "brax:reacher"): {
        "agent": {
            "learning_rate": 1e-3,
            "minibatches": 8,
            "normalise_observations": True,
            "discount": 0.95,
        },
        "loop": {"num_envs": 128, "unroll": 32},
        "steps": 299_008,
        "anneal": True,
    },
    ("ppo", "gymnax:CartPole-v1"): {
        "agent": {"learning_rate": 1e-3, "minibatches": 8},
        "loop": {"num_envs": 16, "unroll": 64},
        "steps": 149_504,
        "anneal": True,
    },
    ("dqn", "gymnax:CartPole-v1"): {
        # A Huber loss as narrow as Atari's learns the median, which forgets that episodes can end.
        "agent": {
            "learning_rate": 2.5e-4,
            "hidden_sizes": (120, 84),
            "huber_delta": 1000.0,
            "target_period": 50,
            "epsilon_decay_steps": 100_000,
        },
        "loop": {"num_envs": 10, "batch_size": 128, "capacity": 10_000, "warmup": 10_000},
        "steps": 300_000,
    },
    ("sac", "gymnax:Pendulum-v1"): {
        "agent": {**SMALL, "critic_learning_rate": 1e-3},
        "loop": {"batch_size": 128},
        "steps": 20_000,
    },
    ("td3", "gymnax:Pendulum-v1"): {
        "agent": {**SMALL, "critic_learning_rate": 1e-3},
        "loop": {"batch_size": 128},
        "steps": 20_000,
    },
    ("sac", "brax:inverted_pendulum"): {
        "agent": {**SMALL, "critic_learning_rate": 1e-3, "normalise_observations": True},
        "loop": {"num_envs": 16, "updates": 8, "batch_size": 128, "warmup": 2_000},
        "steps": 100_000,
    },
    ("sac", "brax:reacher"): {
        "agent": {**SMALL, "critic_learning_rate": 1e-3, "normalise_observations": True, "discount": 0.95},
        "loop": {"num_envs": 32, "updates": 16, "batch_size": 128, "warmup": 4_000},
        "steps": 64_000,
    },
}

STEPS = {"ppo": 1_000_000, "dqn": 200_000, "sac": 100_000, "td3": 100_000}


def for_run(agent: str, env: str) -> Train:
    """The settings for an agent in an environment; the agent's own defaults where none were found by trying."""
    tuned = TUNED.get((agent, env), {})
    return Train(
        agent=dataclasses.replace(agents.config_class(agent)(), **tuned.get("agent", {})),
        loop=dataclasses.replace(loop_class(agent)(), **tuned.get("loop", {})),
        env=env,
        steps=tuned.get("steps", STEPS.get(agent, 1_000_000)),
        anneal=tuned.get("anneal", False),
    )
