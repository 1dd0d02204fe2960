"""Soft actor-critic: targets at time limits, the temperature, units of actions, the delay."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.agents import sac
from jaxrl.errors import UsageError
from jaxrl.returns import transition
from jaxrl.spaces import Box
from jaxrl.types import Experience
from tests.agents import toys


class Constant:
    """A critic that always says what its parameter is."""

    @staticmethod
    def apply(params, observation, action):
        return jnp.broadcast_to(params, action.shape[:-1])


class Fixed:
    """A policy whose every draw is 0 with a log-probability of -1."""

    def sample_and_log_prob(self, key):
        del key
        return jnp.zeros((1, 2)), -jnp.ones(1)


def parts_of(agent):
    return agent.update.args[0]


def one_step(terminated, truncated):
    observation = jnp.ones((1, 3))
    flags = jnp.array([terminated]), jnp.array([truncated])
    return transition(Experience(observation, jnp.zeros((1, 2)), jnp.ones(1), *flags, observation), 0.99)


@pytest.mark.parametrize(("flags", "expected"), [((False, True), 11.098), ((True, False), 1.0), ((True, True), 1.0)])
def test_target_at_a_time_limit_and_at_a_death(monkeypatch, flags, expected):
    monkeypatch.setattr(sac, "policy", lambda *_: Fixed())
    parts = parts_of(toys.make("sac", "box"))._replace(critic=Constant())
    params = {"actor": None, "temperature": jnp.log(0.2)}
    batch = one_step(*flags)
    target = sac.critic_target(params, {"critic": jnp.array([12.0, 10.0])}, parts, batch, jax.random.key(0))
    np.testing.assert_allclose(target, [expected], rtol=1e-6)
    # Two critics at 12 and 10, each half its squared error; the gradient is minus the error, never zero for want of a row.
    loss = lambda critics: sac.critic_loss(critics, parts, batch, target)[0]
    errors = expected - np.array([12.0, 10.0])
    np.testing.assert_allclose(loss(jnp.array([12.0, 10.0])), 0.5 * np.sum(errors**2), rtol=1e-5)
    np.testing.assert_allclose(jax.grad(loss)(jnp.array([12.0, 10.0])), -errors, rtol=1e-5)


def test_priority_is_the_mean_absolute_error_of_the_critics():
    parts = parts_of(toys.make("sac", "box"))._replace(critic=Constant())
    _, (_, priority) = sac.critic_loss(jnp.array([12.0, 10.0]), parts, one_step(False, True), jnp.array([11.5]))
    np.testing.assert_allclose(priority, [1.0], rtol=1e-5)


def test_temperature_moves_towards_the_target_entropy():
    """Two dimensions: the target entropy is -2, so the log-probability aimed at is 2."""
    parts = parts_of(toys.make("sac", "box"))
    hyper = toys.compiled("sac", "box").init(jax.random.key(0)).hyper
    loss = lambda log, hyper, log_prob: sac.temperature_loss(log, parts, hyper, one_step(False, False), log_prob)
    slope = jax.grad(loss)
    # d/dl of -exp(l) (log_prob + target) at l = 0
    np.testing.assert_allclose(slope(jnp.float32(0.0), hyper, jnp.array([3.0])), -1.0, rtol=1e-6)
    np.testing.assert_allclose(slope(jnp.float32(0.0), hyper, jnp.array([1.0])), 1.0, rtol=1e-6)
    half = hyper._replace(target_entropy_scale=jnp.float32(0.5))
    np.testing.assert_allclose(slope(jnp.float32(0.0), half, jnp.array([3.0])), -2.0, rtol=1e-6)


def test_units_of_the_action_change_nothing_but_the_action():
    """An environment whose actions are stretched and shifted is learned from exactly alike."""
    wide, unit = toys.ACTIONS["box"], Box(-1.0, 1.0, (2,))
    config = sac.Config(hidden_sizes=(8,))
    state = toys.compiled("sac", "box").init(jax.random.key(0))._replace(normaliser=None)
    rollout = toys.experience("box")
    inside = (rollout.action - np.array([0.0, 5.0])) / np.array([2.0, 5.0])
    results = []
    for space, action in ((wide, rollout.action), (unit, inside.astype(np.float32))):
        agent = sac.make(config, toys.OBSERVATIONS, space)
        batch = toys.batch_for(agent, rollout._replace(action=action))
        results.append(jax.jit(agent.update)(state, batch, jax.random.key(1)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *results)


def test_the_delay_skips_policy_and_temperature_but_never_the_critics():
    agent = toys.compiled("sac", "box")  # a delay of 2
    batch = toys.batch_for(agent.agent, toys.experience("box"))
    states, metrics = [agent.init(jax.random.key(0))], []
    for turn in range(3):
        state, measured = agent.update(states[-1], batch, jax.random.key(turn))
        states.append(state)
        metrics.append(measured)

    def same(part, a, b):
        return all(
            map(np.array_equal, jax.tree.leaves(states[a].params[part]), jax.tree.leaves(states[b].params[part]))
        )

    for part in ("actor", "temperature"):
        assert [same(part, i, i + 1) for i in range(3)] == [False, True, False]
    assert not any(same("critic", i, i + 1) for i in range(3))
    assert metrics[0]["actor/loss"] == metrics[1]["actor/loss"] != metrics[2]["actor/loss"]


def test_targets_follow_softly():
    agent = toys.compiled("sac", "box")
    state = toys.with_hyper(agent.init(jax.random.key(0)), tau=0.25)
    after, _ = agent.update(state, toys.batch_for(agent.agent, toys.experience("box")), jax.random.key(1))
    expected = jax.tree.map(
        lambda old, new: 0.75 * old + 0.25 * new, state.target_params["critic"], after.params["critic"]
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), after.target_params["critic"], expected
    )


def test_unbounded_actions_and_bad_temperatures_are_refused():
    with pytest.raises(UsageError, match="sac needs finite action bounds"):
        sac.make(sac.Config(), toys.OBSERVATIONS, Box(-np.inf, np.inf, (2,)))
    with pytest.raises(
        UsageError, match=r"sac needs actions that are vectors, got shape \(2, 3\); reshape them to \(6,\)"
    ):
        sac.make(sac.Config(), toys.OBSERVATIONS, Box(-1.0, 1.0, (2, 3)))
    with pytest.raises(UsageError, match=r"initial_temperature 0\.0 cannot work"):
        sac.make(sac.Config(initial_temperature=0.0), toys.OBSERVATIONS, toys.ACTIONS["box"])


def test_each_task_has_a_temperature_of_its_own():
    """The one-hot that ends an observation picks it: only the task in the batch moves, and its temperature is what counts."""
    space = Box(-1.0, 1.0, (5,))
    parts = parts_of(toys.make("sac", "box", observations=space, num_tasks=2))
    row = jnp.array([[0.1, 0.2, 0.3, 0.0, 1.0]])
    batch = one_step(False, False)._replace(observation=row, next_observation=row)
    np.testing.assert_allclose(sac.of_task(jnp.array([3.0, 7.0]), batch), [7.0])
    hyper = toys.compiled("sac", "box").init(jax.random.key(0)).hyper
    slope = jax.grad(sac.temperature_loss)(jnp.zeros(2), parts, hyper, batch, jnp.array([3.0]))
    np.testing.assert_allclose(slope, [0.0, -1.0], rtol=1e-6)
    with pytest.raises(UsageError, match="num_tasks 5 needs vectors of more than 5"):
        toys.make("sac", "box", observations=space, num_tasks=5)
