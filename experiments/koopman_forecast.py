"""Does a linear latent step forecast better than message passing, and if so, did the architecture or the objective do it?

    uv run python -m experiments.koopman_forecast --preset smoke     # that it runs
    uv run python -m experiments.koopman_forecast                    # two cores
    uv run python -m experiments.koopman_forecast --preset paper     # an accelerator: published widths, T42 on 2,562 nodes

GraphMet (only its page, abstract and code were read) says that deep message passing smooths forecasts because of its
architecture, and that one linear step with a spectral objective does not. Problems, named before any was run, all reported:

* ``ring``, dispersive waves: exactly linear, everything can be known.
* ``ks``, the Kuramoto–Sivashinsky equation sampled every unit of time: chaotic, but the next sample can be known.
* ``ks_coarse``, the same every 6 units: the next sample cannot be known, the case that the paper is about.
* ``sphere``, randomly forced barotropic vorticity seen at the nodes of a mesh that does not resolve it.

Models of equal width: linear steps ``block`` (free, as published but for its start), ``block_norm``, ``skew``, ``diag``;
message passing of several depths, its change added to the field. Trained on roll-outs of ``window`` steps; three also on
one step, as published, and the shallow message passing on one step from noisy inputs. Linear models have the spectral terms, as published, and message passing has none; ``skew`` and two
layers of messages are run both ways, on the same seeds and data. Errors of what blows up count as 1,000. What two cores can bear sets the sizes of the ``cpu`` preset: four
seeds, and a sphere of 162 nodes, on which degrees above 8 are not resolved.
"""

import json
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from experiments import cli, koopman_claims, koopman_problems, studies
from experiments.koopman_problems import PRESETS, Problem, Sizes
from experiments.measuring import alternate
from jaxrl.errors import UsageError
from jaxrl.koopman import objectives
from jaxrl.koopman.graph import Forecaster, GraphMetConfig, LossWeights, graphmet, metrics, training
from jaxrl.types import Array, PyTree

ABLATED = ("skew", "message_passing_2")
ONE_STEP = ("block", "skew", "message_passing_2")
NOISY = "message_passing_2"
CAP = 1e3
RECONSTRUCTION, LINEARITY = 1.0, 0.1  # what a linear model needs besides the published terms to be trained on roll-outs


@dataclass(frozen=True)
class Forecast:
    """Linear latent steps against message passing."""

    preset: studies.Preset = "cpu"
    """smoke: that it runs. cpu: the claims, on two cores. paper: published sizes."""
    only: tuple[str, ...] = ()
    """Run only these problems."""
    seeds: int | None = None
    """In place of the preset's."""
    updates: int | None = None
    """In place of the preset's."""
    out: Path = Path("runs/koopman_forecast")
    """Where cells, claims and figures are kept; a cell that is there is not run again."""


def main(arguments: list[str], console: Console) -> None:
    asked = cli.parse(Forecast, arguments, description=__doc__)
    problems, sizes = chosen(asked)
    folder = asked.out / asked.preset
    results: dict[str, dict] = {}
    for problem in problems:
        console.print(problem.name)
        results[problem.name] = run_problem(problem, sizes, folder, console)
    told = studies.told_in(folder, asked.only)
    told.mkdir(parents=True, exist_ok=True)
    (told / "config.json").write_text(json.dumps({"sizes": asdict(sizes), **studies.machine()}, indent=1) + "\n")
    koopman_claims.write(problems, sizes, results, told)
    studies.finish(told, koopman_claims.claims(problems, sizes, results), console)


def chosen(asked: Forecast) -> tuple[tuple[Problem, ...], Sizes]:
    """The problems and sizes asked for.

    Raises:
        UsageError: for an unknown problem or a size below 1.
    """
    problems, sizes = PRESETS[asked.preset]
    names = [problem.name for problem in problems]
    missing = [name for name in asked.only if name not in names]
    if missing:
        raise UsageError(f"preset {asked.preset} has {', '.join(names)}; got {', '.join(missing)}")
    for field in ("seeds", "updates"):
        value = getattr(asked, field)
        if value is not None and value < 1:
            raise UsageError(f"{field} must be at least 1, got {value}")
        sizes = sizes if value is None else replace(sizes, **{field: value})
    return tuple(p for p in problems if not asked.only or p.name in asked.only), sizes


