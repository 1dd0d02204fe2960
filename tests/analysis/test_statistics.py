"""Aggregates against rliable's numbers, intervals against hand-worked ones, and their coverage by simulation."""

import itertools
import math

import numpy as np
import pytest

from jaxrl import analysis
from jaxrl.analysis import intervals, profiles, statistics
from jaxrl.errors import UsageError

# What rliable 1.2.0 gives (with numpy 2.4 and pandas 2) for the scores of :func:`first` and :func:`second`.
RLIABLE = {
    "first": {"mean": 0.84485, "median": 0.8672, "iqm": 0.8479, "optimality_gap": 0.26245},
    "second": {
        "mean": 0.5252857142857144,
        "median": 0.4557142857142858,
        "iqm": 0.45135714285714285,
        "optimality_gap": 0.5093214285714285,
    },
    "first task": {"mean": 0.361, "median": 0.361, "iqm": 0.4216666666666667, "optimality_gap": 0.639},
    "second task": {
        "mean": 0.7491428571428572,
        "median": 0.7491428571428572,
        "iqm": 0.6365999999999999,
        "optimality_gap": 0.36257142857142866,
    },
}
# 20,000 resamples, 95 %, percentile, seed 0.
RLIABLE_INTERVALS = {
    "mean": (0.74644875, 0.9380025),
    "median": (0.7268925, 0.9931),
    "iqm": (0.7222975, 0.9594025),
    "optimality_gap": (0.19629875, 0.3371025),
}
THRESHOLDS = [0, 0.25, 0.5, 0.75, 1.0, 1.5]


def first():
    return np.random.default_rng(0).normal(0.6, 0.3, (5, 4)).round(3) + np.array([0, 0.2, 0.4, 0.6])


def second():
    return np.random.default_rng(1).gamma(2, 0.3, (7, 4)).round(3)


def scores_of(name):
    scores = first() if name.startswith("first") else second()
    return scores[:, :1] if name.endswith("task") else scores


@pytest.mark.parametrize("name", RLIABLE)
def test_aggregates_equal_rliable(name):
    scores = scores_of(name)
    for aggregate, expected in RLIABLE[name].items():
        assert statistics.interval(scores, aggregate, resamples=100).value == pytest.approx(expected, abs=1e-12)
        batch = statistics.aggregate_function(aggregate)(np.stack([scores, scores + 1]))
        assert batch.shape == (2,) and batch[0] == pytest.approx(expected, abs=1e-12)
    assert statistics.optimality_gap(first(), 0.5) == pytest.approx(0.04565, abs=1e-12)


def test_improvement_and_profiles_equal_rliable():
    assert profiles.probability_of_improvement(first(), second()).value == pytest.approx(0.7357142857142858, abs=1e-12)
    assert profiles.probability_of_improvement(second(), first()).value == pytest.approx(0.2642857142857143, abs=1e-12)
    with_ties = profiles.probability_of_improvement(first().round(1), second().round(1))
    assert with_ties.value == pytest.approx(0.7321428571428572, abs=1e-12)
    of_runs = profiles.performance_profile(first(), THRESHOLDS)
    np.testing.assert_allclose(of_runs.share, [0.95, 0.95, 0.75, 0.55, 0.35, 0.05], atol=1e-12)
    of_tasks = profiles.performance_profile(first(), THRESHOLDS, of="tasks")
    np.testing.assert_allclose(of_tasks.share, [1, 1, 0.75, 0.5, 0.5, 0], atol=1e-12)


@pytest.mark.parametrize("aggregate", RLIABLE_INTERVALS)
def test_percentile_bootstrap_agrees_with_rliable(aggregate):
    got = statistics.interval(first(), aggregate, method="percentile", resamples=20_000)
    # Both are Monte Carlo: a quantile of 20,000 resamples has a standard error of 1 % of the interval's width.
    width = RLIABLE_INTERVALS[aggregate][1] - RLIABLE_INTERVALS[aggregate][0]
    np.testing.assert_allclose((got.low, got.high), RLIABLE_INTERVALS[aggregate], atol=0.04 * width)


def test_interquartile_mean_of_few():
    assert statistics.interquartile_mean(np.array([[5.0], [1], [100]])) == pytest.approx(106 / 3)  # nothing is cut
    assert statistics.interquartile_mean(np.array([[5.0], [1], [100], [7]])) == pytest.approx(6)
    assert statistics.interquartile_mean(np.arange(8.0)[:, None]) == pytest.approx(3.5)


