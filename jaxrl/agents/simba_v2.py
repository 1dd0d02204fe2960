"""SimbaV2 (Lee et al. 2025, arXiv:2502.15280): soft actor-critic with networks that live on the unit sphere.

Features and the columns of every weight matrix keep unit length (see :mod:`jaxrl.networks.hyperspherical`; the columns
are put back after every step of the optimiser), so that no network can grow or go stiff while its data changes. Critics
say a distribution of values on a fixed support, and rewards are divided by how far their discounted sums have spread,
so that values fit it. The rest is soft actor-critic: both critics learn from the target distribution with the smaller
mean, moved by the reward and the worth of the next action's entropy.

Sizes and rates are those of the authors' public code: a policy of one block of 128, critics of two blocks of 512 that
widen four times, 101 bins on ±5, Adam at 1e-4 falling to half of that in a straight line over all updates of the run,
a temperature that starts at 0.01 and aims at half a nat below zero an action dimension, observations normalised. In one
update the policy and the temperature move first. One critic instead of two is what that code uses where episodes never
terminate (``num_critics=1``); its discount depends on the length of an episode, 0.95 to 0.995; its batch is 256. That
code lets a sum of rewards go on past a time limit into the next episode; here it starts afresh after either flag.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxrl import normalise, spaces
from jaxrl.agents import annealing, common, distributional, scaling
from jaxrl.agents.base import Agent, OptimizerFactory, optimizer_factory
from jaxrl.agents.scaling import ReturnDeviation
from jaxrl.distributions import TanhNormal, scale_action, unscale_action
from jaxrl.losses import categorical, soft
from jaxrl.networks import (
    Activation,
    SphereActionValue,
    SpherePolicy,
    activation_function,
    apply_ensemble,
    init_ensemble,
)
from jaxrl.networks.hyperspherical import project
from jaxrl.normalise import RunningStatistics
from jaxrl.spaces import Box, Space
from jaxrl.types import Array, Experience, Key, Metrics, PyTree, Transition, check_key


@dataclass(frozen=True)
class Config:
    actor_learning_rate: float = 1e-4
    """Step size of the policy's optimiser."""
    critic_learning_rate: float = 1e-4
    """Step size of the critics' optimiser."""
    temperature_learning_rate: float = 1e-4
    """Step size of the temperature's optimiser; 0 keeps the initial temperature."""
    anneal_updates: int = 0
    """Calls of update over which all step sizes fall in a straight line; 0 keeps them."""
    final_learning_rate_share: float = 0.5
    """What is left of a step size at the end of that, as a share of it."""
    discount: float = 0.99
    """Weight of the next step's value against this step's reward."""
    tau: float = 0.005
    """Share of the critics that their targets take over at each update."""
    target_entropy_scale: float = 0.5
    """The target entropy is minus this for each dimension of an action in [-1, 1]."""
    initial_temperature: float = 0.01
    """Weight of the entropy at first."""
    num_critics: int = 2
    """Members of the critics' ensemble."""
    normalise_observations: bool = True
    """Whether the networks see observations minus their running mean, over their running deviation."""
    scale_rewards: bool = True
    """Whether rewards are divided by the spread of their discounted sums."""
    followed_envs: int = 4096
    """Environments whose sums are followed for that: the first ones, if there are more."""
    value_max: float = 5.0
    """The critics' support reaches from minus this to this, in units of scaled rewards."""
    num_bins: int = 101
    """Values in the support."""
    actor_width: int = 128
    """Features of the policy."""
    actor_blocks: int = 1
    """Residual blocks of the policy."""
    critic_width: int = 512
    """Features of each critic."""
    critic_blocks: int = 2
    """Residual blocks of each critic."""
    expansion: int = 4
    """How many times wider the inside of a block is."""
    input_shift: float = 3.0
    """The constant appended to every input before it is given unit length."""
    activation: Activation = "relu"
    """What stands inside each block."""


class Hyper(NamedTuple):
    """What a study may sweep; float32 scalars."""

    actor_learning_rate: Array
    critic_learning_rate: Array
    temperature_learning_rate: Array
    discount: Array
    tau: Array
    target_entropy_scale: Array


