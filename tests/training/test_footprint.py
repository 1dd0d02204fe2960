"""Bytes worked out by hand on small functions, and against a compiled program where the state outweighs the rest."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import environments
from environments import wrappers
from jaxrl import agents, samplers
from jaxrl.training import OffPolicy, make_plan, make_schedule, off_policy
from jaxrl.training.footprint import nbytes, peak
from jaxrl.training.loop import iterate
from jaxrl.training.program import advance
from tests.training import toy

X = jax.ShapeDtypeStruct((100, 10), jnp.float32)
W = jax.ShapeDtypeStruct((10, 10), jnp.float32)


def bytes_of(function, *shapes):
    return peak(jax.make_jaxpr(function)(*shapes).jaxpr)


def test_what_is_fused_takes_nothing_and_what_is_multiplied_is_stored():
    assert bytes_of(lambda x: jnp.sum(jnp.exp(x) * 2 + 1), X) == 4  # only the sum
    # Two layers: a product, its tanh (which the next product reads), and then both go before the next pair.
    assert bytes_of(lambda x, w: jnp.sum(jnp.tanh(x @ w)), X, W) == 4000 + 4
    assert bytes_of(lambda x, w: jnp.tanh(x @ w) @ w, X, W) == 2 * 4000


def test_an_array_lives_until_its_last_reader():
    def chain(x, w):
        a = x @ w
        b = a @ w
        c = b @ w  # a is gone by now
        return jnp.sum(c)

    assert bytes_of(chain, X, W) == 2 * 4000

    def keep(x, w):
        a = x @ w
        return jnp.sum((a @ w) @ w + a)  # a, a w and a w w at once

    assert bytes_of(keep, X, W) == 3 * 4000


def test_loops_carry_in_place_and_stack_what_they_return():
    def body(carry, _):
        return jnp.sin(carry), carry

    assert bytes_of(lambda x: jax.lax.scan(body, x, None, length=5)[1], X) == 5 * 4000 + 4000
    assert bytes_of(lambda x: jax.lax.fori_loop(0, 5, lambda i, c: c.at[i].set(1.0), x), X) < 1000


def compiled_advance(program, settings):
    env = environments.make("toy:point_mass")
    agent = agents.make_agent(toy.CONFIGS["sac"], env.observation_space, env.action_space)
    loop = off_policy(agent, samplers.uniform(length=1), env.action_space, settings)
    step = partial(iterate, loop, wrappers.vectorise(env, settings.num_envs))
    i = np.int32(0)
    return jax.jit(partial(advance, step, False), donate_argnums=0).lower(program.template(), i, i).compile()


def test_plan_of_a_large_replay_is_within_a_tenth_of_what_the_compiler_takes():
    loop = OffPolicy(num_envs=4, unroll=1, updates=1, batch_size=32, capacity=2**16, warmup=64)
    program = toy.program("sac", loop=loop)
    planned = make_plan(program, make_schedule(400, 4)[0]).total_memory
    compiled = compiled_advance(program, loop).memory_analysis()
    used = compiled.argument_size_in_bytes + compiled.output_size_in_bytes + compiled.temp_size_in_bytes
    used -= compiled.alias_size_in_bytes
    assert abs(planned / used - 1) < 0.1
    assert nbytes(program.template().replay) > 0.8 * used
