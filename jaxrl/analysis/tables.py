"""Tables for papers and pages: ``mean [low, high]``, with those in bold that nothing else is clearly better than.

A cell is an :class:`jaxrl.analysis.statistics.Interval`, a number, text, or None (an empty cell).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl.analysis.statistics import Interval
from jaxrl.analysis.text import numbers
from jaxrl.errors import UsageError

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "\n": " ",
}
_MARKDOWN = "\\`*_{}[]<>|#~$"


def escape_latex(text: str) -> str:
    """Text that LaTeX sets as it stands."""
    return "".join(_LATEX.get(letter, letter) for letter in text)


def escape_markdown(text: str) -> str:
    """Text that Markdown shows as it stands, inside a table cell too."""
    return "".join("\\" + letter if letter in _MARKDOWN else letter for letter in text).replace("\n", " ")


def best(cells: Sequence[Any], lower_is_better: bool = False) -> list[bool]:
    """Which intervals stand alone at the top: its bound towards the others is beyond theirs, for every other interval.

    At most one is true; none where the best interval overlaps another, or where there is no other. Intervals that do not
    overlap differ clearly; such that overlap a little may do so too, which :func:`jaxrl.analysis.comparisons.verdict` tells.
    """
    known = [i for i, cell in enumerate(cells) if isinstance(cell, Interval) and cell.low == cell.low]
    marks = [False] * len(cells)
    for i in known if len(known) > 1 else ():
        others = [cells[j] for j in known if j != i]
        if lower_is_better:
            marks[i] = all(cells[i].high < other.low for other in others)
        else:
            marks[i] = all(cells[i].low > other.high for other in others)
    return marks


def cell_text(cell: Any) -> str:
    """A cell as plain text."""
    if cell is None:
        return ""
    if isinstance(cell, Interval):
        return f"{cell.value:.3g}" if cell.low != cell.low else numbers(cell.value, cell.low, cell.high)
    if isinstance(cell, float):
        return f"{cell:.4g}"
    return str(cell)


def markdown_table(
    rows: Mapping[str, Sequence[Any]],
    columns: Sequence[str],
    *,
    corner: str = "",
    lower_is_better: bool | Sequence[bool] = False,
) -> str:
    """A Markdown table. Numbers are right-aligned; the best of a column is bold where its interval stands apart.

    Args:
        rows: cells by the row's name, one for each column.
        corner: the heading above the rows' names.
        lower_is_better: for all columns, or one for each.
    """
    marks = _marks(rows, columns, lower_is_better)
    lines = [[corner, *columns]] + [[name, *map(cell_text, cells)] for name, cells in rows.items()]
    escaped = [[escape_markdown(text) for text in line] for line in lines]
    for line, bold in zip(escaped[1:], marks, strict=True):
        line[1:] = [f"**{text}**" if mark else text for text, mark in zip(line[1:], bold, strict=True)]
    rule = [":--", *["--:"] * len(columns)]
    return "\n".join("| " + " | ".join(line) + " |" for line in [escaped[0], rule, *escaped[1:]]) + "\n"


def latex_table(
    rows: Mapping[str, Sequence[Any]],
    columns: Sequence[str],
    *,
    corner: str = "",
    caption: str = "",
    label: str = "",
    lower_is_better: bool | Sequence[bool] = False,
) -> str:
    """A LaTeX table (needs ``\\usepackage{booktabs}``), inside a ``table`` float where there is a caption.

    Arguments as for :func:`markdown_table`; the caption is escaped, the label is not.
    """
    marks = _marks(rows, columns, lower_is_better)
    lines = [r"\begin{tabular}{l" + "r" * len(columns) + "}", r"\toprule"]
    lines += [" & ".join(_latex_cell(text) for text in [corner, *columns]) + r" \\", r"\midrule"]
    for (name, cells), bold in zip(rows.items(), marks, strict=True):
        texts = [_latex_cell(cell_text(cell)) for cell in cells]
        texts = [rf"\textbf{{{text}}}" if mark else text for text, mark in zip(texts, bold, strict=True)]
        lines.append(" & ".join([_latex_cell(name), *texts]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    if caption:
        head = [r"\begin{table}[t]", r"\centering", rf"\caption{{{escape_latex(caption)}}}"]
        lines = [*head, *([rf"\label{{{label}}}"] if label else []), *lines, r"\end{table}"]
    return "\n".join(lines) + "\n"


def _latex_cell(text: str) -> str:
    r"""Escaped, and guarded where it opens with "[", which LaTeX would read as an option of the ``\\`` before it."""
    escaped = escape_latex(text)
    return "{}" + escaped if escaped.startswith("[") else escaped


def _marks(
    rows: Mapping[str, Sequence[Any]], columns: Sequence[str], lower_is_better: bool | Sequence[bool]
) -> list[list[bool]]:
    for name, cells in rows.items():
        if len(cells) != len(columns):
            raise UsageError(f"row '{name}' has {len(cells)} cells for {len(columns)} columns")
    lower = [lower_is_better] * len(columns) if isinstance(lower_is_better, bool) else list(lower_is_better)
    if len(lower) != len(columns):
        raise UsageError(f"lower_is_better has {len(lower)} entries for {len(columns)} columns; give one, or one each")
    by_column = [best([cells[i] for cells in rows.values()], lower[i]) for i in range(len(columns))]
    return [[column[i] for column in by_column] for i in range(len(rows))]
