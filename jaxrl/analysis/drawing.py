"""Figures of a study for papers: PNG and SVG at column width."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.analysis import figures, svg
from jaxrl.analysis.report_charts import MOST_BANDS, colour_of, curve_lines, drawn, drawn_methods, drawn_note
from jaxrl.analysis.study import Study

MOST_COLUMNS = 3


def write_curves(study: Study, out: Path) -> Path:
    """Learning curves with bands, a panel for each task: ``curves.png`` and ``curves.svg``."""
    figure, axes = _panels(len(study.tasks), 2.4)
    for axis, task in zip(axes, study.tasks, strict=False):
        lines = [line for line in curve_lines(study, drawn(study, task)) if not line.faint]
        for line in lines:
            figures.draw_band(axis, line.x, line.y, line.low, line.high, line.name, line.colour)
        if lines:
            low, high = svg.bounds(lines)[2:]
            pad = 0.04 * (high - low) or 1.0
            axis.set_ylim(low - pad, high + pad)
        axis.set_xlabel("environment steps")
        axis.xaxis.set_major_formatter(lambda value, _: svg.short(value))
        axis.locator_params(axis="x", nbins=5)
        if len(study.tasks) > 1:
            axis.set_title(task, fontsize=8)
    axes[0].set_ylabel(study.metric)
    _legend(figure, axes, study)
    return figures.save(figure, out / "curves.png")


def write_scores(study: Study, out: Path) -> Path:
    """Scores with their intervals, a panel for each task: ``scores.png`` and ``scores.svg``."""
    most = max(len(drawn(study, task)) for task in study.tasks)
    figure, axes = _panels(len(study.tasks), 0.7 + 0.26 * most)
    for axis, task in zip(axes, study.tasks, strict=False):
        finals = {cell.method: cell.final for cell in drawn(study, task) if cell.final is not None}
        colours = [colour_of(study, method) for method in finals]
        figures.draw_intervals(axis, list(finals), list(finals.values()), study.metric)
        for artist, colour in zip(axis.lines, colours, strict=True):
            artist.set_color(figures.COLOURS[colour])
        barred = [colour for colour, final in zip(colours, finals.values(), strict=True) if np.isfinite(final.low)]
        for patch, colour in zip(axis.patches, barred, strict=True):
            patch.set_color(figures.COLOURS[colour])
        axis.use_sticky_edges = False
        axis.margins(x=0.06)
        axis.xaxis.set_major_formatter(lambda value, _: svg.short(value))
        axis.locator_params(axis="x", nbins=5)
        if len(study.tasks) > 1:
            axis.set_title(task, fontsize=8)
    return figures.save(figure, out / "scores.png")


def write_profile(study: Study, out: Path) -> Path:
    """Performance profiles over all tasks: ``profile.png`` and ``profile.svg``."""
    figure, axis = figures.new_figure()
    for method in (m for m in drawn_methods(study) if m in study.profiles):
        profile = study.profiles[method]
        index = colour_of(study, method)
        bounds = (profile.low, profile.high) if len(study.profiles) <= MOST_BANDS else (profile.share, profile.share)
        figures.draw_profile(axis, profile.thresholds, profile.share, *bounds, method, index)
    axis.set_xlabel("normalised score")
    axis.set_ylabel("share of runs above")
    _legend(figure, [axis], study)
    return figures.save(figure, out / "profile.png")


def _panels(number: int, height: float) -> tuple[Any, list[Any]]:
    """A figure with a panel for each task: column width for one, more rows where they are many."""
    columns = min(number, MOST_COLUMNS)
    rows = -(-number // columns)
    width = figures.COLUMN_WIDTH if columns == 1 else 2.3 * columns
    figure, axes = figures.new_figure(width, height * rows, columns)
    axes = list(np.atleast_1d(axes))
    if rows > 1:
        figure.clear()
        axes = list(figure.subplots(rows, columns).ravel())
        for axis in axes:
            axis.grid(True, alpha=figures.STYLE["grid.alpha"], linewidth=figures.STYLE["grid.linewidth"])
            axis.spines[["top", "right"]].set_visible(False)
            axis.tick_params(labelsize=7)
            axis.xaxis.label.set_size(8)
            axis.yaxis.label.set_size(8)
        for axis in axes[number:]:
            axis.set_visible(False)
    return figure, axes


def _legend(figure: Any, axes: Sequence[Any], study: Study) -> None:
    handles: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        longest = max(map(len, handles))
        columns = min(len(handles), 1 if longest > 24 else 2 if longest > 14 else 4)
        figure.legend(
            handles.values(),
            handles.keys(),
            loc="outside upper center",
            ncols=columns,
            fontsize=7,
            frameon=False,
            title=drawn_note(study) or None,
            title_fontsize=7,
        )
