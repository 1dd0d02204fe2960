"""What a linear step does: its eigenvalues, rates and frequencies, modes and eigenfunctions, and how latents are spread.

In NumPy and float64, after training. :mod:`jaxrl.analysis.spectral_figures` draws them.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxrl.checks import check_finite
from jaxrl.errors import UsageError
from jaxrl.koopman.operators import Operator
from jaxrl.types import PyTree


class Spectrum(NamedTuple):
    """Eigenvalues with their vectors, dominant first: by modulus, then of a pair the one with positive frequency first."""

    eigenvalues: NDArray  # complex [size]
    rates: NDArray  # log |lambda| / step, in 1 / time; below 0 decays, -inf for an eigenvalue 0
    frequencies: NDArray  # angle / (2 pi step), in cycles / time, in (-1/2, 1/2] / step
    right: NDArray  # complex [size, size], columns: A right = right diag(eigenvalues); norm 1
    left: NDArray  # complex [size, size], rows: left A = diag(eigenvalues) left; left right = I


class Conditioning(NamedTuple):
    """How evenly latents fill their space."""

    eigenvalues: NDArray  # of the shared covariance, largest first
    smallest: float  # the smallest that is not 0 but for rounding
    largest: float
    condition: float  # largest over smallest; infinite where one is 0
    effective_condition: float  # the same without the zeros
    rank: int


def spectrum(matrix: ArrayLike, step: float = 1.0) -> Spectrum:
    """The spectrum of a step matrix.

    Args:
        matrix: ``[size, size]``.
        step: time between snapshots, for rates and frequencies.
    Raises:
        UsageError: for a matrix that is not real, square and finite, or a step that is not positive.
    """
    if np.iscomplexobj(matrix):
        raise UsageError("a spectrum needs a real matrix, got a complex one; take it of the real form, with pairs")
    a = np.asarray(matrix, np.float64)
    if a.ndim != 2 or a.shape[0] != a.shape[1] or not np.all(np.isfinite(a)):
        raise UsageError(f"a spectrum needs a finite square matrix, got shape {a.shape}")
    if not step > 0:
        raise UsageError(f"the time between snapshots is positive, got {step}")
    values, right = np.linalg.eig(a)
    order = dominant_order(values)
    values, right = values[order].astype(complex), right[:, order].astype(complex)
    left = np.linalg.pinv(right)
    return Spectrum(values, *continuous_time(values, step), right, left)


def of_operator(operator: Operator, params: PyTree, step: float = 1.0) -> Spectrum:
    """The spectrum of an operator with its parameters."""
    return spectrum(operator.matrix(params)[0], step)


def dominant_order(eigenvalues: ArrayLike) -> NDArray:
    """Indices by modulus, largest first; equal ones by the size of their angle, and the positive angle of a pair first."""
    values = np.asarray(eigenvalues, complex)
    scale = np.max(np.abs(values), initial=0.0) or 1.0
    modulus, angle = np.round(np.abs(values) / scale, 12), np.round(np.angle(values), 12)
    return np.lexsort((-angle, np.abs(angle), -modulus))


def continuous_time(eigenvalues: ArrayLike, step: float) -> tuple[NDArray, NDArray]:
    """Rates [1 / time] and frequencies [cycles / time] of eigenvalues of a step that takes ``step``."""
    values = np.asarray(eigenvalues, complex)
    with np.errstate(divide="ignore"):
        rates = np.log(np.abs(values)) / step
    return rates, np.angle(values) / (2.0 * np.pi * step)


def eigenfunctions(of: Spectrum, features: ArrayLike) -> NDArray:
    """Koopman eigenfunctions at states, ``left psi(x)``: each is multiplied by its eigenvalue in a step. ``[..., size]``."""
    return np.asarray(features) @ of.left.T


def modes(of: Spectrum, output: ArrayLike) -> NDArray:
    """What an output ``C psi`` does in each mode: ``C right``, ``[outputs, size]``, columns in the spectrum's order."""
    return np.asarray(output) @ of.right


def conditioning(latents: ArrayLike, centre: bool = True, tolerance: float | None = None) -> Conditioning:
    """Eigenvalues of the covariance that all nodes share, over batch and nodes.

    A measure of the objective as much as of the model: a penalty on isotropy raises ``smallest`` whatever steps latents.

    Args:
        latents: ``[..., size]``.
        tolerance: what counts as 0, over the largest; the rounding of the latents' precision times the size by default.
    Raises:
        UsageError: for fewer than 2 latents, or such as are not finite.
    """
    check_finite("a batch of latents", latents)
    given = np.asarray(latents)
    rows = given.reshape(-1, given.shape[-1]).astype(np.float64)
    if len(rows) < 2:
        raise UsageError(f"a covariance needs at least 2 latents, got {len(rows)}")
    rows = rows - rows.mean(0) if centre else rows
    values = np.linalg.svd(rows / np.sqrt(len(rows)), compute_uv=False) ** 2
    values = np.concatenate([values, np.zeros(rows.shape[1] - len(values))])
    if tolerance is None:
        kind = given.dtype if np.issubdtype(given.dtype, np.floating) else np.dtype(np.float64)
        tolerance = rows.shape[1] * float(np.finfo(kind).eps)
    rank = int(np.sum(values > tolerance * values[0]))
    smallest, largest = (float(values[rank - 1]) if rank else 0.0), float(values[0])
    effective = largest / smallest if rank else float("inf")
    whole = effective if rank == len(values) else float("inf")
    return Conditioning(values, smallest, largest, whole, effective, rank)
