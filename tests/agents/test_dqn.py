"""Deep Q-learning: both targets, the loss, exploration over time, the target network."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.agents import dqn
from jaxrl.types import Transition
from tests.agents import toys


class Says:
    """A network that returns its parameters, the value of each action, for every row."""

    @staticmethod
    def apply(params, observation):
        return jnp.broadcast_to(params, (*observation.shape[:-1], params.shape[-1]))


def parts_of(agent):
    return agent.update.args[0]._replace(network=Says())


def one(discount=0.9, action=2, weight=1.0):
    observation = jnp.zeros((1, 3))
    arrays = (jnp.array([x], jnp.float32) for x in (1.0, discount))
    return Transition(observation, jnp.array([action], jnp.int32), *arrays, observation, jnp.array([weight]))


@pytest.mark.parametrize(("double", "discount", "expected"), [(True, 0.9, 2.8), (False, 0.9, 7.3), (True, 0.0, 1.0)])
def test_target_with_and_without_a_second_opinion(double, discount, expected):
    """The trained network prefers action 1; the target network says 2 of it, and 7 of its own favourite."""
    parts = parts_of(toys.make("dqn", "discrete", double=double))
    trained, target = jnp.array([1.0, 5.0, 0.0]), jnp.array([7.0, 2.0, 0.0])
    np.testing.assert_allclose(dqn.critic_target(trained, target, parts, one(discount)), [expected], rtol=1e-6)


def test_the_loss_is_huber_s_of_the_action_taken():
    parts = parts_of(toys.make("dqn", "discrete"))
    hyper = toys.compiled("dqn", "discrete").init(jax.random.key(0)).hyper
    q = jnp.array([0.0, 0.0, 4.0])
    loss = lambda q, batch: dqn.critic_loss(q, parts, hyper, batch, jnp.array([1.0]))[0]
    np.testing.assert_allclose(loss(q, one()), 2.5)  # an error of 3: 1/2 + 1 * (3 - 1)
    np.testing.assert_allclose(loss(q, one(weight=0.5)), 1.25)
    np.testing.assert_allclose(jax.grad(loss)(q, one()), [0.0, 0.0, 1.0])
    priority = dqn.critic_loss(q, parts, hyper, one(), jnp.array([1.0]))[1][1]
    np.testing.assert_allclose(priority, [3.0], rtol=1e-5)


def test_the_share_of_random_actions_falls_linearly_and_stays():
    state = toys.compiled("dqn", "discrete").init(jax.random.key(0))
    hyper = toys.with_hyper(state, epsilon_start=1.0, epsilon_end=0.2, epsilon_decay_steps=100).hyper
    shares = [float(dqn.epsilon(hyper, jnp.int32(steps))) for steps in (0, 50, 100, 2**31 - 1)]
    np.testing.assert_allclose(shares, [1.0, 0.6, 0.2, 0.2], rtol=1e-6)


def test_exploring_is_random_that_often():
    agent = toys.compiled("dqn", "discrete")
    state = toys.with_hyper(agent.init(jax.random.key(0)), epsilon_start=0.6, epsilon_end=0.6)
    observation = jnp.zeros((4096, 3))
    greedy = agent.act(state, observation, jax.random.key(1), False)
    explored = agent.act(state, observation, jax.random.key(2), True)
    # A random action is the best one in a third of the cases.
    assert float(jnp.mean(explored != greedy)) == pytest.approx(0.4, abs=0.03)


def test_the_target_network_is_copied_at_every_period():
    agent = toys.make("dqn", "discrete", target_period=2)
    state = toys.compiled("dqn", "discrete").init(jax.random.key(0))._replace(normaliser=None)
    update, batch = jax.jit(agent.update), toys.batch_for(agent, toys.experience("discrete"))
    first, _ = update(state, batch, jax.random.key(0))
    second, _ = update(first, batch, jax.random.key(1))
    third, _ = update(second, batch, jax.random.key(2))
    jax.tree.map(np.testing.assert_array_equal, first.target_params, state.params)
    jax.tree.map(np.testing.assert_array_equal, second.target_params, second.params)
    jax.tree.map(np.testing.assert_array_equal, third.target_params, second.params)
