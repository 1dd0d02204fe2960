"""Learning rates that fall with the calls of update, as functions of the rate itself so that it can be swept."""

import jax.numpy as jnp

from jaxrl.types import Array


def linear(learning_rate: Array, updates: Array, anneal_updates: int, final_share: float) -> Array:
    """From the rate to ``final_share`` of it, in a straight line over ``anneal_updates`` calls; constant if that is 0."""
    return learning_rate * _between(final_share, 1.0 - _progress(updates, anneal_updates))


def cosine(learning_rate: Array, updates: Array, anneal_updates: int, final_share: float) -> Array:
    """The same along half a period of a cosine (Loshchilov & Hutter 2017, equation 5, without restarts)."""
    return learning_rate * _between(final_share, 0.5 * (1.0 + jnp.cos(jnp.pi * _progress(updates, anneal_updates))))


def _progress(updates: Array, anneal_updates: int) -> Array:
    """Share of the way, 0 to 1."""
    if anneal_updates == 0:
        return jnp.zeros((), jnp.float32)
    return jnp.minimum(updates.astype(jnp.float32) / anneal_updates, 1.0)


def _between(final_share: float, remaining: Array) -> Array:
    return final_share + (1.0 - final_share) * remaining
