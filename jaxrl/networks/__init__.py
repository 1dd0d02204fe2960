"""Flax modules, used functionally: torsos, whole networks, ensembles."""

from jaxrl.networks.ensemble import apply_ensemble, init_ensemble
from jaxrl.networks.heads import (
    ActionValue,
    CategoricalPolicy,
    DeterministicPolicy,
    DiscreteActionValue,
    GaussianPolicy,
    StateValue,
)
from jaxrl.networks.mlp import MLP, Activation, ConvTorso, Encoder, activation_function, dense

__all__ = [
    "MLP",
    "ActionValue",
    "Activation",
    "CategoricalPolicy",
    "ConvTorso",
    "DeterministicPolicy",
    "DiscreteActionValue",
    "Encoder",
    "GaussianPolicy",
    "StateValue",
    "activation_function",
    "apply_ensemble",
    "dense",
    "init_ensemble",
]
