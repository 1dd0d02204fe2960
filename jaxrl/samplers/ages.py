"""Who is replayed, as a function of age alone: age 0 is the newest of ``n`` candidates, ``n - 1`` the oldest.

A :class:`Distribution` is parameters and pure functions of them. The parameters are float32 leaves that a sampler keeps
in its storage, so ``vmap`` sweeps them; no table is built, and ``n`` may be traced, and may differ from draw to draw.

============================ ==========================================  =====================================
factory                      p(a) is proportional to                      what to turn
============================ ==========================================  =====================================
:func:`uniform`              1
:func:`truncated_geometric`  exp(-λ a), λ = rate + beta / n               ``beta`` (scale-free) or ``rate``
:func:`window`               1 for the newest share, else 0               ``share`` or ``rows``
:func:`linear`               n - a
:func:`newest_mixture`       1, and more for the newest                   ``share`` of draws, ``newest`` part
:func:`emphasising_recent`   mean over the updates of shrinking windows   ``eta``, ``c_min``, ``updates``
============================ ==========================================  =====================================

Among all distributions with one expected age the truncated geometric has the largest entropy.

Only :func:`pmf` takes memory in proportion to ``n``; everything else is O(1) in it.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.errors import UsageError
from jaxrl.types import Array, Key, PyTree

# A float32 uniform has about 2^23 values, too few to reach every one of 10^7 ages. An age is therefore drawn in two
# steps, first one of at most this many blocks of consecutive ages, then the age in the block, each by its own uniform.
BLOCKS = 2048
LOG_GLAISHER = 0.2487544770337843


class Distribution(NamedTuple):
    """Parameters, and functions that take them first. ``n`` is int32, a scalar or of a shape that broadcasts."""

    name: str
    params: PyTree  # NamedTuple of float32 scalars
    sample: Callable[[PyTree, Array, tuple[int, ...], Key], Array]  # (params, n, shape, key) -> int32 ages in [0, n)
    log_prob: Callable[[PyTree, Array, Array], Array]  # (params, age, n) -> float32; -inf outside [0, n)
    expected_age: Callable[[PyTree, Array], Array]  # (params, n) -> float32
    entropy: Callable[[PyTree, Array], Array]  # (params, n) -> float32, nats


def sample(distribution: Distribution, n: Array | int, shape: tuple[int, ...], key: Key) -> Array:
    """Ages drawn with the distribution's own parameters. int32 ``shape``."""
    return distribution.sample(distribution.params, jnp.asarray(n, jnp.int32), shape, key)


def log_prob(distribution: Distribution, age: Array, n: Array | int) -> Array:
    """Log-probability of an age among ``n``; ``-inf`` outside of them."""
    return distribution.log_prob(distribution.params, jnp.asarray(age, jnp.int32), jnp.asarray(n, jnp.int32))


def pmf(distribution: Distribution, n: int) -> Array:
    """Probability of every age. float32 ``[n]``."""
    return jnp.exp(log_prob(distribution, jnp.arange(n, dtype=jnp.int32), n))


def expected_age(distribution: Distribution, n: Array | int) -> Array:
    """Mean age, in steps. The mean normalised age is this over ``n``; expected recency is one minus that."""
    return distribution.expected_age(distribution.params, jnp.asarray(n, jnp.int32))


def entropy(distribution: Distribution, n: Array | int) -> Array:
    """Entropy in nats; ``log(n)`` for uniform."""
    return distribution.entropy(distribution.params, jnp.asarray(n, jnp.int32))


def effective_size(distribution: Distribution, n: Array | int) -> Array:
    """``exp(entropy)``: so many equally likely rows would be as spread out."""
    return jnp.exp(entropy(distribution, n))


# --- Truncated geometric ----------------------------------------------------------------------------------------------


class TruncatedGeometric(NamedTuple):
    beta: Array  # the newest row is exp(beta) times as likely as the oldest, whatever n
    rate: Array  # the fall of the log-probability a step, whatever n


def truncated_geometric(beta: float | None = None, rate: float | None = None) -> Distribution:
    r"""Exponentially less of what is older.

    .. math:: p(a) = \frac{(1 - \rho) \rho^a}{1 - \rho^n}, \qquad \rho = e^{-\lambda}

    Args:
        beta: ``n λ``, at least 0. The shape does not change as the buffer fills. The default is 4.6: the oldest row is
            drawn a hundredth as often as the newest.
        rate: ``λ``, at least 0: a fixed horizon of ``1 / rate`` steps, whatever the buffer holds. Instead of ``beta``.
    """
    if beta is not None and rate is not None:
        raise UsageError(f"give beta={beta} or rate={rate}, not both: beta is rate times the number of rows")
    if beta is None and rate is None:
        beta = 4.6
    for name, value in (("beta", beta), ("rate", rate)):
        if value is not None:
            _check(
                name, value, value >= 0 and math.isfinite(value), "must be finite and at least 0", "0, which is uniform"
            )
    params = TruncatedGeometric(*(jnp.float32(value or 0.0) for value in (beta, rate)))
    return Distribution("truncated_geometric", params, _tg_sample, _tg_log_prob, _tg_expected_age, _tg_entropy)


