"""FastTD3 (Seo et al. 2025, arXiv:2505.22642): TD3 for thousands of parallel environments and very large batches.

Twin critics say a distribution of values on a fixed support (C51, Bellemare et al. 2017), so that the noise of so many
different states averages out; both learn from whichever target distribution has the smaller mean. Every environment
explores with a deviation of its own, from nearly none to a large one. The rest is TD3, but for two things that are as in
the authors' public code: the next action comes from the policy itself, not from a slow copy of it, and the policy climbs
the smaller of the two critics' means. Sums of several rewards come with the transitions.

Sizes and rates are the defaults of that code: critics of 1024, 512 and 256 units, a policy of 512, 256 and 128, 101 bins
on ±250 (251 on ±10 for some suites), AdamW with a decay of 0.1, a cosine whose end equals its start unless told
otherwise, observations normalised. Its settings for the loop: a batch of 32,768, two updates in each round, 128 to 4,096
environments. Here weights start orthogonal, and an environment draws its deviation anew every ``noise_period`` steps
instead of at the end of each episode, which acting does not see.

Inside, actions are in [-1, 1]: so are those the critics see, and noise is in units of half the range of each entry.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxrl import normalise, spaces
from jaxrl.agents import annealing, common, distributional
from jaxrl.agents.base import Agent, OptimizerFactory, optimizer_factory
from jaxrl.distributions import scale_action, smoothing_noise, unscale_action
from jaxrl.losses import categorical, deterministic
from jaxrl.networks import (
    Activation,
    CategoricalActionValue,
    DeterministicPolicy,
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
    anneal_updates: int = 0
    """Calls of update over which both step sizes fall along a cosine; 0 keeps them."""
    final_learning_rate_share: float = 1.0
    """What is left of a step size at the end of that, as a share of it."""
    weight_decay: float = 0.1
    """Decay of the weights by AdamW."""
    discount: float = 0.99
    """Weight of the next step's value against this step's reward."""
    tau: float = 0.1
    """Share of the critics that their targets take over at each update."""
    exploration_noise_min: float = 0.001
    """Least deviation of the noise on explored actions, in half ranges."""
    exploration_noise_max: float = 0.4
    """Largest deviation; each environment draws its own between the two."""
    noise_period: int = 1000
    """Steps after which every environment draws its deviation anew."""
    target_noise: float = 0.001
    """Deviation of the noise on the next action, in half ranges."""
    target_noise_clip: float = 0.5
    """Largest noise on the next action, in half ranges."""
    num_critics: int = 2
    """Members of the critics' ensemble."""
    policy_delay: int = 2
    """Updates of the critics for each update of the policy."""
    normalise_observations: bool = True
    """Whether the networks see observations minus their running mean, over their running deviation."""
    value_min: float = -250.0
    """Lowest value of the critics' support; it should lie below every return there is."""
    value_max: float = 250.0
    """Highest value of the critics' support; it should lie above every return there is."""
    num_bins: int = 101
    """Values in the support."""
    actor_hidden_sizes: tuple[int, ...] = (512, 256, 128)
    """Widths of the policy's hidden layers."""
    critic_hidden_sizes: tuple[int, ...] = (1024, 512, 256)
    """Widths of each critic's hidden layers."""
    activation: Activation = "relu"
    """What follows each hidden layer."""
    layer_norm: bool = False
    """Whether hidden layers are normalised before the activation."""


class Hyper(NamedTuple):
    """What a study may sweep; float32 scalars."""

    actor_learning_rate: Array
    critic_learning_rate: Array
    discount: Array
    tau: Array
    exploration_noise_min: Array
    exploration_noise_max: Array
    target_noise: Array
    target_noise_clip: Array


class State(NamedTuple):
    params: PyTree  # {"actor", "critic": first axis num_critics}
    target_params: PyTree  # {"critic"}
    optimizer_state: PyTree  # {"actor", "critic"}
    normaliser: RunningStatistics | None
    hyper: Hyper
    steps: Array  # int32: environment steps observed
    updates: Array  # int32: calls of update
    policy_metrics: Metrics  # of the latest update of the policy, which the delay may have put some calls ago
    noise_key: Array  # the words of a key, from which the environments' deviations are drawn


class Parts(NamedTuple):
    """What is fixed when an agent is made."""

    config: Config
    actor: Any  # a flax module
    critic: Any  # a flax module
    optimizer: OptimizerFactory
    observation_space: Box
    action_space: Box


