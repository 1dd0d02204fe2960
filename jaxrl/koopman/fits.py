"""Linear steps from data in closed form: DMD, EDMD with and without control, ridge, and a fit consistent in both directions.

In NumPy and in float64 unless asked otherwise: a fit happens once, off the training path, needs more digits than float32
where spectra are close, and ends in an eigenvalue problem that is not symmetric, which accelerators do not solve. Snapshots
are rows; ``next_features[i]`` is what followed ``features[i]``.

>>> import numpy as np
>>> from jaxrl.koopman import fits
>>> x = np.random.default_rng(0).normal(size=(20, 2))
>>> fit = fits.edmd(x, x @ np.array([[0.9, 0.1], [0.0, 0.5]]).T)
>>> np.round(fit.A, 6).tolist()
[[0.9, 0.1], [0.0, 0.5]]
"""

import math
import numbers
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from jaxrl.errors import UsageError


class LinearFit(NamedTuple):
    """``psi' = A psi + B u`` as fitted."""

    A: NDArray  # [features, features]
    B: NDArray | None  # [features, controls]
    error: float  # norm of what is left of one step over the norm of the step's result; 0 is exact


class DMD(NamedTuple):
    """The dominant part of a linear step; ``A = modes diag(eigenvalues) pinv(modes)`` on the span of the data."""

    eigenvalues: NDArray  # complex [rank], in the order LAPACK finds them; see spectra for others
    modes: NDArray  # complex [features, rank], exact modes of norm 1
    amplitudes: NDArray  # complex [rank]: the first snapshot in the modes, by least squares
    basis: NDArray  # [features, rank], left singular vectors of the snapshots
    reduced: NDArray  # [rank, rank], A in that basis


def edmd(
    features: ArrayLike,
    next_features: ArrayLike,
    controls: ArrayLike | None = None,
    ridge: float = 0.0,
    dtype: DTypeLike = np.float64,
) -> LinearFit:
    """Extended DMD: the least-squares ``[A B]`` with ``psi(x') = A psi(x) + B u`` (Williams et al. 2015, Korda, Mezić 2018).

    ``[A B] = Y^T G (G^T G + ridge I)^-1`` with rows ``G = [psi(x), u]`` and ``Y = psi(x')``, solved by orthogonal
    factorisation. With ``features = x`` it is DMD with control.

    Args:
        features, next_features: ``[snapshots, features]``.
        controls: ``[snapshots, controls]``, held over the step.
        ridge: added to the Gram matrix, which is a sum over snapshots.
    Raises:
        UsageError: for NaN, for sizes that do not fit, for a negative ridge, and for fewer snapshots than features (with
            controls) where there is no ridge.
    """
    x, y = _pairs(features, next_features, dtype)
    u = None if controls is None else _matrix(controls, "controls", dtype)
    if u is not None and len(u) != len(x):
        raise UsageError(f"{len(x)} snapshots need as many controls, got {len(u)}; leave out the last control")
    inputs = x if u is None else np.concatenate([x, u], 1)
    both = _least_squares(inputs, y, ridge)
    error = float(np.linalg.norm(y - inputs @ both.T) / (np.linalg.norm(y) or 1.0))
    width = x.shape[1]
    return LinearFit(both[:, :width], None if u is None else both[:, width:], error)


def consistent(
    features: ArrayLike, next_features: ArrayLike, ridge: float = 0.0, dtype: DTypeLike = np.float64
) -> LinearFit:
    """Forward–backward EDMD: ``A = (A_f A_b^-1)^(1/2)`` (Dawson et al. 2016), for noise on both ends of a step.

    Noise in ``psi(x)`` shrinks the eigenvalues of a one-way fit; it shrinks those of the backward fit as much, and the two
    cancel. Of the square roots the one nearest to ``A_f`` is taken, eigenvalue by eigenvalue.

    Raises:
        UsageError: as :func:`edmd`, and for a backward step that cannot be inverted.
    """
    x, y = _pairs(features, next_features, dtype)
    forward, backward = _least_squares(x, y, ridge), _least_squares(y, x, ridge)
    if np.linalg.matrix_rank(backward) < len(backward):
        raise UsageError(
            f"the backward step has rank {np.linalg.matrix_rank(backward)} of {len(backward)} and no inverse; "
            "drop features that depend on others, or use edmd"
        )
    squares, vectors = np.linalg.eig(np.linalg.solve(backward.T, forward.T).T)
    roots = np.sqrt(squares.astype(complex))
    near = np.einsum("ij,ji->i", np.linalg.solve(vectors, forward), vectors)
    roots = np.where((np.conj(roots) * near).real < 0, -roots, roots)
    a = np.linalg.solve(vectors.T, (vectors * roots).T).T.real.astype(x.dtype)
    return LinearFit(a, None, float(np.linalg.norm(y - x @ a.T) / (np.linalg.norm(y) or 1.0)))


