"""What an experiment claims, the number it measured, and whether the claim holds."""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl.analysis.text import numbers
from jaxrl.errors import UsageError


class Claim(NamedTuple):
    """One statement that a study checks. ``holds`` is None where the runs cannot tell."""

    name: str  # short, unique in the study
    statement: str  # what should be true, in words
    value: float  # what was measured
    low: float  # the bounds of its interval; NaN where there is none
    high: float
    holds: bool | None
    detail: str = ""  # seeds, units, what the paper says


WORDS = {True: "holds", False: "does not hold", None: "cannot tell"}
COLOURS = {True: "green", False: "red", None: "yellow"}


def claim_above(
    name: str, statement: str, value: float, low: float, high: float, threshold: float, detail: str = ""
) -> Claim:
    """A claim that something exceeds a threshold: holds where the whole interval does, fails where none of it does."""
    holds = None  # comparisons with NaN are false, so that a claim without an interval stays open
    if low > threshold:
        holds = True
    elif high < threshold:
        holds = False
    return Claim(name, statement, value, low, high, holds, detail)


def claims_table(claims: Iterable[Claim], title: str = "Claims") -> Any:
    """A ``rich`` table of the claims, in their order."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), title_justify="left")
    for column in ("claim", "measured", "holds", "detail"):
        table.add_column(column, overflow="fold")
    for claim in claims:
        measured = f"{claim.value:g}" if math.isnan(claim.low) else numbers(claim.value, claim.low, claim.high)
        word = f"[{COLOURS[claim.holds]}]{WORDS[claim.holds]}[/]"
        table.add_row(escape(claim.statement), escape(measured), word, escape(claim.detail))
    return table


def write_claims(path: str | Path, claims: Iterable[Claim]) -> Path:
    """Write ``claims.json``: a list of objects with the fields of :class:`Claim`; NaN and infinity become null.

    The file is replaced at once, so that a reader never sees half of it.

    Raises:
        UsageError: where two claims have one name.
    """
    path = Path(path)
    rows = [{field: _plain(value) for field, value in claim._asdict().items()} for claim in claims]
    names = [row["name"] for row in rows]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"two claims are named '{twice[0]}'; a name must be unique in a study")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(rows, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    partial.replace(path)
    return path


def read_claims(path: str | Path) -> list[Claim]:
    """The claims of a ``claims.json``; null numbers become NaN."""
    rows = json.loads(Path(path).read_text(encoding="utf-8"))
    numeric = ("value", "low", "high")
    return [Claim(**{k: math.nan if k in numeric and v is None else v for k, v in row.items()}) for row in rows]


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
