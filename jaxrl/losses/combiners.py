"""One direction out of the gradients of many tasks.

Every combiner here is a weighted sum of the tasks' gradients whose weights depend on nothing but their inner products:

    d = sum_k w_k g_k,    w = combiner(G, key),    G_kl = <g_k, g_l>

so it is a function of the Gram matrix ``G`` ``[K, K]``, whatever the network's size, and costs one pass over the stacked
gradients to form ``G`` and one to sum. One task's gradient comes back as it is from all of them. Diagnostics of
conditioning are functions of ``G`` too.
"""

import inspect
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.errors import UsageError, unknown
from jaxrl.types import Array, Key, PyTree

Combiner = Callable[[Array, Key], Array]  # (Gram matrix float32 [K, K], key) -> weights float32 [K]

_TINY = 1e-20
# Cosines are known to 1e-7 in float32; a ridge of this keeps gradients that cancel solvable, and changes others by as much.
_SINGULAR = 1e-6
# A norm below this part of the largest counts as this.
SMALLEST_NORM = 1e-6
# The most tasks of which every pair has its own metric.
LARGEST_TABLE = 10
# Two Newton steps each at weights of the barrier that leave a duality gap of 1e-6 a task.
_FALLING = 10.0 ** -np.repeat(np.linspace(0.0, 6.0, 13), 2).astype(np.float32)


def gram(gradients: PyTree) -> Array:
    """Inner products of stacked gradients, every leaf ``[K, ...]``. float32 ``[K, K]``."""
    rows = [leaf.reshape(leaf.shape[0], -1).astype(jnp.float32) for leaf in jax.tree.leaves(gradients)]
    return jnp.sum(jnp.stack([jnp.matmul(row, row.T, precision="highest") for row in rows]), 0)


def weighted_sum(gradients: PyTree, weights: Array) -> PyTree:
    """``sum_k w_k g_k`` over stacked gradients; every leaf loses its axis ``[K]``.

    Raises:
        UsageError: where there are not as many weights as tasks.
    """
    tasks = {leaf.shape[0] for leaf in jax.tree.leaves(gradients)}
    if tasks != {jnp.size(weights)} or jnp.ndim(weights) != 1:
        raise UsageError(f"gradients of {sorted(tasks)} tasks need one weight a task, got shape {jnp.shape(weights)}")
    return jax.tree.map(lambda leaf: jnp.tensordot(weights.astype(leaf.dtype), leaf, axes=1), gradients)


def combine(combiner: Combiner, gradients: PyTree, key: Key) -> PyTree:
    """The combiner's direction for stacked gradients, every leaf ``[K, ...]``."""
    return weighted_sum(gradients, combiner(gram(gradients), key))


def mean(gram: Array, key: Key | None = None) -> Array:
    """All tasks alike: what the gradient of the mean loss is."""
    return jnp.full(gram.shape[0], 1.0 / gram.shape[0])


def pcgrad(gram: Array, key: Key) -> Array:
    """Projecting conflicts away (Yu et al. 2020, algorithm 1), averaged over tasks.

    Task i walks the others in a random order of its own; where its gradient, as projected so far, has a negative inner
    product with the *original* gradient of another, that part is taken out:

        g_i <- g_i - <g_i, g_j> / |g_j|^2 g_j

    Gradients that do not conflict are left alone, so without conflicts this is the mean.
    """
    tasks = gram.shape[0]

    def project(task: Array, key: Key) -> Array:
        def visit(coefficients: Array, other: Array) -> tuple[Array, None]:
            product = jnp.dot(coefficients, gram[:, other])
            conflict = (product < 0) & (other != task)
            amount = jnp.where(conflict, product / jnp.maximum(gram[other, other], _TINY), 0.0)
            return coefficients.at[other].add(-amount), None

        own = jnp.zeros(tasks).at[task].set(1.0)
        return jax.lax.scan(visit, own, jax.random.permutation(key, tasks))[0]

    return jnp.mean(jax.vmap(project)(jnp.arange(tasks), jax.random.split(key, tasks)), axis=0)