class State(NamedTuple):
    params: PyTree  # {"actor", "critic": first axis num_critics, "temperature": its logarithm}
    target_params: PyTree  # {"critic"}
    optimizer_state: PyTree  # {"actor", "critic", "temperature"}
    normaliser: RunningStatistics | None
    scale: ReturnDeviation | None
    hyper: Hyper
    steps: Array  # int32: environment steps observed
    updates: Array  # int32: calls of update


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
    """The distribution every critic shall say, [B, num_bins]: of ``r + discount (z - alpha log pi)``.

    A time limit is in it like any other step: its discount is not 0.
    """
    support = distributional.support_of(parts.config)
    action, log_prob = policy(parts, params["actor"], batch.next_observation).sample_and_log_prob(key)
    logits = apply_ensemble(parts.critic, target_params["critic"], batch.next_observation, action)
    next_value = distributional.smallest(jax.nn.softmax(logits), support)
    reward = batch.reward - batch.discount * jnp.exp(params["temperature"]) * log_prob
    return distributional.td_targets(reward, batch.discount, next_value, support)


def critic_loss(params: PyTree, parts: Parts, batch: Transition, target: Array) -> tuple[Array, tuple[Metrics, Array]]:
    """Cross-entropies, summed over the critics. ``params`` are the critics'. Also returns priorities [B]."""
    logits = apply_ensemble(parts.critic, params, batch.observation, batch.action)
    return distributional.critic_loss(logits, target, batch.weight, distributional.support_of(parts.config))


def actor_loss(params: PyTree, others: PyTree, parts: Parts, batch: Transition, key: Key) -> tuple[Array, Array]:
    """Temperature times log-probability minus value. ``params`` are the policy's. Also returns log-probabilities [B]."""
    action, log_prob = policy(parts, params, batch.observation).sample_and_log_prob(key)
    logits = apply_ensemble(parts.critic, others["critic"], batch.observation, action)
    q = categorical.expected_value(logits, distributional.support_of(parts.config))
    loss = jax.vmap(soft.actor_loss, (1, 0, None))(q, log_prob, jnp.exp(others["temperature"]))
    return jnp.mean(batch.weight * loss), log_prob


def temperature_loss(params: Array, parts: Parts, hyper: Hyper, log_prob: Array) -> Array:
    """Raises the temperature while the entropy is below its target. ``params`` is the temperature's logarithm."""
    target_entropy = -hyper.target_entropy_scale * parts.action_space.shape[0]
    return jnp.mean(jax.vmap(soft.temperature_loss, (None, 0, None))(params, log_prob, target_entropy))


