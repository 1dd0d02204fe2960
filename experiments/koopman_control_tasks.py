"""What the control study controls: two pendulums, who acts in the data, and what is recorded of it."""

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import environments
from environments.base import Environment
from jaxrl.errors import UsageError
from jaxrl.koopman import fits
from jaxrl.types import Array, Experience, Key, PyTree
from jaxrl.world_models import lqr

LARGEST_TORQUE = 2.0  # of the pendulum, at an action of 1 [N m]


@dataclass(frozen=True)
class Task:
    """An environment with a quadratic cost on its observations, whose goal is upright and at rest."""

    name: str
    env: str
    q: tuple[float, ...]  # diagonal
    r: float
    goal: tuple[float, ...]
    upright: int  # the observation that says how upright: its cosine if above 0.5 at the goal, else its angle
    swing_up: bool  # whether a start may hang
    max_steps: int = 200


# The pendulum's own reward is -(angle^2 + 0.1 speed^2 + 0.001 torque^2); 2 (1 - cos) is the angle's square near upright.
PENDULUM = Task("pendulum", "gymnax:Pendulum-v1", (1.0, 1.0, 0.1), 0.004, (1.0, 0.0, 0.0), 0, True)
INVERTED = Task("inverted_pendulum", "brax:inverted_pendulum", (0.1, 1.0, 0.01, 0.1), 0.1, (0.0,) * 4, 1, False)
TASKS = (PENDULUM, INVERTED)


@dataclass(frozen=True)
class Sizes:
    """How large and how long."""

    seeds: int = 5
    lanes: int = 100  # of data, each as long as an episode
    steps: int = 200
    tests: int = 64  # windows that are forecast
    lead: int = 100  # steps of an open-loop forecast
    latent: int = 32
    hidden: int = 64
    updates: int = 3000
    batch: int = 32
    window: int = 24
    horizon: int = 20  # of a plan
    population: int = 64
    iterations: int = 3  # of CEM
    episodes: int = 4
    timed_horizon: int = 200
    timed_batch: int = 256
    turns: int = 11


SIZES = {
    "smoke": Sizes(2, 8, 140, 4, 100, 8, 16, 20, 8, 8, 5, 16, 2, 2, 50, 16, 3),
    "cpu": Sizes(),
    "paper": Sizes(
        seeds=10, tests=256, latent=64, hidden=256, updates=50_000, batch=256, window=50, population=256, iterations=6,
        episodes=32, turns=31,
    ),
}  # fmt: skip


class Data(NamedTuple):
    """Recorded steps ``[T, lanes]`` in units of about 1, and the units."""

    train: Experience
    test: Experience  # windows [tests, lead] without an end in them
    centre: np.ndarray  # [observations]
    scale: np.ndarray
    reward_scale: float
    teacher_return: float  # of the best quarter of lanes, in the environment's units, for an episode


@lru_cache
def environment_of(task: Task) -> Environment:
    """A single environment that takes actions in [-1, 1]."""
    env = environments.make(task.env, max_steps=task.max_steps)
    return environments.scale_action(env)  # type: ignore[arg-type]


def swing_up(observation: Array) -> Array:
    """Pump energy until it is that of rest upright, then hold with a linear feedback. [1].

    For ``angle'' = 15 sin angle + 3 torque``, whose energy ``speed^2 / 2 + 15 cos angle`` is 15 upright.
    """
    cosine, sine, speed = observation
    pump = 0.3 * speed * (15.0 - 0.5 * speed**2 - 15.0 * cosine)
    hold = -(10.0 * sine + 2.5 * speed)
    torque = jnp.where((cosine > 0.85) & (jnp.abs(speed) < 4.0), hold, pump)
    return jnp.clip(torque / LARGEST_TORQUE, -1.0, 1.0)[None]


def linear_feedback(gain: np.ndarray, observation: Array) -> Array:
    """``-gain observation``, [1]."""
    return jnp.clip(-jnp.asarray(gain) @ observation, -1.0, 1.0)