def test_student_intervals_by_hand():
    # mean 3, s^2 = 2.5, t(.975, 4) = 2.776445: 3 -+ 2.776445 * sqrt(2.5 / 5)
    got = statistics.interval([1, 2, 3, 4, 5], "mean", method="student")
    assert (got.low, got.high) == pytest.approx((3 - 1.963243, 3 + 1.963243), abs=1e-6)
    # winsorised 2 2 3 4 4: s_w^2 = 1; Yuen: sqrt(4 * 1 / (3 * 2)) = .816497; t(.975, 2) = 4.302653
    got = statistics.interval([1, 2, 3, 4, 5], "iqm", method="student")
    assert (got.low, got.high) == pytest.approx((3 - 3.513101, 3 + 3.513101), abs=1e-6)
    # two tasks: variance (2.5 / 5 + 10 / 5) / 4, freedom (.5 + 2)^2 / ((.25 + 4) / 4) = 5.882353
    scores = np.stack([np.arange(1.0, 6), np.arange(0.0, 10, 2)], 1)
    error = intervals.moments(scores)
    assert (error.variance, error.freedom) == pytest.approx((0.625, 5.882353), abs=1e-6)


def test_hall_interval_equals_its_definition():
    scores = np.random.default_rng(4).exponential(size=(7, 3))
    low, high = statistics.bounds(scores, "mean", "skew_t", 0.95)
    runs, tasks = scores.shape
    variance = third = biased = squares = 0.0
    for task in scores.T.astype(np.float64):
        d = task - task.mean()
        v = sum(d**2) / (runs - 1) / runs / tasks**2
        variance, squares = variance + v, squares + v**2 / (runs - 1)
        biased += sum(d**2) / runs**2 / tasks**2
        third += sum(d**3) / runs**3 / tasks**3
    a, freedom = 0.75 * third / biased**1.5, 0.75 * variance**2 / squares

    def g(t):
        return t + a * t**2 / 3 + a**2 * t**3 / 27 + a / 6

    from scipy.special import stdtrit

    quantile = stdtrit(freedom, 0.975)
    at_low, at_high = ((scores.mean() - bound) / math.sqrt(variance) for bound in (low, high))
    assert (g(at_low), g(at_high)) == pytest.approx((quantile, -quantile), rel=1e-9)
    for shift, expected in ((low, 0.05), (high, 0.05)):  # the p-value belongs to the interval
        p = intervals.skew_t_p(scores.mean() - shift, intervals.moments(scores))
        assert p == pytest.approx(expected, rel=1e-9)


def test_bootstrap_of_three_equals_every_resample():
    scores = np.array([[0.0], [1.0], [5.0]])
    every = sorted(np.mean(combination) for combination in itertools.product([0.0, 1.0, 5.0], repeat=3))
    drawn = statistics.bootstrap_draws(scores, "mean", "percentile", 40_000, (0,))
    for value in set(every):
        assert np.mean(np.isclose(drawn, value)) == pytest.approx(every.count(value) / 27, abs=0.01)


@pytest.mark.parametrize("shape", [(5, 1), (9, 1), (4, 6)])
def test_interquartile_mean_of_counts_equals_that_of_the_resample(shape):
    scores = np.random.default_rng(2).normal(size=shape).round(1)  # with ties
    counts = next(intervals.resampled_counts(*shape, 50, (3,)))
    assert counts.shape == (50, *shape) and (counts.sum(1) == shape[0]).all()
    expected = []
    for count in counts:
        columns = [np.repeat(scores[:, task], count[:, task]) for task in range(shape[1])]
        expected.append(statistics.interquartile_mean(np.stack(columns, 1)))
    np.testing.assert_allclose(intervals.iqm_of_counts(scores, counts), expected, atol=1e-12)
    if shape[1] == 1:
        batch = intervals.bootstrap_iqm_batch(np.stack([scores[:, 0], scores[::-1, 0]]), 50, (3,))
        assert batch.shape == (2, 50)
        np.testing.assert_allclose(batch[0], batch[1])
        np.testing.assert_allclose(np.sort(batch[0]).mean(), np.mean(expected), atol=0.2)


def test_resamples_come_in_chunks(monkeypatch):
    monkeypatch.setattr(intervals, "CHUNK", 600)
    counts = list(intervals.resampled_counts(5, 4, 100, (0,)))
    assert [len(part) for part in counts] == [30, 30, 30, 10]
    assert not np.array_equal(counts[0], counts[1])


def test_intervals_are_reproducible_and_translate():
    scores = np.random.default_rng(5).normal(size=(6, 3))
    for aggregate in ("mean", "median", "iqm"):
        one = statistics.interval(scores, aggregate, resamples=1000)
        assert one == statistics.interval(scores, aggregate, resamples=1000)
        moved = statistics.interval(10 * scores + 3, aggregate, resamples=1000)
        assert (moved.low, moved.value, moved.high) == pytest.approx(
            [10 * x + 3 for x in (one.low, one.value, one.high)]
        )
        assert one.low < one.value < one.high
    assert statistics.interval(scores, resamples=1000) != statistics.interval(scores, resamples=1000, seed=1)


