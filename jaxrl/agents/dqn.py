"""Deep Q-learning (Mnih et al. 2015), for discrete actions, with two of its remedies.

A network gives the value of every action; acting takes the best, except that with a probability that falls linearly over
the steps of the environment an action is drawn at random. Replayed transitions pull the value of the action taken
towards reward plus discounted value of what followed, by a Huber loss. What followed is judged by a target network that
trails the trained one, softly at every update or as a copy at every so many. With ``double``, the trained network chooses
the next action and the target network judges it (van Hasselt et al. 2016). With ``duelling``, the network adds the value
of the state and the centred advantage of each action (Wang et al. 2016). For n-step returns the batch holds n-step
transitions; nothing here changes.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxrl import normalise, spaces
from jaxrl.agents import common
from jaxrl.agents.base import Agent, OptimizerFactory, optimizer_factory
from jaxrl.losses import value
from jaxrl.networks import Activation, DiscreteActionValue, activation_function
from jaxrl.normalise import RunningStatistics
from jaxrl.spaces import Box, Discrete, Space
from jaxrl.types import Array, Experience, Key, Metrics, PyTree, Transition, check_key


@dataclass(frozen=True)
class Config:
    learning_rate: float = 3e-4
    """Step size of the default optimiser, Adam."""
    discount: float = 0.99
    """Weight of the next step's value against this step's reward."""
    epsilon_start: float = 1.0
    """Share of random actions at first."""
    epsilon_end: float = 0.05
    """Share of random actions in the end."""
    epsilon_decay_steps: float = 50_000
    """Environment steps over which the share falls, linearly."""
    huber_delta: float = 1.0
    """Error from which the loss grows linearly."""
    tau: float = 0.005
    """Share of the network that its target takes over at each update; not used with a target period."""
    target_period: int = 0
    """Updates between copies of the network to its target; 0 moves it softly at every update."""
    double: bool = True
    """Whether the trained network chooses the action that the target network judges."""
    duelling: bool = False
    """Whether the network is made of a state's value and the advantages of its actions."""
    normalise_observations: bool = False
    """Whether the network sees observations minus their running mean, over their running deviation."""
    hidden_sizes: tuple[int, ...] = (128, 128)
    """Widths of the hidden layers."""
    activation: Activation = "relu"
    """What follows each hidden layer."""
    layer_norm: bool = False
    """Whether hidden layers are normalised before the activation."""


class Hyper(NamedTuple):
    """What a study may sweep; float32 scalars."""

    learning_rate: Array
    discount: Array
    epsilon_start: Array
    epsilon_end: Array
    epsilon_decay_steps: Array
    huber_delta: Array
    tau: Array


class State(NamedTuple):
    params: PyTree
    target_params: PyTree
    optimizer_state: PyTree
    normaliser: RunningStatistics | None
    hyper: Hyper
    steps: Array  # int32: environment steps observed
    updates: Array  # int32: calls of update


class Parts(NamedTuple):
    """What is fixed when an agent is made."""

    config: Config
    network: Any  # a flax module
    optimizer: OptimizerFactory
    observation_space: Box
    action_space: Discrete


def critic_target(params: PyTree, target_params: PyTree, parts: Parts, batch: Transition) -> Array:
    """What the value of the action taken shall be, [B]. A time limit is in it like any other step."""
    q = parts.network.apply(target_params, batch.next_observation)
    if not parts.config.double:
        return jax.vmap(value.q_learning_target)(batch.reward, batch.discount, q)
    selector = parts.network.apply(params, batch.next_observation)
    return jax.vmap(value.double_q_learning_target)(batch.reward, batch.discount, q, selector)


def critic_loss(
    params: PyTree, parts: Parts, hyper: Hyper, batch: Transition, target: Array
) -> tuple[Array, tuple[Metrics, Array]]:
    """Huber loss of the action taken. Also returns priorities [B]."""
    q = parts.network.apply(params, batch.observation)
    taken = jnp.take_along_axis(q, batch.action[:, None].astype(jnp.int32), axis=1)[:, 0]
    error = target - taken
    loss = jnp.mean(batch.weight * value.huber(error, hyper.huber_delta))
    return loss, ({"critic/loss": loss, "critic/value": jnp.mean(taken)}, jnp.abs(error) + common.PRIORITY_FLOOR)


def epsilon(hyper: Hyper, steps: Array) -> Array:
    """Share of random actions after so many environment steps."""
    progress = jnp.minimum(steps.astype(jnp.float32) / jnp.maximum(hyper.epsilon_decay_steps, 1.0), 1.0)
    return hyper.epsilon_start + (hyper.epsilon_end - hyper.epsilon_start) * progress


