"""Proximal policy optimisation of one policy for many tasks, and TOPPO (arXiv:2605.11473), which is its :func:`toppo` config.

The last ``num_tasks`` entries of an observation are a one-hot of the task, which policy and critic read; the environment's
lanes are equal blocks, one a task. Everything that :mod:`~jaxrl.agents.ppo` does is done by its functions. What TOPPO adds
is Critic Balancing, each part by itself:

* ``popart``: the critic predicts values in units of each task's own running mean and deviation
  (:mod:`jaxrl.losses.popart`), so that no task's rewards are louder than another's;
* ``critic_layer_norm``: the critic's layers are normalised before the activation, so that the tasks' gradients do not line
  up;
* ``critic_combiner`` and ``actor_combiner``: how the tasks' gradients become one (:mod:`jaxrl.losses.combiners`), of the
  critic by FairGrad, of the policy by PCGrad.

Names and places of these modules were found in public digests of the paper; their formulas, the gain and offset of each
task in place of a head of its own, advantages normalised task by task, and combined gradients of the length of the mean
gradient are derived. With one task, or with all of it off, this is PPO bit for bit.

Statistics of PopArt change once a rollout: advantages come from the values as they were, then the statistics take in the
rollout's targets, and the head moves so that no value does, except at the first rollout, before which no value means
anything (derived here).
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxrl.agents import annealing, common, ppo
from jaxrl.agents.base import Agent, optimizer_factory
from jaxrl.agents.ppo import Batch, Hyper, Parts
from jaxrl.errors import UsageError
from jaxrl.losses import combiners, popart
from jaxrl.networks import StateValue
from jaxrl.normalise import RunningStatistics
from jaxrl.spaces import Space
from jaxrl.types import Array, Experience, Key, Metrics, PyTree, check_key

ON_POLICY = True
Combiner = Literal["mean", "pcgrad", "cagrad", "fairgrad", "mgda"]


@dataclass(frozen=True)
class Config(ppo.Config):
    num_tasks: int = 1
    """Tasks, each an equal block of the environment's lanes. With more than one, observations end with a one-hot."""
    normalise_advantages_by_task: bool = False
    """Whether advantages of a minibatch are shifted and scaled task by task, rather than all together."""
    popart: bool = False
    """Whether the critic's targets are normalised task by task, by running statistics that preserve its outputs."""
    popart_step: float = 0.0
    """Weight of a new rollout in those statistics; 0 weighs all targets so far alike (Welford)."""
    critic_layer_norm: bool = False
    """Whether the critic's hidden layers are normalised before the activation."""
    critic_combiner: Combiner = "mean"
    """How the tasks' gradients of the critic become one."""
    actor_combiner: Combiner = "mean"
    """How the tasks' gradients of the policy become one."""
    clip_each: bool = False
    """Whether policy and critic have their gradients clipped apart, rather than together."""
    conditioning: bool = False
    """Whether to measure how unequal the tasks' gradients of the critic are; needs them even where none are combined."""


def toppo(config: Config = Config()) -> Config:
    """The config with every module of TOPPO on: PopArt, layer norm in the critic, FairGrad for it, PCGrad for the policy."""
    return replace(
        config,
        normalise_advantages_by_task=True,
        popart=True,
        critic_layer_norm=True,
        critic_combiner="fairgrad",
        actor_combiner="pcgrad",
        clip_each=True,
    )


class State(NamedTuple):
    params: PyTree  # {"actor", "critic"}; with popart the critic is {"trunk", "head": popart.Head}
    optimizer_state: PyTree
    normaliser: RunningStatistics | None
    hyper: Hyper
    steps: Array  # int32: environment steps observed
    updates: Array  # int32: calls of update
    targets: popart.Statistics | None  # of each task's value targets; None without popart


class Scaled(NamedTuple):
    """A minibatch of every task ``[K, B]``, and the statistics its targets are normalised by."""

    batch: Batch
    targets: popart.Statistics | None


