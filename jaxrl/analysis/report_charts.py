"""The charts and the table of a report, and which methods have which colour in them."""

import html
from collections.abc import Sequence

import numpy as np

from jaxrl.analysis import findings as told
from jaxrl.analysis import svg, tables
from jaxrl.analysis.figures import COLOURS
from jaxrl.analysis.statistics import Interval
from jaxrl.analysis.study import Cell, Study, thinned
from jaxrl.analysis.text import numbers

MOST_DRAWN = len(COLOURS)  # methods in one chart
MOST_BANDS = 4  # bands that can be told apart where they overlap
FAINT_POINTS = 200
escape = html.escape


def section(title: str, *parts: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n{''.join(parts)}\n</section>"


def colour_of(study: Study, method: str) -> int:
    """The method's colour in every chart."""
    return drawn_methods(study).index(method)


def swatch(study: Study, method: str) -> str:
    """The method's colour as a square; nothing where the charts leave the method out."""
    if method not in drawn_methods(study):
        return ""
    return f'<span class="swatch" style="background:var(--c{colour_of(study, method)})"></span>'


def drawn_methods(study: Study) -> list[str]:
    """What charts show: all methods where there are colours for all, else the baseline and those that rank best.

    A method's rank is the mean of its ranks in the tasks where it has a score.
    """
    if len(study.methods) <= MOST_DRAWN:
        return list(study.methods)
    ranks: dict[str, list[int]] = {method: [] for method in study.methods}
    for task in study.tasks:
        finals = {m: study.cells[m, task].final for m in study.methods if (m, task) in study.cells}
        values = {m: final.value for m, final in finals.items() if final is not None}
        ordered = sorted(values, key=values.__getitem__, reverse=not study.lower_is_better)
        for rank, method in enumerate(ordered):
            ranks[method].append(rank)
    mean = {m: (m != study.baseline, sum(of) / len(of) if of else np.inf) for m, of in ranks.items()}
    chosen = sorted(study.methods, key=mean.__getitem__)[:MOST_DRAWN]
    return [m for m in study.methods if m in chosen]


def drawn_note(study: Study) -> str:
    """Which methods charts show, where that is not all of them."""
    if len(study.methods) <= MOST_DRAWN:
        return ""
    return f"Drawn: the baseline and the best {MOST_DRAWN - 1} others of {len(study.methods)} methods."


def drawn(study: Study, task: str) -> list[Cell]:
    """The drawn methods that are in a task."""
    return [study.cells[m, task] for m in drawn_methods(study) if (m, task) in study.cells]


def scores_section(study: Study) -> str:
    """Curves and scores of each task side by side, then the table."""
    shown = {task: drawn(study, task) for task in study.tasks}
    names = drawn_methods(study)
    charts = []
    for task, some in shown.items():
        title = f'<h3 class="wide">{escape(task)}</h3>' if len(study.tasks) > 1 else ""
        charts.append(f"{title}<figure>{_curves(study, task, some)}</figure><figure>{_intervals(study, task)}</figure>")
    notes = [
        f"Left: the {told.AGGREGATES[study.aggregate]} over runs and its 95 % interval at each step; the dotted level is the threshold of the "
        "table. Right: a dot for each run, a bar for the interval, a mark for that mean."
    ]
    if any(cell.left_out for some in shown.values() for cell in some):
        notes.append("Thin dashed lines are runs that do not reach the step of the comparison.")
    notes += [drawn_note(study)]
    return section(
        "Curves and scores",
        legend(study, names),
        f'<div class="charts">{"".join(charts)}</div><p class="note">{" ".join(notes)}</p>',
        scores_table(study),
    )


def scores_table(study: Study) -> str:
    """Every method in every task."""
    heads = ["method", *told.columns(study, study.tasks[0])]
    if len(study.tasks) > 1:
        heads[2], heads[4] = f"final {study.metric}", "steps to threshold"
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = []
    for task in study.tasks:
        if len(study.tasks) > 1:
            level = study.threshold[task]
            about = f"at step {study.at[task]:,}" + (f", threshold {level:.4g}" if np.isfinite(level) else "")
            title = f'{escape(task)} <span class="bounds">{about}</span>'
            body.append(f'<tr class="task"><td colspan="{len(heads)}">{title}</td></tr>')
        body += _table_rows(study, task)
    note = (
        f"{told.AGGREGATES[study.aggregate].capitalize()}s over runs with 95 % intervals; bold stands apart from every other. The area under the curve is "
        "the average along the run. Steps are those by which half of the runs are at the threshold: 90 % of the baseline's "
        "gain, unless another was asked for."
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    return f'<div class="scroll">{table}</div><p class="note">{note}</p>'


def _table_rows(study: Study, task: str) -> list[str]:
    cells = told.rows(study, task)
    marks = {column: tables.best([row[column] for row in cells.values()], study.lower_is_better) for column in (1, 2)}
    lines = []
    for index, (method, row) in enumerate(cells.items()):
        texts = [f"<td>{swatch(study, method)}{escape(method)}</td>", f"<td>{escape(row[0])}</td>"]
        texts += [_interval_cell(row[column], marks[column][index]) for column in (1, 2)]
        lines.append(f"<tr>{''.join(texts)}<td>{escape(row[3])}</td></tr>")
    return lines


def _interval_cell(interval: Interval | None, best: bool) -> str:
    if interval is None:
        return "<td>–</td>"
    value, _, bounds = numbers(interval.value, interval.low, interval.high).partition(" ")
    if not np.isfinite(interval.low):
        value, bounds = f"{interval.value:,.4g}", ""
    return f'<td{" class=best" if best else ""}>{value} <span class="bounds">{bounds}</span></td>'


def legend(study: Study, methods: Sequence[str]) -> str:
    return f'<div class="legend">{"".join(f"<span>{swatch(study, m)}{escape(m)}</span>" for m in methods)}</div>'


def _intervals(study: Study, task: str) -> str:
    cells = [cell for cell in drawn(study, task) if cell.final is not None]
    rows = [svg.Dots(cell.method, colour_of(study, cell.method), cell.final, cell.scores) for cell in cells]
    return svg.interval_chart(rows, study.metric) if rows else "<p class='note'>no run reaches the step compared</p>"


def curve_lines(study: Study, cells: Sequence[Cell]) -> list[svg.Line]:
    """The band of each method, and the runs that do not count."""
    lines = []
    for cell in cells:
        colour = colour_of(study, cell.method)
        for run in (run for run in cell.left_out if len(run.curve.steps)):
            index = thinned(len(run.curve.steps), FAINT_POINTS)
            lines.append(svg.Line(colour, run.curve.steps[index], run.curve.values[index], faint=True))
        if cell.band is not None:
            band = cell.band
            lines.append(svg.Line(colour, band.steps, band.middle, band.low, band.high, cell.method))
    return lines


def _curves(study: Study, task: str, cells: Sequence[Cell]) -> str:
    level = study.threshold[task]
    return svg.line_chart(
        curve_lines(study, cells),
        x_label="environment steps",
        y_label=study.metric,
        at=study.at[task],
        level=level if np.isfinite(level) else None,
    )


def profile_section(study: Study) -> str:
    """Scores over all tasks: their aggregates, and the share of runs above each score."""
    if not study.profiles:
        return ""
    names = [m for m in drawn_methods(study) if m in study.profiles]
    if not names:
        return ""
    lines = []
    for method in names:
        profile = study.profiles[method]
        lines.append(
            svg.Line(colour_of(study, method), profile.thresholds, profile.share, profile.low, profile.high, method)
        )
    if len(lines) > MOST_BANDS:
        lines = [line._replace(low=line.y, high=line.y) for line in lines]
    levels = lines[0].x
    full = np.min([line.y for line in lines], axis=0) >= 1.0  # nothing to see where every run is above
    x_range = (float(levels[max(int(full.sum()) - 10, 0)]), float(levels[-1]))
    lines = [
        line._replace(**{k: getattr(line, k)[levels >= x_range[0]] for k in ("x", "y", "low", "high")})
        for line in lines
    ]
    chart = svg.line_chart(
        lines, x_label="normalised score", y_label="share of runs above", x_range=x_range, y_range=(0.0, 1.0)
    )
    none = np.zeros(0)
    dots = [svg.Dots(m, colour_of(study, m), study.normalised[m], none) for m in names]
    charts = [
        f"<figure><h3>Performance profile</h3>{chart}</figure>",
        f"<figure><h3>{told.AGGREGATES[study.aggregate].capitalize()}</h3>{svg.interval_chart(dots, 'normalised score')}</figure>",
    ]
    note = (
        "In each task 0 is the score at the first evaluation, over all runs, and 1 the best method's final score. "
        "The profile is the share of runs, over all tasks, whose score is above; higher is better everywhere it is higher."
    )
    return section(
        "All tasks together",
        legend(study, names),
        f'<div class="charts">{"".join(charts)}</div>',
        f'<p class="note">{note} {drawn_note(study)}</p>',
    )
