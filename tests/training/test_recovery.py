"""Going back after NaN: where to, with which keys, how often, and what is said of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import environments
from environments import wrappers
from jaxrl import agents
from jaxrl.training import NotFiniteError, OnPolicy, Schedule, compile_program, on_policy, records, run
from jaxrl.training.checkpoint import load_meta
from jaxrl.training.keeper import open_checkpoints
from jaxrl.training.program import finite_leaves
from jaxrl.training.recovery import Recovery, change_keys, recover
from jaxrl.types import Step
from tests.training import toy
from tests.training.test_run import short


def poisoned(program, at, times=1, members=None):
    """A program whose parameters become NaN in the chunk that passes iteration ``at``, the first ``times`` it does."""
    left = [times]

    def advance(state, first, count):
        state, chunk = program.advance(state, first, count)
        if first < at <= first + count and left[0]:
            left[0] -= 1
            spoiled = jnp.nan if members is None else jnp.where(jnp.asarray(members), jnp.nan, 0.0)
            params = state.agent.params | {"temperature": state.agent.params["temperature"] + spoiled}
            state = state._replace(agent=state.agent._replace(params=params))
            chunk = chunk._replace(finite=finite_leaves(state, members is not None))
        return state, chunk

    return program._replace(advance=advance)


def train(folder, program, attempts, every=2):
    """Twelve iterations with a checkpoint every few."""
    kept = open_checkpoints(folder / "checkpoints")
    recovery = Recovery(folder, program, ("agent", "loop", "replay"), attempts, kept.wait)
    sinks = records.open_sinks(folder, {})
    try:
        return recovery, run(
            program,
            short(program, iterations=12, checkpoint_every=every * program.steps_per_iteration),
            sinks=sinks,
            save=lambda at, state, score: kept.save(at, state, {"restores": [*recovery.taken]}, score),
            recover=lambda error: recover(recovery, error),
        )
    finally:
        kept.close()


def test_goes_back_to_the_last_checkpoint_with_other_numbers_and_records_it(tmp_path):
    clean = toy.program("sac")
    recovery, outcome = train(tmp_path, poisoned(clean, at=8), attempts=3)
    per = clean.steps_per_iteration
    assert recovery.taken == [
        {"step": 8 * per, "what": ["agent/params/temperature"], "members": [0], "back_to": 6 * per}
    ]
    assert outcome.iteration == 12
    rows = records.read_rows(tmp_path / "metrics.jsonl")
    assert [row["iteration"] for row in rows] == [0, 2, 3, 4, 6, 8, 9, 10, 12]
    assert [row.get("restores") for row in rows] == [None] * 5 + [1] * 4
    assert load_meta(tmp_path / "checkpoints")["restores"] == recovery.taken
    # By hand: six iterations, the key folded with attempt 1, six more.
    state, _ = clean.advance(clean.init(), 0, 6)
    state, _ = clean.advance(state._replace(key=jax.random.fold_in(state.key, 1)), 6, 6)
    toy.assert_same_bits(outcome.state, state)


def test_gives_up_after_the_stated_number_of_attempts_and_names_the_checkpoint(tmp_path):
    with pytest.raises(NotFiniteError) as error:
        train(tmp_path, poisoned(toy.program("sac"), at=8, times=9), attempts=2)
    said = "not finite at step 64: agent/params/temperature; gone back 2 times already, the last good checkpoint is iteration 6 (step 48)"
    assert str(error.value) == said


def test_stopping_names_leaf_step_and_checkpoint(tmp_path):
    with pytest.raises(NotFiniteError, match=r"step 64: agent/params/temperature; the last good .* 6 \(step 48\)"):
        train(tmp_path, poisoned(toy.program("sac"), at=8), attempts=0)


def test_without_a_checkpoint_it_stops(tmp_path):
    with pytest.raises(NotFiniteError, match="no checkpoint has been saved"):
        train(tmp_path, poisoned(toy.program("sac"), at=2), attempts=3, every=12)


def test_only_the_member_that_failed_gets_another_key(tmp_path):
    clean = toy.program("sac", seeds=(0, 1), population=True)
    bad = poisoned(clean, at=8, members=[False, True])
    recovery, outcome = train(tmp_path, bad, attempts=1)
    assert recovery.taken[0]["members"] == [1]
    untouched, _ = clean.advance(clean.init(), 0, 12)
    pick = lambda state, i: jax.tree.map(lambda x: x[i], state)
    toy.assert_same_bits(pick(outcome.state, 0), pick(untouched, 0))
    ours, theirs = (jax.tree.leaves(pick(s.agent.params, 1)) for s in (outcome.state, untouched))
    assert not all(np.array_equal(x, y) for x, y in zip(ours, theirs, strict=True))


def test_a_dropped_member_has_no_more_rows_and_the_others_go_on(tmp_path):
    clean = toy.program("sac", seeds=(0, 1, 2), population=True)
    bad = poisoned(clean, at=8, members=[False, True, False])
    sinks, told = records.open_sinks(tmp_path, {}), []
    outcome = run(bad, short(clean, iterations=12), sinks=sinks, drop=told.append)
    records.close_all(sinks)
    assert [error.members for error in told] == [(1,)] and outcome.dropped == (1,) and outcome.iteration == 12
    rows = records.read_rows(tmp_path / "metrics.jsonl")
    last = {i: max(row["iteration"] for row in rows if row["member"] == i) for i in range(3)}
    assert last == {0: 12, 1: 6, 2: 12} and [row["member"] for row in outcome.rows] == [0, 2]
    untouched, _ = clean.advance(clean.init(), 0, 12)
    for i in (0, 2):
        toy.assert_same_bits(*(jax.tree.map(lambda x, i=i: x[i], state) for state in (outcome.state, untouched)))


def test_when_no_member_is_left_dropping_stops(tmp_path):
    told = []
    bad = poisoned(toy.program("sac", seeds=(0, 1), population=True), at=8, members=[True, True])
    with pytest.raises(NotFiniteError, match="step 64"):
        run(bad, short(bad, iterations=12), drop=told.append)
    assert told == []


def test_keys_change_with_the_attempt_and_never_twice_alike(key_reuse_checked):
    keys = [change_keys(jax.random.key(0), np.asarray([True]), attempt) for attempt in (1, 2)]
    words = [tuple(np.asarray(jax.random.key_data(key))) for key in (jax.random.key(0), *keys)]
    assert len(set(words)) == 3
    many = change_keys(jax.random.split(jax.random.key(0), 3), np.asarray([False, True, False]), 1)
    same = jax.random.key_data(many) == jax.random.key_data(jax.random.split(jax.random.key(0), 3))
    np.testing.assert_array_equal(np.asarray(same).all(-1), [True, False, True])


class _NanOnce:
    """A vectorised toy whose observation is infinite for a single step, long before the next log point."""

    def __init__(self, env):
        self.env, self.num_envs = env, env.num_envs
        self.observation_space, self.action_space = env.observation_space, env.action_space

    def reset(self, key):
        state, step = self.env.reset(key)
        return (state, jnp.int32(0)), step

    def step(self, state, action, key):
        inner, time = state
        inner, step = self.env.step(inner, action, key)
        seen = jax.tree.map(lambda x: x + jnp.where(time == 3, jnp.inf, 0.0), step.next_observation)
        return (inner, time + 1), Step(**{**step._asdict(), "next_observation": seen})


def test_an_observation_that_was_infinite_for_one_step_is_found():
    env = environments.make("toy:point_mass")
    agent = agents.make_agent(toy.CONFIGS["ppo"], env.observation_space, env.action_space)
    frozen = agent._replace(update=lambda state, block, key: (state, {}), observe=lambda state, block: state)
    loop = on_policy(frozen, OnPolicy(num_envs=2, unroll=2))
    program = compile_program(loop, frozen, _NanOnce(wrappers.vectorise(env, 2)), env, seeds=[0], episodes=1)
    with pytest.raises(NotFiniteError, match="not finite at step 24: observation"):
        run(program, Schedule(iterations=6, log_every=6, evaluate_every=0, checkpoint_every=0))
