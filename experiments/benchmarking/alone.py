"""The parts of the speed benchmark without a peer: starting, importing, the loop around the program, growth, replay."""

import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import replay_speed
from experiments.benchmark_peers.make import last_line, python_of
from experiments.benchmarking.ours import ppo_config, sac_agent, timed
from experiments.benchmarking.parts import Bench
from experiments.benchmarking.rows import Row, duration, rate
from experiments.measuring import Ratio, alternate, ratio
from experiments.setup import build
from jaxrl import agents, samplers
from jaxrl.spaces import Box
from jaxrl.training.checkpoint import pack, split
from jaxrl.training.keeper import open_checkpoints
from jaxrl.training.loop import LoopState
from jaxrl.training.plan import device_memory, make_schedule
from jaxrl.training.records import close_all, open_sinks
from jaxrl.training.run import run

CLIFF = 3.0  # a step of a growth curve that costs so many times more for each unit than the one before


def imports(bench: Bench) -> list[Row]:
    """Seconds of ``import jaxrl`` in a fresh interpreter, over those of ``import jax``."""
    lines = ("import jax", "import jax, jaxrl", "import jaxrl.agents, jaxrl.training, jaxrl.samplers")
    times = alternate({line: partial(python, "-c", line) for line in lines}, bench.turns)
    bench.details["imports"] = times
    rows = []
    for line in lines[1:]:
        more = np.subtract(times[line], times["import jax"])
        text = f"{np.median(more):+.2f} s [{more.min():+.2f}, {more.max():+.2f}]"
        asked = line == lines[1]
        holds = bool(np.median(more) <= 0.3) if asked else None
        against = ratio(times[line], times["import jax"])
        rows.append(Row(f"`{line}` over `import jax`", text, ratio=against, target="≤ 0.3 s" * asked, holds=holds))
    return rows


def second_start(bench: Bench) -> list[Row]:
    """A short training as a user starts it, with an empty compilation cache and again with a full one."""
    sizes = bench.sizes
    flags = [
        "--env", "gymnax:CartPole-v1", "--loop.num-envs", sizes["num_envs"], "--loop.unroll", sizes["unroll"],
        "--agent.minibatches", sizes["minibatches"], "--steps", sizes["num_envs"] * sizes["unroll"],
    ]  # fmt: skip
    first: list[float] = []
    second: list[float] = []
    for _ in range(bench.turns):
        with tempfile.TemporaryDirectory() as folder:
            for times in (first, second):
                out = str(Path(folder) / f"run-{len(first) + len(second)}")
                command = ["-m", "experiments.train", "--agent", "ppo", *map(str, flags), "--run-dir", out]
                times.append(timed(partial(python, *command, JAX_COMPILATION_CACHE_DIR=f"{folder}/cache")))
    found = ratio(second, first)
    bench.details["second_start"] = {"first": first, "second": second}
    ours, before = duration(float(np.median(second))), duration(float(np.median(first)))
    title = "a whole short training, started again with the compilation cache"
    return [Row(title, ours, "our first", before, found, "≤ 0.4 ×", found.median <= 0.4)]


