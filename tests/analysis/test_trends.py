import numpy as np
import pytest

from jaxrl.analysis.trends import slope, slopes
from jaxrl.errors import UsageError


def test_slopes_by_hand():
    np.testing.assert_allclose(slopes([0, 1, 3], [[1, 3, 7], [5, 5, 5], [0, 1, 0]]), [2, 0, -1 / 14], atol=1e-12)


def test_slope_has_the_mean_and_an_interval_around_it():
    rng = np.random.default_rng(0)
    y = 3.0 * np.array([0, 2, 4]) + rng.normal(0, 0.1, (12, 3))
    found = slope([0, 2, 4], y)
    assert found.low < 3.0 < found.high and found.high - found.low < 0.1
    assert found.value == pytest.approx(slopes([0, 2, 4], y).mean())


@pytest.mark.parametrize(("x", "y"), [([1, 1], [[0, 1]]), ([1, 2], [[0, np.nan]]), ([1, 2, 3], [[0, 1]]), ([1], [1])])
def test_refuses(x, y):
    with pytest.raises(UsageError):
        slopes(x, y)
