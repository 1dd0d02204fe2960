"""Bytes worked out by hand on small functions, and against compiled programs."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import environments
from environments import wrappers
from jaxrl import agents, samplers
from jaxrl.agents import dqn, fast_td3, ppo, sac
from jaxrl.training import OffPolicy, OnPolicy, make_plan, make_schedule, off_policy, on_policy
from jaxrl.training.footprint import nbytes, peak
from jaxrl.training.loop import iterate
from jaxrl.training.program import advance
from tests.training import toy

X = jax.ShapeDtypeStruct((100, 10), jnp.float32)  # 4,000 bytes
W = jax.ShapeDtypeStruct((10, 10), jnp.float32)
C = jax.ShapeDtypeStruct((40,), jnp.float32)


def bytes_of(function, *shapes, on_cpu=False):
    return peak(jax.make_jaxpr(function)(*shapes).jaxpr, on_cpu)


def test_what_is_fused_takes_nothing_and_what_is_multiplied_is_stored():
    assert bytes_of(lambda x: jnp.max(jnp.exp(x) * 2 + 1), X) == 4  # only the maximum
    # Two layers: a product and its tanh, which the next product reads; then the tanh and the second product.
    assert bytes_of(lambda x, w: jnp.tanh(x @ w) @ w, X, W) == 2 * 4000


def test_what_is_dear_is_computed_once_and_what_is_cheap_again():
    both = lambda f: lambda x: (jnp.max(f(x), axis=0), jnp.min(f(x) * x, axis=1))
    assert bytes_of(both(lambda x: x + 1), X) == 40 + 400

    def shared(x):
        y = jnp.exp(x)
        return jnp.max(y, axis=0), jnp.min(y * x, axis=1)

    assert bytes_of(shared, X) == 4000 + 40 + 400


def test_an_array_lives_until_its_last_reader():
    def chain(x, w):
        a = x @ w
        b = a @ w
        c = b @ w  # a is gone by now
        return jnp.max(c)

    assert bytes_of(chain, X, W) == 2 * 4000

    def keep(x, w):
        a = x @ w
        return jnp.max((a @ w) @ w + a)  # a, a w and a w w at once

    assert bytes_of(keep, X, W) == 3 * 4000


def test_a_backward_pass_keeps_what_the_forward_pass_made():
    def loss(w, x):
        return jnp.mean(jnp.tanh(jnp.tanh(x @ w) @ w))

    # At the first layer's gradient: its tanh, kept from the forward pass, the gradient behind the second product, that
    # in front of it, and the second product's share of the gradient of w. Derivatives of tanh are computed where they
    # are read.
    assert bytes_of(jax.grad(loss), W, X) == 3 * 4000 + 400


def test_loops_carry_in_place_and_stack_what_they_return():
    def body(carry, _):
        return jnp.sin(carry), carry

    # What is stacked, and the new carry, which cannot be written over the old one before that is stacked.
    assert bytes_of(lambda x: jax.lax.scan(body, x, None, length=5)[1], X) == 5 * 4000 + 4000
    assert bytes_of(lambda x: jax.lax.fori_loop(0, 5, lambda i, c: c.at[i].set(1.0), x), X) < 1000

    def read_again(x):
        return (
            jax.lax.fori_loop(0, 5, lambda i, c: jnp.sin(c), x) + x
        )  # the argument is still needed: a copy, and the sum

    assert 2 * 4000 <= bytes_of(read_again, X) < 2 * 4000 + 100

    def crossed(c, i):
        a, b = c
        return (jnp.sin(b) * jnp.max(a), jnp.cos(a)), None  # the new a cannot replace a, which the new b reads

    assert bytes_of(lambda x, y: jax.lax.scan(crossed, (x, y), None, length=5)[0], X, X) == 4000 + 4


def test_branches_share_memory_and_a_scanned_slice_costs_nothing():
    def branch(x, w):
        return jax.lax.cond(x[0, 0] > 0, lambda: jnp.max((x @ w) @ w), lambda: jnp.min(((x @ w) @ w) @ w))

    assert 2 * 4000 <= bytes_of(branch, X, W) < 2 * 4000 + 20
    total = lambda x: jax.lax.scan(lambda c, row: (c + jnp.max(row), None), 0.0, x)[0]
    assert bytes_of(total, X) < 20


def test_on_a_cpu_independent_chains_run_side_by_side():
    def two(x, w):
        one = jnp.max(((x @ w) @ w) @ w)
        return one + jnp.max(((x + 1) @ w @ w) @ w)

    in_turn, at_once = (bytes_of(two, X, W, on_cpu=on_cpu) for on_cpu in (False, True))
    assert in_turn == 2 * 4000 + 4  # the second chain beside the maximum of the first
    assert at_once == 3 * 4000  # one array of each chain, and the one that is being made


def test_on_a_cpu_a_sum_takes_in_the_products_that_lead_to_it():
    layers = lambda x, w: jnp.sum(jnp.tanh(x @ w) @ w, axis=-1)
    rows = jax.ShapeDtypeStruct((1000, 10), jnp.float32)
    assert bytes_of(layers, rows, W, on_cpu=True) == 4000
    assert bytes_of(layers, rows, W) == 2 * 40_000
    # A choice is not in the library: it has to be in memory before.
    chosen = lambda x, y: jnp.sum(jnp.where(x > 0, x, y), axis=-1)
    assert bytes_of(chosen, rows, rows, on_cpu=True) == 40_000 + 4000


SMALL = OffPolicy(num_envs=4, unroll=1, updates=1, batch_size=32, capacity=2**16, warmup=64)
PROGRAMS = {
    "sac_replay": ("sac", "toy:point_mass", SMALL, sac.Config(), 1),
    "ppo": ("ppo", "toy:point_mass", OnPolicy(64, 128), ppo.Config(), 1),
    "ppo_population": ("ppo", "gymnax:CartPole-v1", OnPolicy(32, 64), ppo.Config(), 8),
    "ppo_wide": ("ppo", "toy:point_mass", OnPolicy(256, 64), ppo.Config(hidden_sizes=(256, 256, 256)), 1),
    "sac_wide": (
        *("sac", "toy:point_mass", OffPolicy(16, 4, 4, 1024, 2**14, 1024)),
        *(sac.Config(hidden_sizes=(512, 512)), 1),
    ),
    "dqn": (
        *("dqn", "gymnax:CartPole-v1", OffPolicy(128, 8, 2, 512, 2**17, 1024)),
        *(dqn.Config(hidden_sizes=(256, 256)), 1),
    ),
    "fast_td3": ("fast_td3", "toy:point_mass", OffPolicy(128, 1, 2, 4096, 2**16, 4096), fast_td3.Config(), 1),
}
QUICK = ("ppo",)


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in PROGRAMS])
def test_plan_is_within_a_tenth_of_what_the_compiler_takes(name):
    """On a CPU. See docs/durable_runs.md for programs where it is worse."""
    kind, env, settings, config, members = PROGRAMS[name]
    options = {"env": env, "loop": settings, "config": config}
    program = toy.program(kind, seeds=range(members), population=members > 1, **options)
    planned = make_plan(program, make_schedule(400, program.steps_per_iteration)[0]).total_memory
    used = compiled_bytes(program, *PROGRAMS[name])
    assert abs(planned / used - 1) < 0.1, f"{planned:,} planned, {used:,} used"


def compiled_bytes(program, kind, env, settings, config, members):
    """What the compiler sets aside for the program that advances a run."""
    single = environments.make(env)
    agent = agents.make_agent(config, single.observation_space, single.action_space)
    if agent.on_policy:
        loop = on_policy(agent, settings)
    else:
        loop = off_policy(agent, samplers.uniform(length=1), single.action_space, settings)
    step = partial(iterate, loop, wrappers.vectorise(single, settings.num_envs))
    step = jax.vmap(step, in_axes=(0, None)) if members > 1 else step
    jitted = jax.jit(partial(advance, step, members > 1), donate_argnums=0)
    compiled = jitted.lower(program.template(), np.int32(0), np.int32(0)).compile().memory_analysis()
    size = compiled.argument_size_in_bytes + compiled.output_size_in_bytes + compiled.temp_size_in_bytes
    return size - compiled.alias_size_in_bytes


def test_large_replay_is_most_of_its_run():
    program = toy.program("sac", loop=SMALL)
    plan = make_plan(program, make_schedule(400, 4)[0])
    assert plan.memory["replay"] == nbytes(program.template().replay) > 0.8 * plan.total_memory
