"""Against float64 numpy where float32 is easily lost: large means, many small batches, large counts."""

import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import normalise
from jaxrl.errors import UsageError
from tests.processes import with_devices

SCALAR = normalise.init(0.0)


def feed(stats, batches):
    """Update by each batch along the leading axis, in one compiled program."""
    return jax.jit(lambda s, bs: jax.lax.scan(lambda c, b: (normalise.update(c, b), None), s, bs)[0])(stats, batches)


def test_by_hand():
    # 1, 3 and then 5, 7, 9, 11: mean 6, variance (25 + 9 + 1 + 1 + 9 + 25) / 6.
    stats = normalise.update(normalise.update(SCALAR, jnp.array([1, 3])), jnp.array([[5, 7], [9, 11]]))
    np.testing.assert_array_equal(stats.count, [6, 0])
    np.testing.assert_allclose(stats.mean, 6.0, rtol=1e-6)
    np.testing.assert_allclose(stats.var, 70 / 6, rtol=1e-6)
    np.testing.assert_allclose(normalise.normalise(stats, jnp.array([6, 7])), [0.0, (6 / 70) ** 0.5], atol=1e-6)


@pytest.mark.parametrize("batch", [64, 8192, 1_000_000])
def test_a_million_draws_far_from_zero(batch):
    draws = np.random.default_rng(0).normal(1000, 1, 1_000_000).astype(np.float32)
    draws = draws[: 1_000_000 // batch * batch]
    stats = feed(SCALAR, draws.reshape(-1, batch))
    reference = draws.astype(np.float64)
    np.testing.assert_allclose(stats.mean, reference.mean(), atol=5e-3)
    np.testing.assert_allclose(normalise.std(stats), reference.std(), rtol=1e-3)


def test_a_distribution_that_moves():
    rng = np.random.default_rng(1)
    draws = (
        rng.normal(size=(200, 32, 3)) * [1.0, 1e-3, 1e4] + np.linspace(0, 1, 200)[:, None, None] * [50, 0, 1e5]
    ).astype(np.float32)
    stats = feed(normalise.init(np.zeros(3)), draws)
    reference = draws.astype(np.float64).reshape(-1, 3)
    np.testing.assert_allclose(stats.mean, reference.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(normalise.std(stats), reference.std(0), rtol=1e-4)


@pytest.mark.parametrize(
    ("before", "size", "after"),
    [([2**31 - 1, 0], 64, [2**31 + 63, 0]), ([2**32 - 1, 0], 64, [63, 1]), ([2**32 - 64, 6], 64, [0, 7])],
)
def test_count_survives_two_to_the_31(before, size, after):
    stats = SCALAR._replace(count=jnp.array(before, jnp.uint32), mean=jnp.float32(1.0), var=jnp.float32(4.0))
    stats = normalise.update(stats, jnp.full(size, 3.0))
    np.testing.assert_array_equal(stats.count, after)
    np.testing.assert_allclose(normalise.total(stats), after[0] + 2.0**32 * after[1], rtol=1e-6)
    np.testing.assert_allclose([stats.mean, stats.var], [1.0, 4.0], rtol=1e-6)


def test_a_constant_feature_does_not_blow_up():
    batch = jnp.tile(jnp.array([0.0, 1000.1, -3e4, 1e-5]), (100_000, 1))
    stats = normalise.update(normalise.update(normalise.init(batch[0]), batch), batch[:37])
    assert jnp.abs(normalise.normalise(stats, batch[:5], clip=None)).max() < 0.5
    moved = normalise.normalise(stats, batch[:5] + 1e6)
    np.testing.assert_array_equal(moved, np.full((5, 4), 10.0, np.float32))


def test_nothing_seen_changes_nothing():
    x = {"a": jnp.array([-3.0, 9.5]), "b": jnp.array(7, jnp.int32)}
    stats = normalise.init(x)
    expected = {"a": np.float32([-3.0, 9.5]), "b": np.float32(7)}
    for function in (normalise.normalise, normalise.denormalise):
        jax.tree.map(np.testing.assert_array_equal, function(stats, x), expected)
    jax.tree.map(
        np.testing.assert_array_equal, normalise.update(stats, {"a": np.zeros((0, 2)), "b": np.zeros(0)}), stats
    )


def test_the_first_batch_replaces_the_start_exactly():
    stats = normalise.update(SCALAR, jnp.array([1e-4, 3e-4]))
    np.testing.assert_allclose([stats.mean, stats.var], [2e-4, 1e-8], rtol=1e-5)


def test_trees_dtypes_and_leading_axes():
    rng = np.random.default_rng(2)
    batch = {
        "image": rng.integers(0, 256, (7, 5, 4, 4), np.uint8),
        "flag": rng.random((7, 5)) < 0.5,
        "state": jnp.asarray(rng.normal(size=(7, 5, 2)), jnp.bfloat16),
    }
    stats = normalise.update(normalise.init(jax.tree.map(lambda x: x[0, 0], batch)), batch)
    assert {x.dtype for x in jax.tree.leaves((stats.mean, stats.var))} == {jnp.dtype("float32")}
    np.testing.assert_array_equal(stats.count, [35, 0])
    reference = jax.tree.map(lambda x: np.asarray(x, np.float64), batch)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    jax.tree.map(lambda mean, x: close(mean, x.mean((0, 1))), stats.mean, reference)
    jax.tree.map(lambda std, x: close(std, x.std((0, 1))), normalise.std(stats), reference)
    normal = normalise.normalise(stats, batch)
    assert {x.dtype for x in jax.tree.leaves(normal)} == {jnp.dtype("float32")}
    jax.tree.map(close, normalise.denormalise(stats, normal), reference)


def test_clip():
    stats = normalise.update(SCALAR, jnp.array([-1.0, 1.0]))
    np.testing.assert_allclose(normalise.normalise(stats, jnp.array([-50.0, 5.0, 50.0])), [-10, 5, 10])
    np.testing.assert_allclose(normalise.normalise(stats, jnp.array([-50.0, 50.0]), clip=3.0), [-3, 3])
    np.testing.assert_allclose(normalise.normalise(stats, jnp.array([-50.0, 50.0]), clip=None), [-50, 50])


def test_a_vmapped_member_equals_the_single_run():
    batches = np.random.default_rng(3).normal(size=(3, 10, 16, 2)).astype(np.float32)
    start = normalise.init(np.zeros(2))
    together = jax.vmap(feed, (None, 0))(start, batches)
    for member in range(3):
        alone = feed(start, batches[member])
        jax.tree.map(lambda a, b, m=member: np.testing.assert_allclose(a[m], b, rtol=1e-5, atol=1e-6), together, alone)


def test_batches_that_do_not_fit_are_refused():
    stats = normalise.init({"a": np.zeros(3), "b": np.zeros(())})
    with pytest.raises(UsageError, match="same leading axes"):
        normalise.update(stats, {"a": np.zeros((5, 3)), "b": np.zeros(4)})
    with pytest.raises(UsageError, match="shape"):
        normalise.update(stats, {"a": np.zeros((5, 2)), "b": np.zeros(5)})


def test_a_sharded_batch_gives_what_one_device_gives():
    program = textwrap.dedent("""
        import jax, numpy as np
        from jax.sharding import NamedSharding, PartitionSpec
        from jaxrl import normalise

        assert len(jax.devices()) == 4
        mesh = jax.make_mesh((4,), ("data",))
        x = np.random.default_rng(0).normal(1000, 1, (20, 64, 3)).astype(np.float32)
        one = many = normalise.init(x[0, 0])
        update = jax.jit(normalise.update)
        for batch in x:
            one = update(one, batch)
            many = update(many, jax.device_put(batch, NamedSharding(mesh, PartitionSpec("data"))))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), one, many)
        np.testing.assert_allclose(many.var, x.astype(np.float64).var((0, 1)), rtol=1e-4)
    """)
    result = subprocess.run([sys.executable, "-c", program], env=with_devices(4), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
