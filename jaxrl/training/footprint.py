"""How much memory a program will need, from its trace alone, before anything compiles.

The trace is walked in order; an array lives from the operation that makes it to the last one that reads it. Two rules
stand for what a compiler does:

* operations on single elements, and changes of shape, are computed inside the operation that reads them, and make no
  array of their own unless something else (a product of matrices, a loop, a sort) needs it in memory;
* what a loop carries is updated in place.

It is an estimate: compilers differ in what they fuse and in how tightly they pack.
"""

from typing import Any

import jax
import numpy as np
from jax.extend import core

# Fused into what reads them.
FUSED = frozenset(
    (
        "abs add and atan2 broadcast_in_dim cbrt ceil clamp convert_element_type copy cos div eq erf erf_inv exp exp2 expm1 "
        "floor ge gt integer_pow iota is_finite le log log1p logistic lt max min mul ne neg nextafter not or pow random_bits "
        "real rem reshape round rsqrt select_n shift_left shift_right_arithmetic shift_right_logical sign sin slice sqrt "
        "square squeeze stop_gradient sub tan tanh transpose xor expand_dims rev pad random_wrap random_unwrap copy_p"
    ).split()
)


def peak(function: Any, *shapes: Any) -> int:
    """The most bytes that ``function`` holds at once, besides its arguments and what replaces them in place."""
    return _peak(jax.make_jaxpr(function)(*shapes).jaxpr)


def _peak(jaxpr: core.Jaxpr) -> int:
    readers = _readers(jaxpr)
    last = {}
    stored = {}
    for index, equation in enumerate(jaxpr.eqns):
        for variable in equation.outvars:
            stored[variable] = _is_stored(equation, variable, readers)
    # The inputs of what is fused are read when its reader runs, so reading times flow backwards.
    kept = {v for v in jaxpr.outvars if isinstance(v, core.Var)}
    for index in reversed(range(len(jaxpr.eqns))):
        equation = jaxpr.eqns[index]
        own = [v for v in equation.outvars if not stored[v]]
        when = max([last.get(v, index) for v in own], default=index) if own else index
        for variable in equation.invars:
            if isinstance(variable, core.Var):
                last[variable] = max(last.get(variable, 0), when)
    live, most, ending = 0, 0, {}
    for index, equation in enumerate(jaxpr.eqns):
        fresh = [v for v in equation.outvars if stored.get(v) and not _in_place(equation, v)]
        for variable in fresh:
            size = _bytes(variable.aval)
            live += size
            if variable not in kept:
                ending.setdefault(last.get(variable, index), []).append(size)
        most = max(most, live + _inside(equation))
        live -= sum(ending.pop(index, ()))
    return most


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
    return max([_peak(body) for body in bodies if isinstance(body, core.Jaxpr)], default=0)


def _bytes(shape: Any) -> int:
    if jax.numpy.issubdtype(shape.dtype, jax.dtypes.prng_key):
        return int(np.prod(shape.shape)) * 8
    return int(np.prod(shape.shape)) * shape.dtype.itemsize
