"""Times that mean something on a busy machine: both sides by turns, and ratios instead of seconds."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np


class Ratio(NamedTuple):
    """How many times longer one side took than the other, over the turns."""

    median: float
    low: float
    high: float
    turns: int

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}, {self.high:.2f}]"


def alternate(sides: Mapping[str, Callable[[], object]], turns: int = 7, warm: int = 1) -> dict[str, list[float]]:
    """Seconds of every side in every turn. The sides take turns, each turn in another order, after ``warm`` unmeasured calls.

    A side must wait for its own result (``jax.block_until_ready``).
    """
    for _ in range(warm):
        for call in sides.values():
            call()
    names = list(sides)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(turns):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            began = time.perf_counter()
            sides[name]()
            times[name].append(time.perf_counter() - began)
    return times


def quartiles(numerator: list[float], denominator: list[float]) -> tuple[float, float]:
    """Between which half of the ratios lie, turn by turn: what a busy machine does to a few turns does not count."""
    low, high = np.percentile(np.divide(numerator, denominator), [25, 75])
    return float(low), float(high)


def ratio(numerator: list[float], denominator: list[float]) -> Ratio:
    """Turn by turn, what one side took over what the other took: median, least and most."""
    each = [a / b for a, b in zip(numerator, denominator, strict=True)]
    return Ratio(statistics.median(each), min(each), max(each), len(each))