def _tg_rates(params: TruncatedGeometric, n: Array) -> tuple[Array, Array, Array]:
    """λ, n λ, and n as a float."""
    rows = n.astype(jnp.float32)
    return params.rate + params.beta / rows, params.rate * rows + params.beta, rows


def _tg_sample(params: TruncatedGeometric, n: Array, shape: tuple[int, ...], key: Key) -> Array:
    """Block, then age in the block, each by inverting the distribution function.

    The age is the floor of an exponential variable truncated to ``[0, n)``. Given its block of consecutive ages that
    variable is again a truncated exponential, of the block's width, so the two steps are exact; the last block may be
    narrower than the others.
    """
    block_key, offset_key = jax.random.split(key)
    rate, beta, rows = _tg_rates(params, n)
    width = (n + BLOCKS - 1) // BLOCKS
    last = (n - 1) // width
    fraction = _truncated_exponential(beta, jax.random.bits(block_key, shape, jnp.uint32))
    block = jnp.minimum((fraction * (rows / width)).astype(jnp.int32), last)
    here = jnp.minimum(width, n - block * width)
    fraction = _truncated_exponential(rate * here, jax.random.bits(offset_key, shape, jnp.uint32))
    offset = jnp.minimum((fraction * here).astype(jnp.int32), here - 1)
    return block * width + offset


def _truncated_exponential(beta: Array, bits: Array) -> Array:
    """Inverse distribution function of density ~ exp(-beta x) on [0, 1), from 32 random bits.

    ``u`` near 0 is resolved far finer than near 1. For a steep density the far end is the rare one, so ``u`` is the
    probability of lying beyond x there; for a flat one that form would lose its digits in ``1 - small``.
    """
    u = (bits.astype(jnp.float32) + 0.5) * jnp.float32(2**-32)
    mass = -jnp.expm1(-beta)
    steep = -jnp.log(jnp.exp(-beta) + u * mass)
    flat = -jnp.log1p(-u * mass)
    return jnp.where(beta < 1e-6, u, jnp.where(beta > 1.0, steep, flat) / jnp.maximum(beta, 1e-6))


def _tg_log_prob(params: TruncatedGeometric, age: Array, n: Array) -> Array:
    rate, beta, rows = _tg_rates(params, n)
    value = -rate * age - jnp.log(rows) + _log_mass_ratio(rate) - _log_mass_ratio(beta)
    return jnp.where((age >= 0) & (age < n), value, -jnp.inf)


def _tg_expected_age(params: TruncatedGeometric, n: Array) -> Array:
    rate, beta, rows = _tg_rates(params, n)
    return _inverse_expm1_rest(rate) - rows * _inverse_expm1_rest(beta)


def _tg_entropy(params: TruncatedGeometric, n: Array) -> Array:
    rate, beta, rows = _tg_rates(params, n)
    mean = _tg_expected_age(params, n)
    return jnp.log(rows) + _log_mass_ratio(beta) - _log_mass_ratio(rate) + rate * mean


def _log_mass_ratio(x: Array) -> Array:
    """log((1 - exp(-x)) / x), 0 at 0."""
    safe = jnp.maximum(x, 1e-4)
    return jnp.where(x < 1e-4, -x / 2, jnp.log(-jnp.expm1(-safe)) - jnp.log(safe))


def _inverse_expm1_rest(x: Array) -> Array:
    """1 / (exp(x) - 1) - 1 / x, which is -1/2 at 0; by its series where the two terms would cancel."""
    square = x * x
    series = -0.5 + x / 12 * (1 - square / 60 * (1 - square / 42 * (1 - square / 40)))
    safe = jnp.maximum(x, 0.5)
    return jnp.where(x < 0.5, series, 1 / jnp.expm1(safe) - 1 / safe)


# --- Linear -----------------------------------------------------------------------------------------------------------


class Linear(NamedTuple):
    """No parameters."""