def run_problem(problem: Problem, sizes: Sizes, folder: Path, console: Console) -> dict[str, Any]:
    """Every model of a problem in all its variants, by name: ``model/window/spectral/noise``; and ``cost``."""
    data = lru_cache(partial(koopman_problems.data_of, problem, sizes))
    results: dict[str, Any] = {}
    for model in (*sizes.linear, *(f"message_passing_{layers}" for layers in sizes.layers)):
        of = variants(model, sizes)
        settings = {"problem": problem, "sizes": sizes, "model": model, "variants": of}
        run = partial(run_cell, problem, sizes, model, of, data)
        found = studies.cell(folder, f"{problem.name}_{model}", settings, run, console)
        results |= {f"{model}/{key}": value for key, value in found.items()}
    settings = {"problem": problem, "sizes": sizes, **studies.machine()}
    results["cost"] = studies.cell(folder, f"{problem.name}_cost", settings, partial(cost, problem, sizes), console)
    return results


class Variant(NamedTuple):
    """How a model is trained."""

    window: int
    spectral: float  # weight of the spectral terms
    noise: float = 0.0

    @property
    def key(self) -> str:
        return f"{self.window}/{self.spectral:g}/{self.noise:g}"


def variants(model: str, sizes: Sizes) -> list[Variant]:
    """As published (linear models have the spectral terms), and what is compared with that."""
    published = float(not model.startswith("message_passing"))
    made = [Variant(sizes.window, published)]
    if model in ABLATED:
        made.append(Variant(sizes.window, 1.0 - published))
    if model in ONE_STEP:
        made.append(Variant(1, published))
    if model == NOISY:
        made.append(Variant(1, published, sizes.noise))
    return made


@lru_cache
def model_of(name: str, kind: tuple[str, int], degrees: int, sizes: Sizes) -> Forecaster:
    passing = name.startswith("message_passing")
    config = GraphMetConfig(
        width=sizes.width,
        hidden=sizes.hidden,
        latent=sizes.latent,
        processor="message_passing" if passing else name,  # type: ignore[arg-type]
        layers=int(name.rsplit("_", 1)[1]) if passing else 1,
    )
    basis, pairs = koopman_problems.basis_of(kind, degrees) if name == "diag" else (None, 0)
    return graphmet.make(config, koopman_problems.graph_of(kind), basis=basis, pairs=pairs)


@lru_cache
def programs(name: str, kind: tuple[str, int], degrees: int, sizes: Sizes):
    """Start, training and evaluation of all members, compiled once for every problem on the same graph."""
    model, graph = model_of(name, kind, degrees, sizes), koopman_problems.graph_of(kind)
    settings = training.Fit(sizes.updates, sizes.batch, sizes.window, sizes.learning_rate, sizes.final_rate)
    options = compiler_options(sizes)
    fit = jax.vmap(partial(fit_one, model, settings, graph.weights), in_axes=(0, 0, 0, 0, None))
    judge = lambda params, test: jax.lax.map(partial(judge_one, model, graph, sizes, test), params)
    return jax.jit(fit, compiler_options=options), jax.jit(judge, compiler_options=options)


def compiler_options(sizes: Sizes) -> dict[str, Any] | None:
    """On a CPU, how hard the compiler tries: at 1 programs are as fast as at the usual 3 and compile in half of the time."""
    return {"xla_backend_optimization_level": sizes.effort} if jax.default_backend() == "cpu" else None


