"""Proximal policy optimisation: advantages at time limits, ratios, minibatches, the learning rate, the distributions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.agents import ppo
from jaxrl.distributions import Normal, TanhNormal
from jaxrl.errors import UsageError
from jaxrl.spaces import Box
from jaxrl.types import Experience
from tests.agents import toys


class FirstEntry:
    """A critic whose value is the first entry of the observation."""

    @staticmethod
    def apply(params, observation):
        del params
        return observation[..., 0]


def parts_of(agent):
    return agent.update.args[0]


def column(*values):
    """Observations [T, 1, 3] whose first entries are the values."""
    return jnp.array(values, jnp.float32)[:, None, None] * jnp.array([1.0, 0.0, 0.0])


@pytest.mark.parametrize(("flag", "expected"), [("truncated", [27.72, 26.0, 7.0]), ("terminated", [-4.68, -19.0, 7.0])])
def test_advantages_at_a_time_limit_and_at_a_death(flag, expected):
    agent = toys.make("ppo", "discrete", discount=0.9, gae_lambda=0.8)
    parts = parts_of(agent)._replace(critic=FirstEntry())
    flags = {"truncated": jnp.zeros((3, 1), bool), "terminated": jnp.zeros((3, 1), bool)}
    flags[flag] = jnp.array([[False], [True], [False]])
    action, reward = jnp.zeros((3, 1), jnp.int32), jnp.ones((3, 1))
    rollout = Experience(
        column(10.0, 20.0, 30.0), action, reward, flags["terminated"], flags["truncated"], column(20.0, 50.0, 40.0)
    )
    state = toys.compiled("ppo", "discrete").init(jax.random.key(0))
    state = toys.with_hyper(state, discount=0.9, gae_lambda=0.8)._replace(normaliser=None)
    batch, metrics = ppo.prepare(parts, state, rollout)
    np.testing.assert_allclose(batch.advantage, expected, rtol=1e-5)
    np.testing.assert_allclose(batch.target, np.array(expected) + np.array([10.0, 20.0, 30.0]), rtol=1e-5)
    explained = 1.0 - np.var(expected) / np.var(np.array(expected) + np.array([10.0, 20.0, 30.0]))
    np.testing.assert_allclose(metrics["critic/explained_variance"], explained, rtol=1e-4)


@pytest.mark.parametrize("kind", ["box", "discrete"])
def test_the_first_ratio_is_one_with_running_statistics_that_move(kind):
    """The loss sees the statistics that the policy acted with, not those of the rollout it is given."""
    agent = toys.make("ppo", kind, normalise_observations=True)
    state = toys.compiled(*("ppo", kind)).init(jax.random.key(0))
    rollout = toys.experience(kind)
    state = toys.compiled("ppo", kind).observe(state, rollout)
    later = toys.experience(kind, seed=1)
    later = later._replace(observation=later.observation + 7.0)
    distribution = ppo.policy(
        parts_of(agent),
        state.params["actor"],
        (later.observation - state.normaliser.mean) / jnp.sqrt(state.normaliser.var),
    )
    action, log_prob = distribution.sample_and_log_prob(jax.random.key(1))
    batch, _ = ppo.prepare(parts_of(agent), state, later._replace(action=action))
    np.testing.assert_allclose(batch.log_prob, log_prob.reshape(-1), rtol=1e-4, atol=1e-4)
    still = toys.with_hyper(state, learning_rate=0.0)
    _, metrics = toys.compiled("ppo", kind).update(still, later._replace(action=action), jax.random.key(2))
    assert float(metrics["actor/approximate_kl"]) < 1e-9 and float(metrics["actor/clip_fraction"]) == 0.0
    assert abs(float(metrics["actor/loss"])) < 1e-5


def test_entropy_bonus_and_value_coefficient_enter_the_loss():
    parts = parts_of(toys.make("ppo", "discrete", normalise_advantages=False))
    state = toys.compiled("ppo", "discrete").init(jax.random.key(0))
    observation = jnp.zeros((2, 3))
    # The policy's last layer is all but zero, so the choice among 3 is uniform.
    batch = ppo.Batch(observation, jnp.array([0, 1]), -jnp.log(3.0) * jnp.ones(2), jnp.array([1.0, 3.0]), jnp.zeros(2))
    hyper = toys.with_hyper(state, entropy_coefficient=0.5, value_coefficient=2.0).hyper
    loss, metrics = ppo.total_loss(state.params, parts, hyper, batch, jax.random.key(0))
    np.testing.assert_allclose(metrics["actor/loss"], -2.0, rtol=1e-3)
    np.testing.assert_allclose(metrics["actor/entropy"], np.log(3.0), rtol=1e-4)
    np.testing.assert_allclose(loss, -2.0 - 0.5 * np.log(3.0) + 2.0 * metrics["critic/loss"], rtol=1e-3)


def test_squashing_applies_to_bounded_actions_only():
    def distribution(space, **fields):
        config = ppo.Config(hidden_sizes=(), **fields)
        agent = ppo.make(config, toys.OBSERVATIONS, space)
        parts = parts_of(agent)
        params = {"params": {"loc": {"kernel": jnp.zeros((3, 2)), "bias": jnp.zeros(2)}, "log_std": jnp.zeros(2)}}
        return ppo.policy(parts, params, jnp.zeros(3))

    assert isinstance(distribution(toys.ACTIONS["box"]), TanhNormal)
    assert isinstance(distribution(toys.ACTIONS["box"], squash=False), Normal)
    assert isinstance(distribution(Box(-np.inf, np.inf, (2,))), Normal)
    np.testing.assert_allclose(distribution(toys.ACTIONS["box"]).mode(), [0.0, 5.0])


def test_annealing_stops_the_parameters():
    agent = toys.make("ppo", "discrete", anneal_updates=2, minibatches=1, epochs=1)
    state = toys.compiled("ppo", "discrete").init(jax.random.key(0))._replace(normaliser=None)
    update = jax.jit(agent.update)
    moved = []
    for turn in range(3):
        after, _ = update(state, toys.experience("discrete"), jax.random.key(turn))
        change = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), after.params, state.params)
        moved.append(max(jax.tree.leaves(change)))
        state = after
    assert moved[0] > moved[1] > 0.0 and moved[2] == 0.0


def test_minibatches_that_do_not_divide_the_rollout_are_refused():
    state = toys.compiled("ppo", "discrete").init(jax.random.key(0))._replace(normaliser=None)
    for number, message in (
        (3, "3 minibatches of a rollout of 16 steps do not divide it; nearest that work: 2 and 4"),
        (16, "leave one step in each, whose normalised advantage is 0; nearest that work: 8"),
        (40, "nearest that work: 8"),
    ):
        agent = toys.make("ppo", "discrete", minibatches=number)
        with pytest.raises(UsageError, match=message):
            jax.eval_shape(agent.update, state, toys.experience("discrete"), jax.random.key(0))


def test_the_program_does_not_grow_with_the_rollout_or_the_epochs():
    def program(length, epochs):
        agent = toys.make("ppo", "box", epochs=epochs)
        stretch = lambda x: jnp.zeros((length, *x.shape[1:]), x.dtype)
        rollout = jax.tree.map(stretch, toys.experience("box"))
        state = jax.eval_shape(agent.init, jax.random.key(0))
        return len(jax.jit(agent.update).lower(state, rollout, jax.random.key(1)).as_text())

    short = program(8, 1)
    assert abs(program(64, 10) - short) < 0.05 * short


def test_every_step_of_the_rollout_is_seen_once_an_epoch():
    """With plain gradient descent at a small rate, one epoch in minibatches moves the critic as one pass over all does."""
    import optax

    moved = []
    for minibatches in (1, 4):
        agent = toys.make(
            "ppo",
            "discrete",
            optax.sgd(1e-4 / minibatches),
            epochs=1,
            minibatches=minibatches,
            normalise_advantages=False,
        )
        state = toys.compiled("ppo", "discrete").init(jax.random.key(0))._replace(normaliser=None)
        state = state._replace(optimizer_state=optax.sgd(1.0).init(state.params))
        after, _ = jax.jit(agent.update)(state, toys.experience("discrete"), jax.random.key(1))
        moved.append(jax.tree.map(lambda a, b: (a - b) * 1e4, after.params, state.params))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0.05, atol=0.02), *moved)
