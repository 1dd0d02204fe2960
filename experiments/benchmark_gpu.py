"""A short look at one accelerator: PPO on Brax's ant, updates of SAC, replay, populations, compile times; four minutes.

    uv run python -m experiments.benchmark_gpu
    uv run python -m experiments.benchmark_gpu --seconds 400 --only ant hopper
    uv run python -m experiments.benchmark_gpu --preset smoke      # tiny, for a CPU: that it is never broken

Nothing new is started when the seconds left are fewer than a part is expected to need; what was left out is said.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
from rich.console import Console
from rich.table import Table

from experiments import cli, replay_speed
from experiments.benchmarking.alone import best_of
from experiments.benchmarking.ours import sac_updates, timed
from experiments.benchmarking.rows import record_of
from experiments.benchmarking.sizes import Sizes
from experiments.configs import Evaluate, Train
from experiments.setup import build
from jaxrl import samplers
from jaxrl.agents import ppo
from jaxrl.errors import UsageError, unknown
from jaxrl.training import OnPolicy


@dataclass(frozen=True)
class Scale:
    """What is run."""

    ant: str = "brax:ant"
    hopper: str = "brax:hopper"
    ant_envs: int = 4096
    ant_unroll: int = 16
    hopper_members: int = 64
    hopper_envs: int = 64
    hopper_unroll: int = 16
    toy_members: int = 256
    toy_envs: int = 64
    toy_unroll: int = 64
    minibatches: int = 8
    hidden: tuple[int, ...] = (256, 256)
    batches: tuple[int, ...] = (256, 4096, 32_768)
    rows: int = 2**20
    expected: dict[str, float] = field(default_factory=dict)  # seconds, in place of EXPECTED


SMOKE = Scale(
    ant="toy:point_mass", hopper="brax:inverted_pendulum", ant_envs=8, ant_unroll=4, hopper_members=2, hopper_envs=4,
    hopper_unroll=4, toy_members=4, toy_envs=4, toy_unroll=4, minibatches=2, hidden=(8,), batches=(16,), rows=2048,
    expected=dict.fromkeys(("sac", "replay", "toy", "ant", "hopper"), 1.0),
)  # fmt: skip
# Seconds, compiling included, that a part needs at most on a current data-centre GPU; guesses on the safe side.
EXPECTED = {"sac": 40.0, "replay": 15.0, "toy": 20.0, "ant": 80.0, "hopper": 80.0}


@dataclass(frozen=True)
class Gpu:
    """Measure one accelerator in a few minutes."""

    preset: str = "paper"
    """paper, or smoke for a CPU."""
    seconds: float = 240.0
    """Start nothing that would probably end after so many."""
    each: float = 2.0
    """Seconds of timed calls behind each number."""
    only: tuple[str, ...] = ()
    """Parts: sac, replay, toy, ant, hopper; all where absent."""
    out: Path = Path("runs/benchmark/gpu.json")
    """Where the numbers go."""


class Number(NamedTuple):
    """One line of the result."""

    what: str
    value: float
    unit: str
    compiling: float  # seconds until the first result


def main(arguments: list[str], console: Console) -> int:
    began = time.perf_counter()
    asked = cli.parse(Gpu, arguments, description=__doc__)
    if asked.preset not in ("paper", "smoke") or asked.seconds <= 0:
        raise UsageError(f"preset {asked.preset} and seconds {asked.seconds} cannot work; use paper or smoke, and 240")
    for name in asked.only:
        if name not in EXPECTED:
            raise unknown("part", name, EXPECTED)
    scale = SMOKE if asked.preset == "smoke" else Scale()
    each = min(asked.each, 0.01) if asked.preset == "smoke" else asked.each
    parts = {"sac": sac, "replay": replay, "toy": toy, "ant": ant, "hopper": hopper}
    record = record_of(cli.command_line("experiments.benchmark_gpu", arguments), 0, {}, {"jaxrl": versions()})
    numbers: list[Number] = []
    left_out: list[str] = []
    for name, part in parts.items():
        if asked.only and name not in asked.only:
            continue
        left = asked.seconds - (time.perf_counter() - began)
        if left < (EXPECTED | scale.expected)[name]:
            left_out.append(name)
            continue
        found = part(scale, each)
        numbers += found
        for number in found:
            console.print(f"  {number.what}: {amount(number)}", markup=False, soft_wrap=True)
        keep(asked.out, record, numbers, left_out, time.perf_counter() - began)
    keep(asked.out, record, numbers, left_out, time.perf_counter() - began)
    console.print(table(numbers, record["machine"]["device"]))
    for name in left_out:
        console.print(f"  {name} was left out: {asked.seconds:.0f} s would not have been enough", markup=False)
    console.print(f"  {time.perf_counter() - began:.0f} s; results in {asked.out}", markup=False, soft_wrap=True)
    return 0


def training(env: str, members: int, num_envs: int, unroll: int, scale: Scale, each: float, what: str) -> list[Number]:
    """Steps a second of PPO, over all members, and the seconds to the end of the first iteration."""
    agent = ppo.Config(minibatches=scale.minibatches, hidden_sizes=scale.hidden, normalise_observations=True)
    steps = 100 * num_envs * unroll
    program = build(
        Train(agent, OnPolicy(num_envs, unroll), env, steps, seeds=members, evaluate=Evaluate(every=0))
    ).program
    held: list[Any] = []
    first = timed(lambda: held.append(jax.block_until_ready(program.advance(program.init(), 0, 1))[0]))

    def call() -> None:
        held[0] = jax.block_until_ready(program.advance(held[0], 0, 1))[0]

    return [Number(what, members * num_envs * unroll / best_of(call, each), "steps/s", first)]


def ant(scale: Scale, each: float) -> list[Number]:
    what = f"PPO on {scale.ant}, {scale.ant_envs:,} environments"
    return training(scale.ant, 1, scale.ant_envs, scale.ant_unroll, scale, each, what)


def hopper(scale: Scale, each: float) -> list[Number]:
    what = f"PPO on {scale.hopper}, a population of {scale.hopper_members} with {scale.hopper_envs} environments each"
    sizes = scale.hopper_members, scale.hopper_envs, scale.hopper_unroll
    return training(scale.hopper, *sizes, scale, each, what)


def toy(scale: Scale, each: float) -> list[Number]:
    what = f"PPO on toy:point_mass, a population of {scale.toy_members} with {scale.toy_envs} environments each"
    return training("toy:point_mass", scale.toy_members, scale.toy_envs, scale.toy_unroll, scale, each, what)


def sac(scale: Scale, each: float) -> list[Number]:
    """Updates a second at every batch size, observation 17, action 6."""
    numbers = []
    for batch in scale.batches:
        program, carry = sac_updates(vars(Sizes(batch_size=batch, pool=4, sac_hidden=scale.hidden)))
        held = [carry]

        def call(count: int, program: Callable = program, held: list[Any] = held) -> None:
            held[0] = jax.block_until_ready(program(held[0], count))

        first = timed(partial(call, 1))
        count = 4 if batch == max(scale.batches) else 64
        took = best_of(partial(call, count), each) / count
        numbers.append(Number(f"SAC, batch {batch:,}, networks {scale.hidden}", 1 / took, "updates/s", first))
    return numbers


def replay(scale: Scale, each: float) -> list[Number]:
    """Rounds of adding 512 rows and drawing 256 from a full storage."""
    rounds = 100
    call = replay_speed.our_rounds(samplers.uniform(), scale.rows, rounds)
    first = timed(call)
    took = best_of(call, each) / rounds
    return [Number(f"replay, {scale.rows:,} rows: add 512 and draw 256", 1e6 * took, "µs", first)]


def versions() -> dict[str, str]:
    return {name: __import__(name).__version__ for name in ("jaxrl", "jax", "flax", "optax", "brax")}


def amount(number: Number) -> str:
    return f"{number.value:,.1f} {number.unit}, first result after {number.compiling:.1f} s"


def table(numbers: list[Number], device: str) -> Table:
    made = Table("measure", "speed", "first result [s]", title=device, title_justify="left")
    for number in numbers:
        made.add_row(number.what, f"{number.value:,.1f} {number.unit}", f"{number.compiling:.1f}")
    return made


def keep(path: Path, record: dict, numbers: list[Number], left_out: list[str], seconds: float) -> None:
    """Everything as JSON, and a table for the README beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {**record, "seconds": seconds, "left_out": left_out, "numbers": [n._asdict() for n in numbers]}
    path.write_text(json.dumps(content, indent=1) + "\n")
    device = record["machine"]["device"]
    lines = [
        f"Measured on {record['date']} by `{record['command']}` on one {device}.",
        "",
        "| measure | speed | first result |",
    ]
    lines += ["|---|---|---|", *(f"| {n.what} | {n.value:,.1f} {n.unit} | {n.compiling:.1f} s |" for n in numbers)]
    path.with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    cli.run_main(main)
