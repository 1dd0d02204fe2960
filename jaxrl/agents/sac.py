"""Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905), for bounded continuous actions.

A squashed Gaussian policy maximises reward plus ``alpha`` times its own entropy. An ensemble of critics learns the soft
value of each action from replayed transitions; the smallest of their slowly moving targets, at an action drawn from the
policy, is what they bootstrap from (equation 5). The policy follows the gradient of the smallest critic through its own
reparametrised action (equation 7). The temperature ``alpha`` is learned so that the entropy meets a target (equation
18). Inside, actions are in [-1, 1]: so are those the critics see, and entropies are of those, so that nothing but the
action itself depends on the environment's units. (In those units the target entropy would be larger by the sum of
``log((high - low) / 2)``, and so would be the entropy.)
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxrl import normalise, spaces
from jaxrl.agents import common
from jaxrl.agents.base import Agent, OptimizerFactory, optimizer_factory
from jaxrl.distributions import TanhNormal, scale_action, unscale_action
from jaxrl.losses import soft, value
from jaxrl.networks import (
    ActionValue,
    Activation,
    GaussianPolicy,
    activation_function,
    apply_ensemble,
    init_ensemble,
)
from jaxrl.normalise import RunningStatistics
from jaxrl.spaces import Box, Space
from jaxrl.types import Array, Experience, Key, Metrics, PyTree, Transition, check_key


@dataclass(frozen=True)
class Config:
    actor_learning_rate: float = 3e-4
    """Step size of the policy's optimiser."""
    critic_learning_rate: float = 3e-4
    """Step size of the critics' optimiser."""
    temperature_learning_rate: float = 3e-4
    """Step size of the temperature's optimiser; 0 keeps the initial temperature."""
    discount: float = 0.99
    """Weight of the next step's value against this step's reward."""
    tau: float = 0.005
    """Share of the critics that their targets take over at each update."""
    target_entropy_scale: float = 1.0
    """The target entropy is minus this for each dimension of an action in [-1, 1]."""
    initial_temperature: float = 1.0
    """Weight of the entropy at first."""
    num_critics: int = 2
    """Members of the critics' ensemble."""
    policy_delay: int = 1
    """Updates of the critics for each update of policy and temperature."""
    normalise_observations: bool = False
    """Whether the networks see observations minus their running mean, over their running deviation."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of all networks."""
    activation: Activation = "relu"
    """What follows each hidden layer."""
    layer_norm: bool = False
    """Whether hidden layers are normalised before the activation."""
    initial_std: float = 1.0
    """Deviation of a fresh policy, before squashing."""
    num_tasks: int = 1
    """Tasks. With more than one, observations end with a one-hot of the task, and each has a temperature of its own."""


class Hyper(NamedTuple):
    """What a study may sweep; float32 scalars."""

    actor_learning_rate: Array
    critic_learning_rate: Array
    temperature_learning_rate: Array
    discount: Array
    tau: Array
    target_entropy_scale: Array


class State(NamedTuple):
    params: PyTree  # {"actor", "critic": first axis num_critics, "temperature": its logarithm, [] or [num_tasks]}
    target_params: PyTree  # {"critic"}
    optimizer_state: PyTree  # {"actor", "critic", "temperature"}
    normaliser: RunningStatistics | None
    hyper: Hyper
    steps: Array  # int32: environment steps observed
    updates: Array  # int32: calls of update
    policy_metrics: Metrics  # of the latest update of the policy, which a delay may have put some calls ago


class Parts(NamedTuple):
    """What is fixed when an agent is made."""

    config: Config
    actor: Any  # a flax module
    critic: Any  # a flax module
    optimizer: OptimizerFactory
    observation_space: Box
    action_space: Box


def policy(parts: Parts, params: PyTree, observation: PyTree) -> TanhNormal:
    """The distribution over actions in [-1, 1], for normalised observations with any leading axes."""
    loc, scale = parts.actor.apply(params, observation)
    return TanhNormal(loc, scale, -1.0, 1.0)


def critic_target(params: PyTree, target_params: PyTree, parts: Parts, batch: Transition, key: Key) -> Array:
    """What every critic shall predict, [B]. A time limit is in it like any other step: its discount is not 0."""
    action, log_prob = policy(parts, params["actor"], batch.next_observation).sample_and_log_prob(key)
    q = apply_ensemble(parts.critic, target_params["critic"], batch.next_observation, action)
    target = jax.vmap(soft.critic_target, (0, 0, 1, 0, 0))
    return target(batch.reward, batch.discount, q, log_prob, jnp.exp(of_task(params["temperature"], batch)))


