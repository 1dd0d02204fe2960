"""The parts of the control study: training, open-loop forecasts, controllers, episodes, times."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.koopman_control_tasks import Data, Sizes, Task, environment_of
from experiments.measuring import alternate
from jaxrl.types import Array, Key, PyTree
from jaxrl.world_models import CEM, WorldModel, base, baselines, koopman_model, lqr, planning

DISCOUNT = 0.97
BLOWN_UP = 1e3  # deviations: what an open-loop error counts at most
LINEAR = ("diagonal", "dense")
MODELS = (*LINEAR, "bilinear", "gru", "mlp")
# "mpc", "cem_cost" and "lqr" minimise the quadratic cost; "cem" maximises the learned rewards and value.
CONTROLLERS = (
    ("mpc", "diagonal"),
    ("cem_cost", "diagonal"),
    ("cem", "diagonal"),
    ("mpc", "dense"),
    ("cem", "bilinear"),
    ("lqr", "diagonal"),
    ("lqr", "dense"),
)


def model_of(name: str, task: Task, sizes: Sizes) -> WorldModel:
    """A model of the study. All have one latent size, and the same encoder and heads."""
    shared: dict[str, Any] = {
        "latent_size": sizes.latent, "hidden_sizes": (sizes.hidden, sizes.hidden), "discount": DISCOUNT
    }  # fmt: skip
    sizes_of = len(task.goal), 1
    if name in ("gru", "mlp"):
        return baselines.make(baselines.Config(**shared, kind=name), *sizes_of)  # type: ignore[arg-type]
    return koopman_model.make(koopman_model.Config(**shared, operator=name), *sizes_of)  # type: ignore[arg-type]


def train(name: str, task: Task, sizes: Sizes, data: Data) -> tuple[PyTree, np.ndarray]:
    """Parameters of all seeds ``[seeds, …]``, and their losses ``[seeds, updates]``. Seeds share data, not batches."""
    model = model_of(name, task, sizes)
    lanes, last = data.train.reward.shape[1], len(data.train.reward) - sizes.window

    def update(steps, state: base.State, key: Key):
        lane_key, time_key = jax.random.split(key)
        lane = jax.random.randint(lane_key, (sizes.batch,), 0, lanes)
        start = jax.random.randint(time_key, (sizes.batch,), 0, last + 1)
        state, metrics = model.update(state, base.windows(steps, lane, start, sizes.window))
        return state, metrics["model/loss"]

    def run(steps, state: base.State, key: Key):
        state, losses = jax.lax.scan(partial(update, steps), state, jax.random.split(key, sizes.updates))
        return state.params, losses

    # One start after another: a program that draws all of them takes longer to compile than to train.
    init = jax.jit(model.init)
    started = [init(jax.random.key(seed)) for seed in range(sizes.seeds)]
    states = jax.tree.map(lambda *leaves: jnp.stack(leaves), *started)
    steps = jax.tree.map(jnp.asarray, data.train)
    keys = jax.random.split(jax.random.key(1), sizes.seeds)
    params, losses = jax.jit(jax.vmap(run, (None, 0, 0)))(steps, states, keys)
    return params, np.asarray(losses)


def open_loop(model: WorldModel, params: PyTree, data: Data) -> np.ndarray:
    """Root mean squared error of decoded observations, in deviations, by lead. ``[seeds, lead]``.

    What has grown beyond all measure counts as ``BLOWN_UP``, so that means over leads and seeds exist.
    """

    def judge(params: PyTree) -> Array:
        latents = model.rollout(params, model.encode(params, data.test.observation[:, 0]), data.test.action)
        off = model.decode(params, latents) - data.test.next_observation
        return jnp.sqrt(jnp.mean(jnp.square(off), (0, 2)))

    errors = np.asarray(jax.jit(jax.vmap(judge))(params))
    return np.clip(np.nan_to_num(errors, nan=BLOWN_UP, posinf=BLOWN_UP), 0.0, BLOWN_UP)


class Controller(NamedTuple):
    prepare: Callable[[PyTree], PyTree]  # params -> what is computed once
    # (params, prepared, observation [O], plan [horizon, 1], key) -> plan; its first row is the action
    plan: Callable[[PyTree, PyTree, Array, Array, Key], Array]


def controller(kind: str, model: WorldModel, task: Task, sizes: Sizes, data: Data) -> Controller:
    """How a model is acted with. Observations are in the environment's units."""
    cost = partial(cost_of, model, task, data)
    encode = lambda params, seen: model.encode(params, (seen - data.centre) / data.scale)
    if kind == "mpc":
        return Controller(partial(prepare_mpc, model, cost, sizes), partial(plan_mpc, encode))
    if kind == "lqr":
        return Controller(partial(prepare_lqr, model, cost), partial(plan_lqr, encode))
    settings = CEM(sizes.population, max(2, sizes.population // 8), sizes.iterations)
    return Controller(cost if kind == "cem_cost" else lambda params: (), partial(plan_cem, model, settings, encode))


def cost_of(model: WorldModel, task: Task, data: Data, params: PyTree) -> planning.LatentCost:
    """The task's cost in the model's units."""
    q = jnp.diag(jnp.asarray(np.asarray(task.q) * data.scale**2, jnp.float32))
    goal = jnp.asarray((np.asarray(task.goal) - data.centre) / data.scale, jnp.float32)
    return planning.latent_cost(model, params, q, task.r * jnp.eye(1), goal)


def prepare_mpc(model: WorldModel, cost: Callable, sizes: Sizes, params: PyTree) -> PyTree:
    of = cost(params)
    return planning.condense(*planning.linear_part(model, params), of.q, of.r, sizes.horizon), of.goal


def plan_mpc(encode: Callable, params: PyTree, prepared: PyTree, seen: Array, plan: Array, key: Key) -> Array:
    condensed, goal = prepared
    return planning.mpc(condensed, encode(params, seen), goal, planning.shifted(plan))


def prepare_lqr(model: WorldModel, cost: Callable, params: PyTree) -> PyTree:
    of = cost(params)
    a, b = planning.linear_part(model, params)
    return lqr.infinite_horizon(a, b, of.q, of.r, drift=a @ of.goal - of.goal), of.goal


def plan_lqr(encode: Callable, params: PyTree, prepared: PyTree, seen: Array, plan: Array, key: Key) -> Array:
    regulator, goal = prepared
    action = -regulator.feedback @ (encode(params, seen) - goal) - regulator.feedforward
    return jnp.broadcast_to(jnp.clip(action, -1.0, 1.0), plan.shape)


def plan_cem(
    model: WorldModel,
    settings: CEM,
    encode: Callable,
    params: PyTree,
    prepared: PyTree,
    seen: Array,
    plan: Array,
    key: Key,
) -> Array:
    latent = encode(params, seen)
    if prepared:
        score = partial(planning.negative_cost, model, params, prepared, latent)
    else:
        score = partial(planning.predicted_return, model, params, latent, discount=DISCOUNT)
    return planning.cem(settings, score, planning.shifted(plan), key)


class Stage(NamedTuple):
    """An environment of ``[seeds * episodes]`` lanes, compiled once for all controllers; seeds see the same starts."""

    step: Callable
    anywhere: tuple[PyTree, Array]  # states and observations of the environment's own starts
    upright: tuple[PyTree, Array]  # of starts near upright


def stage_of(task: Task, sizes: Sizes) -> Stage:
    env = environment_of(task)
    states, first = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(5), 64 * sizes.episodes))
    near = np.arange(sizes.episodes)
    if task.swing_up:  # those nearest to upright and at rest, weighed as the cost does
        off = np.asarray(first.observation) - np.asarray(task.goal)
        near = np.argsort(off**2 @ np.asarray(task.q))[: sizes.episodes]
    pick = lambda rows: jax.tree.map(lambda x: x[np.tile(rows, sizes.seeds)], (states, first.observation))
    return Stage(jax.jit(jax.vmap(env.step)), pick(np.arange(sizes.episodes)), pick(near))


