"""A study in words and tables: the headline, a line for each verdict, Markdown, LaTeX, and plain data."""

import math
from typing import Any, NamedTuple

from jaxrl.analysis.comparisons import Verdict
from jaxrl.analysis.study import Cell, Study
from jaxrl.analysis.tables import escape_markdown, latex_table, markdown_table

WORDS = {True: "better", False: "worse", None: "cannot tell"}


AGGREGATES = {"iqm": "interquartile mean", "mean": "mean"}


class Finding(NamedTuple):
    """One verdict as a reader wants it."""

    better: bool | None
    method: str
    task: str  # "" over all tasks
    text: str  # "better by 12 % [4, 21], 10 seeds"
    detail: str  # how it was tested


def findings(study: Study) -> list[Finding]:
    """Every verdict: those over all tasks first, then task by task."""
    found = [_finding(verdict, method, "") for method, verdict in study.overall.items()]
    several = len(study.tasks) > 1
    return found + [
        _finding(verdict, method, task if several else "") for (method, task), verdict in study.verdicts.items()
    ]


def _finding(verdict: Verdict, method: str, task: str) -> Finding:
    how = "runs paired by seed" if verdict.comparison.paired else "runs not paired"
    p = "" if math.isnan(verdict.p_value) else f", p {_p(verdict.p_value)}"
    return Finding(verdict.better, method, task, verdict.text, how + p)


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"= {value:.2g}"


def decisive(study: Study) -> dict[str, Verdict]:
    """The verdict of each method that the headline rests on: over all tasks where there are several.

    Empty where several tasks have no verdict in common.
    """
    if study.overall:
        return study.overall
    return {m: v for (m, _), v in study.verdicts.items()} if len(study.tasks) == 1 else {}


def headline(study: Study) -> str:
    """The answer in one sentence, as far as there is one."""
    told = decisive(study)
    if len(study.methods) == 1:
        return f"{study.methods[0]}: one method, nothing to compare it with"
    if not told:
        return f"{len(study.methods)} methods in {len(study.tasks)} task{'s' if len(study.tasks) > 1 else ''}"
    if len(told) == 1:
        (method, verdict), *_ = told.items()
        if verdict.better is None:
            return f"These runs cannot tell whether {method} is better than {study.baseline}"
        return f"{method} is {WORDS[verdict.better]} than {study.baseline}"
    better, worse, open_ = ([m for m, v in told.items() if v.better is kind] for kind in (True, False, None))
    if len(worse) == len(told):
        return f"{study.baseline} is better than {'both' if len(told) == 2 else f'all {len(told)}'} others"
    if len(better) == len(told):
        return f"{'Both' if len(told) == 2 else f'All {len(told)}'} others are better than {study.baseline}"
    if len(open_) == len(told):
        return f"These runs cannot tell {'either' if len(told) == 2 else 'any'} of {len(told)} others from {study.baseline}"
    named = lambda methods: methods[0] if len(methods) == 1 else f"{len(methods)} of {len(told)} methods"
    verb = lambda methods: "is" if len(methods) == 1 else "are"
    parts = [f"{named(some)} {verb(some)} {word}" for some, word in ((better, "better"), (worse, "worse")) if some]
    parts[0] += f" than {study.baseline}"
    return "; ".join([*parts, *([f"{named(open_)} cannot be told apart from it"] if open_ else [])])


def lead(study: Study) -> str:
    """The number behind the headline, and what it is measured in."""
    told = decisive(study)
    first = ""
    if len(told) == 1:
        text = next(iter(told.values())).text
        first = text[0].upper() + text[1:] + ". "
    scale = f"{study.metric} at step {_step(study)}" if len(study.tasks) == 1 else f"final {study.metric} in each task"
    scale = "scores normalised over tasks" if study.overall else scale
    return f"{first}Compared: the {AGGREGATES[study.aggregate]} of {scale}, with 95 % intervals."


def _step(study: Study) -> str:
    return f"{study.at[study.tasks[0]]:,}"


def columns(study: Study, task: str) -> list[str]:
    """Headings of the table of a task."""
    return ["runs", f"{study.metric} at {study.at[task]:,}", "area under curve", _threshold_column(study, task)]


