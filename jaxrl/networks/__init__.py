"""Flax modules, used functionally: torsos, whole networks, ensembles."""

from jaxrl.networks.bro import BroActionValue, BroNet, BroPolicy, TaskEmbedding
from jaxrl.networks.distributional import CategoricalActionValue
from jaxrl.networks.ensemble import apply_ensemble, init_ensemble
from jaxrl.networks.heads import (
    ActionValue,
    CategoricalPolicy,
    DeterministicPolicy,
    DiscreteActionValue,
    GaussianPolicy,
    StateValue,
)
from jaxrl.networks.hyperspherical import SphereActionValue, SpherePolicy
from jaxrl.networks.mlp import MLP, Activation, ConvTorso, Encoder, activation_function, dense

__all__ = [
    "MLP",
    "ActionValue",
    "Activation",
    "BroActionValue",
    "BroNet",
    "BroPolicy",
    "CategoricalActionValue",
    "CategoricalPolicy",
    "ConvTorso",
    "DeterministicPolicy",
    "DiscreteActionValue",
    "Encoder",
    "GaussianPolicy",
    "SphereActionValue",
    "SpherePolicy",
    "StateValue",
    "TaskEmbedding",
    "activation_function",
    "apply_ensemble",
    "dense",
    "init_ensemble",
]
