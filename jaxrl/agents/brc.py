"""BRC: bigger, regularised, categorical (Nauman et al. 2025, arXiv:2505.23150): one large critic for many tasks.

Soft actor-critic whose critics are wide residual networks (see :mod:`jaxrl.networks.bro`) that say a distribution of
values on a fixed support and learn it by cross-entropy. What is bootstrapped from is the mean of the critics, not the
smallest. A task is a learned vector of unit length beside the observation, shared by the critics; the policy reads the
critics' vector and does not train it. Rewards are divided, task by task, by the largest return there has been plus the
worth of the entropy, so that the values of all tasks fit one support.

Sizes and rates are those of the authors' public code: two critics of width 4,096 and depth 2, a policy of width 256 and
depth 1, 101 bins on ±10 with targets projected as in C51 (between two neighbours, no Gaussian), vectors of 32, AdamW at
3e-4 with a decay of 1e-4, Adam with a first moment of 0.5 for the temperature, which starts at 0.1 and aims at half a
nat below zero an action dimension. Its settings for the loop: a batch of 1,024, two updates in each round, 5,000 steps of
warm-up, one environment a task. In that code no reward counts until an episode of its task has ended; here rewards are
divided by 1 until then.

With ``num_tasks`` above 1, the last ``num_tasks`` entries of an observation are a one-hot of the task.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxrl import normalise, spaces
from jaxrl.agents import common, distributional, scaling
from jaxrl.agents.base import Agent, OptimizerFactory, optimizer_factory
from jaxrl.agents.scaling import ReturnExtremes
from jaxrl.distributions import TanhNormal, scale_action, unscale_action
from jaxrl.losses import categorical, soft
from jaxrl.networks import (
    Activation,
    BroActionValue,
    BroPolicy,
    TaskEmbedding,
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
    weight_decay: float = 1e-4
    """Decay of the weights by AdamW."""
    discount: float = 0.99
    """Weight of the next step's value against this step's reward."""
    tau: float = 0.005
    """Share of the critics that their targets take over at each update."""
    target_entropy_scale: float = 0.5
    """The target entropy is minus this for each dimension of an action in [-1, 1]."""
    initial_temperature: float = 0.1
    """Weight of the entropy at first."""
    num_critics: int = 2
    """Members of the critics' ensemble."""
    num_tasks: int = 1
    """Tasks. With more than one, the last entries of an observation are a one-hot of the task."""
    embedding_size: int = 32
    """Length of the learned vector of a task."""
    normalise_observations: bool = False
    """Whether the networks see observations minus their running mean, over their running deviation."""
    scale_rewards: bool = True
    """Whether rewards are divided by the largest return of their task."""
    followed_envs: int = 64
    """Environments whose episodes are recorded for that; all of them must be, so at least as many as there are."""
    episode_length: int = 1000
    """Steps of an episode that are recorded; a longer one counts as several that were cut short."""
    value_max: float = 10.0
    """The critics' support reaches from minus this to this, in units of scaled rewards."""
    num_bins: int = 101
    """Values in the support."""
    actor_width: int = 256
    """Width of the policy."""
    actor_depth: int = 1
    """Residual blocks of the policy."""
    critic_width: int = 4096
    """Width of each critic."""
    critic_depth: int = 2
    """Residual blocks of each critic."""
    activation: Activation = "relu"
    """What follows each normalisation but a block's last."""


class Hyper(NamedTuple):
    """What a study may sweep; float32 scalars."""

    actor_learning_rate: Array
    critic_learning_rate: Array
    temperature_learning_rate: Array
    discount: Array
    tau: Array
    target_entropy_scale: Array


class State(NamedTuple):
    params: PyTree  # {"actor", "critic": {"members": first axis num_critics, "task"}, "temperature": its logarithm}
    target_params: PyTree  # {"critic"}
    optimizer_state: PyTree  # {"actor", "critic", "temperature"}
    normaliser: RunningStatistics | None
    scale: ReturnExtremes | None
    hyper: Hyper
    steps: Array  # int32: environment steps observed
    updates: Array  # int32: calls of update


