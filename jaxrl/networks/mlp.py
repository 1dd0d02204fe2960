"""Torsos: a multi-layer perceptron, a small convolutional network for images, and the choice between them.

Every module takes inputs with any leading axes. Parameters are plain nested dicts of float32 arrays.
"""

from collections.abc import Callable
from typing import Literal, get_args

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from jaxrl.errors import unknown
from jaxrl.networks.initialisers import orthogonal
from jaxrl.types import Array

Activation = Literal["relu", "tanh", "elu", "gelu", "silu"]

# The smallest image the three unpadded convolutions of the large torso leave anything of: 36 -> 8 -> 3 -> 1.
SMALLEST_LARGE_IMAGE = 36


def activation_function(name: str) -> Callable[[Array], Array]:
    """The function of that name.

    Raises:
        UsageError: for a name that is not an :data:`Activation`.
    """
    if name not in get_args(Activation):
        raise unknown("activation", name, get_args(Activation))
    return nn.tanh if name == "tanh" else getattr(nn, name)


def dense(size: int, scale: float = float(np.sqrt(2.0)), name: str | None = None) -> nn.Dense:
    """A linear layer with orthogonal weights times ``scale`` and zero biases (Saxe et al. 2014)."""
    return nn.Dense(size, kernel_init=orthogonal(scale), name=name)


class MLP(nn.Module):
    """Linear layers, each followed by the activation; with ``layer_norm``, normalised before the activation.

    ``[..., features] -> [..., hidden_sizes[-1]]``. Without hidden sizes it returns its input.
    """

    hidden_sizes: tuple[int, ...] = (256, 256)
    activation: str = "relu"
    layer_norm: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        activate = activation_function(self.activation)
        for size in self.hidden_sizes:
            x = dense(size)(x)
            if self.layer_norm:
                x = nn.LayerNorm()(x)
            x = activate(x)
        return x


class ConvTorso(nn.Module):
    """A few convolutions and a flattening: ``[..., height, width, channels] -> [..., features]``.

    Images of at least 36 pixels a side go through the three layers of Mnih et al. (2015); smaller ones through two
    padded 3x3 layers. Integer images are divided by 255.
    """

    @nn.compact
    def __call__(self, image: Array) -> Array:
        large = min(image.shape[-3:-1]) >= SMALLEST_LARGE_IMAGE
        layers = ((32, 8, 4), (64, 4, 2), (64, 3, 1)) if large else ((16, 3, 1), (32, 3, 1))
        x = image.astype(jnp.float32)
        if jnp.issubdtype(image.dtype, jnp.integer):
            x = x / 255.0
        for channels, kernel, stride in layers:
            x = nn.Conv(
                channels,
                (kernel, kernel),
                (stride, stride),
                padding="VALID" if large else "SAME",
                kernel_init=orthogonal(float(np.sqrt(2.0))),
            )(x)
            x = nn.relu(x)
        return x.reshape(*x.shape[:-3], -1)


class Encoder(nn.Module):
    """An observation as a float32 vector: images (rank 3) by :class:`ConvTorso`, everything else flattened.

    Attributes:
        rank: axes of one observation; the axes before them are leading axes and stay.
    """

    rank: int = 1

    @nn.compact
    def __call__(self, observation: Array) -> Array:
        if self.rank == 3:
            return ConvTorso()(observation)
        leading = observation.shape[: observation.ndim - self.rank]
        return observation.astype(jnp.float32).reshape(*leading, -1)