def init(parts: Parts, key: Key) -> State:
    """A fresh agent. Without popart its parameters are those of PPO."""
    state = ppo.init(parts, key)
    params, statistics = state.params, None
    if parts.config.popart:
        statistics, head = popart.init(parts.config.num_tasks)
        params = params | {"critic": {"trunk": params["critic"], "head": head}}
    optimizer_state = parts.optimizer(state.hyper.learning_rate).init(params)
    return State(params, optimizer_state, *state[2:], statistics)


def values(parts: Parts, params: PyTree, statistics: popart.Statistics | None, observation: PyTree) -> Array:
    """Values in units of reward ``[T, N]``; the ``N`` lanes are equal blocks, one a task. ``params`` are the critic's."""
    if statistics is None:
        return parts.critic.apply(params, observation)
    trunk = parts.critic.apply(params["trunk"], observation)
    by_task = jnp.swapaxes(trunk.reshape(trunk.shape[0], parts.config.num_tasks, -1), 1, 2)
    raw = popart.denormalise(statistics, popart.value(params["head"], by_task))
    return jnp.swapaxes(raw, 1, 2).reshape(trunk.shape)


def estimate(parts: Parts, state: State, observation: Array, action: Array) -> Array:
    """As :func:`jaxrl.agents.ppo.estimate`, in units of reward; the one-hot that ends an observation says which task."""
    if state.targets is None:
        return ppo.estimate(parts, state, observation, action)
    trunk = parts.critic.apply(state.params["critic"]["trunk"], common.normalised(state.normaliser, observation))
    count = parts.config.num_tasks
    task = jnp.argmax(observation[..., -count:], axis=-1) if count > 1 else jnp.zeros(trunk.shape, jnp.int32)
    head, targets = jax.tree.map(lambda leaf: leaf[task], (state.params["critic"]["head"], state.targets))
    return popart.denormalise(targets, popart.value(head, trunk))


def task_losses(
    params: PyTree, parts: Parts, hyper: Hyper, given: Scaled, task: Array, key: Key
) -> tuple[tuple[Array, Array], Metrics]:
    """Loss of the policy and of the critic on one task's samples ``[B]``, whose advantages are as they shall be used."""
    actor_loss, metrics = ppo.policy_loss(params["actor"], parts, hyper, given.batch, key)
    if given.targets is None:
        critic_loss, more = ppo.value_loss(params["critic"], parts, given.batch)
        return (actor_loss, critic_loss), metrics | more
    of_task = lambda leaf: leaf[task]
    head, statistics = jax.tree.map(of_task, (params["critic"]["head"], given.targets))
    trunk = parts.critic.apply(params["critic"]["trunk"], given.batch.observation)
    critic_loss = jnp.mean(popart.loss(head, statistics, trunk, given.batch.target))
    return (actor_loss, critic_loss), metrics | {"critic/loss": critic_loss}


def one_loss(params: PyTree, side: str, rest: PyTree, parts: Parts, hyper: Hyper, given: Scaled, task: Array, key: Key):
    """The loss of one side as a function of its own parameters alone, for one task."""
    losses, metrics = task_losses(rest | {side: params}, parts, hyper, given, task, key)
    return losses[0 if side == "actor" else 1], metrics


