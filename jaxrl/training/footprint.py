"""How much memory a program will need, from its trace alone, before anything compiles.

:mod:`jaxrl.training.dataflow` says which arrays there are and in which order they are made. Here each of them gets a place
from when it is made until it is read last, as XLA does it: loops and updates of slices work in place where what they
replace is not read again, what a loop stacks is there from the start of the program around it, and places are handed out
to large and long-lived arrays first.

It is an estimate. What is alive at once is foreseen well; how tightly a few large arrays of the same size pack depends on
details of their order, and can cost a compiler a third more than the estimate, or less.
"""

from dataclasses import dataclass, field

import jax
from jax.extend import core

from jaxrl.training.dataflow import FUSED, IN_PLACE, VIEWS, Graph, Node, Value, graph_of, in_order, nbytes, store

__all__ = ["nbytes", "peak"]

PACKED = 600  # arrays that are packed one by one; the rest are too small to matter


@dataclass
class Buffer:
    """A place in memory, held from one moment to another, both included."""

    size: int
    start: int
    end: int
    rank: int  # in the order of the trace


@dataclass
class Tape:
    """What has been given a place so far."""

    on_cpu: bool
    now: int = 0
    rank: int = 0
    buffers: list[Buffer] = field(default_factory=list)

    def new(self, size: int, rank: int = 0, start: int | None = None) -> Buffer:
        self.buffers.append(Buffer(size, self.now if start is None else start, self.now, rank))
        return self.buffers[-1]


# Where an array is; None for what has its place from outside, as arguments and what replaces them.
Place = Buffer | None


def peak(jaxpr: core.Jaxpr, on_cpu: bool | None = None) -> int:
    """The most bytes that a program holds at once, besides its arguments and what replaces them in place.

    Args:
        jaxpr: such as ``jax.jit(f).trace(*shapes).jaxpr.jaxpr``.
        on_cpu: whether it will be compiled for a CPU; the default device's kind where absent.
    """
    tape = Tape(jax.default_backend() == "cpu" if on_cpu is None else on_cpu)
    graph = graph_of(jaxpr)
    _run(tape, graph, [None] * len(graph.outputs), [False] * len(graph.outputs))
    return _packed(tape.buffers)


def _run(tape: Tape, graph: Graph, homes: list[Value | None], stacked: list[bool]) -> None:
    """Go through a body once.

    Args:
        homes: for each output, the input whose place it takes in the next turn of a loop.
        stacked: for each output, whether it is written into an array that is there already.
    """
    store(graph, stacked, tape.on_cpu)
    for node in graph.nodes:
        tape.rank += 1
        node.rank = tape.rank
    order = in_order(graph, tape.on_cpu)
    last = {value: index for index, node in enumerate(order) for value in node.needs}
    for value in graph.outputs:
        behind = {value} if value.stored or value.maker is None else value.maker.needs
        last |= dict.fromkeys(behind, len(order))
    home = {value: place for value, place in zip(graph.outputs, homes, strict=True) if place not in (None, value)}
    ending: dict[int, list[Value]] = {}
    for value, index in last.items():
        ending.setdefault(index, []).append(value)
    places: dict[Value, Place] = dict.fromkeys(graph.inputs)
    began = tape.now
    for index, node in enumerate(order):
        given = _inside(tape, node, places, {value for value in ending.get(index, ()) if value in places}, began)
        for k, value in enumerate(node.writes):
            if k in given:
                places[value] = given[k]
            elif value.stored:
                goes_home = _goes_home(node, home.get(value), last, index)
                places[value] = None if goes_home else tape.new(value.size, node.rank)
        _end(tape, places, [*ending.get(index, ()), *(value for value in node.writes if value not in last)])
        tape.now += 1
    _end(tape, places, ending.get(len(order), []))


def _end(tape: Tape, places: dict[Value, Place], values: list[Value]) -> None:
    for value in values:
        place = places.get(value)
        if place is not None:
            place.end = max(place.end, tape.now)


