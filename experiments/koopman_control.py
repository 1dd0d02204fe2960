"""Does a world model that steps linearly forecast as well as a recurrent one, roll out faster, and control by LQR and MPC?

    uv run python -m experiments.koopman_control --preset smoke     # that it runs
    uv run python -m experiments.koopman_control                    # two cores
    uv run python -m experiments.koopman_control --preset paper     # an accelerator

Pendulum (swing-up) and Brax's inverted pendulum (balance), 20,000 steps of a mixed policy each. Models of equal width, with
one encoder, one loss and the same heads: "diagonal" (stable), "dense" (may grow), "bilinear", "gru" and "mlp". Controllers:
LQR and box-constrained MPC on the linear ones, at a quadratic cost on decoded observations; CEM on the same model, at the
same cost ("cem_cost") and by learned rewards and value ("cem").

Claims were named before any was run, and all are reported. Reported of the method: comparable errors, a parallel roll-out
several times faster. Expected here: a stable step has no saddle, so that LQR on "diagonal" may fail where "dense" does not;
a swing-up needs CEM or a bilinear model. Open-loop errors count up to 1,000 deviations, where a model blows up.
"""

import json
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from experiments import cli, studies
from experiments import koopman_control_runs as runs
from experiments.koopman_control_tasks import SIZES, TASKS, Sizes, Task, data_of
from jaxrl.analysis import figures
from jaxrl.analysis.claims import Claim
from jaxrl.analysis.statistics import interval
from jaxrl.analysis.tables import markdown_table
from jaxrl.analysis.text import describe
from jaxrl.errors import UsageError, unknown

FASTER, CHEAPER = 3.0, 5.0  # what "several times" is taken to be
MARGIN = 0.1  # of an error that counts as comparable
HELD = 0.95  # share of episodes that counts as stabilised


@dataclass(frozen=True)
class Control:
    """Koopman world models against recurrent ones, and their controllers."""

    preset: studies.Preset = "cpu"
    """smoke: that it runs. cpu: the claims, on two cores. paper: large."""
    only: tuple[str, ...] = ()
    """Run only these tasks."""
    seeds: int | None = None
    """In place of the preset's."""
    updates: int | None = None
    """In place of the preset's."""
    out: Path = Path("runs/koopman_control")
    """Where cells, claims and figures are kept; a cell that is there is not run again."""


def main(arguments: list[str], console: Console) -> None:
    asked = cli.parse(Control, arguments, description=__doc__)
    tasks, sizes = chosen(asked)
    folder = asked.out / asked.preset
    results = {}
    for task in tasks:
        console.print(task.name)
        results[task.name] = run_task(task, sizes, folder, console)
    told = studies.told_in(folder, asked.only)
    told.mkdir(parents=True, exist_ok=True)
    (told / "config.json").write_text(json.dumps({"sizes": asdict(sizes), **studies.machine()}, indent=1) + "\n")
    write(tasks, sizes, results, told)
    console.print((told / "table.md").read_text(), markup=False)
    studies.finish(told, [claim for task in tasks for claim in claims(task, sizes, results[task.name])], console)


def chosen(asked: Control) -> tuple[tuple[Task, ...], Sizes]:
    """The tasks and sizes asked for.

    Raises:
        UsageError: for an unknown task, or a number below what works.
    """
    names = [task.name for task in TASKS]
    for name in asked.only:
        if name not in names:
            raise unknown("task", name, names)
    sizes = SIZES[asked.preset]
    for field, least in (("seeds", 2), ("updates", 1)):
        value = getattr(asked, field)
        if value is not None and value < least:
            raise UsageError(f"{field} must be at least {least}, got {value}")
        sizes = sizes if value is None else replace(sizes, **{field: value})
    return tuple(task for task in TASKS if not asked.only or task.name in asked.only), sizes