def episodes(
    control: Controller, params: PyTree, stage: Stage, start: tuple[PyTree, Array], task: Task, sizes: Sizes
) -> dict[str, np.ndarray]:
    """Returns and the share of episodes that end upright, ``[seeds]``; rewards count until an episode ends."""
    lanes = sizes.seeds * sizes.episodes
    shape = sizes.seeds, sizes.episodes
    steps = task.max_steps if sizes.updates > 100 else 20
    prepared = jax.jit(jax.vmap(control.prepare))(params)
    inner = jax.vmap(control.plan, (None, None, 0, 0, 0))
    act = jax.jit(jax.vmap(inner))
    state, seen = start
    plan, alive, total = jnp.zeros((*shape, sizes.horizon, 1)), np.ones(lanes, bool), np.zeros(lanes)
    upright = []
    for key in jax.random.split(jax.random.key(6), steps):
        plan_key, step_key = jax.random.split(key)
        keys = jax.random.split(plan_key, shape)
        plan = act(params, prepared, jnp.nan_to_num(seen).reshape(*shape, -1), plan, keys)
        state, after = stage.step(state, plan[:, :, 0].reshape(lanes, 1), jax.random.split(step_key, lanes))
        seen = after.next_observation
        total += np.where(alive, np.asarray(after.reward), 0.0)
        alive &= ~np.asarray(after.terminated)
        upright.append(alive & is_upright(task, np.asarray(seen)))
    late = np.stack(upright)[-steps // 4 :].all(0)
    return {"return": total.reshape(shape).mean(1), "upright": late.reshape(shape).mean(1)}


def is_upright(task: Task, seen: np.ndarray) -> np.ndarray:
    """Within 0.2 rad of upright."""
    height = seen[:, task.upright]
    return height > np.cos(0.2) if task.swing_up else np.abs(height) <= 0.2


def action_times(task: Task, sizes: Sizes, data: Data, trained: dict[str, PyTree]) -> dict[str, list[float]]:
    """Seconds from one observation to one action, of every controller, by turns."""
    sides = {}
    for kind, name in CONTROLLERS:
        control = controller(kind, model_of(name, task, sizes), task, sizes, data)
        params = jax.tree.map(lambda x: x[0], trained[name])
        act = jax.jit(control.plan)
        given = (params, jax.jit(control.prepare)(params), jnp.asarray(data.centre), jnp.zeros((sizes.horizon, 1)))
        sides[f"{kind}/{name}"] = partial(wait, act, *given, jax.random.key(0))
    return alternate(sides, 3 * sizes.turns)


def rollout_times(task: Task, sizes: Sizes) -> dict[str, list[float]]:
    """Seconds of a batch of roll-outs of latents, of every model, by turns; untrained."""
    sides = {}
    latents = jax.random.normal(jax.random.key(0), (sizes.timed_batch, sizes.latent))
    actions = jax.random.uniform(jax.random.key(1), (sizes.timed_batch, sizes.timed_horizon, 1), minval=-1.0)
    for name in MODELS:
        model = model_of(name, task, sizes)
        params = jax.jit(model.init)(jax.random.key(2)).params
        sides[name] = partial(wait, jax.jit(model.rollout), params, latents, actions)
    return alternate(sides, sizes.turns)


def wait(call: Callable, *given: Any) -> None:
    jax.block_until_ready(call(*given))
