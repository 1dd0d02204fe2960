"""Critics that say a distribution of values, as logits over the bins of a support."""

import flax.linen as nn
import jax.numpy as jnp

from jaxrl.networks.mlp import MLP, Encoder, dense
from jaxrl.types import Array


class CategoricalActionValue(nn.Module):
    """Logits of the value of an observation and an action ``[..., action_size]`` in [-1, 1]: ``[..., num_bins]``."""

    num_bins: int
    rank: int = 1
    hidden_sizes: tuple[int, ...] = (256, 256)
    activation: str = "relu"
    layer_norm: bool = False

    @nn.compact
    def __call__(self, observation: Array, action: Array) -> Array:
        x = jnp.concatenate([Encoder(self.rank)(observation), action], axis=-1)
        x = MLP(self.hidden_sizes, self.activation, self.layer_norm)(x)
        return dense(self.num_bins, 1.0)(x)
