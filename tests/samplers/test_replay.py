"""Windows by age: which starts are drawn, what is refused, and that the parameters are leaves."""

import doctest

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxrl import samplers
from jaxrl.errors import UsageError
from tests.samplers.common import check_batch, compiled, example, steps


def test_windows_of_three_in_eight_slots():
    """After 0 … 8 in blocks of three the ring holds 1 … 8; starts are uniform on 1 … 6, and never 8 -> 1."""
    sampler = compiled("uniform", 3)
    storage = sampler.init(example(), 8, 1)
    for start in (0, 3, 6):
        storage = sampler.add(storage, steps(start, 3, 1))
    batch, info = sampler.sample(storage, jax.random.key(0), 5000)
    assert (np.diff(batch.reward, axis=1) == 1).all()
    counts = np.bincount(batch.action[:, 0], minlength=9)
    assert counts[0] == counts[7] == counts[8] == 0
    assert stats.chisquare(counts[1:7]).pvalue > 1e-3
    check_batch(batch, info, total=9, slots=8, num_envs=1, length=3)


def test_the_distribution_covers_complete_windows_alone():
    """Ten steps held, windows of four: seven starts, so the pmf is that of n = 7."""
    sampler = compiled("truncated_geometric", 4)
    storage = sampler.add(sampler.init(example(), 20, 2), steps(0, 10, 2))
    _, info = sampler.sample(storage, jax.random.key(1), 20_000)
    weights = np.exp(-4.6 / 7 * np.arange(7))
    expected = 20_000 * weights / weights.sum()
    assert stats.chisquare(np.bincount(info.age, minlength=7), expected).pvalue > 1e-3
    assert stats.chisquare(np.bincount(info.lane)).pvalue > 1e-3


def test_the_rate_is_a_leaf_that_vmap_sweeps():
    sampler = samplers.truncated_geometric(beta=1.0)
    storage = sampler.add(sampler.init(example(), 100, 1), steps(0, 100, 1))
    betas = jnp.array([0.0, 4.6, 50.0])

    def mean_age(beta):
        swept = storage._replace(recency=storage.recency._replace(beta=beta))
        return sampler.sample(swept, jax.random.key(0), 4096)[1].age.mean()

    expected = [float(samplers.ages.expected_age(samplers.ages.truncated_geometric(float(b)), 100)) for b in betas]
    np.testing.assert_allclose(jax.vmap(mean_age)(betas), expected, atol=1.5)


def test_the_storage_may_be_donated_and_the_sampler_used_again():
    sampler = samplers.truncated_geometric()
    add = jax.jit(sampler.add, donate_argnums=0)
    for _ in range(2):
        storage = add(sampler.init(example(), 8, 1), steps(0, 3, 1))
        assert int(sampler.size(storage)) == 3


def test_update_priority_is_the_identity():
    sampler = samplers.uniform()
    storage = sampler.init(example(), 8, 1)
    assert sampler.update_priority(storage, None, None) is storage


def test_what_cannot_work_is_refused():
    sampler = samplers.uniform(length=3)
    with pytest.raises(UsageError, match="does not fit in a lane of 2 rows"):
        sampler.init(example(), 8, 4)
    storage = sampler.init(example(), 8, 2)
    with pytest.raises(UsageError, match="needs 6 rows, 0 are stored; add 3 more steps of 2 environments"):
        samplers.check_can_sample(sampler, storage, 1)
    storage = sampler.add(storage, steps(0, 3, 2))
    samplers.check_can_sample(sampler, storage, 6)
    with pytest.raises(UsageError, match="needs 7 rows, 6 are stored; add 1 more steps"):
        samplers.check_can_sample(sampler, storage, 7)
    with pytest.raises(UsageError, match="larger than the capacity of 8; use at most 8"):
        samplers.check_can_sample(sampler, storage, 9)
    with pytest.raises(UsageError, match="batch_size 0"):
        sampler.sample(storage, jax.random.key(0), 0)
    with pytest.raises(UsageError, match="typed key"):
        sampler.sample(storage, jax.random.PRNGKey(0), 1)


def test_the_example_in_the_documentation_runs():
    result = doctest.testmod(samplers)
    assert result.attempted > 5 and result.failed == 0