def fit_one(
    model: Forecaster,
    settings: training.Fit,
    area,
    spectral: Array,
    noise: Array,
    leads: Array,
    seed: Array,
    data: Array,
):
    """A run of one seed: the same start and the same batches in every variant."""
    init_key, fit_key = jax.random.split(jax.random.key(seed))
    linear = model.operator is not None
    weights = LossWeights(spectral, 1e-3, 1.0, RECONSTRUCTION * linear, LINEARITY * linear, leads, noise)
    params, history = training.fit(model, settings, weights, model.init(init_key), data, area, fit_key)
    return params, history["graphmet/physical"]


def judge_one(model: Forecaster, graph, sizes: Sizes, test: Array, params: PyTree) -> dict[str, Array]:
    """Forecasts of the test fields ``[tests, time, nodes, 1]`` with one member; ``[leads]`` each, and of its latents."""
    truth = jnp.moveaxis(test[..., 0], 1, 0)
    forecast = model.rollout(params, test[:, 0], len(truth) - 1)[..., 0]
    climate = jnp.zeros(graph.nodes)
    area = graph.weights
    mean = partial(jnp.mean, axis=-1)
    found = {
        "rmse": mean(metrics.rmse(forecast, truth[1:], area)),
        "acc": mean(metrics.anomaly_correlation(forecast, truth[1:], climate, area)),
        "activity": mean(metrics.activity(forecast, truth[1:], climate, area)),
    }
    latents = model.latents(params, test[:, :4])
    values = jnp.linalg.eigvalsh(objectives.covariances(latents, latents).x)
    found |= {"smallest": values[0], "relative": jnp.maximum(values[0], 0.0) / jnp.mean(values)}
    found["effective_condition"] = values[-1] / jnp.maximum(values[0], 1e-6 * values[-1])
    if model.operator is not None:
        start = model.encode(params, test[:2, 0])
        norms = jnp.linalg.norm(
            graphmet.linear_latents(model.operator, params, start, sizes.bounded_steps), axis=(-2, -1)
        )
        found["growth"] = mean(jnp.max(norms / jnp.linalg.norm(start, axis=(-2, -1)), 0))
    else:
        layers = graphmet.layer_latents(model, graph, params, test[:, 0])
        found["dirichlet"] = jnp.mean(metrics.dirichlet_energy(graph, layers), -1)
    return found | {"forecast": forecast[-1]}


def run_cell(problem: Problem, sizes: Sizes, name: str, of: list[Variant], data) -> dict[str, Any]:
    """Train all seeds of all variants of a model as one program, and judge each. A variant's key -> metrics."""
    train, test = data()
    fit, judge = programs(name, problem.graph, problem.degrees, sizes)
    spectral, noise = (np.repeat([x[i] for x in of], sizes.seeds).astype(np.float32) for i in (1, 2))
    # Errors of the leads within a variant's window count, with a mean of 1.
    counts = np.array([[lead < variant.window for lead in range(sizes.window)] for variant in of])
    leads = np.repeat(counts * sizes.window / counts.sum(1, keepdims=True), sizes.seeds, 0).astype(np.float32)
    params, history = fit(spectral, noise, leads, np.tile(np.arange(sizes.seeds), len(of)), train)
    found = {metric: capped(metric, values) for metric, values in judge(params, test).items()}
    found["history"] = thinned(capped("history", history))
    found["high"] = high_ratio(problem, found.pop("forecast"), np.asarray(test)[:, -1, :, 0])
    if name == "skew":
        scores = ensemble_scores(problem, sizes, params, train, test)
        found |= {metric: capped(metric, values) for metric, values in scores.items()}
    slices = {variant.key: i * sizes.seeds for i, variant in enumerate(of)}
    return {key: {m: x[i : i + sizes.seeds] for m, x in found.items()} for key, i in slices.items()}


def capped(metric: str, values: Any) -> np.ndarray:
    """Numbers that can be averaged: what is not finite, or too large, counts as the cap; nothing is known of 0."""
    nothing = 0.0 if metric in ("acc", "smallest", "relative") else CAP
    cap = 1e6 if metric == "effective_condition" else CAP
    return np.clip(np.nan_to_num(np.asarray(values), nan=nothing, posinf=cap, neginf=-cap), -cap, cap)