def _threshold_column(study: Study, task: str) -> str:
    level = study.threshold[task]
    return "steps to threshold" if math.isnan(level) else f"steps to {level:.4g}"


def rows(study: Study, task: str) -> dict[str, list[Any]]:
    """Cells of the table of a task, by method; None where there is nothing."""
    cells = {m: study.cells[m, task] for m in study.methods if (m, task) in study.cells}
    return {method: [_runs(cell), cell.final, cell.area, _steps_to(cell)] for method, cell in cells.items()}


def _runs(cell: Cell) -> str:
    return f"{len(cell.counted)}" + (f" of {len(cell.counted) + len(cell.left_out)}" if cell.left_out else "")


def _steps_to(cell: Cell) -> str:
    if not cell.counted or math.isnan(cell.steps_to):
        return ""
    if math.isfinite(cell.steps_to):
        return f"{cell.steps_to:,.0f}"
    return f"not reached ({cell.reached} of {len(cell.counted)})"


def lower(study: Study) -> list[bool]:
    """For each column, whether less is better."""
    return [False, study.lower_is_better, study.lower_is_better, True]


def markdown(study: Study) -> str:
    """The verdicts and a table for each task."""
    parts = [f"**{escape_markdown(headline(study))}.** {escape_markdown(lead(study))}\n"]
    lines = [f"* {escape_markdown(sentence(one, study.baseline))}" for one in findings(study)]
    parts.append("\n".join(lines) + "\n" if lines else "")
    for task in study.tasks:
        if len(study.tasks) > 1:
            parts.append(f"**{escape_markdown(task)}**\n")
        parts.append(
            markdown_table(rows(study, task), columns(study, task), corner="method", lower_is_better=lower(study))
        )
    if study.normalised:
        cells = {m: [interval] for m, interval in study.normalised.items()}
        parts.append(markdown_table(cells, ["normalised score over all tasks"], corner="method"))
    if study.notices:
        parts.append("Notices:\n")
        parts.append("\n".join(f"* {escape_markdown(text)}" for text in study.notices) + "\n")
    return "\n".join(part for part in parts if part)


def sentence(one: Finding, baseline: str) -> str:
    """A verdict on a line of its own."""
    where = f" in {one.task}" if one.task else ""
    return f"{one.method} against {baseline}{where}: {one.text} ({one.detail})"


def latex(study: Study) -> str:
    """A table float for each task; needs the package booktabs."""
    parts = []
    for index, task in enumerate(study.tasks):
        caption = f"{study.metric} in {task}: {AGGREGATES[study.aggregate]}s over runs with 95 % intervals."
        label = "tab:comparison" + (f"-{index + 1}" if len(study.tasks) > 1 else "")
        parts.append(
            latex_table(
                rows(study, task),
                columns(study, task),
                corner="method",
                caption=caption,
                label=label,
                lower_is_better=lower(study),
            )
        )
    return "\n".join(parts)


def as_data(study: Study) -> dict[str, Any]:
    """Everything that was found, as JSON can hold it: numbers that are not finite become None."""
    tasks = {}
    for task in study.tasks:
        cells = [study.cells[m, task] for m in study.methods if (m, task) in study.cells]
        tasks[task] = {
            "step": study.at[task],
            "threshold": study.threshold[task],
            "methods": {cell.method: _cell(cell) for cell in cells},
        }
    verdicts = [one._asdict() for one in findings(study)]
    return _plain(
        {
            "headline": headline(study),
            "metric": study.metric,
            "aggregate": study.aggregate,
            "baseline": study.baseline,
            "verdicts": verdicts,
            "tasks": tasks,
            "overall": {m: interval._asdict() for m, interval in study.normalised.items()},
            "differences": study.differences,
            "notices": list(study.notices),
        }
    )


def _cell(cell: Cell) -> dict[str, Any]:
    told = [{"folder": str(run.folder.path), "member": run.member, "seed": run.seed} for run in cell.counted]
    return {
        "final": None if cell.final is None else cell.final._asdict(),
        "area": None if cell.area is None else cell.area._asdict(),
        "steps_to_threshold": cell.steps_to,
        "reached": cell.reached,
        "runs": [{**one, "score": float(score)} for one, score in zip(told, cell.scores, strict=True)],
        "left_out": [str(run.folder.path) for run in cell.left_out],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
