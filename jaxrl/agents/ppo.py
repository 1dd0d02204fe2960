"""Proximal policy optimisation, for discrete and continuous actions.

A stochastic policy acts for T steps in N environments. Generalised advantage estimation (Schulman et al. 2016) turns the
rewards and the critic's values into advantages; where a time limit ended an episode, the value of the state it really
reached stands in for what would have followed. Policy and critic, two separate networks, then take several epochs of
minibatch steps: the policy on the clipped surrogate of Schulman et al. (2017, equation 7) with an entropy bonus, the
critic on the squared distance to advantage plus value. One optimiser holds both, behind one clip of the gradient's norm.
Defaults for the layers, initial weights and minibatch-wise normalisation of advantages follow Andrychowicz et al. (2021)
and Huang et al. (2022, "The 37 implementation details of PPO").
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxrl import normalise, returns, spaces
from jaxrl.agents import annealing, common
from jaxrl.agents.base import Agent, OptimizerFactory, optimizer_factory
from jaxrl.distributions import Categorical, Normal, TanhNormal
from jaxrl.losses import policy_gradient, value
from jaxrl.networks import Activation, CategoricalPolicy, GaussianPolicy, StateValue, activation_function
from jaxrl.normalise import RunningStatistics
from jaxrl.spaces import Box, Discrete, Space
from jaxrl.types import Array, Experience, Key, Metrics, PyTree, check_key

ON_POLICY = True


@dataclass(frozen=True)
class Config:
    learning_rate: float = 3e-4
    """Step size of the default optimiser, Adam."""
    discount: float = 0.99
    """Weight of the next step's value against this step's reward."""
    gae_lambda: float = 0.95
    """Trace of the advantage estimate: 0 trusts the critic, 1 the rewards."""
    clip: float = 0.2
    """Half the width of the range that the probability ratio gains from."""
    entropy_coefficient: float = 0.0
    """Weight of the entropy bonus."""
    value_coefficient: float = 0.5
    """Weight of the critic's loss in the gradient whose norm is clipped."""
    epochs: int = 4
    """Passes over each rollout."""
    minibatches: int = 4
    """Gradient steps in each pass; must divide the steps of a rollout."""
    max_grad_norm: float = 0.5
    """Norm that the default optimiser clips the gradient to."""
    normalise_advantages: bool = True
    """Whether the advantages of each minibatch are shifted and scaled to mean 0 and deviation 1."""
    anneal_updates: int = 0
    """Calls of update over which the learning rate falls to zero; 0 keeps it constant."""
    normalise_observations: bool = False
    """Whether the networks see observations minus their running mean, over their running deviation."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers of both networks."""
    activation: Activation = "tanh"
    """What follows each hidden layer."""
    layer_norm: bool = False
    """Whether hidden layers are normalised before the activation."""
    squash: bool = True
    """Whether bounded actions are squashed into their bounds by a tanh; otherwise the environment clips them."""
    std: Literal["free", "state"] = "free"
    """Deviation of continuous actions: one learned number per dimension, or a function of the state."""
    initial_std: float = 1.0
    """Deviation of a fresh policy, before any squashing."""


class Hyper(NamedTuple):
    """What a study may sweep; float32 scalars."""

    learning_rate: Array
    discount: Array
    gae_lambda: Array
    clip: Array
    entropy_coefficient: Array
    value_coefficient: Array


class State(NamedTuple):
    params: PyTree  # {"actor", "critic"}
    optimizer_state: PyTree
    normaliser: RunningStatistics | None
    hyper: Hyper
    steps: Array  # int32: environment steps observed
    updates: Array  # int32: calls of update


class Parts(NamedTuple):
    """What is fixed when an agent is made."""

    config: Any  # Config, or one that extends it
    actor: Any  # a flax module
    critic: Any  # a flax module
    optimizer: OptimizerFactory
    observation_space: Box
    action_space: Box | Discrete


class Batch(NamedTuple):
    """A rollout as the losses see it; leading axis [T * N] or that of a minibatch."""

    observation: PyTree
    action: Array
    log_prob: Array  # under the policy that acted
    advantage: Array
    target: Array  # of the critic


def policy(parts: Parts, params: PyTree, observation: PyTree) -> Any:
    """The distribution over actions, in the environment's units, for observations with any leading axes."""
    output = parts.actor.apply(params, observation)
    space = parts.action_space
    if isinstance(space, Discrete):
        return Categorical(output)
    loc, scale = output
    if parts.config.squash and space.bounded:
        return TanhNormal(loc, scale, space.low, space.high)
    return Normal(loc, scale)


