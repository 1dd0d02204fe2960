"""Dynamical systems in pure JAX with known answers: data for forecasting and for Koopman operators.

system = dynamics.make("kuramoto_sivashinsky", interval=2.0)
fields = dynamics.trajectory(system, jax.random.key(0), length=100, burn_in=200)  # [100, 128]
"""

import inspect
from collections.abc import Callable

from environments.dynamics.base import System, advance, observed, trajectory
from environments.dynamics.rings import kuramoto_sivashinsky, ring
from environments.dynamics.small import linear, lorenz96, slow_manifold
from environments.dynamics.vorticity import BarotropicState, barotropic
from jaxrl.errors import UsageError, unknown

_FACTORIES: dict[str, Callable[..., System]] = {
    "barotropic": barotropic,
    "kuramoto_sivashinsky": kuramoto_sivashinsky,
    "linear": linear,
    "lorenz96": lorenz96,
    "ring": ring,
    "slow_manifold": slow_manifold,
}


def names() -> list[str]:
    """Every system that :func:`make` knows."""
    return sorted(_FACTORIES)


def make(name: str, **kwargs) -> System:
    """The system of that name; keyword arguments are its factory's.

    Raises:
        UsageError: for a name or an argument that it does not have.
    """
    if name not in _FACTORIES:
        raise unknown("system", name, _FACTORIES)
    accepted = inspect.signature(_FACTORIES[name]).parameters
    for given in kwargs:
        if given not in accepted:
            raise UsageError(f"{name} takes no '{given}'; it takes {', '.join(accepted)}")
    return _FACTORIES[name](**kwargs)


__all__ = [
    "BarotropicState",
    "System",
    "advance",
    "barotropic",
    "kuramoto_sivashinsky",
    "linear",
    "lorenz96",
    "make",
    "names",
    "observed",
    "ring",
    "slow_manifold",
    "trajectory",
]
