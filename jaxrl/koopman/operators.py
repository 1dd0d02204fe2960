"""Linear steps of a latent vector, ``z' = A z + B c``, behind one interface.

A latent vector holds ``size`` real numbers. An operator is a container of pure functions over a pytree of parameters; it
knows how to multiply itself, which is what lets :mod:`jaxrl.koopman.rollouts` run a horizon in parallel.

>>> import jax
>>> from jaxrl.koopman import operators
>>> operator = operators.diagonal(size=4, control_size=2)
>>> params = operator.init(jax.random.key(0))
>>> operator.step(params, jax.numpy.ones(4), jax.numpy.zeros(2)).shape, operator.stable
((4,), True)

``stable`` operators never let the norm of an unforced latent grow, whatever finite parameters they are given. Rounding is
kept on the safe side by a margin of ``2e-6`` a step where it could add up.
"""

import math
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.checks import check_shapes, int_from, positive_int
from jaxrl.errors import UsageError, unknown
from jaxrl.koopman import parametrisations as forms
from jaxrl.koopman.parametrisations import apply_blocks, apply_complex, apply_matrix, matmul
from jaxrl.types import Array, Key, PyTree, check_key

MAX_PHASE = math.pi / 10  # rad a step, at first: a step of control is short


class Operator(NamedTuple):
    """One linear step and its algebra. Everything takes any leading axes; ``params`` has none (``vmap`` over them).

    ``transition`` is the part of a step that knows no latent, computed once a rollout: a matrix, a stack of blocks, a vector
    of complex numbers, or whatever ``apply`` takes. A new operator is best made by :func:`assemble`.
    """

    name: str
    size: int  # real numbers in a latent vector
    control_size: int  # 0: no control
    stable: bool  # whether the norm of an unforced latent never grows, for all parameters
    init: Callable[[Key], PyTree]  # key -> params
    # (params, latent [..., size], control [..., control_size] or None for none) -> [..., size]
    step: Callable[[PyTree, Array, Array | None], Array]
    matrix: Callable[[PyTree], tuple[Array, Array | None]]  # params -> A [size, size], B [size, control_size] or None
    transition: Callable[[PyTree], PyTree]  # params -> what apply and compose take
    apply: Callable[[PyTree, Array], Array]  # (transition, latent [..., size]) -> A latent, [..., size]
    drive: Callable[[PyTree, Array], Array]  # (params, control [..., control_size]) -> B control, [..., size]
    # (transition, transition) -> the transition of one after the other; None where only the dense matrix can be multiplied
    compose: Callable[[PyTree, PyTree], PyTree] | None = None
    diagonal: bool = False  # whether a transition is complex [size // 2] and acts on latents by apply_complex


def assemble(
    name: str,
    size: int,
    init: Callable[[Key], PyTree],
    transition: Callable[[PyTree], PyTree],
    apply: Callable[[PyTree, Array], Array],
    compose: Callable[[PyTree, PyTree], PyTree] | None = None,
    drive: Callable[[PyTree, Array], Array] | None = None,
    control_size: int = 0,
    stable: bool = False,
    diagonal: bool = False,
) -> Operator:
    """An :class:`Operator` from its parts; ``step`` and ``matrix`` follow from them.

    The operator's functions refuse parameters whose leaves have other names or shapes than those that ``init`` makes.

    Args:
        drive: needed where ``control_size`` is not 0.
    Raises:
        UsageError: for sizes that do not fit, or control without ``drive``.
    """
    size = positive_int(size, f"the size of {name}")
    control_size = int_from(control_size, f"the control size of {name}", 0)
    if control_size and drive is None:
        raise UsageError(
            f"{name} has {control_size} controls but no drive; pass drive=(params, control) -> [..., size]"
        )
    shapes = cache(lambda: jax.eval_shape(init, jax.random.key(0)))
    transition = partial(_checked, name, shapes, transition)
    drive = partial(_checked, name, shapes, drive) if drive else partial(_no_drive, name)
    parts = (name, size, control_size, transition, apply, drive)
    return Operator(
        name,
        size,
        control_size,
        stable,
        partial(_checked_init, init),
        partial(_step, *parts),
        partial(_matrix, *parts[1:]),
        transition,
        apply,
        drive,
        compose,
        diagonal,
    )


