"""The ring: what is written where, that nothing is copied, and that nothing is lost."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.errors import UsageError
from jaxrl.samplers import ring
from jaxrl.samplers.base import SampleInfo
from jaxrl.types import Experience
from tests.samplers.common import check_batch, example, steps

read = jax.jit(ring.window, static_argnums=3)
add_kept = jax.jit(ring.add)


def small(slots=8, num_envs=1, **kwargs):
    return ring.init(example(), slots * num_envs, num_envs, **kwargs)


def all_windows(storage, length):
    """Every window a lane holds, lane by lane, newest first."""
    lanes = ring.num_lanes(storage)
    held = np.broadcast_to(ring.held(storage), (lanes,))
    age = np.concatenate([np.arange(n - length + 1) for n in held]).astype(np.int32)
    lane = np.repeat(np.arange(lanes), held - length + 1).astype(np.int32)
    time = ring.start_slot(storage, age, length)
    return read(storage, time, lane, length), time, lane, age


def test_three_blocks_of_three_in_eight_slots():
    storage = small()
    for start in (0, 3, 6):
        storage = add_kept(storage, steps(start, 3, 1))
    np.testing.assert_array_equal(storage.rows.reward[:, 0], [8, 1, 2, 3, 4, 5, 6, 7])
    assert int(storage.cursor) == 1
    assert int(storage.filled) == int(ring.size(storage)) == 8


@pytest.mark.parametrize("block", [1, 2, 3, 5, 7, 8])
def test_blocks_that_divide_the_ring_or_not_equal_a_loop(block):
    storage, expected = small(num_envs=2), np.zeros((8, 2), np.float32)
    add = jax.jit(ring.add, donate_argnums=0)
    for turn in range(6):
        rows = steps(turn * block, block, 2)
        storage = add(storage, rows)
        for t in range(turn * block, (turn + 1) * block):
            expected[t % 8] = t
        np.testing.assert_array_equal(storage.rows.reward, expected)
        assert int(storage.cursor) == (turn + 1) * block % 8
        assert int(storage.filled) == min((turn + 1) * block, 8)


@pytest.mark.parametrize("next_observations", ring.NEXT_OBSERVATIONS)
def test_exactly_capacity_is_full_not_empty(next_observations):
    storage = ring.add(small(num_envs=3, next_observations=next_observations, finals_every=1), steps(0, 8, 3))
    assert int(ring.size(storage)) == 24
    batch, *_ = all_windows(storage, 1)
    np.testing.assert_array_equal(np.sort(batch.reward[:, 0]), np.repeat(np.arange(8), 3))


def test_dtypes_and_values_survive():
    original = Experience(
        observation={
            "image": jnp.full((4, 4), 200, jnp.uint8),
            "half": jnp.asarray([1.5, -2.0], jnp.bfloat16),
        },
        action=jnp.int32(2**24 + 1),
        reward=jnp.float32(0.1),
        terminated=jnp.bool_(True),
        truncated=jnp.bool_(False),
        next_observation={"image": jnp.full((4, 4), 255, jnp.uint8), "half": jnp.asarray([3.0, 4.0], jnp.bfloat16)},
    )
    for mode in ring.NEXT_OBSERVATIONS:
        storage = ring.init(original, 4, 1, next_observations=mode)
        storage = add_kept(storage, jax.tree.map(lambda leaf: leaf[None, None], original))
        found = read(storage, jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.int32), 1)
        for stored, given in zip(jax.tree.leaves(found), jax.tree.leaves(original), strict=True):
            assert stored.dtype == given.dtype
            np.testing.assert_array_equal(stored[0, 0], given)


@pytest.mark.parametrize("next_observations", ring.NEXT_OBSERVATIONS)
@pytest.mark.parametrize("block", [1, 3])
def test_the_compiled_add_holds_no_copy(next_observations, block):
    storage = small(slots=2**16, next_observations=next_observations)
    rows = steps(0, block, 1)
    compiled = jax.jit(ring.add, donate_argnums=0).lower(storage, rows).compile()
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes >= sum(leaf.nbytes for leaf in jax.tree.leaves(storage.rows))
    assert memory.temp_size_in_bytes < 4096
    # Nor does it pass over the storage: as much is moved for 2^16 slots as for 2^10.
    less = jax.jit(ring.add, donate_argnums=0).lower(small(2**10, next_observations=next_observations), rows).compile()
    assert not any(f"[{2**16},1" in line and "copy(" in line for line in compiled.as_text().splitlines())
    assert compiled.cost_analysis()["flops"] <= 1.5 * less.cost_analysis()["flops"]


def test_a_donated_storage_is_deleted_and_memory_stays_flat_over_a_thousand_adds():
    storage = small(slots=64)
    add = jax.jit(ring.add, donate_argnums=0)
    rows, old = steps(0, 3, 1), storage
    storage = add(storage, rows)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(old))
    pointers = {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(storage.rows)}
    live = len(jax.live_arrays())
    for _ in range(1000):
        storage = add(storage, rows)
    assert {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(storage.rows)} == pointers
    assert len(jax.live_arrays()) <= live


def test_derived_and_stored_next_observations_give_the_same_windows():
    rng = np.random.default_rng(0)
    table = rng.random((60, 3)) < 0.4

    def flags(t, lane):
        return table[t, lane], table[t, lane] & (t % 2 == 0)

    kept = small(num_envs=3)
    derived = small(num_envs=3, next_observations="derived", finals_every=1, length=3)
    start = 0
    while start < 40:
        block = int(rng.integers(1, 4))
        rows = steps(start, block, 3, flags)
        kept, derived = add_kept(kept, rows), add_kept(derived, rows)
        start += block
        for length in (1, 3):
            if start >= length:
                left, right = all_windows(kept, length), all_windows(derived, length)
                jax.tree.map(np.testing.assert_array_equal, left, right)
    assert derived.rows.next_observation is None


@pytest.mark.parametrize("block", [1, 2, 8])
def test_overflowing_last_observations_forget_the_oldest_episodes(block):
    """Eight slots, two last observations a lane; lane 0 ends at every step, lane 1 every fourth, lane 2 never."""

    def flags(t, lane):
        ends = (lane == 0) | ((lane == 1) & (t % 4 == 3))
        return ends, np.zeros_like(ends)

    storage = small(num_envs=3, next_observations="derived", finals_every=4)
    for start in range(0, 40, block):
        storage = add_kept(storage, steps(start, block, 3, flags))
        total = start + block
        wanted = [min(total, 2), min(total, 8), min(total, 8)]
        np.testing.assert_array_equal(ring.held(storage), wanted)
        assert int(ring.size(storage)) == sum(wanted)
        batch, _, lane, age = all_windows(storage, 1)
        np.testing.assert_array_equal(batch.reward[:, 0], total - 1 - age)
        ended, _ = flags(np.asarray(batch.action), lane[:, None])
        led = np.where(ended, -1 - batch.action, batch.action + 1)
        np.testing.assert_array_equal(batch.next_observation["observation"][..., 0], led)


def test_the_fold_of_the_episode_counter_changes_nothing():
    """Episodes are counted modulo twice the entries, so the counter cannot overflow; here it folds many times."""
    storage = small(num_envs=1, next_observations="derived", finals_every=2)
    for start in range(0, 200, 4):
        storage = add_kept(storage, steps(start, 4, 1))
        assert int(storage.finals.ended[0]) < 8
    batch, _, _, age = all_windows(storage, 2)
    assert int(ring.held(storage)[0]) == 8
    np.testing.assert_array_equal(batch.action[:, 0], 198 - age)


def test_derived_holds_image_observations_once():
    image = example()._replace(
        observation=jnp.zeros((32, 32), jnp.uint8), next_observation=jnp.zeros((32, 32), jnp.uint8)
    )

    def nbytes(mode):
        return sum(leaf.nbytes for leaf in jax.tree.leaves(ring.init(image, 1024, 1, next_observations=mode)))

    assert nbytes("derived") < 0.6 * nbytes("stored")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"capacity": 1000, "num_envs": 64}, "use 960 or 1024"),
        ({"capacity": 3, "num_envs": 4}, "use 4"),
        ({"capacity": 0, "num_envs": 1}, "use 1"),
        ({"capacity": 16, "num_envs": 8, "length": 5}, "use a length of at most 2, or a capacity of at least 40"),
        ({"capacity": 16, "length": 0}, "use 1"),
        ({"capacity": 16, "num_envs": 0}, "at least 1"),
        ({"capacity": 16, "next_observations": "twice"}, "'stored' or 'derived'"),
        ({"capacity": 16, "next_observations": "derived", "finals_every": 0}, "at least 1"),
    ],
)
def test_what_cannot_work_is_refused(arguments, says):
    with pytest.raises(UsageError, match=says):
        ring.init(example(), **arguments)


def test_blocks_that_do_not_fit_are_refused():
    for mode in ring.NEXT_OBSERVATIONS:
        storage = small(slots=8, num_envs=2, next_observations=mode)
        with pytest.raises(UsageError, match="at most 8 at once, or use a capacity of at least 18"):
            ring.add(storage, steps(0, 9, 2))
        with pytest.raises(UsageError, match="has shape"):
            ring.add(storage, steps(0, 1, 3))
        rows = steps(0, 1, 2)
        with pytest.raises(UsageError, match=r"reward is bfloat16, the storage keeps float32"):
            ring.add(storage, rows._replace(reward=rows.reward.astype(jnp.bfloat16)))
        with pytest.raises(UsageError, match="structure"):
            ring.add(storage, rows._replace(action=(rows.action, rows.action)))


def test_a_window_read_by_slot_is_what_was_added():
    storage = ring.add(small(num_envs=2), steps(0, 8, 2))
    storage = ring.add(storage, steps(8, 3, 2))
    batch, time, lane, age = all_windows(storage, 3)
    info = SampleInfo(time, lane, age, np.ones(len(lane)))
    check_batch(batch, info, total=11, slots=8, num_envs=2, length=3)
