"""Spherical harmonics: a transform between a Gaussian grid and triangularly truncated coefficients.

A real field is ``f(λ, φ) = Σ_m Σ_{l ≥ |m|} f_ml P_lm(sin φ) exp(i m λ)`` with ``f_{-m,l}`` the conjugate of ``f_ml``, so only
``m ≥ 0`` is kept: coefficients are complex ``[truncation + 1 (m), truncation + 1 (l)]``, 0 where ``l < m``. The ``P_lm`` are
normalised so that the mean over the sphere of ``|P_lm exp(imλ)|²`` is 1; then the mean square of a field is
``Σ_l |f_0l|² + 2 Σ_{m>0} |f_ml|²``. Matrices are NumPy float64 and take the precision of what they multiply.
"""

from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.checks import positive_int
from jaxrl.errors import UsageError
from jaxrl.types import Array

PRECISION = "highest"  # a transform in half precision would not be one


class Sphere(NamedTuple):
    """A Gaussian grid and the matrices of its transform. Longitudes are ``2π k / longitudes``."""

    truncation: int
    latitudes: np.ndarray  # [latitudes], radians, from south to north
    weights: np.ndarray  # [latitudes], quadrature weights that sum to 1
    longitudes: int
    legendre: np.ndarray  # [m, l, latitudes], P_lm
    slopes: np.ndarray  # [m, l, latitudes], (1 - μ²) dP_lm/dμ
    mask: np.ndarray  # bool [m, l], where l >= m