def linear() -> Distribution:
    """``p(a) = 2 (n - a) / (n (n + 1))``: falls in a straight line to almost nothing at the oldest row."""
    return Distribution("linear", Linear(), _linear_sample, _linear_log_prob, _linear_expected_age, _linear_entropy)


def _linear_sample(params: Linear, n: Array, shape: tuple[int, ...], key: Key) -> Array:
    """The smaller of a uniform integer below n and one below n + 1: P(both >= a) = (n - a)(n + 1 - a) / (n (n + 1))."""
    left, right = jax.random.split(key)
    return jnp.minimum(jax.random.randint(left, shape, 0, n), jax.random.randint(right, shape, 0, n + 1))


def _linear_log_prob(params: Linear, age: Array, n: Array) -> Array:
    rows, inside = n.astype(jnp.float32), (age >= 0) & (age < n)
    left = jnp.where(inside, n - age, 1).astype(jnp.float32)
    value = jnp.log(2 * left) - jnp.log(rows) - jnp.log(rows + 1)
    return jnp.where(inside, value, -jnp.inf)


def _linear_expected_age(params: Linear, n: Array) -> Array:
    return (n - 1).astype(jnp.float32) / 3


def _linear_entropy(params: Linear, n: Array) -> Array:
    """By Stirling's series for the sum of k log k; its largest error is 1e-4, at n = 1."""
    rows = n.astype(jnp.float32)
    rest = 0.5 - (jnp.log(rows) / 6 + 2 * LOG_GLAISHER + (1 / 360 - 1 / 2520 / rows**2) / rows**2) / rows**2
    return jnp.where(n == 1, 0.0, jnp.log((rows + 1) / 2) + rest / (1 + 1 / rows))


# --- Mixtures of windows: each component is uniform over the newest rows, of a size of its own ------------------------

# (params, n [...]) -> sizes int32 [..., J] in [1, n], weights float32 [J]
Windows = Callable[[Any, Array], tuple[Array, Array]]


class Uniform(NamedTuple):
    """No parameters."""


class Window(NamedTuple):
    share: Array
    rows: Array


class NewestMixture(NamedTuple):
    share: Array
    newest: Array


class EmphasisingRecent(NamedTuple):
    eta: Array
    c_min: Array
    update: Array  # which update of the cycle this is; negative: any, drawn anew for every row


def uniform() -> Distribution:
    """Every row alike."""
    return _mixture("uniform", Uniform(), _uniform_windows)


def window(share: float | None = None, rows: int | None = None) -> Distribution:
    """Uniform over the newest rows and never an older one.

    Args:
        share: the part of what is held, in (0, 1]. Twice the normalised mean age that is wanted.
        rows: their number, at least 1, where that is to stay fixed. Instead of ``share``.
    """
    if (share is None) == (rows is None):
        raise UsageError(f"a window is given by share or by rows, got share={share} and rows={rows}; try share=0.5")
    if share is not None:
        _check("share", share, 0 < share <= 1, "must lie in (0, 1]", "1, which is uniform")
    if rows is not None:
        _check("rows", rows, rows >= 1 and rows == int(rows), "must be a whole number of at least 1", "1")
    return _mixture("window", Window(jnp.float32(share or 0.0), jnp.float32(rows or 0)), _window_windows)


def newest_mixture(share: float = 0.5, newest: float = 0.02) -> Distribution:
    """A share of the draws from the newest part of what is held, the rest from all of it.

    Args:
        share: of the draws, in [0, 1].
        newest: the part they come from, in (0, 1].
    """
    _check("share", share, 0 <= share <= 1, "must lie in [0, 1]", "0.5")
    _check("newest", newest, 0 < newest <= 1, "must lie in (0, 1]", "0.02")
    params = NewestMixture(jnp.float32(share), jnp.float32(newest))
    return _mixture("newest_mixture", params, _newest_mixture_windows)


def emphasising_recent(
    eta: float = 0.996, c_min: int = 5000, updates: int = 32, update: int | None = None
) -> Distribution:
    """Emphasising recent experience: update k of a cycle of K draws from the newest ``n eta^(1000 k / K)`` rows.

    Source: Wang and Ross, 2019, "Boosting soft actor-critic: emphasising recent experience without forgetting the past".

    Without ``update`` every row of a batch draws its own k, which has the same distribution over a cycle and lets the
    sampler know nothing of the loop. With it, all rows are drawn as in that update; a loop that sets it replaces the
    leaf in the storage.

    Args:
        eta: in (0, 1]; 1 is uniform.
        c_min: the smallest window, in rows.
        updates: K, static.
        update: k in ``0 … updates - 1``.
    """
    _check("eta", eta, 0 < eta <= 1, "must lie in (0, 1]", "0.996")
    _check("c_min", c_min, c_min >= 1, "must be at least 1", "1")
    _check("updates", updates, updates >= 1, "must be at least 1", "1")
    _check(
        "update", update, update is None or 0 <= update < updates, f"must lie in 0 … {updates - 1}", str(updates - 1)
    )
    params = EmphasisingRecent(jnp.float32(eta), jnp.float32(c_min), jnp.float32(-1 if update is None else update))
    return _mixture("emphasising_recent", params, partial(_emphasising_recent_windows, updates))