def dense(size: int, control_size: int = 0, radius: float = 0.99, max_phase: float = math.pi) -> Operator:
    """Any matrix at all: ``{"A": [size, size], "B": [size, control_size]}``. Not stable: nothing bounds ``A``.

    Starts from a random rotation times ``radius``, so that no direction dies or explodes at first.

    Args:
        max_phase: about the largest initial angle a step [rad]. Where a step is short, latents change little in it, and a
            start that turns them far has first to unlearn that.
    Raises:
        UsageError: for a size below 1, or a start that is none.
    """
    _check_start("dense", radius=radius, max_phase=max_phase)
    init = partial(forms.init_dense, size, control_size, radius, max_phase)
    return _with_control("dense", size, control_size, init, _entry_a, apply_matrix, matmul)


def bounded(size: int, control_size: int = 0, radius: float = 1.0, max_phase: float = math.pi) -> Operator:
    """Any matrix whose norm is at most ``radius``: ``A`` is divided by what it exceeds it by. Stable for radius <= 1.

    The norm is bounded from above by :func:`~jaxrl.koopman.parametrisations.norm_bound`, at most 0.5 % too high for 64
    numbers. Derived here; the norm bound on a graph's blocks is weaker but needs no product of blocks.
    """
    _check_start("bounded", radius=radius, max_phase=max_phase)
    init = partial(forms.init_dense, size, control_size, min(0.99, radius), max_phase)
    transition = partial(_bounded_transition, radius)
    return _with_control("bounded", size, control_size, init, transition, apply_matrix, matmul, stable=radius <= 1)


def skew(size: int, control_size: int = 0, max_decay: float = 0.01, max_phase: float = MAX_PHASE) -> Operator:
    """``A = exp(S - D)``: ``S`` skew-symmetric turns, ``D`` diagonal and not negative damps. Stable.

    ``{"S": [size, size], "D": [size], "B"}``; ``S`` enters as ``(S - S^T) / 2`` and ``D`` through softplus. Since the
    symmetric part of the generator is ``-D``, no norm grows; with ``D`` near 0 none shrinks either. Derived here.

    Args:
        max_decay: initial ``D``, a step, is uniform in its logarithm between a hundredth of this and this.
        max_phase: about the largest initial angle a step [rad].
    """
    _check_start("skew", max_decay=max_decay, max_phase=max_phase)
    init = partial(forms.init_skew, size, control_size, max_decay, max_phase)
    return _with_control("skew", size, control_size, init, _skew_transition, apply_matrix, matmul, stable=True)


def block(size: int, control_size: int = 0, block_size: int = 2, kind: str = "free", radius: float = 0.99) -> Operator:
    """Blocks along the diagonal. Not stable.

    ``kind="free"``: any ``block_size x block_size`` blocks, ``{"blocks": [size // block_size, block_size, block_size]}``.
    ``kind="rotation"``: ``exp(mu) [[cos omega, -sin omega], [sin omega, cos omega]]`` with ``mu`` of either sign, found in
    the code of Lusch et al. (2018, "Deep learning for universal linear embeddings of nonlinear dynamics").

    Raises:
        UsageError: where the size is no multiple of the block's, or for an unknown kind.
    """
    if kind not in ("free", "rotation"):
        raise unknown("kind of block", kind, ("free", "rotation"))
    _check_start("block", radius=radius)
    if kind == "rotation" and block_size != 2:
        raise UsageError(f"a rotation block is 2 x 2, got block_size {block_size}; use kind='free'")
    if block_size < 1 or size % block_size:
        raise UsageError(
            f"blocks of {block_size} do not fill {size}; use size {max(1, block_size) * -(-size // max(1, block_size))}"
        )
    if kind == "rotation":
        init = partial(forms.init_rotation, size, control_size, radius, MAX_PHASE)
        return _complex("rotation", size, control_size, init, forms.rotation_eigenvalues)
    init = partial(forms.init_blocks, size, control_size, block_size, radius)
    return _with_control("block", size, control_size, init, _entry_blocks, apply_blocks, matmul)


def diagonal(
    size: int,
    control_size: int = 0,
    min_radius: float = 0.9,
    max_radius: float = 0.999,
    max_phase: float = MAX_PHASE,
) -> Operator:
    """Complex modes ``z' = lambda z + gamma B c``, stored as pairs (real, imaginary). Stable.

    ``lambda = exp(-exp(nu) + i theta)``, ``gamma = sqrt(1 - |lambda|^2)``; ``{"nu": [size // 2], "theta": [size // 2],
    "B": [size, control_size]}``. Found in the linear recurrent unit of Orvieto et al. (2023), with ``gamma`` computed
    rather than learned. Initial ``lambda`` are uniform in area over a sector of the ring between the radii.

    Args:
        max_phase: largest initial angle a step [rad]; small for control, where a step is short.
    Raises:
        UsageError: for an odd size or a ring that is none.
    """
    if not 0 <= min_radius < max_radius < 1:
        raise UsageError(f"diagonal needs 0 <= min_radius < max_radius < 1, got {min_radius} and {max_radius}")
    _check_start("diagonal", max_phase=max_phase)
    init = partial(forms.init_ring, size, control_size, (min_radius, max_radius), max_phase)
    return _complex("diagonal", size, control_size, init, forms.ring_eigenvalues, _drive_scaled, stable=True)


