"""How something changes along an axis, run by run."""

from typing import Any

import numpy as np

from jaxrl.analysis import statistics
from jaxrl.analysis.statistics import Interval
from jaxrl.errors import UsageError


def slopes(x: Any, y: Any) -> np.ndarray:
    """The least-squares slope of every row of ``y`` over ``x``. float64 ``[runs]``.

    ``sum_j (x_j - mean x) y_j / sum_j (x_j - mean x)²``

    Args:
        x: ``[points]``, not all alike.
        y: ``[runs, points]``, all finite.
    Raises:
        UsageError: for shapes that do not fit, numbers that are not finite, or an ``x`` without spread.
    """
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if x.ndim != 1 or y.ndim != 2 or y.shape[1] != x.size:
        raise UsageError(f"slopes need x [points] and y [runs, points], got {x.shape} and {y.shape}")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise UsageError("slopes need finite numbers; leave out runs that failed")
    centred = x - x.mean()
    if not centred.any():
        raise UsageError("slopes need at least two different x")
    return y @ centred / (centred @ centred)


def slope(x: Any, y: Any, confidence: float = 0.95) -> Interval:
    """The mean slope over the runs with its interval. Paired by construction: every run is at every ``x``."""
    return statistics.interval(slopes(x, y), "mean", confidence=confidence)
