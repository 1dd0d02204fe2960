"""Settings that work, by agent and environment. A flag overrides any of them."""

import dataclasses
from typing import Any

from experiments.setup import Train, loop_class
from jaxrl import agents

AGENT = "ppo"


def environment_for(agent: str) -> str:
    """Where an agent is tried first."""
    return {"dqn": "gymnax:CartPole-v1", "sac": "gymnax:Pendulum-v1", "td3": "gymnax:Pendulum-v1"}.get(
        agent, "brax:inverted_pendulum"
    )


# (agent, environment) -> settings that differ from the classes' own, found by running them.
TUNED: dict[tuple[str, str], dict[str, Any]] = {}

STEPS = {"ppo": 1_000_000, "dqn": 200_000, "sac": 100_000, "td3": 100_000}


def for_run(agent: str, env: str) -> Train:
    """The settings for an agent in an environment; the agent's own defaults where none were found by trying."""
    tuned = TUNED.get((agent, env), {})
    return Train(
        agent=dataclasses.replace(agents.config_class(agent)(), **tuned.get("agent", {})),
        loop=dataclasses.replace(loop_class(agent)(), **tuned.get("loop", {})),
        env=env,
        steps=tuned.get("steps", STEPS.get(agent, 1_000_000)),
    )
