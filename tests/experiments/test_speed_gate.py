"""Ratios that a regression would break, each against a yardstick timed by turns in the same run; never seconds.

Bounds are wide: the least of many turns is compared, since what other processes do can only add to a time.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments import replay_speed
from experiments.benchmarking.ours import ppo_config, sac_updates
from experiments.benchmarking.sizes import Sizes
from experiments.measuring import alternate
from experiments.setup import build
from jaxrl import samplers
from jaxrl.training.loop import iterate

SIZES = vars(Sizes(num_envs=16, unroll=32, minibatches=2, epochs=2, episodes=2, loop_iterations=20))


def least(sides, turns=9, apart=3):
    """The ratios' smallest times; measured again where a busy machine may have spoilt them."""
    best: dict[str, float] = {}
    for _ in range(apart):
        for name, times in alternate(sides, turns).items():
            best[name] = min([*times, best.get(name, np.inf)])
    return best


def test_a_full_storage_costs_what_an_empty_one_does():
    full, empty = (replay_speed.our_rounds(samplers.uniform(), 2**16, 50, full=full) for full in (True, False))
    small = replay_speed.our_rounds(samplers.uniform(), 2**12, 50)
    best = least({"full": full, "empty": empty, "small": small})
    assert best["full"] < 3 * best["empty"], best
    assert best["full"] < 8 * best["small"], best  # sixteen times the rows


def test_replay_keeps_up_with_numpy():
    ours = replay_speed.our_rounds(samplers.uniform(), 2**14, 50)
    best = least({"ours": ours, "numpy": replay_speed.numpy_rounds(2**14, 50)})
    assert best["ours"] < 5 * best["numpy"], best


def test_the_program_costs_what_its_iterations_do():
    built = build(ppo_config(SIZES))
    vector_env = partial(iterate, built.loop, vector(built))
    bare_program = jax.jit(lambda state: jax.lax.fori_loop(0, 10, lambda i, s: vector_env(s, i)[0], state))
    program, state = built.program, [built.program.init()]
    bare_state = [jax.tree.map(jnp.copy, state[0])]

    def ours():
        state[0], _ = jax.block_until_ready(program.advance(state[0], 0, 10))

    def bare():
        bare_state[0] = jax.block_until_ready(bare_program(bare_state[0]))

    best = least({"ours": ours, "bare": bare})
    assert best["ours"] < 1.5 * best["bare"], best


def vector(built):
    from environments import wrappers

    return wrappers.vectorise(built.env, built.loop.num_envs)


@pytest.mark.parametrize("batch_size", [256])
def test_an_update_of_sac_costs_a_few_bare_networks(batch_size):
    sizes = vars(Sizes(batch_size=batch_size, pool=4, sac_hidden=(128, 128)))
    program, carry = sac_updates(sizes)
    bare_program, bare_carry = bare_network(17 + 6, 128, batch_size)
    held, bare_held = [carry], [bare_carry]

    def ours():
        held[0] = jax.block_until_ready(program(held[0], 20))

    def bare():
        bare_held[0] = jax.block_until_ready(bare_program(bare_held[0], 20))

    best = least({"ours": ours, "bare": bare})
    # Three networks learn (a policy and two critics), two targets and a policy's second action are only computed, and the
    # policy's gradient goes through both critics: the work of about seven networks' steps, and no more than twice that.
    assert best["ours"] < 16 * best["bare"], best


def bare_network(inputs, width, batch_size):
    """Steps of Adam on one network of two hidden layers, written out by hand."""
    shapes = ((inputs, width), (width, width), (width, 1))
    keys = jax.random.split(jax.random.key(0), 4)
    weights = [0.1 * jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=False)]
    biases = [jnp.zeros(shape[1]) for shape in shapes]
    x, optimiser = jax.random.normal(keys[3], (batch_size, inputs)), optax.adam(1e-3)

    def loss(params, x):
        weights, biases = params
        hidden = jax.nn.relu(x @ weights[0] + biases[0])
        hidden = jax.nn.relu(hidden @ weights[1] + biases[1])
        return jnp.mean((hidden @ weights[2] + biases[2] - 1.0) ** 2)

    def one(i, carry):
        params, moments, x = carry
        gradients = jax.grad(loss)(params, x + i * 1e-6)
        updates, moments = optimiser.update(gradients, moments)
        return optax.apply_updates(params, updates), moments, x

    program = jax.jit(lambda carry, count: jax.lax.fori_loop(0, count, one, carry), donate_argnums=0)
    params = (weights, biases)
    return program, (params, optimiser.init(params), x)
