"""Waves on a ring: dispersive advection, which is exactly linear, and the Kuramoto–Sivashinsky equation, which is chaotic."""

import math
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from environments.dynamics.base import System, complex_normal, even, finite, not_negative, positive, repeated, substeps
from jaxrl.checks import positive_int
from jaxrl.errors import UsageError
from jaxrl.types import Array, Key

# --- dispersive advection ---------------------------------------------------------------------------------------------


def ring(
    points: int = 64,
    speed: float = 1.0,
    dispersion: float = 1e-3,
    modes: int = 20,
    slope: float = 1.0,
    interval: float = 0.1,
) -> System:
    """``u_t + speed u_x + dispersion u_xxx = 0`` on a ring of circumference 2π, solved exactly.

    A mode ``exp(ikx)`` turns by ``exp(-iω dt)`` with ``ω = speed k - dispersion k³``, so the L2 norm never changes. A start
    has independent complex normal amplitudes in modes 1 to ``modes`` that fall off as ``k^-slope``, scaled so that the mean
    square of the field is 1 on average.

    The state is the ``numpy.fft.rfft`` of the field, complex ``[points/2 + 1]``; the observation the field ``[points]``.

    Raises:
        UsageError: for an odd number of points, or for more modes than the points resolve.
    """
    points = even(points, "ring points", 4)
    modes = positive_int(modes, "ring modes")
    if modes >= points // 2:
        raise UsageError(f"{points} points resolve {points // 2 - 1} modes, got modes {modes}")
    positive(interval, "ring interval")
    speed, dispersion = finite(speed, "ring speed"), finite(dispersion, "ring dispersion")
    slope = finite(slope, "ring slope")
    wavenumber = np.arange(points // 2 + 1)
    amplitude = np.zeros(points // 2 + 1)
    amplitude[1 : modes + 1] = wavenumber[1 : modes + 1] ** -slope
    # The mean square of a field is 2 Σ|û_k|²/points², and a complex normal draw has a mean square of 2.
    amplitude *= points / np.sqrt(4.0 * np.sum(amplitude**2))
    turn = np.exp(-1j * ring_frequencies(points, speed, dispersion) * interval)
    return System(
        "ring",
        partial(_draw_modes, amplitude),
        partial(_turn, turn),
        partial(jnp.fft.irfft, n=points),
        float(interval),
    )


def ring_frequencies(points: int, speed: float, dispersion: float) -> np.ndarray:
    """``ω(k)`` for ``k = 0 … points/2``, in radians per unit of time."""
    wavenumber = np.arange(points // 2 + 1, dtype=np.float64)
    return speed * wavenumber - dispersion * wavenumber**3


def _draw_modes(amplitude: np.ndarray, key: Key) -> Array:
    return jnp.asarray(amplitude) * complex_normal(key, amplitude.shape)


def _turn(turn: np.ndarray, state: Array) -> Array:
    return jnp.asarray(turn, state.dtype) * state


# --- Kuramoto–Sivashinsky ---------------------------------------------------------------------------------------------


RESOLVED = 2.0  # waves shorter than wavenumber 1 are damped; without those up to 2 the energy has nowhere to go


class ExponentialScheme(NamedTuple):
    """Coefficients of ETDRK4, one for each mode of a diagonal linear part; float64 NumPy."""

    whole: np.ndarray  # exp(L dt)
    half: np.ndarray  # exp(L dt / 2)
    stage: np.ndarray  # dt φ1(L dt / 2) / 2
    first: np.ndarray  # the weights of the four stages
    middle: np.ndarray
    last: np.ndarray


def exponential_scheme(linear: np.ndarray, dt: float, contour: int = 32) -> ExponentialScheme:
    """ETDRK4 (Cox and Matthews 2002) with its coefficients as means over a circle around each ``L dt``.

    The direct formulas cancel where ``L dt`` is near 0; a mean over a contour does not (Kassam and Trefethen 2005).

    Args:
        linear: real eigenvalues of the linear part, ``[modes]``.
        contour: points on the upper half of the circle; the mean over the lower half is the conjugate.
    """
    roots = np.exp(1j * np.pi * (np.arange(1, contour + 1) - 0.5) / contour)
    z = dt * np.asarray(linear, np.float64)[:, None] + roots[None]
    exp_z, z3 = np.exp(z), z**3

    def mean(values: np.ndarray) -> np.ndarray:
        return dt * np.real(np.mean(values, -1))

    return ExponentialScheme(
        whole=np.exp(dt * linear),
        half=np.exp(0.5 * dt * linear),
        stage=mean((np.exp(0.5 * z) - 1.0) / z),
        first=mean((-4.0 - z + exp_z * (4.0 - 3.0 * z + z**2)) / z3),
        middle=mean(2.0 * (2.0 + z + exp_z * (z - 2.0)) / z3),
        last=mean((-4.0 - 3.0 * z - z**2 + exp_z * (4.0 - z)) / z3),
    )


def etdrk4(scheme: ExponentialScheme, nonlinear, state: Array) -> Array:
    """One step of ETDRK4 for ``dv/dt = L v + nonlinear(v)``; ``state`` is ``v`` in the basis in which ``L`` is diagonal."""
    whole, half, stage, first, middle, last = (jnp.asarray(part, state.real.dtype) for part in scheme)
    at_start = nonlinear(state)
    a = half * state + stage * at_start
    at_a = nonlinear(a)
    b = half * state + stage * at_a
    at_b = nonlinear(b)
    c = half * a + stage * (2.0 * at_b - at_start)
    return whole * state + first * at_start + middle * (at_a + at_b) + last * nonlinear(c)


def kuramoto_sivashinsky(
    points: int = 128, length: float = 64.0, dt: float = 0.25, interval: float = 1.0, amplitude: float = 0.1
) -> System:
    """``u_t = -u u_x - u_xx - u_xxxx`` on a ring of circumference ``length``, by ETDRK4 in Fourier space.

    The mean of the field never changes and is 0. With ``length`` 64 it is chaotic; give a burn-in of about 200 time units.
    The state is the ``rfft`` of the field, complex ``[points/2 + 1]``; the observation the field ``[points]``.

    Args:
        amplitude: root mean square of a start on average; it is random in modes 1 to 8.
    Raises:
        UsageError: for an odd number of points or too few for the length, or an interval that is not a multiple of ``dt``.
    """
    points = even(points, "kuramoto_sivashinsky points", 32)
    positive(length, "kuramoto_sivashinsky length")
    needed = 2 * math.ceil(RESOLVED * length / (2 * math.pi))
    if points < needed:
        raise UsageError(f"{points} points do not resolve a length of {length:g}; use at least {needed}")
    steps = substeps(interval, dt, "kuramoto_sivashinsky")
    not_negative(amplitude, "kuramoto_sivashinsky amplitude")
    wavenumber = 2.0 * np.pi / length * np.arange(points // 2 + 1)
    scheme = exponential_scheme(wavenumber**2 - wavenumber**4, dt)
    start = np.zeros(points // 2 + 1)
    start[1:9] = amplitude * points / np.sqrt(4.0 * 8.0)
    slope = -0.5j * wavenumber
    slope[-1] = 0.0  # the highest mode of a real field has no derivative on the grid
    step = partial(etdrk4, scheme, partial(_half_slope_of_square, slope, points))
    return System(
        "kuramoto_sivashinsky",
        partial(_draw_modes, start),
        partial(repeated, step, times=steps),
        partial(jnp.fft.irfft, n=points),
        float(interval),
    )


def _half_slope_of_square(slope: np.ndarray, points: int, state: Array) -> Array:
    """``-(u²)_x / 2`` in Fourier space."""
    field = jnp.fft.irfft(state, n=points)
    return jnp.asarray(slope, state.dtype) * jnp.fft.rfft(field * field)
