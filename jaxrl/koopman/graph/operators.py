"""One linear step on a graph, ``z'_i = K_self z_i + Σ_(j→i) K_α(ij) z_j``: a few shared blocks, one for each type of edge.

These are :class:`jaxrl.koopman.operators.Operator`: latents are flattened, ``[..., nodes * width]``, and whatever steps an
operator steps these.

* ``block``: the step of the released code, any blocks at all. Not stable. ``start="released"`` draws them as it does, normal
  with variance 1 / width; summed over 7 to 26 edges that grows a latent about fourfold a step. ``"small"`` begins
  near the identity with a norm of at most 1.
* ``block_norm``: the same, divided by what a Schur test says the norm exceeds its radius by. Stable, and contractive.
* ``skew``: turns without loss, ``exp(-D/2) p(S) exp(-D/2)`` with ``S`` skew on the graph. Stable, and need not contract.
* ``diag``: complex numbers, one a mode of a basis of the graph and a channel. Stable.

All take a control of the whole graph, ``control_size`` numbers, that enters every node by the matrix of its type,
``"B": [node types, width, control_size]`` (of one type for all in ``diag``).

Reading the method's ``exp(S - D)`` by six Taylor terms does not bound the norm: on the imaginary axis the polynomial of
degree 6 exceeds 1, that of degree 8 does not below 3.395. So ``p`` has degree 8, ``S`` is kept below that by its own Schur
bound, and ``D`` is split off, which makes each factor a contraction. Derived here.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.errors import UsageError, unknown
from jaxrl.koopman import parametrisations as forms
from jaxrl.koopman.graph.mesh import Graph
from jaxrl.koopman.operators import Operator, assemble
from jaxrl.types import Array, Key, PyTree

STARTS = ("small", "released")
TAYLOR_TERMS = 8
# |p_8(iθ)| <= 1 for θ up to 3.395: p_8 is the stability polynomial of an eighth-order one-step method.
TAYLOR_LIMIT = 3.39
SELF_AT_START = 0.95
# The bound of a block's norm is then at most 2.7 % too high for 32 numbers, less than the Schur test gives away.
SQUARINGS = 5
PRECISION = jax.lax.Precision.HIGHEST


def block(graph: Graph, width: int, start: str = "small", control_size: int = 0) -> Operator:
    """Any blocks, ``{"edges": [edge types, width, width], "loops": [node types, width, width]}``. Not stable.

    Raises:
        UsageError: for a width below 1 or an unknown start.
    """
    init = partial(_init_blocks, graph, _checked(width), _known_start(start))
    return _graph_operator("graph_block", graph, width, init, _blocks_of, False, control_size)


def block_norm(graph: Graph, width: int, radius: float = 1.0, start: str = "small", control_size: int = 0) -> Operator:
    """Blocks divided by what :func:`schur_bound` exceeds ``radius`` by. Stable for radius <= 1, for any parameters."""
    if not radius > 0:
        raise UsageError(f"block_norm needs a radius above 0, got {radius}; 1 keeps the norm from growing")
    init = partial(_init_blocks, graph, _checked(width), _known_start(start))
    return _graph_operator(
        "graph_block_norm", graph, width, init, partial(_bounded_blocks, graph, radius), radius <= 1, control_size
    )


def skew(graph: Graph, width: int, max_decay: float = 0.01, substeps: int = 1, control_size: int = 0) -> Operator:
    """``(exp(-D/2n) p(S/n) exp(-D/2n))^n``; ``S`` skew by ``K_rev(α) = -K_α^T``, ``D`` diagonal and not negative. Stable.

    ``{"edges", "loops"}`` as for ``block``, of which the skew part counts, and ``"decay": [node types, width]`` through
    softplus. With ``n`` substeps a step may turn by ``3.39 n``.

    Raises:
        UsageError: for a graph whose reverse edges have no type of their own.
    """
    if graph.reverse is None:
        raise UsageError("skew needs edges whose type says the type of their reverse; make the mesh with typing='edge'")
    if substeps < 1 or not max_decay > 0:
        raise UsageError(f"skew needs substeps >= 1 and max_decay above 0, got {substeps} and {max_decay}")
    size = graph.nodes * _checked(width)
    return assemble(
        "graph_skew",
        size,
        _with_input(partial(_init_skew, graph, width, max_decay), graph.loop_types, width, control_size),
        partial(_skew_transition, graph, substeps),
        partial(_skew_apply, graph, width, substeps),
        drive=partial(_drive, graph.node_types),
        control_size=control_size,
        stable=True,
    )


def diag(
    nodes: int,
    width: int,
    basis: np.ndarray | None = None,
    pairs: int = 0,
    radii: tuple[float, float] = (0.9, 0.999),
    control_size: int = 0,
) -> Operator:
    """``z' = U λ U^T z``: a decay and an angle for each mode of a basis and each channel. Stable.

    With a basis, columns ``2k`` and ``2k + 1`` of the first ``2 pairs`` are one complex mode (a cosine and a sine), the rest
    are real modes with decays alone; ``{"nu", "theta"}`` are ``[modes, width]``. Without one the spectrum is shared by all
    nodes and the pairs are of channels: ``[width / 2]``.

    Args:
        basis: orthonormal columns ``[nodes, modes]``; see :func:`ring_basis` and :func:`orthonormal`.
    Raises:
        UsageError: for a basis that is not orthonormal, does not fit, or has too few columns for the pairs.
    """
    driven = {"drive": partial(_drive, np.zeros(nodes, np.int64)), "control_size": control_size, "stable": True}
    if basis is None:
        if _checked(width) % 2:
            raise UsageError(f"without a basis channels are paired, got width {width}; use {width + 1}")
        init = _with_input(partial(_init_modes, (width // 2,), radii), 1, width, control_size)
        return assemble("graph_diag", nodes * width, init, partial(_shared_modes, nodes), forms.apply_complex, **driven)
    basis = np.asarray(basis, np.float64)
    if basis.ndim != 2 or len(basis) != nodes or not 0 <= 2 * pairs <= basis.shape[1]:
        raise UsageError(
            f"a basis of {nodes} nodes with {pairs} pairs has shape [{nodes}, >= {2 * pairs}], got {basis.shape}"
        )
    if np.abs(basis.T @ basis - np.eye(basis.shape[1])).max() > 1e-6:
        raise UsageError("the columns of a basis must be orthonormal; pass it through orthonormal first")
    init = partial(_init_modes, (pairs + basis.shape[1] - 2 * pairs, _checked(width)), radii)
    init = _with_input(init, 1, width, control_size)
    apply = partial(_basis_apply, basis, pairs, width)
    return assemble("graph_diag", nodes * width, init, forms.ring_eigenvalues, apply, jnp.multiply, **driven)


def ring_basis(nodes: int) -> tuple[np.ndarray, int]:
    """The real Fourier basis of an even ring ``[nodes, nodes]``, cosine beside sine, then mean and the highest mode.

    Returns the basis and the number of pairs.
    """
    if nodes < 4 or nodes % 2:
        raise UsageError(f"ring_basis needs an even number of nodes, at least 4, got {nodes}")
    angle = 2 * np.pi * np.arange(nodes) / nodes
    columns = [wave(k * angle) * np.sqrt(2 / nodes) for k in range(1, nodes // 2) for wave in (np.cos, np.sin)]
    ends = [np.full(nodes, 1.0), np.cos(np.pi * np.arange(nodes))]
    return np.stack([*columns, *(end / np.sqrt(nodes) for end in ends)], 1), nodes // 2 - 1


def orthonormal(columns: np.ndarray) -> np.ndarray:
    """The nearest orthonormal columns, ``U (U^T U)^(-1/2)``; they keep their order and meaning."""
    left, values, right = np.linalg.svd(np.asarray(columns, np.float64), full_matrices=False)
    if values[-1] < 1e-8 * values[0]:
        raise UsageError(f"{columns.shape[1]} columns on {columns.shape[0]} nodes are not independent; use fewer")
    return left @ right


def schur_bound(graph: Graph, blocks: PyTree) -> Array:
    """``√(max_i Σ_j |K_ij| · max_j Σ_i |K_ij|)``, at least the norm of the whole step (the Schur test). []"""
    both = jnp.concatenate([blocks["edges"], blocks["loops"]])
    norms = jax.vmap(partial(forms.norm_bound, squarings=SQUARINGS))(both)
    edges, loop = norms[: graph.edge_types], norms[graph.edge_types :][graph.node_types]
    into = _type_counts(graph, graph.receivers) @ edges + loop
    out_of = _type_counts(graph, graph.senders) @ edges + loop
    # Two roots of the products of two numbers, so that large parameters do not overflow.
    return jnp.sqrt(jnp.max(into)) * jnp.sqrt(jnp.max(out_of))


def norm_penalty(operator: Operator, params: PyTree, vector: Array, iterations: int = 3) -> tuple[Array, Array]:
    """``relu(σ - 1)²`` with ``σ`` the norm by power iteration; soft, for a step that nothing else bounds.

    Args:
        vector: ``[size]``, not 0: what the last call returned, so that a few iterations an update suffice.
    Returns:
        The penalty and the vector to pass on; no gradient flows through the vector.
    """
    transition = operator.transition(params)
    forward = partial(operator.apply, transition)
    frozen = partial(operator.apply, jax.lax.stop_gradient(transition))
    for _ in range(iterations):
        vector = jax.linear_transpose(frozen, vector)(frozen(vector))[0]
        vector = vector / jnp.maximum(jnp.linalg.norm(vector), jnp.finfo(vector.dtype).tiny)
    vector = jax.lax.stop_gradient(vector)
    return jnp.maximum(jnp.linalg.norm(forward(vector)) - 1.0, 0.0) ** 2, vector


def apply_typed(graph: Graph, blocks: PyTree, latent: Array) -> Array:
    """The step itself: ``[..., nodes, width]`` to the same.

    Latents are summed by receiver and type first; then all blocks are one product.
    """
    slots = graph.receivers * graph.edge_types + graph.types
    sums = jnp.zeros((*latent.shape[:-2], graph.nodes * graph.edge_types, latent.shape[-1]), latent.dtype)
    sums = sums.at[..., slots, :].add(latent[..., graph.senders, :])
    sums = sums.reshape(*latent.shape[:-2], graph.nodes, graph.edge_types, latent.shape[-1])
    moved = jnp.einsum("...ntj,tij->...ni", sums, blocks["edges"], precision=PRECISION)
    if graph.loop_types == 1:
        return moved + jnp.einsum("...nj,ij->...ni", latent, blocks["loops"][0], precision=PRECISION)
    return moved + jnp.einsum("...nj,nij->...ni", latent, blocks["loops"][graph.node_types], precision=PRECISION)


def _graph_operator(name: str, graph: Graph, width: int, init, transition, stable: bool, control_size: int) -> Operator:
    init = _with_input(init, graph.loop_types, width, control_size)
    apply, drive = partial(_flat_apply, graph, width), partial(_drive, graph.node_types)
    return assemble(
        name, graph.nodes * width, init, transition, apply, drive=drive, control_size=control_size, stable=stable
    )


def _with_input(init, types: int, width: int, control_size: int):
    """The start of an operator with the matrices by which a control enters, of variance ``1 / control_size``."""
    if not control_size:
        return init

    def with_input(key: Key) -> PyTree:
        key, input_key = jax.random.split(key)
        drawn = jax.random.normal(input_key, (types, width, control_size)) / math.sqrt(control_size)
        return init(key) | {"B": drawn}

    return with_input


def _drive(node_types: np.ndarray, params: PyTree, control: Array) -> Array:
    """``B control`` at every node, ``[..., controls] -> [..., nodes * width]``."""
    by_type = jnp.einsum("twc,...c->...tw", params["B"], control, precision=PRECISION)
    return by_type[..., node_types, :].reshape(*control.shape[:-1], -1)


def _flat_apply(graph: Graph, width: int, blocks: PyTree, latent: Array) -> Array:
    nodes = latent.reshape(*latent.shape[:-1], graph.nodes, width)
    return apply_typed(graph, blocks, nodes).reshape(latent.shape)


def _blocks_of(params: PyTree) -> PyTree:
    return {"edges": params["edges"], "loops": params["loops"]}


def _bounded_blocks(graph: Graph, radius: float, params: PyTree) -> PyTree:
    return _within(graph, radius, _blocks_of(params))


def _within(graph: Graph, radius: float, params: PyTree) -> PyTree:
    unit, largest = forms.with_unit_entries(params)
    return forms.shrunk(params, unit, largest, schur_bound(graph, unit), radius * (1.0 - forms.MARGIN))


def _skew_transition(graph: Graph, substeps: int, params: PyTree) -> PyTree:
    """Skew blocks within the limit, and the damping of half a substep, ``[nodes, width]``."""
    reverse = np.asarray(graph.reverse)
    edges = 0.5 * params["edges"] - 0.5 * params["edges"][reverse].swapaxes(-1, -2)
    loops = jax.vmap(forms.skew_part)(params["loops"])
    blocks = _within(graph, TAYLOR_LIMIT * substeps, {"edges": edges, "loops": loops})
    decay = jnp.minimum(jax.nn.softplus(params["decay"]), forms.LARGEST_DECAY)[graph.node_types]
    return jax.tree.map(lambda x: x / substeps, blocks), jnp.exp(-0.5 * decay / substeps)


def _skew_apply(graph: Graph, width: int, substeps: int, transition: PyTree, latent: Array) -> Array:
    blocks, damping = transition
    nodes = latent.reshape(*latent.shape[:-1], graph.nodes, width)
    for _ in range(substeps):
        nodes = damping * taylor(partial(apply_typed, graph, blocks), damping * nodes)
    return nodes.reshape(latent.shape) * (1.0 - forms.MARGIN)


def taylor(apply, latent: Array, terms: int = TAYLOR_TERMS) -> Array:
    """``Σ_k S^k z / k!`` up to ``terms``, by Horner's rule. ``apply`` is ``S``."""
    inverse = jnp.asarray(1.0 / np.arange(terms, 0, -1), latent.dtype)
    return jax.lax.scan(partial(_horner, apply, latent), latent, inverse)[0]


