"""A study as one page that opens offline: verdict first, then scores, curves, differences, rollouts, commands."""

import html
import re
import shutil
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from string import Template

import numpy as np

from jaxrl.analysis import findings as told
from jaxrl.analysis import svg
from jaxrl.analysis.report_charts import profile_section, scores_section, section, swatch
from jaxrl.analysis.runs import Run
from jaxrl.analysis.study import Cell, Study

MOST_VERDICTS = 8
MOST_EMBEDDED, LARGEST_EMBEDDED, EMBEDDED_IN_ALL = 12, 3 * 2**20, 16 * 2**20
escape = html.escape


def write_report(study: Study, path: Path, command: str = "") -> Path:
    """Write the page; rollout pages too large to hold are copied beside it, into ``rollouts/``."""
    sections = [
        profile_section(study),
        scores_section(study),
        differences_section(study),
        rollouts_section(study, path.parent),
        commands_section(study, command),
    ]
    page = fill(
        "report.html",
        title=escape(told.headline(study)),
        over=escape(f"{len(study.methods)} methods · {count(len(all_runs(study)), 'run')} · {', '.join(study.tasks)}"),
        headline=escape(told.headline(study)),
        lead=escape(told.lead(study)),
        verdicts=verdicts_list(study),
        notices=notices_box(study.notices),
        sections="\n".join(section for section in sections if section),
    )
    path.write_text(page, encoding="utf-8")
    return path


def fill(template: str, **parts: str) -> str:
    """A page from its template and the style that all pages share."""
    here = resources.files("jaxrl.analysis")
    light, dark = svg.theme()
    css = Template(here.joinpath("page.css").read_text(encoding="utf-8")).substitute(light=light, dark=dark)
    return Template(here.joinpath(template).read_text(encoding="utf-8")).substitute(css=css, **parts)


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def all_runs(study: Study) -> list[Run]:
    """Every run of the study, whether it counts or not."""
    return [run for cell in study.cells.values() for run in (*cell.counted, *cell.left_out)]


KINDS = {True: ("good", "▲"), False: ("bad", "▼"), None: ("unknown", "○")}


def verdicts_list(study: Study) -> str:
    """The verdicts, those over all tasks first; better ones before worse ones before open ones, and many folded."""
    order = {True: 0, False: 1, None: 2}
    told_ = sorted(told.findings(study), key=lambda one: (bool(one.task), order[one.better]))
    items = [_verdict(one, study.baseline) for one in told_]
    first = max(MOST_VERDICTS, sum(not one.task for one in told_)) if len(study.tasks) > 1 else MOST_VERDICTS
    first = len(items) if len(items) <= first + 2 else first
    shown = f'<ul class="verdicts">{"".join(items[:first])}</ul>' if items else ""
    if len(items) > first:
        rest = f'<ul class="verdicts">{"".join(items[first:])}</ul>'
        shown += f'<details class="more"><summary>{count(len(items) - first, "more verdict")}</summary>{rest}</details>'
    return shown


def _verdict(one: told.Finding, baseline: str) -> str:
    kind, mark = KINDS[one.better]
    where = f" in {escape(one.task)}" if one.task else ""
    return (
        f'<li><span class="mark-word {kind}" aria-hidden="true">{mark}</span><span><b>{escape(one.method)}</b> against '
        f'{escape(baseline)}{where}: <span class="{kind}">{escape(one.text)}</span></span>'
        f'<span class="sub">{escape(one.detail)}</span></li>'
    )


def notices_box(notices: Sequence[str]) -> str:
    """What a reader must know about the runs; folded where it is long."""
    if not notices:
        return ""
    items = "".join(f"<li>{escape(text)}</li>" for text in notices)
    state = " open" if len(notices) <= 4 else ""
    return f'<details class="notices"{state}><summary>{count(len(notices), "notice")} about these runs</summary><ul>{items}</ul></details>'