def init(parts: Parts, key: Key) -> State:
    """A fresh agent, whose targets are the critics themselves; all of them on the sphere."""
    check_key(key)
    config = parts.config
    actor_key, critic_key = jax.random.split(key)
    observation, action = spaces.zeros(parts.observation_space), jnp.zeros(parts.action_space.shape, jnp.float32)
    params = {
        "actor": project(parts.actor.init(actor_key, observation)),
        "critic": project(init_ensemble(parts.critic, config.num_critics, critic_key, observation, action)),
        "temperature": jnp.asarray(np.log(config.initial_temperature), jnp.float32),
    }
    hyper, updates = common.hyper_from(Hyper, config), jnp.zeros((), jnp.int32)
    return State(
        params=params,
        # Copies, because a donated state may not hold one buffer twice.
        target_params={"critic": jax.tree.map(jnp.copy, params["critic"])},
        optimizer_state={name: optimizer_of(parts, hyper, updates, name).init(part) for name, part in params.items()},
        normaliser=normalise.init(observation) if config.normalise_observations else None,
        scale=scaling.init_deviation(config.followed_envs) if config.scale_rewards else None,
        hyper=hyper,
        steps=jnp.zeros((), jnp.int32),
        updates=updates,
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
    logits = apply_ensemble(parts.critic, state.params["critic"], observation, action)
    q = jnp.mean(categorical.expected_value(logits, distributional.support_of(parts.config)), axis=0)
    return q * reward_divisor(parts, state)


def observe(parts: Parts, state: State, experience: Experience) -> State:
    """Count steps and feed the running statistics of observations and returns. Experience in the order of time."""
    del parts
    scale = state.scale
    if scale is not None:
        scale = scaling.observe_deviation(scale, experience, state.hyper.discount)
    normaliser = common.observed(state.normaliser, experience)
    return state._replace(normaliser=normaliser, scale=scale, steps=common.counted(state.steps, experience))


def update(parts: Parts, state: State, batch: Transition, key: Key) -> tuple[State, Metrics]:
    """One gradient step of policy and temperature, then of the critics, then a step of the targets. Batch [B]."""
    check_key(key)
    target_key, policy_key = jax.random.split(key)
    batch = common.as_networks_see(state.normaliser, batch)
    divisor = reward_divisor(parts, state)
    action = unscale_action(batch.action, parts.action_space.low, parts.action_space.high)
    batch = batch._replace(action=action, reward=batch.reward / divisor)

    gradient = jax.value_and_grad(actor_loss, has_aux=True)
    (loss, log_prob), gradients = gradient(state.params["actor"], state.params, parts, batch, policy_key)
    state, norm = descend(parts, state, "actor", gradients), optax.global_norm(gradients)
    gradients = jax.grad(temperature_loss)(state.params["temperature"], parts, state.hyper, log_prob)
    state = descend(parts, state, "temperature", gradients)

    target = critic_target(state.params, state.target_params, parts, batch, target_key)
    gradients, (metrics, priority) = jax.grad(critic_loss, has_aux=True)(state.params["critic"], parts, batch, target)
    metrics |= {"critic/gradient_norm": optax.global_norm(gradients)}
    state = descend(parts, state, "critic", gradients)
    moved = optax.incremental_update(state.params["critic"], state.target_params["critic"], state.hyper.tau)
    metrics |= {"actor/loss": loss, "actor/entropy": -jnp.mean(log_prob), "reward/divisor": divisor}
    metrics |= {"temperature/value": jnp.exp(state.params["temperature"]), "priority": priority}
    metrics |= {"actor/gradient_norm": norm}
    return state._replace(target_params={"critic": moved}, updates=state.updates + 1), metrics


def reward_divisor(parts: Parts, state: State) -> Array:
    """What rewards are divided by now, float32 []. The critics' values are in units of it."""
    if state.scale is None:
        return jnp.ones((), jnp.float32)
    return scaling.deviation_divisor(state.scale, parts.config.value_max)


def optimizer_of(parts: Parts, hyper: Hyper, updates: Array, part: str) -> optax.GradientTransformation:
    """The optimiser of one part of the parameters, with that part's learning rate at this update."""
    rate, config = getattr(hyper, f"{part}_learning_rate"), parts.config
    return parts.optimizer(annealing.linear(rate, updates, config.anneal_updates, config.final_learning_rate_share))


def descend(parts: Parts, state: State, part: str, gradients: PyTree) -> State:
    """One step of one part of the parameters, and back onto the sphere."""
    optimizer = optimizer_of(parts, state.hyper, state.updates, part)
    params, optimizer_state = common.descend(optimizer, gradients, state.optimizer_state[part], state.params[part])
    return state._replace(
        params=state.params | {part: project(params)}, optimizer_state=state.optimizer_state | {part: optimizer_state}
    )


def make(config: Config, observation_space: Space, action_space: Space, optimizer: Any = None) -> Agent:
    """An agent for these spaces: any box of observations, a bounded vector of actions.

    ``optimizer`` is made three times: for the policy, the critics and the temperature.

    Raises:
        UsageError: for spaces or a configuration that cannot work.
    """
    name = "simba_v2"
    observation_space = common.require_observation(name, observation_space, config.normalise_observations)
    action_space = common.require_vector_action(name, spaces.require_bounded_box(action_space, name))
    common.check_least(name, config, 1, "actor_width", "critic_width", "expansion", "num_critics", "followed_envs")
    common.check_least(name, config, 0, "actor_blocks", "critic_blocks", "anneal_updates")
    common.check_least(name, config, 0, "actor_learning_rate", "critic_learning_rate", "temperature_learning_rate")
    common.check_least(name, config, 1e-8, "initial_temperature", "input_shift")
    common.check_range(name, config, 0.0, 1.0, "discount", "tau", "final_learning_rate_share")
    distributional.check_support(name, config)
    activation_function(config.activation)
    rank, shared = len(observation_space.shape), (config.expansion, config.input_shift, config.activation)
    actor = SpherePolicy(action_space.shape[0], rank, config.actor_width, config.actor_blocks, *shared)
    critic = SphereActionValue(config.num_bins, rank, config.critic_width, config.critic_blocks, *shared)
    factory = optimizer_factory(optimizer, optax.adam)
    parts = Parts(config, actor, critic, factory, observation_space, action_space)
    bound = partial(init, parts), partial(act, parts), partial(observe, parts), partial(update, parts)
    return Agent(name, *bound, estimate=partial(estimate, parts))
