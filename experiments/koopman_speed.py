"""How much faster a linear latent model rolls out in parallel than an MLP latent model of equal width does step by step.

    uv run python -m experiments.koopman_speed
    uv run python -m experiments.koopman_speed --horizon 50 --controls 0

The MLP model is ``z' = MLP([z, c])`` with hidden layers as wide as the latent, two by default, in a ``lax.scan``; the
linear model is the diagonal operator, rolled out each way. Both keep all latents of the horizon. Compiling is left out,
sides alternate, and ratios are of medians, with the range that the quartiles of both sides allow.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

from experiments import cli
from jaxrl.errors import UsageError
from jaxrl.koopman import dictionaries, operators, rollouts
from jaxrl.types import PyTree


@dataclass(frozen=True)
class Speed:
    """Time rollouts of a linear latent model against those of an MLP model."""

    horizon: int = 200
    """Steps of a rollout."""
    batch: int = 256
    """Rollouts at once."""
    size: int = 64
    """Numbers in a latent, and units of each hidden layer."""
    controls: int = 6
    """Numbers in a control."""
    hidden: int = 2
    """Hidden layers of the MLP."""
    repeats: int = 30
    """Times that each side is measured."""
    required: float = 5.0
    """What the ratio is claimed to be at least, for the fastest parallel way."""


def main(arguments: list[str], console: Console) -> int:
    asked = cli.parse(Speed, arguments, description=__doc__)
    if min(asked.horizon, asked.batch, asked.repeats) < 1 or asked.controls < 0:
        raise UsageError("horizon, batch and repeats are at least 1, and controls at least 0")
    table = Table("rollout", "control", "MLP [ms]", "linear [ms]", "times faster", "range")
    fastest: dict[bool, float] = {}
    for forced in (False, True) if asked.controls else (False,):
        for way in rollouts.ROLLOUTS:
            row = compare(asked, way, forced)
            table.add_row(way, "yes" if forced else "no", *row.values())
            if way != "scan":
                fastest[forced] = max(fastest.get(forced, 0.0), float(row["ratio"]))
    console.print(table)
    holds = {
        ("with" if forced else "without") + " control": ratio >= asked.required for forced, ratio in fastest.items()
    }
    console.print(f"at least {asked.required:g} times faster: {holds}")
    return 0 if all(holds.values()) else 1


def compare(asked: Speed, way: str, forced: bool) -> dict[str, str]:
    """One row: medians of both sides, their ratio, and its range."""
    latents = jax.random.normal(jax.random.key(0), (asked.batch, asked.size))
    controls = jax.random.normal(jax.random.key(1), (asked.batch, asked.horizon, asked.controls)) if forced else None
    sides = (mlp_side(asked, forced), linear_side(asked, way, forced))
    slow, fast = measure([partial(rollout, params, latents, controls) for rollout, params in sides], asked.repeats)
    ratio = statistics.median(slow) / statistics.median(fast)
    low, _, high = (a / b for a, b in zip(quartiles(slow), reversed(quartiles(fast)), strict=True))
    return {
        "mlp": f"{1e3 * statistics.median(slow):.2f}",
        "linear": f"{1e3 * statistics.median(fast):.2f}",
        "ratio": f"{ratio:.1f}",
        "range": f"{low:.1f} to {high:.1f}",
    }


def mlp_side(asked: Speed, forced: bool) -> tuple[Callable, PyTree]:
    """``(params, latents [batch, size], controls [batch, horizon, controls] or None) -> [horizon, batch, size]``."""
    width = asked.size + (asked.controls if forced else 0)
    network = dictionaries.EncoderNetwork(asked.size, (asked.size,) * asked.hidden, "relu")
    params = network.init(jax.random.key(2), jnp.zeros((1, width)))

    def rollout(params, latents, controls):
        def step(latent, control):
            inputs = latent if control is None else jnp.concatenate([latent, control], -1)
            latent = network.apply(params, inputs)
            return latent, latent

        return jax.lax.scan(step, latents, None if controls is None else controls.swapaxes(0, 1), asked.horizon)[1]

    return jax.jit(rollout), params


def linear_side(asked: Speed, way: str, forced: bool) -> tuple[Callable, PyTree]:
    """The same of the diagonal operator; the result is ``[batch, horizon, size]``."""
    operator = operators.diagonal(asked.size, asked.controls if forced else 0)
    one = lambda params, latent, controls: rollouts.by_name(way)(operator, params, latent, controls, asked.horizon)
    return jax.jit(jax.vmap(one, in_axes=(None, 0, 0 if forced else None))), operator.init(jax.random.key(3))


def measure(sides: list[Callable], repeats: int) -> list[list[float]]:
    """Seconds of every call, each side in turn; the first call of each, which compiles, is not among them."""
    times: list[list[float]] = [[] for _ in sides]
    for side in sides:
        jax.block_until_ready(side())
    for _ in range(repeats):
        for side, seconds in zip(sides, times, strict=True):
            begun = time.perf_counter()
            jax.block_until_ready(side())
            seconds.append(time.perf_counter() - begun)
    return times


def quartiles(seconds: list[float]) -> list[float]:
    return statistics.quantiles(seconds, n=4) if len(seconds) > 1 else seconds * 3


if __name__ == "__main__":
    cli.run_main(main)
