"""Initial weights that a population of any size can be made of."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.types import Array, Key


@jax.custom_batching.sequential_vmap
def _factorised(matrix: Array) -> tuple[Array, Array]:
    """The QR factors, one matrix after another under ``vmap``.

    A batched factorisation hands its matrices to XLA's pool of CPU threads and waits for them inside that pool: with as
    many layers at once as there are threads, everybody waits and nobody works.
    """
    return jnp.linalg.qr(matrix)


def orthogonal(scale: float = 1.0) -> Callable[..., Array]:
    """An initialiser of weights ``[..., inputs, outputs]`` with orthonormal rows or columns, times ``scale``.

    A factor of a normal matrix, its signs chosen so that it is uniform over the orthogonal group (Saxe et al. 2014). The
    numbers are those of ``jax.nn.initializers.orthogonal`` for the same key.
    """

    def initialise(key: Key, shape: tuple[int, ...], dtype=jnp.float32) -> Array:
        outputs, inputs = shape[-1], int(np.prod(shape[:-1]))
        tall = (max(inputs, outputs), min(inputs, outputs))
        q, r = _factorised(jax.random.normal(key, tall, dtype))
        q = q * jnp.sign(jnp.diagonal(r))
        return scale * (q.T if inputs < outputs else q).reshape(shape)

    return initialise
