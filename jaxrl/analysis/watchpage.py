"""The page of a run that is being watched: the same as the terminal shows, for a browser."""

import html
import math
from collections.abc import Sequence

import numpy as np

from jaxrl.analysis import svg
from jaxrl.analysis.report import fill
from jaxrl.analysis.watching import (
    MAIN,
    Series,
    Standing,
    Watched,
    drawn_members,
    duration,
    settings_table,
    standing,
)

REFRESH_MILLISECONDS = 2000
MOST_CHARTS = 24
escape = html.escape


def page(watched: Watched) -> str:
    """The whole page, which fetches ``fragment`` again and again."""
    return fill(
        "watch.html",
        title=escape(watched.folder.path.name),
        fragment=fragment(watched),
        refresh=str(REFRESH_MILLISECONDS),
    )


def fragment(watched: Watched) -> str:
    """What changes: state, numbers, charts."""
    now, found = standing(watched), watched.series
    kind = {"finished": "good", "interrupted": "bad", "silent": "bad"}.get(now.state, "")
    share = 100 * now.step / now.planned if now.planned else math.nan
    about = " · ".join(
        part for part in (str(watched.folder.path), watched.folder.agent, watched.folder.environment) if part
    )
    parts = [
        f'<header><p class="over">{escape(about)}</p><h1 class="{kind}">{escape(now.state.capitalize())}</h1>',
        f'<p class="lead">{escape(now.message)}</p>',
        f'<div class="track"><div style="width:{min(share, 100):.1f}%"></div></div>' if math.isfinite(share) else "",
        facts(now, found),
        notes(watched),
        "</header>",
        main_chart(found),
        swept(watched, found),
        rest(found),
    ]
    return "\n".join(part for part in parts if part)


def facts(now: Standing, found: Sequence[Series]) -> str:
    """The numbers that a reader looks for first."""
    shown = {"steps": f"{now.step:,}" + (f" <small>of {now.planned:,}</small>" if now.planned else "")}
    main = next((one for one in found if one.name in MAIN), None)
    if main is not None:
        value, space, spread = latest_text(main).partition(" (")
        shown[escape(main.name)] = value + (f" <small>{spread.rstrip(')')}</small>" if space else "")
    shown |= {
        "members": f"{now.members:,}" if now.members > 1 else "",
        "steps a second": f"{now.rate:,.0f}" if math.isfinite(now.rate) else "–",
        "time taken": duration(now.seconds),
        "time left": duration(now.left) if now.state == "running" else "",
    }
    items = "".join(f"<div><dt>{k}</dt><dd>{v}</dd></div>" for k, v in shown.items() if v)
    return f'<dl class="facts">{items}</dl>'


def latest_text(one: Series) -> str:
    """The mean of the latest values, and their range where there are several members."""
    known = one.latest[np.isfinite(one.latest)]
    if not known.size:
        return "not finite"
    text = number(float(known.mean()))
    return text if len(one.latest) == 1 else f"{text} ({number(float(known.min()))} to {number(float(known.max()))})"


def number(value: float) -> str:
    """Four digits, with separators."""
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def problems(watched: Watched) -> list[str]:
    """What cannot be read."""
    found = list(watched.folder.problems)
    if watched.skipped:
        found.append(f"{watched.skipped} line{'s' if watched.skipped > 1 else ''} of metrics.jsonl cannot be read")
    if watched.half:
        found.append("the last line of metrics.jsonl is half-written")
    return found


def notes(watched: Watched) -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in problems(watched))
    return f'<div class="notices"><ul>{items}</ul></div>' if items else ""


def chart(one: Series, colour: int, width: int = svg.WIDTH, height: int = 260) -> str:
    """The mean over members, its interval, and the members behind it."""
    if one.band is None:
        return '<p class="note">no finite value yet</p>'
    lines = [svg.Line(colour, curve.steps, curve.values, faint=True) for curve in drawn_members(one)]
    band = one.band
    lines.append(svg.Line(colour, band.steps, band.middle, band.low, band.high, one.name))
    return svg.line_chart(lines, x_label="environment steps", y_label="", width=width, height=height)


def main_chart(found: Sequence[Series]) -> str:
    """The returns."""
    charts = [one for one in found if one.name in MAIN]
    if not charts:
        return ""
    figures = "".join(
        f"<figure><h3>{escape(one.name)} <span class='value'>{escape(latest_text(one))}</span></h3>{chart(one, i)}</figure>"
        for i, one in enumerate(charts)
    )
    several = max(len(one.curves) for one in charts) > 1
    note = "The line is the mean over members, the band its 95 % interval; dashed lines are members." if several else ""
    tail = f'<p class="note">{note}</p>' if note else ""
    return f'<section><h2>Returns</h2><div class="charts">{figures}</div>{tail}</section>'


def swept(watched: Watched, found: Sequence[Series]) -> str:
    """The settings of a sweep, best first."""
    main = next((one.name for one in found if one.name in MAIN), "")
    rows = settings_table(watched, main)
    if not rows:
        return ""
    body = "".join(
        f"<tr><td>{escape(name)}</td><td>{len(values)}</td><td>{number(float(values.mean()))}</td>"
        f"<td>{number(float(values.min()))}</td><td>{number(float(values.max()))}</td></tr>"
        for name, values in rows
    )
    head = "<tr><th>setting</th><th>members</th><th>mean</th><th>lowest</th><th>highest</th></tr>"
    table = f'<div class="scroll"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>'
    return f"<section><h2>Latest {escape(main)} by setting</h2>{table}</section>"


def rest(found: Sequence[Series]) -> str:
    """Every other column, small."""
    others = [one for one in found if one.name not in MAIN]
    figures = "".join(
        f"<figure><h3>{escape(one.name)} <span class='value'>{escape(latest_text(one))}</span></h3>{chart(one, 0, 320, 190)}</figure>"
        for one in others[:MOST_CHARTS]
    )
    more = f'<p class="note">and {len(others) - MOST_CHARTS} more columns</p>' if len(others) > MOST_CHARTS else ""
    return (
        f'<section><h2>Everything else</h2><div class="charts small">{figures}</div>{more}</section>' if figures else ""
    )