def python(*arguments: str, **environment: str) -> None:
    """Run this interpreter and wait."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=os.environ | environment)
    if done.returncode:
        raise RuntimeError(f"python {' '.join(arguments[:4])} failed: {last_line(done.stderr)}")


def loop_overhead(bench: Bench) -> list[Row]:
    """A run with rows on disk, with and without evaluations, over the same iterations in one call of the program."""
    config = ppo_config(bench.sizes)
    built = build(config)
    program, iterations = built.program, bench.sizes["loop_iterations"]

    def bare() -> None:  # a run starts anew too
        jax.block_until_ready(program.advance(program.init(), 0, iterations))

    def whole_run(evaluate: int | None) -> None:
        schedule, _ = make_schedule(built.plan.steps, program.steps_per_iteration, evaluate_every=evaluate)
        with tempfile.TemporaryDirectory() as folder:
            sinks = open_sinks(Path(folder), {})
            run(program, schedule, labels=built.labels, sinks=sinks)
            close_all(sinks)

    sides = {"bare": bare, "rows": partial(whole_run, 0), "rows and evaluations": partial(whole_run, None)}
    times = alternate(sides, bench.turns)
    bench.details["loop_overhead"] = times
    rows = []
    for name in ("rows", "rows and evaluations"):
        found = ratio(times[name], times["bare"])
        asked = "≤ 1.03 ×" if name == "rows and evaluations" else ""
        text = duration(float(np.median(times[name])) / iterations)
        bare_text = duration(float(np.median(times["bare"])) / iterations)
        title = f"{iterations} iterations of PPO with {name}, each"
        rows.append(
            Row(title, text, "the bare program", bare_text, found, asked, found.median <= 1.03 if asked else None)
        )
    return rows


def saving(bench: Bench) -> list[Row]:
    """A checkpoint of SAC with a full replay: until it is on disk, over writing as many bytes, and how long training waits."""
    state = full_run(bench.sizes)
    content = b"".join(np.asarray(leaf).tobytes() for part in split(state).values() for leaf in pack(part).values())
    stalls: list[float] = []
    counter = itertools.count(1)
    Path("runs").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir="runs") as folder:  # on the disk where runs are kept
        keeper = open_checkpoints(Path(folder) / "checkpoints", keep=1, keep_best=0)

        def saved() -> None:
            stalls.append(timed(lambda: keeper.save(next(counter), state, {}, None)))
            keeper.wait()

        def raw() -> None:
            with Path(folder, "raw").open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())

        times = alternate({"saved": saved, "raw": raw}, bench.turns)
        keeper.close()
        if why := keeper.stopped():
            raise RuntimeError(why)
    bench.details["saving"] = {**times, "stalls": stalls, "bytes": len(content)}
    found, stall = ratio(times["saved"], times["raw"]), float(np.median(stalls[1:]))
    title = f"saving {bench.sizes['saved_rows']:,} rows of replay and SAC, {len(content) / 2**20:.0f} MiB"
    ours, bare = (duration(float(np.median(times[side]))) for side in ("saved", "raw"))
    return [
        Row(title, ours, "the same bytes, written and synced", bare, found, "≤ 1.5 ×", found.median <= 1.5),
        Row(f"{title}: training waits", duration(stall), target="< 50 ms", holds=stall < 0.05),
    ]


def full_run(sizes: dict) -> LoopState:
    """A run of SAC whose replay is full of numbers that do not compress."""
    example, rows = replay_speed.example(), sizes["saved_rows"]
    spaces = (Box(-np.inf, np.inf, example.observation.shape), Box(-1.0, 1.0, example.action.shape))
    agent = agents.make_agent(sac_agent(sizes), *spaces).init(jax.random.key(0))
    drawn = lambda leaf: jax.random.normal(jax.random.key(1), leaf.shape) if leaf.dtype == jnp.float32 else leaf
    storage = samplers.uniform().init(example, rows, 1)
    return LoopState(agent, (), example.observation[None], jax.tree.map(drawn, storage), jax.random.key(2))


def growth(bench: Bench) -> list[Row]:
    """Cost for each unit of work as the work grows: seeds, environments, rows of the storage."""
    sizes = bench.sizes
    curves = {
        "seeds, PPO steps of all": {n: partial(ppo_cost, sizes, bench.seconds, n, sizes["num_envs"]) for n in powers(1, sizes["most_seeds"], 4)},
        "environments, PPO steps of all": {n: partial(ppo_cost, sizes, bench.seconds, 1, n) for n in environment_counts(sizes)},
        "rows, rounds of add 512 and draw 256": {n: partial(replay_cost, bench.seconds, n) for n in row_counts(sizes["most_rows"])},
    }  # fmt: skip
    rows = []
    for title, points in curves.items():
        costs = {count: measure() for count, measure in points.items()}
        bench.details[f"growth: {title}"] = {str(count): cost for count, cost in costs.items()}
        each = list(costs.values())
        worst = max((b / a for a, b in itertools.pairwise(each)), default=1.0)
        curve = ", ".join(f"{count:,}: {rate(cost, '')[:-2]}" for count, cost in costs.items())
        rows.append(Row(f"growth in {title}, a second", curve, target="no cliff", holds=worst <= CLIFF))
    return rows


def ppo_cost(sizes: dict, seconds: float, seeds: int, num_envs: int) -> float:
    """Seconds for each environment step of PPO. The same number of steps in each iteration of each seed."""
    unroll = max(2, sizes["num_envs"] * sizes["unroll"] // num_envs)
    program = build(ppo_config({**sizes, "num_envs": num_envs, "unroll": unroll}, seeds)).program
    state = [jax.block_until_ready(program.init())]

    def iterate() -> None:
        state[0], _ = jax.block_until_ready(program.advance(state[0], 0, 1))

    iterate()
    return best_of(iterate, seconds) / (seeds * num_envs * unroll)


def replay_cost(seconds: float, rows: int, rounds: int = 50) -> float:
    """Seconds for each round of add and draw in a full storage."""
    call = replay_speed.our_rounds(samplers.uniform(), rows, rounds)
    call()
    return best_of(call, seconds) / rounds


def best_of(call: Callable[[], object], seconds: float) -> float:
    """The shortest of at least three calls, and of as many as fit: what other processes do can only add to a time."""
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < until:
        times.append(timed(call))
    return min(times)


def powers(first: int, last: int, factor: int) -> list[int]:
    """Powers of a factor from first on, and the last."""
    counts = [first * factor**i for i in range(32) if first * factor**i < last]
    return [*counts, last]


def environment_counts(sizes: dict) -> list[int]:
    """Numbers of environments up to the most; the minibatches must divide what they collect."""
    size = sizes["num_envs"] * sizes["unroll"]
    return [n for n in powers(1, sizes["most_envs"], 8) if max(2, size // n) * n % sizes["minibatches"] == 0]


def row_counts(most: int) -> list[int]:
    """Multiples of 512 near the powers of ten from ten thousand on, as far as they fit into a third of the memory."""
    one = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(replay_speed.example()))
    fitting = min(most, (device_memory() or 2**62) // (3 * one))
    return [round(n / 512) * 512 for n in powers(10_000, most, 10) if n <= fitting]


def replay(bench: Bench, folder: Path, smoke: bool) -> list[Row]:
    """The replay benchmark, in the environment that has flashbax where that was made."""
    own = python_of(folder / "flashbax")
    if not own.exists():
        bench.tell(f"flashbax is left out: no {own}; uv run python -m experiments.benchmark_peers.make flashbax")
    with tempfile.TemporaryDirectory() as out:
        path = Path(out) / "replay.json"
        settings = ["--rows", "2048", "--rounds", "3"] if smoke else []
        command = [str(own.absolute()) if own.exists() else sys.executable, "-m", "experiments.replay_speed"]
        done = subprocess.run(
            [*command, "--turns", str(bench.turns), "--out", str(path), *settings], capture_output=True, text=True
        )
        if done.returncode:
            bench.tell(f"replay cannot be timed: {last_line(done.stderr)}")
            return []
        bench.details["replay"] = found = json.loads(path.read_text())
    return [row for title, ours, asked in REPLAY for row in replay_rows(found.get(title, {}), title, ours, asked)]


# (title in the results, our side, what each peer must take in times of ours)
REPLAY: tuple[tuple[str, str, dict[str, float]], ...] = (
    ("full storage", "uniform", {"numpy": 1.0, "flashbax item buffer": 1.0}),
    ("queue", "uniform", {"Brax's queue": 1.0}),
    ("prioritised", "prioritised", {"flashbax prioritised": 3.0}),
    ("sizes", "", {}),
)


def replay_rows(found: dict[str, Any], title: str, ours: str, asked: dict[str, float]) -> list[Row]:
    """Rows of one table of the replay benchmark."""
    ours = ours or next(iter(found), "")
    rows = []
    for name, of in found.items():
        if name == ours:
            continue
        against = Ratio(**of["ratio"])
        least = asked.get(name)
        holds = None if least is None or math.isnan(against.median) else against.median >= least
        target = "" if least is None else f"≥ {least:g} ×"
        rows.append(
            Row(
                f"replay, {title}: a round",
                f"{found[ours]['microseconds']:,.0f} µs ({ours})",
                name,
                f"{of['microseconds']:,.0f} µs",
                against,
                target,
                holds,
            )
        )
    return rows


def parts(peer_folder: Path, smoke: bool) -> dict[str, Callable[[Bench], list[Row]]]:
    """The parts of this module, by name, in their order."""
    return {
        "second_start": second_start,
        "imports": imports,
        "loop": loop_overhead,
        "saving": saving,
        "growth": growth,
        "replay": partial(replay, folder=peer_folder, smoke=smoke),
    }
