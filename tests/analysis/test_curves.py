"""Rows to curves, curves on a grid, bands, areas and thresholds, on numbers worked out by hand."""

import math

import numpy as np
import pytest

from jaxrl.analysis import curves as c
from jaxrl.analysis import statistics
from jaxrl.errors import UsageError

NAN = math.nan


def curve(steps, values, name="run"):
    return c.Curve(name, np.array(steps), np.array(values, float))


def test_rows_become_curves():
    rows = [
        {"step": 10, "member": 0, "seed": 7, "eval/return": 1.0, "critic/loss": 0.1},
        {"step": 10, "member": 1, "seed": 8, "eval/return": 5.0},
        {"step": 30, "member": 0, "seed": 7, "eval/return": 3.0},
        {"step": 20, "member": 0, "seed": 7, "eval/return": "nan"},  # as JSON lines hold it
        {"step": 30, "member": 1, "seed": 8, "critic/loss": 0.1},
        {"step": 30, "member": 0, "seed": 7, "eval/return": 4.0},  # written again after a resume
        {"step": 40, "member": 0, "seed": 7, "eval/return": None},
        {"step": 50, "member": 1, "seed": 8, "eval/return": "-inf"},
    ]
    first, second = c.read_curves(rows, name="a")
    assert first.name == "a member 0 seed 7" and second.name == "a member 1 seed 8"
    assert first.steps.tolist() == [10, 30] and first.values.tolist() == [1, 4] and first.missing == 1
    assert second.steps.tolist() == [10] and second.missing == 1
    with pytest.raises(UsageError, match=r"no row of a holds 'eval/retrun'; columns: critic/loss, eval/return"):
        c.read_curves(rows, "eval/retrun", "a")
    with pytest.raises(UsageError, match="there are no rows"):
        c.read_curves([])
    with pytest.raises(UsageError, match="step 3 is not a number: 'high'"):
        c.read_curves([{"step": 3, "eval/return": "high"}])


def test_last_value_is_carried_forward_and_nothing_extrapolated():
    got = c.carried_forward(curve([10, 20, 40], [1, 2, 4]), np.array([5, 10, 15, 20, 39, 40, 41]))
    np.testing.assert_array_equal(got, [NAN, 1, 1, 2, 2, 4, NAN])


def test_align_keeps_what_all_share():
    with pytest.warns(UserWarning, match=r"cut at step 30, where b ends \(others: 40\)"):
        got = c.align([curve([0, 20, 40], [0, 2, 4], "a"), curve([10, 30], [1, 3], "b")])
    assert got.steps.tolist() == [10, 20, 30] and got.names == ("a", "b")
    assert got.values.tolist() == [[0, 2, 2], [1, 1, 3]]
    whole = c.align([curve([0, 20, 40], [0, 2, 4], "a"), curve([10, 30], [1, 3], "b")], whole=True)
    assert whole.steps.tolist() == [0, 10, 20, 30, 40]
    np.testing.assert_array_equal(whole.values[1], [NAN, 1, 1, 3, NAN])
    given = c.align([curve([0, 20], [0, 2])], steps=[5, 25])
    np.testing.assert_array_equal(given.values, [[0, NAN]])


def test_align_leaves_out_and_refuses():
    with pytest.warns(UserWarning, match="left out empty: it has no finite value"):
        got = c.align([curve([0, 1], [0, 1]), curve([], [], "empty")])
    assert got.names == ("run",)
    with pytest.warns(UserWarning, match="2 values are not finite"):
        c.align([curve([0, 1], [0, 1])._replace(missing=2)])
    with pytest.raises(UsageError, match="no curve"):
        c.align([])
    with pytest.raises(UsageError, match="early ends at step 5 before late starts at 6"):
        c.align([curve([0, 5], [0, 1], "early"), curve([6, 9], [0, 1], "late")])
    with pytest.raises(UsageError, match="strictly increasing"):
        c.align([curve([0, 5], [0, 1])], steps=[3, 3])


def test_a_long_grid_is_thinned_to_its_ends():
    got = c.align([curve(range(5000), range(5000))], points=11)
    assert len(got.steps) == 11 and got.steps[0] == 0 and got.steps[-1] == 4999
    assert np.ptp(np.diff(got.steps)) <= 1
    np.testing.assert_array_equal(got.values[0], got.steps)


def test_band_equals_the_interval_at_every_step():
    values = np.random.default_rng(0).normal(size=(6, 4))
    values[2, 3] = NAN
    values[:5, 0] = NAN
    aligned = c.Curves(np.arange(4), values, tuple("abcdef"))
    for aggregate in ("iqm", "mean"):
        got = c.band(aligned, aggregate)
        assert got.runs.tolist() == [1, 6, 6, 5]
        assert got.middle[0] == values[5, 0] and np.isnan(got.low[0])
        for step in (1, 2, 3):
            scores = values[np.isfinite(values[:, step]), step]
            expected = statistics.interval(scores, aggregate, resamples=c.BAND_RESAMPLES)
            assert (got.middle[step], got.low[step], got.high[step]) == pytest.approx(
                (expected.value, expected.low, expected.high)
            )
    empty = c.band(aligned._replace(values=np.full((6, 4), NAN)))
    assert np.isnan(empty.middle).all() and not empty.runs.any()
    with pytest.raises(UsageError, match="'iqm' or 'mean'"):
        c.band(aligned, "median")


def test_area():
    aligned = c.Curves(np.array([0, 10, 40]), np.array([[0.0, 4, 4], [1, NAN, 1]]), ("a", "b"))
    got = c.area(aligned)
    assert got[0] == pytest.approx((20 + 120) / 40) and np.isnan(got[1])
    assert c.area(c.Curves(np.array([5]), np.array([[3.0]]), ("a",))).tolist() == [3]


def test_steps_to_a_threshold():
    values = np.array([[0.0, 2, 1, 3], [0, 1, 1, NAN], [NAN] * 4, [5, 0, 0, 0]])
    aligned = c.Curves(np.array([0, 10, 20, 30]), values, tuple("abcd"))
    got = c.steps_to(aligned, 2)
    np.testing.assert_array_equal(got.steps, [10, 20, NAN, 0])
    assert got.reached.tolist() == [True, False, False, True]
    down = c.steps_to(aligned, 0, lower_is_better=True)
    np.testing.assert_array_equal(down.steps, [0, 0, NAN, 10])
    with pytest.raises(UsageError, match="finite"):
        c.steps_to(aligned, NAN)


def test_median_steps_with_censoring():
    # Survival after 10: 3/4, one is censored at 15, after 20: 3/4 * 1/2 = 3/8
    got = c.Reached(np.array([10.0, 15, 20, 30]), np.array([True, False, True, True]))
    assert c.median_steps(got) == 20
    assert c.median_steps(c.Reached(np.array([10.0, 40, 40]), np.array([True, False, False]))) == math.inf
    assert c.median_steps(c.Reached(np.array([10.0, 40]), np.array([True, False]))) == 10
    assert c.median_steps(c.Reached(np.array([NAN]), np.array([False]))) == math.inf


def test_many_runs_are_quick():
    rng = np.random.default_rng(1)
    many = [curve(range(0, 10_000, 10), rng.normal(size=1000), str(i)) for i in range(200)]
    got = c.band(c.align(many))
    assert got.steps.shape == (1000,) and np.all(got.low < got.high)
