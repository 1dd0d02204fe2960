"""A world model trained end to end on recorded steps: one encoder, four heads and one loss around any dynamics."""

from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from jaxrl import returns
from jaxrl.errors import UsageError
from jaxrl.koopman.dictionaries import EncoderNetwork
from jaxrl.types import Array, Experience, Key, Metrics, PyTree, check_key
from jaxrl.world_models.base import Config, Dynamics, Hyper, State, WorldModel, check, step_weights


class Networks(NamedTuple):
    encoder: nn.Module
    decoder: nn.Module
    reward: nn.Module
    value: nn.Module


def make(config: Config, dynamics: Dynamics, observation_size: int, action_size: int) -> WorldModel:
    """A model around some dynamics.

    Raises:
        UsageError: for sizes below 1 or hyper-parameters that cannot work.
    """
    check(config, observation_size, action_size)
    shared = {"hidden_sizes": tuple(config.hidden_sizes), "activation": config.activation}
    networks = Networks(
        EncoderNetwork(config.latent_size, **shared),
        EncoderNetwork(observation_size, tuple(config.decoder_sizes), config.activation),
        EncoderNetwork(1, **shared),
        EncoderNetwork(1, **shared),
    )
    bound = (config, dynamics, networks, observation_size, action_size)
    model = WorldModel(
        dynamics.name,
        config,
        observation_size,
        action_size,
        partial(_init, *bound),
        partial(_update, dynamics, networks),
        partial(_encode, networks, observation_size),
        partial(_step, dynamics, config.latent_size, action_size),
        partial(_rollout, dynamics, config.latent_size, action_size),
        partial(_apply, networks.decoder, "decoder"),
        partial(_reward, networks),
        partial(_value, networks),
        None if dynamics.matrices is None else partial(_matrices, dynamics),
    )
    return model


def loss(
    params: PyTree, target_params: PyTree, hyper: Hyper, dynamics: Dynamics, networks: Networks, batch: Experience
) -> tuple[Array, Metrics]:
    """Latents, rewards, returns and observations along a window rolled out from its first observation alone.

        L = mean_t rho^t [ w_c |z_{t+1} - sg phi'(o_{t+1})|^2 + w_r (r^(z_t, a_t) - r_t)^2 + w_v (v^(z_t) - G_t)^2
                           + w_o |Dec(z_{t+1}) - o_{t+1}|^2 ] + w_o |Dec(z_0) - o_0|^2

    with ``phi'`` a moving average of the encoder, squared norms as means over entries, and ``G_t`` the return to go, which
    the target value completes at the end of the window. ``o_{t+1}`` is where step ``t`` really led; steps behind the first
    flag belong to another episode and count nothing. Derived here, from 3.9 of the method: the reward sees the action too.

    Args:
        batch: ``[B, T, ...]``.
    """
    first = _apply(networks.encoder, "encoder", params, batch.observation[:, 0])
    after = jax.vmap(dynamics.rollout, (None, 0, 0))(params["dynamics"], first, batch.action)
    before = jnp.concatenate([first[:, None], after[:, :-1]], 1)
    wanted = _apply(networks.encoder, "encoder", target_params, batch.next_observation)
    goals = return_to_go(networks, target_params, hyper.discount, batch, wanted)
    weight = step_weights(batch, hyper.decay)
    square = lambda x: jnp.mean(jnp.square(x), -1)
    decode = partial(_apply, networks.decoder, "decoder", params)
    of_step = {
        "consistency": square(after - jax.lax.stop_gradient(wanted)),
        "reward": jnp.square(_reward(networks, params, before, batch.action) - batch.reward),
        "value": jnp.square(_value(networks, params, before) - goals),
        "observation": square(decode(after) - batch.next_observation),
    }
    parts = {name: jnp.sum(weight * error) / jnp.sum(weight) for name, error in of_step.items()}
    parts["reconstruction"] = jnp.mean(square(decode(first) - batch.observation[:, 0]))
    scales = hyper._asdict() | {"reconstruction_weight": hyper.observation_weight}
    total = sum(scales[f"{name}_weight"] * part for name, part in parts.items())
    return total, {f"model/{name}": part for name, part in parts.items()} | {"model/loss": total}


