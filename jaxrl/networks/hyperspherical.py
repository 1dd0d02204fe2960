"""Networks on the unit sphere (SimbaV2, Lee et al. 2025, arXiv:2502.15280).

Features have unit length after every layer that mixes them, and so has every column of every weight matrix, which makes
a product of both a cosine. Lengths are learned apart, one number a feature (:class:`Scaler`). The columns are put back
onto the sphere by :func:`project` after every step of the optimiser; the modules do not do it.

From the authors' public JAX code: the constant appended to the input is 3; the blocks widen four times; scalers start at
``sqrt(2 / width)`` in the torso (half of that inside a block that widens four times) and at 1 in the heads; the share of
a block starts at ``1 / (blocks + 1)``, in units of ``1 / sqrt(width)``; the heads' logarithm of a deviation lies in
[-10, 2].
"""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.networks.initialisers import orthogonal
from jaxrl.networks.mlp import Encoder, activation_function
from jaxrl.types import Array, PyTree

LOG_STD_MIN, LOG_STD_MAX = -10.0, 2.0
# Keeps a row that no unit answers to from being all zeros, which has no direction.
POSITIVE_FLOOR = 1e-8
SMALLEST_NORM = 1e-8
# A column this close to unit length has it up to rounding; dividing once more would only change its last bits.
UNIT_TOLERANCE = 1e-6


def unit(x: Array, axis: int = -1) -> Array:
    """``x`` over its Euclidean length along an axis; zeros stay zeros, with a gradient of 0 / 1e-8 and not NaN."""
    return x / _norm(x, axis)


def _norm(x: Array, axis: int) -> Array:
    return jnp.sqrt(jnp.maximum(jnp.sum(jnp.square(x), axis, keepdims=True), SMALLEST_NORM**2))


def project(params: PyTree) -> PyTree:
    """Parameters with every column of every :class:`SphereDense` at unit length; projecting twice changes nothing more.

    Biases, scalers and the layers of other modules stay as they are. A leading axis of ensemble members may be there.
    """

    def leaf(path: tuple, x: Array) -> Array:
        if not any(str(getattr(entry, "key", "")).startswith(SphereDense.__name__) for entry in path):
            return x
        norm = _norm(x, -2)
        return jnp.where(jnp.abs(norm - 1.0) <= UNIT_TOLERANCE, x, x / norm)

    return jax.tree_util.tree_map_with_path(leaf, params)


class SphereDense(nn.Module):
    """A product with a matrix ``[features, size]`` whose columns are meant to have unit length; no bias."""

    size: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        kernel = self.param("kernel", orthogonal(), (x.shape[-1], self.size), jnp.float32)
        return x @ kernel


class Scaler(nn.Module):
    """A learned factor for each feature, which starts at ``initial`` and is stored in units where it is ``scale``.

    The units decide how far a step of the optimiser moves it: the same step is ``initial / scale`` times as long.
    """

    initial: float = 1.0
    scale: float = 1.0

    @nn.compact
    def __call__(self, x: Array) -> Array:
        scaler = self.param("scaler", nn.initializers.constant(self.scale), (x.shape[-1],), jnp.float32)
        return scaler * (self.initial / self.scale) * x


class SphereBlock(nn.Module):
    """One residual block: from ``x`` towards a two-layer network of it, and back onto the sphere.

        y = unit(W2 (activation(s (W1 x)) + 1e-8)),    x' = unit(x + a (y - x))

    with learned ``s`` and ``a`` (the paper calls it a linear interpolation, LERP). ``[..., width]`` both ways.
    """

    share: float
    expansion: int = 4
    activation: str = "relu"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        width = x.shape[-1]
        scale = math.sqrt(2.0 / width / self.expansion)
        hidden = Scaler(scale, scale)(SphereDense(width * self.expansion)(x))
        y = unit(SphereDense(width)(activation_function(self.activation)(hidden) + POSITIVE_FLOOR))
        return unit(x + Scaler(self.share, 1.0 / math.sqrt(width))(y - x))


class SphereTorso(nn.Module):
    """An input onto the sphere, then blocks: ``[..., features] -> [..., width]``, of unit length.

    A constant is appended before the input is given unit length, so that its own length is not lost.
    """

    width: int
    blocks: int
    expansion: int = 4
    shift: float = 3.0
    activation: str = "relu"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = jnp.concatenate([x, jnp.full((*x.shape[:-1], 1), self.shift, x.dtype)], axis=-1)
        scale = math.sqrt(2.0 / self.width)
        x = unit(Scaler(scale, scale)(SphereDense(self.width)(unit(x))))
        for _ in range(self.blocks):
            x = SphereBlock(1.0 / (self.blocks + 1), self.expansion, self.activation)(x)
        return x


class SphereHead(nn.Module):
    """Two matrices with a scaler between them, and a bias: ``[..., width] -> [..., size]``."""

    size: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = Scaler()(SphereDense(x.shape[-1])(x))
        x = SphereDense(self.size)(x)
        return x + self.param("bias", nn.initializers.zeros, (self.size,), jnp.float32)


class SpherePolicy(nn.Module):
    """Location and deviation of a normal distribution that is later squashed, both ``[..., action_size]``."""

    action_size: int
    rank: int = 1
    width: int = 128
    blocks: int = 1
    expansion: int = 4
    shift: float = 3.0
    activation: str = "relu"

    @nn.compact
    def __call__(self, observation: Array) -> tuple[Array, Array]:
        x = Encoder(self.rank)(observation)
        x = SphereTorso(self.width, self.blocks, self.expansion, self.shift, self.activation)(x)
        loc = SphereHead(self.action_size, name="loc")(x)
        position = 0.5 * (1.0 + jnp.tanh(SphereHead(self.action_size, name="log_std")(x)))
        return loc, jnp.exp(LOG_STD_MIN + (LOG_STD_MAX - LOG_STD_MIN) * position)


class SphereActionValue(nn.Module):
    """Logits of the value of an observation and an action ``[..., action_size]`` in [-1, 1]: ``[..., num_bins]``."""

    num_bins: int
    rank: int = 1
    width: int = 512
    blocks: int = 2
    expansion: int = 4
    shift: float = 3.0
    activation: str = "relu"

    @nn.compact
    def __call__(self, observation: Array, action: Array) -> Array:
        x = jnp.concatenate([Encoder(self.rank)(observation), action], axis=-1)
        x = SphereTorso(self.width, self.blocks, self.expansion, self.shift, self.activation)(x)
        return SphereHead(self.num_bins)(x)