def policy_loss(params: PyTree, parts: Parts, hyper: Hyper, batch: Batch, key: Key) -> tuple[Array, Metrics]:
    """Clipped surrogate minus the entropy bonus. ``params`` are the actor's."""
    distribution = policy(parts, params, batch.observation)
    log_prob = distribution.log_prob(batch.action)
    advantage = batch.advantage
    if parts.config.normalise_advantages:
        advantage = (advantage - jnp.mean(advantage)) / (jnp.std(advantage) + 1e-8)
    surrogate = jax.vmap(policy_gradient.clipped_surrogate, (0, 0, 0, None))
    loss = jnp.mean(surrogate(log_prob, batch.log_prob, advantage, hyper.clip))
    entropy = jnp.mean(distribution.entropy(key))
    log_ratio = log_prob - batch.log_prob
    metrics = {
        "actor/loss": loss,
        "actor/entropy": entropy,
        "actor/approximate_kl": policy_gradient.approximate_kl(log_ratio),
        "actor/clip_fraction": policy_gradient.clip_fraction(log_ratio, hyper.clip),
    }
    return loss - hyper.entropy_coefficient * entropy, metrics


def value_loss(params: PyTree, parts: Parts, batch: Batch) -> tuple[Array, Metrics]:
    """Half the squared distance to the targets. ``params`` are the critic's."""
    loss = jnp.mean(value.squared(parts.critic.apply(params, batch.observation) - batch.target))
    return loss, {"critic/loss": loss}


def total_loss(params: PyTree, parts: Parts, hyper: Hyper, batch: Batch, key: Key) -> tuple[Array, Metrics]:
    """Both losses, for one optimiser over ``{"actor", "critic"}``."""
    actor_loss, actor_metrics = policy_loss(params["actor"], parts, hyper, batch, key)
    critic_loss, critic_metrics = value_loss(params["critic"], parts, batch)
    return actor_loss + hyper.value_coefficient * critic_loss, actor_metrics | critic_metrics


def init(parts: Parts, key: Key) -> State:
    """A fresh agent."""
    check_key(key)
    actor_key, critic_key = jax.random.split(key)
    example = spaces.zeros(parts.observation_space)
    params = {"actor": parts.actor.init(actor_key, example), "critic": parts.critic.init(critic_key, example)}
    hyper = common.hyper_from(Hyper, parts.config)
    optimizer_state = parts.optimizer(hyper.learning_rate).init(params)
    normaliser = normalise.init(example) if parts.config.normalise_observations else None
    return State(params, optimizer_state, normaliser, hyper, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))


def act(parts: Parts, state: State, observation: PyTree, key: Key, explore: bool) -> Array:
    """Draw an action for every observation, or take the distribution's mode if not exploring."""
    check_key(key)
    distribution = policy(parts, state.params["actor"], common.normalised(state.normaliser, observation))
    action = distribution.sample(key) if explore else distribution.mode()
    return action.astype(parts.action_space.dtype)


def estimate(parts: Parts, state: State, observation: PyTree, action: Array) -> Array:
    """What the critic expects from observations with any leading axes, [...]; of every action alike."""
    del action
    return parts.critic.apply(state.params["critic"], common.normalised(state.normaliser, observation))


def observe(parts: Parts, state: State, experience: Experience) -> State:
    """Count steps and feed the running statistics."""
    del parts
    normaliser = common.observed(state.normaliser, experience)
    return state._replace(normaliser=normaliser, steps=common.counted(state.steps, experience))


def prepare(
    parts: Parts, state: State, rollout: Experience, critic: Callable[[PyTree], Array] | None = None
) -> tuple[Batch, Metrics]:
    """Advantages, targets and log-probabilities of a rollout [T, N] under the agent that collected it, as [T * N].

    Args:
        critic: observations [T, N, ...], as networks see them -> values [T, N] in units of reward; the agent's own if None.
    """
    observation = common.normalised(state.normaliser, rollout.observation)
    next_observation = common.normalised(state.normaliser, rollout.next_observation)
    critic = critic or partial(parts.critic.apply, state.params["critic"])
    # V(next_t) is not V(s_{t+1}): where an episode ended, s_{t+1} belongs to the next one.
    values, next_values = critic(observation), critic(next_observation)
    advantage = returns.generalized_advantages(
        rollout.reward,
        values,
        next_values,
        rollout.terminated,
        rollout.truncated,
        state.hyper.discount,
        state.hyper.gae_lambda,
    )
    log_prob = policy(parts, state.params["actor"], observation).log_prob(rollout.action)
    target = advantage + values
    batch = Batch(observation, rollout.action, log_prob, advantage, target)
    # An explained variance of 1 is a perfect critic, 0 one no better than a constant.
    explained = 1.0 - jnp.var(advantage) / jnp.maximum(jnp.var(target), 1e-8)
    metrics = {"critic/explained_variance": explained, "critic/value": jnp.mean(values)}
    # As arrays of JAX, which rows drawn in a compiled loop can index; a rollout may have come from the host.
    return jax.tree.map(lambda x: jnp.asarray(x).reshape(-1, *x.shape[2:]), batch), metrics