def _horner(apply, latent: Array, total: Array, inverse: Array) -> tuple[Array, None]:
    return latent + inverse * apply(total), None


def _shared_modes(nodes: int, params: PyTree) -> Array:
    return jnp.tile(forms.ring_eigenvalues(params), nodes)


def _basis_apply(basis: np.ndarray, pairs: int, width: int, modes: Array, latent: Array) -> Array:
    """Into the basis, each pair turned and damped, back. ``modes`` is complex ``[pairs + rest, width]``."""
    typed = jnp.asarray(basis, latent.dtype)
    nodes = latent.reshape(*latent.shape[:-1], len(basis), width)
    amplitudes = jnp.einsum("nm,...nc->...mc", typed, nodes, precision=PRECISION)
    paired, rest = amplitudes[..., : 2 * pairs, :], amplitudes[..., 2 * pairs :, :]
    waves = paired.reshape(*paired.shape[:-2], pairs, 2, width)
    real, imaginary = waves[..., 0, :], waves[..., 1, :]
    turn = modes[:pairs]
    turned = [turn.real * real - turn.imag * imaginary, turn.imag * real + turn.real * imaginary]
    rest = jnp.abs(modes[pairs:]) * rest
    moved = jnp.concatenate([jnp.stack(turned, -2).reshape(paired.shape), rest], -2)
    return jnp.einsum("nm,...mc->...nc", typed, moved, precision=PRECISION).reshape(latent.shape)