def _goes_home(node: Node, home: Value | None, last: dict[Value, int], index: int) -> bool:
    """Whether what a loop carries on can be written over what it replaces, because nobody reads that again."""
    if home is None:
        return False
    read = last.get(home, -1)
    return read < index or (read == index and (node.name in FUSED or node.name in IN_PLACE))


def _inside(tape: Tape, node: Node, places: dict[Value, Place], free: set[Value], began: int) -> dict[int, Place]:
    """Go through the bodies of a loop or a branch; returns the places of those outputs that need no new one.

    Args:
        free: what is read here for the last time, and can be written over.
        began: when the body around it began.
    """
    reads, writes, params = node.reads, node.writes, node.params
    if node.name in VIEWS and (reads[0].stored or reads[0].maker is None):
        return {0: places.get(reads[0])}
    if node.name in IN_PLACE and reads[0] in free:
        return {0: places[reads[0]]}
    if node.name == "cond":
        for branch in params["branches"]:
            graph = graph_of(branch.jaxpr)
            _run(tape, graph, [None] * len(graph.outputs), [False] * len(graph.outputs))
        return {}
    if node.name == "while":
        condition, constants = params["cond_nconsts"], params["body_nconsts"]
        start = reads[condition + constants :]
        carried = {k: places[v] if v in free else tape.new(v.size, node.rank) for k, v in enumerate(start)}
        _run(tape, graph_of(params["cond_jaxpr"].jaxpr), [None], [False])
        graph = graph_of(params["body_jaxpr"].jaxpr, reads[condition:][:constants])
        _run(tape, graph, list(graph.inputs[constants:]), [False] * len(writes))
        return carried
    if node.name == "scan":
        constants, count = params["num_consts"], params["num_carry"]
        start, rest = reads[constants:][:count], len(writes) - count
        given = {k: places[v] if v in free else tape.new(v.size, node.rank) for k, v in enumerate(start)}
        early = began if tape.on_cpu else tape.now
        given |= {k: tape.new(writes[k].size, node.rank, early) for k in range(count, len(writes))}
        graph = graph_of(params["jaxpr"].jaxpr, reads[:constants], len(reads) - constants - count)
        homes = [*graph.inputs[constants:][:count], *[None] * rest]
        _run(tape, graph, homes, [False] * count + [True] * rest)
        return given
    return {}


def _packed(buffers: list[Buffer]) -> int:
    """The end of the last place, where each array gets the tightest gap that is free for as long as it lives.

    Large ones come first, of equal ones those that live through more beginnings and endings of others.
    """
    # At one moment, what is made is placed before what is read for the last time goes.
    events = [(b.start, 0, b.rank, k) for k, b in enumerate(buffers)]
    events += [(b.end, 1, b.rank, k) for k, b in enumerate(buffers)]
    when = {(k, ends): moment for moment, (_, ends, _, k) in enumerate(sorted(events))}
    spans = [Buffer(b.size, when[k, 0], when[k, 1], b.rank) for k, b in enumerate(buffers)]
    spans.sort(key=lambda b: (-b.size, b.start - b.end, b.rank))
    placed: list[tuple[int, Buffer]] = []
    for span in spans[:PACKED]:
        gap, at, end = None, 0, 0
        for offset, other in sorted(
            ((o, b) for o, b in placed if b.start < span.end and span.start < b.end), key=lambda entry: entry[0]
        ):
            if offset - end >= span.size and (gap is None or offset - end < gap):
                gap, at = offset - end, end
            end = max(end, offset + other.size)
        placed.append((end if gap is None else at, span))
    return max((offset + span.size for offset, span in placed), default=0) + _most(spans[PACKED:])


def _most(spans: list[Buffer]) -> int:
    """The most bytes that are held at once."""
    changes = sorted([(b.start, b.size) for b in spans] + [(b.end, -b.size) for b in spans])
    held = most = 0
    for _, change in changes:
        held += change
        most = max(most, held)
    return most