def high_ratio(problem: Problem, forecast: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Power in the high wavenumbers at the last lead over that of the truth. ``[members, tests, nodes] -> [members]``."""
    if problem.graph[0] == "ring":
        power = metrics.fourier_power
    else:
        columns, codes = koopman_problems.harmonics_of(problem.graph, problem.degrees)
        area = koopman_problems.graph_of(problem.graph).weights
        degree = koopman_problems.degree_of(codes)
        power = partial(metrics.degree_power, basis=columns, degrees=degree, area=area)
    of_truth = power(jnp.asarray(truth))
    ratios = [metrics.high_ratio(power(jnp.asarray(member)), of_truth, *problem.high) for member in forecast]
    return capped("high", ratios)


def ensemble_scores(problem: Problem, sizes: Sizes, params: PyTree, train: Array, test: Array) -> dict[str, Array]:
    """The closed-form ensemble of ``skew`` at the middle lead against the forecast without one. ``[members]`` each."""
    snapshots = train[:, :: max(1, train.shape[1] // 16)].reshape(-1, *train.shape[2:])
    score = ensemble_program(problem.graph, problem.degrees, sizes, problem.middle)
    return score(params, snapshots, test[:, 0], test[:, problem.middle, :, 0])


@lru_cache
def ensemble_program(kind: tuple[str, int], degrees: int, sizes: Sizes, lead: int):
    score = partial(ensemble_one, model_of("skew", kind, degrees, sizes), koopman_problems.graph_of(kind), sizes, lead)
    program = lambda params, *data: jax.lax.map(lambda member: score(member, *data), params)
    return jax.jit(program, compiler_options=compiler_options(sizes))


def ensemble_one(model: Forecaster, graph, sizes: Sizes, lead: int, params: PyTree, snapshots, start, truth):
    climate = training.latent_climate(model.latents(params, snapshots), sizes.rank)
    draw = partial(training.ensemble, model, params, climate, steps=lead, members=sizes.members)
    one = lambda pair: draw(pair[0], key=pair[1])[-1, ..., 0]
    drawn = jax.lax.map(one, (start, jax.random.split(jax.random.key(7), len(start)))).swapaxes(0, 1)
    alone = model.rollout(params, start, lead)[-1, ..., 0]
    return {
        "crps": jnp.mean(metrics.crps(drawn, truth) @ graph.weights),
        "absolute_error": jnp.mean(jnp.abs(alone - truth) @ graph.weights),
        "spread_skill": metrics.spread_skill_ratio(drawn, truth, graph.weights),
        "energy_score": jnp.mean(metrics.energy_score(drawn, truth, graph.weights)),
    }


def cost(problem: Problem, sizes: Sizes) -> dict[str, list[float]]:
    """Milliseconds a step of a roll-out to the last lead, decoded, of every model, by turns; untrained, one field."""
    kind, sides = problem.graph, {}
    for name in (*sizes.linear, *(f"message_passing_{layers}" for layers in sizes.timed_layers)):
        model = model_of(name, kind, problem.degrees, sizes)
        params = jax.jit(model.init)(jax.random.key(0))
        roll = jax.jit(model.rollout, static_argnums=2, compiler_options=compiler_options(sizes))
        field = jax.random.normal(jax.random.key(1), (model.points, 1))
        sides[name] = partial(timed, partial(roll, params, field, problem.late))
    return {name: [1e3 * s / problem.late for s in times] for name, times in alternate(sides, 20).items()}


def timed(call) -> None:
    jax.block_until_ready(call())


def thinned(history: np.ndarray, points: int = 20) -> np.ndarray:
    """Means of about as many stretches of a curve, ``[members, points]``."""
    return np.stack([part.mean(1) for part in np.array_split(history, min(points, history.shape[1]), axis=1)], 1)


if __name__ == "__main__":
    cli.run_main(main)
