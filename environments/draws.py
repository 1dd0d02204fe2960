"""Draws for domain randomisation: pure functions ``(key, system) -> system`` on a Brax system.

They work on all four back ends, which read different fields: MJX reads MuJoCo's (``body_mass``, ``actuator_gear``), the
others Brax's (``link.inertia.mass``, ``actuator.gear``), and all read ``geom_friction``. Factors may be traced, so that
``scale_mass(factor, factor, shared=True)`` under ``vmap`` covers a grid.

The positional and spring back ends do not use masses as they stand, but ``mass ** (1 - spring_mass_scale)``, which is 1
for every link of ``ant``, ``hopper`` and ``pusher``; inertias likewise. :func:`effective_system` carries this out, so
that doubling a mass doubles what is moved.

No draw touches ``invweight``, which sets how soft MuJoCo's constraints are; it keeps its nominal value.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.errors import UsageError
from jaxrl.types import Array, Key

Draw: TypeAlias = Callable[[Key, Any], Any]


def effective_system(system: Any, backend: str) -> Any:
    """The same physics with masses and inertias as the back end really uses them.

    On ``positional`` and ``spring`` the exponents ``1 - spring_mass_scale`` of the masses and ``1 -
    spring_inertia_scale`` of the diagonals of the inertias are carried out and the scales set to 0; on the other two
    the system is returned as it is.
    """
    if backend not in ("positional", "spring"):
        return system
    inertia = system.link.inertia
    diagonal = jnp.diagonal(inertia.i, axis1=-2, axis2=-1) ** (1 - system.spring_inertia_scale)
    return system.tree_replace(
        {
            "link.inertia.mass": inertia.mass ** (1 - system.spring_mass_scale),
            "link.inertia.i": diagonal[..., None] * jnp.eye(3, dtype=diagonal.dtype),
            "spring_mass_scale": jnp.zeros_like(system.spring_mass_scale),
            "spring_inertia_scale": jnp.zeros_like(system.spring_inertia_scale),
        }
    )


def chain(*draws: Draw) -> Draw:
    """One draw after the other, each with a key of its own."""
    if not draws:
        raise UsageError("chain needs at least one draw, such as scale_mass(0.8, 1.2)")
    return partial(_chain, draws)


def scale_mass(low: float, high: float, shared: bool = False) -> Draw:
    """Multiply the mass and the inertia of every link by a factor, uniform in [low, high].

    One factor a link, or one for all if ``shared``. The shape and the centre of mass stay.
    """
    return partial(_scale_mass, *_interval("scale_mass", low, high), shared)


def scale_gear(low: float, high: float, shared: bool = False) -> Draw:
    """Multiply the gear of every actuator, its force on the joint after any force limit, by a factor in [low, high]."""
    return partial(_scale_gear, *_interval("scale_gear", low, high), shared)


def scale_gain(low: float, high: float, shared: bool = False) -> Draw:
    """Multiply the gain of every actuator, its force before any force limit, by a factor in [low, high]."""
    return partial(_scale_gain, *_interval("scale_gain", low, high), shared)


def scale_friction(low: float, high: float, shared: bool = True) -> Draw:
    """Multiply the sliding friction of every geom by a factor in [low, high], one for all unless ``shared`` is false.

    A contact has the larger friction of its two geoms.
    """
    return partial(_scale_friction, *_interval("scale_friction", low, high), shared)


def _interval(what: str, low: float, high: float) -> tuple[float, float]:
    if any(isinstance(bound, jax.core.Tracer) for bound in (low, high)):
        return low, high  # a value that nobody knows yet
    if not 0 < low <= high < float("inf"):
        raise UsageError(f"{what} needs 0 < low <= high, got low={low}, high={high}; (0.8, 1.2) is a usual choice")
    return float(low), float(high)


def _factors(key: Key, low: float, high: float, shared: bool, count: int) -> Array:
    """float32 [count] in [low, high]. Written so that low = high = 1 gives 1 exactly."""
    uniform = jax.random.uniform(key, (1 if shared else count,))
    return jnp.broadcast_to(low + (high - low) * uniform, (count,))


def _chain(draws: tuple[Draw, ...], key: Key, system: Any) -> Any:
    for draw, draw_key in zip(draws, jax.random.split(key, len(draws)), strict=True):
        system = draw(draw_key, system)
    return system


def _scale_mass(low: float, high: float, shared: bool, key: Key, system: Any) -> Any:
    inertia = system.link.inertia
    factors = _factors(key, low, high, shared, inertia.mass.shape[0])
    bodies = jnp.concatenate([jnp.ones(1), factors])  # MuJoCo's first body is the world
    mass = system.body_mass * bodies
    return system.tree_replace(
        {
            "link.inertia.mass": inertia.mass * factors,
            "link.inertia.i": inertia.i * factors[:, None, None],
            "body_mass": mass,
            "body_inertia": system.body_inertia * bodies[:, None],
            # The change is summed, not the mass, so that a factor of 1 leaves every bit as it was.
            "body_subtreemass": system.body_subtreemass
            + _subtree_sum(np.asarray(system.body_parentid), mass - system.body_mass),
        }
    )


def _subtree_sum(parent: np.ndarray, mass: Array) -> Array:
    """Over each body and all that hangs on it. MuJoCo numbers parents before children."""
    for body in range(len(parent) - 1, 0, -1):
        mass = mass.at[parent[body]].add(mass[body])
    return mass


def _scale_gear(low: float, high: float, shared: bool, key: Key, system: Any) -> Any:
    gear = system.actuator.gear
    factors = _factors(key, low, high, shared, gear.shape[0])
    return system.tree_replace(
        {"actuator.gear": gear * factors, "actuator_gear": system.actuator_gear * factors[:, None]}
    )


def _scale_gain(low: float, high: float, shared: bool, key: Key, system: Any) -> Any:
    gain, parameters = system.actuator.gain, system.actuator_gainprm
    factors = _factors(key, low, high, shared, gain.shape[0])
    return system.tree_replace(
        {"actuator.gain": gain * factors, "actuator_gainprm": parameters.at[:, 0].multiply(factors)}
    )


def _scale_friction(low: float, high: float, shared: bool, key: Key, system: Any) -> Any:
    friction = system.geom_friction
    factors = _factors(key, low, high, shared, friction.shape[0])
    return system.tree_replace({"geom_friction": friction.at[:, 0].multiply(factors)})