def update(parts: Parts, state: State, rollout: Experience, key: Key) -> tuple[State, Metrics]:
    """Several epochs of minibatch steps on a rollout [T, N]. Metrics are means over the minibatches.

    Raises:
        UsageError: if the minibatches do not divide the rollout.
    """
    check_key(key)
    config = parts.config
    common.check_minibatches("ppo", config, rollout.reward.size)
    batch, metrics = prepare(parts, state, rollout)
    optimizer = parts.optimizer(annealing.linear(state.hyper.learning_rate, state.updates, config.anneal_updates, 0.0))
    step = partial(minibatch_step, partial(minibatch_gradient, parts, state.hyper, batch), optimizer)
    (params, optimizer_state), traces = run_epochs(
        config, step, batch.log_prob.shape[0], (state.params, state.optimizer_state), key
    )
    metrics |= jax.tree.map(jnp.mean, traces)
    return state._replace(params=params, optimizer_state=optimizer_state, updates=state.updates + 1), metrics


def run_epochs(
    config: Config, step: Callable, size: int, learned: tuple[PyTree, PyTree], key: Key
) -> tuple[tuple[PyTree, PyTree], Metrics]:
    """Every epoch goes through ``size`` rows once, in a fresh order, a minibatch a step.

    Args:
        step: ``((params, optimizer_state, key), rows) -> (the same, metrics)``.
        learned: ``(params, optimizer_state)``.
    """

    def epoch(carry: tuple[PyTree, PyTree, Key], _: None) -> tuple[tuple[PyTree, PyTree, Key], Metrics]:
        *learned, key = carry
        key, order_key = jax.random.split(key)
        order = common.shuffled(order_key, size).reshape(config.minibatches, -1)
        return jax.lax.scan(step, (*learned, key), order)

    # The key is carried, not split beforehand and scanned over, which JAX's key checker does not follow under vmap.
    (params, optimizer_state, _), traces = jax.lax.scan(epoch, (*learned, key), None, config.epochs)
    return (params, optimizer_state), traces


def minibatch_step(
    gradient: Callable,
    optimizer: optax.GradientTransformation,
    carry: tuple[PyTree, PyTree, Key],
    rows: Array,
) -> tuple[tuple[PyTree, PyTree, Key], Metrics]:
    """One gradient step on some rows of the batch, by ``gradient(params, rows, key) -> (gradients, metrics)``."""
    params, optimizer_state, key = carry
    key, loss_key = jax.random.split(key)
    gradients, metrics = gradient(params, rows, loss_key)
    metrics |= {f"{side}/gradient_norm": optax.global_norm(part) for side, part in gradients.items()}
    return (*common.descend(optimizer, gradients, optimizer_state, params), key), metrics


def minibatch_gradient(
    parts: Parts, hyper: Hyper, batch: Batch, params: PyTree, rows: Array, key: Key
) -> tuple[PyTree, Metrics]:
    """The gradient of both losses on some rows of the batch."""
    minibatch = jax.tree.map(lambda x: x[rows], batch)
    return jax.grad(total_loss, has_aux=True)(params, parts, hyper, minibatch, key)


def make_parts(
    name: str, config: Config, observation_space: Space, action_space: Space, optimizer: OptimizerFactory
) -> Parts:
    """What is fixed when an agent of that name is made.

    Raises:
        UsageError: for spaces or a configuration that cannot work.
    """
    observation_space = common.require_observation(name, observation_space, config.normalise_observations)
    common.check_least(name, config, 1, "epochs", "minibatches", "hidden_sizes")
    common.check_least(name, config, 0, "learning_rate", "clip", "anneal_updates", "value_coefficient")
    common.check_least(name, config, 1e-6, "max_grad_norm")
    common.check_range(name, config, 0.0, 1.0, "discount", "gae_lambda")
    common.check_range(name, config, 0.01, 7.0, "initial_std")
    common.check_choice(name, config, "std", ("free", "state"))
    activation_function(config.activation)
    torso = (len(observation_space.shape), tuple(config.hidden_sizes), config.activation, config.layer_norm)
    if isinstance(action_space, Discrete):
        actor: Any = CategoricalPolicy(action_space.n, *torso)
    else:
        action_space = common.require_vector_action(name, spaces.require_box(action_space, name))
        actor = GaussianPolicy(action_space.shape[0], *torso, config.std, config.initial_std)
    return Parts(config, actor, StateValue(*torso), optimizer, observation_space, action_space)


def make(config: Config, observation_space: Space, action_space: Space, optimizer: Any = None) -> Agent:
    """An agent for these spaces: any box of observations; discrete actions or a vector of continuous ones.

    Raises:
        UsageError: for spaces or a configuration that cannot work.
    """
    factory = optimizer_factory(optimizer, partial(default_optimizer, config.max_grad_norm))
    parts = make_parts("ppo", config, observation_space, action_space, factory)
    bound = partial(init, parts), partial(act, parts), partial(observe, parts), partial(update, parts)
    return Agent("ppo", *bound, on_policy=True, estimate=partial(estimate, parts))


def default_optimizer(max_grad_norm: float, learning_rate: Array) -> optax.GradientTransformation:
    """Adam behind a clip of the gradient's global norm."""
    return optax.chain(optax.clip_by_global_norm(max_grad_norm), optax.adam(learning_rate, eps=1e-5))
