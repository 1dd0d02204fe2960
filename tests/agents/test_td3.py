"""TD3: targets at time limits, smoothing, exploration noise, the delay of policy and targets."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.agents import td3
from tests.agents import toys


class Says:
    """A network that returns its parameter for every row, or the sum of the action where there is none."""

    @staticmethod
    def apply(params, observation, action=None):
        if action is None:
            return jnp.broadcast_to(params, (*observation.shape[:-1], 2))
        return jnp.sum(action, -1) if params is None else jnp.broadcast_to(params, action.shape[:-1])


def parts_of(agent):
    return agent.update.args[0]._replace(actor=Says(), critic=Says())


@pytest.mark.parametrize(("discount", "expected"), [(0.99, 10.9), (0.0, 1.0)])
def test_target_is_the_smaller_critic_s_unless_nothing_follows(discount, expected):
    agent = toys.make("td3", "box")
    batch = toys.batch_for(agent, toys.experience("box"))
    batch = batch._replace(reward=jnp.ones(16), discount=jnp.full(16, discount))
    hyper = toys.compiled("td3", "box").init(jax.random.key(0)).hyper
    target = td3.critic_target(
        {"actor": jnp.zeros(2), "critic": jnp.array([10.0, 12.0])}, parts_of(agent), hyper, batch, jax.random.key(0)
    )
    np.testing.assert_allclose(target, np.full(16, expected), rtol=1e-6)


def test_target_actions_are_smoothed_within_the_bounds(monkeypatch):
    agent = toys.make("td3", "box")
    batch = toys.batch_for(agent, toys.experience("box"))
    seen = []
    monkeypatch.setattr(
        td3, "apply_ensemble", lambda module, params, observation, action: seen.append(action) or params
    )
    hyper = toys.compiled("td3", "box").init(jax.random.key(0)).hyper
    q = jnp.zeros((2, 16))
    for centre in (0.0, 0.95):
        target = {"actor": jnp.full(2, centre), "critic": q}
        td3.critic_target(target, parts_of(agent), hyper, batch, jax.random.key(0))
    middle, edge = seen
    assert len(np.unique(middle)) == 32  # every row and entry has noise of its own
    assert float(jnp.abs(middle).max()) <= 0.5 and 0.1 < float(jnp.std(middle)) < 0.3
    assert float(edge.max()) == 1.0 and float(edge.min()) >= 0.45


def test_exploration_noise_is_in_half_ranges_of_each_entry():
    agent = toys.compiled("td3", "box")
    state = toys.with_hyper(agent.init(jax.random.key(0)), exploration_noise=0.2)
    observation = jnp.zeros((4096, 3))
    noise = agent.act(state, observation, jax.random.key(1), True) - agent.act(
        state, observation, jax.random.key(2), False
    )
    np.testing.assert_allclose(jnp.std(noise, axis=0), [0.4, 1.0], rtol=0.05)


def test_policy_and_targets_move_at_every_second_update():
    agent = toys.compiled("td3", "box")
    batch = toys.batch_for(agent.agent, toys.experience("box"))
    states = [agent.init(jax.random.key(0))]
    for turn in range(3):
        states.append(agent.update(states[-1], batch, jax.random.key(turn))[0])

    def same(a, b):
        return all(map(np.array_equal, jax.tree.leaves(a), jax.tree.leaves(b)))

    pairs = list(itertools.pairwise(states))
    assert [same(a.params["actor"], b.params["actor"]) for a, b in pairs] == [False, True, False]
    assert [same(a.target_params, b.target_params) for a, b in pairs] == [False, True, False]
    assert [same(a.params["critic"], b.params["critic"]) for a, b in pairs] == [False, False, False]
    # The skipped update leaves the policy's optimiser alone as well.
    assert [same(a.optimizer_state["actor"], b.optimizer_state["actor"]) for a, b in pairs] == [False, True, False]


def test_the_policy_climbs_the_first_critic():
    agent = toys.make("td3", "box")
    batch = toys.batch_for(agent, toys.experience("box"))
    first_only = jnp.array([3.0, -100.0])
    np.testing.assert_allclose(td3.actor_loss(jnp.zeros(2), first_only, parts_of(agent), batch), -3.0)