def critic_target(
    params: PyTree, target_params: PyTree, parts: Parts, hyper: Hyper, batch: Transition, key: Key
) -> Array:
    """The distribution every critic shall say, [B, num_bins]. A time limit is in it like any other step.

    As in the authors' code, both critics' distributions are moved first and compared on the support afterwards.
    """
    support = distributional.support_of(parts.config)
    action = parts.actor.apply(params["actor"], batch.next_observation)
    action = smoothing_noise(key, action, hyper.target_noise, hyper.target_noise_clip, -1.0, 1.0)
    logits = apply_ensemble(parts.critic, target_params["critic"], batch.next_observation, action)
    target = jax.vmap(distributional.td_targets, (None, None, 0, None))
    return distributional.smallest(target(batch.reward, batch.discount, jax.nn.softmax(logits), support), support)


def critic_loss(params: PyTree, parts: Parts, batch: Transition, target: Array) -> tuple[Array, tuple[Metrics, Array]]:
    """Cross-entropies, summed over the critics. ``params`` are the critics'. Also returns priorities [B]."""
    logits = apply_ensemble(parts.critic, params, batch.observation, batch.action)
    return distributional.critic_loss(logits, target, batch.weight, distributional.support_of(parts.config))


def actor_loss(params: PyTree, critic_params: PyTree, parts: Parts, batch: Transition) -> Array:
    """Minus the smallest critic's mean at the policy's action. ``params`` are the policy's."""
    action = parts.actor.apply(params, batch.observation)
    logits = apply_ensemble(parts.critic, critic_params, batch.observation, action)
    q = jnp.min(categorical.expected_value(logits, distributional.support_of(parts.config)), axis=0)
    return jnp.mean(batch.weight * deterministic.policy_loss(q))


def init(parts: Parts, key: Key) -> State:
    """A fresh agent, whose target critics are the critics themselves."""
    check_key(key)
    actor_key, critic_key, noise_key = jax.random.split(key, 3)
    observation, action = spaces.zeros(parts.observation_space), jnp.zeros(parts.action_space.shape, jnp.float32)
    params = {
        "actor": parts.actor.init(actor_key, observation),
        "critic": init_ensemble(parts.critic, parts.config.num_critics, critic_key, observation, action),
    }
    hyper = common.hyper_from(Hyper, parts.config)
    updates = jnp.zeros((), jnp.int32)
    return State(
        params=params,
        # Copies, because a donated state may not hold one buffer twice.
        target_params={"critic": jax.tree.map(jnp.copy, params["critic"])},
        optimizer_state={name: optimizer_of(parts, hyper, updates, name).init(part) for name, part in params.items()},
        normaliser=normalise.init(observation) if parts.config.normalise_observations else None,
        hyper=hyper,
        steps=jnp.zeros((), jnp.int32),
        updates=updates,
        policy_metrics={f"actor/{name}": jnp.zeros((), jnp.float32) for name in ("loss", "gradient_norm")},
        noise_key=jax.random.key_data(noise_key),
    )


def exploration_noise(parts: Parts, state: State, num_envs: int) -> Array:
    """The deviation with which each environment explores now, float32 [num_envs].

    Uniform between the two bounds, the same for ``noise_period`` steps of an environment, then drawn anew. A function of
    the key and of how many steps were seen, so that nothing is stored for an environment.
    """
    period = state.steps // (num_envs * parts.config.noise_period)
    key = jax.random.fold_in(jax.random.wrap_key_data(state.noise_key), period)
    low, high = state.hyper.exploration_noise_min, state.hyper.exploration_noise_max
    return low + (high - low) * jax.random.uniform(key, (num_envs,))


def act(parts: Parts, state: State, observation: PyTree, key: Key, explore: bool) -> Array:
    """The policy's action for every observation, with each environment's noise if exploring; within the bounds."""
    check_key(key)
    action = parts.actor.apply(state.params["actor"], common.normalised(state.normaliser, observation))
    if explore:
        leading = action.shape[:-1]
        std = exploration_noise(parts, state, int(np.prod(leading))).reshape(*leading, 1)
        action = smoothing_noise(key, action, std, jnp.inf, -1.0, 1.0)
    space = parts.action_space
    return scale_action(action, space.low, space.high).astype(space.dtype)


def estimate(parts: Parts, state: State, observation: PyTree, action: Array) -> Array:
    """What the critics expect of actions taken at observations with any leading axes, their mean, [...]."""
    action = unscale_action(action, parts.action_space.low, parts.action_space.high)
    observation = common.normalised(state.normaliser, observation)
    logits = apply_ensemble(parts.critic, state.params["critic"], observation, action)
    return jnp.mean(categorical.expected_value(logits, distributional.support_of(parts.config)), axis=0)


