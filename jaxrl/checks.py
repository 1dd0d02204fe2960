"""Refusals that every package shares."""

import dataclasses
import math
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.errors import UsageError
from jaxrl.types import PyTree


def positive_int(value: Any, what: str) -> int:
    """The value as an int of at least 1, or a refusal that names it. NumPy's integers are whole numbers, too."""
    return int_from(value, what, 1)


def int_from(value: Any, what: str, least: int) -> int:
    """The value as an int of at least ``least``, or a refusal that names it."""
    try:
        number = operator.index(value)
    except TypeError:
        raise UsageError(f"{what} must be a whole number, got {value!r}") from None
    if isinstance(value, bool) or number < least:
        raise UsageError(f"{what} must be at least {least}, got {value!r}; the nearest that works is {least}")
    return number


def check_finite(what: str, *arrays: Any) -> None:
    """Refuse NaN and infinity where the values are known, which inside a compiled function they are not.

    Raises:
        UsageError: names the first such number and where it is.
    """
    for array in arrays:
        if isinstance(array, jax.core.Tracer) or bool(jnp.all(jnp.isfinite(array))):
            continue
        bad = np.argwhere(~np.isfinite(np.asarray(array)))
        place = bad[0].tolist()
        raise UsageError(f"{what} holds {np.asarray(array)[tuple(place)]} at {place} ({len(bad)} such numbers)")


def check_numbers(what: str, config: Any) -> None:
    """Refuse a number that is not finite, in any field, unless the default is that number itself.

    Args:
        config: a dataclass of numbers and tuples of numbers, among others.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        for entry in value if isinstance(value, tuple) else (value,):
            if isinstance(entry, float) and not math.isfinite(entry) and entry != field.default:
                raise UsageError(f"{what}: {field.name} {value} cannot work; it must be finite")


def check_shapes(what: str, wanted: PyTree, given: PyTree) -> None:
    """Refuse a pytree whose leaves are not those wanted, by path and shape; dtypes are free.

    Args:
        wanted: of arrays or :class:`jax.ShapeDtypeStruct`.
    Raises:
        UsageError: names the first leaf that is missing, too much or of another shape.
    """
    expected, found = _shapes(wanted), _shapes(given)
    if expected == found:
        return
    for path, shape in expected.items():
        if path not in found:
            raise UsageError(f"{what} needs {path} of shape {shape}, got {', '.join(found) or 'nothing'}")
        if found[path] != shape:
            raise UsageError(f"{what} needs {path} of shape {shape}, got {found[path]}")
    raise UsageError(f"{what} takes {', '.join(expected) or 'nothing'}, got also {', '.join(found.keys() - expected)}")


def _shapes(tree: PyTree) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/") or "one array": jnp.shape(leaf) for path, leaf in leaves
    }