def _init_blocks(graph: Graph, width: int, start: str, key: Key) -> PyTree:
    """``released``: normal, variance 1 / width. ``small``: 0.95 I and normal blocks (0.02) with a Schur bound of .05."""
    edge_key, loop_key = jax.random.split(key)
    edges = jax.random.normal(edge_key, (graph.edge_types, width, width))
    loops = jax.random.normal(loop_key, (graph.loop_types, width, width))
    if start == "released":
        return {"edges": edges / math.sqrt(width), "loops": loops / math.sqrt(width)}
    edges = _within(graph, 1.0 - SELF_AT_START, {"edges": 0.02 * edges, "loops": 0.0 * loops})["edges"]
    return {"edges": edges, "loops": SELF_AT_START * jnp.tile(jnp.eye(width), (graph.loop_types, 1, 1))}


def _init_skew(graph: Graph, width: int, max_decay: float, key: Key) -> PyTree:
    """Blocks with a Schur bound of about 0.1; decays log-uniform from ``max_decay / 100`` to ``max_decay``."""
    block_key, decay_key = jax.random.split(key)
    blocks = _within(graph, 0.1, _init_blocks(graph, width, "released", block_key))
    decay = max_decay * 10.0 ** jax.random.uniform(decay_key, (graph.loop_types, width), minval=-2.0, maxval=0.0)
    return blocks | {"decay": jnp.log(jnp.expm1(decay))}


def _init_modes(shape: tuple[int, ...], radii: tuple[float, float], key: Key) -> PyTree:
    flat = forms.init_ring(2 * math.prod(shape), 0, radii, math.pi / 10, key)
    return {name: value.reshape(shape) for name, value in flat.items()}


def _type_counts(graph: Graph, ends: np.ndarray) -> np.ndarray:
    """How many edges of each type each node has, ``[nodes, edge types]``."""
    slots = ends * graph.edge_types + graph.types
    counts = np.bincount(slots, minlength=graph.nodes * graph.edge_types)
    return counts.reshape(graph.nodes, graph.edge_types).astype(np.float32)


def _checked(width: int) -> int:
    if width < 1:
        raise UsageError(f"a latent has at least 1 number a node, got width {width}")
    return width


def _known_start(start: str) -> str:
    if start not in STARTS:
        raise unknown("start", start, STARTS)
    return start
