"""The contract of a dynamical system that is only watched: a start, one sample interval, an observation."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.checks import int_from, positive_int
from jaxrl.errors import UsageError
from jaxrl.types import Array, Key, PyTree, check_key


class System(NamedTuple):
    """Pure functions; vectorise over many starts with ``jax.vmap``.

    ``initial`` draws a start, ``step`` advances it by one sample ``interval`` (a random system carries its key in the
    state), ``observe`` says what is seen of it. A start need not lie on the attractor: give :func:`trajectory` a burn-in.
    """

    name: str
    initial: Callable[[Key], PyTree]
    step: Callable[[PyTree], PyTree]
    observe: Callable[[PyTree], Array]
    interval: float  # time between two samples, in the units of the system


def trajectory(system: System, key: Key, length: int, burn_in: int = 0) -> Array:
    """What is seen of one run, ``[length, *observation]``; the first row is the state after ``burn_in`` samples.

    Raises:
        UsageError: for a length below 1, a negative burn-in or an untyped key.
    """
    check_key(key)
    positive_int(length, "length")
    int_from(burn_in, "burn_in", 0)
    return observed(system, system.initial(key), length, burn_in)


def observed(system: System, state: PyTree, length: int, burn_in: int = 0) -> Array:
    """:func:`trajectory` from a given state."""
    state = advance(system, state, burn_in)
    _, seen = jax.lax.scan(partial(_watch, system), state, length=length)
    return seen


def advance(system: System, state: PyTree, samples: int) -> PyTree:
    """The state after so many sample intervals."""
    return jax.lax.fori_loop(0, samples, lambda _, current: system.step(current), state)


def _watch(system: System, state: PyTree, _: None) -> tuple[PyTree, Array]:
    return system.step(state), system.observe(state)


def rk4(derivative: Callable[[Array], Array], state: Array, dt: float) -> Array:
    """One step of the classical Runge–Kutta method of fourth order.

    A loop over its stages: ``derivative`` is compiled once rather than four times.
    """
    ahead = jnp.asarray([0.0, 0.5 * dt, 0.5 * dt, dt], state.real.dtype)
    weight = jnp.asarray([dt / 6.0, dt / 3.0, dt / 3.0, dt / 6.0], state.real.dtype)
    start = (jnp.zeros_like(state), state)
    return jax.lax.scan(partial(_stage, derivative, state), start, (ahead, weight))[0][1]


def _stage(derivative: Callable, state: Array, carried: tuple[Array, Array], stage: tuple[Array, Array]):
    slope, total = carried
    slope = derivative(state + stage[0] * slope)
    return (slope, total + stage[1] * slope), None


def repeated(step: Callable[[Array], Array], state: Array, times: int) -> Array:
    """``step`` applied so many times."""
    return jax.lax.fori_loop(0, times, lambda _, current: step(current), state)


def complex_normal(key: Key, shape: tuple[int, ...]) -> Array:
    """Complex draws with independent standard normal parts, in the default precision."""
    parts = jax.random.normal(key, (2, *shape))
    return jax.lax.complex(parts[0], parts[1])


def positive(value: Any, what: str) -> float:
    """The value as a finite float above 0, or a refusal that names it."""
    return _number(value, what, "above 0", lambda number: number > 0)


def finite(value: Any, what: str) -> float:
    """The value as a finite float, or a refusal that names it."""
    return _number(value, what, "of any sign", lambda number: True)


def not_negative(value: Any, what: str) -> float:
    """The value as a finite float of at least 0, or a refusal that names it."""
    return _number(value, what, "at least 0", lambda number: number >= 0)


def _number(value: Any, what: str, rule: str, allowed: Callable[[float], bool]) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise UsageError(f"{what} must be a number {rule}, got {value!r}") from None
    if not math.isfinite(number) or not allowed(number):
        raise UsageError(f"{what} must be finite and {rule}, got {value!r}")
    return number


def substeps(interval: float, dt: float, what: str) -> int:
    """How many steps of ``dt`` make one interval; refuses a pair that does not divide."""
    positive(interval, f"{what} interval")
    positive(dt, f"{what} dt")
    steps = round(interval / dt)
    if steps < 1 or abs(steps * dt - interval) > 1e-9 * interval:
        nearest = interval / max(steps, 1)
        raise UsageError(f"{what} interval {interval:g} is not a multiple of dt {dt:g}; the nearest dt is {nearest:g}")
    return steps


def even(value: Any, what: str, least: int) -> int:
    """The value as an even int of at least ``least``, or a refusal that names it."""
    number = int_from(value, what, least)
    if number % 2:
        raise UsageError(f"{what} must be even, got {number}; {number + 1} works")
    return number
