"""A traced program as the arrays that a compiler would put into memory, and the order in which it would make them.

Calls are opened, and operations on single elements belong to the operation that reads them, so what is left are products,
reductions, loops, sorts, gathers, and what they read. Found in what XLA makes of such programs:

* An element-wise result is an array of its own where it is dear to compute and read twice, or read by an operation that
  needs it in memory. A change of shape is another view of the same array.
* On CPUs, a reduction is computed by a library that takes in what leads to it, also products of matrices, as long as
  nobody else reads it; what the library does not know has to be in memory before.
* On CPUs, operations are ordered breadth first, so that those that do not depend on each other can run at once.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from jaxrl.types import PyTree

VIEWS = frozenset("view reshape squeeze expand_dims bitcast_convert_type copy_p".split())
DEAR = frozenset(
    (
        "acos acosh asin asinh atan atan2 atanh cbrt cos cosh div erf erf_inv erfc exp exp2 expm1 lgamma log log1p logistic "
        "pow rem rsqrt sin sinh sqrt tan tanh"
    ).split()
)
FUSED = (VIEWS - {"view"}) | DEAR
FUSED |= frozenset(
    (
        "abs add add_any and broadcast_in_dim ceil clamp concatenate convert_element_type copy dynamic_slice eq floor ge gt "
        "integer_pow iota is_finite le lt max min mul ne neg nextafter not or pad population_count random_unwrap random_wrap "
        "real reduce_precision rev round select_n shift_left shift_right_arithmetic shift_right_logical sign slice square "
        "stop_gradient sub transpose xor"
    ).split()
)
LIBRARY = frozenset(
    (
        "abs add add_any broadcast_in_dim cbrt ceil cos div erf exp expand_dims expm1 floor integer_pow log log1p logistic "
        "max min mul neg pow reshape round rsqrt sign sin sqrt square squeeze stop_gradient sub tanh"
    ).split()
)
REDUCTIONS = frozenset(("reduce_sum", "reduce_max", "reduce_min"))
IN_PLACE = frozenset("dynamic_update_slice scatter scatter-add scatter-max scatter-min scatter-mul".split())
LOOPS = frozenset(("scan", "while", "cond"))
LIBRARY_LEAST = 1024  # elements below which a reduction is not worth the library
REDUCED_AT_ONCE = 32  # elements beyond which XLA reduces in two stages on CPUs


@dataclass(eq=False)
class Value:
    """An array: an argument, or what a node makes."""

    size: int  # bytes
    shape: tuple[int, ...] = ()
    floating: bool = False
    constant: bool = False  # known when the program is compiled
    maker: "Node | None" = None
    stored: bool = True


@dataclass(eq=False)
class Node:
    """One operation."""

    name: str
    params: dict[str, Any]
    reads: list[Value]
    writes: list[Value]
    needs: frozenset[Value] = frozenset()  # the stored arrays behind what it reads
    rank: int = 0


@dataclass
class Graph:
    """The body of a program or of a loop."""

    inputs: list[Value]
    nodes: list[Node] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)


def graph_of(jaxpr: core.Jaxpr, constants: Sequence[Value] = (), slices: int = 0) -> Graph:
    """What is needed for the outputs of a jaxpr, in the order of the trace.

    Args:
        constants: what the first inputs are outside of a loop, to know which of them are constant.
        slices: the last so many inputs are slices of larger arrays, taken where they are read.
    """
    graph = Graph([value_of(v) for v in jaxpr.invars])
    for value, outside in zip(graph.inputs, constants, strict=False):
        value.constant = outside.constant
    arguments = list(graph.inputs)
    for k in range(len(arguments) - slices, len(arguments)):
        arguments[k] = value_of(jaxpr.invars[k])
        graph.nodes.append(_node("dynamic_slice", {}, [graph.inputs[k]], [arguments[k]]))
    graph.outputs = _open(jaxpr, arguments, graph.nodes)
    wanted = set(graph.outputs)
    for node in reversed(graph.nodes):
        if not wanted.isdisjoint(node.writes):
            wanted.update(node.reads)
    graph.nodes = [node for node in graph.nodes if not wanted.isdisjoint(node.writes)]
    return graph


def _open(jaxpr: core.Jaxpr, arguments: list[Value], nodes: list[Node]) -> list[Value]:
    """Append the operations of a jaxpr and of all it calls; returns its outputs."""
    known: dict[Any, Value] = dict(zip(jaxpr.invars, arguments, strict=True))
    for variable in jaxpr.constvars:
        known[variable] = value_of(variable)
        known[variable].constant = True
    get = lambda atom: value_of(atom, constant=True) if isinstance(atom, core.Literal) else known[atom]
    for equation in jaxpr.eqns:
        name, reads = equation.primitive.name, [get(atom) for atom in equation.invars]
        called = _called(equation)
        if called is not None and len(called.invars) == len(reads):
            writes = _open(called, reads, nodes)
        elif name == "optimization_barrier":
            writes = reads
        else:
            writes = [value_of(v) for v in equation.outvars]
            if name == "dot_general":
                reads = [
                    _matrix(r, b, nodes) for r, b in zip(reads, equation.params["dimension_numbers"][1], strict=True)
                ]
            nodes.append(_node(name, equation.params, reads, writes))
        known.update(zip(equation.outvars, writes, strict=True))
    return [get(atom) for atom in jaxpr.outvars]


def _called(equation: Any) -> core.Jaxpr | None:
    if equation.primitive.name in LOOPS:
        return None
    inner = next((equation.params[k] for k in ("jaxpr", "call_jaxpr", "fun_jaxpr") if k in equation.params), None)
    inner = getattr(inner, "jaxpr", inner)
    return inner if isinstance(inner, core.Jaxpr) else None


def _matrix(value: Value, batch: Sequence[int], nodes: list[Node]) -> Value:
    """What a product reads, as the matrix that it has to be; a step of its own where nothing else reshapes it."""
    if len(value.shape) - len(batch) <= 2 or (value.maker is not None and value.maker.name in FUSED):
        return value
    view = Value(value.size, value.shape, value.floating, value.constant)
    nodes.append(_node("view", {}, [value], [view]))
    return view


def _node(name: str, params: dict[str, Any], reads: list[Value], writes: list[Value]) -> Node:
    node = Node(name, params, reads, writes)
    for value in writes:
        value.maker = node
        value.constant = name not in LOOPS and all(r.constant for r in reads)
    return node


def value_of(variable: Any, constant: bool = False) -> Value:
    """The array of a jaxpr's variable."""
    aval = variable.aval
    if not hasattr(aval, "dtype"):
        return Value(0, constant=constant)
    return Value(nbytes(aval), tuple(aval.shape), jnp.issubdtype(aval.dtype, jnp.floating), constant)


