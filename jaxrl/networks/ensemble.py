"""Copies of one network with their own weights, run as one batched program."""

import flax.linen as nn
import jax

from jaxrl.errors import UsageError
from jaxrl.types import Array, Key, PyTree


def init_ensemble(module: nn.Module, size: int, key: Key, *inputs: Array) -> PyTree:
    """Parameters of ``size`` members, drawn independently: the module's own, each with a first axis of ``size``.

    Raises:
        UsageError: for a size below 1.
    """
    if size < 1:
        raise UsageError(f"an ensemble needs at least one member, got {size}; use 1")
    return jax.vmap(lambda key: module.init(key, *inputs))(jax.random.split(key, size))


def apply_ensemble(module: nn.Module, params: PyTree, *inputs: Array) -> PyTree:
    """Every member on the same inputs; outputs gain a first axis of ``size``."""
    return jax.vmap(lambda member: module.apply(member, *inputs))(params)