def collect(task: Task, lanes: int, steps: int, teacher: Any, key: Key) -> Experience:
    """Steps of a mixed policy, ``[steps, lanes]``: teacher and noise, each lane with its own share and noise.

    A quarter of the lanes each: noise alone, a new draw a step; noise alone, held for ten steps; the teacher with a lot of
    noise; the teacher with little. Without a teacher all of it is noise.
    """
    env = environments.vectorise(environment_of(task), lanes)
    kind = np.arange(lanes) % 4
    share = jnp.asarray(kind >= 2, jnp.float32)[:, None] * (teacher is not None)
    loudness = {True: (1.0, 1.0, 0.6, 0.15), False: (0.1, 0.1, 0.2, 0.05)}[task.swing_up]
    noise = jnp.asarray(np.asarray(loudness, np.float32)[kind])[:, None]
    held = jnp.asarray(kind == 1)[:, None]
    guide = (lambda o: jnp.zeros(1)) if teacher is None else teacher

    def step(carry: tuple[PyTree, Any, Array], inputs: tuple[Array, Key]):
        state, seen, drawn = carry
        time, key = inputs
        noise_key, step_key = jax.random.split(key)
        fresh = jax.random.uniform(noise_key, drawn.shape, minval=-1.0, maxval=1.0)
        drawn = jnp.where(held & (time % 10 != 0), drawn, fresh)
        action = jnp.clip(share * jax.vmap(guide)(seen.observation) + noise * drawn, -1.0, 1.0)
        state, after = env.step(state, action, step_key)
        ends = after.terminated, after.truncated
        return (state, after, drawn), Experience(seen.observation, action, after.reward, *ends, after.next_observation)

    def run(key: Key) -> Experience:
        reset_key, *keys = jax.random.split(key, 2)
        state, first = env.reset(reset_key)
        times = jnp.arange(steps), jax.random.split(keys[0], steps)
        return jax.lax.scan(step, (state, first, jnp.zeros((lanes, 1))), times)[1]

    return jax.tree.map(np.asarray, jax.jit(run)(key))


def teacher_of(task: Task, sizes: Sizes) -> Any:
    """Who guides half of the lanes: a rule for the swing-up, else the regulator of a linear fit to random actions."""
    if task.swing_up:
        return swing_up
    steps = collect(task, sizes.lanes, 50, None, jax.random.key(100))
    flat = lambda x: np.asarray(x, np.float64).reshape(-1, x.shape[-1])
    fit = fits.edmd(flat(steps.observation), flat(steps.next_observation), flat(steps.action), ridge=1e-6)
    gain = lqr.infinite_horizon(fit.A, fit.B, np.diag(task.q), task.r * np.eye(1)).feedback  # type: ignore[arg-type]
    return partial(linear_feedback, np.asarray(gain))


def data_of(task: Task, sizes: Sizes) -> Data:
    """Recorded steps for training, and windows of other lanes to forecast.

    Raises:
        UsageError: where too few lanes go on for as long as a forecast.
    """
    teacher = teacher_of(task, sizes)
    record = lambda seed: collect(task, sizes.lanes, sizes.steps, teacher, jax.random.key(seed))
    train, other = record(101), record(102)
    flat = train.observation.reshape(-1, train.observation.shape[-1])
    centre, scale = flat.mean(0), flat.std(0) + 1e-6
    spread = float(train.reward.std())
    reward_scale = spread if spread > 1e-3 else 1.0
    normal = partial(normalised, centre=centre, scale=scale, reward_scale=reward_scale)
    returns = train.reward[:, np.arange(sizes.lanes) % 4 == 3].sum(0) * task.max_steps / sizes.steps
    return Data(normal(train), normal(unbroken(other, sizes)), centre, scale, reward_scale, float(returns.mean()))


def normalised(steps: Experience, centre: np.ndarray, scale: np.ndarray, reward_scale: float) -> Experience:
    seen = {name: (getattr(steps, name) - centre) / scale for name in ("observation", "next_observation")}
    return steps._replace(reward=steps.reward / reward_scale, **seen)


def unbroken(steps: Experience, sizes: Sizes) -> Experience:
    """Windows ``[tests, lead]`` in which no episode ends before the last step, spread evenly over all there are."""
    flagged = np.cumsum(steps.terminated | steps.truncated, 0)
    flagged = np.concatenate([np.zeros_like(flagged[:1]), flagged])
    starts = len(steps.reward) - sizes.lead + 1
    whole = np.argwhere(flagged[sizes.lead - 1 : sizes.lead - 1 + starts] == flagged[:starts])
    if len(whole) < sizes.tests:
        raise UsageError(f"{len(whole)} stretches go on for {sizes.lead} steps, {sizes.tests} are needed; record more")
    time, lane = whole[np.linspace(0, len(whole) - 1, sizes.tests).astype(int)].T
    return jax.tree.map(lambda x: x[time[:, None] + np.arange(sizes.lead), lane[:, None]], steps)
