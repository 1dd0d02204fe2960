"""Planners: model predictive control of a linear model by a condensed, bounded quadratic problem, and CEM for any model.

Everything is for one latent; ``vmap`` over more. A plan is an array of actions ``[horizon, controls]``; keep it from one
step to the next, for both planners start from the :func:`shifted` last one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.errors import UsageError
from jaxrl.koopman import operators, rollouts
from jaxrl.koopman.parametrisations import matmul, norm_bound
from jaxrl.types import Array, Key, PyTree, check_key
from jaxrl.world_models.base import WorldModel
from jaxrl.world_models.lqr import check_problem

ITERATIONS = 20


class LatentCost(NamedTuple):
    """``(z - goal)^T q (z - goal) + u^T r u`` a step."""

    q: Array  # [size, size]
    r: Array  # [controls, controls]
    goal: Array  # [size]


class Condensed(NamedTuple):
    """``U^T hessian U / 2 + U^T (from_latent z - from_goal goal)``: the cost of a plan ``U [horizon * controls]``.

    Its size knows nothing of the latent's. The half is the cost's, so that both have the same minimiser.
    """

    hessian: Array  # [horizon * controls, horizon * controls]
    from_latent: Array  # [horizon * controls, size]
    from_goal: Array  # [horizon * controls, size]
    largest: Array  # []: a bound of the Hessian's largest eigenvalue
    rest: Array  # [horizon, controls], zeros: a plan to begin with


def latent_cost(model: WorldModel, params: PyTree, q: Array, r: Array, goal: Array, ridge: float = 1e-4) -> LatentCost:
    """A quadratic cost on observations, as one on latents: ``C^T q C + ridge I`` around the latent of the goal.

    Args:
        q: ``[observations, observations]``, in the observations that the model sees.
        goal: ``[observations]``.
    Raises:
        UsageError: for a model whose decoder is not linear, or sizes that do not fit.
    """
    if model.config.decoder_sizes:
        raise UsageError(
            f"a quadratic cost needs a linear decoder, got decoder_sizes={model.config.decoder_sizes}; use ()"
        )
    size, observations = model.config.latent_size, model.observation_size
    if jnp.shape(q) != (observations, observations) or jnp.shape(goal) != (observations,):
        raise UsageError(
            f"q is ({observations}, {observations}) and the goal ({observations},), got {jnp.shape(q)}, {jnp.shape(goal)}"
        )
    one = jnp.eye(size)
    c = model.decode(params, one) - model.decode(params, jnp.zeros(size))  # [size, observations], without the bias
    return LatentCost(matmul(matmul(c, q), c.T) + ridge * one, jnp.asarray(r), model.encode(params, goal))


def linear_part(model: WorldModel, params: PyTree) -> tuple[Array, Array]:
    """``A [size, size]`` and ``B [size, actions]`` of a model whose step is linear in latent and action.

    Raises:
        UsageError: for a model without them.
    """
    if model.matrices is None:
        raise UsageError(f"{model.name} has no linear step; use a linear operator with control_sizes=(), or cem")
    return model.matrices(params)


def condense(a: Array, b: Array, q: Array, r: Array, horizon: int, final: Array | None = None) -> Condensed:
    """The quadratic problem of a horizon in its actions alone: latents ``z_1 … z_T`` are eliminated.

    With ``z_t = A^t z_0 + sum_s A^(t-1-s) B u_s``, ``Gamma`` the second part and ``Phi`` the first:
    ``hessian = Gamma^T Q Gamma + R``, ``from_latent = Gamma^T Q Phi``, ``from_goal = Gamma^T Q 1``. (Korda, Mezić 2018.)

    Args:
        final: weight of ``z_T`` in place of ``q``, such as the cost of a stationary regulator.
    Raises:
        UsageError: for a horizon below 1, sizes that do not fit, or costs that are none.
    """
    check_problem(a, b, q, r, final)
    a, b, q, r = (jnp.asarray(x) for x in (a, b, q, r))
    size, controls = b.shape
    step, params = operators.dense(size, controls), {"A": a, "B": b}
    free = jax.vmap(lambda z: rollouts.scan(step, params, z, None, horizon), out_axes=-1)(jnp.eye(size))
    impulses = jnp.zeros((controls, horizon, controls)).at[:, 0].set(jnp.eye(controls))
    push = lambda u: rollouts.scan(step, params, jnp.zeros(size), u, horizon)
    markov = jax.vmap(push, out_axes=-1)(impulses)  # [horizon, size, controls]: A^t B
    lag = jnp.arange(horizon)[:, None] - jnp.arange(horizon)  # [when seen, when acted]
    gamma = jnp.where(lag[..., None, None] >= 0, markov[jnp.maximum(lag, 0)], 0.0)  # [seen, acted, size, controls]
    weights = jnp.broadcast_to(q, (horizon, size, size))
    weights = weights if final is None else weights.at[-1].set(final)
    exact = partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
    weighted = exact("tsic,tij->tscj", gamma, weights)
    width = horizon * controls
    hessian = exact("tscj,tpjd->scpd", weighted, gamma).reshape(width, width) + jnp.kron(jnp.eye(horizon), r)
    from_latent = exact("tscj,tjk->sck", weighted, free).reshape(width, size)
    from_goal = jnp.sum(weighted, 0).reshape(width, size)
    hessian = 0.5 * (hessian + hessian.T)
    return Condensed(
        hessian, from_latent, from_goal, norm_bound(hessian), jnp.zeros((horizon, controls), hessian.dtype)
    )


def solve_box(
    hessian: Array, linear: Array, start: Array, low: Array, high: Array, largest: Array, steps: int
) -> Array:
    """Minimise ``x^T hessian x / 2 + linear^T x`` in a box by accelerated projected gradient. ``[n]``.

    Steps of ``1 / largest``; momentum of Nesterov (1983) that starts anew wherever it points uphill (O'Donoghue and Candès
    2015), which needs no bound of the least eigenvalue.
    """

    def move(state: tuple[Array, Array, Array], _: None):
        x, ahead, t = state
        slope = matmul(hessian, ahead) + linear
        moved = jnp.clip(ahead - slope / largest, low, high)
        uphill = jnp.sum((ahead - moved) * (moved - x)) > 0
        t = jnp.where(uphill, 1.0, t)
        later = 0.5 * (1.0 + jnp.sqrt(1.0 + 4.0 * t * t))
        momentum = jnp.where(uphill, 0.0, (t - 1.0) / later)
        return (moved, moved + momentum * (moved - x), later), None

    start = jnp.clip(start, low, high)
    (x, _, _), _ = jax.lax.scan(move, (start, start, jnp.ones((), start.dtype)), None, steps)
    return x


def mpc(
    condensed: Condensed,
    latent: Array,
    goal: Array,
    plan: Array,
    low: Array | float = -1.0,
    high: Array | float = 1.0,
    iterations: int = ITERATIONS,
) -> Array:
    """A plan ``[horizon, controls]`` from a latent, each action within its bounds; act on its first row.

    Args:
        goal: ``[size]``, where latents should be.
        plan: ``[horizon, controls]``, where the search begins: :func:`shifted` of the last one, or ``condensed.rest``.
        low, high: scalars or ``[controls]``.
        iterations: of projected gradient. Warm starts make up for few.
    Raises:
        UsageError: for sizes that do not fit, no iteration, or bounds in the wrong order.
    """
    size, wanted = condensed.from_latent.shape[1], condensed.rest.shape
    if jnp.shape(plan) != wanted or jnp.shape(latent) != (size,) or jnp.shape(goal) != (size,):
        raise UsageError(
            f"this problem has latents of {size} and plans [horizon, controls] of {wanted}, got latent "
            f"{jnp.shape(latent)}, goal {jnp.shape(goal)}, plan {jnp.shape(plan)}"
        )
    _check_search(iterations, low, high)
    linear = matmul(condensed.from_latent, latent) - matmul(condensed.from_goal, goal)
    least, most = (jnp.broadcast_to(jnp.asarray(edge, plan.dtype), plan.shape).reshape(-1) for edge in (low, high))
    found = solve_box(condensed.hessian, linear, plan.reshape(-1), least, most, condensed.largest, iterations)
    return found.reshape(plan.shape)


def shifted(plan: Array) -> Array:
    """What is left of a plan after its first action, the last one held."""
    return jnp.concatenate([plan[1:], plan[-1:]])


@dataclass(frozen=True)
class CEM:
    """The cross-entropy method (Rubinstein 1999), as a planner."""

    population: int = 64
    """Plans drawn in an iteration."""
    elites: int = 8
    """Of which so many decide the next mean and deviation."""
    iterations: int = 4
    initial_std: float = 0.7
    """Of the actions at first, in units of theirs."""
    min_std: float = 0.05
    """Below which no deviation falls."""

    def __post_init__(self):
        if self.population < 2 or self.iterations < 1 or not 1 <= self.elites <= self.population:
            raise UsageError(
                f"cem needs population >= 2, iterations >= 1 and 1 <= elites <= population, got {self.population}, "
                f"{self.iterations} and {self.elites}; 64, 4 and 8 work"
            )
        if not 0 < self.min_std <= self.initial_std:
            raise UsageError(f"cem needs 0 < min_std <= initial_std, got {self.min_std} and {self.initial_std}")


def cem(
    config: CEM,
    score: Callable[[Array], Array],
    plan: Array,
    key: Key,
    low: Array | float = -1.0,
    high: Array | float = 1.0,
) -> Array:
    """A plan ``[horizon, controls]`` with a high score: the mean of the last elites, within the bounds.

    Args:
        score: ``[population, horizon, controls] -> [population]``, larger is better; NaN counts as worst.
        plan: ``[horizon, controls]``, the first mean.
    Raises:
        UsageError: for a plan without steps, bounds in the wrong order or an untyped key.
    """
    check_key(key)
    if jnp.ndim(plan) != 2 or plan.size < 1:
        raise UsageError(f"a plan has shape [horizon, controls] with a horizon of at least 1, got {jnp.shape(plan)}")
    _check_search(config.iterations, low, high)

    def improve(state: tuple[Array, Array], key: Key):
        mean, std = state
        drawn = mean + std * jax.random.normal(key, (config.population, *plan.shape), plan.dtype)
        drawn = jnp.clip(drawn, low, high)
        scores = jnp.nan_to_num(score(drawn), nan=-jnp.inf, neginf=-jnp.inf)
        best = drawn[jax.lax.top_k(scores, config.elites)[1]]
        return (jnp.mean(best, 0), jnp.maximum(jnp.std(best, 0), config.min_std)), None

    first = (jnp.clip(plan, low, high), jnp.full_like(plan, config.initial_std))
    (mean, _), _ = jax.lax.scan(improve, first, jax.random.split(key, config.iterations))
    return mean


def predicted_return(model: WorldModel, params: PyTree, latent: Array, plans: Array, discount: Array | float) -> Array:
    """What a model promises of plans ``[N, horizon, actions]`` from one latent: rewards, then the value. ``[N]``."""
    starts = jnp.broadcast_to(latent, (len(plans), *latent.shape))
    after = model.rollout(params, starts, plans)
    before = jnp.concatenate([starts[:, None], after[:, :-1]], 1)
    weights = jnp.asarray(discount) ** jnp.arange(plans.shape[1])
    ahead = jnp.asarray(discount) ** plans.shape[1] * model.value(params, after[:, -1])
    return matmul(model.reward(params, before, plans), weights) + ahead


def negative_cost(model: WorldModel, params: PyTree, cost: LatentCost, latent: Array, plans: Array) -> Array:
    """Minus the quadratic cost that :func:`mpc` minimises, of plans ``[N, horizon, actions]``. ``[N]``."""
    starts = jnp.broadcast_to(latent, (len(plans), *latent.shape))
    off = model.rollout(params, starts, plans) - cost.goal
    return -jnp.einsum("nti,ij,ntj->n", off, cost.q, off) - jnp.einsum("nti,ij,ntj->n", plans, cost.r, plans)


def _check_search(iterations: int, low: Array | float, high: Array | float) -> None:
    if iterations < 1:
        raise UsageError(f"a planner needs at least 1 iteration, got {iterations}")
    known = not isinstance(low, jax.core.Tracer) and not isinstance(high, jax.core.Tracer)
    if known and not np.all(np.asarray(low) <= np.asarray(high)):
        raise UsageError(f"bounds need low <= high, got {low} and {high}")
