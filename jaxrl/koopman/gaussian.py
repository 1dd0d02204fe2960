"""Uncertainty of a linear step in closed form: covariances that grow with the horizon, samples, and an analog bank.

Covariances are ``[size, size]`` and shared by whatever they are shared by in training; ``vmap`` over nodes or blocks.
"""

import jax
import jax.numpy as jnp

from jaxrl.checks import positive_int
from jaxrl.errors import UsageError
from jaxrl.koopman.parametrisations import matmul
from jaxrl.types import Array, Key, check_key


def spread(over_horizon: Array, stationary: Array) -> Array:
    """``C - A_T C A_T^T``: covariance of a latent ``T`` steps ahead given where it was, projected to be one.

    Right for linear-Gaussian dynamics whose latents have covariance ``C`` at any time; equals ``1 - s^(2T)`` a mode for
    white latents and diagonal ``A``. Derived here: the released code of the method takes the singular values of each node's
    block on itself, which leaves its neighbours out and holds for white latents alone.

    Args:
        over_horizon: ``A^T``, the matrix of all steps together.
        stationary: ``C``, estimated on latents of training.
    Raises:
        UsageError: for matrices that are not square and of one size.
    """
    _check_square("a step and a covariance", over_horizon, stationary)
    return positive_part(stationary - matmul(matmul(over_horizon, stationary), over_horizon.T))


def process_noise(transition: Array, stationary: Array) -> Array:
    """The noise of one step that keeps ``C``: ``Q = C - A C A^T``, projected to be a covariance."""
    return spread(transition, stationary)


def residual_noise(x: Array, y: Array, transition: Array) -> Array:
    """The covariance of what a step misses, ``y - A x`` less its mean. ``x, y: [..., size]`` -> ``[size, size]``.

    Raises:
        UsageError: for sizes that do not fit.
    """
    _check_square("a step", transition)
    if jnp.shape(x) != jnp.shape(y) or jnp.shape(x)[-1:] != jnp.shape(transition)[:1]:
        shapes = (jnp.shape(part) for part in (x, y, transition))
        raise UsageError("x and y are [..., size] for a step [size, size], got {}, {}, {}".format(*shapes))
    missed = (y - matmul(x, transition.T)).reshape(-1, y.shape[-1])
    missed = missed - jnp.mean(missed, 0)
    return matmul(missed.T, missed) / len(missed)


def propagate(transition: Array, noise: Array, initial: Array, horizon: int) -> Array:
    """``S_(t+1) = A S_t A^T + Q``: covariances after 1 … ``horizon`` steps, ``[horizon, size, size]``, exactly symmetric.

    Raises:
        UsageError: for a horizon below 1 or sizes that do not fit.
    """
    horizon = positive_int(horizon, "the horizon of propagate")
    _check_square("transition, noise and initial covariance", transition, noise, initial)

    def step(covariance: Array, _: None) -> tuple[Array, Array]:
        moved = _symmetric(matmul(matmul(transition, covariance), transition.T) + noise)
        return moved, moved

    return jax.lax.scan(step, jnp.asarray(initial), None, horizon)[1]


def positive_part(matrix: Array) -> Array:
    """The nearest positive semi-definite matrix in Frobenius norm: negative eigenvalues become 0. ``[..., n, n]``."""
    values, vectors = jnp.linalg.eigh(_symmetric(matrix))
    scaled = vectors * jnp.maximum(values, 0.0)[..., None, :]
    return _symmetric(matmul(scaled, vectors.swapaxes(-1, -2)))


def sample(mean: Array, covariance: Array, count: int, key: Key) -> Array:
    """Draws of a Gaussian that may be singular, ``[count, size]``, by the symmetric root of its positive part.

    Raises:
        UsageError: for fewer than one draw, sizes that do not fit, or an untyped key.
    """
    check_key(key)
    count = positive_int(count, "members of an ensemble")
    _check_square("a covariance", covariance)
    if jnp.shape(mean) != jnp.shape(covariance)[:1]:
        raise UsageError(f"a mean beside a covariance {jnp.shape(covariance)} is one row, got {jnp.shape(mean)}")
    values, vectors = jnp.linalg.eigh(_symmetric(covariance))
    root = vectors * jnp.sqrt(jnp.maximum(values, 0.0))
    noise = jax.random.normal(key, (count, mean.shape[-1]), mean.dtype)
    return mean + matmul(noise, matmul(root, vectors.T).T)


def analog_weights(u: Array, bank: Array, singular_values: Array, steps: Array | int) -> Array:
    """Weights of stored latents as what follows after ``steps``: ``w_j ~ max(0, 1 + sum_i s_i^steps u_i v_i(z_j))``. ``[bank]``.

    Derived here from ``p(z'|z) = p(z') (1 + sum_i s_i u_i(z) v_i(z'))`` with whitened singular functions; ``s^steps`` takes
    ``u`` and ``v`` for the same functions, which holds for reversible dynamics. All alike where no weight is positive.

    Args:
        u: ``[functions]`` at where the forecast starts.
        bank: ``[bank, functions]``, ``v`` at the stored latents.
        singular_values: ``[functions]``, in [0, 1].
    Raises:
        UsageError: for sizes that do not fit.
    """
    shapes = (jnp.shape(u), jnp.shape(bank)[1:], jnp.shape(singular_values))
    if jnp.ndim(bank) != 2 or len(set(shapes)) != 1:
        raise UsageError(f"u, rows of the bank and singular values are [functions], got {', '.join(map(str, shapes))}")
    ratio = jnp.maximum(1.0 + matmul(bank, singular_values**steps * u), 0.0)
    total = jnp.sum(ratio)
    return jnp.where(total > 0, ratio / jnp.where(total > 0, total, 1.0), 1.0 / len(bank))


def resample(weights: Array, count: int, key: Key) -> Array:
    """Indices of ``count`` members of a bank drawn with replacement in proportion to their weights. int32 ``[count]``."""
    check_key(key)
    count = positive_int(count, "members of an ensemble")
    return jax.random.choice(key, len(weights), (count,), p=weights).astype(jnp.int32)


def _check_square(what: str, *matrices: Array) -> None:
    shapes = [jnp.shape(matrix) for matrix in matrices]
    if len(set(shapes)) != 1 or len(shapes[0]) != 2 or shapes[0][0] != shapes[0][1]:
        raise UsageError(f"{what}: square and of one size, got {', '.join(map(str, shapes))}")


def _symmetric(matrix: Array) -> Array:
    return 0.5 * (matrix + matrix.swapaxes(-1, -2))
