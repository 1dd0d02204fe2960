"""What the tests of the environments share: a compiled roll-out, and small environments with awkward properties."""

import jax
import jax.numpy as jnp

from environments import Environment
from environments.adapters import first_step, single_step
from jaxrl.spaces import Box, Discrete, zeros


def still(env, key):
    """An action of zeros, with the lanes of a vectorised environment."""
    return zeros(env.action_space, () if env.num_envs is None else (env.num_envs,))


def uniform(env, key):
    """Actions drawn from the action space."""
    if env.num_envs is None:
        return env.action_space.sample(key)
    return jax.vmap(env.action_space.sample)(jax.random.split(key, env.num_envs))


def roll(env, steps, seed=0, policy=still):
    """Reset and scan: the first step, the steps [T, …] and the last state, under jit and the key-reuse checker."""

    @jax.jit
    def run(key):
        reset_key, scan_key = jax.random.split(key)

        def body(carry, key):
            action_key, step_key = jax.random.split(key)
            new = env.step(carry[0], policy(env, action_key), step_key)
            return new, new[1]

        state, first = env.reset(reset_key)
        (state, _), steps_taken = jax.lax.scan(body, (state, first), jax.random.split(scan_key, steps))
        return first, steps_taken, state

    with jax.debug_key_reuse(True):
        return run(jax.random.key(seed))


def shapes(tree):
    return jax.tree.map(lambda leaf: (jnp.shape(leaf), jnp.asarray(leaf).dtype), tree)


def keyed(limit=3):
    """An environment whose state carries a typed key that every step splits; observes what it draws with it."""

    def reset(key):
        own, draw = jax.random.split(key)
        return (own, jnp.zeros((), jnp.int32)), first_step(jax.random.uniform(draw, (1,)))

    def step(state, action, key):
        own, draw = jax.random.split(state[0])
        time = state[1] + 1
        return (own, time), single_step(jax.random.uniform(draw, (1,)), 1.0, time >= limit)

    return Environment("test:keyed", reset, step, Box(0.0, 1.0, (1,)), Discrete(2))


def dictionary():
    """Observes an image, a vector and a category; ends at the third step."""
    space = {"pixels": Box(0, 255, (2, 2), jnp.uint8), "b": Box(-1.0, 1.0, (3,)), "category": Discrete(4)}

    def observe(time):
        return {
            "pixels": jnp.full((2, 2), 10 * time, jnp.uint8),
            "b": jnp.array([0.1, 0.2, 0.3], jnp.float32),
            "category": jnp.asarray(time, jnp.int32),
        }

    def reset(key):
        return jnp.zeros((), jnp.int32), first_step(observe(0))

    def step(time, action, key):
        return time + 1, single_step(observe(time + 1), 1.0, time + 1 >= 3)

    return Environment("test:dictionary", reset, step, space, Discrete(2))
