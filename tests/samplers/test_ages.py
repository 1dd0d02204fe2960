"""Distributions over age: against float64 formulas written here, against draws, and at the limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

from jaxrl.errors import UsageError
from jaxrl.samplers import ages


def geometric(n, rate):
    weights = np.exp(-rate * np.arange(n))
    return weights / weights.sum()


def windows(n, sizes, weights=None):
    weights = np.full(len(sizes), 1 / len(sizes)) if weights is None else weights
    return sum(w * (np.arange(n) < size) / size for w, size in zip(weights, sizes, strict=True))


def ere_sizes(n, eta, c_min, updates):
    return [int(np.clip(np.round(max(n * eta ** (1000 * k / updates), c_min)), 1, n)) for k in range(updates)]


# Name: distribution, and its pmf in float64.
CASES = {
    "uniform": (ages.uniform(), lambda n: np.full(n, 1 / n)),
    "beta": (ages.truncated_geometric(4.6), lambda n: geometric(n, 4.6 / n)),
    "rate": (ages.truncated_geometric(rate=0.02), lambda n: geometric(n, 0.02)),
    "both_knobs_zero": (ages.truncated_geometric(0.0), lambda n: np.full(n, 1 / n)),
    "window_share": (ages.window(share=0.3), lambda n: windows(n, [max(round(0.3 * n), 1)])),
    "window_rows": (ages.window(rows=5), lambda n: windows(n, [min(5, n)])),
    "linear": (ages.linear(), lambda n: 2 * (n - np.arange(n)) / (n * (n + 1))),
    "newest": (ages.newest_mixture(0.4, 0.1), lambda n: windows(n, [max(round(0.1 * n), 1), n], [0.4, 0.6])),
    "ere": (ages.emphasising_recent(0.996, 10, 16), lambda n: windows(n, ere_sizes(n, 0.996, 10, 16))),
    "ere_update": (
        ages.emphasising_recent(0.996, 10, 16, update=4),
        lambda n: windows(n, [ere_sizes(n, 0.996, 10, 16)[4]]),
    ),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def float64_entropy(p):
    return -np.sum(p[p > 0] * np.log(p[p > 0]))


@pytest.mark.parametrize("n", [1, 2, 7, 100, 5003])
def test_closed_forms_equal_float64_sums(case, n):
    distribution, formula = case
    p = formula(n)
    assert abs(p.sum() - 1) < 1e-12
    np.testing.assert_allclose(ages.pmf(distribution, n), p, rtol=2e-5, atol=1e-12)
    np.testing.assert_allclose(ages.expected_age(distribution, n), p @ np.arange(n), rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(ages.entropy(distribution, n), float64_entropy(p), rtol=1e-5, atol=1e-4)
    effective = ages.effective_size(distribution, n)
    np.testing.assert_allclose(effective, np.exp(float64_entropy(p)), rtol=2e-4)


def test_log_prob_outside_the_range_is_minus_infinity(case):
    distribution, _ = case
    assert np.isneginf(ages.log_prob(distribution, jnp.array([-1, 50, 51]), 50)).all()


def chi_square_p(counts, p):
    """P-value of counts under p, with bins merged until each expects at least 10."""
    expected = p * counts.sum()
    edges, running = [0], 0.0
    for index, value in enumerate(expected):
        running += value
        if running >= 10:
            edges.append(index + 1)
            running = 0.0
    if len(edges) <= 2:
        assert counts[expected == 0].sum() == 0
        return 1.0
    merged = np.add.reduceat(np.stack([counts, expected]), edges[:-1], axis=1)
    return stats.chisquare(merged[0], merged[1] * merged[0].sum() / merged[1].sum()).pvalue


sample = jax.jit(
    lambda distribution, params, n, shape, key: distribution.sample(params, n, shape, key), static_argnums=(0, 3)
)


def draws(distribution, n, count, seed=0):
    bare = distribution._replace(params=None)  # hashable, so that the compiled program is keyed by it
    return np.asarray(sample(bare, distribution.params, jnp.int32(n), (count,), jax.random.key(seed)))


@pytest.mark.parametrize("n", [1, 6, 1000, 5003])
def test_draws_follow_the_pmf(case, n):
    distribution, formula = case
    drawn = draws(distribution, n, 200_000, seed=n)
    assert drawn.dtype == np.int32
    assert drawn.min() >= 0 and drawn.max() < n
    assert chi_square_p(np.bincount(drawn, minlength=n), formula(n)) > 1e-3


@pytest.mark.parametrize(
    ("beta", "rate"),
    [(0.0, None), (1e-12, None), (1e-5, None), (1e-2, None), (4.6, None), (20.0, None), (1e3, None), (1e7, None)]
    + [(None, rate) for rate in (1e-20, 1e-9, 1e-5, 1e-2, 3.0, 60.0)],
)
def test_truncated_geometric_at_ten_million_rows(beta, rate):
    """Right in float32 where one 24-bit uniform could not even name every age."""
    n, count = 10**7 + 3, 400_000
    distribution = ages.truncated_geometric(beta, rate)
    lam = rate if beta is None else beta / n
    drawn = draws(distribution, n, count)
    assert drawn.min() >= 0 and drawn.max() < n
    # Bins that cut through blocks, with the newest and the oldest rows apart.
    inner = np.unique(np.round(np.concatenate([[1, 2, 5, 10, 100], np.linspace(1000, n - 1000, 61), [n - 100]])))
    edges = np.concatenate([[0], inner, [n]])
    below = np.expm1(-lam * edges) / np.expm1(-lam * n) if lam else edges / n
    counts = np.histogram(drawn, edges)[0]
    assert chi_square_p(counts, np.diff(below)) > 1e-3
    a = np.arange(n)
    p = geometric(n, lam)
    np.testing.assert_allclose(ages.expected_age(distribution, n), p @ a, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(ages.entropy(distribution, n), float64_entropy(p), rtol=1e-5, atol=1e-4)
    some = np.array([0, 1, 1000, n // 2, n - 1])
    log_p = -lam * some - np.log(np.exp(-lam * a).sum())
    np.testing.assert_allclose(ages.log_prob(distribution, some, n), log_p, rtol=1e-6, atol=1e-4)


def test_every_age_of_a_large_buffer_can_be_drawn():
    """Neighbouring ages far back are all hit: a single 23-bit uniform leaves gaps of more than twenty there."""
    n = 10**7
    drawn = draws(ages.truncated_geometric(4.6), n, 4_000_000)
    oldest = drawn[drawn > 0.9 * n]
    distinct = len(np.unique(oldest))
    # N draws that are nearly uniform over M ages hit M (1 - exp(-N / M)) of them.
    rows = 0.1 * n
    assert distinct > 0.97 * rows * (1 - np.exp(-len(oldest) / rows))
    assert abs(np.mean(oldest % 2) - 0.5) < 4 * 0.5 / np.sqrt(len(oldest))


def test_the_rare_end_of_a_steep_distribution_is_resolved():
    """Of the 2^32 random words those that lead beyond .98 of a density exp(-10 x) share few values."""
    low = np.arange(20_000, dtype=np.uint32)
    far = np.asarray(ages._truncated_exponential(jnp.float32(10.0), jnp.concatenate([low, ~low])))
    far = far[far > 0.98]
    assert len(far) == 20_000
    assert len(np.unique(far)) > 10_000
    assert far.max() <= 1.0


def test_no_rate_is_uniform():
    for small in (0.0, 1e-30, 1e-10, 1e-7):
        distribution = ages.truncated_geometric(small)
        np.testing.assert_allclose(ages.pmf(distribution, 1000), 1e-3, rtol=1e-6)
        np.testing.assert_allclose(ages.expected_age(distribution, 1000), 499.5, rtol=1e-6)
        np.testing.assert_allclose(ages.entropy(distribution, 1000), np.log(1000), rtol=1e-6)
        np.testing.assert_array_equal(
            draws(distribution, 1000, 10_000), draws(ages.truncated_geometric(0.0), 1000, 10_000)
        )


def test_a_row_of_the_published_table():
    """beta 3.59: mean age a quarter, oldest to newest .028, entropy .409 below uniform, effective share .67."""
    n, distribution = 100_000, ages.truncated_geometric(3.59)
    p = ages.pmf(distribution, n)
    np.testing.assert_allclose(ages.expected_age(distribution, n) / n, 0.25, atol=5e-4)
    np.testing.assert_allclose(p[-1] / p[0], 0.028, atol=5e-4)
    np.testing.assert_allclose(np.log(n) - ages.entropy(distribution, n), 0.409, atol=1e-3)
    np.testing.assert_allclose(ages.effective_size(distribution, n) / n, 0.67, atol=6e-3)


@pytest.mark.parametrize("name", ["window_share", "linear", "newest", "ere"])
def test_the_truncated_geometric_has_the_largest_entropy_at_its_mean(name):
    n, other = 4000, CASES[name][0]
    mean = float(ages.expected_age(other, n))
    beta = optimize.brentq(lambda b: geometric(n, b / n) @ np.arange(n) - mean, 1e-6, 500)
    best = ages.truncated_geometric(beta)
    np.testing.assert_allclose(ages.expected_age(best, n), mean, rtol=1e-4)
    assert ages.entropy(best, n) > ages.entropy(other, n) + 1e-3


def test_parameters_sweep_under_vmap():
    distribution = ages.truncated_geometric(1.0)
    betas = jnp.array([0.0, 1.0, 4.6, 20.0])
    swept = jax.vmap(lambda beta: distribution.expected_age(distribution.params._replace(beta=beta), jnp.int32(1000)))(
        betas
    )
    alone = [float(ages.expected_age(ages.truncated_geometric(float(beta)), 1000)) for beta in betas]
    np.testing.assert_allclose(swept, alone, rtol=1e-5)


def test_each_draw_may_have_its_own_number_of_rows(case):
    distribution, _ = case
    n = jnp.array([1, 2, 50, 1000] * 500, jnp.int32)
    drawn = distribution.sample(distribution.params, n, n.shape, jax.random.key(3))
    assert (drawn >= 0).all() and (drawn < n).all()
    assert drawn[3::4].max() > 1  # not all as if there were few


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ages.truncated_geometric(beta=-1.0), "beta must be finite and at least 0, got -1.0; use 0"),
        (lambda: ages.truncated_geometric(rate=float("nan")), "rate must be finite"),
        (lambda: ages.truncated_geometric(rate=float("inf")), "rate must be finite"),
        (lambda: ages.truncated_geometric(beta=1.0, rate=1.0), "not both"),
        (lambda: ages.window(), "share or by rows"),
        (lambda: ages.window(share=1.5), r"\(0, 1\], got 1.5; use 1"),
        (lambda: ages.window(rows=0), "at least 1, got 0; use 1"),
        (lambda: ages.newest_mixture(share=1.2), "share must lie"),
        (lambda: ages.newest_mixture(newest=0.0), "newest must lie"),
        (lambda: ages.emphasising_recent(eta=1.1), "eta must lie"),
        (lambda: ages.emphasising_recent(c_min=0), "c_min must be"),
        (lambda: ages.emphasising_recent(updates=0), "updates must be"),
        (lambda: ages.emphasising_recent(updates=4, update=4), "use 3"),
    ],
)
def test_what_cannot_work_is_refused(make, says):
    with pytest.raises(UsageError, match=says):
        make()