def dmd(
    snapshots: ArrayLike, next_snapshots: ArrayLike, rank: int | str | None = None, dtype: DTypeLike = np.float64
) -> DMD:
    """Exact dynamic mode decomposition (Tu et al. 2014).

    Args:
        snapshots, next_snapshots: ``[snapshots, features]``.
        rank: singular values of the snapshots that are kept; ``"optimal"`` by the hard threshold of Gavish and Donoho
            (2014) for unknown noise; None for all features.
    Raises:
        UsageError: for NaN, sizes that do not fit, an unknown rank or one above what the data have, and for fewer snapshots
            than features without a rank.
    """
    x, y = _pairs(snapshots, next_snapshots, dtype)
    if rank is None and len(x) < x.shape[1]:
        raise UsageError(
            f"{len(x)} snapshots of {x.shape[1]} features do not determine a step; pass rank={len(x)} or less"
        )
    left, values, right = np.linalg.svd(x.T, full_matrices=False)
    kept = _rank(rank, values, x.shape)
    basis, pulled = left[:, :kept], y.T @ (right[:kept].T / values[:kept])
    reduced = basis.T @ pulled
    eigenvalues, vectors = np.linalg.eig(reduced)
    modes = (pulled @ vectors).astype(complex)
    norms = np.linalg.norm(modes, axis=0)
    # A mode of eigenvalue 0 is not in what follows a step: there the projected mode is all there is.
    modes = np.where(norms > 0, modes, basis @ vectors)
    modes = modes / np.linalg.norm(modes, axis=0)
    amplitudes = np.linalg.lstsq(modes, x[0].astype(complex), rcond=None)[0]
    return DMD(eigenvalues.astype(complex), modes, amplitudes, basis, reduced)


def dense_params(fit: LinearFit, dtype: DTypeLike = np.float32) -> dict[str, NDArray]:
    """The fit as parameters of :func:`jaxrl.koopman.operators.dense`."""
    return {"A": fit.A.astype(dtype)} | ({} if fit.B is None else {"B": fit.B.astype(dtype)})


def _least_squares(inputs: NDArray, targets: NDArray, ridge: float) -> NDArray:
    """``[outputs, inputs]``. A ridge is so many more rows, which keeps the condition of the data unsquared."""
    count, width = inputs.shape
    if not isinstance(ridge, numbers.Real) or not (ridge >= 0 and math.isfinite(ridge)):
        raise UsageError(f"a ridge is finite and at least 0, got {ridge!r}; 1e-6 is a gentle one")
    if ridge == 0 and count < width:
        raise UsageError(
            f"{count} snapshots do not determine {width} features without a ridge; pass ridge=1e-6 or more data"
        )
    if ridge > 0:
        inputs = np.concatenate([inputs, np.sqrt(ridge).astype(inputs.dtype) * np.eye(width, dtype=inputs.dtype)])
        targets = np.concatenate([targets, np.zeros((width, targets.shape[1]), targets.dtype)])
    return np.linalg.lstsq(inputs, targets, rcond=None)[0].T


def _rank(rank: int | str | None, values: NDArray, shape: tuple[int, int]) -> int:
    cut = values[0] * max(shape) * np.finfo(values.dtype).eps if len(values) else 0.0
    there = int(np.sum(values > cut))
    if not there:
        raise UsageError("the snapshots are 0 everywhere, which any step could have made; pass data that moves")
    if rank is None:
        return max(1, there)
    if rank == "optimal":
        ratio = min(shape) / max(shape)
        threshold = np.median(values) * (0.56 * ratio**3 - 0.95 * ratio**2 + 1.82 * ratio + 1.43)
        return max(1, int(np.sum(values > threshold)))
    if isinstance(rank, bool) or not isinstance(rank, int | np.integer) or rank < 1:
        raise UsageError(f"unknown rank {rank!r}; use a number from 1 to {there}, 'optimal' or None")
    if rank > there:
        raise UsageError(f"the snapshots have rank {there}, got rank={rank}; use at most {there}")
    return int(rank)


def _pairs(before: ArrayLike, after: ArrayLike, dtype: DTypeLike) -> tuple[NDArray, NDArray]:
    x, y = _matrix(before, "snapshots", dtype), _matrix(after, "next snapshots", dtype)
    if x.shape != y.shape:
        raise UsageError(
            f"snapshots {x.shape} and what followed them {y.shape} differ in shape; pass data[:-1], data[1:]"
        )
    return x, y


def _matrix(data: ArrayLike, what: str, dtype: DTypeLike) -> NDArray:
    kind: Any = np.dtype(dtype)
    if kind not in (np.float32, np.float64):
        raise UsageError(f"fits run in float64 or float32, got {kind.name}")
    array = np.asarray(data)
    if array.ndim != 2 or 0 in array.shape or not np.issubdtype(array.dtype, np.number) or np.iscomplexobj(array):
        raise UsageError(
            f"{what} are a real matrix [snapshots, features], got {array.dtype} {array.shape}; one row a snapshot"
        )
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        row, column = bad[0].tolist()
        raise UsageError(
            f"{what} hold {array[row, column]} at [{row}, {column}] ({len(bad)} such); drop those snapshots"
        )
    if np.abs(array).max() > np.finfo(kind).max:
        raise UsageError(f"{what} hold {np.abs(array).max():g}, more than {kind.name} can; scale them, or use float64")
    return array.astype(kind)
