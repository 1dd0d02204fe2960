"""The claims of the forecast study, named before it was run; its table and its figures."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments import studies
from experiments.koopman_problems import Problem, Sizes
from jaxrl.analysis import figures
from jaxrl.analysis.claims import Claim
from jaxrl.analysis.statistics import interval
from jaxrl.analysis.tables import markdown_table
from jaxrl.analysis.text import describe

SHALLOW = "message_passing_2"


class Scores:
    """One problem's results: ``scores(model, metric)`` is ``[seeds]`` or ``[seeds, leads]``."""

    def __init__(self, problem: Problem, sizes: Sizes, results: Mapping[str, Any]):
        self.problem, self.sizes, self.results = problem, sizes, results
        self.deep = f"message_passing_{max(sizes.layers)}"
        self.stable = [model for model in sizes.linear if model != "block"]

    def __call__(
        self, model: str, metric: str, window: int | None = None, spectral: int | None = None, noise: float = 0.0
    ) -> np.ndarray:
        spectral = int(model in self.sizes.linear) if spectral is None else spectral
        variant = f"{window or self.sizes.window}/{spectral}/{noise:g}"
        return np.asarray(self.results[f"{model}/{variant}"][metric], np.float64)

    def at(self, model: str, metric: str, lead: int, **which: Any) -> np.ndarray:
        return self(model, metric, **which)[:, lead - 1]


def claims(problems: Sequence[Problem], sizes: Sizes, results: Mapping[str, Mapping[str, Any]]) -> list[Claim]:
    """Every claim on every problem, in the order in which they were named."""
    made = []
    for problem in problems:
        scores = Scores(problem, sizes, results[problem.name])
        made += [bounded(scores), *accuracy(scores), *smoothing(scores), *objective(scores), conditioning(scores)]
        made += [*windows(scores), *noise(scores), *ensemble(scores), dirichlet(scores), cost(scores)]
    return made


def above(
    scores: Scores, name: str, statement: str, values: np.ndarray, threshold: float = 0.0, detail: str = ""
) -> Claim:
    """A claim about a mean over seeds, most often of a difference on the same seed."""
    words = f"{scores.problem.name}: {statement}"
    return studies.mean_claim(f"{scores.problem.name}_{name}", words, values, threshold, detail)


def bounded(scores: Scores) -> Claim:
    largest = max(float(scores(model, "growth").max()) for model in scores.stable)
    steps = scores.sizes.bounded_steps
    statement = f"{scores.problem.name}: no stable step lets a latent's norm grow in {steps} steps (at most 1.001)"
    return Claim(
        f"{scores.problem.name}_bounded", statement, largest, math.nan, math.nan, largest <= 1.001, "largest of all"
    )


def accuracy(scores: Scores) -> list[Claim]:
    """Where everything can be known and is linear, linear steps win late; where it is chaotic, message passing does."""
    p = scores.problem
    made = []
    if p.name == "ring":
        made += [
            above(
                scores,
                f"{model}_beats_messages",
                f"RMSE at lead {p.late} of {scores.deep} less that of {model} is above 0",
                scores.at(scores.deep, "rmse", p.late) - scores.at(model, "rmse", p.late),
            )
            for model in scores.stable
        ]
        if "block" in scores.sizes.linear:
            words = f"activity of block trained on one step is above 2 at lead {p.late}"
            free = scores.at("block", "activity", p.late, window=1)
            made.append(above(scores, "free_block_blows_up", words, free, 2.0, "counted up to 1,000"))
        return made
    best = np.min([scores.at(model, "rmse", p.middle) for model in scores.stable], 0)
    words = f"RMSE at lead {p.middle} of the best stable linear step less that of {scores.deep} is above 0"
    return [above(scores, "messages_beat_linear", words, best - scores.at(scores.deep, "rmse", p.middle))]


