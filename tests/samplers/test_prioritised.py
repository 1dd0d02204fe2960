"""Priorities: the tree that draws by mass, what is written where, and the combination with age."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxrl import samplers
from jaxrl.errors import UsageError
from jaxrl.samplers import SampleInfo, sum_tree
from tests.samplers.common import check_batch, example, steps

draw_many = jax.jit(sum_tree.draw, static_argnums=2)


def test_a_small_tree_by_hand():
    tree = sum_tree.build(jnp.arange(1.0, 19.0))
    assert [level.shape[0] for level in tree] == [32, 16]
    np.testing.assert_array_equal(tree[1][:3], [136, 35, 0])  # 1 + … + 16, and 17 + 18
    tree = sum_tree.update(tree, jnp.array([0, 17, 17, 32]), jnp.array([5.0, 8.0, 8.0, 99.0]))
    np.testing.assert_array_equal(tree[1][:3], [140, 25, 0])  # 32 is out of range


def test_a_range_that_wraps_equals_a_tree_built_anew():
    rng = np.random.default_rng(0)
    update = jax.jit(sum_tree.update_range, static_argnums=3)
    for leaves in (18, 256, 300):
        masses = rng.random(leaves).astype(np.float32)
        tree = sum_tree.build(jnp.asarray(masses))
        for count in (1, 13, 18):
            for start in rng.integers(0, leaves, 6):
                new = rng.random(count).astype(np.float32)
                masses[(start + np.arange(count)) % leaves] = new
                tree = update(tree, jnp.int32(start), new, leaves)
            for left, right in zip(tree, sum_tree.build(jnp.asarray(masses)), strict=True):
                np.testing.assert_allclose(left, right, rtol=1e-6)


def test_draws_are_in_proportion_to_mass():
    masses = np.random.default_rng(1).gamma(0.5, size=700).astype(np.float32)
    masses[::7] = 0
    leaf = draw_many(sum_tree.build(jnp.asarray(masses)), jax.random.key(0), 200_000)
    counts = np.bincount(leaf, minlength=700)
    assert counts[masses == 0].sum() == 0
    seen = masses > 0
    # Stratification makes the statistic smaller than chance would; it must not be larger.
    expected = masses[seen].astype(np.float64) / masses[seen].sum(dtype=np.float64) * 200_000
    assert ((counts[seen] - expected) ** 2 / expected).sum() < stats.chi2(seen.sum() - 1).isf(1e-3)


def test_draws_are_stratified():
    """256 equal masses in a batch of 256: each exactly once."""
    leaf = draw_many(sum_tree.build(jnp.ones(256)), jax.random.key(0), 256)
    np.testing.assert_array_equal(np.sort(leaf), np.arange(256))


def test_a_draw_never_runs_past_the_last_mass():
    """A fraction that rounds up to 1 still ends at a leaf with mass, not in the empty ones behind it."""
    level = jnp.zeros(16).at[jnp.array([2, 5])].set(jnp.array([1.0, 2.0]))
    fraction = jnp.array([0.0, 0.3, 0.4, 1.0])
    child, rest = sum_tree._choose(level, jnp.zeros(4, jnp.int32), fraction)
    np.testing.assert_array_equal(child, [2, 2, 5, 5])
    np.testing.assert_allclose(rest, [0, 0.9, 0.1, 1], atol=1e-6)


def test_more_leaves_than_a_float32_can_name_are_drawn_alike():
    """With one 24-bit uniform, of three neighbours among 12 million the first would be drawn twice as often."""
    leaves = 3 * 2**22
    leaf = np.asarray(draw_many(sum_tree.build(jnp.ones(leaves)), jax.random.key(0), 2**19))
    np.testing.assert_allclose(np.bincount(leaf[leaf > leaves // 2] % 3) / (leaf > leaves // 2).sum(), 1 / 3, atol=0.01)


def test_float32_is_enough_at_two_to_the_twenty():
    """No drift over 10,000 updates, no unset row in a million draws, and neighbours are told apart."""
    leaves, rng = 2**20, np.random.default_rng(0)
    masses = rng.uniform(0.1, 5, leaves).astype(np.float32)
    masses[leaves // 2 :] = 0

    def update(tree, key):
        where, what = jax.random.split(key)
        leaf = jax.random.randint(where, (256,), 0, leaves // 2)
        # A leaf named twice must get one mass, so the mass follows from the leaf and the turn.
        mass = 0.1 + 4.9 * (((leaf * 40503) % 65536) / 65536 + jax.random.uniform(what)) % 1.0
        return sum_tree.update(tree, leaf, mass), None

    keys = jax.random.split(jax.random.key(0), 10_000)
    tree, _ = jax.jit(lambda tree, keys: jax.lax.scan(update, tree, keys))(sum_tree.build(jnp.asarray(masses)), keys)
    exact = np.asarray(tree[0]).sum(dtype=np.float64)
    assert abs(float(sum_tree.total(tree)) - exact) / exact < 1e-4
    leaf = np.asarray(draw_many(tree, jax.random.key(1), 10**6))
    assert leaf.min() >= 0 and leaf.max() < leaves // 2
    counts = np.bincount(leaf % 16, weights=1 / np.asarray(tree[0])[leaf], minlength=16)
    np.testing.assert_allclose(counts / counts.mean(), 1, atol=0.03)


def one_lane(slots=8, rows=8, lanes=1, **kwargs):
    sampler = samplers.proportional(**kwargs)
    storage = sampler.init(example(), slots * lanes, lanes)
    if rows:
        storage = sampler.add(storage, steps(0, rows, lanes))
    return sampler, storage


def info_for(storage, slots, lane=0, length=1):
    time = jnp.asarray(slots, jnp.int32)
    age = (storage.ring.cursor - length - time) % storage.priority.shape[0]
    return SampleInfo(time, jnp.full(time.shape, lane, jnp.int32), age, jnp.ones(time.shape))


def test_new_rows_get_the_running_maximum():
    sampler, storage = one_lane(rows=4)
    np.testing.assert_array_equal(storage.priority[:, 0], [1, 1, 1, 1, 0, 0, 0, 0])
    storage = sampler.update_priority(storage, info_for(storage, [1, 2]), jnp.array([2.7, 0.5]))
    storage = sampler.add(storage, steps(4, 1, 1))
    np.testing.assert_array_equal(storage.priority[:, 0], np.float32([1, 2.7, 0.5, 1, 2.7, 0, 0, 0]))
    # The maximum is a running one: it outlives the row that set it.
    storage = sampler.update_priority(storage, info_for(storage, [1, 4]), jnp.array([0.1, 0.1]))
    storage = sampler.add(storage, steps(5, 1, 1))
    assert float(storage.priority[5, 0]) == np.float32(2.7)


def test_proportions_and_importance_weights():
    """Priorities 1, 4, 9 under exponent .5 are drawn 1 : 2 : 3; full correction weighs 1 : 1/2 : 1/3."""
    sampler, storage = one_lane(slots=3, rows=3, exponent=0.5, importance=1.0)
    storage = sampler.update_priority(storage, info_for(storage, [0, 1, 2]), jnp.array([1.0, 4.0, 9.0]))
    _, info = sampler.sample(storage, jax.random.key(0), 60_000)
    np.testing.assert_allclose(np.bincount(info.time) / 60_000, [1 / 6, 2 / 6, 3 / 6], atol=1e-3)
    weights = [float(info.weight[info.time == slot][0]) for slot in range(3)]
    np.testing.assert_allclose(weights, [1, 1 / 2, 1 / 3], rtol=1e-6)
    none = storage._replace(importance=jnp.float32(0.0))
    np.testing.assert_array_equal(sampler.sample(none, jax.random.key(0), 32)[1].weight, 1)


def test_of_a_row_drawn_twice_the_larger_priority_counts():
    for order in ([3.0, 2.0, 5.0], [5.0, 3.0, 2.0]):
        sampler, storage = one_lane()
        storage = sampler.update_priority(storage, info_for(storage, [6, 6, 6]), jnp.array(order))
        assert float(storage.priority[6, 0]) == 5
        np.testing.assert_allclose(storage.tree[0][6], 5**0.6, rtol=1e-6)
        np.testing.assert_allclose(sum_tree.total(storage.tree), 7 + 5**0.6, rtol=1e-6)


def test_bad_priorities_become_the_maximum_and_are_counted():
    sampler, storage = one_lane()
    storage = sampler.update_priority(storage, info_for(storage, [0]), jnp.array([3.0]))
    bad = jnp.array([-1.0, jnp.nan, jnp.inf, 0.0])
    storage = sampler.update_priority(storage, info_for(storage, [1, 2, 3, 4]), bad)
    np.testing.assert_array_equal(storage.priority[:, 0], np.float32([3, 3, 3, 3, 1e-6, 1, 1, 1]))
    assert int(storage.bad_priorities) == 3
    assert float(storage.largest) == 3


def test_a_row_overwritten_since_it_was_drawn_keeps_its_new_priority():
    for length in (1, 3):
        sampler, storage = one_lane(length=length)
        info = info_for(storage, [0, 2, 5], length=length)
        storage = sampler.add(storage, steps(8, 1, 1))
        storage = sampler.update_priority(storage, info, jnp.array([50.0, 60.0, 70.0]))
        wanted = {1: [1, 1, 60, 1, 1, 70, 1, 1], 3: [0, 1, 60, 1, 1, 70, 1, 0]}[length]
        np.testing.assert_array_equal(storage.priority[:, 0], wanted)
        # The next rows overwrite slots 1 and 2; 70 is the maximum that was given.
        storage = sampler.add(storage, steps(9, 2, 1))
        storage = sampler.update_priority(storage, info, jnp.array([1.0, 2.0, 3.0]))
        wanted = {1: [1, 70, 70, 1, 1, 3, 1, 1], 3: [70, 0, 0, 1, 1, 3, 1, 1]}[length]
        if length == 3:
            wanted[7] = 70
        np.testing.assert_array_equal(storage.priority[:, 0], wanted)


@pytest.mark.parametrize("block", [1, 2, 3, 7, 8])
def test_masses_are_positive_exactly_where_complete_windows_start(block):
    sampler, storage = one_lane(rows=0, lanes=2, length=3)
    add = jax.jit(sampler.add)
    for start in range(0, 4 * block, block):
        storage = add(storage, steps(start, block, 2))
        total = start + block
        complete = {t % 8 for t in range(max(0, total - 8), total - 2)}
        np.testing.assert_array_equal(storage.priority[:, 0] > 0, [slot in complete for slot in range(8)])
        np.testing.assert_array_equal(storage.priority[:, 0], storage.priority[:, 1])
        np.testing.assert_array_equal(storage.tree[0][:16].reshape(8, 2), storage.priority)


def test_ranks_do_not_see_how_far_an_outlier_lies():
    drawn = []
    for outlier in (20.0, 2e6):
        sampler = samplers.ranked(exponent=1.0)
        storage = sampler.add(sampler.init(example(), 8, 1), steps(0, 8, 1))
        priority = jnp.array([outlier, 8.0, 4.0, 2.0, 1.0, 0.5, 0.25, 0.125])
        for _ in range(2):  # masses follow the ranks at the time of writing; the second time all are in place
            storage = sampler.update_priority(storage, info_for(storage, range(8)), priority)
        np.testing.assert_allclose(storage.tree[0][:8], 8 / np.arange(1, 9), rtol=1e-6)
        assert int(storage.histogram.sum()) == 8
        drawn.append(np.bincount(sampler.sample(storage, jax.random.key(0), 8000)[1].time))
    np.testing.assert_array_equal(drawn[0], drawn[1])
    harmonic = 1 / np.arange(1, 9)
    np.testing.assert_allclose(drawn[0] / 8000, harmonic / harmonic.sum(), atol=2e-3)


def test_the_histogram_of_ranks_counts_every_drawable_row_once():
    sampler = samplers.ranked(length=2)
    storage = sampler.init(example(), 14, 2)
    add, update, key = jax.jit(sampler.add), jax.jit(sampler.update_priority), jax.random.key(0)
    for turn in range(12):
        storage = add(storage, steps(2 * turn, 2, 2))
        key, sample_key, priority_key = jax.random.split(key, 3)
        _, info = sampler.sample(storage, sample_key, 32)  # with many duplicates
        storage = update(storage, info, jax.random.exponential(priority_key, (32,)))
        assert int(storage.histogram.sum()) == int((storage.priority > 0).sum())
        assert int(storage.histogram.min()) >= 0


@pytest.mark.parametrize(
    "recency",
    [samplers.ages.truncated_geometric(6.0), samplers.ages.window(share=0.4), samplers.ages.linear()],
    ids=lambda d: d.name,
)
def test_combined_draws_follow_the_product(recency):
    """3 lanes of 4000 slots make nodes of 16 rows, so bounds are not exact and rejection is at work."""
    slots, lanes, length = 4000, 3, 2
    sampler = samplers.combined(recency, exponent=1.0, length=length)
    storage = sampler.init(example(), slots * lanes, lanes)
    add = jax.jit(sampler.add)
    for turn in range(3):
        storage = add(storage, steps(1900 * turn, 1900, lanes))
    priority = jnp.asarray(np.random.default_rng(0).gamma(0.3, size=(slots, lanes)) + 1e-3, jnp.float32)
    time, lane = (grid.reshape(-1).astype(np.int32) for grid in np.indices((slots, lanes)))
    age = np.mod(5700 - length - time, slots).astype(np.int32)
    info = SampleInfo(jnp.asarray(time), jnp.asarray(lane), jnp.asarray(age), jnp.ones(len(time)))
    storage = jax.jit(sampler.update_priority)(storage, info, priority.reshape(-1))
    batch, info = jax.jit(sampler.sample, static_argnums=2)(storage, jax.random.key(0), 200_000)
    check_batch(batch, info, 5700, slots, lanes, length)
    pmf = np.zeros(slots)
    pmf[: slots - 1] = samplers.ages.pmf(recency, slots - 1)
    product = (np.asarray(priority, np.float64).reshape(-1) * pmf[age]).reshape(-1)
    # Group rows by age and by priority, so that either factor going wrong shows.
    group = age // 100 * 5 + np.searchsorted(np.quantile(priority, [0.2, 0.4, 0.6, 0.8]), priority.reshape(-1))
    expected = np.bincount(group, weights=product / product.sum() * 200_000)
    counts = np.bincount(group[np.asarray(info.time) * lanes + np.asarray(info.lane)], minlength=len(expected))
    enough = expected >= 10
    statistic = ((counts - expected)[enough] ** 2 / expected[enough]).sum()
    assert statistic < stats.chi2(enough.sum() - 1).isf(1e-3)
    assert counts[expected == 0].sum() == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"exponent": -0.1}, "exponent must be finite and at least 0, got -0.1; use 0.6"),
        ({"exponent": float("nan")}, "got nan"),
        ({"importance": 1.5}, r"\[0, 1\], got 1.5"),
    ],
)
def test_what_cannot_work_is_refused(arguments, says):
    with pytest.raises(UsageError, match=says):
        samplers.proportional(**arguments)
