"""Loops and programs: exactness, populations, sizes that do not grow, compiled once."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import environments
from environments import wrappers
from jaxrl import agents, samplers
from jaxrl.errors import UsageError
from jaxrl.training import OffPolicy, OnPolicy, compile_program, make_schedule, member, off_policy, on_policy, run
from jaxrl.training.footprint import nbytes
from jaxrl.training.loop import collect, iterate, start
from tests.training import toy

ALL = agents.names()
# The larger agents' programs take minutes to compile; their conformance tests are always run, these with -m slow.
QUICK = ("dqn", "ppo", "sac")
EVERY = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ALL]


@pytest.mark.parametrize("name", EVERY)
def test_going_on_equals_never_having_stopped(name):
    program = toy.program(name)
    whole, _ = program.advance(program.init(), 0, 6)
    half, _ = program.advance(program.init(), 0, 2)
    half, _ = program.advance(half, 2, 4)
    toy.assert_same_bits(whole, half)


@pytest.mark.parametrize("name", EVERY)
def test_member_of_a_population_equals_the_run_alone(name):
    """Over 100 updates; a member's seed is its run's seed."""
    iterations = 60
    population, alone = toy.program(name, seeds=(3, 4, 5), population=True), toy.program(name, seeds=(4,))
    many, chunk = population.advance(population.init(), 0, iterations)
    one, chunk_alone = alone.advance(alone.init(), 0, iterations)
    for x, y in zip(jax.tree.leaves(member(many.agent.params, 1)), jax.tree.leaves(one.agent.params), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(chunk.metrics["episode/return"][1], chunk_alone.metrics["episode/return"], rtol=1e-5)
    assert not np.allclose(*(jax.tree.leaves(member(many.agent.params, i))[1] for i in (0, 1)))


@pytest.mark.parametrize("name", EVERY)
def test_swept_hyper_parameter_reaches_its_member(name):
    discounts = np.asarray([0.5, 0.9], np.float32)
    program = toy.program(name, seeds=(0, 0), population=True, hyper={"discount": discounts})
    state = program.init()
    np.testing.assert_array_equal(state.agent.hyper.discount, discounts)
    state, _ = program.advance(state, 0, 6)
    critics = [jax.tree.leaves(member(state.agent.params, i)) for i in (0, 1)]
    assert any(not np.allclose(x, y) for x, y in zip(*critics, strict=True))


@pytest.mark.parametrize("name", EVERY)
def test_no_key_is_used_twice(name, key_reuse_checked):
    program = toy.program(name)
    state, _ = program.advance(program.init(), 0, 6)
    program.evaluate(state, 6)


@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_what_a_call_returns_does_not_grow_with_its_steps(name):
    program = toy.program(name)
    _, short = program.advance(program.init(), 0, 3)
    _, long = program.advance(program.init(), 0, 30)
    assert nbytes(short) == nbytes(long)


def test_program_does_not_grow_with_the_rollout():
    def lines(unroll):
        env = environments.make("toy:point_mass")
        agent = agents.make_agent(toy.CONFIGS["ppo"], env.observation_space, env.action_space)
        loop = on_policy(agent, OnPolicy(num_envs=4, unroll=unroll))
        vector = wrappers.vectorise(env, 4)
        state = jax.eval_shape(lambda: start(loop, vector, jax.random.key(0), {}))
        text = jax.jit(lambda s, i: iterate(loop, vector, s, i)).lower(state, np.int32(0)).as_text()
        return len(text.splitlines())

    assert abs(lines(64) / lines(8) - 1) < 0.05


@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_a_run_with_three_evaluations_compiles_at_most_six_programs(name, caplog):
    program = toy.program(name, config=None)
    schedule, _ = make_schedule(
        15 * program.steps_per_iteration, program.steps_per_iteration, evaluate_every=5 * program.steps_per_iteration
    )
    with jax.log_compiles(), caplog.at_level("WARNING"):
        run(program, schedule)
    compiled = [r for r in caplog.records if re.search(r"Finished XLA compilation", r.getMessage())]
    assert 3 <= len(compiled) <= 6, [r.getMessage() for r in compiled]


def test_state_is_donated():
    program = toy.program("sac")
    state = program.init()
    old = jax.tree.leaves(state.replay)[0]
    program.advance(state, 0, 1)
    assert old.is_deleted()


def test_warm_up_acts_at_random_and_does_not_learn():
    program = toy.program("sac", loop=OffPolicy(num_envs=4, unroll=2, updates=2, batch_size=8, capacity=64, warmup=24))
    assert program.warmup_iterations == 3
    before = jax.device_get(program.init())
    state, chunk = program.advance(program.init(), 0, 3)
    toy.assert_same_bits(before.agent.params, state.agent.params)
    assert np.isnan(chunk.metrics["critic/loss"]) and chunk.counts["critic/loss"] == 0
    state, chunk = program.advance(state, 3, 1)
    assert chunk.counts["critic/loss"] == 2 and np.isfinite(chunk.metrics["critic/loss"])
    assert state.agent.updates == 2


def test_collect_records_where_each_step_really_led():
    """Counter with limit 4: observation = t."""
    env = wrappers.vectorise(environments.make("toy:counter"), 1)
    env_state, step = env.reset(jax.random.key(0))
    act = lambda observation, key: jnp.zeros((1,), jnp.int32)
    _, observation, block, sums = collect(env, act, env_state, step.observation, 5, jax.random.key(1))
    np.testing.assert_array_equal(block.observation.ravel(), [0, 1, 2, 3, 0])
    np.testing.assert_array_equal(block.next_observation.ravel(), [1, 2, 3, 4, 1])
    np.testing.assert_array_equal(block.truncated.ravel(), [0, 0, 0, 1, 0])
    assert not block.terminated.any()
    np.testing.assert_array_equal(observation.ravel(), [1])
    assert sums["episode/return"][0] == 4 and sums["episode/return"][1] == 1
    assert sums["episode/terminated"][0] == 0


@pytest.mark.parametrize("ending, values", [("truncated", 2.0), ("terminated", 1.0)])
def test_time_limit_is_not_death_through_the_whole_loop(ending, values):
    """One state, one step an episode, reward 1, discount .5: worth 2 where a limit ends it, 1 where it dies."""
    config = agents.config_class("dqn")(hidden_sizes=(16,), discount=0.5, learning_rate=1e-2, tau=0.2)
    env = environments.make("toy:one_state", n=1, ending=ending)
    agent = agents.make_agent(config, env.observation_space, env.action_space)
    loop = off_policy(agent, samplers.uniform(), env.action_space, OffPolicy(4, 1, 4, 32, 400, 32))
    program = compile_program(loop, agent, wrappers.vectorise(env, 4), env, seeds=[0])
    _, chunk = program.advance(program.advance(program.init(), 0, 150)[0], 150, 10)
    assert abs(chunk.metrics["critic/value"] - values) < 0.05


BAD_LOOPS = [
    (OffPolicy(4, capacity=63, warmup=16, batch_size=8), "60 and 64"),
    (OffPolicy(4, capacity=64, warmup=0, batch_size=32), "at most 4"),
    (OffPolicy(4, capacity=16, warmup=64, batch_size=32), "at most 16"),
    (OffPolicy(4, unroll=32, capacity=64, warmup=16), "128"),
    (OffPolicy(0), "num_envs 0"),
    (OffPolicy(4, batch_size=-1), "batch_size -1"),
]


@pytest.mark.parametrize("loop, words", BAD_LOOPS)
def test_sizes_that_cannot_work_are_refused(loop, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        toy.program("sac", loop=loop)


def test_the_wrong_loop_or_environment_is_refused():
    env = environments.make("toy:point_mass")
    agent = agents.make_agent("ppo", env.observation_space, env.action_space)
    with pytest.raises(UsageError, match="on_policy"):
        off_policy(agent, samplers.uniform(), env.action_space, OffPolicy())
    with pytest.raises(UsageError, match="vectorise"):
        compile_program(on_policy(agent, OnPolicy(8)), agent, wrappers.vectorise(env, 4), env, seeds=[0])
    with pytest.raises(UsageError, match="population"):
        compile_program(on_policy(agent, OnPolicy(4)), agent, wrappers.vectorise(env, 4), env, seeds=[0, 1])
    with pytest.raises(UsageError, match="'depth' cannot be swept"):
        toy.program("ppo", hyper={"depth": [1.0]}).init()


@pytest.mark.parametrize("is_on_policy", [True, False])
def test_update_sees_the_statistics_that_the_policy_acted_with(is_on_policy):
    """An agent that counts what it observed, and says at each update how much that was."""

    def update(state, batch, key):
        del batch, key
        return state, {"seen/steps": state.params}

    def observe(state, experience):
        return state._replace(params=state.params + experience.reward.size)

    hyper = toy.Discount(jnp.float32(0.9))
    counting = toy.gaussian_agent(2)._replace(
        init=lambda key: toy.NoState(hyper, jnp.float32(0)), observe=observe, update=update, on_policy=is_on_policy
    )
    env = environments.make("toy:point_mass")
    if is_on_policy:
        loop = on_policy(counting, OnPolicy(4, 8))
    else:
        loop = off_policy(counting, samplers.uniform(), env.action_space, OffPolicy(4, 8, 1, 8, 64, 0))
    program = compile_program(loop, counting, wrappers.vectorise(env, 4), env, seeds=[0])
    state, chunk = program.advance(program.init(), 0, 3)
    assert chunk.metrics["seen/steps"] == (0 + 32 + 64) / 3 and state.agent.params == 96
