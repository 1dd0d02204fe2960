"""Whole networks: an encoder, a torso and a head, for policies and for values.

Every network takes observations with any leading axes ``[..., *observation_shape]`` and keeps those axes.
"""

from typing import Literal

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from jaxrl.networks.mlp import MLP, Encoder, dense
from jaxrl.types import Array

# A fresh policy is nearly the same in every state: its head starts a hundred times smaller than the other layers.
POLICY_SCALE = 0.01
# Bounds of the logarithm of a deviation that depends on the state.
LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0


class GaussianPolicy(nn.Module):
    """Location and deviation of a (perhaps later squashed) normal distribution.

    ``std`` is "state" for a deviation that depends on the observation, its logarithm held in [-5, 2] by a tanh whose
    slope never vanishes altogether, or "free" for one learned number per action dimension.

    Returns:
        ``(loc, scale)``, both ``[..., action_size]``; ``scale`` is positive and near ``initial_std`` at first.
    """

    action_size: int
    rank: int = 1
    hidden_sizes: tuple[int, ...] = (256, 256)
    activation: str = "relu"
    layer_norm: bool = False
    std: Literal["state", "free"] = "state"
    initial_std: float = 1.0

    @nn.compact
    def __call__(self, observation: Array) -> tuple[Array, Array]:
        x = MLP(self.hidden_sizes, self.activation, self.layer_norm)(Encoder(self.rank)(observation))
        loc = dense(self.action_size, POLICY_SCALE, "loc")(x)
        if self.std == "free":
            start = nn.initializers.constant(float(np.log(self.initial_std)))
            log_std = jnp.broadcast_to(self.param("log_std", start, (self.action_size,), jnp.float32), loc.shape)
        else:
            middle, half = (LOG_STD_MAX + LOG_STD_MIN) / 2, (LOG_STD_MAX - LOG_STD_MIN) / 2
            shift = float(np.arctanh((np.log(self.initial_std) - middle) / half))
            log_std = middle + half * jnp.tanh(shift + dense(self.action_size, POLICY_SCALE, "log_std")(x))
        return loc, jnp.exp(log_std)


class DeterministicPolicy(nn.Module):
    """One action per observation, each entry within [-1, 1] by a tanh: ``[..., action_size]``."""

    action_size: int
    rank: int = 1
    hidden_sizes: tuple[int, ...] = (256, 256)
    activation: str = "relu"
    layer_norm: bool = False

    @nn.compact
    def __call__(self, observation: Array) -> Array:
        x = MLP(self.hidden_sizes, self.activation, self.layer_norm)(Encoder(self.rank)(observation))
        return jnp.tanh(dense(self.action_size, POLICY_SCALE)(x))


class CategoricalPolicy(nn.Module):
    """Logits over ``num_actions`` choices: ``[..., num_actions]``."""

    num_actions: int
    rank: int = 1
    hidden_sizes: tuple[int, ...] = (256, 256)
    activation: str = "relu"
    layer_norm: bool = False

    @nn.compact
    def __call__(self, observation: Array) -> Array:
        x = MLP(self.hidden_sizes, self.activation, self.layer_norm)(Encoder(self.rank)(observation))
        return dense(self.num_actions, POLICY_SCALE)(x)


class StateValue(nn.Module):
    """One number per observation: ``[...]``."""

    rank: int = 1
    hidden_sizes: tuple[int, ...] = (256, 256)
    activation: str = "relu"
    layer_norm: bool = False

    @nn.compact
    def __call__(self, observation: Array) -> Array:
        x = MLP(self.hidden_sizes, self.activation, self.layer_norm)(Encoder(self.rank)(observation))
        return dense(1, 1.0)(x).squeeze(-1)


class ActionValue(nn.Module):
    """One number per observation and continuous action ``[..., action_size]``, which enters in [-1, 1]: ``[...]``."""

    rank: int = 1
    hidden_sizes: tuple[int, ...] = (256, 256)
    activation: str = "relu"
    layer_norm: bool = False

    @nn.compact
    def __call__(self, observation: Array, action: Array) -> Array:
        x = jnp.concatenate([Encoder(self.rank)(observation), action], axis=-1)
        x = MLP(self.hidden_sizes, self.activation, self.layer_norm)(x)
        return dense(1, 1.0)(x).squeeze(-1)


class DiscreteActionValue(nn.Module):
    """One number per observation and discrete action: ``[..., num_actions]``.

    With ``duelling`` it is ``v(s) + a(s, ·) - mean(a(s, ·))`` (Wang et al. 2016, equation 9).
    """

    num_actions: int
    rank: int = 1
    hidden_sizes: tuple[int, ...] = (256, 256)
    activation: str = "relu"
    layer_norm: bool = False
    duelling: bool = False

    @nn.compact
    def __call__(self, observation: Array) -> Array:
        x = MLP(self.hidden_sizes, self.activation, self.layer_norm)(Encoder(self.rank)(observation))
        advantage = dense(self.num_actions, 1.0, "advantage" if self.duelling else "value")(x)
        if not self.duelling:
            return advantage
        return dense(1, 1.0, "value")(x) + advantage - jnp.mean(advantage, axis=-1, keepdims=True)
