"""How good a forecast of a field is: error, correlation, activity, spectrum, smoothness, and scores of an ensemble.

Fields are ``[..., points]`` with area weights ``[points]`` that sum to 1. An error alone does not tell a good forecast from a
smooth one: where nothing can be known, a forecast with the right activity has √2 times the error of the mean.
"""

import math

import jax.numpy as jnp
import numpy as np

from jaxrl.errors import UsageError
from jaxrl.koopman.graph.mesh import Graph
from jaxrl.types import Array


def rmse(forecast: Array, truth: Array, area: Array) -> Array:
    """Root of the area-weighted mean square error of each field. ``[..., points] -> [...]``."""
    return jnp.sqrt(_mean((forecast - truth) ** 2, area))


def anomaly_correlation(forecast: Array, truth: Array, climate: Array, area: Array) -> Array:
    """The correlation of what is left without the climate, each centred (ACC). 0 where one has no variation."""
    a, b = (_centred(field - climate, area) for field in (forecast, truth))
    norm = jnp.sqrt(_mean(a**2, area) * _mean(b**2, area))
    return _mean(a * b, area) / jnp.where(norm > 0, norm, jnp.inf)


def activity(forecast: Array, truth: Array, climate: Array, area: Array) -> Array:
    """Standard deviation over space of the forecast's anomaly over that of the truth's; ideally 1. ``1 -`` it is the deficit."""
    a, b = (_mean(_centred(field - climate, area) ** 2, area) for field in (forecast, truth))
    return jnp.sqrt(a / b)


def crps(members: Array, truth: Array) -> Array:
    """The fair continuous ranked probability score at each point: ``mean |x_i - y| - mean_{i<j} |x_i - x_j|``.

    Unbiased for what infinitely many members would score (Ferro 2014). ``[members, ...], [...] -> [...]``.
    """
    count = _members(members)
    ordered = jnp.sort(members, 0)
    # Σ_{i<j} |x_i - x_j| of a sorted sample: the member of rank k is added k times and taken off count - 1 - k times.
    factor = (2.0 * jnp.arange(count) - count + 1).reshape(-1, *[1] * (members.ndim - 1))
    between = jnp.sum(factor.astype(members.dtype) * ordered, 0) / (count * (count - 1))
    return jnp.mean(jnp.abs(members - truth), 0) - between


def energy_score(members: Array, truth: Array, area: Array) -> Array:
    """The fair energy score of whole fields, with the area-weighted norm. ``[members, ..., points], [..., points] -> [...]``."""
    count = _members(members)
    distance = jnp.mean(rmse(members, truth, area), 0)
    pairs = jnp.sum(rmse(members[:, None], members[None], area), (0, 1))
    return distance - pairs / (2 * count * (count - 1))


def spread_skill_ratio(members: Array, truth: Array, area: Array) -> Array:
    """``√((M + 1) / M)`` times the spread over the error of the mean; 1 where truth and members are alike.

    Both are roots of means over all forecasts. ``[members, forecasts, points], [forecasts, points] -> []``.
    """
    count = _members(members)
    spread = jnp.mean(_mean(jnp.var(members, 0, ddof=1), area))
    error = jnp.mean(_mean((jnp.mean(members, 0) - truth) ** 2, area))
    return math.sqrt((count + 1) / count) * jnp.sqrt(spread / error)


def fourier_power(field: Array) -> Array:
    """Mean square of a field on a ring in each wavenumber, ``[..., points] -> [..., points // 2 + 1]``; sums to the whole."""
    points = field.shape[-1]
    power = jnp.abs(jnp.fft.rfft(field, axis=-1)) ** 2 / points**2
    twice = np.full(points // 2 + 1, 2.0)
    twice[0] = 1.0
    if points % 2 == 0:
        twice[-1] = 1.0
    return power * jnp.asarray(twice, power.dtype)


def degree_power(field: Array, basis: Array, degrees: np.ndarray, area: Array) -> Array:
    """Mean square of a field on the sphere in each degree, by least squares. ``[..., points] -> [..., degrees]``.

    Args:
        basis: harmonics at the points, ``[points, modes]``, each of mean square 1 over the sphere.
        degrees: int ``[modes]``.
    """
    root = np.sqrt(np.asarray(area, np.float64))[:, None]
    # pinv with a cut: a mesh whose points hardly resolve the last degree should not blow it up.
    fit = np.linalg.pinv(np.asarray(basis, np.float64) * root, rcond=1e-6) * root.T
    coefficients = jnp.einsum("mp,...p->...m", jnp.asarray(fit, field.dtype), field)
    return coefficients**2 @ jnp.asarray(np.eye(int(np.max(degrees)) + 1)[degrees], field.dtype)


def high_ratio(forecast: Array, truth: Array, low: int, high: int | None = None) -> Array:
    """Power of the forecast over that of the truth from wavenumber ``low`` to ``high``; below 1 is smoother. ``[..., k] -> []``.

    Averaged over all leading axes before the division.
    """
    if not 0 <= low < truth.shape[-1] or (high is not None and high < low):
        raise UsageError(f"a spectrum of {truth.shape[-1]} wavenumbers has no range {low} to {high}")
    stop = None if high is None else high + 1
    return jnp.mean(jnp.sum(forecast[..., low:stop], -1)) / jnp.mean(jnp.sum(truth[..., low:stop], -1))


def dirichlet_energy(graph: Graph, nodes: Array) -> Array:
    """``½ Σ_edges |h_i - h_j|²`` over ``Σ |h_i|²``, a mean over edges and nodes: 0 where all nodes are alike.

    ``[..., nodes, features] -> [...]``; for white noise 1 in the mean.
    """
    difference = nodes[..., graph.senders, :] - nodes[..., graph.receivers, :]
    energy = 0.5 * jnp.mean(jnp.sum(difference**2, -1), -1)
    size = jnp.mean(jnp.sum(nodes**2, -1), -1)
    return energy / jnp.where(size > 0, size, jnp.inf)


def _mean(field: Array, area: Array) -> Array:
    if jnp.shape(area) != jnp.shape(field)[-1:]:
        raise UsageError(f"area has one weight a point, {jnp.shape(field)[-1:]}, got shape {jnp.shape(area)}")
    return jnp.sum(field * jnp.asarray(area, field.dtype), -1)


def _centred(field: Array, area: Array) -> Array:
    return field - _mean(field, area)[..., None]


def _members(members: Array) -> int:
    if members.ndim < 1 or len(members) < 2:
        raise UsageError(f"a fair score needs at least 2 members on the first axis, got shape {members.shape}")
    return len(members)