def differences_section(study: Study) -> str:
    """Only the settings that differ."""
    if not study.differences:
        return section("What differs", '<p class="note">No setting that the runs recorded differs.</p>')
    shared = {field: of for field, of in study.differences.items() if "–" not in of.values()}
    partial = {field: of for field, of in study.differences.items() if field not in shared}
    rest = ""
    if partial:
        rest = f'<details class="more"><summary>{count(len(partial), "setting")} that only some have</summary>{_settings(study, partial)}</details>'
    return section("What differs", _settings(study, shared) if shared else "", rest)


def _settings(study: Study, fields: Mapping[str, Mapping[str, str]]) -> str:
    head = "".join(f'<th class="text">{swatch(study, m)}{escape(m)}</th>' for m in study.methods)
    body = []
    for field, of in fields.items():
        cells = "".join(f'<td class="text">{escape(of[m])}</td>' for m in study.methods)
        body.append(f"<tr><td>{escape(field)}</td>{cells}</tr>")
    table = f"<table><thead><tr><th>setting</th>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def rollouts_section(study: Study, out: Path) -> str:
    """An episode of the median run of each method, held in the page or, where large, beside it."""
    items, size, held = [], 0, 0
    for cell in study.cells.values():
        page = rollout_of(cell)
        if page is None:
            continue
        where = f" in {escape(cell.task)}" if len(study.tasks) > 1 else ""
        title = f"{swatch(study, cell.method)}{escape(cell.method)}{where}"
        bytes_ = page.stat().st_size
        if held < MOST_EMBEDDED and bytes_ <= LARGEST_EMBEDDED and size + bytes_ <= EMBEDDED_IN_ALL:
            held, size = held + 1, size + bytes_
            text = escape(page.read_text(encoding="utf-8", errors="replace"))
            frame = f'<iframe title="rollout" sandbox="allow-scripts" data-page="{text}"></iframe>'
            items.append(f'<details class="rollout"><summary>{title}</summary>{frame}</details>')
        else:
            name = re.sub(r"[^\w.-]+", "_", f"{cell.method}_{cell.task}") + ".html"
            (out / "rollouts").mkdir(exist_ok=True)
            shutil.copyfile(page, out / "rollouts" / name)
            items.append(f'<p>{title} <a href="rollouts/{name}">rollouts/{name}</a></p>')
    note = '<p class="note">One deterministic episode of the final policy, of the run nearest the median score.</p>'
    return section("Rollouts", note, *items) if items else ""


def rollout_of(cell: Cell) -> Path | None:
    """The rollout page of the counted run nearest the median that has one."""
    if not cell.counted:
        return None
    order = np.argsort(np.abs(cell.scores - np.median(cell.scores)), kind="stable")
    pages = (cell.counted[i].folder.path / "rollout.html" for i in order if cell.counted[i].member == 0)
    return next((page for page in pages if page.is_file()), None)


def commands_section(study: Study, command: str) -> str:
    """How to make every run, and this page, again."""
    parts = [f"<p>This page:</p><pre>{escape(command)}</pre>"] if command else []
    by_method: dict[str, dict[str, None]] = {}
    for (method, _), cell in study.cells.items():
        for run in (*cell.counted, *cell.left_out):
            line = run.folder.command or f"# {run.folder.path} does not say how it was made"
            by_method.setdefault(method, {})[line] = None
    for method, lines in by_method.items():
        text = "\n".join(lines)
        state = " open" if len(lines) <= 4 and len(by_method) <= 4 else ""
        parts.append(
            f'<details class="more"{state}><summary>{swatch(study, method)}{escape(method)}, {count(len(lines), "command")}</summary>'
            f"<pre>{escape(text)}</pre></details>"
        )
    return section("Reproduce", *parts, f'<p class="note">{escape(versions_line(all_runs(study)))}</p>')


def versions_line(runs: Sequence[Run]) -> str:
    """The versions and devices of the runs; several of one kind are all named."""
    versions: dict[str, dict[str, None]] = {}
    for run in runs:
        of: Mapping[str, str] = run.folder.versions | ({"device": run.folder.device} if run.folder.device else {})
        for name, value in of.items():
            versions.setdefault(name, {})[value] = None
    return "Versions: " + (", ".join(f"{k} {' and '.join(v)}" for k, v in versions.items()) or "not recorded")