def test_any_function_can_be_an_aggregate():
    scores = np.random.default_rng(6).normal(size=(8, 2))
    got = statistics.interval(scores, lambda x: x.max((-2, -1)), resamples=500)
    assert got.method == "expanded" and got.high <= got.value == scores.max()
    mean = statistics.interval(scores, statistics.mean, method="percentile", resamples=20_000)
    known = statistics.interval(scores, "mean", method="percentile", resamples=20_000)
    assert (mean.low, mean.high) == pytest.approx((known.low, known.high), abs=0.02)
    with pytest.raises(UsageError, match="must map"):
        statistics.interval(scores, lambda x: x.mean(-1), resamples=500)


def test_one_run_has_no_interval():
    for aggregate in statistics.AGGREGATES:
        got = statistics.interval([[0.25, 0.5]], aggregate)
        assert math.isnan(got.low) and math.isnan(got.high) and "one run" in got.note and math.isfinite(got.value)
    assert np.isnan(profiles.performance_profile([1.0], [0.5]).low).all()
    assert math.isnan(profiles.probability_of_improvement([1.0], [0.0, 2.0]).high)


def test_runs_that_do_not_vary():
    got = statistics.interval([0.3] * 5, "iqm")
    assert (got.low, got.high) == pytest.approx((0.3, 0.3)) and got.note == "the runs do not vary"
    got = statistics.interval([0.3] * 5, "mean")
    assert (got.low, got.high) == pytest.approx((0.3, 0.3))


def test_missing_scores_are_refused_by_name_or_dropped():
    scores = [1.0, math.nan, 3.0, math.inf, 5.0]
    with pytest.raises(UsageError, match="run 1, 3 are not finite"):
        statistics.interval(scores)
    with pytest.raises(UsageError, match="run seed 8, seed 2 are"):
        statistics.interval(scores, names=["seed 9", "seed 8", "seed 7", "seed 2", "seed 1"])
    with pytest.warns(UserWarning, match="left out run 1, 3"):
        got = statistics.interval(scores, "mean", missing="drop")
    assert (got.value, got.runs) == (3.0, 3)
    with pytest.raises(UsageError, match="no run has finite scores"):
        statistics.interval([math.nan, math.nan], missing="drop")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: statistics.interval([1.0, 2.0, 3.0], "optimality_gap", gamma=math.nan), "score of an optimal run"),
        (lambda: statistics.interval([]), "at least one of each"),
        (lambda: statistics.interval(np.zeros((2, 3, 4))), "shape"),
        (lambda: statistics.interval("abc"), "numbers"),
        (lambda: statistics.interval([1, 2, 3], "iqr"), "did you mean 'iqm'"),
        (lambda: statistics.interval([1, 2, 3], confidence=95), "did you mean 0.95"),
        (lambda: statistics.interval([1, 2, 3], resamples=1), "100 resamples"),
        (lambda: statistics.interval([1, 2, 3], method="bca"), "interval method"),
        (lambda: statistics.interval([1, 2, 3], "iqm", method="skew_t"), "'skew_t' works for mean"),
        (lambda: statistics.interval([1, 2, 3], missing="ignore"), "missing"),
        (lambda: statistics.interval([1, 2, 3], names=["a"]), "1 names for 3 runs"),
        (lambda: profiles.performance_profile([1, 2], [1], of="seeds"), "kind of profile"),
        (lambda: profiles.probability_of_improvement(np.ones((2, 2)), np.ones((2, 3))), "same tasks"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(UsageError, match=message):
        call()


def test_improvement_has_a_width_where_one_never_loses():
    got = analysis.probability_of_improvement([4, 5, 6, 7, 8], [0, 1, 2, 3, 3.5])
    assert got.value == 1.0 and got.high == pytest.approx(1.0) and 0.5 < got.low < 0.75
    mirrored = analysis.probability_of_improvement([0, 1, 2, 3, 3.5], [4, 5, 6, 7, 8])
    assert (mirrored.low, mirrored.high) == pytest.approx((1 - got.high, 1 - got.low), abs=1e-9)


# --- Coverage, by simulation -----------------------------------------------------------------------------------------


def mixture(failing, spread):
    def draw(rng, shape):
        return np.where(rng.random(shape) < failing, 0.2, 0.8) + spread * rng.standard_normal(shape)

    return draw


SHAPES = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "lognormal": lambda rng, shape: rng.lognormal(0, 0.5, shape),
    "exponential": lambda rng, shape: rng.exponential(size=shape),
    "some fail": mixture(0.3, 0.15),
}
# Shapes and numbers of runs where the interval is known to leave 93 to 97 %, with what it covers instead. Five runs of
# which a third may fail show no failure in one of six studies.
KNOWN = {("mean", "exponential", 5): 0.928, ("mean", "some fail", 5): 0.928}