def critic_loss(params: PyTree, parts: Parts, batch: Transition, target: Array) -> tuple[Array, tuple[Metrics, Array]]:
    """Half the squared errors, summed over the critics. ``params`` are the critics'. Also returns priorities [B]."""
    q = apply_ensemble(parts.critic, params, batch.observation, batch.action)
    error = target - q
    loss = jnp.mean(batch.weight * jnp.sum(value.squared(error), axis=0))
    priority = jnp.mean(jnp.abs(error), axis=0) + common.PRIORITY_FLOOR
    return loss, ({"critic/loss": loss, "critic/value": jnp.mean(q)}, priority)


def actor_loss(params: PyTree, others: PyTree, parts: Parts, batch: Transition, key: Key) -> tuple[Array, Array]:
    """Temperature times log-probability minus value. ``params`` are the policy's. Also returns log-probabilities [B]."""
    action, log_prob = policy(parts, params, batch.observation).sample_and_log_prob(key)
    q = apply_ensemble(parts.critic, others["critic"], batch.observation, action)
    loss = jax.vmap(soft.actor_loss, (1, 0, 0))(q, log_prob, jnp.exp(of_task(others["temperature"], batch)))
    return jnp.mean(batch.weight * loss), log_prob


def temperature_loss(params: Array, parts: Parts, hyper: Hyper, batch: Transition, log_prob: Array) -> Array:
    """Raises the temperature while the entropy is below its target. ``params`` is the temperature's logarithm."""
    target_entropy = -hyper.target_entropy_scale * parts.action_space.shape[0]
    return jnp.mean(jax.vmap(soft.temperature_loss, (0, 0, None))(of_task(params, batch), log_prob, target_entropy))


def of_task(temperature: Array, batch: Transition) -> Array:
    """Each sample's own entry of ``[]`` or ``[num_tasks]``, [B]; the one-hot that ends an observation says which."""
    if temperature.ndim == 0:
        return jnp.broadcast_to(temperature, batch.reward.shape)
    # The largest entry is the task's also where observations are normalised.
    return temperature[jnp.argmax(batch.observation[:, -temperature.size :], axis=1)]


def init(parts: Parts, key: Key) -> State:
    """A fresh agent, whose targets are the critics themselves."""
    check_key(key)
    actor_key, critic_key = jax.random.split(key)
    observation, action = spaces.zeros(parts.observation_space), jnp.zeros(parts.action_space.shape, jnp.float32)
    tasks = () if parts.config.num_tasks == 1 else (parts.config.num_tasks,)
    params = {
        "actor": parts.actor.init(actor_key, observation),
        "critic": init_ensemble(parts.critic, parts.config.num_critics, critic_key, observation, action),
        "temperature": jnp.full(tasks, np.log(parts.config.initial_temperature), jnp.float32),
    }
    hyper = common.hyper_from(Hyper, parts.config)
    return State(
        params=params,
        # Copies, because a donated state may not hold one buffer twice.
        target_params={"critic": jax.tree.map(jnp.copy, params["critic"])},
        optimizer_state={name: optimizer_of(parts, hyper, name).init(part) for name, part in params.items()},
        normaliser=normalise.init(observation) if parts.config.normalise_observations else None,
        hyper=hyper,
        steps=jnp.zeros((), jnp.int32),
        updates=jnp.zeros((), jnp.int32),
        policy_metrics={f"actor/{name}": jnp.zeros((), jnp.float32) for name in ("loss", "entropy", "gradient_norm")},
    )


def act(parts: Parts, state: State, observation: PyTree, key: Key, explore: bool) -> Array:
    """Draw an action for every observation, or take the policy's mode if not exploring."""
    check_key(key)
    distribution = policy(parts, state.params["actor"], common.normalised(state.normaliser, observation))
    action = distribution.sample(key) if explore else distribution.mode()
    space = parts.action_space
    return scale_action(action, space.low, space.high).astype(space.dtype)


def estimate(parts: Parts, state: State, observation: PyTree, action: Array) -> Array:
    """What the critics expect of actions taken at observations with any leading axes, their mean, [...]; entropy to come is in it."""
    action = unscale_action(action, parts.action_space.low, parts.action_space.high)
    observation = common.normalised(state.normaliser, observation)
    return jnp.mean(apply_ensemble(parts.critic, state.params["critic"], observation, action), axis=0)


def observe(parts: Parts, state: State, experience: Experience) -> State:
    """Count steps and feed the running statistics."""
    del parts
    normaliser = common.observed(state.normaliser, experience)
    return state._replace(normaliser=normaliser, steps=common.counted(state.steps, experience))