def cagrad(gram: Array, key: Key | None = None, c: float = 0.5) -> Array:
    """Conflict-averse gradient (Liu et al. 2021, equation 5): the direction within a ball about the mean ``g0`` that helps
    the worst task most,

        d = (g0 + c |g0| g_w / |g_w|) / (1 + c^2),    w = argmin over the simplex of <g_w, g0> + c |g0| |g_w|

    with ``g_w = sum_k w_k g_k``. At ``c = 0`` it is the mean. The convex problem is solved to the end (:func:`_interior`):
    in coordinates ``v_k = w_k |g_k|``, which are alike however unlike the norms, the simplex is ``a . v = 1`` with
    ``a_k = min |g| / |g_k|``. As ``f`` scales with ``v``, minimising ``f + (a . v - 1)^2 / 2`` finds the same ``w``.
    """
    tasks = gram.shape[0]
    if tasks == 1:  # the formula would lengthen it by (1 + c) / (1 + c^2)
        return jnp.ones(1)
    unit, norms = _unit(gram, SMALLEST_NORM)
    towards_mean = jnp.matmul(unit, norms, precision="highest") / tasks  # <g_k, g0> / |g_k|
    mean_norm = jnp.sqrt(jnp.maximum(norms @ towards_mean / tasks, 0.0))
    towards_mean = towards_mean / jnp.maximum(mean_norm, _SINGULAR * jnp.max(norms))
    small = jnp.min(norms) / norms

    def problem(v: Array) -> Array:
        norm = jnp.sqrt(v @ unit @ v + _SINGULAR * jnp.dot(v, v))
        return (jnp.dot(towards_mean, v) + c * norm) / (4.0 * (1.0 + c)) + 0.5 * (jnp.dot(small, v) - 1.0) ** 2

    v = _interior(problem, jnp.ones(tasks), _FALLING)
    norm = jnp.sqrt(jnp.maximum(v @ unit @ v, _SINGULAR * jnp.dot(v, v)))
    return (1.0 / tasks + c * mean_norm * v / norms / norm) / (1.0 + c * c)


def fairgrad(gram: Array, key: Key | None = None, iterations: int = 20) -> Array:
    """FairGrad with alpha = 1 (Ban & Ji 2024): the weights with ``(G w)_k = 1 / w_k``, proportional fairness.

    They minimise the strictly convex ``w^T G w / 2 - sum log w``. In ``v_k = w_k |g_k|`` the matrix of this problem is the
    gradients' cosines, whatever their norms. Then ``<d, g_k> = 1 / w_k > 0``: no task is pushed uphill. ``|d|^2 = K``
    whatever the gradients are, so the direction is rescaled to the norm of the mean gradient. Norms below a thousandth of
    the median count as that, or solved tasks would get weights without bound. Where gradients cancel no direction helps
    all, and the ridge that makes the problem solvable shortens ``d`` to 0.
    """
    tasks = gram.shape[0]
    if tasks == 1:
        return jnp.ones(1)
    squares = jnp.diag(gram)
    floor = 1e-6 * jnp.maximum(jnp.median(squares), _TINY)
    unit, norms = _unit(gram + jnp.diag(jnp.maximum(floor - squares, 0.0)), 0.0)
    problem = lambda v: 0.5 * (v @ unit @ v + _SINGULAR * jnp.dot(v, v))
    v = _interior(problem, jnp.full(tasks, tasks**-0.5), jnp.ones(iterations))
    mean_norm = jnp.sqrt(jnp.maximum(jnp.sum(gram), 0.0)) / tasks
    return v / norms * mean_norm / jnp.sqrt(tasks)


def mgda(gram: Array, key: Key | None = None) -> Array:
    """Multiple-gradient descent (Désidéri 2012; Sener & Koltun 2018): the shortest vector in the gradients' convex hull.

    ``w`` minimises ``w^T G w`` over the simplex; in the coordinates of :func:`cagrad` it is, but for its length, the ``v``
    that minimises ``v^T C v / 2 - a . v`` with ``C`` the cosines.
    """
    unit, norms = _unit(gram, SMALLEST_NORM)
    small = jnp.min(norms) / norms
    problem = lambda v: 0.5 * (v @ unit @ v + _SINGULAR * jnp.dot(v, v)) - jnp.dot(small, v)
    weights = _interior(problem, jnp.ones(len(norms)), _FALLING) / norms
    return weights / jnp.sum(weights)


def _unit(gram: Array, least: float) -> tuple[Array, Array]:
    """The gradients' cosines and their norms, of which none counts as less than ``least`` times the largest."""
    norms = jnp.sqrt(jnp.maximum(jnp.diag(gram), _TINY))
    norms = jnp.maximum(norms, least * jnp.max(norms))
    return gram / norms[:, None] / norms, norms


