"""Differences, ratios, corrections and verdicts; and how often a verdict is given where there is no difference."""

import itertools
import math

import numpy as np
import pytest

from jaxrl.analysis import comparisons, intervals, statistics
from jaxrl.analysis.comparisons import compare, verdict, verdicts
from jaxrl.analysis.text import describe, numbers
from jaxrl.errors import UsageError


def test_unpaired_difference_by_hand():
    # Both symmetric, so that the skewness is 0. Means 6 and 3, variances 2.5 / 5 each: Welch's freedom 8, of which
    # three quarters are used: t(.975, 6) = 2.446912, half width 2.446912 * 1.
    got = compare([4, 5, 6, 7, 8], [1, 2, 3, 4, 5])
    assert (got.a, got.b, got.difference.value) == (6, 3, 3)
    assert (got.difference.low, got.difference.high) == pytest.approx((3 - 2.446912, 3 + 2.446912), abs=1e-6)
    assert got.p_value == pytest.approx(0.0240, abs=1e-4)  # t = 3 with 6 degrees of freedom
    assert got.runs == (5, 5) and not got.paired


def test_paired_difference_by_hand():
    # differences 1 2 3 4 5: t(.975, 3) = 3.182446, half width 3.182446 * sqrt(2.5 / 5)
    a, b = np.array([11.0, 22, 33, 44, 55]), np.array([10.0, 20, 30, 40, 50])
    got = compare(a, b, paired=True)
    assert (got.difference.low, got.difference.high) == pytest.approx((3 - 2.250329, 3 + 2.250329), abs=1e-6)
    assert not compare(a, b).difference.low > 0
    # every a is 1.1 b: the ratio is known exactly, whatever b is
    assert (got.percent.low, got.percent.value, got.percent.high) == pytest.approx((10, 10, 10), abs=1e-6)


def test_ratio_equals_fiellers():
    # Without skewness and with freedom fixed by pairing: the roots of (A - r B)^2 = t^2 Var[A - r B] / n.
    a, b = np.array([5.0, 7, 6, 8, 4, 6]), np.array([4.0, 4, 5, 6, 3, 5])
    got = compare(a, b, paired=True, aggregate="iqm")  # Yuen's t has no skewness
    kept, total = 4, 6
    wa, wb = np.clip(a, 5, 7), np.clip(b, 4, 5)
    factor = (total - 1) / (kept * (kept - 1))
    from scipy.special import stdtrit

    t2 = stdtrit(0.75 * (kept - 1), 0.975) ** 2
    cov = np.cov(wa, wb) * factor
    mean_a, mean_b = np.sort(a)[1:5].mean(), np.sort(b)[1:5].mean()
    roots = np.roots([mean_b**2 - t2 * cov[1, 1], -2 * (mean_a * mean_b - t2 * cov[0, 1]), mean_a**2 - t2 * cov[0, 0]])
    assert (got.percent.low, got.percent.high) == pytest.approx(sorted(100 * (roots - 1)), rel=1e-6)


@pytest.mark.parametrize("aggregate", ["mean", "iqm"])
@pytest.mark.parametrize("paired", [False, True])
def test_difference_and_ratio_agree_on_the_sign(aggregate, paired):
    rng = np.random.default_rng(7)
    seen = set()
    for shift in (-0.5, -0.12, 0.0, 0.12, 0.5):
        a, b = rng.gamma(20, 0.05, 9) + shift, rng.gamma(20, 0.05, 9)
        got = compare(a, b, paired=paired, aggregate=aggregate, resamples=2_000)
        signs = [(i.low > 0) - (i.high < 0) for i in (got.difference, got.percent)]
        assert signs[0] == signs[1] and (signs[0] != 0) == (got.p_value < 0.05)
        swapped = compare(b, a, paired=paired, aggregate="mean")
        assert swapped.difference.low == pytest.approx(-compare(a, b, paired=paired).difference.high)
        seen.add(signs[0])
    assert {-1, 1} <= seen


@pytest.mark.parametrize("aggregate", ["mean", "iqm"])
def test_pairing_cancels_what_a_seed_does_to_both(aggregate):
    rng = np.random.default_rng(3)
    of_seed = rng.normal(0, 1, 12)
    a, b = of_seed + rng.normal(0.2, 0.05, 12), of_seed + rng.normal(0, 0.05, 12)
    paired, unpaired = (compare(a, b, paired=p, aggregate=aggregate) for p in (True, False))
    assert paired.p_value < 0.01 and unpaired.p_value > 0.3
    widths = [c.difference.high - c.difference.low for c in (paired, unpaired)]
    assert widths[0] < widths[1] / 2


