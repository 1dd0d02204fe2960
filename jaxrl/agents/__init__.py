"""Agents by name. A module is imported when its agent is asked for.

An agent's module holds ``Config``, ``State`` and ``make(config, observation_space, action_space, optimizer)``.
"""

import dataclasses
import importlib
from types import ModuleType
from typing import Any

from jaxrl.agents.base import Agent, OptimizerFactory, optimizer_factory
from jaxrl.checks import check_numbers
from jaxrl.errors import UsageError, unknown
from jaxrl.spaces import Space

# name -> module; an entry added here is known everywhere, and its agent passes through the conformance tests.
AGENTS: dict[str, str] = {
    "brc": "jaxrl.agents.brc",
    "dqn": "jaxrl.agents.dqn",
    "fast_td3": "jaxrl.agents.fast_td3",
    "multi_task_ppo": "jaxrl.agents.multi_task_ppo",
    "ppo": "jaxrl.agents.ppo",
    "sac": "jaxrl.agents.sac",
    "simba_v2": "jaxrl.agents.simba_v2",
    "td3": "jaxrl.agents.td3",
}


def names() -> tuple[str, ...]:
    """Every registered agent, in alphabetical order."""
    return tuple(sorted(AGENTS))


def config_class(name: str) -> type:
    """The ``Config`` of an agent.

    Raises:
        UsageError: for an unknown name, with the nearest known one.
    """
    return _module(name).Config


def make_agent(agent: Any, observation_space: Space, action_space: Space, optimizer: Any = None) -> Agent:
    """An agent for an environment's spaces.

    Args:
        agent: a name, for that agent's defaults, or an instance of an agent's ``Config``.
        optimizer: any optax transformation, or a function from the learning rate to one; None for the agent's own.

    Raises:
        UsageError: for an unknown agent, spaces that do not fit it, or a configuration that cannot work.
    """
    if isinstance(agent, str):
        module = _module(agent)
        return module.make(module.Config(), observation_space, action_space, optimizer)
    if not dataclasses.is_dataclass(agent) or isinstance(agent, type) or type(agent).__module__ not in AGENTS.values():
        raise UsageError(f"expected an agent's name or configuration, got {agent!r}; agents are {', '.join(names())}")
    check_numbers(name_of(agent), agent)
    return importlib.import_module(type(agent).__module__).make(agent, observation_space, action_space, optimizer)


def name_of(config: Any) -> str:
    """The name under which a configuration's agent is registered."""
    return next(name for name, module in AGENTS.items() if module == type(config).__module__)


def is_on_policy(name: str) -> bool:
    """Whether an agent learns from rollouts of its own policy, or from replayed transitions."""
    return getattr(_module(name), "ON_POLICY", False)


def _module(name: str) -> ModuleType:
    if name not in AGENTS:
        raise unknown("agent", name, AGENTS)
    return importlib.import_module(AGENTS[name])


__all__ = [
    "AGENTS",
    "Agent",
    "OptimizerFactory",
    "config_class",
    "is_on_policy",
    "make_agent",
    "name_of",
    "names",
    "optimizer_factory",
]
