"""The smallest agents and loops that the training tests need."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import environments
from environments import wrappers
from jaxrl import agents, samplers
from jaxrl.agents import brc, dqn, fast_td3, ppo, sac, simba_v2, td3
from jaxrl.agents.base import Agent
from jaxrl.training import OffPolicy, OnPolicy, compile_program, off_policy, on_policy

CONFIGS = {
    "ppo": ppo.Config(hidden_sizes=(8,), epochs=2, minibatches=2, normalise_observations=True),
    "dqn": dqn.Config(hidden_sizes=(8,), normalise_observations=True),
    "sac": sac.Config(hidden_sizes=(8,), normalise_observations=True),
    "td3": td3.Config(hidden_sizes=(8,), normalise_observations=True),
    "fast_td3": fast_td3.Config(actor_hidden_sizes=(8,), critic_hidden_sizes=(8,), num_bins=11),
    "simba_v2": simba_v2.Config(actor_width=8, critic_width=8, critic_blocks=1, num_bins=11, followed_envs=4),
    "brc": brc.Config(
        actor_width=8, critic_width=8, critic_depth=1, num_bins=11, followed_envs=4, normalise_observations=True
    ),
}
ENVIRONMENTS = {name: "toy:chain" if name == "dqn" else "toy:point_mass" for name in CONFIGS}
ON_POLICY = OnPolicy(num_envs=4, unroll=8)
OFF_POLICY = OffPolicy(num_envs=4, unroll=2, updates=2, batch_size=8, capacity=64, warmup=16)


def program(name: str, seeds=(0,), population=False, env=None, loop=None, config=None, **options):
    """A tiny program of a registered agent on a toy."""
    single = environments.make(env or ENVIRONMENTS[name])
    agent = agents.make_agent(config or CONFIGS[name], single.observation_space, single.action_space)
    if agent.on_policy:
        made = on_policy(agent, loop or ON_POLICY)
    else:
        settings = loop or OFF_POLICY
        made = off_policy(agent, samplers.uniform(length=settings.n_step), single.action_space, settings)
    vector = wrappers.vectorise(single, made.num_envs)
    options = {"episodes": 4, "max_steps": 20} | options
    return compile_program(made, agent, vector, single, seeds=list(seeds), population=population, **options)


class Discount(NamedTuple):
    discount: jax.Array


class NoState(NamedTuple):
    hyper: tuple = ()
    params: tuple = ()


def gaussian_agent(size: int) -> Agent:
    """Acts N(0, 1) when it explores and 0 when it does not; learns nothing."""
    return Agent("gaussian", lambda key: NoState(), partial(_gaussian, size), lambda state, _: state, None)


def _gaussian(size, state, observation, key, explore):
    leading = jax.tree.leaves(observation)[0].shape[:1]
    shape = (*leading, size)
    return jax.random.normal(key, shape) if explore else jnp.zeros(shape)


def assert_same_bits(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))