def test_no_percent_where_the_baseline_is_not_clearly_positive():
    a, b = np.array([1.0, 2, 3, 2, 1]), np.array([-1.0, 1, 0.5, -0.5, 0.2])
    assert compare(a, b).percent is None
    assert compare(a - 10, b - 20).percent is None  # a negative baseline: the sign of a percentage would mislead
    assert verdict(a, b, unit="points").text.startswith("better by 1.8 points [")


def test_pairing_by_seed():
    a, b = [[1.0], [2.0], [3.0]], [[30.0], [10.0], [20.0]]
    rows_a, rows_b, paired = comparisons.pair(a, b, ([1, 2, 3], [3, 1, 2]), None)
    assert paired and rows_a[:, 0].tolist() == [1, 2, 3] and rows_b[:, 0].tolist() == [10, 20, 30]
    assert comparisons.pair(a, b, ([1, 2, 3], [3, 4, 5]), None)[2] is False
    with pytest.warns(UserWarning, match="left out 2 runs"):
        rows_a, rows_b, paired = comparisons.pair(a, b, ([1, 2, 3], [3, 1, 5]), True)
    assert paired and rows_a[:, 0].tolist() == [1, 3] and rows_b[:, 0].tolist() == [10, 30]
    assert comparisons.pair(a, b, None, None)[2] is False
    with pytest.warns(UserWarning, match="left out run 1"):
        rows_a, rows_b, _ = comparisons.pair([1, math.nan, 3], [4, 5, 6], None, True, "drop")
    assert rows_a[:, 0].tolist() == [1, 3] and rows_b[:, 0].tolist() == [4, 6]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: compare([1, 2, 3], [1, 2], paired=True), "as many, got 3 and 2"),
        (lambda: compare([1, 2], [1, 2], seeds=([1, 2, 3], [1, 2])), "3 seeds for 2 runs"),
        (lambda: compare([1, 2], [1, 2], seeds=([1, 1], [1, 2])), "distinct"),
        (lambda: compare([1, 2], [1, 2], seeds=([1, 2], [3, 4]), paired=True), "no seed is in both"),
        (lambda: compare([1, math.nan], [1, 2]), "run 1 are not finite"),
        (lambda: compare([1, 2], [1, 2], aggregate="median"), "aggregate of a comparison"),
        (lambda: compare(3.0, [1, 2]), "shape"),
        (lambda: compare(np.ones((3, 2)), np.ones((3, 1))), "same tasks"),
        (lambda: verdicts({"sac": [1, 2, 3]}, "sac"), "nothing to compare"),
        (lambda: verdicts({"sac": [1, 2, 3], "ppo": [1, 2, 3]}, "scac"), "did you mean 'sac'"),
        (lambda: verdicts({"a": [1, 2, 3], "b": [1, 2, 3]}, "a", correction="bonferroni"), "correction"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(UsageError, match=message):
        call()


def test_holm_and_benjamini_hochberg_by_hand():
    p = [0.01, 0.04, math.nan, 0.03, 0.005]
    # Holm, four of them: .005*4=.02, .01*3=.03, .03*2=.06, max(.06, .04*1)=.06
    np.testing.assert_allclose(comparisons.holm(p), [0.03, 0.06, math.nan, 0.06, 0.02])
    # BH: .005*4/1=.02, .01*4/2=.02, .03*4/3=.04, .04*4/4=.04
    np.testing.assert_allclose(comparisons.benjamini_hochberg(p), [0.02, 0.04, math.nan, 0.04, 0.02])
    np.testing.assert_allclose(comparisons.holm([0.9, 0.8]), [1, 1])
    assert comparisons.holm([]).shape == (0,)
    with pytest.raises(UsageError, match=r"between 0 and 1, got 1\.5"):
        comparisons.holm([0.5, 1.5])


def test_verdict_lines():
    b = np.array([98.0, 102, 100, 99, 101, 97, 103, 100, 100, 100])
    up = verdict(b + 12, b)
    assert up.better is True and up.text == "better by 12 % [10, 14], 10 seeds"
    down = verdict(b - 12, b)
    assert down.better is False and down.text.startswith("worse by 12 % [")
    same = verdict(b[::-1] + 0.1, b)
    assert same.better is None and same.text.startswith("cannot tell: 0 % [-2, 2], 10 seeds")
    lower = verdict(b - 12, b, lower_is_better=True)
    assert lower.better is True and lower.text.startswith("better by 12 % [")
    assert verdict(b[:8] + 12, b).text.endswith(", 8 and 10 seeds")
    few = verdict(b[:2] + 12, b)
    assert few.better is None and few.text == "cannot tell: 2 and 10 seeds; at least 3 of each are needed"
    assert verdict([1.0], [2.0]).text == "cannot tell: 1 seed; at least 3 of each are needed"
    few = verdict([1, 1, 1, 0.0], [0, 0, 0, 1.0], aggregate="iqm")
    assert few.better is None and "needs 5 scores" in few.text and few.text.endswith(", 4 seeds")
    gap = verdict([0.9, 0.8, 0.95, 0.9], [0.1, 0.2, 0.15, 0.1], aggregate="optimality_gap")
    assert gap.better is True


def test_identical_runs_cannot_be_told_apart():
    same = verdict([5.0] * 5, [5.0] * 5)
    assert same.better is None and same.p_value == 1
    assert verdict([1.0, 2, 3, 4], [1.0, 2, 3, 4], paired=True).better is None


@pytest.mark.parametrize("paired", [True, False])
def test_a_p_value_of_an_interquartile_mean_goes_on_below_what_resamples_can_count(paired):
    """Without it the least p-value of ten runs is 0.005, and none of 19 comparisons survives its correction."""
    rng = np.random.default_rng(0)
    b = rng.normal(100, 1, 10)
    steps = [compare(b + d + rng.normal(0, 1, 10), b, paired=paired, aggregate="iqm").p_value for d in (1, 3, 5, 1000)]
    assert all(later < sooner for sooner, later in itertools.pairwise(steps))
    assert steps[2] < 0.05 / 19 and steps[3] < 1e-12


def test_many_verdicts_are_corrected():
    rng = np.random.default_rng(38)
    base = rng.normal(1, 0.1, 10)
    # Twenty methods that differ from the baseline by chance, one that is far better.
    results = {"base": base, "far": base + 0.5} | {f"m{i}": rng.normal(1, 0.1, 10) for i in range(20)}
    got = verdicts(results, "base")
    alone = {name: verdict(results[name], base) for name in got}
    assert got["far"].better is True
    by_chance = [name for name in got if name != "far" and alone[name].better is not None]
    assert by_chance and all(got[name].better is None for name in by_chance)
    assert got[by_chance[0]].text.startswith("cannot tell after correcting for 21 comparisons: ")
    expected = comparisons.holm([alone[name].comparison.p_value for name in got])
    np.testing.assert_allclose([v.p_value for v in got.values()], expected)
    one = verdicts({"base": base, "far": base + 0.5, "lone": [1.0]}, "base")
    assert one["far"].better and one["lone"].better is None and math.isnan(one["lone"].p_value)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((12.3, 4.2, 20.9), "12 [4, 21]"),
        ((0.8213, 0.71, 0.9), "0.82 [0.71, 0.90]"),
        ((12345.6, 11000, 13700), "12,346 [11,000, 13,700]"),
        ((8.0, 0.3, 16.0), "8.0 [0.3, 16.0]"),  # the lower bound must not read 0
        ((-0.2, -9.4, 7.1), "0 [-9, 7]"),
        ((1e-9, 0.5e-9, 1.5e-9), "1e-09 [5e-10, 1.5e-09]"),
        ((3.0, 3.0, 3.0), "3 [3, 3]"),
        ((3.0, math.nan, math.nan), "3 (no interval)"),
    ],
)
def test_numbers(given, expected):
    assert numbers(*given) == expected