def store(graph: Graph, stacked: Sequence[bool], library: bool) -> None:
    """Decide which values are arrays in memory, and what each node has to wait for.

    Args:
        stacked: for each output, whether it is written straight into an array that is there already.
        library: whether reductions are computed by a library.
    """
    readers: dict[Value, list[Node | None]] = {}
    for node in graph.nodes:
        for value in set(node.reads):
            readers.setdefault(value, []).append(node)
    for value, inside in zip(graph.outputs, stacked, strict=True):
        if not inside:
            readers.setdefault(value, []).append(None)
    for node in graph.nodes:
        for value in node.writes:
            value.stored = _stored(node, value, readers.get(value, []))
    if library:
        _library(graph.nodes, readers)
    for node in graph.nodes:
        behind: set[Value] = set()
        for value in node.reads:
            behind |= {value} if value.stored or value.maker is None else value.maker.needs
        node.needs = frozenset(behind)


def _stored(node: Node, value: Value, reading: list[Node | None]) -> bool:
    taken = all(r is not None and _takes(r, value) for r in reading)
    if node.name in FUSED:
        return not taken or (node.name in DEAR and len(reading) > 1)
    small = node.name in REDUCTIONS and _reduced(node) <= REDUCED_AT_ONCE
    return not (small and taken and len(reading) == 1)


