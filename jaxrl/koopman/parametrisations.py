"""From free parameters to transitions: what parameters stand for, where they start, and how a transition acts on latents.

Everything here is finite, and has finite gradients, for all finite parameters.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp

from jaxrl.networks.initialisers import orthogonal
from jaxrl.types import Array, Key, PyTree

# TF32 and bfloat16 products would neither keep a norm below 1 nor let three ways to roll out agree.
matmul = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)

# What a norm is kept below 1 by, so that rounding in float32 cannot add up to growth: 0.2 % over 1,000 steps.
MARGIN = 2e-6
# A mode that decays faster than exp(-12) a step is gone either way.
LARGEST_DECAY = 12.0
# Every rotation is the exponential of a skew matrix with norm at most pi.
LARGEST_ANGLE = math.pi
PADE = [factor / 17297280 for factor in (17297280, 8648640, 1995840, 277200, 25200, 1512, 56, 1)]
LARGEST_LOG_RATE = 80.0  # exp(80) is finite in float32, and exp(-exp(80)) is 0


def norm_bound(matrix: Array, squarings: int = 8) -> Array:
    """An upper bound of the spectral norm, ``||(M^T M)^n||_F^(1/2n)`` with ``n = 2^squarings``. [].

    Never below the norm but for rounding, above it by a factor of at most ``size^(1/4n)``, and differentiable everywhere
    but at 0, where it is 0 with gradient 0. Derived here from ``||X||_2^n <= ||X^n||_F <= sqrt(size) ||X||_2^n`` for
    symmetric ``X``.
    """
    unit, largest = with_unit_entries(matrix)
    return _unit_norm_bound(unit, largest, squarings) * largest


def with_unit_entries(tree: PyTree) -> tuple[PyTree, Array]:
    """A pytree of arrays over the largest absolute entry of all, and that entry; zeros stay zeros.

    Bounds and quotients of what comes out neither overflow nor vanish, however large the entries were.
    """
    # What is done with the result does not depend on the unit. Nor do its gradients, which through a tiny one would overflow.
    largest = jax.lax.stop_gradient(jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(tree)])))
    # A compiler may multiply by the reciprocal, which of the largest numbers is subnormal and flushed to 0.
    down = jnp.where(largest > 1.0, 1.0 / 16.0, 1.0)
    by = jnp.where(largest > 0, largest * down, 1.0)
    return jax.tree.map(lambda leaf: leaf * down / by, tree), largest


def shrunk(tree: PyTree, unit: PyTree, largest: Array, bound: Array, limit: float) -> PyTree:
    """``tree`` where ``bound * largest`` is at most ``limit``, else ``unit * limit / bound``, its own multiple within it.

    Args:
        unit, largest: of :func:`with_unit_entries`.
        bound: of ``unit``.
    """
    # The product could overflow, and the quotient is infinite where nothing is too large.
    too_large = bound > limit / largest
    scale = limit / jnp.where(bound > 0, bound, 1.0)
    return jax.tree.map(lambda leaf, part: jnp.where(too_large, part * scale, leaf), tree, unit)


def _unit_norm_bound(unit: Array, largest: Array, squarings: int = 8) -> Array:
    gram = matmul(unit.T, unit)
    log_norm = jnp.zeros((), unit.dtype)
    for i in range(squarings + 1):
        gram = matmul(gram, gram) if i else gram
        size = jnp.sqrt(jnp.sum(jnp.where(largest > 0, gram, 1.0) ** 2))
        gram, log_norm = gram / size, log_norm + jnp.log(size) / 2 ** (i + 1)
    return jnp.where(largest > 0, jnp.exp(log_norm), 0.0)


def shrink_to_norm(matrix: Array, radius: float) -> Array:
    """The matrix itself where its norm bound is at most ``radius``, else divided by the excess."""
    unit, largest = with_unit_entries(matrix)
    return shrunk(matrix, unit, largest, _unit_norm_bound(unit, largest), radius * (1.0 - MARGIN))


def skew_part(matrix: Array) -> Array:
    """``(M - M^T) / 2``, without overflow."""
    return 0.5 * matrix - 0.5 * matrix.T


def contraction(free: Array, decay: Array) -> Array:
    """``exp(S - D)`` with ``S`` the skew part of ``free`` and ``D = softplus(decay)``; its norm is at most 1. Derived here.

    ``S`` beyond a norm of pi (by its bound) is shrunk to it and ``D`` beyond 12 a step is cut. Neither takes a rotation or
    a decay away that would be missed, and both keep the exponential well conditioned.
    """
    turn = shrink_to_norm(skew_part(free), LARGEST_ANGLE)
    damping = jnp.minimum(jax.nn.softplus(decay), LARGEST_DECAY)
    return bounded_exponential(turn - jnp.diag(damping)) * (1.0 - MARGIN)


def bounded_exponential(generator: Array) -> Array:
    """``exp(G)`` to float32's precision for norms up to 15, by two squarings of the [7/7] Padé approximant.

    ``p(G / 4)`` over ``p(-G / 4)``, found in Higham (2005). Where the symmetric part of ``G`` is not positive, the norm of
    this quotient is at most 1 whatever the approximation's error, which is not true of a Taylor sum; and without a loop it
    compiles and batches fast.
    """
    g, one = generator / 4.0, jnp.eye(len(generator), dtype=generator.dtype)
    g2 = matmul(g, g)
    g4 = matmul(g2, g2)
    g6 = matmul(g4, g2)
    odd = matmul(g, PADE[1] * one + PADE[3] * g2 + PADE[5] * g4 + PADE[7] * g6)
    even = PADE[0] * one + PADE[2] * g2 + PADE[4] * g4 + PADE[6] * g6
    quarter = jnp.linalg.solve(even - odd, even + odd)
    half = matmul(quarter, quarter)
    return matmul(half, half)


def ring_eigenvalues(params: PyTree) -> Array:
    """``exp(-exp(nu) + i theta)``, inside the unit circle. Complex ``[modes]``."""
    return polar(jnp.exp(-_rate(params["nu"])), params["theta"])


def ring_input_scale(params: PyTree) -> Array:
    """``sqrt(1 - |lambda|^2)``: with it a mode driven by white noise of variance 1 has variance 1. ``[modes]``."""
    gap = -jnp.expm1(-2.0 * _rate(params["nu"]))
    return jnp.sqrt(jnp.maximum(gap, jnp.finfo(gap.dtype).tiny))


def rotation_eigenvalues(params: PyTree) -> Array:
    """``exp(mu + i omega)``, of any size. Complex ``[modes]``."""
    return polar(jnp.exp(params["mu"]), params["omega"])


def polar(radius: Array, phase: Array) -> Array:
    """``radius exp(i phase)``."""
    return jax.lax.complex(radius * jnp.cos(phase), radius * jnp.sin(phase))


def init_control(key: Key, size: int, control_size: int) -> dict[str, Array]:
    """``{"B": [size, control_size]}``, normal with variance ``1 / control_size``; nothing without control."""
    if not control_size:
        return {}
    return {"B": jax.random.normal(key, (size, control_size)) / math.sqrt(control_size)}


def init_dense(size: int, control_size: int, radius: float, max_phase: float, key: Key) -> PyTree:
    """A random rotation times ``radius``, by angles up to about ``max_phase``; any rotation at all from pi on."""
    a_key, b_key = jax.random.split(key)
    if max_phase >= LARGEST_ANGLE:
        turn = orthogonal()(a_key, (size, size))
    else:
        turn = bounded_exponential(skew_part(turning(a_key, size, max_phase)))
    return {"A": radius * turn} | init_control(b_key, size, control_size)


def turning(key: Key, size: int, max_phase: float) -> Array:
    """A matrix whose skew part turns by angles up to about ``max_phase``: with deviation s its norm is about s sqrt(2 size)."""
    return jax.random.normal(key, (size, size)) * max_phase / math.sqrt(2 * size)


def init_blocks(size: int, control_size: int, block_size: int, radius: float, key: Key) -> PyTree:
    """Random rotations times ``radius``, one a block."""
    a_key, b_key = jax.random.split(key)
    keys = jax.random.split(a_key, size // block_size)
    blocks = jax.vmap(lambda key: orthogonal(radius)(key, (block_size, block_size)))(keys)
    return {"blocks": blocks} | init_control(b_key, size, control_size)


def init_rotation(size: int, control_size: int, radius: float, max_phase: float, key: Key) -> PyTree:
    """Pairs that shrink by ``radius`` a step and turn by angles uniform up to ``max_phase``."""
    a_key, b_key = jax.random.split(key)
    omega = jax.random.uniform(a_key, (size // 2,), maxval=max_phase)
    return {"mu": jnp.full(size // 2, math.log(radius)), "omega": omega} | init_control(b_key, size, control_size)


def init_skew(size: int, control_size: int, max_decay: float, max_phase: float, key: Key) -> PyTree:
    """Turns with angles up to about ``max_phase`` a step, decays log-uniform in ``[max_decay / 100, max_decay]``."""
    s_key, d_key, b_key = jax.random.split(key, 3)
    decay = max_decay * 10.0 ** jax.random.uniform(d_key, (size,), minval=-2.0, maxval=0.0)
    return {"S": turning(s_key, size, max_phase), "D": jnp.log(jnp.expm1(decay))} | init_control(
        b_key, size, control_size
    )


def init_ring(size: int, control_size: int, radii: tuple[float, float], max_phase: float, key: Key) -> PyTree:
    """Eigenvalues uniform in area between two radii and over angles up to ``max_phase`` (Orvieto et al. 2023)."""
    r_key, p_key, b_key = jax.random.split(key, 3)
    low, high = radii[0] ** 2, radii[1] ** 2
    square = low + (high - low) * (1.0 - jax.random.uniform(r_key, (size // 2,)))  # never 0
    theta = jax.random.uniform(p_key, (size // 2,), maxval=max_phase)
    return {"nu": jnp.log(-0.5 * jnp.log(square)), "theta": theta} | init_control(b_key, size, control_size)


def as_complex(latent: Array) -> Array:
    """Pairs of reals ``[..., size]`` as complex numbers ``[..., size // 2]``."""
    pairs = latent.reshape(*latent.shape[:-1], latent.shape[-1] // 2, 2)
    return jax.lax.complex(pairs[..., 0], pairs[..., 1])


def as_pairs(modes: Array) -> Array:
    """The inverse of :func:`as_complex`."""
    return jnp.stack([modes.real, modes.imag], -1).reshape(*modes.shape[:-1], 2 * modes.shape[-1])


def apply_matrix(matrix: Array, latent: Array) -> Array:
    """``A z`` for latents with any leading axes."""
    return matmul(latent, matrix.T)


def apply_blocks(blocks: Array, latent: Array) -> Array:
    """Each block on its part of the latent; blocks ``[n, b, b]``, latents ``[..., n b]``."""
    parts = latent.reshape(*latent.shape[:-1], blocks.shape[0], blocks.shape[1])
    moved = jnp.einsum("bij,...bj->...bi", blocks, parts, precision=jax.lax.Precision.HIGHEST)
    return moved.reshape(latent.shape)


def apply_complex(modes: Array, latent: Array) -> Array:
    """Each complex mode ``[..., size // 2]`` times its pair; latents ``[..., size]``.

    In real numbers, ``Re lambda z + Im lambda J z`` with ``J`` the quarter turn: one pass over memory, several times faster
    on a CPU than products of complex numbers.
    """
    turned = latent.reshape(*latent.shape[:-1], latent.shape[-1] // 2, 2)[..., ::-1].reshape(latent.shape)
    return jnp.repeat(modes.real, 2, -1) * latent + as_pairs(jax.lax.complex(-modes.imag, modes.imag)) * turned


def _rate(nu: Array) -> Array:
    # The margin keeps the modulus below 1 after rounding, however slow the mode, without a gradient that vanishes.
    return jnp.exp(jnp.minimum(nu, LARGEST_LOG_RATE)) + MARGIN
