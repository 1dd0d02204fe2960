"""What a run will do and need, worked out before anything compiles."""

import os
from dataclasses import dataclass, field
from pathlib import Path

import jax

from jaxrl.errors import UsageError
from jaxrl.training.footprint import nbytes
from jaxrl.training.program import Program
from jaxrl.types import LARGEST_COUNT, PyTree

LOG_POINTS = 50  # rows in a learning curve where the user names no interval
EVALUATIONS = 10


@dataclass(frozen=True)
class Schedule:
    """When what happens, in iterations. Counted from the start of the run, so that resuming keeps the same moments."""

    iterations: int
    log_every: int
    evaluate_every: int  # 0: never
    checkpoint_every: int  # 0: only at the end

    def next_stop(self, iteration: int) -> int:
        """The first iteration after this one at which something is due."""
        every = [e for e in (self.log_every, self.evaluate_every, self.checkpoint_every) if e]
        return min([self.iterations, *((iteration // e + 1) * e for e in every)])

    def evaluates_at(self, iteration: int) -> bool:
        """At the start, at every interval, and at the end."""
        return bool(self.evaluate_every) and (iteration % self.evaluate_every == 0 or iteration == self.iterations)

    def checkpoints_at(self, iteration: int) -> bool:
        due = bool(self.checkpoint_every) and iteration > 0 and iteration % self.checkpoint_every == 0
        return due or iteration == self.iterations


@dataclass(frozen=True)
class Plan:
    """Printed before the start. ``notes`` say in full sentences what was rounded."""

    schedule: Schedule
    steps: int  # environment steps of one member that will really be taken
    updates: int  # gradient steps (off-policy) or rollouts learned from (on-policy) of one member
    members: int
    parameters: int  # of one member
    memory: dict[str, int]  # bytes over all members
    available: int | None  # bytes on the device, where it tells
    notes: tuple[str, ...] = field(default=())

    @property
    def total_memory(self) -> int:
        return sum(self.memory.values())


def make_schedule(
    steps: int,
    per_iteration: int,
    *,
    log_every: int = 0,
    evaluate_every: int | None = None,
    checkpoint_every: int | None = 0,
) -> tuple[Schedule, tuple[str, ...]]:
    """Round steps and intervals to whole iterations, and say so.

    Args:
        steps: environment steps of one member.
        per_iteration: environment steps in one iteration.
        log_every: steps between rows; 0 for a fiftieth of the run.
        evaluate_every: steps between evaluations; None for a tenth of the run, 0 for none.
        checkpoint_every: steps between checkpoints; None for one with every evaluation, 0 for one at the end.
    Raises:
        UsageError: for negative numbers, or no steps at all.
    """
    if steps < 1:
        raise UsageError(f"steps {steps} cannot work; the least is one iteration, {per_iteration} steps")
    for name, value in {
        "log_every": log_every,
        "evaluate_every": evaluate_every or 0,
        "checkpoint_every": checkpoint_every or 0,
    }.items():
        if value < 0:
            least = "0 picks a default" if name == "log_every" else "0 is never"
            raise UsageError(f"{name} {value} cannot work; {least}, or give a number of steps")
    notes = []

    def whole(name: str, value: float) -> int:
        count = max(1, round(value / per_iteration))
        if name and count * per_iteration != value:
            notes.append(
                f"{name} {value:,} becomes {count * per_iteration:,}: one iteration is {per_iteration:,} steps."
            )
        return count

    iterations = whole("steps", steps)
    if iterations > LARGEST_COUNT:
        most = LARGEST_COUNT * per_iteration
        raise UsageError(
            f"steps {steps:,} cannot work; iterations are counted to 2^31 - 1, which is {most:,} steps here"
        )
    total = iterations * per_iteration
    if evaluate_every is None:
        evaluate = whole("", total / EVALUATIONS)
    else:
        evaluate = whole("evaluate_every", evaluate_every) if evaluate_every else 0
    if checkpoint_every is None:
        checkpoint = evaluate
    else:
        checkpoint = whole("checkpoint_every", checkpoint_every) if checkpoint_every else 0
    log = whole("log_every", log_every) if log_every else whole("", total / LOG_POINTS)
    return Schedule(iterations, log, evaluate, checkpoint), tuple(notes)


def make_plan(program: Program, schedule: Schedule, notes: tuple[str, ...] = ()) -> Plan:
    """Measure the program's state by its shapes alone; nothing is computed.

    Raises:
        UsageError: where state and working memory together are larger than the device's.
    """
    state = jax.eval_shape(program.init)
    members = program.members or 1
    rollout = nbytes(program.block) * members
    learning = max(0, schedule.iterations - program.warmup_iterations)
    if learning == 0 and program.updates_per_iteration:
        steps = (program.warmup_iterations + 1) * program.steps_per_iteration
        notes += (f"The run ends before the first update; the least that learns is {steps:,} steps.",)
    plan = Plan(
        schedule=schedule,
        steps=schedule.iterations * program.steps_per_iteration,
        updates=learning * program.updates_per_iteration,
        members=members,
        parameters=count(state.agent.params) // members,
        memory={
            "agents": nbytes(state.agent),
            "environments": nbytes((state.env, state.observation)),
            "replay": nbytes(state.replay),
            "rollout": rollout,
            "working": max(0, program.working() - rollout),
        },
        available=device_memory(),
        notes=notes,
    )
    share = plan.total_memory / program.devices
    if plan.available is not None and share > plan.available:
        largest = max(plan.memory, key=lambda name: plan.memory[name])
        raise UsageError(
            f"the run needs {format_bytes(share)}{' on each device' * (program.devices > 1)} but the device has {format_bytes(plan.available)}; "
            f"{largest} takes {format_bytes(plan.memory[largest])} of it, make that smaller"
        )
    return plan


def count(tree: PyTree) -> int:
    """Numbers in all arrays of a tree."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def device_memory() -> int | None:
    """Bytes that a run may use: the accelerator's own limit, else what this machine or its container has."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"]
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
    try:
        return min(physical, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):
        return physical


def format_bytes(size: float) -> str:
    """1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError
