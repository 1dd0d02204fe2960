"""What replay costs beside others: flashbax, Brax's queue and a numpy buffer, by turns in one process.

    uv run --with flashbax python -m experiments.replay_speed
    uv run python -m experiments.replay_speed --rows 65536          # without flashbax: the rest

Every side adds 512 transitions (observation 17, action 6) and draws 256, many times in one compiled, donated loop, into a
full storage; numpy does the same in Python. Times are per round of add and draw; a ratio above 1 says that ours is faster.
"""

import importlib.util
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from experiments import cli
from experiments.measuring import alternate, ratio
from jaxrl import samplers
from jaxrl.errors import UsageError
from jaxrl.types import Experience

OBSERVATION, ACTION = 17, 6
ADDED, DRAWN = 512, 256
FEW = 3  # rounds of a side that is slow


@dataclass(frozen=True)
class Speed:
    """Time replay against its peers."""

    rows: int = 2**20
    """Capacity; a multiple of 512."""
    rounds: int = 100
    """Rounds of add and draw in each timed call."""
    turns: int = 7
    """Timed calls of each side."""
    out: Path = Path("runs/replay_speed.json")
    """Where the numbers are kept."""


def main(arguments: list[str], console: Console) -> None:
    asked = cli.parse(Speed, arguments, description=__doc__)
    if asked.rows < 4 * ADDED or asked.rows % ADDED or min(asked.rounds, asked.turns) < 1:
        raise UsageError(
            f"rows {asked.rows} must be a multiple of {ADDED} and at least {4 * ADDED}; rounds and turns at least 1"
        )
    result: dict[str, Any] = {"rows": asked.rows}
    uniform = samplers.uniform()
    sides: dict[str, Callable[[], Any]] = {"uniform": our_rounds(uniform, asked.rows, asked.rounds)}
    sides["truncated geometric"] = our_rounds(samplers.truncated_geometric(beta=4.6), asked.rows, asked.rounds)
    sides["numpy"] = numpy_rounds(asked.rows, asked.rounds)
    if flashbax := importlib.util.find_spec("flashbax"):
        sides["flashbax item buffer"] = flashbax_rounds(asked.rows, asked.rounds)
    else:
        console.print(
            "  flashbax is not there: uv run --with flashbax python -m experiments.replay_speed", markup=False
        )
    result["full storage"] = show(console, "full storage", sides, "uniform", asked.turns, asked.rounds)
    # Its queue moves the whole array at every add once it is full: a few rounds are enough.
    sides = {"uniform": our_rounds(uniform, asked.rows, asked.rounds), "Brax's queue": brax_rounds(asked.rows, FEW)}
    result["queue"] = show(console, "beside Brax's queue", sides, "uniform", 3, asked.rounds, {"Brax's queue": FEW})
    sides = {"prioritised": our_prioritised(asked.rows, asked.rounds)}
    if flashbax:
        sides["flashbax prioritised"] = flashbax_prioritised(asked.rows, asked.rounds)
    result["prioritised"] = show(console, "add, draw, set priorities", sides, "prioritised", asked.turns, asked.rounds)
    sizes = [size for size in (2**14, 2**16, 2**18, 2**20) if size <= asked.rows]
    sides = {f"{size:,} rows": our_rounds(uniform, size, asked.rounds) for size in sizes}
    sides |= {f"{sizes[-1]:,} rows, empty": our_rounds(uniform, sizes[-1], asked.rounds, full=False)}
    result["sizes"] = show(console, "size", sides, f"{sizes[0]:,} rows", asked.turns, asked.rounds)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(result, indent=1) + "\n")


def show(
    console: Console,
    title: str,
    sides: dict[str, Callable[[], Any]],
    ours: str,
    turns: int,
    rounds: int,
    other_rounds: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, Any]:
    """Measure and print: microseconds a round, and how many times as long as ours."""
    times = alternate(sides, turns)
    times = {name: [t / other_rounds.get(name, rounds) for t in of] for name, of in times.items()}
    table = Table("side", "µs a round", f"times {ours} [least, most]", title=title, title_justify="left")
    found = {}
    for name, of in times.items():
        against = ratio(of, times[ours])
        found[name] = {"microseconds": 1e6 * float(np.median(of)), "ratio": against._asdict()}
        table.add_row(name, f"{found[name]['microseconds']:,.1f}", str(against))
    console.print(table)
    return found


def example() -> Experience:
    """One experience of zeros."""
    no = jnp.zeros((), bool)
    return Experience(jnp.zeros(OBSERVATION), jnp.zeros(ACTION), jnp.zeros(()), no, no, jnp.zeros(OBSERVATION))


def block(shape: tuple[int, ...]) -> Experience:
    """Experience of ones with the leading axes."""
    return jax.tree.map(lambda leaf: jnp.ones((*shape, *leaf.shape), leaf.dtype), example())


def our_rounds(sampler: samplers.Sampler, rows: int, rounds: int, full: bool = True) -> Callable[[], Any]:
    """Rounds of add and draw, 512 environments a step each, in one donated program."""
    storage = sampler.init(example(), rows, ADDED)
    if full:
        fill = jax.jit(lambda s: jax.lax.fori_loop(0, rows // ADDED, lambda _, s: sampler.add(s, block((1, ADDED))), s))
        storage = fill(storage)

    def one(carry, _):
        storage, key, total = carry
        key, draw_key = jax.random.split(key)
        storage = sampler.add(storage, block((1, ADDED)))
        batch, _ = sampler.sample(storage, draw_key, DRAWN)
        return (storage, key, total + checksum(batch)), None

    return repeat(jax.jit(lambda carry: jax.lax.scan(one, carry, None, rounds)[0], donate_argnums=0), storage)


def our_prioritised(rows: int, rounds: int) -> Callable[[], Any]:
    """Rounds of add, draw and new priorities."""
    sampler = samplers.proportional()
    storage = sampler.init(example(), rows, ADDED)
    fill = jax.jit(lambda s: jax.lax.fori_loop(0, rows // ADDED, lambda _, s: sampler.add(s, block((1, ADDED))), s))

    def one(carry, _):
        storage, key, total = carry
        key, draw_key, priority_key = jax.random.split(key, 3)
        storage = sampler.add(storage, block((1, ADDED)))
        batch, info = sampler.sample(storage, draw_key, DRAWN)
        storage = sampler.update_priority(
            storage, info, jax.random.uniform(priority_key, (DRAWN,), minval=0.1, maxval=5)
        )
        return (storage, key, total + checksum(batch)), None

    return repeat(jax.jit(lambda carry: jax.lax.scan(one, carry, None, rounds)[0], donate_argnums=0), fill(storage))


def flashbax_rounds(rows: int, rounds: int) -> Callable[[], Any]:
    """The same with flashbax's item buffer."""
    import flashbax

    buffer = flashbax.make_item_buffer(max_length=rows, min_length=DRAWN, sample_batch_size=DRAWN, add_batches=True)
    state = buffer.init(example())
    fill = jax.jit(lambda s: jax.lax.fori_loop(0, rows // ADDED, lambda _, s: buffer.add(s, block((ADDED,))), s))

    def one(carry, _):
        state, key, total = carry
        key, draw_key = jax.random.split(key)
        state = buffer.add(state, block((ADDED,)))
        batch = buffer.sample(state, draw_key).experience
        return (state, key, total + checksum(batch)), None

    return repeat(jax.jit(lambda carry: jax.lax.scan(one, carry, None, rounds)[0], donate_argnums=0), fill(state))


def flashbax_prioritised(rows: int, rounds: int) -> Callable[[], Any]:
    """The same with flashbax's prioritised buffer, a lane for each of 512 environments."""
    import flashbax

    buffer = flashbax.make_prioritised_trajectory_buffer(
        add_batch_size=ADDED, sample_batch_size=DRAWN, sample_sequence_length=1, period=1,
        min_length_time_axis=1, max_length_time_axis=rows // ADDED, priority_exponent=0.6, device="cpu",
    )  # fmt: skip
    state = buffer.init(example())
    fill = jax.jit(lambda s: jax.lax.fori_loop(0, rows // ADDED, lambda _, s: buffer.add(s, block((ADDED, 1))), s))

    def one(carry, _):
        state, key, total = carry
        key, draw_key, priority_key = jax.random.split(key, 3)
        state = buffer.add(state, block((ADDED, 1)))
        drawn = buffer.sample(state, draw_key)
        priority = jax.random.uniform(priority_key, (DRAWN,), minval=0.1, maxval=5)
        state = buffer.set_priorities(state, drawn.indices, priority)
        return (state, key, total + checksum(drawn.experience)), None

    return repeat(jax.jit(lambda carry: jax.lax.scan(one, carry, None, rounds)[0], donate_argnums=0), fill(state))


def brax_rounds(rows: int, rounds: int) -> Callable[[], Any]:
    """The same with Brax's uniform queue."""
    from brax.training.replay_buffers import UniformSamplingQueue

    buffer = UniformSamplingQueue(rows, example(), DRAWN)
    state = buffer.init(jax.random.key(0))
    fill = jax.jit(buffer.insert)
    for _ in range(4):  # a quarter each: the queue refuses more than it holds
        state = fill(state, block((rows // 4,)))

    def one(carry, _):
        state, key, total = carry
        state, batch = buffer.sample(buffer.insert(state, block((ADDED,))))
        return (state, key, total + checksum(batch)), None

    return repeat(jax.jit(lambda carry: jax.lax.scan(one, carry, None, rounds)[0], donate_argnums=0), state)


def numpy_rounds(rows: int, rounds: int) -> Callable[[], Any]:
    """The same with arrays written in place, as in a buffer on the host."""
    rng = np.random.default_rng(0)
    storage = jax.tree.map(lambda leaf: np.zeros((rows, *leaf.shape), leaf.dtype), example())
    new = jax.tree.map(np.asarray, block((ADDED,)))
    position = [0]

    def call() -> float:
        total = 0.0
        for _ in range(rounds):
            at = position[0]
            for leaf, values in zip(storage, new, strict=True):
                leaf[at : at + ADDED] = values
            position[0] = (at + ADDED) % rows
            index = rng.integers(0, rows, DRAWN)
            total += sum(float(leaf[index].sum()) for leaf in storage)
        return total

    return call


def checksum(batch: Any) -> jax.Array:
    """A number that needs every leaf of the batch, so that none is left out."""
    return sum(jnp.sum(leaf.astype(jnp.float32)) for leaf in jax.tree.leaves(batch))  # type: ignore[return-value]


def repeat(program: Callable, storage: Any) -> Callable[[], Any]:
    """A call of the program on the storage that the call before it left, waiting for the end."""
    held = [(storage, jax.random.key(0), jnp.zeros(()))]

    def call() -> Any:
        held[0] = jax.block_until_ready(program(held[0]))
        return held[0][2]

    return call


def draw_times(turns: int, rows: int = 2**20, rounds: int = 2000) -> dict[str, list[float]]:
    """Seconds of ``rounds`` draws of 256 by age from a full storage, uniformly and by the truncated geometric."""

    def side(sampler: samplers.Sampler) -> Callable[[], Any]:
        storage = sampler.init(example(), rows, ADDED)
        fill = jax.jit(lambda s: jax.lax.fori_loop(0, rows // ADDED, lambda _, s: sampler.add(s, block((1, ADDED))), s))

        def one(storage, carry, _):
            key, total = carry
            key, draw_key = jax.random.split(key)
            return (key, total + checksum(sampler.sample(storage, draw_key, DRAWN)[0])), None

        program = jax.jit(lambda s, key: jax.lax.scan(partial(one, s), (key, jnp.zeros(())), None, rounds)[0][1])
        return partial(lambda s: jax.block_until_ready(program(s, jax.random.key(1))), fill(storage))

    return alternate(
        {"uniform": side(samplers.uniform()), "truncated_geometric": side(samplers.truncated_geometric(beta=4.6))},
        turns,
    )


if __name__ == "__main__":
    cli.run_main(main)
