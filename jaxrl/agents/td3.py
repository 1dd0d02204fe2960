"""Twin delayed deep deterministic policy gradient, TD3 (Fujimoto et al. 2018), for bounded continuous actions.

A deterministic policy is improved along the gradient of a critic through the policy's own action. Three remedies keep
the critics from overestimating: two critics whose smaller target is bootstrapped from, noise on the target policy's
action so that a critic cannot profit from a sharp peak (equation 14), and a policy (with all targets) that moves only at
every second update of the critics. Exploration adds Gaussian noise to the action. Inside, actions are in [-1, 1]: so are
those the critics see, and noise is in units of half the range of each entry.
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
from jaxrl.distributions import scale_action, smoothing_noise, unscale_action
from jaxrl.losses import deterministic, value
from jaxrl.networks import (
    ActionValue,
    Activation,
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
    discount: float = 0.99
    """Weight of the next step's value against this step's reward."""
    tau: float = 0.005
    """Share of policy and critics that their targets take over whenever the policy is updated."""
    exploration_noise: float = 0.1
    """Deviation of the noise on explored actions, in half ranges."""
    target_noise: float = 0.2
    """Deviation of the noise on the target policy's actions, in half ranges."""
    target_noise_clip: float = 0.5
    """Largest noise on the target policy's actions, in half ranges."""
    num_critics: int = 2
    """Members of the critics' ensemble."""
    policy_delay: int = 2
    """Updates of the critics for each update of the policy and the targets."""
    normalise_observations: bool = False
    """Whether the networks see observations minus their running mean, over their running deviation."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of all networks."""
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
    exploration_noise: Array
    target_noise: Array
    target_noise_clip: Array


class State(NamedTuple):
    params: PyTree  # {"actor", "critic": first axis num_critics}
    target_params: PyTree  # the same
    optimizer_state: PyTree  # {"actor", "critic"}
    normaliser: RunningStatistics | None
    hyper: Hyper
    steps: Array  # int32: environment steps observed
    updates: Array  # int32: calls of update
    policy_metrics: Metrics  # of the latest update of the policy, which the delay may have put some calls ago


class Parts(NamedTuple):
    """What is fixed when an agent is made."""

    config: Config
    actor: Any  # a flax module
    critic: Any  # a flax module
    optimizer: OptimizerFactory
    observation_space: Box
    action_space: Box


def critic_target(target_params: PyTree, parts: Parts, hyper: Hyper, batch: Transition, key: Key) -> Array:
    """What every critic shall predict, [B]. A time limit is in it like any other step: its discount is not 0."""
    action = parts.actor.apply(target_params["actor"], batch.next_observation)
    action = smoothing_noise(key, action, hyper.target_noise, hyper.target_noise_clip, -1.0, 1.0)
    q = apply_ensemble(parts.critic, target_params["critic"], batch.next_observation, action)
    return jax.vmap(deterministic.clipped_double_q_target, (0, 0, 1))(batch.reward, batch.discount, q)


def critic_loss(params: PyTree, parts: Parts, batch: Transition, target: Array) -> tuple[Array, tuple[Metrics, Array]]:
    """Half the squared errors, summed over the critics. ``params`` are the critics'. Also returns priorities [B]."""
    q = apply_ensemble(parts.critic, params, batch.observation, batch.action)
    error = target - q
    loss = jnp.mean(batch.weight * jnp.sum(value.squared(error), axis=0))
    priority = jnp.mean(jnp.abs(error), axis=0) + common.PRIORITY_FLOOR
    return loss, ({"critic/loss": loss, "critic/value": jnp.mean(q)}, priority)


def actor_loss(params: PyTree, critic_params: PyTree, parts: Parts, batch: Transition) -> Array:
    """Minus the first critic's value of the policy's action. ``params`` are the policy's."""
    action = parts.actor.apply(params, batch.observation)
    first = jax.tree.map(lambda x: x[0], critic_params)
    q = parts.critic.apply(first, batch.observation, action)
    return jnp.mean(batch.weight * deterministic.policy_loss(q))


def init(parts: Parts, key: Key) -> State:
    """A fresh agent, whose targets are the networks themselves."""
    check_key(key)
    actor_key, critic_key = jax.random.split(key)
    observation, action = spaces.zeros(parts.observation_space), jnp.zeros(parts.action_space.shape, jnp.float32)
    params = {
        "actor": parts.actor.init(actor_key, observation),
        "critic": init_ensemble(parts.critic, parts.config.num_critics, critic_key, observation, action),
    }
    hyper = common.hyper_from(Hyper, parts.config)
    return State(
        params=params,
        # Copies, because a donated state may not hold one buffer twice.
        target_params=jax.tree.map(jnp.copy, params),
        optimizer_state={name: optimizer_of(parts, hyper, name).init(part) for name, part in params.items()},
        normaliser=normalise.init(observation) if parts.config.normalise_observations else None,
        hyper=hyper,
        steps=jnp.zeros((), jnp.int32),
        updates=jnp.zeros((), jnp.int32),
        policy_metrics={f"actor/{name}": jnp.zeros((), jnp.float32) for name in ("loss", "gradient_norm")},
    )