def _takes(reader: Node, value: Value) -> bool:
    """Whether a reader computes an element-wise value itself, instead of finding it in memory."""
    if reader.name in ("gather", "dynamic_update_slice"):
        return reader.reads[0] is not value
    return reader.name in FUSED or reader.name.startswith(("reduce_", "argm"))


def _library(nodes: list[Node], readers: dict[Value, list[Node | None]]) -> None:
    """What the library computes in one piece: everything that has a single way out, if there is a reduction in it."""
    exits: dict[Node, Node] = {}
    pieces: dict[Node, list[Node]] = {}
    for node in reversed(nodes):
        if _library_knows(node):
            ways = {exits.get(r) if r is not None else None for r in readers.get(node.writes[0], [])}
            one = ways.pop() if len(ways) == 1 else None
            exits[node] = node if one is None else one
            pieces.setdefault(exits[node], []).append(node)
    inside: set[Node] = set()
    for out, piece in pieces.items():
        if any(node.name in REDUCTIONS and _reduced(node) > 1 for node in piece):
            inside.update(piece)
            for node in piece:
                node.writes[0].stored = node is out
    for node in nodes:
        value = node.writes[0]
        if node.name in FUSED and node not in inside and not value.constant:
            value.stored |= any(r in inside for r in readers.get(value, []))
        if node.name == "reduce_sum" and not value.floating and _reduced(node) > REDUCED_AT_ONCE:
            node.reads[0].stored = True


def _library_knows(node: Node) -> bool:
    if not node.writes[0].floating:
        return False
    if node.name == "select_n":
        return node.reads[0].constant
    if node.name == "dot_general":
        return min(_free(node, 0), _free(node, 1)) > 1  # a product with a vector is computed as a sum
    if node.name in REDUCTIONS:
        return math.prod(node.reads[0].shape) >= LIBRARY_LEAST
    return node.name in LIBRARY


def _free(node: Node, side: int) -> int:
    """Rows or columns that an operand contributes to a product."""
    contracted, batch = (axes[side] for axes in node.params["dimension_numbers"])
    return math.prod(d for k, d in enumerate(node.reads[side].shape) if k not in (*contracted, *batch))


def _reduced(node: Node) -> int:
    """How many elements become one."""
    return math.prod(node.reads[0].shape[axis] for axis in node.params["axes"])


def in_order(graph: Graph, breadth_first: bool) -> list[Node]:
    """The nodes that make arrays, in the order of the trace or, breadth first, as soon as what they read is there."""
    making = [node for node in graph.nodes if any(value.stored for value in node.writes)]
    if not breadth_first:
        return making
    readers: dict[Node, list[tuple[int, int, Node]]] = {node: [] for node in making}
    missing: dict[Node, int] = {}
    for rank, node in enumerate(making):
        made = [value for value in node.needs if value.maker in readers]
        missing[node] = len({value.maker for value in made})
        for value in made:
            assert value.maker is not None
            readers[value.maker].append((value.maker.writes.index(value), rank, node))
    ready = deque(node for node in making if not missing[node])
    order = []
    while ready:
        node = ready.popleft()
        order.append(node)
        for reader in dict.fromkeys(r for *_, r in sorted(readers[node], key=lambda entry: entry[:2])):
            missing[reader] -= 1
            if not missing[reader]:
                ready.append(reader)
    return order


def nbytes(tree: PyTree) -> int:
    """Bytes of all arrays in a tree of arrays or shapes; a typed key counts as the words it is made of."""

    def one(leaf) -> int:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.eval_shape(jax.random.key_data, leaf)
        return leaf.size * leaf.dtype.itemsize

    return sum(one(leaf) for leaf in jax.tree.leaves(tree))