def observe(parts: Parts, state: State, experience: Experience) -> State:
    """Count steps and feed the running statistics."""
    del parts
    normaliser = common.observed(state.normaliser, experience)
    return state._replace(normaliser=normaliser, steps=common.counted(state.steps, experience))


def update(parts: Parts, state: State, batch: Transition, key: Key) -> tuple[State, Metrics]:
    """One gradient step of the critics and, when its turn comes, of the policy; a step of the targets. Batch [B]."""
    check_key(key)
    batch = common.as_networks_see(state.normaliser, batch)
    batch = batch._replace(action=unscale_action(batch.action, parts.action_space.low, parts.action_space.high))
    target = critic_target(state.params, state.target_params, parts, state.hyper, batch, key)
    gradients, (metrics, priority) = jax.grad(critic_loss, has_aux=True)(state.params["critic"], parts, batch, target)
    metrics |= {"critic/gradient_norm": optax.global_norm(gradients)}
    state = descend(parts, state, "critic", gradients)

    improve = partial(improve_policy, parts)
    if parts.config.policy_delay == 1:
        state = improve(state, batch)
    else:
        turn = state.updates % parts.config.policy_delay == 0
        state = jax.lax.cond(turn, improve, lambda state, batch: state, state, batch)
    moved = optax.incremental_update(state.params["critic"], state.target_params["critic"], state.hyper.tau)
    metrics |= state.policy_metrics
    return state._replace(target_params={"critic": moved}, updates=state.updates + 1), metrics | {"priority": priority}


def improve_policy(parts: Parts, state: State, batch: Transition) -> State:
    """One gradient step of the policy."""
    gradient = jax.value_and_grad(actor_loss)
    loss, gradients = gradient(state.params["actor"], state.params["critic"], parts, batch)
    metrics = {"actor/loss": loss, "actor/gradient_norm": optax.global_norm(gradients)}
    return descend(parts, state, "actor", gradients)._replace(policy_metrics=metrics)


def optimizer_of(parts: Parts, hyper: Hyper, updates: Array, part: str) -> optax.GradientTransformation:
    """The optimiser of one part of the parameters, with that part's learning rate at this update."""
    rate, config = getattr(hyper, f"{part}_learning_rate"), parts.config
    return parts.optimizer(annealing.cosine(rate, updates, config.anneal_updates, config.final_learning_rate_share))


def descend(parts: Parts, state: State, part: str, gradients: PyTree) -> State:
    """One step of one part of the parameters."""
    optimizer = optimizer_of(parts, state.hyper, state.updates, part)
    params, optimizer_state = common.descend(optimizer, gradients, state.optimizer_state[part], state.params[part])
    return state._replace(
        params=state.params | {part: params}, optimizer_state=state.optimizer_state | {part: optimizer_state}
    )


def make(config: Config, observation_space: Space, action_space: Space, optimizer: Any = None) -> Agent:
    """An agent for these spaces: any box of observations, a bounded vector of actions.

    ``optimizer`` is made twice: for the policy and for the critics.

    Raises:
        UsageError: for spaces or a configuration that cannot work.
    """
    name = "fast_td3"
    observation_space = common.require_observation(name, observation_space, config.normalise_observations)
    action_space = common.require_vector_action(name, spaces.require_bounded_box(action_space, name))
    common.check_least(name, config, 1, "actor_hidden_sizes", "critic_hidden_sizes")
    common.check_least(name, config, 1, "num_critics", "policy_delay", "noise_period")
    common.check_least(name, config, 0, "actor_learning_rate", "critic_learning_rate", "anneal_updates", "weight_decay")
    common.check_least(name, config, 0, "exploration_noise_min", "target_noise", "target_noise_clip")
    common.check_least(name, config, config.exploration_noise_min, "exploration_noise_max")
    common.check_range(name, config, 0.0, 1.0, "discount", "tau", "final_learning_rate_share")
    distributional.check_support(name, config)
    activation_function(config.activation)
    rank = len(observation_space.shape)
    actor = DeterministicPolicy(
        action_space.shape[0], rank, tuple(config.actor_hidden_sizes), config.activation, config.layer_norm
    )
    critic = CategoricalActionValue(
        config.num_bins, rank, tuple(config.critic_hidden_sizes), config.activation, config.layer_norm
    )
    factory = optimizer_factory(optimizer, partial(optax.adamw, weight_decay=config.weight_decay))
    parts = Parts(config, actor, critic, factory, observation_space, action_space)
    bound = partial(init, parts), partial(act, parts), partial(observe, parts), partial(update, parts)
    return Agent(name, *bound, estimate=partial(estimate, parts))
