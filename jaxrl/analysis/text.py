"""Numbers as readers want them: as many digits as their interval supports."""

import math

from jaxrl.analysis.statistics import Interval


def numbers(value: float, low: float, high: float, suffix: str = "") -> str:
    """``12 % [4, 21]``: as many decimals as the interval's width supports, and no bound rounded to 0 that is not 0."""
    width = (high - low) / 2
    finite = math.isfinite(width)
    scale = width if finite and width > 0 else abs(value)
    decimals = max(0, -math.floor(math.log10(scale))) if scale > 0 and math.isfinite(scale) else 0
    if finite:
        smallest = min((abs(x) for x in (low, high) if x != 0), default=1.0)
        while decimals < 8 and float(f"{smallest:.{decimals}f}") == 0:
            decimals += 1
    if decimals > 6:
        shown = [f"{x:.3g}" for x in (value, low, high)]
    else:
        shown = [f"{x:,.{decimals}f}" for x in (value, low, high)]
        shown = [text[1:] if text.startswith("-") and float(text.replace(",", "")) == 0 else text for text in shown]
    return f"{shown[0]}{suffix} [{shown[1]}, {shown[2]}]" if finite else f"{shown[0]}{suffix} (no interval)"


def describe(interval: Interval, unit: str = "") -> str:
    """An interval as text: ``0.82 [0.71, 0.90]``, with its note where it has one."""
    text = numbers(interval.value, interval.low, interval.high, f" {unit}" if unit else "")
    return f"{text} ({interval.note})" if interval.note else text
