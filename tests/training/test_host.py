"""The same agents and records with environments on the host."""

import dataclasses
from functools import partial

import jax
import numpy as np
import pytest

import environments
from jaxrl import agents, samplers
from jaxrl.errors import UsageError
from jaxrl.training import OffPolicy, OnPolicy, make_plan, make_schedule, off_policy, on_policy, run
from jaxrl.training.host import host_program, refuse_population
from tests.training import toy

gymnasium = pytest.importorskip("gymnasium")


def cartpole(name, num_envs=3, lanes=2, **options):
    env = environments.make("gymnasium:CartPole-v1", num_envs=num_envs, max_steps=20)
    judge = environments.make("gymnasium:CartPole-v1", num_envs=lanes, max_steps=20)
    config = agents.config_class(name)(hidden_sizes=(8,), normalise_observations=True)
    agent = agents.make_agent(config, env.observation_space, env.action_space)
    if agent.on_policy:
        loop = on_policy(agent, OnPolicy(num_envs, 16))
    else:
        loop = off_policy(agent, samplers.uniform(), env.action_space, OffPolicy(num_envs, 2, 2, 8, 60, 12))
    return host_program(loop, agent, env, judge, seed=0, **options)


def test_a_closed_program_has_ended_both_environments():
    ended = []
    env = environments.make("gymnasium:CartPole-v1", num_envs=2)
    lanes = [dataclasses.replace(env, close=partial(ended.append, name)) for name in ("training", "evaluation")]
    agent = agents.make_agent("ppo", env.observation_space, env.action_space)
    host_program(on_policy(agent, OnPolicy(2, 16)), agent, *lanes, seed=0).close()
    assert ended == ["training", "evaluation"]


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_host_loop_trains_and_records_like_any_other(name):
    program = cartpole(name, episodes=3)
    per = program.steps_per_iteration
    schedule, _ = make_schedule(8 * per, per, log_every=4 * per, evaluate_every=4 * per)
    plan = make_plan(program, schedule)
    assert plan.memory["agents"] > 0 and (plan.memory["replay"] > 0) == (name == "dqn")
    before = jax.device_get(program.init().agent.params)
    outcome = run(program, schedule)
    row = outcome.rows[0]
    assert row["step"] == 8 * per and np.isfinite(row["eval/return"]) and 1 <= row["eval/length"] <= 20
    assert row["episode/return"] == row["episode/length"] > 1
    assert int(outcome.state.agent.steps) == 8 * per
    assert any(
        not np.array_equal(a, b)
        for a, b in zip(*map(jax.tree.leaves, (before, outcome.state.agent.params)), strict=True)
    )


def test_two_runs_of_one_seed_are_the_same():
    states = []
    for _ in range(2):
        program = cartpole("dqn")
        states.append(program.advance(program.init(), 0, 6)[0])
    toy.assert_same_bits(*states)


def test_every_episode_counts_once_however_long():
    """Five episodes from two lanes: three rounds, the surplus dropped."""
    program = cartpole("ppo", lanes=2, episodes=5)
    episodes = program.evaluate(program.init(), 0)
    assert episodes.returns.shape == (5,)
    np.testing.assert_array_equal(episodes.returns, episodes.lengths)


def test_what_the_host_cannot_do_is_refused():
    with pytest.raises(UsageError, match="on the device"):
        refuse_population(3)
    env = environments.make("gymnasium:CartPole-v1", num_envs=2)
    agent = agents.make_agent("ppo", env.observation_space, env.action_space)
    with pytest.raises(UsageError, match="num_envs 2"):
        host_program(on_policy(agent, OnPolicy(4, 8)), agent, env, env, seed=0)
