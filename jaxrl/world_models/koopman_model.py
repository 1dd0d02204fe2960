"""A world model whose latents move linearly, ``z' = A z + B c(a)``, so that a whole horizon rolls out in parallel.

The control ``c`` sees the action alone: were it to see the latent, a step would be linear no more. Derived here from the
diagonal linear recurrence of Orvieto et al. (2023), whose use as a world model is reported of Mondal et al. (2024).

>>> import jax
>>> from jaxrl.world_models import koopman_model
>>> model = koopman_model.make(koopman_model.Config(latent_size=8), observation_size=3, action_size=1)
>>> params = model.init(jax.random.key(0)).params
>>> latents = model.rollout(params, model.encode(params, jax.numpy.ones(3)), jax.numpy.zeros((200, 1)))
>>> model.decode(params, latents).shape
(200, 3)
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import jax
import jax.numpy as jnp

from jaxrl.errors import UsageError, unknown
from jaxrl.koopman import operators, rollouts
from jaxrl.koopman.operators import Operator
from jaxrl.networks import MLP
from jaxrl.types import Array, Key, PyTree
from jaxrl.world_models import base, training
from jaxrl.world_models.base import Dynamics, WorldModel

OperatorName = Literal["diagonal", "rotation", "dense", "skew", "bounded", "bilinear"]


@dataclass(frozen=True)
class Config(base.Config):
    """A Koopman world model. Linear control needs ``control_sizes`` and ``decoder_sizes`` empty and no "bilinear"."""

    operator: OperatorName = "diagonal"
    """What steps latents. "diagonal", "skew" and "bounded" are stable: they have no growing mode, and so no saddle.
    "rotation" and "dense" may grow. "bilinear" is "diagonal" with ``sum_i c_i N_i z`` added, and rolls out by a scan."""
    control_sizes: tuple[int, ...] = ()
    """Widths of the layers between an action and the linear ``B``. None at all: actions enter linearly."""
    rollout: Literal["associative", "closed_form", "scan"] = "associative"
    """How a horizon is rolled out; all three agree."""
    min_radius: float = 0.9
    """Of the initial eigenvalues of "diagonal"."""
    max_radius: float = 0.999
    max_phase: float = math.pi / 10
    """Largest initial angle a step [rad], but for "rotation"."""


def make(config: Config, observation_size: int, action_size: int) -> WorldModel:
    """A model for these sizes.

    Raises:
        UsageError: for sizes or a configuration that cannot work.
    """
    base.check(config, observation_size, action_size)
    if any(width < 1 for width in config.control_sizes):
        raise UsageError(f"layers of the control have a width of at least 1, got {config.control_sizes}")
    rollouts.by_name(config.rollout)
    control_size = config.control_sizes[-1] if config.control_sizes else action_size
    operator = operator_of(config, control_size)
    encoder = MLP(tuple(config.control_sizes), config.activation)
    control = partial(_control, encoder)
    init = partial(_init, config, operator, encoder, action_size)
    if config.operator == "bilinear":
        step = partial(_bilinear_step, operator, control)
        dynamics = Dynamics("koopman_bilinear", init, step, partial(_bilinear_rollout, operator, control))
    else:
        step, roll = partial(_step, operator, control), partial(_rollout, operator, control, config.rollout)
        matrices = None if config.control_sizes else partial(_matrices, operator)
        dynamics = Dynamics(f"koopman_{config.operator}", init, step, roll, matrices)
    return training.make(config, dynamics, observation_size, action_size)


def operator_of(config: Config, control_size: int) -> Operator:
    """The linear part of a model's step.

    Raises:
        UsageError: for an unknown operator or a size that it cannot have.
    """
    size = config.latent_size
    if config.operator in ("diagonal", "bilinear"):
        return operators.diagonal(size, control_size, config.min_radius, config.max_radius, config.max_phase)
    if config.operator == "rotation":
        return operators.block(size, control_size, kind="rotation")
    if config.operator == "skew":
        return operators.skew(size, control_size, max_phase=config.max_phase)
    if config.operator not in ("dense", "bounded"):
        raise unknown("operator of a world model", str(config.operator), get_args(OperatorName))
    return getattr(operators, config.operator)(size, control_size, max_phase=config.max_phase)


def _control(encoder: MLP, params: PyTree, action: Array) -> Array:
    return encoder.apply(params["control"], action)  # type: ignore[return-value]


def _init(config: Config, operator: Operator, encoder: MLP, action_size: int, key: Key) -> PyTree:
    operator_key, control_key = jax.random.split(key)
    params = {
        "operator": operator.init(operator_key),
        "control": encoder.init(control_key, jnp.zeros((1, action_size))),
    }
    if config.operator == "bilinear":  # starts as the linear model; the gradient of N at 0 is not 0
        params["N"] = jnp.zeros((operator.control_size, operator.size, operator.size))
    return params


def _step(operator: Operator, control: Callable, params: PyTree, latent: Array, action: Array) -> Array:
    return operator.step(params["operator"], latent, control(params, action))


def _rollout(operator: Operator, control: Callable, way: str, params: PyTree, latent: Array, actions: Array) -> Array:
    controls = control(params, actions)
    return rollouts.by_name(way)(operator, params["operator"], latent, controls, len(actions))


def _matrices(operator: Operator, params: PyTree) -> tuple[Array, Array]:
    a, b = operator.matrix(params["operator"])
    assert b is not None
    return a, b


def _bilinear_step(operator: Operator, control: Callable, params: PyTree, latent: Array, action: Array) -> Array:
    controls = control(params, action)
    steered = jnp.einsum("...c,cij,...j->...i", controls, params["N"], latent)
    return operator.step(params["operator"], latent, controls) + steered


def _bilinear_rollout(operator: Operator, control: Callable, params: PyTree, latent: Array, actions: Array) -> Array:
    """The linear part of every step is computed before the scan, as far as it knows no latent."""
    transition, controls = operator.transition(params["operator"]), control(params, actions)

    def step(latent: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
        force, matrix = inputs
        latent = operator.apply(transition, latent) + force + matrix @ latent
        return latent, latent

    matrices = jnp.einsum("tc,cij->tij", controls, params["N"])
    return jax.lax.scan(step, latent, (operator.drive(params["operator"], controls), matrices))[1]