def return_to_go(
    networks: Networks, target_params: PyTree, discount: Array, batch: Experience, latents: Array
) -> Array:
    """Discounted rewards from every step to the window's end, completed by the target value there. ``[B, T]``.

    Args:
        latents: of ``next_observation``, by the target encoder.
    """
    completed = _value(networks, target_params, latents)
    flags = batch.terminated.T, batch.truncated.T
    goals = returns.discounted_returns(batch.reward.T, completed.T, *flags, discount)
    return jax.lax.stop_gradient(goals.T)


def _optimizer(hyper: Hyper) -> optax.GradientTransformation:
    # As one vector: some thirty small leaves would take longer to compile and to run.
    return optax.flatten(optax.chain(optax.clip_by_global_norm(1.0), optax.adam(hyper.learning_rate)))


def _init(
    config: Config, dynamics: Dynamics, networks: Networks, observation_size: int, action_size: int, key: Key
) -> State:
    check_key(key)
    keys = jax.random.split(key, 5)
    latent = jnp.zeros((1, config.latent_size))
    params = {
        "encoder": networks.encoder.init(keys[0], jnp.zeros((1, observation_size))),
        "dynamics": dynamics.init(keys[1]),
        "decoder": networks.decoder.init(keys[2], latent),
        "reward": networks.reward.init(keys[3], jnp.zeros((1, config.latent_size + action_size))),
        "value": networks.value.init(keys[4], latent),
    }
    hyper = Hyper(*(jnp.asarray(getattr(config, name), jnp.float32) for name in Hyper._fields))
    targets = jax.tree.map(jnp.copy, {name: params[name] for name in ("encoder", "value")})
    return State(params, targets, _optimizer(hyper).init(params), hyper, jnp.zeros((), jnp.int32))


def _update(dynamics: Dynamics, networks: Networks, state: State, batch: Experience) -> tuple[State, Metrics]:
    differentiate = jax.grad(loss, has_aux=True)
    gradients, metrics = differentiate(state.params, state.target_params, state.hyper, dynamics, networks, batch)
    moves, optimizer_state = _optimizer(state.hyper).update(gradients, state.optimizer_state, state.params)
    params = optax.apply_updates(state.params, moves)
    followed = {name: params[name] for name in state.target_params}
    targets = optax.incremental_update(followed, state.target_params, state.hyper.tau)
    state = state._replace(
        params=params, target_params=targets, optimizer_state=optimizer_state, updates=state.updates + 1
    )
    return state, metrics | {"model/gradient_norm": optax.global_norm(gradients)}


def _encode(networks: Networks, observation_size: int, params: PyTree, observation: Array) -> Array:
    _check_last("observations", observation_size, observation)
    return _apply(networks.encoder, "encoder", params, observation)


def _step(dynamics: Dynamics, size: int, action_size: int, params: PyTree, latent: Array, action: Array) -> Array:
    _check_last("latents", size, latent)
    _check_last("actions", action_size, action)
    return dynamics.step(params["dynamics"], latent, action)


def _rollout(dynamics: Dynamics, size: int, action_size: int, params: PyTree, latent: Array, actions: Array) -> Array:
    _check_last("latents", size, latent)
    _check_last("actions", action_size, actions)
    if jnp.ndim(actions) < 2 or actions.shape[-2] < 1 or actions.shape[:-2] != latent.shape[:-1]:
        raise UsageError(
            f"a rollout takes latents [..., {size}] and actions [..., T, {action_size}] with T >= 1 and the same leading "
            f"axes, got {jnp.shape(latent)} and {jnp.shape(actions)}"
        )
    roll = partial(dynamics.rollout, params["dynamics"])
    for _ in latent.shape[:-1]:
        roll = jax.vmap(roll)
    return roll(latent, actions)


def _apply(network: nn.Module, name: str, params: PyTree, x: Array) -> Any:
    return network.apply(params[name], x)


def _reward(networks: Networks, params: PyTree, latent: Array, action: Array) -> Array:
    return _apply(networks.reward, "reward", params, jnp.concatenate([latent, action], -1))[..., 0]


def _value(networks: Networks, params: PyTree, latent: Array) -> Array:
    return _apply(networks.value, "value", params, latent)[..., 0]


def _matrices(dynamics: Dynamics, params: PyTree) -> tuple[Array, Array]:
    assert dynamics.matrices is not None
    return dynamics.matrices(params["dynamics"])


def _check_last(what: str, size: int, array: Array) -> None:
    if jnp.ndim(array) < 1 or jnp.shape(array)[-1] != size:
        raise UsageError(f"this model takes {what} of {size} numbers, got shape {jnp.shape(array)}")
