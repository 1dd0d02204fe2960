"""How fast we are, beside others: every side in a process and an environment of its own, by turns, and the same work for each.

    uv run python -m experiments.benchmark_peers.make rejax sbx sb3 brax flashbax      # once
    uv run python -m experiments.benchmark --peers all
    uv run python -m experiments.benchmark --only ppo sac --peers rejax,sbx --turns 7
    uv run python -m experiments.benchmark --profile True                              # where the time goes, and the bounds

Ratios are turn by turn: median, least, most. Nothing else should run on the machine; its load is in the record. Results go
to ``--out`` as JSON, and as a Markdown table beside it; ``--readme README.md`` puts the table between the README's two
marks ``<!-- benchmark -->`` and ``<!-- /benchmark -->``.
"""

import dataclasses
import importlib.metadata
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from experiments import cli
from experiments.benchmark_peers.make import PEERS
from experiments.benchmarking import alone, profile
from experiments.benchmarking import parts as compared
from experiments.benchmarking.parts import Bench
from experiments.benchmarking.rows import Row, markdown, record_of, save, table
from experiments.benchmarking.sides import OURS, Clock, SideError, open_sides, workers
from experiments.benchmarking.sizes import Preset, chosen
from jaxrl.errors import UsageError, unknown

MARKS = ("<!-- benchmark -->", "<!-- /benchmark -->")
SIDES_NEEDED = ("ppo", "ppo_seeds", "ppo_time", "sac", "sac_updates", "sac_curves", "compile_ppo", "compile_sac")


@dataclass(frozen=True)
class Benchmark:
    """Time the library beside its peers."""

    preset: Preset = "cpu"
    """smoke: tiny sizes, to see that everything runs; cpu: those of the table."""
    only: tuple[str, ...] = ()
    """Parts; all where absent."""
    turns: int = 7
    """Turns of each side."""
    seconds: float = 2.0
    """Seconds that a side is busy in one turn, where its amount of work is free."""
    clock: Clock = "wall"
    """wall, or cpu: processor seconds of each worker, which other processes spoil less, for speed and compiling."""
    peers: str = "all"
    """none, all, or names with commas between them."""
    peer_folder: Path = Path("runs/peers")
    """Where the peers' environments are."""
    profile: bool = False
    """Instead of comparing: where the time goes, the bound beside it, and a trace for xprof."""
    num_envs: int | None = None
    """PPO's environments, where other than the preset's."""
    seeds: int | None = None
    """Members of the population, where other than the preset's."""
    batch_size: int | None = None
    """SAC's batch, where other than the preset's."""
    ppo_budget: int | None = None
    """Iterations after which a return counts as not reached, where other than the preset's."""
    loop_iterations: int | None = None
    """Iterations of the run whose logging and evaluation is timed, where other than the preset's."""
    sac_points: int | None = None
    """Points of SAC's learning curve, where other than the preset's."""
    out: Path = Path("runs/benchmark/benchmark.json")
    """Where the numbers go."""
    readme: Path | None = None
    """A file whose marked part becomes the table."""


def main(arguments: list[str], console: Console) -> int:
    asked = cli.parse(Benchmark, arguments, description=__doc__)
    sizes = chosen(
        asked.preset,
        {
            name: getattr(asked, name)
            for name in ("num_envs", "seeds", "batch_size", "ppo_budget", "loop_iterations", "sac_points")
        },
    )
    parts = compared.parts(sizes) | alone.parts(asked.peer_folder, asked.preset == "smoke")
    check(asked, parts)
    tell = partial(console.print, markup=False, soft_wrap=True)
    if asked.profile:
        return profile.show(dataclasses.asdict(sizes), asked.out.parent, asked.seconds, console)
    wanted = [name for name in parts if not asked.only or name in asked.only]
    bench = Bench({}, dataclasses.asdict(sizes), asked.turns, asked.seconds, tell, asked.clock)
    rows: list[Row] = []
    versions = {OURS: {name: importlib.metadata.version(name) for name in ("jaxrl", "jax", "flax", "optax")}}
    record = record_of(cli.command_line("experiments.benchmark", arguments), asked.turns, bench.sizes, versions)
    beside_others = [name for name in wanted if name in SIDES_NEEDED]
    if beside_others:
        with open_sides(workers(asked.peers), asked.peer_folder, asked.out.parent / "logs", tell) as bench.sides:
            versions |= {name: side.versions for name, side in bench.sides.items()}
            for name in beside_others:
                rows += measured(name, parts[name], bench, console)
                save(asked.out, rows, record, bench.details)
    for name in wanted:
        if name not in SIDES_NEEDED:
            rows += measured(name, parts[name], bench, console)
            save(asked.out, rows, record, bench.details)
    if asked.readme is not None:
        put(asked.readme, markdown(rows, record))
    tell(f"  results    {asked.out}")
    return 1 if any(row.holds is False for row in rows) and asked.preset != "smoke" else 0


def measured(name: str, part, bench: Bench, console: Console) -> list[Row]:
    """One part, printed; where it fails, a line that says so."""
    try:
        rows = part(bench)
    except (SideError, RuntimeError) as error:
        bench.tell(f"{name}: {error}")
        return []
    console.print(table(rows, name))
    return rows


def check(asked: Benchmark, parts: dict) -> None:
    """Refuse what cannot work before anything starts."""
    for name in asked.only:
        if name not in parts:
            raise unknown("part", name, parts)
    for name in asked.peers.split(","):
        if name not in PEERS and asked.peers not in ("none", "all"):
            raise unknown("peer", name, PEERS)
    if asked.turns < 1 or asked.seconds <= 0:
        raise UsageError(f"turns {asked.turns} and seconds {asked.seconds} cannot work; 1 and 0.1 are the least")
    if asked.readme is not None and any(mark not in asked.readme.read_text() for mark in MARKS):
        raise UsageError(f"{asked.readme} has no marks for the table; write {MARKS[0]} and {MARKS[1]} where it belongs")


def put(path: Path, text: str) -> None:
    """Replace what is between the marks."""
    before, _, rest = path.read_text().partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    path.write_text(f"{before}{MARKS[0]}\n\n{text}\n{MARKS[1]}{after}")


if __name__ == "__main__":
    cli.run_main(main)
