"""Refusals that the wrappers share."""

from typing import Any

from environments.base import Environment
from jaxrl.errors import UsageError


def require_environment(env: Any, wrapper: str) -> None:
    """Refuse anything that is not a pure environment, such as one that steps on the host."""
    if not isinstance(env, Environment):
        raise UsageError(f"{wrapper} wraps an Environment, got {type(env).__name__}; see environments.make")


def require_single(env: Environment, wrapper: str) -> None:
    """Refuse a vectorised environment."""
    require_environment(env, wrapper)
    if env.num_envs is not None:
        raise UsageError(
            f"{wrapper} wraps a single environment, '{env.name}' is vectorised (num_envs={env.num_envs}); "
            f"apply {wrapper} before vectorise, and vectorise once"
        )


def require_vectorised(env: Environment, wrapper: str) -> None:
    """Refuse a single environment."""
    require_environment(env, wrapper)
    if env.num_envs is None:
        raise UsageError(f"{wrapper} wraps a vectorised environment, '{env.name}' is single; apply vectorise first")
