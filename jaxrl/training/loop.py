"""The two training loops, on-policy and off-policy, as pure functions that know no agent and no environment by name.

One iteration collects a block of experience from every environment and learns from it; a :class:`Loop` says how the
agent acts and what it learns from. Everything that changes is in :class:`LoopState`, so that saving it is saving the
run, and ``vmap`` over it is a population. :mod:`jaxrl.training.program` compiles many iterations into one program.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl import returns
from jaxrl.agents.base import Agent
from jaxrl.errors import UsageError
from jaxrl.samplers.base import SampleInfo, Sampler
from jaxrl.spaces import Space, zeros
from jaxrl.training.measuring import Sums, measure, tasks_of
from jaxrl.training.settings import OffPolicy, OnPolicy, check_replay, check_settings
from jaxrl.types import Array, Experience, Key, Metrics, PyTree, check_key


class LoopState(NamedTuple):
    """Everything that a run is at one moment."""

    agent: PyTree
    env: PyTree  # () where the environment lives on the host
    observation: PyTree  # [num_envs, ...]: what the policy acts on next
    replay: PyTree  # () where nothing is replayed
    key: Key


class Loop(NamedTuple):
    """What an agent does between the environment's steps. It holds no environment, so a simulator on the host can use it."""

    # (key, hyper: name -> scalar that replaces the agent's own, observation [num_envs, ...]) -> (agent state, replay)
    init: Callable[[Key, dict[str, Array], PyTree], tuple[PyTree, PyTree]]
    # (state, observation [num_envs, ...], key, iteration) -> action [num_envs, ...]
    act: Callable[[LoopState, PyTree, Key, Array], Array]
    # (state, block: Experience [unroll, num_envs, ...], key, iteration) -> (state, sums)
    learn: Callable[[LoopState, Experience, Key, Array], tuple[LoopState, Sums]]
    num_envs: int
    unroll: int
    updates_per_iteration: int  # calls of agent.update
    warmup_iterations: int  # iterations that only collect, with random actions

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps, over all environments."""
        return self.num_envs * self.unroll


def on_policy(agent: Agent, config: OnPolicy) -> Loop:
    """Collect ``[unroll, num_envs]`` steps with the current policy, update on exactly those, forget them.

    Raises:
        UsageError: where agent and sizes do not fit.
    """
    check_settings(agent, config, on_policy=True)

    def init(key: Key, hyper: dict[str, Array], observation: PyTree) -> tuple[PyTree, PyTree]:
        return _init_agent(agent, key, hyper), ()

    def act(state: LoopState, observation: PyTree, key: Key, iteration: Array) -> Array:
        return agent.act(state.agent, observation, key, True)

    def learn(state: LoopState, block: Experience, key: Key, iteration: Array) -> tuple[LoopState, Sums]:
        agent_state, metrics = agent.update(state.agent, block, key)
        sums = {name: (value, jnp.float32(1)) for name, value in metrics.items()}
        return state._replace(agent=agent.observe(agent_state, block)), sums

    return Loop(init, act, learn, config.num_envs, config.unroll, 1, 0)


Watch = Callable[[SampleInfo, Array], Metrics]  # (info of a batch, int32 []: rows stored over all lanes) -> metrics


def off_policy(
    agent: Agent, sampler: Sampler, action_space: Space, config: OffPolicy, watch: Watch | None = None
) -> Loop:
    """Collect ``[unroll, num_envs]`` steps into the replay storage, then take ``updates`` gradient steps from it.

    Args:
        sampler: its windows of ``length`` become ``length``-step transitions, with the agent's own discount.
        action_space: for the random actions of the warm-up.
        watch: what to measure of every batch that is drawn; nothing where absent.
    Raises:
        UsageError: where agent, storage and sizes do not fit.
    """
    check_settings(agent, config, on_policy=False)
    if isinstance(action_space, dict):
        raise UsageError(f"random actions need one space, got a dict of {', '.join(action_space)}")
    steps_per_iteration = config.num_envs * config.unroll
    warmup_iterations = -(-config.warmup // steps_per_iteration)
    check_replay(config, sampler.length, (warmup_iterations + 1) * steps_per_iteration)

    def init(key: Key, hyper: dict[str, Array], observation: PyTree) -> tuple[PyTree, PyTree]:
        storage = sampler.init(_example(observation, action_space), config.capacity, config.num_envs)
        return _init_agent(agent, key, hyper), storage

    def act(state: LoopState, observation: PyTree, key: Key, iteration: Array) -> Array:
        def random_action(key: Key) -> Array:
            return jax.vmap(action_space.sample)(jax.random.split(key, config.num_envs))

        def policy_action(key: Key) -> Array:
            return agent.act(state.agent, observation, key, True)

        return jax.lax.cond(iteration < warmup_iterations, random_action, policy_action, key)

    def learn(state: LoopState, block: Experience, key: Key, iteration: Array) -> tuple[LoopState, Sums]:
        replay = sampler.add(state.replay, block)

        def update(index: Array, carry: tuple) -> tuple:
            agent_state, replay, totals = carry
            update_key = jax.random.fold_in(key, index)
            agent_state, replay, metrics = replay_update(
                agent, sampler, agent_state, replay, update_key, config.batch_size, watch
            )
            return agent_state, replay, jax.tree.map(jnp.add, totals, metrics)

        # A loop of zero turns, not a conditional, skips the updates of the warm-up: the carry of a loop is updated in
        # place, while a conditional may copy the whole storage.
        count = jnp.where(iteration < warmup_iterations, 0, config.updates)
        zeros = _zero_metrics(agent, sampler, config.batch_size, watch, state.agent, replay, key)
        agent_state, replay, totals = jax.lax.fori_loop(0, count, update, (state.agent, replay, zeros))
        sums = {name: (total, count.astype(jnp.float32)) for name, total in totals.items()}
        return state._replace(agent=agent.observe(agent_state, block), replay=replay), sums

    return Loop(init, act, learn, config.num_envs, config.unroll, config.updates, warmup_iterations)


def start(loop: Loop, env: Any, key: Key, hyper: dict[str, Array]) -> LoopState:
    """The state before the first iteration.

    Args:
        env: a vectorised environment of ``loop.num_envs``.
        hyper: name -> scalar, in place of the agent's own hyper-parameters.
    """
    check_key(key)
    check_num_envs(loop, env)
    agent_key, env_key, loop_key = jax.random.split(key, 3)
    env_state, step = env.reset(env_key)
    agent_state, replay = loop.init(agent_key, hyper, step.observation)
    return LoopState(agent_state, env_state, step.observation, replay, loop_key)


def iterate(loop: Loop, env: Any, state: LoopState, iteration: Array) -> tuple[LoopState, Sums]:
    """Collect a block from every environment and learn from it.

    Args:
        iteration: int32 [], counted from the start of the run; the same for all members of a population.
    """
    key, collect_key, learn_key = jax.random.split(state.key, 3)

    def act(observation: PyTree, key: Key) -> Array:
        return loop.act(state, observation, key, iteration)

    env_state, observation, block, sums = collect(env, act, state.env, state.observation, loop.unroll, collect_key)
    state = state._replace(env=env_state, observation=observation, key=key)
    state, learned = loop.learn(state, block, learn_key, iteration)
    return state, sums | learned


def collect(
    env: Any, act: Callable[[PyTree, Key], Array], env_state: PyTree, observation: PyTree, length: int, key: Key
) -> tuple[PyTree, PyTree, Experience, Sums]:
    """Act for ``length`` steps in every environment.

    Returns:
        The environments' state, the observation to act on next, the experience ``[length, num_envs, ...]`` and the sums
        of what the environments measured: metrics named ``episode/…`` over the episodes that ended, others over all
        steps. An environment with ``tasks`` has ``episode/…/TASK`` besides.
    """

    def step(carry: tuple, key: Key) -> tuple[tuple, tuple[Experience, Sums]]:
        env_state, observation = carry
        act_key, step_key = jax.random.split(key)
        action = act(observation, act_key)
        env_state, result = env.step(env_state, action, step_key)
        experience = Experience(
            observation, action, result.reward, result.terminated, result.truncated, result.next_observation
        )
        return (env_state, result.observation), (experience, measure(result, tasks_of(env)))

    keys = jax.random.split(key, length)
    (env_state, observation), (experience, sums) = jax.lax.scan(step, (env_state, observation), keys)
    return env_state, observation, experience, jax.tree.map(lambda x: jnp.sum(x, 0), sums)


def replay_update(
    agent: Agent,
    sampler: Sampler,
    agent_state: PyTree,
    replay: PyTree,
    key: Key,
    batch_size: int,
    watch: Watch | None = None,
) -> tuple[PyTree, PyTree, Metrics]:
    """One gradient step: draw windows, make transitions of them with the agent's discount, update, set priorities."""
    sample_key, update_key = jax.random.split(key)
    window, info = sampler.sample(replay, sample_key, batch_size)
    watched = {} if watch is None else watch(info, sampler.size(replay))
    to_transition = jax.vmap(returns.n_step_transition, in_axes=(0, None, 0))
    batch = to_transition(window, agent_state.hyper.discount, info.weight)
    agent_state, metrics = agent.update(agent_state, batch, update_key)
    priority = metrics.pop("priority", None)
    if priority is not None:
        replay = sampler.update_priority(replay, info, priority)
    return agent_state, replay, metrics | watched