def densify(operator: Operator) -> Operator:
    """The same operator with its matrix as the transition, so that powers are products of dense matrices."""
    return operator._replace(
        transition=partial(_first_of, operator.matrix), apply=apply_matrix, compose=matmul, diagonal=False
    )


def power(operator: Operator, transition: PyTree, n: int) -> PyTree:
    """The transition of ``n`` steps at once, by repeated squaring: at most ``2 log2 n`` products.

    Raises:
        UsageError: for ``n < 1``, or an operator without products.
    """
    n = positive_int(n, "n of power")
    if operator.compose is None:
        raise UsageError(f"{operator.name} cannot multiply itself; use densify(operator)")
    result = None
    while True:
        if n % 2:
            result = transition if result is None else operator.compose(transition, result)
        n //= 2
        if not n:
            return result
        transition = operator.compose(transition, transition)


def check_sizes(name: str, size: int, control_size: int, latent: Array, control: Array | None = None) -> None:
    """Refuse a latent or a control whose last axis is not the operator's.

    Raises:
        UsageError: names both sizes.
    """
    if jnp.ndim(latent) < 1 or jnp.shape(latent)[-1] != size:
        raise UsageError(f"{name} steps latents of size {size}, got shape {jnp.shape(latent)}; make it with that size")
    if control is None:
        return
    if control_size == 0:
        raise UsageError(f"{name} has no control, got one of shape {jnp.shape(control)}; pass None or set control_size")
    if jnp.ndim(control) < 1 or jnp.shape(control)[-1] != control_size:
        raise UsageError(f"{name} takes controls of size {control_size}, got shape {jnp.shape(control)}")


def _check_start(name: str, **values: float) -> None:
    for what, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise UsageError(f"{name} needs {what} above 0 and finite, got {value}")


def _step(name, size, control_size, transition, apply, drive, params: PyTree, latent: Array, control=None) -> Array:
    check_sizes(name, size, control_size, latent, control)
    moved = apply(transition(params), latent)
    return moved if control is None else moved + drive(params, control)


def _matrix(size, control_size, transition, apply, drive, params: PyTree) -> tuple[Array, Array | None]:
    dtype = jnp.result_type(*[x.dtype for x in jax.tree.leaves(params)])
    a = apply(transition(params), jnp.eye(size, dtype=dtype)).T
    return a, drive(params, jnp.eye(control_size, dtype=dtype)).T if control_size else None


def _no_drive(name: str, params: PyTree, control: Array) -> Array:
    raise UsageError(f"{name} has no control, got one of shape {jnp.shape(control)}; set control_size")


def _checked_init(init: Callable[[Key], PyTree], key: Key) -> PyTree:
    check_key(key)
    return init(key)


def _checked(name: str, shapes: Callable[[], PyTree], function: Callable, params: PyTree, *rest: Array) -> PyTree:
    check_shapes(name, shapes(), params)
    return function(params, *rest)


def _with_control(name, size, control_size, init, transition, apply, compose, drive=None, **options) -> Operator:
    drive = (drive or _drive) if control_size else None
    return assemble(name, size, init, transition, apply, compose, drive, control_size, **options)


def _complex(name, size, control_size, init, transition, drive=None, stable=False) -> Operator:
    if size % 2:
        raise UsageError(f"{name} stores complex modes as pairs, got size {size}; use {size + 1}")
    parts = (name, size, control_size, init, transition, apply_complex, jnp.multiply, drive)
    return _with_control(*parts, stable=stable, diagonal=True)


def _entry_a(params: PyTree) -> Array:
    return params["A"]


def _entry_blocks(params: PyTree) -> Array:
    return params["blocks"]


def _first_of(matrix: Callable[[PyTree], tuple[Array, Array | None]], params: PyTree) -> Array:
    return matrix(params)[0]


def _bounded_transition(radius: float, params: PyTree) -> Array:
    return forms.shrink_to_norm(params["A"], radius)


def _skew_transition(params: PyTree) -> Array:
    return forms.contraction(params["S"], params["D"])


def _drive(params: PyTree, control: Array) -> Array:
    return apply_matrix(params["B"], control)


def _drive_scaled(params: PyTree, control: Array) -> Array:
    return jnp.repeat(forms.ring_input_scale(params), 2) * _drive(params, control)
