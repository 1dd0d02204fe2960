"""The contract of a latent world model: a container of pure functions over a pytree of parameters.

What steps latents (:class:`Dynamics`) is all that differs between a linear model and its baselines; encoder, heads and loss
(:mod:`~jaxrl.world_models.training`) are shared.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.errors import UsageError
from jaxrl.networks import Activation, activation_function
from jaxrl.types import Array, Experience, Key, Metrics, PyTree


@dataclass(frozen=True)
class Config:
    """What every model has."""

    latent_size: int = 32
    """Numbers in a latent."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers of encoder, reward and value."""
    decoder_sizes: tuple[int, ...] = ()
    """Widths of the decoder's hidden layers. None at all: a linear decoder, with which a cost on observations is quadratic."""
    activation: Activation = "silu"
    """What follows each hidden layer."""
    learning_rate: float = 1e-3
    """Step size of Adam."""
    discount: float = 0.99
    """Of the value head."""
    tau: float = 0.01
    """Share of encoder and value head that their targets take over at every update."""
    decay: float = 1.0
    """Weight of a step of the window over that of the step before."""
    consistency_weight: float = 1.0
    reward_weight: float = 1.0
    value_weight: float = 0.1
    observation_weight: float = 1.0


class Hyper(NamedTuple):
    """What a study may sweep; float32 scalars."""

    learning_rate: Array
    discount: Array
    tau: Array
    decay: Array
    consistency_weight: Array
    reward_weight: Array
    value_weight: Array
    observation_weight: Array


class Dynamics(NamedTuple):
    """What moves a latent."""

    name: str
    init: Callable[[Key], PyTree]
    step: Callable[[PyTree, Array, Array], Array]  # (params, latent [..., Z], action [..., A]) -> [..., Z]
    rollout: Callable[
        [PyTree, Array, Array], Array
    ]  # (params, latent [Z], actions [T, A]) -> [T, Z], the start left out
    # params -> (A [Z, Z], B [Z, A]) where a step is linear in latent and action together, else None
    matrices: Callable[[PyTree], tuple[Array, Array]] | None = None


class State(NamedTuple):
    params: PyTree  # {"encoder", "dynamics", "decoder", "reward", "value"}
    target_params: PyTree  # {"encoder", "value"}
    optimizer_state: PyTree
    hyper: Hyper
    updates: Array  # int32


class WorldModel(NamedTuple):
    """Pure functions; ``params`` is ``State.params``. Observations are vectors of about unit size, actions in [-1, 1]."""

    name: str
    config: Config
    observation_size: int
    action_size: int
    init: Callable[[Key], State]
    update: Callable[[State, Experience], tuple[State, Metrics]]  # windows of Experience, [B, T, ...]
    encode: Callable[[PyTree, Array], Array]  # [..., O] -> [..., Z]
    step: Callable[[PyTree, Array, Array], Array]  # latent [..., Z], action [..., A] -> [..., Z]
    rollout: Callable[[PyTree, Array, Array], Array]  # latent [..., Z], actions [..., T, A] -> [..., T, Z]
    decode: Callable[[PyTree, Array], Array]  # [..., Z] -> [..., O]
    reward: Callable[[PyTree, Array, Array], Array]  # latent [..., Z], action [..., A] -> [...]
    value: Callable[[PyTree, Array], Array]  # [..., Z] -> [...]: discounted return of whoever acted in the data
    matrices: Callable[[PyTree], tuple[Array, Array]] | None  # see Dynamics; params as here


def check(config: Config, observation_size: int, action_size: int) -> None:
    """Refuse what cannot work.

    Raises:
        UsageError: names the value and the nearest that works.
    """
    sizes = {"observation_size": observation_size, "action_size": action_size, "latent_size": config.latent_size}
    for name, size in sizes.items():
        if size < 1:
            raise UsageError(f"a world model needs {name} >= 1, got {size}; 1 works")
    widths = (*config.hidden_sizes, *config.decoder_sizes)
    if any(width < 1 for width in widths):
        raise UsageError(f"hidden layers have a width of at least 1, got {widths}")
    if not config.learning_rate > 0:
        raise UsageError(f"learning_rate {config.learning_rate} cannot work; it must be above 0, such as 1e-3")
    for name in ("discount", "tau", "decay"):
        if not 0 <= getattr(config, name) <= 1:
            raise UsageError(f"{name} {getattr(config, name)} is not within [0, 1]")
    for name in ("consistency_weight", "reward_weight", "value_weight", "observation_weight"):
        if not getattr(config, name) >= 0:
            raise UsageError(f"{name} {getattr(config, name)} cannot work; it must be at least 0")
    activation_function(config.activation)


def windows(steps: Experience, lanes: Array, starts: Array, length: int) -> Experience:
    """Windows ``[B, length, ...]`` of recorded steps ``[T, lanes, ...]`` that begin at ``starts`` in ``lanes``, both [B].

    A window may run over the end of an episode; the loss leaves out what is behind it.

    Raises:
        UsageError: for a length below 1 or above what was recorded.
    """
    if not 1 <= length <= len(steps.reward):
        raise UsageError(f"windows have 1 to {len(steps.reward)} steps, as many as were recorded; got {length}")
    times = starts[:, None] + jnp.arange(length)
    return jax.tree.map(lambda x: x[times, lanes[:, None]], steps)


def step_weights(batch: Experience, decay: Array | float) -> Array:
    """``rho^t`` up to and including the first flagged step, then 0. float32 ``[B, T]``."""
    flagged = jnp.logical_or(batch.terminated, batch.truncated).astype(jnp.float32)
    going = jnp.cumprod(1.0 - flagged, 1)
    same_episode = jnp.concatenate([jnp.ones_like(going[:, :1]), going[:, :-1]], 1)
    rate = jnp.concatenate([jnp.ones((1,)), jnp.full(flagged.shape[1] - 1, decay, jnp.float32)])
    return same_episode * jnp.cumprod(rate)