def _init_agent(agent: Agent, key: Key, hyper: dict[str, Array]) -> PyTree:
    state = agent.init(key)
    check_hyper(state.hyper, hyper)
    return state._replace(hyper=state.hyper._replace(**hyper)) if hyper else state


def block_of(loop: Loop, observation: PyTree, action_space: Space) -> Experience:
    """The shapes ``[unroll, num_envs, ...]`` of what one iteration learns from, from those of the observation."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((loop.unroll, loop.num_envs, *x.shape), x.dtype),
        jax.eval_shape(lambda o: _example(o, action_space), observation),
    )


def check_learning(loop: Loop, state: LoopState, block: Experience) -> None:
    """Let the agent see the shapes it will learn from, so that it refuses them before anything compiles."""
    jax.eval_shape(loop.learn, state, block, state.key, jax.ShapeDtypeStruct((), jnp.int32))


def check_hyper(own: PyTree, given: dict[str, Any]) -> None:
    """Refuse a hyper-parameter that the agent does not sweep, and say which it does."""
    for name in given:
        if name not in own._fields:
            raise UsageError(f"'{name}' cannot be swept; this agent sweeps {', '.join(own._fields)}")


def _example(observation: PyTree, action_space: Space) -> Experience:
    """One experience of zeros with the shapes and dtypes that the environment gives."""
    one = jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), observation)
    flag = jnp.zeros((), bool)
    return Experience(one, zeros(action_space), jnp.zeros((), jnp.float32), flag, flag, one)


def _zero_metrics(
    agent: Agent,
    sampler: Sampler,
    batch_size: int,
    watch: Watch | None,
    agent_state: PyTree,
    replay: PyTree,
    key: Key,
) -> Metrics:
    update = partial(replay_update, agent, sampler, batch_size=batch_size, watch=watch)
    shapes = jax.eval_shape(lambda *arrays: update(*arrays)[2], agent_state, replay, key)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def check_num_envs(loop: Loop, env: Any) -> None:
    """Refuse an environment with another number of lanes than the loop's."""
    if env.num_envs != loop.num_envs:
        fix = f"make it with wrappers.vectorise(env, {loop.num_envs})"
        raise UsageError(f"the environment has num_envs {env.num_envs}, the loop {loop.num_envs}; {fix}")
