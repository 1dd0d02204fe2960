"""Small agents, made-up experience and one-step tasks that the agents' tests share."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import agents
from jaxrl.agents.base import Agent
from jaxrl.errors import UsageError
from jaxrl.returns import transition
from jaxrl.spaces import Box, Discrete
from jaxrl.types import Experience

OBSERVATIONS = Box(-10.0, 10.0, (3,))
ACTIONS = {"box": Box([-2.0, 0.0], [2.0, 10.0]), "discrete": Discrete(3)}
T, N = 4, 4


# Fields that only some agents have: supports wide enough for the values met in tests, and little of everything else.
SMALL = {
    "value_min": -20.0,
    "value_max": 20.0,
    "num_bins": 41,
    "actor_blocks": 1,
    "critic_blocks": 1,
    "actor_depth": 1,
    "critic_depth": 1,
    "expansion": 2,
    "followed_envs": 16,
    "episode_length": 8,
}


def make(name: str, kind: str, optimizer=None, observations=OBSERVATIONS, **fields) -> Agent:
    """An agent with one narrow layer wherever its configuration has layers; fields it does not have are left out."""
    config = agents.config_class(name)
    known = {field.name for field in dataclasses.fields(config)}
    fields = SMALL | {"hidden_sizes": (8,)} | fields
    for field in known:
        if field.endswith("_hidden_sizes"):
            fields.setdefault(field, fields["hidden_sizes"])
        elif field.endswith("_width"):
            fields.setdefault(field, fields["hidden_sizes"][-1])
    config = config(**{field: value for field, value in fields.items() if field in known})
    return agents.make_agent(config, observations, ACTIONS[kind], optimizer)


def accepts(name: str, kind: str) -> bool:
    try:
        make(name, kind)
    except UsageError:
        return False
    return True


# Every registered agent with every kind of action it accepts.
CASES = [(name, kind) for name in agents.names() for kind in ACTIONS if accepts(name, kind)]


@dataclasses.dataclass
class Compiled:
    """An agent whose functions are compiled once for all tests."""

    agent: Agent

    def __post_init__(self):
        self.init = jax.jit(self.agent.init)
        self.act = jax.jit(self.agent.act, static_argnums=3)
        self.observe = jax.jit(self.agent.observe)
        self.update = jax.jit(self.agent.update)
        self.population_update = jax.jit(jax.vmap(self.agent.update))


@functools.cache
def compiled(name: str, kind: str) -> Compiled:
    return Compiled(make(name, kind, normalise_observations=True, policy_delay=2))


def experience(kind: str, seed: int = 0) -> Experience:
    """A rollout [T, N] of made-up steps with all kinds of flags."""
    rng = np.random.default_rng(seed)
    space = ACTIONS[kind]
    if kind == "box":
        action = rng.uniform(space.low, space.high, (T, N, *space.shape)).astype(np.float32)
    else:
        action = rng.integers(0, space.n, (T, N)).astype(np.int32)
    observation = rng.normal(2.0, 3.0, (2, T, N, 3)).astype(np.float32)
    reward = rng.normal(size=(T, N)).astype(np.float32)
    flags = rng.uniform(size=(2, T, N)) < 0.3
    return Experience(observation[0], action, reward, flags[0], flags[1], observation[1])


def batch_for(agent: Agent, rollout: Experience, gamma=0.99):
    """What the agent's update takes: the rollout itself, or its steps as transitions [T * N]."""
    if agent.on_policy:
        return rollout
    return transition(jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rollout), gamma)


def with_hyper(state, **values):
    """A state with some hyper-parameters replaced; those the agent does not have are left out."""
    known = {name: jnp.float32(value) for name, value in values.items() if name in state.hyper._fields}
    return state._replace(hyper=state.hyper._replace(**known))


def one_step_reward(kind: str, observation, action):
    """At most 0. The best action depends on the sign of the first entry of the observation."""
    sign = jnp.sign(observation[..., 0])
    if kind == "discrete":
        return -jnp.abs(action - (1.0 + sign))
    best = jnp.stack([1.2 * sign, 5.0 - 3.0 * sign], -1)
    return -jnp.mean(jnp.square((action - best) / jnp.array([2.0, 5.0])), -1)


def one_step_loop(agent: Agent, kind: str, iterations: int, state, key):
    """Train on episodes of one step, off-policy agents on random actions, on-policy agents on their own; returns the state."""
    shape = (8, 16)
    anything = jax.vmap(jax.vmap(ACTIONS[kind].sample))

    def iterate(carry, _):
        state, key = carry
        key, observe_key, act_key, update_key = jax.random.split(key, 4)
        sign = jax.random.rademacher(observe_key, (*shape, 1), jnp.float32)
        observation = jnp.broadcast_to(sign, (*shape, 3))
        if agent.on_policy:
            action = agent.act(state, observation, act_key, True)
        else:
            action = anything(jax.random.split(act_key, shape))
        reward = one_step_reward(kind, observation, action)
        ended = jnp.ones(shape, bool)
        rollout = Experience(observation, action, reward, ended, ~ended, observation)
        state, _ = agent.update(state, batch_for(agent, rollout), update_key)
        return (agent.observe(state, rollout), key), None

    return jax.lax.scan(iterate, (state, key), None, iterations)[0][0]