def _interior(problem: Callable[[Array], Array], start: Array, barriers: Array) -> Array:
    """Minimiser over ``v > 0`` of the convex ``problem(v) - barrier sum log v``, one Newton step a barrier. [K]

    Steps go 95 % of the way to the wall ``v = 0`` at most, and are halved until the objective falls enough.
    """

    def step(v: Array, barrier: Array) -> tuple[Array, None]:
        objective = lambda v: problem(v) - barrier * jnp.sum(jnp.log(v))
        # In units of the current weights: well conditioned however far apart they are.
        curvature = v[:, None] * jax.hessian(problem)(v) * v + barrier * jnp.eye(len(v))
        slope = v * jax.grad(problem)(v) - barrier
        relative = -_solve_positive(curvature, slope)
        wall = jnp.min(jnp.where(relative < 0, -1.0 / jnp.minimum(relative, -_TINY), jnp.inf))
        first = jnp.minimum(1.0, 0.95 * wall)
        lengths = first * 0.5 ** jnp.arange(12)
        values = jax.vmap(lambda length: objective(v * (1.0 + length * relative)))(lengths)
        enough = values <= objective(v) + 1e-4 * lengths * jnp.dot(slope, relative)
        length = jnp.where(jnp.any(enough), lengths[jnp.argmax(enough)], 0.0)
        # Close to the minimum the objective no longer tells steps apart in float32, but Newton's own is right there.
        length = jnp.where(jnp.max(jnp.abs(slope)) < 1e-2 * barrier, first, length)
        return v * (1.0 + length * relative), None

    return jax.lax.scan(step, start, barriers)[0]


def _solve_positive(matrix: Array, vector: Array) -> Array:
    """Solve with a positive definite matrix, by elimination: it needs no pivots.

    Not by LAPACK, whose factorisations in a batch can wait for themselves on a CPU's threads.
    """

    def eliminate(table: Array, row: Array) -> tuple[Array, None]:
        pivot = table[row] / table[row, row]
        return (table - table[:, row, None] * pivot).at[row].set(pivot), None

    table = jnp.concatenate([matrix, vector[:, None]], 1)
    return jax.lax.scan(eliminate, table, jnp.arange(len(vector)))[0][:, -1]


COMBINERS: dict[str, Combiner] = {"mean": mean, "pcgrad": pcgrad, "cagrad": cagrad, "fairgrad": fairgrad, "mgda": mgda}


def combiner(name: str, **options: float) -> Combiner:
    """A combiner by name, such as ``combiner("cagrad", c=0.9)``.

    Raises:
        UsageError: for an unknown name, with the nearest known one; for an option that it does not have; for a ``c`` below 0.
    """
    if name not in COMBINERS:
        raise unknown("gradient combiner", name, COMBINERS)
    known = [option for option in inspect.signature(COMBINERS[name]).parameters if option not in ("gram", "key")]
    for option in options:
        if option not in known:
            raise UsageError(f"{name} takes no '{option}'; it takes {', '.join(known) or 'none'}")
    if not options.get("c", 0.0) >= 0.0:
        raise UsageError(f"c of {name} is the radius of a ball, at least 0, got {options['c']}")
    return partial(COMBINERS[name], **options) if options else COMBINERS[name]


# --- Conditioning -----------------------------------------------------------------------------------------------------


def cosines(gram: Array) -> Array:
    """Cosines between the tasks' gradients, ``[K, K]``; 0 for a gradient of zero."""
    norms = jnp.sqrt(jnp.maximum(jnp.diag(gram), 0.0))
    return gram / jnp.maximum(norms[:, None] * norms[None, :], _TINY)


@jax.custom_batching.sequential_vmap
def _eigenvalues(table: Array) -> Array:
    """Rising, of one symmetric matrix after another under ``vmap``: a batch can wait for itself on a CPU's threads."""
    return jnp.linalg.eigvalsh(table)


def conditioning(gram: Array) -> dict[str, Array]:
    """How unequal the tasks' gradients are, and how alike: scalars, from the Gram matrix.

    * ``norm/k``: of each task, by its place in the set;
    * ``cosine/j-k``: of each pair, for at most ten tasks;
    * ``norm_spread``: log10 of the largest norm over the smallest (0 where all are equal);
    * ``largest_share``: the largest task's part of the sum of norms (1/K where all are equal);
    * ``mean_cosine``: mean of the off-diagonal cosines;
    * ``condition``: log10 of the condition number of the cosine matrix;
    * ``conflicts``: share of pairs whose inner product is negative.
    """
    tasks = gram.shape[0]
    norms = jnp.sqrt(jnp.maximum(jnp.diag(gram), _TINY))
    table = cosines(gram)
    off = 1.0 - jnp.eye(tasks)
    pairs = max(tasks * (tasks - 1), 1)
    values = _eigenvalues(table)
    shown = range(tasks) if tasks <= LARGEST_TABLE else ()
    pairwise = {f"cosine/{j}-{k}": table[j, k] for k in shown for j in range(k)}
    return {
        **{f"norm/{k}": norms[k] for k in range(tasks)},
        **pairwise,
        "norm_spread": jnp.log10(jnp.max(norms) / jnp.min(norms)),
        "largest_share": jnp.max(norms) / jnp.sum(norms),
        "mean_cosine": jnp.sum(table * off) / pairs,
        "condition": jnp.log10(jnp.maximum(values[-1], _TINY) / jnp.maximum(values[0], 1e-8)),
        "conflicts": jnp.sum((table < 0) * off) / pairs,
    }