def smoothing(scores: Scores) -> list[Claim]:
    """The paper's claim, and what the method's first measurements led to expect."""
    p = scores.problem
    deep = scores.at(scores.deep, "activity", p.late)
    made = [
        above(
            scores,
            f"{model}_keeps_activity",
            f"activity of {model} less that of {scores.deep} at lead {p.late} is above 0",
            scores.at(model, "activity", p.late) - deep,
            detail="the paper: a third less activity deficit",
        )
        for model in ("block_norm", "skew")
    ]
    made.append(
        above(
            scores,
            "skew_outlives_block_norm",
            f"activity of skew less that of block_norm at lead {p.late} is above 0",
            scores.at("skew", "activity", p.late) - scores.at("block_norm", "activity", p.late),
        )
    )
    if p.name == "ks":
        words = f"activity of {scores.deep} is above 0.9 at lead {p.late}: what can be known is not smoothed"
        made.append(above(scores, "messages_do_not_smooth", words, np.minimum(deep, 2 - deep), 0.9))
    return made


def objective(scores: Scores) -> list[Claim]:
    """Whether the spectral terms reduce smoothing, whatever the architecture."""
    late = scores.problem.late
    return [
        above(
            scores,
            f"spectral_terms_raise_activity_{model}",
            f"the spectral terms raise the activity of {model} at lead {late}",
            scores.at(model, "activity", late, spectral=1) - scores.at(model, "activity", late, spectral=0),
        )
        for model in ("skew", SHALLOW)
    ]


def conditioning(scores: Scores) -> Claim:
    """All four of {messages, linear} × {spectral terms off, on}: which of the two sets the conditioning of latents."""
    small = {
        (model, spectral): np.log10(np.maximum(scores(model, "relative", spectral=spectral), 1e-8))
        for model in ("skew", SHALLOW)
        for spectral in (0, 1)
    }
    by_objective = 0.5 * sum(small[model, 1] - small[model, 0] for model in ("skew", SHALLOW))
    by_architecture = 0.5 * sum(small["skew", spectral] - small[SHALLOW, spectral] for spectral in (0, 1))
    means = "; ".join(f"{m} {'on' if s else 'off'} {v.mean():.2f}" for (m, s), v in small.items())
    return above(
        scores,
        "objective_conditions_latents",
        "the objective moves the least eigenvalue of the latents' covariance more than the architecture does, in decades",
        by_objective - np.abs(by_architecture),
        detail=f"log10 of least over mean: {means}",
    )


def windows(scores: Scores) -> list[Claim]:
    late = scores.problem.late
    log = lambda model, window: np.log10(scores.at(model, "rmse", late, window=window))
    return [
        above(
            scores,
            f"roll_outs_help_{model}",
            f"training {model} on {scores.sizes.window} steps instead of one lowers its RMSE at lead {late}, in decades",
            log(model, 1) - log(model, scores.sizes.window),
        )
        for model in ("block", "skew", SHALLOW)
        if model in (*scores.sizes.linear, SHALLOW)
    ]


def noise(scores: Scores) -> list[Claim]:
    """Whether noise on the input of one-step training does what roll-outs, or a linear step, are meant to do."""
    p, which = scores.problem, {"window": 1, "noise": scores.sizes.noise}
    noisy = f"{SHALLOW} trained on one step with noise"
    return [
        above(
            scores,
            "noise_beats_roll_outs",
            f"RMSE at lead {p.middle} of {SHALLOW} trained on {scores.sizes.window} steps less that of {noisy} is above 0",
            scores.at(SHALLOW, "rmse", p.middle) - scores.at(SHALLOW, "rmse", p.middle, **which),
        ),
        above(
            scores,
            "noise_beats_skew",
            f"RMSE at lead {p.middle} of skew less that of {noisy} is above 0",
            scores.at("skew", "rmse", p.middle) - scores.at(SHALLOW, "rmse", p.middle, **which),
        ),
        above(
            scores,
            "noise_keeps_activity",
            f"activity of {noisy} is nearer to 1 at lead {p.late} than with {scores.sizes.window} steps and none",
            np.abs(scores.at(SHALLOW, "activity", p.late) - 1.0)
            - np.abs(scores.at(SHALLOW, "activity", p.late, **which) - 1.0),
        ),
    ]