def _uniform_windows(params: Uniform, n: Array) -> tuple[Array, Array]:
    return n[..., None], jnp.ones(1)


def _window_windows(params: Window, n: Array) -> tuple[Array, Array]:
    return _whole_rows(params.share * n + params.rows, n)[..., None], jnp.ones(1)


def _newest_mixture_windows(params: NewestMixture, n: Array) -> tuple[Array, Array]:
    sizes = jnp.stack([_whole_rows(params.newest * n, n), n], axis=-1)
    return sizes, jnp.stack([params.share, 1 - params.share])


def _emphasising_recent_windows(updates: int, params: EmphasisingRecent, n: Array) -> tuple[Array, Array]:
    update = jnp.where(params.update < 0, jnp.arange(updates, dtype=jnp.float32), params.update)
    shrink = jnp.exp(jnp.log(params.eta) * 1000 * update / updates)
    rows = n[..., None]
    return _whole_rows(jnp.maximum(rows * shrink, params.c_min), rows), jnp.full(updates, 1 / updates)


def _whole_rows(rows: Array, n: Array) -> Array:
    """The nearest whole number in [1, n]. A float32 cannot tell rows above 2^24 apart, and a window need not."""
    return jnp.clip(jnp.round(jnp.minimum(rows, 2.0**30)).astype(jnp.int32), 1, n)


def _mixture(name: str, params: PyTree, windows: Windows) -> Distribution:
    parts = (_mixture_sample, _mixture_log_prob, _mixture_expected_age, _mixture_entropy)
    return Distribution(name, params, *(partial(part, windows) for part in parts))


def _mixture_sample(windows: Windows, params: PyTree, n: Array, shape: tuple[int, ...], key: Key) -> Array:
    sizes, weights = windows(params, n)
    if weights.shape[0] == 1:
        return jax.random.randint(key, shape, 0, sizes[..., 0])
    which_key, age_key = jax.random.split(key)
    if weights.shape[0] == 2:
        which = (jax.random.uniform(which_key, shape) >= weights[0]).astype(jnp.int32)
    else:  # equal weights
        which = jax.random.randint(which_key, shape, 0, weights.shape[0])
    sizes = jnp.broadcast_to(sizes, (*shape, weights.shape[0]))
    size = jnp.take_along_axis(sizes, which[..., None], axis=-1)[..., 0]
    return jax.random.randint(age_key, shape, 0, size)


def _mixture_log_prob(windows: Windows, params: PyTree, age: Array, n: Array) -> Array:
    sizes, weights = windows(params, n)
    prob = jnp.sum(jnp.where(age[..., None] < sizes, weights / sizes, 0.0), axis=-1)
    return jnp.where(age >= 0, jnp.log(prob), -jnp.inf)


def _mixture_expected_age(windows: Windows, params: PyTree, n: Array) -> Array:
    sizes, weights = windows(params, n)
    return jnp.sum(weights * (sizes - 1).astype(jnp.float32) / 2, axis=-1)


def _mixture_entropy(windows: Windows, params: PyTree, n: Array) -> Array:
    """The pmf is a staircase that steps down where a window ends, so the sum over ages has one term a window."""
    sizes, weights = windows(params, n)
    order = jnp.argsort(sizes, axis=-1)
    sizes = jnp.take_along_axis(sizes, order, axis=-1)
    density = jnp.take_along_axis(jnp.broadcast_to(weights, sizes.shape), order, axis=-1) / sizes
    each = jnp.flip(jnp.cumsum(jnp.flip(density, -1), axis=-1), -1)  # probability of an age before the step
    mass = each * jnp.diff(sizes, axis=-1, prepend=jnp.zeros_like(sizes[..., :1]))
    return -jnp.sum(jnp.where(mass > 0, mass * jnp.log(jnp.where(mass > 0, each, 1.0)), 0.0), axis=-1)


def _check(name: str, value: Any, holds: bool, why: str, use: str) -> None:
    if not holds:
        raise UsageError(f"{name} {why}, got {value}; use {use}")
