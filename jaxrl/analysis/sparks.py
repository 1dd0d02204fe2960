"""Curves in plain characters: a sparkline on one line, a plot in braille dots on several."""

from collections.abc import Sequence

import numpy as np

_BARS = "▁▂▃▄▅▆▇█"
# Bits of a braille cell, by row (downwards) and column.
_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def sparkline(values: Sequence[float] | np.ndarray, width: int = 24) -> str:
    """Bars from the lowest value to the highest, averaged to the width; a space for what is not finite."""
    array = np.asarray(values, np.float64)
    if not array.size:
        return ""
    parts = np.array_split(array, min(width, len(array)))
    means = np.asarray([part[np.isfinite(part)].mean() if np.isfinite(part).any() else np.nan for part in parts])
    known = means[np.isfinite(means)]
    if not known.size:
        return " " * len(means)
    low, span = known.min(), float(np.ptp(known))
    level = (means - low) / span if span > 0 else np.where(np.isfinite(means), 0.5, np.nan)
    return "".join(_BARS[min(int(x * 8), 7)] if np.isfinite(x) else " " for x in level)


def plot(
    x: np.ndarray, lines: Sequence[np.ndarray], width: int, height: int, bounds: tuple[float, float]
) -> list[list[tuple[str, int]]]:
    """Lines in braille dots, ``height`` rows of ``width`` cells; each cell with the line on top, -1 for none.

    Args:
        x: ``[points]``, increasing.
        lines: ``[points]`` each; where they meet the first is on top.
        bounds: values at the lower and the upper edge.
    """
    dots, top = np.zeros((height, width), int), np.full((height, width), -1)
    across = np.linspace(x[0], x[-1], 2 * width) if len(x) > 1 else np.full(1, x[0])
    low, high = bounds
    for index in reversed(range(len(lines))):
        y = np.asarray(lines[index], np.float64)
        known = np.isfinite(y)
        if not known.any():
            continue
        values = np.interp(across, np.asarray(x, np.float64)[known], y[known])
        place = (
            np.clip((high - values) / ((high - low) or 1.0) * (4 * height - 1), 0, 4 * height - 1).round().astype(int)
        )
        before = place[0]
        for column, row in enumerate(place):
            for at in range(min(before, row), max(before, row) + 1):
                dots[at // 4, column // 2] |= _BITS[at % 4][column % 2]
                top[at // 4, column // 2] = index
            before = row
    return [
        [(chr(0x2800 + bits) if bits else " ", owner) for bits, owner in zip(row, owners, strict=True)]
        for row, owners in zip(dots.tolist(), top.tolist(), strict=True)
    ]
