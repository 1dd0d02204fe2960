"""What GraphMet and its rival are trained on, and forecasts of the spread of an ensemble."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxrl.checks import check_finite, int_from, positive_int
from jaxrl.errors import UsageError
from jaxrl.koopman import gaussian, objectives
from jaxrl.koopman.graph.graphmet import Forecaster, linear_latents
from jaxrl.types import Array, Key, Metrics, PyTree, check_key


class LossWeights(NamedTuple):
    """Weights of the loss, leaves that a study may sweep. The first three are the published ones.

    ``spectral`` scales the two-term objective as a whole: 0 turns both of its terms off.
    """

    spectral: float | Array = 1.0
    isotropy: float | Array = 1e-3
    physical: float | Array = 1.0
    reconstruction: float | Array = 0.0  # of a linear model: decode(encode(x)) against x; derived here
    linearity: float | Array = 0.0  # of a linear model: K^k encode(x_0) against encode(x_k); derived here
    leads: Array | None = None  # [W], of the steps of a roll-out in L_phys and in linearity; all 1 by default
    # Not of a term: deviation of normal noise that fit adds to the first sample of a window, against its own errors later on
    # (Sanchez-Gonzalez et al. 2020)
    noise: float | Array = 0.0


PUBLISHED = LossWeights()


def loss(
    model: Forecaster, params: PyTree, windows: Array, area: Array | np.ndarray, weights: LossWeights = PUBLISHED
) -> tuple[Array, Metrics]:
    """``-L_spec + ξ1 (R + R) + ξ2 L_phys`` of windows of ``W + 1`` samples, the physical loss over ``W`` steps.

    ``W = 1`` is the published loss; with more, a roll-out is trained. ``L_spec`` and ``R`` are of what the model decodes, at
    the first two samples: the latent of a linear model, the nodes after the last message of the other. The second is the
    encoding of the sample itself and not of what the model makes of the first.

    Args:
        windows: ``[batch, W + 1, points, channels]``, standardised.
        area: ``[points]``, weights of the squared error that sum to 1.
    Raises:
        UsageError: for windows of fewer than two samples or another shape, or area of one that does not fit.
    """
    if windows.ndim != 4 or windows.shape[1] < 2 or windows.shape[2] != model.points:
        raise UsageError(f"windows are [batch, >= 2, {model.points}, channels], got shape {windows.shape}")
    if jnp.shape(area) != (model.points,):
        raise UsageError(f"area has one weight a point, ({model.points},), got shape {jnp.shape(area)}")
    fields = jnp.moveaxis(windows, 1, 0)
    terms = _passing_terms(model, params, fields, area)
    if model.operator is not None:
        terms = _linear_terms(model, params, fields, area, weights)
    forecast, latents, total, metrics = terms
    physical = _over_leads(squares(forecast - fields[1:], area), weights)
    spectral, measured = objectives.two_term(latents[0], latents[1], weights.isotropy)
    total += weights.physical * physical
    if not _off(weights.spectral):
        total += weights.spectral * spectral
    return total, {**metrics, **measured, "graphmet/physical": physical, "graphmet/loss": total}


def _passing_terms(model: Forecaster, params: PyTree, fields: Array, area) -> tuple[Array, Array, Array, Metrics]:
    forecast = model.rollout(params, fields[0], len(fields) - 1)
    return forecast, model.latents(params, fields[:2]), jnp.zeros(()), {}


def _linear_terms(
    model: Forecaster, params: PyTree, fields: Array, area, weights: LossWeights
) -> tuple[Array, Array, Array, Metrics]:
    """The forecast from one encoding of the fields, and the two terms that only a latent roll-out has."""
    encoded = model.latents(params, fields[:2] if _off(weights.linearity) else fields)
    stepped = linear_latents(model.operator, params, encoded[0], len(fields) - 1)
    total = jnp.zeros(())
    metrics: Metrics = {}
    if not _off(weights.linearity):
        linearity = _over_leads(jnp.mean((stepped - encoded[1:]) ** 2, (1, 2, 3)), weights)
        total, metrics = total + weights.linearity * linearity, metrics | {"graphmet/linearity": linearity}
    if _off(weights.reconstruction):
        return model.decode(params, stepped), encoded[:2], total, metrics
    decoded = model.decode(params, jnp.concatenate([encoded[:1], stepped]))
    reconstruction = squares(decoded[:1] - fields[:1], area)[0]
    metrics = metrics | {"graphmet/reconstruction": reconstruction}
    return decoded[1:], encoded[:2], total + weights.reconstruction * reconstruction, metrics


def squares(error: Array, area: Array | np.ndarray) -> Array:
    """The mean square over batch, area and channels of each lead, ``[leads, batch, points, channels] -> [leads]``."""
    return jnp.mean(jnp.sum(error**2 * jnp.asarray(area, error.dtype)[:, None], -2), (-2, -1))


def _over_leads(each: Array, weights: LossWeights) -> Array:
    return jnp.mean(each if weights.leads is None else each * weights.leads)


def _off(weight: float | Array) -> bool:
    """Whether a term is left out of the program: a plain 0, which no sweep can change."""
    return isinstance(weight, (int, float)) and weight == 0


class Fit(NamedTuple):
    """How long and how fast to train. The published run has 500,000 updates of 8, at 1e-4."""

    updates: int = 500_000
    batch: int = 8
    window: int = 1
    learning_rate: float = 1e-4
    final_rate: float = 1e-6
    weight_decay: float = 1e-4
    clip: float = 1.0


def optimiser(settings: Fit) -> optax.GradientTransformation:
    """AdamW with a cosine schedule and a clipped gradient, as published; on all parameters as one vector."""
    rate = optax.cosine_decay_schedule(
        settings.learning_rate, settings.updates, settings.final_rate / settings.learning_rate
    )
    return optax.chain(optax.clip_by_global_norm(settings.clip), optax.adamw(rate, weight_decay=settings.weight_decay))


def fit(
    model: Forecaster,
    settings: Fit,
    weights: LossWeights,
    params: PyTree,
    data: Array,
    area: Array | np.ndarray,
    key: Key,
) -> tuple[PyTree, Metrics]:
    """Train on random windows of trajectories; one program, to be vmapped over parameters and keys.

    Args:
        data: ``[trajectories, time, points, channels]``, standardised.
    Returns:
        The parameters, and the metrics of every update, ``[updates]`` each.
    Raises:
        UsageError: for trajectories shorter than a window, no updates, or (where values are known) data with NaN.
    """
    for name in ("updates", "batch", "window"):
        positive_int(getattr(settings, name), name)
    if data.ndim != 4 or data.shape[1] <= settings.window:
        raise UsageError(f"windows of {settings.window} steps need longer data [trajectories, time, points, channels]")
    check_finite("data", data)
    rule = optimiser(settings)
    update = partial(_update, model, settings, weights, rule, data, area)
    carried, metrics = jax.lax.scan(update, (params, rule.init(params)), jax.random.split(key, settings.updates))
    return carried[0], metrics


def _update(model, settings: Fit, weights: LossWeights, rule, data: Array, area, carried, key: Key):
    params, state = carried
    draw_key, noise_key = jax.random.split(key)
    windows = draw_windows(data, settings.batch, settings.window + 1, draw_key)
    if not _off(weights.noise):
        windows = windows.at[:, 0].add(weights.noise * jax.random.normal(noise_key, windows[:, 0].shape, data.dtype))
    slope, metrics = jax.grad(partial(loss, model), has_aux=True)(params, windows, area, weights)
    change, state = rule.update(slope, state, params)
    return (optax.apply_updates(params, change), state), metrics


def draw_windows(data: Array, batch: int, length: int, key: Key) -> Array:
    """Windows that start anywhere, ``[batch, length, ...]`` of ``[trajectories, time, ...]``, with replacement."""
    which_key, start_key = jax.random.split(key)
    which = jax.random.randint(which_key, (batch, 1), 0, data.shape[0])
    start = jax.random.randint(start_key, (batch, 1), 0, data.shape[1] - length + 1)
    return data[which, start + jnp.arange(length)]


class LatentClimate(NamedTuple):
    """Where training latents lie: their mean and principal directions with the variance along each."""

    mean: Array  # [nodes * width]
    directions: Array  # [nodes * width, rank], orthonormal columns
    variance: Array  # [rank]


def latent_climate(latents: Array, rank: int = 64) -> LatentClimate:
    """The climate of latents ``[samples, nodes, width]``, low-rank over all nodes together.

    Raises:
        UsageError: for a rank that the samples do not give.
    """
    rows = latents.reshape(len(latents), -1)
    if not 1 <= rank < min(rows.shape):
        raise UsageError(
            f"{rows.shape[0]} latents of {rows.shape[1]} numbers give a rank below {min(rows.shape)}, got {rank}"
        )
    mean = jnp.mean(rows, 0)
    _, values, directions = jnp.linalg.svd(rows - mean, full_matrices=False)
    return LatentClimate(mean, directions[:rank].T, values[:rank] ** 2 / len(rows))


def ensemble(
    model: Forecaster, params: PyTree, climate: LatentClimate, field: Array, steps: int, members: int, key: Key
) -> Array:
    """Members of a linear model's forecast at each lead, ``[steps, members, points, channels]``, of one field.

    At lead ``T`` they are decoded from a Gaussian around ``K^T z`` with covariance ``C - K^T C (K^T)^T`` in the climate's
    directions (:func:`jaxrl.koopman.gaussian.spread`): right for linear-Gaussian latents in equilibrium. Each lead is drawn
    by itself, so that members are not trajectories. Derived here; no diffusion and no repeated model runs.

    Raises:
        UsageError: for a model without a linear step, fewer than two members, no step, or the climate of another model.
    """
    if model.operator is None:
        raise UsageError(f"{model.name} has no linear step, whose spread could be had in closed form")
    int_from(members, "members of an ensemble", 2)
    if len(climate.mean) != model.operator.size:
        raise UsageError(
            f"this climate is of latents of {len(climate.mean)} numbers, the model's have {model.operator.size}"
        )
    check_key(key)
    start = model.latents(params, field)
    nodes = start.shape[-2:]
    mean = linear_latents(model.operator, params, start, steps)
    carried = linear_latents(model.operator, params, climate.directions.T.reshape(-1, *nodes), steps)
    # Rows of carried are K^T u_j: in the climate's own directions the step is the matrix of their products.
    matrices = jnp.einsum("tjr,ri->tij", carried.reshape(steps, len(climate.variance), -1), climate.directions)
    spread = jax.vmap(lambda matrix: gaussian.spread(matrix, jnp.diag(climate.variance)))(matrices)
    keys = jax.random.split(key, steps)
    zero = jnp.zeros((steps, len(climate.variance)))
    drawn = jax.vmap(gaussian.sample, in_axes=(0, 0, None, 0))(zero, spread, members, keys)
    latents = mean[:, None] + (drawn @ climate.directions.T).reshape(steps, members, *nodes)
    return model.decode(params, latents)
