"""Objectives for latents that a linear step can follow, and their linear algebra.

Two batches, ``x = phi(x_t)`` and ``y = phi(x_(t+1))``: the second is the encoding of what really followed. Given ``K phi(x_t)``
in its place, as the released code does, a score of predictability measures ``K`` alone and every multiple of the identity
attains its maximum.

Latents are ``[batch, size]`` or ``[batch, nodes, size]``. Scores are to be raised, losses to be lowered.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.errors import UsageError
from jaxrl.koopman.parametrisations import matmul
from jaxrl.types import Array, Metrics

EIGENVALUE_FLOOR = 1e-6


class Covariances(NamedTuple):
    """Second moments of two batches of latents, shared by all nodes."""

    x: Array  # [size, size]
    y: Array  # [size, size]
    xy: Array  # [size, size]


def covariances(x: Array, y: Array, centre: bool = True) -> Covariances:
    """Moments over batch and nodes together, ``[..., size] -> [size, size]``.

    Over the batch alone, with ``nodes * size`` features, their rank is at most the batch's, and a measure of isotropy sees
    hardly more than its own floor.

    Raises:
        UsageError: for batches of different shapes.
    """
    _check_pair(x, y)
    x, y = (_rows(latents, centre) for latents in (x, y))
    return Covariances(*(matmul(a.T, b) / len(a) for a, b in ((x, x), (y, y), (x, y))))


def linear_cka(x: Array, y: Array, centre: bool = True) -> Array:
    """``|X^T Y|_F^2 / (|X^T X|_F |Y^T Y|_F)`` over the batch, in [0, 1] (Kornblith et al. 2019).

    From the Gram matrices ``[batch, batch]``, ``<G_x, G_y> / (|G_x| |G_y|)``, which is the same number and does not grow
    with nodes. All axes after the first are features; 0 where a batch does not vary.

    Args:
        centre: without it a constant feature counts as predicted. The released code of the method does not centre.
    Raises:
        UsageError: for batches of different length.
    """
    if jnp.ndim(x) < 2 or jnp.ndim(y) < 2 or len(x) != len(y):
        raise UsageError(f"two batches of one length are compared, got {jnp.shape(x)} and {jnp.shape(y)}")
    x, y = (_unit_rows(latents.reshape(len(latents), -1), centre) for latents in (x, y))
    gram_x, gram_y = matmul(x, x.T), matmul(y, y.T)
    norm = _root(jnp.sum(gram_x**2)) * _root(jnp.sum(gram_y**2))
    return jnp.sum(gram_x * gram_y) / jnp.where(norm > 0, norm, 1.0)


def isotropy_penalty(covariance: Array, floor: float = EIGENVALUE_FLOOR) -> Array:
    """``R(C) = tr(C^2 - C - ln C)``, at least 0 and 0 only for ``C = I`` (Kostic et al. 2024, DPNets).

    Args:
        covariance: ``[size, size]``; take the shared one of :func:`covariances`.
        floor: eigenvalues count as at least this in the logarithm; below it they have no gradient from there.
    """
    return _isotropy(jnp.linalg.eigvalsh(covariance), floor)


def two_term(x: Array, y: Array, penalty: Array | float = 1e-3, centre: bool = True) -> tuple[Array, Metrics]:
    """``-L_spec + penalty (R(C_x) + R(C_y))``: predictable, and not by collapse. The loss and its parts.

    ``L_spec`` is :func:`linear_cka`. Found in the released code of the method but for three things put right here: ``y`` is
    the encoding of what followed, covariances are shared by nodes, and latents are centred. A one-step loss in physical
    units is added by whoever has a decoder.

    Args:
        x, y: latents of states and of what followed them.
    """
    moments = covariances(x, y, centre)
    score = linear_cka(x, y, centre)
    isotropy = _isotropy(_spectra(moments))
    metrics = {"koopman/cka": score, "koopman/isotropy": isotropy}
    return penalty * isotropy - score, metrics


def vamp2(x: Array, y: Array, ridge: Array | float = 1e-6, centre: bool = True) -> Array:
    """``|C_x^(-1/2) C_xy C_y^(-1/2)|_F^2``, the sum of squared canonical correlations; in [0, size] (Wu and Noé 2020).

    Args:
        ridge: added to both covariances, in units of their mean variance.
    Returns:
        []; 0 where a batch does not vary.
    """
    moments = covariances(x, y, centre)
    # Both in one call, as in _spectra.
    systems = jnp.stack([_ridged(moments.x, ridge), _ridged(moments.y, ridge)])
    left, right = jnp.linalg.solve(systems, jnp.stack([moments.xy, moments.xy.T]))
    return jnp.sum(left * right.T)


def dpnets(x: Array, y: Array, penalty: Array | float = 1e-3, centre: bool = True) -> Array:
    """The relaxed score ``|C_xy|_F^2 / (|C_x| |C_y|) - penalty (R(C_x) + R(C_y))`` with spectral norms (Kostic et al. 2024).

    Needs no inverse. For white latents it equals :func:`vamp2`, and :func:`linear_cka` times ``size``.
    """
    moments = covariances(x, y, centre)
    values = _spectra(moments)
    norms = values[0, -1] * values[1, -1]
    score = jnp.sum(moments.xy**2) / jnp.where(norms > 0, norms, 1.0)
    return score - penalty * _isotropy(values)


def ncp_loss(u: Array, v: Array, log_decay: Array, penalty: Array | float = 1e-3) -> Array:
    """Loss of neural conditional probability: learn ``p(y|x) / p(y) - 1 = sum_i s_i u_i(x) v_i(y)`` (Kostic et al. 2024).

    The batch is split in halves 1 and 2. ``1/2 (<u1, S v2>^2 + <u2, S v1>^2) - <u1 - u2, S (v1 - v2)>``, averaged, with
    ``S = diag(exp(-w^2))``; found in the authors' code. Plus ``penalty`` times how far ``u`` and ``v`` are from centred and
    orthonormal, estimated from the two halves without bias (derived here; so it may be below 0). Centre and whiten before
    use.

    Args:
        u, v: ``[batch, functions]`` of ``x`` and of ``y``, an even batch.
        log_decay: ``w``, ``[functions]``.
    Raises:
        UsageError: for an odd batch.
    """
    _check_pair(u, v)
    if len(u) % 2:
        raise UsageError(f"the batch is split in two halves, got {len(u)} rows; use {len(u) - 1}")
    s = jnp.exp(-(log_decay**2))
    (u1, u2), (v1, v2) = jnp.split(u, 2), jnp.split(v, 2)
    independent = 0.5 * (jnp.sum(u1 * s * v2, -1) ** 2 + jnp.sum(u2 * s * v1, -1) ** 2)
    joint = jnp.sum((u1 - u2) * s * (v1 - v2), -1)
    return jnp.mean(independent - joint) + penalty * (_orthonormality(u1, u2) + _orthonormality(v1, v2))


def whiten(x: Array, ridge: Array | float = 1e-6) -> Array:
    """Centred, with covariance ``I``: ``(x - mean) C^(-1/2)``, symmetric. ``[batch, size]``."""
    x = _rows(x, True)
    values, vectors = jnp.linalg.eigh(_ridged(matmul(x.T, x) / len(x), ridge))
    return matmul(matmul(x, vectors / jnp.sqrt(values)), vectors.T)


def _spectra(moments: Covariances) -> Array:
    """Eigenvalues of both covariances, rising, ``[2, size]``.

    In one call, because under ``vmap`` a decomposition waits for XLA's pool of CPU threads inside that pool: with as many at
    once as there are threads, they wait for each other for ever.
    """
    return jnp.linalg.eigvalsh(jnp.stack([moments.x, moments.y]))


def _isotropy(values: Array, floor: float = EIGENVALUE_FLOOR) -> Array:
    """``sum(v^2 - v - ln v)`` over all eigenvalues given."""
    return jnp.sum(values**2 - values - jnp.log(jnp.maximum(values, floor)))


def _orthonormality(first: Array, second: Array) -> Array:
    """``|C - I|_F^2 + 2 |mean|^2`` from independent rows: ``E <a, b>^2 = |C|_F^2`` and ``E <a, b> = |mean|^2``."""
    inner = jnp.sum(first * second, -1)
    trace = 0.5 * (jnp.sum(first**2, -1) + jnp.sum(second**2, -1))
    return jnp.mean(inner**2 - 2.0 * trace + 2.0 * inner) + first.shape[-1]


def _rows(latents: Array, centre: bool) -> Array:
    rows = latents.reshape(-1, latents.shape[-1])
    return rows - jnp.mean(rows, 0) if centre else rows


def _unit_rows(rows: Array, centre: bool) -> Array:
    rows = rows - jnp.mean(rows, 0) if centre else rows
    # Fourth powers follow: the size is taken out first, and the score does not depend on it.
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(rows)))
    return rows / jnp.where(largest > 0, largest, 1.0)


def _root(square: Array) -> Array:
    """A square root whose gradient at 0 is 0."""
    return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)


def _ridged(covariance: Array, ridge: Array | float) -> Array:
    size = len(covariance)
    variance = jnp.trace(covariance) / size
    return covariance + ridge * jnp.where(variance > 0, variance, 1.0) * jnp.eye(size, dtype=covariance.dtype)


def _check_pair(x: Array, y: Array) -> None:
    if jnp.ndim(x) < 2 or jnp.shape(x) != jnp.shape(y):
        raise UsageError(f"two batches of one shape are needed, got {jnp.shape(x)} and {jnp.shape(y)}")
