"""Small systems: Lorenz's 1996 model of a latitude circle, a slow manifold with a known Koopman spectrum, linear maps."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from environments.dynamics.base import System, finite, not_negative, positive, repeated, rk4, substeps
from jaxrl.checks import positive_int
from jaxrl.errors import UsageError
from jaxrl.types import Array, Key


def lorenz96(variables: int = 40, forcing: float = 8.0, dt: float = 0.05, interval: float = 0.05) -> System:
    """``dx_i/dt = (x_{i+1} - x_{i-2}) x_{i-1} - x_i + forcing`` on a ring (Lorenz 1996), by fourth-order Runge–Kutta.

    Chaotic for 40 variables and forcing 8; 0.05 units of time are read as six hours. The quadratic part conserves
    ``Σ x²``. A start is the unstable fixed point ``x = forcing`` with noise of 0.01: give a burn-in of about 20 units.

    The state and the observation are ``[variables]``.
    """
    if positive_int(variables, "lorenz96 variables") < 4:
        raise UsageError(f"lorenz96 reaches two neighbours back and one ahead: at least 4 variables, got {variables}")
    forcing = finite(forcing, "lorenz96 forcing")
    steps = substeps(interval, dt, "lorenz96")
    step = partial(rk4, partial(lorenz96_derivative, forcing=forcing), dt=dt)
    initial = partial(_around, forcing, 0.01, (variables,))
    return System("lorenz96", initial, partial(repeated, step, times=steps), _itself, float(interval))


def lorenz96_derivative(x: Array, forcing: float) -> Array:
    """``dx/dt`` of Lorenz 96 along the last axis."""
    return (jnp.roll(x, -1, -1) - jnp.roll(x, 2, -1)) * jnp.roll(x, 1, -1) - x + forcing


def slow_manifold(mu: float = -0.05, lam: float = -1.0, interval: float = 0.1, spread: float = 1.0) -> System:
    """``dx1/dt = mu x1``, ``dx2/dt = lam (x2 - x1²)``, solved exactly; the state and the observation are ``[x1, x2]``.

    The Koopman operator has the invariant subspace spanned by ``x1``, ``x2`` and ``x1²`` with eigenvalues ``mu``, ``lam``
    and ``2 mu`` (Brunton et al. 2016); the eigenfunction of ``lam`` is ``x2 - b x1²``, ``b = lam / (lam - 2 mu)``.

    Args:
        spread: standard deviation of a start.
    Raises:
        UsageError: for ``lam = 2 mu``, where ``b`` does not exist.
    """
    mu, lam = finite(mu, "slow_manifold mu"), finite(lam, "slow_manifold lam")
    if lam == 2 * mu:
        raise UsageError(f"slow_manifold needs lam other than 2 mu, got both {lam:g}; {lam - 0.1:g} works")
    positive(interval, "slow_manifold interval")
    step = partial(_slow_manifold_step, mu, lam, interval)
    initial = partial(_around, 0.0, positive(spread, "slow_manifold spread"), (2,))
    return System("slow_manifold", initial, step, _itself, float(interval))


def _slow_manifold_step(mu: float, lam: float, interval: float, x: Array) -> Array:
    b = lam / (lam - 2 * mu)
    off = x[1] - b * x[0] ** 2
    x1 = np.exp(mu * interval) * x[0]
    return jnp.stack([x1, b * x1**2 + np.exp(lam * interval) * off])


def linear(matrix, noise: float = 0.0, spread: float = 1.0) -> System:
    """``x' = matrix x + noise ε`` with standard normal ``ε``; the observation is ``x``, ``[size]``.

    The state is ``(x, key)``. The sample interval is 1.

    Raises:
        UsageError: for a matrix that is not square or not finite.
    """
    matrix = np.asarray(matrix, np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.isfinite(matrix).all():
        raise UsageError(f"linear needs a finite square matrix, got shape {matrix.shape}")
    spread = positive(spread, "linear spread")
    step = partial(_linear_step, matrix, not_negative(noise, "linear noise"))
    return System("linear", partial(_linear_start, spread, len(matrix)), step, _first, 1.0)


def _linear_start(spread: float, size: int, key: Key) -> tuple[Array, Key]:
    start_key, key = jax.random.split(key)
    return spread * jax.random.normal(start_key, (size,)), key


def _linear_step(matrix: np.ndarray, noise: float, state: tuple[Array, Key]) -> tuple[Array, Key]:
    x, key = state
    noise_key, key = jax.random.split(key)
    return jnp.asarray(matrix, x.dtype) @ x + noise * jax.random.normal(noise_key, x.shape, x.dtype), key


def _around(centre: float, spread: float, shape: tuple[int, ...], key: Key) -> Array:
    return centre + spread * jax.random.normal(key, shape)


def _itself(state: Array) -> Array:
    return state


def _first(state: tuple[Array, Key]) -> Array:
    return state[0]
