"""What the parts of the library say to each other: steps, transitions, keys and spaces.

Two rules follow from these types and hold everywhere:

* a time limit is not a death. ``terminated`` cuts the bootstrap, ``truncated`` never does; where both are true the
  bootstrap is cut;
* ``next_observation`` is where a step really led. ``observation`` is what the policy acts on next, which after an
  automatic reset is the first observation of the next episode.
"""

from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from jaxrl.errors import UsageError

Array: TypeAlias = jax.Array
Key: TypeAlias = jax.Array  # a typed key, from jax.random.key
PyTree: TypeAlias = Any
Metrics: TypeAlias = dict[str, Array]  # flat, scalars, named "critic/loss"


class Step(NamedTuple):
    """What an environment returns, from ``reset`` and ``step`` alike (one pytree structure, so ``scan`` carries it).

    Every field of a vectorised environment has a leading axis of ``num_envs``. After ``reset``, ``reward`` is 0, both
    flags are false and ``next_observation`` equals ``observation``.
    """

    observation: PyTree  # what the policy acts on next, after any automatic reset
    reward: Array  # float32 []
    terminated: Array  # bool []: the task ended here; nothing follows
    truncated: Array  # bool []: a limit ended the episode here; something would have followed
    next_observation: PyTree  # where this step really led, before any automatic reset
    metrics: Metrics  # what the environment measures about itself, float32 []


class Experience(NamedTuple):
    """One step as it is recorded: acted on ``observation`` with ``action``, and this is what came of it.

    A rollout is an ``Experience`` with leading axes ``[T, num_envs]``; a replayed window has ``[batch, length]``.
    """

    observation: PyTree
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    next_observation: PyTree


LARGEST_COUNT = 2**31 - 1  # steps and iterations are int32 in compiled code


class Transition(NamedTuple):
    """What a loss sees. There is no ``done`` in it: ``discount`` is 0 where nothing follows.

    For one step ``discount = gamma * (1 - terminated)``; for n steps ``reward`` is the discounted sum, ``discount``
    the product, both cut at the first flag, and ``next_observation`` is the true one of the last step summed.
    ``weight`` multiplies this sample's loss; 1 unless a prioritised sampler corrects for its bias.
    """

    observation: PyTree
    action: Array
    reward: Array
    discount: Array
    next_observation: PyTree
    weight: Array


def check_key(key: Key) -> None:
    """Refuse anything but a scalar typed key.

    Legacy ``uint32`` keys are refused because JAX's key-reuse checker cannot see them.

    Raises:
        UsageError: for a legacy key, an integer, or an array of keys.
    """
    dtype = getattr(key, "dtype", None)
    if dtype is None or not jnp.issubdtype(dtype, jax.dtypes.prng_key):
        raise UsageError(f"expected a typed key, got {dtype or type(key).__name__}; use jax.random.key(seed)")
    if key.shape != ():
        raise UsageError(f"expected one key, got an array of keys of shape {key.shape}; vmap over it")


def done(step: Step | Experience) -> Array:
    """Whether the episode ended with this step, for whichever reason. For resets and bookkeeping, never for a loss."""
    return jnp.logical_or(step.terminated, step.truncated)


def where_done(mask: Array, if_done: PyTree, otherwise: PyTree) -> PyTree:
    """Select between two pytrees by a mask over their leading axes; every dtype passes through.

    Typed keys are selected as the words they are made of: a selection between keys would count as a use of both.
    """

    def select(a: Array, b: Array) -> Array:
        if jnp.issubdtype(jnp.asarray(b).dtype, jax.dtypes.prng_key):
            words = select(jax.random.key_data(a), jax.random.key_data(b))
            return jax.random.wrap_key_data(words, impl=jax.random.key_impl(b))
        return jnp.where(mask.reshape(mask.shape + (1,) * (jnp.ndim(a) - mask.ndim)), a, b)

    return jax.tree.map(select, if_done, otherwise)
