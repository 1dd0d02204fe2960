"""Compare runs: which method is better, by how much, and whether these runs can tell.

uv run python -m experiments.compare runs/train/A runs/train/B
uv run python -m experiments.compare baseline=runs/old mine=runs/new --out report

A RUN is a run folder, a folder of runs, or NAME=folder. Runs whose settings agree are pooled over their seeds; each
other method is compared with the first. Prints a table and verdicts; writes figures, tables and one HTML report.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments import cli
from jaxrl.analysis import drawing, findings
from jaxrl.analysis.methods import group
from jaxrl.analysis.report import write_report
from jaxrl.analysis.runs import Folder, Run, find, read_folder, read_runs
from jaxrl.analysis.study import Study, make_study
from jaxrl.analysis.tables import cell_text
from jaxrl.errors import UsageError

METRICS = ("eval/return", "episode/return")
RESULT = "comparison.json"
PARTIAL = ".partial"  # what an interrupted comparison leaves
STYLES = {True: "green", False: "red", None: "yellow"}
MOST_NOTICES = 12


@dataclass(frozen=True)
class Compare:
    """What to compare, and how."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Run folders, folders of runs, or NAME=folder."""
    out: str | None = None
    """Folder of the report; runs/compare/TIME where absent. An earlier comparison there is replaced."""
    metric: str | None = None
    """The column to compare; eval/return, or episode/return where no run was evaluated."""
    group_by: tuple[str, ...] = ()
    """Settings that make a method, such as agent or learning_rate; run for what was given here, folder for each folder."""
    baseline: str = ""
    """The method that others are compared with; the first where absent."""
    at: int | None = None
    """Compare at this environment step; the last that all finished runs reach where absent."""
    threshold: float | None = None
    """Of steps to threshold; 90 % of the baseline's gain where absent."""
    aggregate: Literal["auto", "iqm", "mean"] = "auto"
    """Interquartile means or means; auto takes means where a method has fewer than 5 runs."""
    lower_is_better: bool = False
    """For metrics such as losses."""


def main(arguments: list[str], console: Console) -> int:
    asked = cli.parse(Compare, arguments, description=__doc__)
    found, notices = find(asked.runs)
    folders = [read_folder(*one) for one in found]
    metric, runs, problems = read_all(folders, asked.metric)
    groups, left_out = group(runs, asked.group_by)
    study = make_study(
        groups,
        metric,
        baseline=asked.baseline,
        at=asked.at,
        threshold=asked.threshold,
        lower_is_better=asked.lower_is_better,
        aggregate=asked.aggregate,
        notices=[*notices, *problems, *left_out],
    )
    written = write_all(study, output_folder(asked.out), cli.command_line("experiments.compare", arguments))
    print_study(study, console)
    for name, path in written.items():
        console.print(Text(f"  {name:<10} {path}"), soft_wrap=True)
    return 0


def read_all(folders: list[Folder], metric: str | None) -> tuple[str, list[Run], list[str]]:
    """The runs that have the metric (the first of the usual ones that any has), and what is wrong with the others.

    Raises:
        UsageError: where no run has it.
    """
    said: dict[str, None] = {}
    for tried in (metric,) if metric else METRICS:
        read = [read_runs(folder, tried) for folder in folders]
        runs = [run for some, _ in read for run in some]
        problems = [line for _, lines in read for line in lines]
        if any(len(run.curve.steps) for run in runs):
            return tried, runs, problems
        said |= dict.fromkeys(problems)
    shown = "; ".join([*said][:3]) + ("; …" if len(said) > 3 else "")
    raise UsageError(f"no run has a finite value of {metric or ' or '.join(METRICS)}: {shown}")


def output_folder(chosen: str | None) -> Path:
    """Where files go: a new folder, an empty one, or one that holds an earlier comparison.

    Raises:
        UsageError: where the folder holds something else.
    """
    folder = Path(chosen) if chosen else None
    if folder is None or not folder.exists():
        return cli.new_folder(chosen, "compare", "comparison")
    others = folder.is_dir() and any(path.name != PARTIAL for path in folder.iterdir())
    if not folder.is_dir() or (others and not (folder / RESULT).exists()):
        raise UsageError(
            f"{folder} holds something other than a comparison and is not overwritten; choose another --out"
        )
    return folder


def print_study(study: Study, console: Console) -> None:
    """Verdicts, a table for each task, notices. As texts, so that a name such as brax:ant is not read as markup."""
    console.print(Text(findings.headline(study), "bold"))
    for one in findings.findings(study):
        where = f" in {one.task}" if one.task else ""
        verdict, detail = (one.text, STYLES[one.better]), (f" ({one.detail})", "dim")
        line = Text.assemble(f"  {one.method} against {study.baseline}{where}: ", verdict, detail)
        console.print(line, soft_wrap=True)
    for task in study.tasks:
        table = Table(title=Text(task, "bold"), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
        table.add_column("method", overflow="fold")
        for column in findings.columns(study, task):
            table.add_column(Text(column), justify="right", overflow="fold")
        for method, cells in findings.rows(study, task).items():
            table.add_row(Text(method), *(Text(cell_text(cell)) for cell in cells))
        console.print(table)
    for method, interval in study.normalised.items():
        console.print(Text(f"  over all tasks  {method}: normalised score {cell_text(interval)}"))
    for text in study.notices[:MOST_NOTICES]:
        console.print(Text(f"  note: {text}", "yellow"), soft_wrap=True)
    if len(study.notices) > MOST_NOTICES:
        console.print(Text(f"  and {len(study.notices) - MOST_NOTICES} more notes in the report", "yellow"))


def write_all(study: Study, out: Path, command: str) -> dict[str, Path]:
    """Every file of a comparison; what it is -> where. All are made before any takes the place of an earlier one."""
    made = out / PARTIAL
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    written = _write_into(study, made, command)
    shutil.rmtree(out / "rollouts", ignore_errors=True)
    # The data first, which says that this folder is a comparison's.
    for path in sorted(made.iterdir(), key=lambda path: path.name != RESULT):
        path.replace(out / path.name)
    made.rmdir()
    return {name: out / path.name for name, path in written.items()}


def _write_into(study: Study, out: Path, command: str) -> dict[str, Path]:
    written = {"curves": drawing.write_curves(study, out), "scores": drawing.write_scores(study, out)}
    if study.profiles:
        written["profile"] = drawing.write_profile(study, out)
    for name, text in (("table.md", findings.markdown(study)), ("table.tex", findings.latex(study))):
        (out / name).write_text(text, encoding="utf-8")
        written[name] = out / name
    data = {"command": command, **findings.as_data(study)}
    (out / RESULT).write_text(json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    return {**written, "data": out / RESULT, "report": write_report(study, out / "report.html", command)}


if __name__ == "__main__":
    cli.run_main(main)