def side_gradient(
    side: str, combiner: str, params: PyTree, parts: Parts, hyper: Hyper, given: Scaled, keys: tuple[Key, Key]
) -> tuple[PyTree, Metrics]:
    """One gradient for one side: of the mean loss, or combined out of the tasks', which one vmapped backward pass gives."""
    loss_key, combine_key = keys
    tasks = jnp.arange(parts.config.num_tasks)
    every = jax.random.split(loss_key, parts.config.num_tasks)
    of_task = partial(one_loss, side=side, rest=params, parts=parts, hyper=hyper)
    over_tasks = (None, Scaled(0, None), 0, 0)  # type: ignore[arg-type]
    call = lambda own, given, task, key: of_task(own, given=given, task=task, key=key)
    apart = combiner != "mean" or (side == "critic" and parts.config.conditioning)
    if not apart:

        def mean_loss(own: PyTree) -> tuple[Array, Metrics]:
            losses, metrics = jax.vmap(call, over_tasks)(own, given, tasks, every)
            return jnp.mean(losses), jax.tree.map(jnp.mean, metrics)

        return jax.grad(mean_loss, has_aux=True)(params[side])
    gradients, metrics = jax.vmap(jax.grad(call, has_aux=True), over_tasks)(params[side], given, tasks, every)
    gram = combiners.gram(gradients)
    metrics = jax.tree.map(jnp.mean, metrics)
    if side == "critic" and parts.config.conditioning:
        metrics |= {f"critic/gradients/{name}": value for name, value in combiners.conditioning(gram).items()}
    return combiners.weighted_sum(gradients, combiners.combiner(combiner)(gram, combine_key)), metrics


def minibatch_gradient(
    parts: Parts, hyper: Hyper, given: Scaled, params: PyTree, rows: Array, key: Key
) -> tuple[dict[str, PyTree], Metrics]:
    """The gradients of both sides on the same rows of every task; by PPO's own loss where nothing is done by task."""
    given = given._replace(batch=jax.tree.map(lambda x: x[:, rows], given.batch))
    config = parts.config
    if not by_task(config):
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), given.batch)
        return jax.grad(ppo.total_loss, has_aux=True)(params, parts, hyper, flat, key)
    if config.normalise_advantages:
        axes = -1 if config.normalise_advantages_by_task else None
        a = given.batch.advantage
        a = (a - jnp.mean(a, axes, keepdims=True)) / (jnp.std(a, axes, keepdims=True) + 1e-8)
        given = given._replace(batch=given.batch._replace(advantage=a))
        parts = parts._replace(config=replace(config, normalise_advantages=False))
    keys = jax.random.split(key, 4)
    actor, metrics = side_gradient("actor", config.actor_combiner, params, parts, hyper, given, (keys[0], keys[1]))
    critic, more = side_gradient("critic", config.critic_combiner, params, parts, hyper, given, (keys[2], keys[3]))
    critic = jax.tree.map(lambda g: hyper.value_coefficient * g, critic)
    kept = {name: value for name, value in more.items() if name.startswith("critic/")}
    return {"actor": actor, "critic": critic}, {k: v for k, v in metrics.items() if k.startswith("actor/")} | kept


def by_task(config: Config) -> bool:
    """Whether anything is done task by task; with one task nothing but PopArt can be."""
    alone = config.num_tasks == 1
    combined = config.critic_combiner != "mean" or config.actor_combiner != "mean" or config.conditioning
    return config.popart or (not alone and (combined or config.normalise_advantages_by_task))