def run_task(task: Task, sizes: Sizes, folder: Path, console: Console) -> dict[str, Any]:
    """Forecasts of every model, episodes of every controller, and times. What a model learned is made once, if at all."""
    data = lru_cache(partial(data_of, task, sizes))
    trained = lru_cache(lambda name: runs.train(name, task, sizes, data()))
    stage = lru_cache(partial(runs.stage_of, task, sizes))
    settings = {"task": task, "sizes": sizes}
    keep = lambda name, measure, **more: studies.cell(folder, f"{task.name}_{name}", settings | more, measure, console)

    def forecast(name: str) -> dict[str, Any]:
        params, losses = trained(name)
        errors = runs.open_loop(runs.model_of(name, task, sizes), params, data())
        return {"error": errors, "loss": losses[:, -max(1, sizes.updates // 20) :].mean(1)}

    def act(kind: str, name: str) -> dict[str, Any]:
        control = runs.controller(kind, runs.model_of(name, task, sizes), task, sizes, data())
        go = partial(runs.episodes, control, trained(name)[0], stage())
        if kind == "lqr":
            return go(stage().upright, task, sizes)
        return go(stage().anywhere, task, sizes)

    found: dict[str, Any] = {name: keep(name, partial(forecast, name)) for name in runs.MODELS}
    for kind, name in runs.CONTROLLERS:
        found[f"{kind}/{name}"] = keep(f"{kind}_{name}", partial(act, kind, name))
    parameters = lambda: {name: trained(name)[0] for name in ("diagonal", "dense", "bilinear")}
    found["actions"] = keep(
        "actions", lambda: runs.action_times(task, sizes, data(), parameters()), **studies.machine()
    )
    found["rollouts"] = keep("rollouts", partial(runs.rollout_times, task, sizes), **studies.machine())
    found["teacher"] = keep("teacher", lambda: {"return": data().teacher_return})
    return found


def claims(task: Task, sizes: Sizes, found: dict[str, Any]) -> list[Claim]:
    """Every claim on one task, in the order in which they were named."""
    above = partial(claim_of, task)
    error = {name: np.asarray(found[name]["error"]).mean(1) for name in runs.MODELS}
    returns = {name: np.asarray(found[name]["return"]) for name in found if "/" in name}
    held = {name: np.asarray(found[name]["upright"]) for name in found if "/" in name}
    made = []
    for other in ("gru", "mlp"):
        words = f"open-loop error over {sizes.lead} steps of diagonal is at most {1 + MARGIN:g} times that of {other}"
        detail = f"{error['diagonal'].mean():.3g} against {error[other].mean():.3g} deviations"
        made.append(above(f"error_{other}", words, (1 + MARGIN) * error[other] - error["diagonal"], 0.0, detail))
    for other in ("gru", "mlp"):
        words = (
            f"{sizes.timed_batch} roll-outs of {sizes.timed_horizon} steps: {other} takes over {FASTER:g} times as long"
        )
        made.append(time_claim(task, f"rollout_{other}", words, found["rollouts"], other, "diagonal", FASTER))
    mpc, cem = returns["mpc/diagonal"], returns["cem_cost/diagonal"]
    words = "return of MPC on diagonal is at least that of CEM on the same model and cost, within 5 %"
    made.append(
        above("mpc_return", words, mpc - cem + 0.05 * abs(cem.mean()), 0.0, f"{mpc.mean():.4g}, {cem.mean():.4g}")
    )
    words = f"an action of CEM on the same model and cost takes over {CHEAPER:g} times as long as one of MPC"
    made.append(time_claim(task, "mpc_time", words, found["actions"], "cem_cost/diagonal", "mpc/diagonal", CHEAPER))
    for name in runs.LINEAR:
        words = f"LQR on {name} holds upright from near it, in over {HELD:.0%} of episodes"
        made.append(
            above(f"lqr_{name}", words, held[f"lqr/{name}"], HELD, f"return {returns[f'lqr/{name}'].mean():.4g}")
        )
    if task.swing_up:
        words = "CEM on bilinear returns more than MPC on diagonal: a swing-up needs the one or the other"
        detail = (
            f"{returns['cem/bilinear'].mean():.4g} against {mpc.mean():.4g}; teacher {found['teacher']['return']:.4g}"
        )
        made.append(above("swing_up", words, returns["cem/bilinear"] - mpc, 0.0, detail))
        words = "MPC on diagonal ends upright in under half of the episodes"
        made.append(above("mpc_does_not_swing_up", words, 0.5 - held["mpc/diagonal"], 0.0))
    return made


def claim_of(task: Task, name: str, words: str, values: np.ndarray, threshold: float, detail: str = "") -> Claim:
    return studies.mean_claim(f"{task.name}_{name}", f"{task.name}: {words}", values, threshold, detail)


def time_claim(
    task: Task, name: str, words: str, times: dict[str, list[float]], slow: str, fast: str, least: float
) -> Claim:
    """A claim about a ratio of times."""
    each = f"{1e3 * np.median(times[slow]):.3g} ms and {1e3 * np.median(times[fast]):.3g} ms"
    return studies.slower_claim(f"{task.name}_{name}", f"{task.name}: {words}", times[slow], times[fast], least, each)


def write(tasks: tuple[Task, ...], sizes: Sizes, results: dict[str, dict], folder: Path) -> None:
    """``metrics.jsonl``, ``table.md`` and a figure of errors a task."""
    lines, parts = [], []
    shown = lambda values: describe(interval(values, "mean"))
    for task in tasks:
        found = results[task.name]
        for name in (*runs.MODELS, *(f"{kind}/{model}" for kind, model in runs.CONTROLLERS)):
            of = {metric: np.asarray(values) for metric, values in found[name].items()}
            for seed in range(sizes.seeds):
                values = {metric: x[seed].tolist() for metric, x in of.items()}
                lines.append({"task": task.name, "name": name, "seed": seed} | values)
        leads = sorted({1, min(10, sizes.lead), sizes.lead})
        rows = {}
        for name in runs.MODELS:
            errors = np.asarray(found[name]["error"])
            times = f"{1e3 * np.median(found['rollouts'][name]):.3g}"
            rows[name] = [*(shown(errors[:, lead - 1]) for lead in leads), shown(errors.mean(1)), times]
        columns = [*(f"error {lead}" for lead in leads), "mean error", f"roll-out {sizes.timed_horizon} [ms]"]
        parts.append(f"## {task.name}\n\n" + markdown_table(rows, columns, corner="model"))
        rows = {}
        for name in (f"{kind}/{model}" for kind, model in runs.CONTROLLERS):
            times = f"{1e3 * np.median(found['actions'][name]):.3g}"
            rows[name] = [shown(found[name]["return"]), shown(found[name]["upright"]), times]
        parts.append(markdown_table(rows, ["return", "ends upright", "action [ms]"], corner="controller/model"))
        draw(task, sizes, found, folder)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "table.md").write_text("\n".join(parts))


def draw(task: Task, sizes: Sizes, found: dict[str, Any], folder: Path) -> None:
    """Error over lead: mean and range of seeds."""
    figure, axis = figures.new_figure()
    for i, name in enumerate(runs.MODELS):
        errors = np.asarray(found[name]["error"])
        leads = np.arange(1, errors.shape[1] + 1)
        figures.draw_band(axis, leads, errors.mean(0), errors.min(0), errors.max(0), name, i)
    axis.set(xlabel="lead [steps]", ylabel="error [deviations]", yscale="log", title=task.name.replace("_", " "))
    axis.legend(fontsize=6)
    figures.save(figure, folder / f"{task.name}.png")


if __name__ == "__main__":
    cli.run_main(main)
