"""What holds for every sampler, whatever was added: one lane and many, single steps and windows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.samplers.common import FACTORIES, check_batch, compiled, example, steps

SLOTS, BATCH = 7, 64
# (lanes, length, how next observations are kept, steps an add); finals_every=1 keeps every last observation.
LAYOUTS = [(1, 3, "stored", 1), (3, 2, "derived", 3)]
quick = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@functools.cache
def block(start, count, lanes):
    return steps(start, count, lanes)


def filled(name, lanes, length, mode, counts):
    sampler = compiled(name, length, mode, 1)
    storage, total = sampler.init(example(), SLOTS * lanes, lanes), 0
    for count in counts:
        storage = sampler.add(storage, block(total, count, lanes))
        total += count
    return sampler, storage, total


@pytest.mark.parametrize(("lanes", "length", "mode", "count"), LAYOUTS)
@pytest.mark.parametrize("name", FACTORIES)
@quick
@given(data=st.data())
def test_batches_hold_what_was_added(name, lanes, length, mode, count, data):
    adds = data.draw(st.integers(-(-length // count), 25 // count), label="adds")
    sampler, storage, total = filled(name, lanes, length, mode, [count] * adds)
    assert int(sampler.size(storage)) == min(total, SLOTS) * lanes
    key = jax.random.key(data.draw(st.integers(0, 2**16), label="seed"))
    batch, info = sampler.sample(storage, key, BATCH)
    check_batch(batch, info, total, SLOTS, lanes, length)
    # New priorities, of any kind, and more steps change nothing of this.
    priority = data.draw(st.sampled_from([0.0, 1e-9, 1.0, 1e9, np.inf, np.nan, -1.0]), label="priority")
    storage = sampler.add(storage, block(total, count, lanes))
    storage = sampler.update_priority(storage, info, np.full(BATCH, priority, np.float32))
    batch, info = sampler.sample(storage, key, BATCH)
    check_batch(batch, info, total + count, SLOTS, lanes, length)


@pytest.mark.parametrize("name", FACTORIES)
def test_every_window_of_a_full_ring_is_drawn(name):
    sampler, storage, total = filled(name, 1, 3, "stored", [1] * 10)
    drawn = [sampler.sample(storage, jax.random.key(seed), BATCH)[1].age for seed in range(12)]
    ages = set(np.concatenate(drawn).tolist())
    assert ages <= set(range(5))
    assert ages == set(range(5)) or name == "window"
    assert total == 10


@pytest.mark.parametrize("name", FACTORIES)
def test_before_a_window_is_complete_every_weight_is_zero(name):
    sampler, storage, _ = filled(name, 1, 3, "stored", [])
    for count in (0, 1, 1):
        storage = sampler.add(storage, block(0, 1, 1)) if count else storage
        _, info = sampler.sample(storage, jax.random.key(0), BATCH)
        np.testing.assert_array_equal(info.weight, 0)


@pytest.mark.parametrize("name", FACTORIES)
def test_a_storage_survives_flattening(name):
    sampler, storage, _ = filled(name, 3, 2, "derived", [3, 3, 3])
    leaves, structure = jax.tree.flatten(storage)
    loaded = jax.tree.unflatten(structure, [jnp.asarray(np.array(leaf)) for leaf in leaves])
    assert [leaf.dtype for leaf in leaves] == [leaf.dtype for leaf in jax.tree.leaves(loaded)]
    for turn in range(2):
        drawn = [sampler.sample(each, jax.random.key(turn), BATCH) for each in (storage, loaded)]
        jax.tree.map(np.testing.assert_array_equal, *drawn)
        storage, loaded = (sampler.add(each, block(9 + 3 * turn, 3, 3)) for each in (storage, loaded))


@pytest.mark.parametrize("name", FACTORIES)
def test_a_population_equals_its_members(name):
    sampler, storage, _ = filled(name, 3, 2, "derived", [3, 3, 3])
    other = filled(name, 3, 2, "derived", [3])[1]
    population = jax.tree.map(lambda *leaves: jnp.stack(leaves), storage, other)
    keys = jax.random.split(jax.random.key(0), 2)
    rows = block(9, 3, 3)

    def life(storage, key):
        storage = sampler.add(storage, rows)
        batch, info = sampler.sample(storage, key, BATCH)
        return sampler.update_priority(storage, info, jnp.abs(batch.reward[:, 0])), batch, info

    together = jax.jit(jax.vmap(life))(population, keys)
    for member, start in enumerate((storage, other)):
        alone = life(start, keys[member])
        jax.tree.map(lambda a, b, member=member: np.testing.assert_allclose(a[member], b, rtol=1e-6), together, alone)


@pytest.mark.parametrize("name", FACTORIES)
def test_every_key_is_used_once(name, key_reuse_checked):
    sampler, storage, _ = filled(name, 3, 2, "derived", [3])
    sampler = FACTORIES[name](length=2, next_observations="derived", finals_every=1)
    jax.block_until_ready(jax.jit(sampler.sample, static_argnums=2)(storage, jax.random.key(0), BATCH))


@pytest.mark.parametrize("name", ["proportional", "ranked", "combined", "hindsight"])
def test_compiled_writes_hold_no_copy(name):
    """2^16 rows are at least 256 KiB an array; in place, an add and an update of priorities need next to nothing."""
    sampler, rows = FACTORIES[name](length=2), block(0, 3, 1)
    storage = jax.eval_shape(lambda: sampler.init(example(), 2**16, 1))
    _, info = jax.eval_shape(lambda storage, key: sampler.sample(storage, key, 64), storage, jax.random.key(0))
    for function, arguments in ((sampler.add, (rows,)), (sampler.update_priority, (info, info.weight))):
        compiled_function = jax.jit(function, donate_argnums=0).lower(storage, *arguments).compile()
        assert compiled_function.memory_analysis().temp_size_in_bytes < 2**16


@pytest.mark.parametrize("name", ["uniform", "truncated_geometric", "newest_mixture", "ranked", "combined"])
def test_drawing_does_not_depend_on_the_capacity(name):
    """From 2^20 rows as from 2^14: no permutation, no table. Counted in operations, not in seconds."""
    sampler = FACTORIES[name](length=1)
    costs = {}
    for capacity in (2**14, 2**20):
        storage = jax.eval_shape(lambda capacity=capacity: sampler.init(example(), capacity, 1))
        key = jax.eval_shape(lambda: jax.random.key(0))
        lowered = jax.jit(sampler.sample, static_argnums=2).lower(storage, key, 256)
        costs[capacity] = lowered.cost_analysis()["flops"]
    assert 0 < costs[2**20] <= 3 * costs[2**14]
