"""Figures that read at column width, in colours that colour-blind readers can tell apart."""

import io
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

# Okabe and Ito's palette, ordered so that neighbours differ in lightness too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
COLUMN_WIDTH = 3.4  # inches, the column of a two-column paper
STYLE = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "figure.constrained_layout.use": True,
}


def new_figure(width: float = COLUMN_WIDTH, height: float = 2.4, columns: int = 1, rows: int = 1) -> tuple[Any, Any]:
    """A figure and its axes (one, or an array of ``columns`` or ``rows``), in the house style; drawn without a display."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with mpl.rc_context(STYLE):
        figure = _figure_class()(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(rows, columns)
        for axis in np.ravel(axes):
            axis.grid(True, alpha=STYLE["grid.alpha"], linewidth=STYLE["grid.linewidth"])
            axis.spines[["top", "right"]].set_visible(False)
            axis.tick_params(labelsize=7)
            axis.xaxis.label.set_size(8)
            axis.yaxis.label.set_size(8)
            axis.title.set_size(8)
    return figure, axes


@lru_cache
def _figure_class() -> type:
    """A figure that a notebook shows when it is a cell's value, whether or not pyplot's own backend is there."""
    from matplotlib.figure import Figure

    return type("ShownFigure", (Figure,), {"_repr_png_": png})


def png(figure: Any, dpi: int = 150) -> bytes:
    """The figure as the content of a PNG file."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=dpi)
    return content.getvalue()


def draw_band(
    axis: Any, x: Sequence, middle: Sequence, low: Sequence, high: Sequence, label: str, index: int = 0
) -> None:
    """A line with its interval behind it."""
    colour = COLOURS[index % len(COLOURS)]
    axis.plot(x, middle, color=colour, linewidth=1.2, label=label)
    axis.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)


def save(figure: Any, path: Path, dpi: int = 200) -> Path:
    """Write ``path`` as PNG and its SVG twin beside it; returns the PNG's path."""
    figure.savefig(path.with_suffix(".png"), dpi=dpi)
    figure.savefig(path.with_suffix(".svg"))
    return path.with_suffix(".png")


def draw_profile(
    axis: Any, thresholds: Sequence, share: Sequence, low: Sequence, high: Sequence, label: str, index: int = 0
) -> None:
    """A performance profile, the share above each threshold, with its pointwise bounds behind it."""
    draw_band(axis, thresholds, share, low, high, label, index)
    axis.set_ylim(-0.02, 1.02)
    axis.set_xlabel("score")
    axis.set_ylabel("share above")


def draw_intervals(axis: Any, names: Sequence[str], intervals: Sequence[Any], label: str = "") -> None:
    """One row a name, the first at the top: a bar from ``low`` to ``high`` and a mark at ``value``.

    Args:
        intervals: anything with ``value``, ``low`` and ``high``; without bounds (NaN) only the mark is drawn.
        label: of the axis of values.
    """
    for row, interval in enumerate(intervals):
        colour = COLOURS[row % len(COLOURS)]
        if np.isfinite(interval.low) and np.isfinite(interval.high):
            axis.barh(row, interval.high - interval.low, left=interval.low, height=0.5, color=colour, alpha=0.35)
        axis.plot([interval.value] * 2, [row - 0.25, row + 0.25], color=colour, linewidth=1.6)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.grid(False, axis="y")
    if label:
        axis.set_xlabel(label)
