"""How much memory a program will need, from its trace alone, before anything compiles.

The trace is walked in order; an array lives from the operation that makes it to the last one that reads it. Two rules
stand for what a compiler does:

* operations on single elements, and changes of shape, are computed inside the operation that reads them, and make no
  array of their own unless something else (a product of matrices, a loop, a sort) needs it in memory;
* what a loop carries is updated in place.

It is an estimate, because compilers differ in what they fuse, in which order they compute and in how tightly they pack:
of networks evaluated on whole rollouts XLA has been seen to hold half as much again, and with its concurrent scheduler
for CPUs twice as much.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from jaxrl.types import PyTree

# Fused into what reads them.
FUSED = frozenset(
    (
        "abs add and atan2 broadcast_in_dim cbrt ceil clamp convert_element_type copy cos div eq erf erf_inv exp exp2 expm1 "
        "floor ge gt integer_pow iota is_finite le log log1p logistic lt max min mul ne neg nextafter not or pow random_bits "
        "real rem reshape round rsqrt select_n shift_left shift_right_arithmetic shift_right_logical sign sin slice sqrt "
        "square squeeze stop_gradient sub tan tanh transpose xor rev pad random_wrap random_unwrap"
    ).split()
)


def peak(jaxpr: core.Jaxpr) -> int:
    """The most bytes that a program holds at once, besides its arguments and what replaces them in place.

    Args:
        jaxpr: such as ``jax.jit(f).trace(*shapes).jaxpr.jaxpr``.
    """
    readers = _readers(jaxpr)
    stored = {v for equation in jaxpr.eqns for v in equation.outvars if _is_stored(equation, v, readers)}
    last = _last_reads(jaxpr, stored)
    kept = {v for v in jaxpr.outvars if isinstance(v, core.Var)}
    live, most = 0, 0
    ending: dict[int, int] = {}
    for index, equation in enumerate(jaxpr.eqns):
        for variable in equation.outvars:
            if variable in stored and not _in_place(equation, variable):
                live += nbytes(variable.aval)
                if variable not in kept:
                    end = last.get(variable, index)
                    ending[end] = ending.get(end, 0) + nbytes(variable.aval)
        most = max(most, live + _inside(equation))
        live -= ending.pop(index, 0)
    return most


def _last_reads(jaxpr: core.Jaxpr, stored: set[Any]) -> dict[Any, int]:
    """When each array is read last. What is fused reads its inputs when it is itself read, so times flow backwards."""
    last: dict[Any, int] = {}
    for index in reversed(range(len(jaxpr.eqns))):
        equation = jaxpr.eqns[index]
        when = max([index, *(last.get(v, index) for v in equation.outvars if v not in stored)])
        for variable in equation.invars:
            if isinstance(variable, core.Var):
                last[variable] = max(last.get(variable, 0), when)
    return last


def _readers(jaxpr: core.Jaxpr) -> dict[Any, list[Any]]:
    readers: dict[Any, list[Any]] = {}
    for equation in jaxpr.eqns:
        for variable in equation.invars:
            if isinstance(variable, core.Var):
                readers.setdefault(variable, []).append(equation)
    for variable in jaxpr.outvars:
        if isinstance(variable, core.Var):
            readers.setdefault(variable, []).append(None)
    return readers


def _is_stored(equation: Any, variable: Any, readers: dict[Any, list[Any]]) -> bool:
    if equation.primitive.name not in FUSED:
        return True
    reading = readers.get(variable, [])
    return any(r is None or not (r.primitive.name in FUSED or r.primitive.name.startswith("reduce_")) for r in reading)


def _in_place(equation: Any, variable: Any) -> bool:
    """What a loop carries, and what a scatter or an update of a slice writes to."""
    name = equation.primitive.name
    if name == "while":
        return True
    if name == "scan":
        return list(equation.outvars).index(variable) < equation.params["num_carry"]
    return name in ("dynamic_update_slice", "scatter", "scatter-add")


def _inside(equation: Any) -> int:
    inner = [value for value in equation.params.values() for value in (value if isinstance(value, tuple) else (value,))]
    bodies = [getattr(value, "jaxpr", value) for value in inner]
    return max([peak(body) for body in bodies if isinstance(body, core.Jaxpr)], default=0)


def nbytes(tree: PyTree) -> int:
    """Bytes of all arrays in a tree of arrays or shapes; a typed key counts as the words it is made of."""

    def one(leaf) -> int:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.eval_shape(jax.random.key_data, leaf)
        return leaf.size * leaf.dtype.itemsize

    return sum(one(leaf) for leaf in jax.tree.leaves(tree))