class Parts(NamedTuple):
    """What is fixed when an agent is made."""

    config: Config
    actor: Any  # a flax module
    critic: Any  # a flax module
    embedding: Any  # a flax module
    optimizer: OptimizerFactory
    temperature_optimizer: OptimizerFactory
    observation_space: Box
    action_space: Box


class View(NamedTuple):
    """An observation as the networks see it."""

    features: Array  # [..., *shape], normalised, without the one-hot
    task: Array  # int32 [...]


def view(parts: Parts, stats: RunningStatistics | None, observation: Array) -> View:
    """Part observations with any leading axes into features and task."""
    features, count = common.normalised(stats, observation), parts.config.num_tasks
    if count == 1:
        leading = jnp.shape(observation)[: jnp.ndim(observation) - len(parts.observation_space.shape)]
        return View(features, jnp.zeros(leading, jnp.int32))
    return View(features[..., :-count], jnp.argmax(observation[..., -count:], axis=-1).astype(jnp.int32))


def context(parts: Parts, critic_params: PyTree, task: Array) -> Array:
    """The learned vector of each task, [..., embedding_size]; of length 0 where there is one task."""
    if parts.config.num_tasks == 1:
        return jnp.zeros((*task.shape, 0), jnp.float32)
    return parts.embedding.apply(critic_params["task"], task)


def policy(parts: Parts, params: PyTree, seen: View) -> TanhNormal:
    """The distribution over actions in [-1, 1]. ``params`` are all: the task's vector is the critics'."""
    task = jax.lax.stop_gradient(context(parts, params["critic"], seen.task))
    loc, scale = parts.actor.apply(params["actor"], seen.features, task)
    return TanhNormal(loc, scale, -1.0, 1.0)


def critics(parts: Parts, params: PyTree, seen: View, action: Array) -> Array:
    """Logits of all critics, [num_critics, ..., num_bins]. ``params`` are the critics'."""
    return apply_ensemble(parts.critic, params["members"], seen.features, context(parts, params, seen.task), action)


def critic_target(params: PyTree, target_params: PyTree, parts: Parts, batch: Transition, key: Key) -> Array:
    """The distribution every critic shall say, [B, num_bins]: of ``r + discount (z - alpha log pi)``.

    ``z`` has the mean of the target critics' probabilities. A time limit is in it like any other step.
    """
    action, log_prob = policy(parts, params, batch.next_observation).sample_and_log_prob(key)
    logits = critics(parts, target_params["critic"], batch.next_observation, action)
    reward = batch.reward - batch.discount * jnp.exp(params["temperature"]) * log_prob
    next_value = jnp.mean(jax.nn.softmax(logits), axis=0)
    return distributional.td_targets(reward, batch.discount, next_value, distributional.support_of(parts.config))


def critic_loss(params: PyTree, parts: Parts, batch: Transition, target: Array) -> tuple[Array, tuple[Metrics, Array]]:
    """Cross-entropies, summed over the critics. ``params`` are the critics'. Also returns priorities [B]."""
    logits = critics(parts, params, batch.observation, batch.action)
    return distributional.critic_loss(logits, target, batch.weight, distributional.support_of(parts.config))


def actor_loss(params: PyTree, others: PyTree, parts: Parts, batch: Transition, key: Key) -> tuple[Array, Array]:
    """Temperature times log-probability minus the critics' mean value. ``params`` are the policy's.

    Also returns log-probabilities [B].
    """
    action, log_prob = policy(parts, others | {"actor": params}, batch.observation).sample_and_log_prob(key)
    logits = critics(parts, others["critic"], batch.observation, action)
    q = jnp.mean(categorical.expected_value(logits, distributional.support_of(parts.config)), axis=0)
    loss = jax.vmap(soft.actor_loss, (0, 0, None))(q, log_prob, jnp.exp(others["temperature"]))
    return jnp.mean(batch.weight * loss), log_prob