def update(parts: Parts, state: State, rollout: Experience, key: Key) -> tuple[State, Metrics]:
    """As :func:`jaxrl.agents.ppo.update`; every minibatch has equally many samples of every task.

    Raises:
        UsageError: if the lanes cannot be shared out to the tasks, or the minibatches do not divide a task's share.
    """
    check_key(key)
    config = parts.config
    length, lanes = rollout.reward.shape
    if lanes % config.num_tasks:
        near = [n for n in (lanes // config.num_tasks * config.num_tasks,) if n] + [
            (lanes // config.num_tasks + 1) * config.num_tasks
        ]
        raise UsageError(
            f"multi_task_ppo: {lanes} environments cannot be shared equally by {config.num_tasks} tasks; nearest: "
            f"{' and '.join(map(str, near))}"
        )
    share = length * lanes // config.num_tasks
    common.check_minibatches("multi_task_ppo", config, share)
    critic = partial(values, parts, state.params["critic"], state.targets)
    flat, metrics = ppo.prepare(parts, state, rollout, critic)
    batch = jax.tree.map(lambda x: task_blocks(x, length, config.num_tasks), flat)
    params, targets = state.params, state.targets
    if targets is not None:
        old = targets
        targets = popart.update(old, batch.target.T, config.popart_step or None)
        head = params["critic"]["head"]
        preserved = popart.preserve(head, old, targets)
        # What a fresh critic says is worth nothing: preserved, it would leave each task a gain as far off as its rewards.
        began = old.count > 0
        head = jax.tree.map(lambda kept, fresh: jnp.where(began, kept, fresh), preserved, head)
        params = params | {"critic": params["critic"] | {"head": head}}
        metrics |= {"critic/largest_scale": jnp.max(popart.scale(targets))}
    optimizer = parts.optimizer(annealing.linear(state.hyper.learning_rate, state.updates, config.anneal_updates, 0.0))
    gradient = partial(minibatch_gradient, parts, state.hyper, Scaled(batch, targets))
    step = partial(ppo.minibatch_step, gradient, optimizer)
    (params, optimizer_state), traces = ppo.run_epochs(config, step, share, (params, state.optimizer_state), key)
    metrics |= worst_explained(batch) | jax.tree.map(jnp.mean, traces)
    new = state._replace(params=params, optimizer_state=optimizer_state, targets=targets)
    return new._replace(updates=state.updates + 1), metrics


def task_blocks(x: Array, length: int, tasks: int) -> Array:
    """``[T * N, ...] -> [K, T * N / K, ...]``: lanes are equal blocks, one a task; with one task the order stays."""
    blocks = x.reshape(length, tasks, -1, *x.shape[1:])
    return jnp.swapaxes(blocks, 0, 1).reshape(tasks, -1, *x.shape[1:])


def worst_explained(batch: Batch) -> Metrics:
    """Explained variance of the critic on the task where it is lowest; below 0 it is worse than a constant."""
    explained = 1.0 - jnp.var(batch.advantage, 1) / jnp.maximum(jnp.var(batch.target, 1), 1e-8)
    return {"critic/worst_explained_variance": jnp.min(explained)}


def make(config: Config, observation_space: Space, action_space: Space, optimizer: Any = None) -> Agent:
    """An agent for these spaces, as :func:`jaxrl.agents.ppo.make`.

    Raises:
        UsageError: for spaces or a configuration that cannot work.
    """
    common.check_least("multi_task_ppo", config, 1, "num_tasks")
    common.check_range("multi_task_ppo", config, 0.0, 1.0, "popart_step")
    for side in ("critic_combiner", "actor_combiner"):
        combiners.combiner(getattr(config, side))
    default = optimizer_factory(optimizer, partial(default_optimizer, config.max_grad_norm, config.clip_each))
    made = ppo.make_parts("multi_task_ppo", config, observation_space, action_space, default)
    common.check_one_hot("multi_task_ppo", made.observation_space, config.num_tasks)
    torso = (made.critic.rank, tuple(config.hidden_sizes), config.activation)
    parts = made._replace(critic=StateValue(*torso, config.layer_norm or config.critic_layer_norm))
    bound = partial(init, parts), partial(ppo.act, parts), partial(ppo.observe, parts), partial(update, parts)
    return Agent("multi_task_ppo", *bound, on_policy=True, estimate=partial(estimate, parts))


def default_optimizer(max_grad_norm: float, clip_each: bool, learning_rate: Array) -> optax.GradientTransformation:
    """PPO's, or the same with the gradients of policy and critic clipped apart."""
    if not clip_each:
        return ppo.default_optimizer(max_grad_norm, learning_rate)
    sides = {name: optax.clip_by_global_norm(max_grad_norm) for name in ("actor", "critic")}
    clips = optax.partition(sides, {name: name for name in sides})
    return optax.chain(clips, optax.adam(learning_rate, eps=1e-5))
