"""Latent models that step through a network, one step at a time: what a linear model is compared with.

Both are as wide as the linear model's latent and share everything else with it: encoder, heads and loss.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.checks import int_from
from jaxrl.errors import unknown
from jaxrl.koopman.dictionaries import EncoderNetwork
from jaxrl.types import Array, Key, PyTree
from jaxrl.world_models import base, training
from jaxrl.world_models.base import Dynamics, WorldModel


@dataclass(frozen=True)
class Config(base.Config):
    """A recurrent or a feed-forward step."""

    kind: Literal["gru", "mlp"] = "gru"
    """"gru": a gated recurrent unit (Cho et al. 2014) whose state is the latent and whose input is the action. "mlp":
    ``z' = z + MLP([z, a])``, hidden layers as wide as the latent."""
    step_layers: int = 2
    """Hidden layers of the MLP."""


def make(config: Config, observation_size: int, action_size: int) -> WorldModel:
    """A model for these sizes.

    Raises:
        UsageError: for sizes or a configuration that cannot work.
    """
    base.check(config, observation_size, action_size)
    int_from(config.step_layers, "step_layers", 0)
    if config.kind == "gru":
        network: nn.Module = nn.GRUCell(config.latent_size)
        step = partial(_gru_step, network)
    elif config.kind == "mlp":
        network = EncoderNetwork(config.latent_size, (config.latent_size,) * config.step_layers, config.activation)
        step = partial(_mlp_step, network)
    else:
        raise unknown("kind of step", str(config.kind), ("gru", "mlp"))
    init = partial(_init, config, network, action_size)
    dynamics = Dynamics(config.kind, init, step, partial(_rollout, step))
    return training.make(config, dynamics, observation_size, action_size)


def _init(config: Config, network: nn.Module, action_size: int, key: Key) -> PyTree:
    latent, action = jnp.zeros((1, config.latent_size)), jnp.zeros((1, action_size))
    if config.kind == "gru":
        return network.init(key, latent, action)
    return network.init(key, jnp.concatenate([latent, action], -1))


def _gru_step(network: nn.Module, params: PyTree, latent: Array, action: Array) -> Array:
    return network.apply(params, latent, action)[0]  # type: ignore[index, return-value]


def _mlp_step(network: nn.Module, params: PyTree, latent: Array, action: Array) -> Array:
    return latent + network.apply(params, jnp.concatenate([latent, action], -1))  # type: ignore[operator]


def _rollout(step, params: PyTree, latent: Array, actions: Array) -> Array:
    def one(latent: Array, action: Array) -> tuple[Array, Array]:
        latent = step(params, latent, action)
        return latent, latent

    return jax.lax.scan(one, latent, actions)[1]