def temperature_loss(params: Array, parts: Parts, hyper: Hyper, log_prob: Array) -> Array:
    """Raises the temperature while the entropy is below its target. ``params`` is the temperature's logarithm."""
    return jnp.mean(jax.vmap(soft.temperature_loss, (None, 0, None))(params, log_prob, target_entropy(parts, hyper)))


def target_entropy(parts: Parts, hyper: Hyper) -> Array:
    """In nats, of actions in [-1, 1]."""
    return -hyper.target_entropy_scale * parts.action_space.shape[0]


def init(parts: Parts, key: Key) -> State:
    """A fresh agent, whose targets are the critics themselves."""
    check_key(key)
    config = parts.config
    actor_key, critic_key, task_key = jax.random.split(key, 3)
    observation, action = spaces.zeros(parts.observation_space), jnp.zeros(parts.action_space.shape, jnp.float32)
    seen = view(parts, None, observation)
    task = {} if config.num_tasks == 1 else {"task": parts.embedding.init(task_key, seen.task)}
    inputs = seen.features, context(parts, task, seen.task)
    params = {
        "actor": parts.actor.init(actor_key, *inputs),
        "critic": task | {"members": init_ensemble(parts.critic, config.num_critics, critic_key, *inputs, action)},
        "temperature": jnp.asarray(np.log(config.initial_temperature), jnp.float32),
    }
    hyper = common.hyper_from(Hyper, config)
    recorded = config.num_tasks, config.followed_envs, config.episode_length
    return State(
        params=params,
        # Copies, because a donated state may not hold one buffer twice.
        target_params={"critic": jax.tree.map(jnp.copy, params["critic"])},
        optimizer_state={name: optimizer_of(parts, hyper, name).init(part) for name, part in params.items()},
        normaliser=normalise.init(observation) if config.normalise_observations else None,
        scale=scaling.init_extremes(*recorded) if config.scale_rewards else None,
        hyper=hyper,
        steps=jnp.zeros((), jnp.int32),
        updates=jnp.zeros((), jnp.int32),
    )


def act(parts: Parts, state: State, observation: PyTree, key: Key, explore: bool) -> Array:
    """Draw an action for every observation, or take the policy's mode if not exploring."""
    check_key(key)
    distribution = policy(parts, state.params, view(parts, state.normaliser, observation))
    action = distribution.sample(key) if explore else distribution.mode()
    space = parts.action_space
    return scale_action(action, space.low, space.high).astype(space.dtype)


def estimate(parts: Parts, state: State, observation: PyTree, action: Array) -> Array:
    """What the critics expect of actions taken at observations with any leading axes, their mean, [...]; entropy to come is in it."""
    action = unscale_action(action, parts.action_space.low, parts.action_space.high)
    seen = view(parts, state.normaliser, observation)
    logits = critics(parts, state.params["critic"], seen, action)
    q = jnp.mean(categorical.expected_value(logits, distributional.support_of(parts.config)), axis=0)
    return q * reward_divisor(parts, state)[seen.task]


def observe(parts: Parts, state: State, experience: Experience) -> State:
    """Count steps and feed the running statistics of observations and returns. Experience in the order of time."""
    scale = state.scale
    if scale is not None:
        task = view(parts, None, experience.observation).task
        scale = scaling.observe_extremes("brc", scale, experience, task, state.hyper.discount)
    normaliser = common.observed(state.normaliser, experience)
    return state._replace(normaliser=normaliser, scale=scale, steps=common.counted(state.steps, experience))


