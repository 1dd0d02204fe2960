"""What goes on inside a network, measured in the compiled step: each a pure function, cheap, for ``jit`` and ``vmap``.

Everything is computed in float32 whatever the input, and returns float32. Ranks take a singular value decomposition of
``[batch, features]``: a few hundred rows are enough, and keep it to milliseconds.
"""

import jax
import jax.numpy as jnp

from jaxrl.errors import UsageError
from jaxrl.types import Array, Metrics, PyTree

LARGEST_UNIT = 8e37  # XLA divides by multiplying with the reciprocal, which above this is subnormal and becomes 0


def _unit(largest: Array) -> Array:
    """What to divide by so that entries up to ``largest`` come near 1, whatever their size; 1 where there is nothing."""
    return jnp.where((largest > 0) & jnp.isfinite(largest), jnp.minimum(largest, LARGEST_UNIT), 1.0)


def dormant_fraction(activations: Array, tau: float | Array = 0.0) -> Array:
    """The share of units that hardly ever fire: mean |activation| at most ``tau`` times the layer's mean.

    Sokar et al. (2023), "The dormant neuron phenomenon". A layer that is silent altogether is dormant altogether.

    Args:
        activations: ``[..., units]``, after the non-linearity; leading axes are averaged over.
        tau: 0 counts the dead, 0.025 or 0.1 the nearly dead.
    Returns:
        float32 in [0, 1]; NaN where an activation is: such a layer is not known to be alive.
    """
    size = jnp.abs(activations.astype(jnp.float32)).reshape(-1, activations.shape[-1])
    # The largest value is divided out first, so that neither the sum overflows nor the mean of tiny values becomes 0.
    of_unit = jnp.mean(size / _unit(jnp.max(size)), 0)
    mean = jnp.mean(of_unit)
    share = jnp.mean((of_unit <= tau * mean).astype(jnp.float32))
    return jnp.where(jnp.isnan(mean), jnp.nan, share)


def dormant_fractions(layers: PyTree, tau: float | Array = 0.0) -> Metrics:
    """:func:`dormant_fraction` of every leaf of a pytree of activations, by the leaf's path, and over all ``units``.

    Flax keeps activations with ``capture_intermediates``.
    """
    leaves = jax.tree_util.tree_leaves_with_path(layers)
    if not leaves:
        raise UsageError("no activations were given; pass a pytree with at least one array")
    shares = {jax.tree_util.keystr(path, simple=True, separator="/"): dormant_fraction(x, tau) for path, x in leaves}
    units = jnp.asarray([x.shape[-1] for _, x in leaves], jnp.float32)
    total = jnp.sum(jnp.stack(list(shares.values())) * units) / jnp.sum(units)
    return {f"dormant/{name or 'layer'}": share for name, share in shares.items()} | {"dormant/all": total}


@jax.custom_batching.sequential_vmap
def _svd(matrix: Array) -> Array:
    """One matrix after another under ``vmap``: batches of them can wait for themselves on a CPU's threads."""
    return jnp.linalg.svd(matrix, compute_uv=False)


def _singular_values(features: Array) -> Array:
    """Singular values ``[min(batch, units)]``, largest first, in units of the largest entry, which cannot overflow."""
    matrix = features.astype(jnp.float32).reshape(-1, features.shape[-1])
    return _svd(matrix / _unit(jnp.max(jnp.abs(matrix))))


def effective_rank(features: Array) -> Array:
    """exp of the entropy of the normalised singular values (Roy and Vetterli 2007); 0 for features that are all 0.

    Args:
        features: ``[batch, units]`` (more leading axes are flattened).
    """
    values = _singular_values(features)
    total = jnp.sum(values)
    p = values / jnp.where(total > 0, total, 1.0)
    entropy = -jnp.sum(p * jnp.log(jnp.where(p > 0, p, 1.0)))
    return jnp.where(total == 0, 0.0, jnp.exp(entropy))


def stable_rank(features: Array) -> Array:
    """The squared Frobenius norm over the squared spectral norm; at most the rank, and 0 for features that are all 0."""
    squares = _singular_values(features) ** 2
    return jnp.sum(squares) / jnp.where(squares[0] == 0, 1.0, squares[0])


def feature_rank(features: Array, delta: float | Array = 0.01) -> Array:
    """The fewest singular values that hold a share ``1 - delta`` of their sum: srank (Kumar et al. 2021)."""
    values = _singular_values(features)
    total = jnp.sum(values)
    held = jnp.cumsum(values)
    # A share that is reached exactly counts: rounding of the sum must not ask for one more.
    enough = held >= (1.0 - delta) * total * (1.0 - 1e-6)
    return jnp.where(total == 0, 0.0, jnp.where(jnp.isnan(total), jnp.nan, 1.0 + jnp.argmax(enough)))


def numerical_rank(features: Array, tolerance: float | Array | None = None) -> Array:
    """How many singular values exceed ``tolerance`` times the largest; float32's rounding times the size by default."""
    values = _singular_values(features)
    if tolerance is None:
        rows = features.size // features.shape[-1]
        tolerance = max(rows, features.shape[-1]) * float(jnp.finfo(jnp.float32).eps)
    return jnp.where(jnp.isnan(values[0]), jnp.nan, jnp.sum((values > tolerance * values[0]).astype(jnp.float32)))


