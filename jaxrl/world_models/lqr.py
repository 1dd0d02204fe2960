"""Linear-quadratic regulation by Riccati scans: gains over a horizon and for ever.

``x' = A x + B u + d`` at cost ``sum_t x_t^T Q x_t + u_t^T R u_t``. Everything is for one problem; ``vmap`` over more. Values
are checked where they are known, shapes always.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.checks import check_finite, positive_int
from jaxrl.errors import UsageError
from jaxrl.koopman.parametrisations import matmul
from jaxrl.types import Array

# After so many doublings a recursion has looked 2^24 steps ahead.
DOUBLINGS = 24
POLISHING = 4
SYMMETRY = 1e-5  # of Q and R, over their largest entry


class Gains(NamedTuple):
    """``u_t = -feedback_t x_t``; the last row of ``cost`` is that of the final state."""

    feedback: Array  # [horizon, controls, size]
    cost: Array  # [horizon + 1, size, size]: x^T cost_t x is what follows from t on


class Regulator(NamedTuple):
    """``u = -feedback x - feedforward``."""

    feedback: Array  # [controls, size]
    feedforward: Array  # [controls]: against what drifts; 0 without a drift
    cost: Array  # [size, size]


def finite_horizon(a: Array, b: Array, q: Array, r: Array, horizon: int, final: Array | None = None) -> Gains:
    """The gains that are optimal over a horizon, by one scan backwards.

        K_t = (R + B^T P B)^-1 B^T P A,   P_t = Q + K_t^T R K_t + (A - B K_t)^T P (A - B K_t),   P = P_(t+1)

    The last form (Joseph's) keeps ``P`` positive where rounding would not.

    Args:
        a, b: ``[size, size]``, ``[size, controls]``.
        q, r: symmetric, ``q`` positive semi-definite and ``r`` positive definite.
        final: cost of the state after the last step; ``q`` by default.
    Raises:
        UsageError: for a horizon below 1, sizes that do not fit, or costs that are none.
    """
    check_problem(a, b, q, r, final)
    horizon = positive_int(horizon, "the horizon of a regulator")
    last = jnp.asarray(q if final is None else final)

    def back(cost: Array, _: None) -> tuple[Array, tuple[Array, Array]]:
        gain, cost = riccati_step(a, b, q, r, cost)
        return cost, (gain, cost)

    _, (gains, costs) = jax.lax.scan(back, last, None, horizon, reverse=True)
    return Gains(gains, jnp.concatenate([costs, last[None]]))


def infinite_horizon(
    a: Array, b: Array, q: Array, r: Array, drift: Array | None = None, doublings: int = DOUBLINGS
) -> Regulator:
    """The stationary gain: the Riccati recursion, ``2^doublings`` steps of it, by a scan that doubles its horizon.

        A' = A W A,   G' = G + A W G A^T,   H' = H + A^T H W A,   W = (I + G H)^-1;   G_0 = B R^-1 B^T, H_0 = Q

    ``H`` after ``k`` doublings is the cost over ``2^k`` steps (Anderson 1978); it converges for pairs that can be
    stabilised and detected. A few plain Riccati steps follow, which take rounding out.

    A mode that no control reaches and that neither grows nor decays, such as a constant feature, costs without limit; the gain
    has one all the same, and ``cost`` is then that over ``2^doublings`` steps.

    With a ``drift`` ``[size]`` the origin is no equilibrium, and the action that is optimal on average over time is
    ``-K x - (R + B^T P B)^-1 B^T (P d + p)`` with ``p = (I - F^T)^-1 F^T P d``, ``F = A - B K``. Derived here.

    Raises:
        UsageError: for sizes that do not fit, costs that are none, no doubling at all, and (where values are known) a pair
            with a mode that grows and that no control reaches.
    """
    check_problem(a, b, q, r)
    doublings = positive_int(doublings, "doublings")
    a, b, q, r = (jnp.asarray(x) for x in (a, b, q, r))
    one = jnp.eye(len(a), dtype=a.dtype)

    def double(state: tuple[Array, Array, Array], _: None):
        a, g, h = state
        solved = jnp.linalg.solve(one + matmul(g, h), jnp.concatenate([a, g], 1))
        through, weight = jnp.split(solved, 2, 1)
        g = g + matmul(matmul(a, weight), a.T)
        h = h + matmul(a.T, matmul(h, through))
        return (matmul(a, through), _symmetric(g), _symmetric(h)), None

    start = (a, matmul(b, jnp.linalg.solve(r, b.T)), q)
    (_, _, cost), _ = jax.lax.scan(double, start, None, doublings)
    polish = lambda cost, _: (riccati_step(a, b, q, r, cost)[1], None)
    cost, _ = jax.lax.scan(polish, cost, None, POLISHING)
    gain, _ = riccati_step(a, b, q, r, cost)
    if not isinstance(gain, jax.core.Tracer) and not bool(jnp.isfinite(gain).all() & jnp.isfinite(cost).all()):
        raise UsageError(
            f"the cost over 2^{doublings} steps is not finite: some direction of A grows that B cannot reach; add the "
            "control that reaches it, or use a finite horizon"
        )
    if drift is None:
        return Regulator(gain, jnp.zeros(b.shape[1], a.dtype), cost)
    if jnp.shape(drift) != (len(a),):
        raise UsageError(f"a drift has shape ({len(a)},), as the state has, got {jnp.shape(drift)}")
    check_finite("the drift", drift)
    closed = a - matmul(b, gain)
    pushed = matmul(cost, drift)
    ahead = jnp.linalg.solve(one - closed.T, matmul(closed.T, pushed))
    against = jnp.linalg.solve(r + matmul(b.T, matmul(cost, b)), matmul(b.T, pushed + ahead))
    return Regulator(gain, against, cost)


def riccati_step(a: Array, b: Array, q: Array, r: Array, cost: Array) -> tuple[Array, Array]:
    """The gain ``[controls, size]`` and the cost ``[size, size]`` one step earlier than ``cost``."""
    forward = matmul(cost, b)
    gain = jnp.linalg.solve(r + matmul(b.T, forward), matmul(forward.T, a))
    closed = a - matmul(b, gain)
    return gain, _symmetric(q + matmul(gain.T, matmul(r, gain)) + matmul(closed.T, matmul(cost, closed)))


def check_problem(a: Array, b: Array, q: Array, r: Array, final: Array | None = None) -> None:
    """Refuse a problem that is none.

    Raises:
        UsageError: for sizes that do not fit, numbers that are not finite, ``q`` or ``r`` that is not symmetric, ``q``
            with a negative eigenvalue and ``r`` with one that is not positive.
    """
    if jnp.ndim(a) != 2 or jnp.shape(a)[0] != jnp.shape(a)[1]:
        raise UsageError(f"A is square, got shape {jnp.shape(a)}")
    size = jnp.shape(a)[0]
    if jnp.ndim(b) != 2 or jnp.shape(b)[0] != size or jnp.shape(b)[1] < 1:
        raise UsageError(f"B has shape ({size}, controls) beside A of {jnp.shape(a)}, got {jnp.shape(b)}")
    controls = jnp.shape(b)[1]
    check_finite("A", a)
    check_finite("B", b)
    wanted = {"Q": (q, size), "R": (r, controls)} | ({} if final is None else {"the final cost": (final, size)})
    for name, (matrix, width) in wanted.items():
        if jnp.shape(matrix) != (width, width):
            raise UsageError(f"{name} has shape ({width}, {width}) here, got {jnp.shape(matrix)}")
        if not isinstance(matrix, jax.core.Tracer):
            _check_cost(name, np.asarray(matrix, np.float64), strict=name == "R")


def _check_cost(name: str, matrix: np.ndarray, strict: bool) -> None:
    check_finite(name, matrix)
    scale = np.max(np.abs(matrix), initial=0.0)
    if np.max(np.abs(matrix - matrix.T)) > SYMMETRY * scale:
        raise UsageError(f"{name} is not symmetric; use ({name} + {name}^T) / 2")
    least = float(np.linalg.eigvalsh(0.5 * (matrix + matrix.T))[0])
    if strict and not least > 0:
        raise UsageError(
            f"{name} is not positive definite: its least eigenvalue is {least:g}; every control has a cost"
        )
    if least < -SYMMETRY * scale:
        raise UsageError(f"{name} has the negative eigenvalue {least:g}; a cost is at least 0")


def _symmetric(matrix: Array) -> Array:
    return 0.5 * (matrix + matrix.T)
