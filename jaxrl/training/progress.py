"""What a person watching a run sees: the plan before it starts, then a bar with return, rate and time left."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from jaxrl.training.plan import Plan, format_bytes
from jaxrl.training.records import Row
from jaxrl.training.run import Listener


def print_plan(plan: Plan, console: Console, facts: dict[str, str]) -> None:
    """The plan as a panel; ``facts`` (agent, environment, folder …) come first."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    schedule = plan.schedule
    members = f" × {plan.members} members" if plan.members > 1 else ""
    memory = ", ".join(f"{name} {format_bytes(size)}" for name, size in plan.memory.items() if size)
    limit = f" of {format_bytes(plan.available)}" if plan.available else ""
    per_iteration = plan.steps // schedule.iterations
    evaluate = f"every {schedule.evaluate_every * per_iteration:,} steps" if schedule.evaluate_every else "never"
    for name, value in {
        **facts,
        "steps": f"{plan.steps:,}{members}, {schedule.iterations:,} iterations of {per_iteration:,}",
        "updates": f"{plan.updates:,}",
        "evaluation": evaluate,
        "parameters": f"{plan.parameters:,}{members}",
        "memory": f"{format_bytes(plan.total_memory)}{limit}: {memory}",
    }.items():
        table.add_row(name, value)
    console.print(Panel(table, title="plan", title_align="left", border_style="dim", expand=False))
    for note in plan.notes:
        console.print(f"  {note}", style="yellow")


@contextmanager
def progress_bar(plan: Plan, console: Console) -> Iterator[Listener]:
    """A listener that moves a bar on a terminal, and prints a line for each evaluation elsewhere."""
    latest: dict[int, Row] = {}

    def described() -> str:
        known = [row for row in latest.values() if "return" in row]
        if not known:
            return "first episodes…"
        value = sum(row["return"] for row in known) / len(known)
        return f"{known[0]['what']} {value:,.1f}"

    def remember(row: Row) -> None:
        column = "eval/return" if "eval/return" in row else "episode/return"
        if column in row and (column == "eval/return" or latest.get(row["member"], {}).get("what") != "return"):
            what = "return" if column == "eval/return" else "training return"
            latest[row["member"]] = {"return": row[column], "what": what}

    if not console.is_terminal:

        def line(row: Row) -> None:
            remember(row)
            if row["member"] == plan.members - 1 and "eval/return" in row:
                rate = row["time/steps_per_second"]
                console.print(f"step {row['step']:>12,}  {described()}  {rate:,.0f} steps/s", highlight=False)

        yield line
        return

    columns = (
        TextColumn("{task.fields[doing]}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[status]}"),
        TextColumn("{task.fields[rate]}", style="dim"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=plan.steps, doing="compiling", status="", rate="")

        def move(row: Row) -> None:
            remember(row)
            if row["member"] == plan.members - 1:
                rate = f"{row['time/steps_per_second']:,.0f} steps/s" if row["step"] else ""
                doing = "training" if row["step"] else "compiling"
                progress.update(task, completed=row["step"], doing=doing, status=described(), rate=rate)

        yield move
