"""Evaluation: deterministic, always ending, counting each episode once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import environments
from jaxrl.errors import UsageError
from jaxrl.spaces import Box, Discrete
from jaxrl.training import evaluate, record
from jaxrl.types import Step
from tests.training import toy


def test_never_ending_environment_is_cut_and_flagged():
    env = environments.make("toy:endless")
    agent = toy.gaussian_agent(1)._replace(act=lambda s, o, k, e: jnp.zeros(3, jnp.int32))
    episodes = evaluate(agent, env, (), jax.random.key(0), 3, max_steps=7)
    np.testing.assert_array_equal(episodes.lengths, [7, 7, 7])
    assert episodes.truncated.all() and not episodes.terminated.any()


def test_mode_by_default_samples_on_request():
    """Policy N(0, 1), reward -a², one step: 0 at the mode, -1 on average when sampled."""
    env = environments.make("toy:target")
    agent = toy.gaussian_agent(1)
    episodes = evaluate(agent, env, (), jax.random.key(0), 50)
    np.testing.assert_array_equal(episodes.returns, 0.0)
    sampled = evaluate(agent, env, (), jax.random.key(0), 4000, explore=True)
    assert abs(np.mean(sampled.returns) + 1) < 0.1


def test_each_episode_is_counted_once_with_its_own_length():
    env = environments.make("toy:one_state", n=5, ending="terminated")
    agent = toy.gaussian_agent(1)._replace(act=lambda s, o, k, e: jnp.zeros(2, jnp.int32))
    episodes = evaluate(agent, env, (), jax.random.key(0), 2, max_steps=50)
    np.testing.assert_array_equal(episodes.returns, [5, 5])
    np.testing.assert_array_equal(episodes.lengths, [5, 5])
    assert episodes.terminated.all() and not episodes.truncated.any()


def test_an_ended_episode_counts_no_more_while_others_go_on():
    """Episodes of 1 to 6 steps, drawn at reset, reward 1 a step: returns are lengths, and a few of each length occur."""

    def step_of(time, limit):
        observation = time[None].astype(jnp.float32)
        return Step(observation, jnp.float32(1), time >= limit, jnp.bool_(False), observation, {"env/time": 1.0 * time})

    def reset(key):
        limit = jax.random.randint(key, (), 1, 7)
        return (jnp.int32(0), limit), step_of(jnp.int32(0), limit)._replace(reward=jnp.float32(0))

    def step(state, action, key):
        time, limit = state[0] + 1, state[1]
        return (time, limit), step_of(time, limit)

    env = environments.Environment("mine:uneven", reset, step, Box(0, 10, (1,)), Discrete(1))
    agent = toy.gaussian_agent(1)._replace(act=lambda s, o, k, e: jnp.zeros(o.shape[0], jnp.int32))
    episodes = evaluate(agent, env, (), jax.random.key(0), 60)
    assert set(np.asarray(episodes.lengths).tolist()) == {1, 2, 3, 4, 5, 6}
    np.testing.assert_array_equal(episodes.returns, episodes.lengths)
    np.testing.assert_array_equal(episodes.metrics["env/time"], episodes.lengths * (episodes.lengths + 1) / 2)
    assert episodes.terminated.all() and not episodes.truncated.any()


def test_estimates_stand_beside_what_was_collected():
    """Reward 1 a step, discount 1/2. Five steps to a death: returns 1, 1.5, 1.75, 1.875, 1.9375 from the last state back,
    mean 1.6125. Cut after two steps with 10 to come: 1 + 10 / 2 = 6 and 1 + 6 / 2 = 4, mean 5."""
    agent = toy.gaussian_agent(1)._replace(
        act=lambda s, o, k, e: jnp.zeros(o.shape[0], jnp.int32), estimate=lambda s, o, a: jnp.full(o.shape[0], 10.0)
    )
    state = toy.NoState(hyper=toy.Discount(jnp.float32(0.5)))
    env = environments.make("toy:one_state", n=5, ending="terminated")
    for limit, collected in ((None, 1.6125), (2, 5.0)):
        values = evaluate(agent, env, state, jax.random.key(0), 3, limit, estimates=True).values
        np.testing.assert_allclose(values["estimated"], [10.0] * 3)
        np.testing.assert_allclose(values["collected"], [collected] * 3)
    assert evaluate(agent, env, state, jax.random.key(0), 3).values is None
    with pytest.raises(UsageError, match="gaussian has no critics"):
        evaluate(agent._replace(estimate=None), env, state, jax.random.key(0), 3, estimates=True)


def test_record_keeps_one_episode_and_its_length():
    env = environments.make("toy:counter")
    agent = toy.gaussian_agent(1)._replace(act=lambda s, o, k, e: jnp.zeros(1, jnp.int32))
    states, rewards, length = record(agent, env, (), jax.random.key(0), 6)
    assert length == 4 and rewards.tolist() == [1, 1, 1, 1, 0, 0]
    assert all(leaf.shape[0] == 7 for leaf in jax.tree.leaves(states))


@pytest.mark.parametrize("episodes, steps, words", [(0, None, "episode"), (4, 0, "max_steps 0")])
def test_bad_numbers_are_refused(episodes, steps, words):
    with pytest.raises(UsageError, match=words):
        evaluate(toy.gaussian_agent(1), environments.make("toy:target"), (), jax.random.key(0), episodes, steps)
