"""Wide residual networks with layer normalisation: BroNet (Nauman et al. 2024, arXiv:2405.16158), and its heads.

From the public code of BRC (Nauman et al. 2025, arXiv:2505.23150): every linear layer is orthogonal with a gain of
``sqrt(2)``, but for the policy's deviation, whose gain is 1; the logarithm of that deviation lies in [-10, 2]; a task is
a learned vector divided by its own length.
"""

import flax.linen as nn
import jax.numpy as jnp

from jaxrl.networks.mlp import Encoder, activation_function, dense
from jaxrl.types import Array

LOG_STD_MIN, LOG_STD_MAX = -10.0, 2.0


class BroBlock(nn.Module):
    """``x + norm(W2 activation(norm(W1 x)))``, ``[..., width]`` both ways; the two matrices have biases."""

    activation: str = "relu"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        width = x.shape[-1]
        hidden = activation_function(self.activation)(nn.LayerNorm()(dense(width)(x)))
        return x + nn.LayerNorm()(dense(width)(hidden))


class BroNet(nn.Module):
    """A linear layer, a normalisation and an activation, then blocks: ``[..., features] -> [..., width]``."""

    width: int
    depth: int
    activation: str = "relu"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = activation_function(self.activation)(nn.LayerNorm()(dense(self.width)(x)))
        for _ in range(self.depth):
            x = BroBlock(self.activation)(x)
        return x


class BroPolicy(nn.Module):
    """Location and deviation of a normal distribution that is later squashed, both ``[..., action_size]``.

    ``context`` ``[..., C]`` goes in beside the observation; C may be 0.
    """

    action_size: int
    rank: int = 1
    width: int = 256
    depth: int = 1
    activation: str = "relu"

    @nn.compact
    def __call__(self, observation: Array, context: Array) -> tuple[Array, Array]:
        x = jnp.concatenate([Encoder(self.rank)(observation), context], axis=-1)
        x = BroNet(self.width, self.depth, self.activation)(x)
        loc = dense(self.action_size, name="loc")(x)
        position = 0.5 * (1.0 + jnp.tanh(dense(self.action_size, 1.0, "log_std")(x)))
        return loc, jnp.exp(LOG_STD_MIN + (LOG_STD_MAX - LOG_STD_MIN) * position)


class BroActionValue(nn.Module):
    """Logits of the value of an observation and an action ``[..., action_size]`` in [-1, 1]: ``[..., num_bins]``."""

    num_bins: int
    rank: int = 1
    width: int = 4096
    depth: int = 2
    activation: str = "relu"

    @nn.compact
    def __call__(self, observation: Array, context: Array, action: Array) -> Array:
        x = jnp.concatenate([Encoder(self.rank)(observation), action, context], axis=-1)
        return dense(self.num_bins)(BroNet(self.width, self.depth, self.activation)(x))


class TaskEmbedding(nn.Module):
    """A learned vector of unit length for each task: int ``[...] -> [..., size]``."""

    num_tasks: int
    size: int

    @nn.compact
    def __call__(self, task: Array) -> Array:
        vector = nn.Embed(self.num_tasks, self.size)(task)
        return vector / jnp.linalg.norm(vector, axis=-1, keepdims=True)
