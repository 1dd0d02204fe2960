"""Charts as SVG text for pages: no library in the page, colours from the page's own theme.

Colours are the custom properties ``--c0`` to ``--c7``, ``--ink``, ``--muted`` and ``--rule``, which the page sets for light
and dark. A chart is drawn 420 units wide, and reads at that many pixels and above.
"""

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl.analysis.figures import COLOURS

WIDTH = 420
BAND_ROOM = 0.25  # of the lines' height, above and below them
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 10, 34


class Line(NamedTuple):
    """One line of a chart, with its interval behind it. Bounds may be NaN."""

    colour: int
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    name: str = ""
    faint: bool = False  # thin and dashed: what does not count


class Dots(NamedTuple):
    """One row of an interval chart."""

    name: str
    colour: int
    interval: Any  # with value, low, high
    scores: np.ndarray


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers between two bounds: multiples of 1, 2 or 5 times a power of ten."""
    span = high - low
    if not (math.isfinite(span) and span > 0):
        return [low]
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(power * m for m in (1, 2, 5, 10) if span / (power * m) <= most)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def short(value: float) -> str:
    """A number for an axis: 20k, 1.5M, 0.25."""
    for size, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{suffix}"
    return f"{value:.4g}" if value else "0"


def bounds(lines: Iterable[Line]) -> tuple[float, float, float, float]:
    """The rectangle to show: x and y, smallest and largest. Every line is whole; a band that reaches far is cut.

    The interval of three runs may be ten times as wide as all that happened.
    """
    xs, ys, bands = (np.concatenate([np.zeros(0), *parts]) for parts in zip(*map(_extent, lines), strict=True))
    xs, ys, bands = (part[np.isfinite(part)] for part in (xs, ys, bands))
    if not len(xs) or not len(ys):
        return 0.0, 1.0, 0.0, 1.0
    low, high = float(ys.min()), float(ys.max())
    if len(bands):
        room = BAND_ROOM * (high - low) if high > low else np.inf
        low, high = min(low, max(float(bands.min()), low - room)), max(high, min(float(bands.max()), high + room))
    return float(xs.min()), float(xs.max()), low, high


def _extent(line: Line) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    bands = [np.asarray(y, np.float64) for y in (line.low, line.high) if y is not None]
    return np.asarray(line.x, np.float64), np.asarray(line.y, np.float64), np.concatenate([np.zeros(0), *bands])


def line_chart(
    lines: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    height: int = 260,
    width: int = WIDTH,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    at: float | None = None,
    level: float | None = None,
) -> str:
    """Lines with bands on two axes.

    Args:
        at: where to draw a vertical line; level: where to draw a horizontal one.
    """
    x0, x1, y0, y1 = bounds(lines)
    x0, x1 = x_range or (x0, x1 if x1 > x0 else x0 + 1)
    if y_range is None:
        pad = 0.04 * (y1 - y0) or 0.5 * abs(y1) or 1.0
        y_range = (y0 - pad, y1 + pad)
    right, bottom = width - _RIGHT, height - _BOTTOM
    frame = (x0, x1, *y_range, _LEFT, right, _TOP, bottom)
    parts = [_axes(frame, x_label, y_label, height)]
    if level is not None and y_range[0] < level < y_range[1]:
        y = _at(level, y_range[0], y_range[1], bottom, _TOP)
        parts.append(f'<line class="mark" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
    if at is not None and x0 < at < x1:
        x = _at(at, x0, x1, _LEFT, right)
        parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>')
    parts += [_area(line, frame) for line in lines] + [_stroke(line, frame) for line in lines]
    label = html.escape(f"{y_label} against {x_label}: {', '.join(line.name for line in lines if line.name)}")
    return _svg(width, height, label, parts)


def _svg(width: float, height: float, label: str, parts: Iterable[str]) -> str:
    return f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _at(value: Any, low: float, high: float, start: float, end: float) -> Any:
    return start + (value - low) / (high - low) * (end - start)


def _axes(frame: tuple[float, ...], x_label: str, y_label: str, height: int) -> str:
    x0, x1, y0, y1, left, right, top, bottom = frame
    parts = []
    for tick in ticks(y0, y1):
        y = _at(tick, y0, y1, bottom, top)
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{left - 6}" y="{y + 3.5:.1f}" text-anchor="end">{short(tick)}</text>')
    for tick in ticks(x0, x1, 5 if right > 350 else 4):
        x = _at(tick, x0, x1, left, right)
        anchor = "end" if x > right - 8 else "middle"
        parts.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 14}" text-anchor="{anchor}">{short(tick)}</text>')
    parts.append(f'<line class="axis" x1="{left}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
    parts.append(f'<text class="label" x="{right}" y="{height - 4}" text-anchor="end">{html.escape(x_label)}</text>')
    if y_label:
        middle = (top + bottom) / 2
        turned = f'transform="rotate(-90 10 {middle:.1f})"'
        parts.append(
            f'<text class="label" x="10" y="{middle:.1f}" text-anchor="middle" {turned}>{html.escape(y_label)}</text>'
        )
    return "".join(parts)


def _points(line: Line, y: np.ndarray, frame: tuple[float, ...]) -> list[str]:
    x0, x1, y0, y1, left, right, top, bottom = frame
    xs, ys = _at(np.asarray(line.x, np.float64), x0, x1, left, right), _at(y, y0, y1, bottom, top)
    return [f"{a:.1f},{b:.1f}" for a, b in zip(xs, np.clip(ys, top - 2, bottom + 2), strict=True)]


def _runs_of(mask: np.ndarray) -> list[slice]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(int)))
    return [slice(a, b) for a, b in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)]


def _area(line: Line, frame: tuple[float, ...]) -> str:
    if line.low is None or line.high is None:
        return ""
    parts = []
    for part in _runs_of(np.isfinite(line.low) & np.isfinite(line.high)):
        cut = line._replace(x=line.x[part])
        outline = _points(cut, line.high[part], frame) + _points(cut, line.low[part], frame)[::-1]
        parts.append(f'<path class="band" style="fill:var(--c{line.colour})" d="M{" L".join(outline)}Z"/>')
    return "".join(parts)


def _stroke(line: Line, frame: tuple[float, ...]) -> str:
    parts = []
    for part in _runs_of(np.isfinite(line.y)):
        points = _points(line._replace(x=line.x[part]), line.y[part], frame)
        style = f"var(--c{line.colour})"
        if len(points) == 1:
            x, y = points[0].split(",")
            parts.append(f'<circle r="2.5" cx="{x}" cy="{y}" style="fill:{style}"/>')
        else:
            kind = "line faint" if line.faint else "line"
            parts.append(f'<path class="{kind}" style="stroke:{style}" d="M{" L".join(points)}"/>')
    return "".join(parts)


def interval_chart(rows: Sequence[Dots], label: str) -> str:
    """A row for each name: a dot for every run, a bar for the interval, a mark for the estimate."""
    values = np.concatenate(
        [np.concatenate([row.scores, [row.interval.low, row.interval.value, row.interval.high]]) for row in rows]
    )
    values = values[np.isfinite(values)]
    low, high = float(values.min()), float(values.max())
    pad = 0.04 * (high - low) or 0.5 * abs(high) or 1.0
    low, high, left, right, step = low - pad, high + pad, 8, WIDTH - 8, 40
    height = _TOP + step * len(rows) + _BOTTOM
    bottom, parts = height - _BOTTOM, []
    for tick in ticks(low, high):
        x = _at(tick, low, high, left, right)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{short(tick)}</text>')
    for index, row in enumerate(rows):
        parts.append(_dots(row, _TOP + step * index, (low, high, left, right)))
    parts.append(f'<text class="label" x="{right}" y="{height - 4}" text-anchor="end">{html.escape(label)}</text>')
    return _svg(WIDTH, height, html.escape(f"{label} of {', '.join(row.name for row in rows)}"), parts)


def _dots(row: Dots, top: float, scale: tuple[float, float, float, float]) -> str:
    colour, y = f"var(--c{row.colour})", top + 26
    parts = [f'<text class="name" x="{scale[2]}" y="{top + 13}">{html.escape(row.name)}</text>']
    if math.isfinite(row.interval.low) and math.isfinite(row.interval.high):
        a, b = (_at(value, *scale) for value in (row.interval.low, row.interval.high))
        parts.append(
            f'<rect class="bar" style="fill:{colour}" x="{a:.1f}" y="{y - 5}" width="{max(b - a, 1):.1f}" height="10" rx="2"/>'
        )
    for x in _at(row.scores, *scale):
        parts.append(f'<circle class="dot" r="2.2" cx="{x:.1f}" cy="{y}" style="fill:{colour}"/>')
    x = _at(row.interval.value, *scale)
    parts.append(f'<line class="middle" style="stroke:{colour}" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 8}" y2="{y + 8}"/>')
    return "".join(parts)


# The two that the page's own ground would swallow are changed with it.
_DARK = {"#0072B2": "#4AA3DF", "#000000": "#E6E6E6", "#009E73": "#2BB58B", "#F0E442": "#F0E442", "#CC79A7": "#D98DB7"}
_LIGHT = {"#F0E442": "#B8AD00"}


def theme() -> tuple[str, str]:
    """Custom properties for the colours of lines, on a light ground and on a dark one."""
    light = "".join(f"--c{i}:{_LIGHT.get(colour, colour)};" for i, colour in enumerate(COLOURS))
    dark = "".join(f"--c{i}:{_DARK.get(colour, colour)};" for i, colour in enumerate(COLOURS))
    return light, dark