def test_describe():
    assert describe(statistics.interval([1.0]), "s") == (
        "1 s (no interval) (one run: an interval needs at least 2, better 5 or more)"
    )


# --- False positives, by simulation ----------------------------------------------------------------------------------

SHAPES = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "skewed": lambda rng, shape: rng.exponential(size=shape),
    "bimodal": lambda rng, shape: np.where(rng.random(shape) < 0.3, 0.2, 0.8) + 0.1 * rng.standard_normal(shape),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seeds", [5, 10, 20])
@pytest.mark.parametrize("paired", [False, True])
def test_false_positives_of_the_mean(shape, seeds, paired):
    rng, studies = np.random.default_rng(seeds), 8_000
    a, b = (SHAPES[shape](rng, (studies, seeds, 1)) for _ in range(2))
    if paired:  # what a seed does to both
        common = SHAPES[shape](rng, (studies, seeds, 1))
        a, b = a + common, b + common
    error = comparisons.difference_moments(a, b, paired, "mean")
    p_values = intervals.careful_p(statistics.mean(a) - statistics.mean(b), error)
    for index in range(0, studies, 2_000):  # what was vectorised here is what the verdict uses
        assert compare(a[index], b[index], paired=paired).p_value == pytest.approx(p_values[index], rel=1e-9)
    assert np.mean(p_values < 0.05) <= 0.05


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seeds", [5, 10, 20])
@pytest.mark.parametrize("paired", [False, True])
def test_false_positives_of_the_interquartile_mean(shape, seeds, paired):
    rng, studies = np.random.default_rng(seeds + 1), 300
    wrong = 0
    for _ in range(studies):
        a, b = SHAPES[shape](rng, (2, seeds))
        # A baseline that is not above 0 saves the ratio, which is not looked at here.
        wrong += verdict(a - 100, b - 100, paired, aggregate="iqm", resamples=1_000).better is not None
    assert wrong / studies <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / studies)
