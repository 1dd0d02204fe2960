"""Three ways to the same latents ``z_1 … z_T``: one step at a time, by an associative scan, and in closed form.

``z_t = A^t z_0 + sum_{i < t} A^(t-1-i) B c_i``. All three take ``(operator, params, latent, controls, horizon)``, for one
latent (``vmap`` over more), and agree to rounding, 1e-5 for latents of about 1 over a horizon of 200.

=============== ============================== =====================================================================
way             depth                          work for ``T`` steps of ``m`` numbers, dense / diagonal
=============== ============================== =====================================================================
``scan``        ``T``                          ``T m^2`` / ``T m``
``associative`` ``log T``                      ``T m^2 + m^3 log T`` / ``T m``
``closed_form`` ``log T``                      ``T m^2 + m^3 log T`` / ``T m log T``, by FFT where there is control
=============== ============================== =====================================================================

Operators that cannot multiply themselves (:attr:`Operator.compose` is None) are taken as dense matrices by the last two.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp

from jaxrl.checks import positive_int
from jaxrl.errors import UsageError, unknown
from jaxrl.koopman.operators import Operator, check_sizes, densify
from jaxrl.koopman.parametrisations import as_complex, as_pairs, matmul
from jaxrl.types import Array, PyTree

# The largest matrix that the parallel ways make of an operator without products: 64 MiB in float32.
LARGEST_DENSE = 4096
# Steps of a block of the associative scan, and controls that enter it: more costs more products than it saves passes.
LARGEST_BLOCK = 8
BLOCK_INPUTS = 48

Rollout: TypeAlias = Callable[[Operator, PyTree, Array, Array | None, int], Array]


def scan(operator: Operator, params: PyTree, latent: Array, controls: Array | None, horizon: int) -> Array:
    """One step after the other, ``[horizon, size]``; the transition is computed once.

    Args:
        latent: ``[size]``, the start, which is not part of the result.
        controls: ``[horizon, control_size]``, or None for none.
    Raises:
        UsageError: for a horizon below 1 and for sizes that do not fit.
    """
    check_rollout(operator, latent, controls, horizon)
    step = partial(_forced_step, operator.apply, operator.transition(params))
    forces = None if controls is None else operator.drive(params, controls)
    return jax.lax.scan(step, latent, forces, horizon)[1]


def associative(operator: Operator, params: PyTree, latent: Array, controls: Array | None, horizon: int) -> Array:
    """By an associative scan over blocks of steps, ``[horizon, size]``. Arguments and errors as :func:`scan`.

    Blocks compose by ``(A, b) then (A', b') = (A' A, A' b + b')``. As all blocks have the same ``A``, the products at one
    level of the tree are one power of it, computed once instead of once a block. What the controls of a block do inside it
    is one product with its Markov parameters, which keeps passes over memory few. Derived here.

    Raises:
        UsageError: also for an operator without products that is too large as a dense matrix.
    """
    check_rollout(operator, latent, controls, horizon)
    operator = with_products(operator)
    transition = operator.transition(params)
    if controls is None:
        return _free_response(operator, transition, latent, horizon)
    length = _block_length(horizon, operator.control_size)
    blocks = -(-horizon // length)
    padded = jnp.pad(controls, ((0, blocks * length - horizon), (0, 0))).reshape(blocks, length, -1)
    forced, ends = _forced_blocks(operator, params, transition, padded)
    over_block = length.bit_length() - 1
    powers = _squares(operator, transition, over_block + max(1, blocks.bit_length() - 1))
    first = operator.apply(_at(powers, over_block), latent) + ends[:1]
    ends = _prefix(operator, powers, over_block, jnp.concatenate([first, ends[1:]]))
    starts = jnp.concatenate([latent[None], ends[:-1]])
    return (_free_response(operator, transition, starts, length) + forced).reshape(-1, operator.size)[:horizon]


def closed_form(operator: Operator, params: PyTree, latent: Array, controls: Array | None, horizon: int) -> Array:
    """Powers for the start, a convolution by FFT for the controls; ``[horizon, size]``. As :func:`scan` otherwise.

    Powers come by doubling: ``[A, A^2]`` times ``A^2`` gives the next two. A diagonal operator convolves every mode with
    its own powers (reported of the world model of Mondal et al. 2024); others convolve controls with the Markov parameters
    ``A^k B``.

    Raises:
        UsageError: also for an operator without products that is too large as a dense matrix.
    """
    check_rollout(operator, latent, controls, horizon)
    operator = with_products(operator)
    transition = operator.transition(params)
    free = _free_response(operator, transition, latent, horizon)
    if controls is None:
        return free
    length = _fast_length(2 * horizon - 1)
    signal = jnp.fft.fft(controls, length, 0)
    if operator.diagonal:
        kernel = jnp.concatenate([jnp.ones_like(transition)[None], _mode_powers(transition, horizon)[:-1]])
        real, imaginary = (as_complex(operator.drive(params, part)) for part in (signal.real, signal.imag))
        forced = jnp.fft.ifft(jnp.fft.fft(kernel, length, 0) * (real + 1j * imaginary), length, 0)
        return free + as_pairs(forced[:horizon])
    kernel = jnp.fft.fft(_markov_parameters(operator, params, transition, horizon), length, 1)
    forced = jnp.einsum("cfm,fc->fm", kernel, signal, precision=jax.lax.Precision.HIGHEST)
    return free + jnp.fft.ifft(forced, length, 0).real[:horizon]


ROLLOUTS: dict[str, Rollout] = {"scan": scan, "associative": associative, "closed_form": closed_form}


def by_name(name: str) -> Rollout:
    """``"scan"``, ``"associative"`` or ``"closed_form"``.

    Raises:
        UsageError: for another name.
    """
    if name not in ROLLOUTS:
        raise unknown("rollout", name, ROLLOUTS)
    return ROLLOUTS[name]


def check_rollout(operator: Operator, latent: Array, controls: Array | None, horizon: int) -> None:
    """Refuse a horizon below 1 and arrays that do not fit the operator or the horizon.

    Raises:
        UsageError: names the value and what would fit.
    """
    positive_int(horizon, "the horizon of a rollout")
    if jnp.ndim(latent) != 1:
        raise UsageError(f"a rollout starts from one latent [{operator.size}], got {jnp.shape(latent)}; vmap over it")
    check_sizes(operator.name, operator.size, operator.control_size, latent, controls)
    if controls is not None and (jnp.ndim(controls) != 2 or len(controls) != horizon):
        wanted = (horizon, operator.control_size)
        raise UsageError(f"controls for a horizon of {horizon} have shape {wanted}, got {jnp.shape(controls)}")


def with_products(operator: Operator) -> Operator:
    """The operator itself if it can multiply itself, else as a dense matrix.

    Raises:
        UsageError: where that matrix would be too large.
    """
    if operator.compose is not None:
        return operator
    if operator.size > LARGEST_DENSE:
        raise UsageError(
            f"powers of {operator.name} are dense, and {operator.size} x {operator.size} is too large a matrix "
            f"(at most {LARGEST_DENSE}); use scan"
        )
    return densify(operator)


def _forced_step(apply: Callable, transition: PyTree, latent: Array, force: Array | None) -> tuple[Array, Array]:
    latent = apply(transition, latent) if force is None else apply(transition, latent) + force
    return latent, latent


def _free_response(operator: Operator, transition: PyTree, latents: Array, count: int) -> Array:
    """``A z … A^count z``, ``[..., size] -> [..., count, size]``, by doubling."""
    if operator.diagonal:
        return operator.apply(_mode_powers(transition, count), latents[..., None, :])
    done, over = operator.apply(transition, latents)[..., None, :], transition
    while done.shape[-2] < count:
        more = operator.apply(over, done[..., : count - done.shape[-2], :])
        done = jnp.concatenate([done, more], -2)
        over = operator.compose(over, over) if done.shape[-2] < count else over
    return done


def _mode_powers(modes: Array, count: int) -> Array:
    """``lambda … lambda^count``, ``[count, modes]``. By products, for the phase of a late power loses digits in float32."""
    done = modes[None]
    while len(done) < count:
        done = jnp.concatenate([done, done[-1] * done[: count - len(done)]])
    return done


def _markov_parameters(operator: Operator, params: PyTree, transition: PyTree, count: int) -> Array:
    """``B, A B … A^(count-1) B``, ``[control_size, count, size]``: what an impulse of each control does."""
    columns = operator.drive(params, jnp.eye(operator.control_size))
    if count == 1:
        return columns[:, None]
    return jnp.concatenate([columns[:, None], _free_response(operator, transition, columns, count - 1)], 1)


def _block_length(horizon: int, control_size: int) -> int:
    """The largest power of two that is neither above the horizon nor makes blocks that cost more than they save."""
    largest = max(1, min(horizon, LARGEST_BLOCK, BLOCK_INPUTS // control_size))
    return 2 ** (largest.bit_length() - 1)


def _forced_blocks(operator: Operator, params: PyTree, transition: PyTree, controls: Array) -> tuple[Array, Array]:
    """What the controls of each block do from rest: ``[blocks, length, size]``, and its end ``[blocks, size]``.

    Args:
        controls: ``[blocks, length, control_size]``.
    """
    blocks, length, _ = controls.shape
    if length == 1:
        forced = operator.drive(params, controls)
        return forced, forced[:, 0]
    markov = _markov_parameters(operator, params, transition, length)
    lag = jnp.arange(length)[None] - jnp.arange(length)[:, None]  # [when acted, when seen]
    response = jnp.where(lag[..., None] >= 0, markov[:, jnp.maximum(lag, 0)], 0.0)
    response = response.swapaxes(0, 1).reshape(controls[0].size, length * operator.size)
    flat = controls.reshape(blocks, -1)
    # The ends once more by themselves: the tree reads them often, and from here they lie side by side in memory.
    return matmul(flat, response).reshape(blocks, length, -1), matmul(flat, response[:, -operator.size :])


def _squares(operator: Operator, transition: PyTree, count: int) -> PyTree:
    """``A, A^2, A^4 …``, stacked: ``count`` of them and no more, for of an operator that grows the next may be infinite.

    In a loop, so that no compiler works a power out anew for every latent it acts on.
    """
    square = lambda power, _: (operator.compose(power, power),) * 2
    later = jax.lax.scan(square, transition, None, count - 1)[1]
    return jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), transition, later)


def _at(powers: PyTree, level: int) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[level], powers)


def _prefix(operator: Operator, powers: PyTree, level: int, inputs: Array) -> Array:
    """``x_t = A x_(t-1) + inputs_t`` from ``x_(-1) = 0``, ``A`` the power at ``level``; ``[T, size]``, by a binary tree."""
    count = len(inputs)
    if count == 1:
        return inputs
    transition = _at(powers, level)
    pairs = operator.apply(transition, inputs[: count - 1 : 2]) + inputs[1::2]
    odd = _prefix(operator, powers, level + 1, pairs)
    even = operator.apply(transition, odd[: (count - 1) // 2]) + inputs[2::2]
    return _interleave(jnp.concatenate([inputs[:1], even]), odd)


def _interleave(even: Array, odd: Array) -> Array:
    both = jnp.stack([even[: len(odd)], odd], 1).reshape(2 * len(odd), *odd.shape[1:])
    return both if len(even) == len(odd) else jnp.concatenate([both, even[-1:]])


def _fast_length(shortest: int) -> int:
    from scipy.fft import next_fast_len

    return next_fast_len(shortest)
