"""Rounding said before the start, and memory refused before compiling."""

import jax
import numpy as np
import pytest

from jaxrl.errors import UsageError
from jaxrl.training import make_plan, make_schedule, plan
from tests.training import toy


def test_steps_are_rounded_to_whole_iterations_and_it_is_said():
    schedule, notes = make_schedule(1_000, 300, log_every=450, evaluate_every=600)
    assert (schedule.iterations, schedule.log_every, schedule.evaluate_every) == (3, 2, 2)
    assert notes == (
        "steps 1,000 becomes 900: one iteration is 300 steps.",
        "log_every 450 becomes 600: one iteration is 300 steps.",
    )
    assert make_schedule(1, 300)[0].iterations == 1


def test_stops_are_the_same_whatever_the_run_was_resumed_from():
    schedule, _ = make_schedule(100, 1, log_every=7, evaluate_every=30)
    stops, at = [], 0
    while at < schedule.iterations:
        at = schedule.next_stop(at)
        stops.append(at)
    assert stops == sorted({*range(7, 100, 7), 30, 60, 90, 100})
    assert schedule.next_stop(33) == 35
    assert [at for at in (0, *stops) if schedule.evaluates_at(at)] == [0, 30, 60, 90, 100]


def test_no_evaluation_when_none_is_asked_for():
    schedule, _ = make_schedule(100, 1, evaluate_every=0)
    assert not any(schedule.evaluates_at(at) for at in range(101))


@pytest.mark.parametrize("steps, options", [(0, {}), (-5, {}), (10, {"log_every": -1}), (10, {"evaluate_every": -1})])
def test_numbers_that_cannot_work_are_refused(steps, options):
    with pytest.raises(UsageError, match="cannot work"):
        make_schedule(steps, 10, **options)


def test_plan_counts_what_the_state_really_holds():
    program = toy.program("sac", seeds=(0, 1), population=True)
    made = make_plan(program, make_schedule(160, program.steps_per_iteration)[0])
    state = program.init()
    held = sum(
        np.asarray(jax.random.key_data(x) if "key" in str(x.dtype) else x).nbytes for x in jax.tree.leaves(state)
    )
    # The loops' own keys are in no group; the block of an iteration is in no state.
    assert held - (made.total_memory - made.memory["rollout"] - made.memory["working"]) == 2 * 8
    assert made.memory["rollout"] == 2 * (2 * 4) * (4 * 4 + 2 * 4 + 4 + 1 + 1 + 4 * 4)
    assert made.members == 2 and made.steps == 160
    assert made.updates == (20 - 2) * 2
    assert made.parameters == sum(x[0].size for x in jax.tree.leaves(state.agent.params))


def test_plan_larger_than_the_device_is_refused(monkeypatch):
    program = toy.program("sac")
    monkeypatch.setattr(plan, "device_memory", lambda: 1000)
    with pytest.raises(UsageError, match=r"needs .* but the device has 1000 B; .* takes"):
        make_plan(program, make_schedule(160, program.steps_per_iteration)[0])


def test_run_without_an_update_is_noted():
    program = toy.program("sac")
    made = make_plan(program, make_schedule(8, program.steps_per_iteration)[0])
    assert "before the first update" in made.notes[-1]


def test_checkpoints_come_with_every_evaluation_unless_told_otherwise():
    every = {given: make_schedule(100, 1, evaluate_every=20, checkpoint_every=given)[0] for given in (None, 0, 30)}
    at = {given: [i for i in range(101) if schedule.checkpoints_at(i)] for given, schedule in every.items()}
    assert at == {None: [20, 40, 60, 80, 100], 0: [100], 30: [30, 60, 90, 100]}