def update(parts: Parts, state: State, batch: Transition, key: Key) -> tuple[State, Metrics]:
    """One gradient step of the critics and of their targets, then of policy and temperature. Batch [B]."""
    check_key(key)
    target_key, policy_key = jax.random.split(key)
    seen, following = (view(parts, state.normaliser, x) for x in (batch.observation, batch.next_observation))
    divisor = reward_divisor(parts, state)[seen.task]
    action = unscale_action(batch.action, parts.action_space.low, parts.action_space.high)
    batch = Transition(seen, action, batch.reward / divisor, batch.discount, following, batch.weight)

    target = critic_target(state.params, state.target_params, parts, batch, target_key)
    gradients, (metrics, priority) = jax.grad(critic_loss, has_aux=True)(state.params["critic"], parts, batch, target)
    metrics |= {"critic/gradient_norm": optax.global_norm(gradients)}
    state = descend(parts, state, "critic", gradients)
    moved = optax.incremental_update(state.params["critic"], state.target_params["critic"], state.hyper.tau)

    gradient = jax.value_and_grad(actor_loss, has_aux=True)
    (loss, log_prob), gradients = gradient(state.params["actor"], state.params, parts, batch, policy_key)
    state, norm = descend(parts, state, "actor", gradients), optax.global_norm(gradients)
    gradients = jax.grad(temperature_loss)(state.params["temperature"], parts, state.hyper, log_prob)
    state = descend(parts, state, "temperature", gradients)
    metrics |= {"actor/loss": loss, "actor/entropy": -jnp.mean(log_prob), "reward/divisor": jnp.mean(divisor)}
    metrics |= {"temperature/value": jnp.exp(state.params["temperature"]), "priority": priority}
    metrics |= {"actor/gradient_norm": norm}
    return state._replace(target_params={"critic": moved}, updates=state.updates + 1), metrics


def reward_divisor(parts: Parts, state: State) -> Array:
    """What the rewards of each task are divided by now, float32 [num_tasks]. Values are in units of it."""
    if state.scale is None:
        return jnp.ones((parts.config.num_tasks,), jnp.float32)
    entropy = jnp.exp(state.params["temperature"]) * jnp.abs(target_entropy(parts, state.hyper))
    return scaling.extremes_divisor(state.scale, state.hyper.discount, entropy, parts.config.value_max)


def optimizer_of(parts: Parts, hyper: Hyper, part: str) -> optax.GradientTransformation:
    """The optimiser of one part of the parameters, with that part's learning rate."""
    factory = parts.temperature_optimizer if part == "temperature" else parts.optimizer
    return factory(getattr(hyper, f"{part}_learning_rate"))


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

    ``optimizer`` is made three times: for the policy, the critics (with the tasks' vectors) and the temperature.

    Raises:
        UsageError: for spaces or a configuration that cannot work.
    """
    name = "brc"
    observation_space = common.require_observation(name, observation_space, config.normalise_observations)
    action_space = common.require_vector_action(name, spaces.require_bounded_box(action_space, name))
    common.check_least(name, config, 1, "actor_width", "critic_width", "num_critics", "num_tasks", "embedding_size")
    common.check_least(name, config, 1, "followed_envs", "episode_length")
    common.check_least(name, config, 0, "actor_depth", "critic_depth", "weight_decay")
    common.check_least(name, config, 0, "actor_learning_rate", "critic_learning_rate", "temperature_learning_rate")
    common.check_least(name, config, 1e-8, "initial_temperature")
    common.check_range(name, config, 0.0, 1.0, "discount", "tau")
    distributional.check_support(name, config)
    activation_function(config.activation)
    common.check_one_hot(name, observation_space, config.num_tasks)
    shape = observation_space.shape
    actor = BroPolicy(action_space.shape[0], len(shape), config.actor_width, config.actor_depth, config.activation)
    critic = BroActionValue(config.num_bins, len(shape), config.critic_width, config.critic_depth, config.activation)
    embedding = TaskEmbedding(config.num_tasks, config.embedding_size)
    factory = optimizer_factory(optimizer, partial(optax.adamw, weight_decay=config.weight_decay))
    temperature = optimizer_factory(optimizer, partial(optax.adam, b1=0.5))
    parts = Parts(config, actor, critic, embedding, factory, temperature, observation_space, action_space)
    bound = partial(init, parts), partial(act, parts), partial(observe, parts), partial(update, parts)
    return Agent(name, *bound, estimate=partial(estimate, parts))