@lru_cache(maxsize=8)
def sphere(truncation: int) -> Sphere:
    """The grid on which products of two fields are transformed without aliasing: T21 has 32 x 64 points, T42 64 x 128.

    ``3 T + 1`` longitudes and half as many Gaussian latitudes suffice for a quadratic term (Orszag 1970); they are rounded up
    to a power of two.
    """
    truncation = positive_int(truncation, "truncation")
    longitudes = max(8, 1 << int(np.ceil(np.log2(3 * truncation + 1))))
    mu, weights = np.polynomial.legendre.leggauss(longitudes // 2)
    legendre = associated_legendre(truncation + 1, mu)
    return Sphere(
        truncation,
        np.arcsin(mu),
        weights / 2.0,
        longitudes,
        legendre[:-1, :-1],
        _slopes(legendre),
        _mask(truncation),
    )


def associated_legendre(degree: int, mu: np.ndarray) -> np.ndarray:
    """Normalised associated Legendre functions ``[m, l, points]`` up to a degree, by the stable recurrence in ``l``."""
    values = np.zeros((degree + 1, degree + 1, len(mu)))
    values[0, 0] = 1.0
    for m in range(1, degree + 1):
        values[m, m] = np.sqrt((2 * m + 1) / (2 * m)) * np.sqrt(1 - mu**2) * values[m - 1, m - 1]
    for m in range(degree + 1):
        for degree_l in range(m + 1, degree + 1):
            before = values[m, degree_l - 2] * _epsilon(degree_l - 1, m) if degree_l - 2 >= m else 0.0
            values[m, degree_l] = (mu * values[m, degree_l - 1] - before) / _epsilon(degree_l, m)
    return values


def _epsilon(degree: int, m: int) -> float:
    """``μ P_lm = ε_{l+1} P_{l+1,m} + ε_l P_{l-1,m}``."""
    return float(np.sqrt((degree**2 - m**2) / (4.0 * degree**2 - 1.0)))


def _slopes(legendre: np.ndarray) -> np.ndarray:
    """``(1 - μ²) dP_lm/dμ = (l+1) ε_l P_{l-1,m} - l ε_{l+1} P_{l+1,m}``, one degree fewer than is given."""
    size = legendre.shape[0] - 1
    slopes = np.zeros((size, size, legendre.shape[2]))
    for m in range(size):
        for degree_l in range(m, size):
            slopes[m, degree_l] = -degree_l * _epsilon(degree_l + 1, m) * legendre[m, degree_l + 1]
            if degree_l > m:
                slopes[m, degree_l] += (degree_l + 1) * _epsilon(degree_l, m) * legendre[m, degree_l - 1]
    return slopes


def _mask(truncation: int) -> np.ndarray:
    return np.arange(truncation + 1)[None] >= np.arange(truncation + 1)[:, None]


def synthesise(grid: Sphere, coefficients: Array, functions: np.ndarray | None = None) -> Array:
    """The field ``[..., latitudes, longitudes]`` of coefficients ``[..., m, l]``.

    ``functions`` in place of the Legendre functions (such as ``grid.slopes``) gives a derivative.
    """
    matrix = jnp.asarray(grid.legendre if functions is None else functions, coefficients.real.dtype)
    zonal = _real_product("...ml,mlj->...jm", coefficients, matrix)
    # irfft divides by the number of points, which the definition of the field does not.
    return jnp.fft.irfft(zonal, n=grid.longitudes, axis=-1) * grid.longitudes


def analyse(grid: Sphere, field: Array) -> Array:
    """The coefficients ``[..., m, l]`` of a field ``[..., latitudes, longitudes]``; the inverse of :func:`synthesise`."""
    matrix = jnp.asarray(grid.legendre * grid.weights, field.dtype)
    zonal = jnp.fft.rfft(field, axis=-1)[..., : grid.truncation + 1] / grid.longitudes
    return _real_product("...jm,mlj->...ml", zonal, matrix)


def _real_product(indices: str, values: Array, matrix: Array) -> Array:
    """``einsum`` of a complex array and a real matrix, in real arithmetic: half the work."""
    parts = jnp.einsum(indices, jnp.stack([values.real, values.imag]), matrix, precision=PRECISION)
    return jax.lax.complex(parts[0], parts[1])


def longitude_slope(coefficients: Array) -> Array:
    """The coefficients of ``∂f/∂λ``."""
    orders = jnp.arange(coefficients.shape[-2], dtype=coefficients.real.dtype)[:, None]
    return 1j * orders * coefficients


def degrees(truncation: int) -> np.ndarray:
    """``l`` for every coefficient, ``[1, l]``."""
    return np.arange(truncation + 1, dtype=np.float64)[None]


def points_matrix(truncation: int, latitude: np.ndarray, longitude: np.ndarray) -> np.ndarray:
    """What evaluates a field at any points: complex ``[points, m, l]``, for :func:`at_points`.

    Args:
        latitude, longitude: radians ``[points]``, such as the nodes of a mesh.
    Raises:
        UsageError: where they do not fit together or a latitude is beyond a pole.
    """
    latitude, longitude = np.asarray(latitude, np.float64), np.asarray(longitude, np.float64)
    if latitude.ndim != 1 or latitude.shape != longitude.shape:
        raise UsageError(f"points need latitudes and longitudes [points], got {latitude.shape} and {longitude.shape}")
    if np.abs(latitude).max(initial=0.0) > np.pi / 2 + 1e-9:
        raise UsageError(f"a latitude of {np.abs(latitude).max():g} is beyond the pole; give radians")
    legendre = associated_legendre(truncation, np.sin(latitude))
    orders = np.arange(truncation + 1)
    twice = np.where(orders == 0, 1.0, 2.0)[:, None] * np.exp(1j * orders[:, None] * longitude[None])
    return np.einsum("mlp,mp->pml", legendre, twice)


def at_points(matrix: np.ndarray, coefficients: Array) -> Array:
    """The field at the points of :func:`points_matrix`: coefficients ``[..., m, l]`` to ``[..., points]``."""
    typed = jnp.asarray(matrix, coefficients.dtype)
    return jnp.einsum("...ml,pml->...p", coefficients, typed, precision=PRECISION).real


def power(coefficients: Array) -> Array:
    """Mean square of the field in each degree, ``[..., m, l] -> [..., l]``; the sum is the mean square of the field."""
    twice = jnp.where(jnp.arange(coefficients.shape[-2]) == 0, 1.0, 2.0)[:, None]
    return jnp.sum(twice * jnp.abs(coefficients) ** 2, -2)