def global_norm(tree: PyTree) -> Array:
    """The Euclidean norm of all floating-point leaves together, without overflow of the squares."""
    leaves = [x.astype(jnp.float32).ravel() for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    leaves = [x for x in leaves if x.size]
    if not leaves:
        return jnp.float32(0.0)
    unit = _unit(jnp.max(jnp.stack([jnp.max(jnp.abs(x)) for x in leaves])))
    return unit * jnp.sqrt(sum(jnp.sum((x / unit) ** 2) for x in leaves))


def weight_norms(params: PyTree) -> Metrics:
    """Euclidean norm of every floating-point leaf, as ``weight_norm/<path>``, and of all of them as ``weight_norm/all``."""
    named = {
        f"weight_norm/{jax.tree_util.keystr(path, simple=True, separator='/')}": global_norm(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        if jnp.issubdtype(leaf.dtype, jnp.floating)
    }
    return named | {"weight_norm/all": global_norm(params)}


def gradient_norm(gradients: PyTree) -> Array:
    """The global norm of a gradient; NaN and infinity show through."""
    return global_norm(gradients)


def value_overestimation(q: Array, discounted_return: Array) -> Metrics:
    """How far values lie above the returns that followed, over any axes.

    Returns:
        ``overestimation/bias`` (mean of ``q - return``), ``overestimation/std`` of the same difference, and
        ``overestimation/relative``, the bias over the returns' mean magnitude (0 where that is 0).
    """
    q, reached = q.astype(jnp.float32), discounted_return.astype(jnp.float32)
    error = q - reached
    bias, size = jnp.mean(error), jnp.mean(jnp.abs(reached))
    return {
        "overestimation/bias": bias,
        "overestimation/std": jnp.std(error),
        "overestimation/relative": jnp.where(size > 0, bias / jnp.where(size > 0, size, 1.0), 0.0),
    }


def explained_variance(prediction: Array, target: Array) -> Array:
    """``1 - Var[target - prediction] / Var[target]``: 1 is perfect, 0 a constant, below 0 worse than one.

    Where the target does not vary: 1 if the prediction differs from it by a constant, else 0.
    """
    target, error = target.astype(jnp.float32), (target - prediction).astype(jnp.float32)
    spread, left = jnp.var(target), jnp.var(error)
    flat = jnp.where(left > 0, 0.0, 1.0)
    return jnp.where(spread > 0, 1.0 - left / jnp.where(spread > 0, spread, 1.0), flat)


def policy_entropy(entropy: Array, log_actions: float | None = None) -> Metrics:
    """Mean, standard deviation and extremes of the policy's entropy over the states seen [nats].

    Args:
        entropy: ``[...]``, one a state.
        log_actions: log of the number of actions, for ``entropy/share`` of the largest possible.
    """
    entropy = entropy.astype(jnp.float32)
    measured = {
        "entropy/mean": jnp.mean(entropy),
        "entropy/std": jnp.std(entropy),
        "entropy/min": jnp.min(entropy),
        "entropy/max": jnp.max(entropy),
    }
    return measured if log_actions is None else measured | {"entropy/share": measured["entropy/mean"] / log_actions}


def replay_age_histogram(ages: Array, bins: int, largest: Array | int) -> Array:
    """The share of drawn items in each of ``bins`` equal ranges of age from 0 to ``largest``. ``[bins]``, sums to 1.

    Ages at ``largest`` or above fall into the last bin, negative ones into the first. The bin is found in whole numbers:
    float32 cannot tell ages above 2^24 apart.

    Args:
        ages: integers of any shape, such as ``SampleInfo.age``.
        bins: static.
        largest: the number of ages there are (rows in a lane); may be traced.
    """
    if bins < 1:
        raise UsageError(f"a histogram needs at least 1 bin, got {bins}")
    largest = jnp.maximum(jnp.asarray(largest, jnp.int32), 1)
    # Edge k is ceil(k * largest / bins), without a product that overflows.
    steps = jnp.arange(1, bins)
    edges = steps * (largest // bins) + -(-steps * (largest % bins) // bins)
    index = jnp.searchsorted(edges, ages.ravel().astype(jnp.int32), side="right")
    return jnp.zeros(bins, jnp.float32).at[index].add(1.0 / ages.size)


def cosine_matrix(gradients: PyTree) -> Array:
    """Cosines between gradients stacked along the leading axis of every leaf. ``[n, n]``; 0 where one is 0.

    The largest entry of each gradient is divided out first, so that norms neither overflow nor vanish.
    """
    leaves = jax.tree.leaves(gradients)
    flat = jnp.concatenate([x.astype(jnp.float32).reshape(x.shape[0], -1) for x in leaves], 1)
    flat = flat / _unit(jnp.max(jnp.abs(flat), 1, keepdims=True))
    norm = jnp.linalg.norm(flat, axis=1, keepdims=True)
    unit = flat / jnp.where(norm > 0, norm, 1.0)
    return jnp.clip(jnp.matmul(unit, unit.T, precision=jax.lax.Precision.HIGHEST), -1.0, 1.0)


def gradient_conflict(gradients: PyTree) -> Metrics:
    """How gradients of several losses, tasks or members pull against each other (Yu et al. 2020).

    Args:
        gradients: every leaf ``[n, ...]``, ``n >= 2``.
    Returns:
        ``conflict/share`` of pairs with a negative cosine, ``conflict/mean_cosine`` and ``conflict/min_cosine``.
    """
    cosines = cosine_matrix(gradients)
    n = cosines.shape[0]
    if n < 2:
        raise UsageError(f"a conflict needs at least 2 gradients, got {n}; stack them along the leading axis")
    pairs = cosines[jnp.triu_indices(n, 1)]
    return {
        "conflict/share": jnp.mean((pairs < 0).astype(jnp.float32)),
        "conflict/mean_cosine": jnp.mean(pairs),
        "conflict/min_cosine": jnp.min(pairs),
    }