def simulated(aggregate, shape, runs, studies):
    """The share of studies whose 95 % interval holds the truth, from 4 million draws."""
    draw, rng = SHAPES[shape], np.random.default_rng(20 * runs + len(shape))
    truth = float(statistics.aggregate_function(aggregate)(draw(np.random.default_rng(0), (2_000_000, 1))))
    scores = draw(rng, (studies, runs, 1))
    method = statistics.choose_method("auto", aggregate, runs, 1)
    low, high = statistics.bounds(scores, aggregate, method, 0.95, 2_000)
    return np.mean((low <= truth) & (truth <= high))


@pytest.mark.parametrize("runs", [5, 10, 20, 50])
@pytest.mark.parametrize("shape", SHAPES)
def test_coverage_of_the_mean(shape, runs):
    studies = 8_000
    covered = simulated("mean", shape, runs, studies)
    low, high = (KNOWN[("mean", shape, runs)],) * 2 if ("mean", shape, runs) in KNOWN else (0.93, 0.97)
    error = 2 * math.sqrt(0.05 * 0.95 / studies)
    assert low - error <= covered <= high + error


@pytest.mark.parametrize("runs", [5, 10, 20, 50])
@pytest.mark.parametrize("shape", SHAPES)
def test_coverage_of_the_interquartile_mean(shape, runs):
    studies = 1_500
    covered = simulated("iqm", shape, runs, studies)
    error = 2 * math.sqrt(0.05 * 0.95 / studies)
    assert 0.93 - error <= covered <= 0.97 + error


def suite(rng, tasks):
    """Unlike tasks: where their runs lie, how wide, and of which shape."""
    shapes = [SHAPES[name] for name in SHAPES]
    chosen = [shapes[i] for i in rng.integers(0, len(shapes), tasks)]
    return rng.uniform(0, 1.5, tasks), rng.uniform(0.05, 0.4, tasks), chosen


@pytest.mark.parametrize(("aggregate", "runs", "studies"), [("mean", 5, 3_000), ("mean", 10, 3_000), ("iqm", 5, 500)])
def test_coverage_over_many_tasks(aggregate, runs, studies):
    where, width, shapes = suite(np.random.default_rng(11), 12)

    def draw(rng, many):
        columns = [w + s * f(rng, (many, runs)) for w, s, f in zip(where, width, shapes, strict=True)]
        return np.stack(columns, -1)

    truth = float(statistics.aggregate_function(aggregate)(draw(np.random.default_rng(1), 100_000).reshape(-1, 12)))
    scores = draw(np.random.default_rng(2), studies)
    method = statistics.choose_method("auto", aggregate, runs, 12)
    if aggregate == "mean":
        low, high = statistics.bounds(scores, "mean", method, 0.95)
    else:
        low, high = np.array([statistics.bounds(x, "iqm", method, 0.95, 1_000) for x in scores]).T
    covered = np.mean((low <= truth) & (truth <= high))
    error = 2 * math.sqrt(0.05 * 0.95 / studies)
    assert 0.93 - error <= covered <= 0.97 + error


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_coverage_of_the_probability_of_improvement(shift):
    from scipy.special import ndtr

    rng, studies, truth = np.random.default_rng(3), 600, ndtr(shift / math.sqrt(2))
    covered = 0
    for _ in range(studies):
        got = profiles.probability_of_improvement(rng.normal(shift, 1, 10), rng.normal(0, 1, 10))
        covered += got.low <= truth <= got.high
    error = 2 * math.sqrt(0.05 * 0.95 / studies)
    assert 0.93 - error <= covered / studies <= 0.97 + error


@pytest.mark.parametrize("tasks", [1, 10])
def test_coverage_of_the_profile(tasks):
    from scipy.special import ndtr

    rng, centres = np.random.default_rng(4), np.linspace(-0.8, 0.8, tasks) if tasks > 1 else np.zeros(1)
    levels = np.linspace(-1, 1, 9)
    truth = ndtr(centres - levels[:, None]).mean(1)
    covered = np.zeros(len(levels))
    for _ in range(600):
        got = profiles.performance_profile(rng.normal(centres, 1, (10, tasks)), levels)
        covered += (got.low <= truth) & (truth <= got.high)
    assert 0.94 <= np.mean(covered / 600) <= 0.98  # a share of few runs is discrete: no single level can be exact