def update(parts: Parts, state: State, batch: Transition, key: Key) -> tuple[State, Metrics]:
    """One gradient step of the critics, then of policy and temperature, then a step of the targets. Batch [B]."""
    check_key(key)
    target_key, policy_key = jax.random.split(key)
    batch = common.as_networks_see(state.normaliser, batch)
    batch = batch._replace(action=unscale_action(batch.action, parts.action_space.low, parts.action_space.high))
    target = critic_target(state.params, state.target_params, parts, batch, target_key)
    gradients, (metrics, priority) = jax.grad(critic_loss, has_aux=True)(state.params["critic"], parts, batch, target)
    metrics |= {"critic/gradient_norm": optax.global_norm(gradients)}
    state = descend(parts, state, "critic", gradients)

    if parts.config.policy_delay == 1:
        state = improve_policy(parts, state, batch, policy_key)
    else:
        turn = state.updates % parts.config.policy_delay == 0
        # The key goes in as plain data, because under vmap JAX's key checker takes a conditional for a second use of it.
        data, keep = jax.random.key_data(policy_key), lambda state, batch, data: state
        state = jax.lax.cond(turn, partial(improve_with_key_data, parts), keep, state, batch, data)

    moved = optax.incremental_update(state.params["critic"], state.target_params["critic"], state.hyper.tau)
    metrics |= state.policy_metrics
    metrics |= {"temperature/value": jnp.mean(jnp.exp(state.params["temperature"])), "priority": priority}
    return state._replace(target_params={"critic": moved}, updates=state.updates + 1), metrics


def improve_policy(parts: Parts, state: State, batch: Transition, key: Key) -> State:
    """One gradient step of the policy, then of the temperature."""
    gradient = jax.value_and_grad(actor_loss, has_aux=True)
    (loss, log_prob), gradients = gradient(state.params["actor"], state.params, parts, batch, key)
    state, norm = descend(parts, state, "actor", gradients), optax.global_norm(gradients)
    gradients = jax.grad(temperature_loss)(state.params["temperature"], parts, state.hyper, batch, log_prob)
    state = descend(parts, state, "temperature", gradients)
    metrics = {"actor/loss": loss, "actor/entropy": -jnp.mean(log_prob), "actor/gradient_norm": norm}
    return state._replace(policy_metrics=metrics)


def improve_with_key_data(parts: Parts, state: State, batch: Transition, data: Array) -> State:
    """The same with the key as plain data."""
    return improve_policy(parts, state, batch, jax.random.wrap_key_data(data))


def optimizer_of(parts: Parts, hyper: Hyper, part: str) -> optax.GradientTransformation:
    """The optimiser of one part of the parameters, with that part's learning rate."""
    return parts.optimizer(getattr(hyper, f"{part}_learning_rate"))


def descend(parts: Parts, state: State, part: str, gradients: PyTree) -> State:
    """One step of one part of the parameters."""
    params, optimizer_state = common.descend(
        optimizer_of(parts, state.hyper, part), gradients, state.optimizer_state[part], state.params[part]
    )
    return state._replace(
        params=state.params | {part: params}, optimizer_state=state.optimizer_state | {part: optimizer_state}
    )


def make(config: Config, observation_space: Space, action_space: Space, optimizer: Any = None) -> Agent:
    """An agent for these spaces: any box of observations, a bounded vector of actions.

    ``optimizer`` is made three times: for the policy, the critics and the temperature.

    Raises:
        UsageError: for spaces or a configuration that cannot work.
    """
    observation_space = common.require_observation("sac", observation_space, config.normalise_observations)
    action_space = common.require_vector_action("sac", spaces.require_bounded_box(action_space, "sac"))
    common.check_least("sac", config, 1, "hidden_sizes", "num_critics", "policy_delay", "num_tasks")
    common.check_one_hot("sac", observation_space, config.num_tasks)
    common.check_least("sac", config, 0, "actor_learning_rate", "critic_learning_rate", "temperature_learning_rate")
    common.check_least("sac", config, 1e-8, "initial_temperature")
    common.check_range("sac", config, 0.0, 1.0, "discount", "tau")
    common.check_range("sac", config, 0.01, 7.0, "initial_std")
    activation_function(config.activation)
    torso = (len(observation_space.shape), tuple(config.hidden_sizes), config.activation, config.layer_norm)
    actor = GaussianPolicy(action_space.shape[0], *torso, "state", config.initial_std)
    factory = optimizer_factory(optimizer, optax.adam)
    parts = Parts(config, actor, ActionValue(*torso), factory, observation_space, action_space)
    bound = partial(init, parts), partial(act, parts), partial(observe, parts), partial(update, parts)
    return Agent("sac", *bound, estimate=partial(estimate, parts))