def init(parts: Parts, key: Key) -> State:
    """A fresh agent, whose target is the network itself."""
    check_key(key)
    example = spaces.zeros(parts.observation_space)
    params = parts.network.init(key, example)
    hyper = common.hyper_from(Hyper, parts.config)
    return State(
        params=params,
        # Copies, because a donated state may not hold one buffer twice.
        target_params=jax.tree.map(jnp.copy, params),
        optimizer_state=parts.optimizer(hyper.learning_rate).init(params),
        normaliser=normalise.init(example) if parts.config.normalise_observations else None,
        hyper=hyper,
        steps=jnp.zeros((), jnp.int32),
        updates=jnp.zeros((), jnp.int32),
    )


def act(parts: Parts, state: State, observation: PyTree, key: Key, explore: bool) -> Array:
    """The best action for every observation; if exploring, a share of them at random."""
    check_key(key)
    q = parts.network.apply(state.params, common.normalised(state.normaliser, observation))
    action = jnp.argmax(q, axis=-1).astype(jnp.int32)
    if not explore:
        return action
    choice_key, action_key = jax.random.split(key)
    anything = jax.random.randint(action_key, action.shape, 0, parts.action_space.n, jnp.int32)
    explores = jax.random.uniform(choice_key, action.shape) < epsilon(state.hyper, state.steps)
    return jnp.where(explores, anything, action)


def estimate(parts: Parts, state: State, observation: PyTree, action: Array) -> Array:
    """What the network expects of actions taken at observations with any leading axes, [...]."""
    q = parts.network.apply(state.params, common.normalised(state.normaliser, observation))
    return jnp.take_along_axis(q, action[..., None].astype(jnp.int32), axis=-1)[..., 0]


def observe(parts: Parts, state: State, experience: Experience) -> State:
    """Count steps, which the exploration depends on, and feed the running statistics."""
    del parts
    normaliser = common.observed(state.normaliser, experience)
    return state._replace(normaliser=normaliser, steps=common.counted(state.steps, experience))


def update(parts: Parts, state: State, batch: Transition, key: Key) -> tuple[State, Metrics]:
    """One gradient step on a batch [B], and a step of the target. Deterministic: the key is only checked."""
    check_key(key)
    batch = common.as_networks_see(state.normaliser, batch)
    target = critic_target(state.params, state.target_params, parts, batch)
    gradient = jax.grad(critic_loss, has_aux=True)
    gradients, (metrics, priority) = gradient(state.params, parts, state.hyper, batch, target)
    optimizer = parts.optimizer(state.hyper.learning_rate)
    metrics |= {"critic/gradient_norm": optax.global_norm(gradients)}
    params, optimizer_state = common.descend(optimizer, gradients, state.optimizer_state, state.params)
    updates = state.updates + 1
    if parts.config.target_period:
        target_params = optax.periodic_update(params, state.target_params, updates, parts.config.target_period)
    else:
        target_params = optax.incremental_update(params, state.target_params, state.hyper.tau)
    state = state._replace(params=params, target_params=target_params, optimizer_state=optimizer_state, updates=updates)
    return state, metrics | {"exploration/epsilon": epsilon(state.hyper, state.steps), "priority": priority}


def make(config: Config, observation_space: Space, action_space: Space, optimizer: Any = None) -> Agent:
    """An agent for these spaces: any box of observations, discrete actions.

    Raises:
        UsageError: for spaces or a configuration that cannot work.
    """
    observation_space = common.require_observation("dqn", observation_space, config.normalise_observations)
    action_space = spaces.require_discrete(action_space, "dqn")
    common.check_least("dqn", config, 1, "hidden_sizes")
    common.check_least("dqn", config, 0, "learning_rate", "epsilon_decay_steps", "target_period")
    common.check_least("dqn", config, 1e-6, "huber_delta")
    common.check_range("dqn", config, 0.0, 1.0, "discount", "tau", "epsilon_start", "epsilon_end")
    activation_function(config.activation)
    torso = (len(observation_space.shape), tuple(config.hidden_sizes), config.activation, config.layer_norm)
    network = DiscreteActionValue(action_space.n, *torso, config.duelling)
    factory = optimizer_factory(optimizer, optax.adam)
    parts = Parts(config, network, factory, observation_space, action_space)
    bound = partial(init, parts), partial(act, parts), partial(observe, parts), partial(update, parts)
    return Agent("dqn", *bound, estimate=partial(estimate, parts))
