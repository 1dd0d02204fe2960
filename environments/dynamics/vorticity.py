"""The barotropic vorticity equation on a rotating sphere: the smallest model of weather, with pattern and chaos.

``∂ζ/∂t = -J(ψ, ζ + 2Ω sin φ) - drag ζ - ν (-Δ)^4 ζ + forcing``, ``Δψ = ζ``. Lengths are in radii of the planet and times in
days, so ``Ω = 2π``. A wind of 20 m/s on the Earth is 0.27 radii a day.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from environments.dynamics.base import System, complex_normal, finite, not_negative, repeated, rk4, substeps
from environments.dynamics.harmonics import (
    Sphere,
    analyse,
    at_points,
    degrees,
    longitude_slope,
    points_matrix,
    power,
    sphere,
    synthesise,
)
from jaxrl.checks import positive_int
from jaxrl.errors import UsageError
from jaxrl.types import Array, Key

ROTATION = 2.0 * np.pi  # radians a day


class BarotropicState(NamedTuple):
    vorticity: Array  # complex [m, l], coefficients of the relative vorticity, per day
    key: Key  # of the forcing to come


class Flow(NamedTuple):
    """What the tendency needs besides the vorticity."""

    grid: Sphere
    rotation: float  # radians a day
    damping: np.ndarray  # [1, l], per day: drag and hyperviscosity


def barotropic(
    truncation: int = 21,
    dt: float = 0.0625,
    interval: float = 0.25,
    rotation: float = ROTATION,
    drag: float = 0.0,
    hyperviscosity: float = 0.0,
    forcing: float = 0.0,
    forced: tuple[int, int] = (4, 8),
    vorticity: float = 2.0,
    start: tuple[int, int] = (2, 8),
    points: tuple[np.ndarray, np.ndarray] | None = None,
) -> System:
    """The equation at a triangular truncation, by fourth-order Runge–Kutta; sampled every six hours.

    Without drag, hyperviscosity and forcing the truncated equation conserves energy and enstrophy exactly; only the time
    step does not.

    Args:
        drag: per day.
        hyperviscosity: per day at the truncation, ``ν (T (T + 1))^4``.
        forcing: standard deviation of the vorticity that random forcing puts in within one day, per day. It is white in
            time, spread evenly over the coefficients of degrees ``forced`` (both included), and applied once each ``dt``.
        vorticity: root mean square of the vorticity of a start on average, per day, spread evenly over the coefficients
            of degrees ``start``.
        points: latitudes and longitudes ``[points]`` in radians at which the vorticity is seen; the Gaussian grid if not
            given.
    Returns:
        A system whose state is :class:`BarotropicState` and whose observation is the relative vorticity per day,
        ``[latitudes, longitudes]`` or ``[points]``.
    Raises:
        UsageError: for degrees outside 1 to the truncation, negative rates, or an interval that is not a multiple of dt.
    """
    grid = sphere(positive_int(truncation, "barotropic truncation"))
    steps = substeps(interval, dt, "barotropic")
    flow = Flow(grid, finite(rotation, "barotropic rotation"), damping_rates(truncation, drag, hyperviscosity))
    forcing, vorticity = not_negative(forcing, "forcing"), not_negative(vorticity, "vorticity")
    pushed = None if forcing == 0 else forcing * np.sqrt(dt) * band(grid, forced, "forced")
    observe = partial(_observe_grid, grid)
    if points is not None:
        observe = partial(_observe_points, points_matrix(truncation, *points))
    return System(
        f"barotropic_t{truncation}",
        partial(_initial, vorticity * band(grid, start, "start")),
        partial(repeated, partial(_step, flow, pushed, dt), times=steps),
        observe,
        float(interval),
    )


def damping_rates(truncation: int, drag: float, hyperviscosity: float) -> np.ndarray:
    """``drag + ν (l (l + 1))^4`` for each degree, ``[1, l]``, per day."""
    not_negative(drag, "drag")
    not_negative(hyperviscosity, "hyperviscosity")
    laplacian = degrees(truncation) * (degrees(truncation) + 1)
    return drag + hyperviscosity * (laplacian / (truncation * (truncation + 1))) ** 4


def band(grid: Sphere, between: tuple[int, int], what: str) -> np.ndarray:
    """Amplitudes ``[m, l]`` for complex normal draws that give a field of mean square 1 in these degrees.

    A zonal coefficient is real: its amplitude counts once and the others' four times (two parts, and ``-m``).
    """
    low, high = between
    if not 1 <= low <= high <= grid.truncation:
        raise UsageError(f"{what} needs degrees 1 <= low <= high <= {grid.truncation}, got {tuple(between)}")
    chosen = grid.mask & (degrees(grid.truncation) >= low) & (degrees(grid.truncation) <= high)
    orders = np.arange(grid.truncation + 1)[:, None]
    amplitude = chosen * np.where(orders == 0, 1.0, np.sqrt(0.5))
    return amplitude / np.sqrt(np.sum(amplitude**2 * np.where(orders == 0, 1.0, 4.0)))


def _draw(amplitude: np.ndarray, key: Key) -> Array:
    drawn = jnp.asarray(amplitude) * complex_normal(key, amplitude.shape)
    return drawn.at[0].set(drawn[0].real)


def _initial(amplitude: np.ndarray, key: Key) -> BarotropicState:
    start_key, key = jax.random.split(key)
    return BarotropicState(_draw(amplitude, start_key), key)


def _step(flow: Flow, pushed: np.ndarray | None, dt: float, state: BarotropicState) -> BarotropicState:
    after = rk4(partial(tendency, flow), state.vorticity, dt)
    if pushed is None:
        return BarotropicState(after, state.key)
    forcing_key, key = jax.random.split(state.key)
    return BarotropicState(after + _draw(pushed, forcing_key), key)


def tendency(flow: Flow, vorticity: Array) -> Array:
    """``∂ζ/∂t`` without the random forcing, complex ``[..., m, l]``, per day²."""
    return advection(flow, vorticity) - jnp.asarray(flow.damping, vorticity.real.dtype) * vorticity


def advection(flow: Flow, vorticity: Array) -> Array:
    """``-J(ψ, ζ + 2Ω sin φ)``; ``J = ∂ψ/∂λ ∂q/∂μ - ∂ψ/∂μ ∂q/∂λ`` on the unit sphere, ``μ = sin φ``.

    The planetary part is linear, ``-2Ω ∂ψ/∂λ``, and is taken in the space of coefficients.
    """
    grid, psi = flow.grid, stream_function(vorticity)
    both = jnp.stack([psi, vorticity])
    psi_lon, zeta_lon = synthesise(grid, longitude_slope(both))
    psi_mu, zeta_mu = synthesise(grid, both, grid.slopes)  # times (1 - μ²)
    product = psi_lon * zeta_mu - psi_mu * zeta_lon
    cos_squared = jnp.asarray(np.cos(grid.latitudes)[:, None] ** 2, product.dtype)
    jacobian = analyse(grid, product / cos_squared) * grid.mask
    return -jacobian - 2.0 * flow.rotation * longitude_slope(psi)


def stream_function(vorticity: Array) -> Array:
    """``ψ`` with ``Δψ = ζ`` and mean 0: ``-ζ_ml / (l (l + 1))``."""
    degree = np.arange(vorticity.shape[-1], dtype=np.float64)
    inverse = np.where(degree > 0, -1.0 / np.maximum(degree * (degree + 1), 1.0), 0.0)
    return jnp.asarray(inverse, vorticity.real.dtype) * vorticity


def energy(vorticity: Array) -> Array:
    """Mean kinetic energy ``-½ mean(ψ ζ)``, in radii² a day². ``[..., m, l] -> [...]``."""
    degree = jnp.arange(vorticity.shape[-1], dtype=vorticity.real.dtype)
    return 0.5 * jnp.sum(power(vorticity)[..., 1:] / (degree * (degree + 1))[1:], -1)


def enstrophy(vorticity: Array) -> Array:
    """``½ mean(ζ²)``, per day². ``[..., m, l] -> [...]``."""
    return 0.5 * jnp.sum(power(vorticity), -1)


def rossby_haurwitz(
    truncation: int, degree: int, order: int, amplitude: float, solid: float, rotation: float = ROTATION
) -> tuple[np.ndarray, float]:
    """A wave of one degree on solid-body rotation: it turns without changing its shape (Haurwitz 1940).

    Args:
        amplitude: of the wave's one coefficient of vorticity, per day.
        solid: angular velocity of the solid rotation, radians a day.
    Returns:
        Vorticity coefficients ``[m, l]``, and the angular velocity of the pattern in radians a day,
        ``solid - 2 (Ω + solid) / (l (l + 1))``.
    """
    if not 1 <= order <= degree <= truncation or degree < 2:
        raise UsageError(f"a wave needs 2 <= degree <= {truncation}, 1 <= order <= degree, got {degree}, {order}")
    vorticity = np.zeros((truncation + 1, truncation + 1), np.complex128)
    vorticity[0, 1] = 2.0 * solid / np.sqrt(3.0)  # ζ = 2 solid sin φ, and P_10 = √3 sin φ
    vorticity[order, degree] = amplitude
    return vorticity, solid - 2.0 * (rotation + solid) / (degree * (degree + 1))


def _observe_grid(grid: Sphere, state: BarotropicState) -> Array:
    return synthesise(grid, state.vorticity)


def _observe_points(matrix: np.ndarray, state: BarotropicState) -> Array:
    return at_points(matrix, state.vorticity)
