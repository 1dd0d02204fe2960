"""Evaluation: deterministic, always ending, counting each episode once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import environments
from jaxrl.errors import UsageError
from jaxrl.training import evaluate, record
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