def ensemble(scores: Scores) -> list[Claim]:
    middle = scores.problem.middle
    better = scores("skew", "absolute_error") - scores("skew", "crps")
    ratios = scores("skew", "spread_skill")
    return [
        above(
            scores,
            "ensemble_beats_one",
            f"the closed-form ensemble of skew has a lower CRPS at lead {middle} than its forecast alone",
            better,
            detail=f"CRPS {scores('skew', 'crps').mean():.3f}",
        ),
        above(
            scores,
            "ensemble_is_calibrated",
            f"its spread is within a fifth of its error at lead {middle}",
            0.2 - np.abs(ratios - 1.0),
            detail=f"spread over error {ratios.mean():.2f}",
        ),
    ]


def dirichlet(scores: Scores) -> Claim:
    energy = scores(scores.deep, "dirichlet")
    statement = (
        f"the layers of {scores.deep} lower the Dirichlet energy of its nodes: 1 less last over first is above 0"
    )
    return above(scores, "layers_smooth", statement, 1.0 - energy[:, -1] / np.maximum(energy[:, 0], 1e-12))


def cost(scores: Scores) -> Claim:
    times, deep = scores.results["cost"], f"message_passing_{max(scores.sizes.timed_layers)}"
    statement = f"{scores.problem.name}: a step of {deep} costs more than 10 times one of block_norm, decoding included"
    each = ", ".join(f"{name} {np.median(values):.2f} ms" for name, values in times.items())
    return studies.slower_claim(f"{scores.problem.name}_cost", statement, times[deep], times["block_norm"], 10.0, each)


def write(problems: Sequence[Problem], sizes: Sizes, results: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    """``metrics.jsonl``, ``table.md`` and a figure a problem."""
    lines, parts = [], []
    for problem in problems:
        rows: dict[str, list] = {}
        for name, found in results[problem.name].items():
            if name == "cost":
                continue
            model, window, *strengths = name.split("/")
            spectral, noisy = map(float, strengths)
            label = {
                "problem": problem.name,
                "model": model,
                "window": int(window),
                "spectral": spectral,
                "noise": noisy,
            }
            lines += [label | {"seed": seed} | of_seed(found, seed) for seed in range(sizes.seeds)]
            row = f"{model}, {window} steps, spectral terms {'on' if spectral else 'off'}"
            row += f", noise {noisy:g}" if noisy else ""
            rows[row] = cells_of(problem, found)
        header = [f"RMSE {problem.middle}", f"RMSE {problem.late}"]
        header += [
            f"activity {problem.middle}",
            f"activity {problem.late}",
            f"high {problem.late}",
            "least/mean eigenvalue",
        ]
        parts.append(f"## {problem.name}\n\n" + markdown_table(rows, header))
        draw(problem, sizes, results[problem.name], folder)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "table.md").write_text("\n".join(parts) + "\n")


def of_seed(found: Mapping[str, Any], seed: int) -> dict[str, Any]:
    return {metric: np.asarray(values)[seed].tolist() for metric, values in found.items()}


def cells_of(problem: Problem, found: Mapping[str, Any]) -> list[str]:
    arrays = {metric: np.asarray(values, np.float64) for metric, values in found.items()}
    told = [arrays[m][:, lead - 1] for m in ("rmse", "activity") for lead in (problem.middle, problem.late)]
    return [describe(interval(values, "mean")) for values in (*told, arrays["high"], arrays["relative"])]


def draw(problem: Problem, sizes: Sizes, results: Mapping[str, Any], folder: Path) -> None:
    """RMSE and activity over lead, mean and range of seeds, of every model trained on roll-outs as published."""
    figure, axes = figures.new_figure(6.8, 2.4, 2)
    scores = Scores(problem, sizes, results)
    leads = np.arange(1, problem.late + 1)
    for i, model in enumerate((*sizes.linear, *(f"message_passing_{layers}" for layers in sizes.layers))):
        for axis, metric in zip(axes, ("rmse", "activity"), strict=True):
            values = scores(model, metric)
            figures.draw_band(axis, leads, values.mean(0), values.min(0), values.max(0), model.replace("_", " "), i)
    for axis, label in zip(axes, ("RMSE / climate", "activity"), strict=True):
        axis.set(xlabel="lead [samples]", ylabel=label, ylim=(0, 2.0))
    axes[1].legend(fontsize=6)
    figures.save(figure, folder / f"{problem.name}.png")