def act(parts: Parts, state: State, observation: PyTree, key: Key, explore: bool) -> Array:
    """The policy's action for every observation, with noise if exploring; within the bounds either way."""
    check_key(key)
    action = parts.actor.apply(state.params["actor"], common.normalised(state.normaliser, observation))
    if explore:
        action = smoothing_noise(key, action, state.hyper.exploration_noise, jnp.inf, -1.0, 1.0)
    space = parts.action_space
    return scale_action(action, space.low, space.high).astype(space.dtype)


def estimate(parts: Parts, state: State, observation: PyTree, action: Array) -> Array:
    """What the critics expect of actions taken at observations with any leading axes, their mean, [...]."""
    action = unscale_action(action, parts.action_space.low, parts.action_space.high)
    observation = common.normalised(state.normaliser, observation)
    return jnp.mean(apply_ensemble(parts.critic, state.params["critic"], observation, action), axis=0)


def observe(parts: Parts, state: State, experience: Experience) -> State:
    """Count steps and feed the running statistics."""
    del parts
    normaliser = common.observed(state.normaliser, experience)
    return state._replace(normaliser=normaliser, steps=common.counted(state.steps, experience))


def update(parts: Parts, state: State, batch: Transition, key: Key) -> tuple[State, Metrics]:
    """One gradient step of the critics and, when its turn comes, of the policy and the targets. Batch [B]."""
    check_key(key)
    batch = common.as_networks_see(state.normaliser, batch)
    batch = batch._replace(action=unscale_action(batch.action, parts.action_space.low, parts.action_space.high))
    target = critic_target(state.target_params, parts, state.hyper, batch, key)
    gradients, (metrics, priority) = jax.grad(critic_loss, has_aux=True)(state.params["critic"], parts, batch, target)
    metrics |= {"critic/gradient_norm": optax.global_norm(gradients)}
    state = descend(parts, state, "critic", gradients)

    improve = partial(improve_policy, parts)
    if parts.config.policy_delay == 1:
        state = improve(state, batch)
    else:
        turn = state.updates % parts.config.policy_delay == 0
        state = jax.lax.cond(turn, improve, lambda state, batch: state, state, batch)
    metrics |= state.policy_metrics
    return state._replace(updates=state.updates + 1), metrics | {"priority": priority}


def improve_policy(parts: Parts, state: State, batch: Transition) -> State:
    """One gradient step of the policy, and a step of all targets."""
    gradient = jax.value_and_grad(actor_loss)
    loss, gradients = gradient(state.params["actor"], state.params["critic"], parts, batch)
    state = descend(parts, state, "actor", gradients)
    moved = optax.incremental_update(state.params, state.target_params, state.hyper.tau)
    metrics = {"actor/loss": loss, "actor/gradient_norm": optax.global_norm(gradients)}
    return state._replace(target_params=moved, policy_metrics=metrics)


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

    ``optimizer`` is made twice: for the policy and for the critics.

    Raises:
        UsageError: for spaces or a configuration that cannot work.
    """
    observation_space = common.require_observation("td3", observation_space, config.normalise_observations)
    action_space = common.require_vector_action("td3", spaces.require_bounded_box(action_space, "td3"))
    common.check_least("td3", config, 1, "hidden_sizes", "num_critics", "policy_delay")
    common.check_least("td3", config, 0, "actor_learning_rate", "critic_learning_rate")
    common.check_least("td3", config, 0, "exploration_noise", "target_noise", "target_noise_clip")
    common.check_range("td3", config, 0.0, 1.0, "discount", "tau")
    activation_function(config.activation)
    torso = (len(observation_space.shape), tuple(config.hidden_sizes), config.activation, config.layer_norm)
    actor = DeterministicPolicy(action_space.shape[0], *torso)
    factory = optimizer_factory(optimizer, optax.adam)
    parts = Parts(config, actor, ActionValue(*torso), factory, observation_space, action_space)
    bound = partial(init, parts), partial(act, parts), partial(observe, parts), partial(update, parts)
    return Agent("td3", *bound, estimate=partial(estimate, parts))
