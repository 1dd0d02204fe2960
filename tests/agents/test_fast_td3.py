"""FastTD3: distributional targets at time limits, which critic is chosen, each environment's noise, annealing, the delay."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.agents import annealing, distributional, fast_td3
from jaxrl.errors import UsageError
from tests.agents import toys

SUPPORT = jnp.array([-2.0, -1.0, 0.0, 1.0, 2.0])


class Says:
    """A network that returns its parameter for every row."""

    @staticmethod
    def apply(params, observation, action=None):
        return jnp.broadcast_to(params, (*observation.shape[:-1], *params.shape))


class Config:
    value_min, value_max, num_bins = -2.0, 2.0, 5


def parts_of(agent):
    return agent.update.args[0]._replace(actor=Says(), critic=Says(), config=Config())


def says(*members):
    """Logits of certain (nearly) and mixed distributions."""
    return jnp.log(jnp.array(members) + 1e-30)


FIRST, SECOND = [0.0, 0.0, 0.0, 0.5, 0.5], [0.0, 0.5, 0.0, 0.0, 0.5]  # means of 1.5 and 0.5


@pytest.mark.parametrize(
    ("discount", "expected"),
    # The second critic has the smaller mean. 0.25 + 0.5 * (-1, 2) = (-0.25, 1.25), each split between its neighbours.
    [(0.5, [0.0, 0.125, 0.375, 0.375, 0.125]), (0.0, [0.0, 0.0, 0.75, 0.25, 0.0])],
)
def test_target_is_the_smaller_critic_s_distribution_moved(discount, expected):
    agent = toys.make("fast_td3", "box")
    batch = toys.batch_for(agent, toys.experience("box"))
    batch = batch._replace(reward=jnp.full(16, 0.25), discount=jnp.full(16, discount))
    hyper = toys.compiled("fast_td3", "box").init(jax.random.key(0)).hyper
    target = fast_td3.critic_target(
        {"actor": jnp.zeros(2)}, {"critic": says(FIRST, SECOND)}, parts_of(agent), hyper, batch, jax.random.key(0)
    )
    np.testing.assert_allclose(target, np.tile(expected, (16, 1)), atol=1e-6)


def test_smallest_takes_one_distribution_whole_for_each_row():
    other = [0.0, 0.0, 1.0, 0.0, 0.0]
    probabilities = jnp.array([[FIRST, SECOND], [SECOND, other]])  # [critics, rows, bins]
    np.testing.assert_array_equal(distributional.smallest(probabilities, SUPPORT), np.float32([SECOND, other]))


def test_loss_is_the_cross_entropies_summed_over_critics_and_averaged_over_weighted_rows():
    """Rows against a uniform critic cost log 5 whatever the target; against a certain one, minus its log-probability."""
    half = jnp.log(jnp.array([0.5, 0.125, 0.125, 0.125, 0.125]))
    logits = jnp.stack([jnp.zeros((2, 5)), jnp.tile(half, (2, 1))])
    target = jnp.eye(5)[jnp.array([0, 1])]
    loss, (metrics, priority) = distributional.critic_loss(logits, target, jnp.array([1.0, 3.0]), SUPPORT)
    rows = np.log(5) + np.array([np.log(2), np.log(8)])
    np.testing.assert_allclose(loss, (rows[0] + 3.0 * rows[1]) / 2.0, rtol=1e-6)
    # Means of the critics: 0 and -1 + 0.25 * 1 = -0.75 + ...: -2/2 + (-1 + 0 + 1 + 2) / 8 = -0.75.
    np.testing.assert_allclose(metrics["critic/value"], -0.375, rtol=1e-5)
    np.testing.assert_allclose(priority, [(2.0 + 1.25) / 2, (1.0 + 0.25) / 2], rtol=1e-5)


def test_the_policy_climbs_the_smaller_mean():
    agent = toys.make("fast_td3", "box")
    batch = toys.batch_for(agent, toys.experience("box"))
    loss = fast_td3.actor_loss(jnp.zeros(2), says(FIRST, SECOND), parts_of(agent), batch)
    np.testing.assert_allclose(loss, -0.5, rtol=1e-5)


def test_every_environment_has_its_own_deviation_and_keeps_it_for_a_while():
    agent = toys.compiled("fast_td3", "box")
    parts, state = agent.agent.update.args[0], agent.init(jax.random.key(0))
    state = toys.with_hyper(state, exploration_noise_min=0.1, exploration_noise_max=0.3)
    count, period = 512, parts.config.noise_period

    def deviations(steps):
        return np.asarray(fast_td3.exploration_noise(parts, state._replace(steps=jnp.int32(steps)), count))

    first = deviations(0)
    assert first.min() >= 0.1 and first.max() <= 0.3 and len(np.unique(first)) > 500
    np.testing.assert_allclose(first.mean(), 0.2, atol=0.01)
    np.testing.assert_array_equal(deviations(count * period - 1), first)
    later = deviations(count * period)
    assert abs(np.corrcoef(first, later)[0, 1]) < 0.2

    observation = jnp.zeros((count, 3))
    still = agent.act(state, observation, jax.random.key(1), False)
    half_ranges = np.array([2.0, 5.0])
    draws = [(agent.act(state, observation, jax.random.key(seed), True) - still) / half_ranges for seed in range(40)]
    measured = np.std(np.concatenate(draws, -1), axis=-1)
    assert np.corrcoef(measured, first)[0, 1] > 0.9
    np.testing.assert_allclose(measured.mean() / first.mean(), 1.0, atol=0.03)


def test_another_seed_has_other_deviations():
    agent = toys.compiled("fast_td3", "box")
    keys = [agent.init(jax.random.key(seed)).noise_key for seed in (0, 1)]
    assert not np.array_equal(*keys)


def test_targets_move_at_every_update_and_the_policy_at_every_second():
    agent = toys.compiled("fast_td3", "box")
    batch = toys.batch_for(agent.agent, toys.experience("box"))
    states = [toys.with_hyper(agent.init(jax.random.key(0)), tau=0.25)]
    for turn in range(3):
        states.append(agent.update(states[-1], batch, jax.random.key(turn))[0])

    def same(a, b):
        return all(map(np.array_equal, jax.tree.leaves(a), jax.tree.leaves(b)))

    pairs = list(itertools.pairwise(states))
    assert [same(a.params["actor"], b.params["actor"]) for a, b in pairs] == [False, True, False]
    assert [same(a.optimizer_state["actor"], b.optimizer_state["actor"]) for a, b in pairs] == [False, True, False]
    for before, after in pairs:
        old, new, moved = before.target_params["critic"], after.params["critic"], after.target_params["critic"]
        expected = jax.tree.map(lambda o, n: 0.75 * o + 0.25 * n, old, new)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), moved, expected)


def test_learning_rates_anneal():
    at = lambda function, updates, *rest: float(function(jnp.float32(2.0), jnp.int32(updates), *rest))
    assert [at(annealing.linear, u, 10, 0.5) for u in (0, 5, 10, 99)] == [2.0, 1.5, 1.0, 1.0]
    np.testing.assert_allclose(
        [at(annealing.cosine, u, 10, 0.0) for u in (0, 5, 10, 99)], [2.0, 1.0, 0.0, 0.0], atol=1e-6
    )
    assert at(annealing.cosine, 7, 0, 0.1) == at(annealing.linear, 7, 0, 0.1) == 2.0


def test_settings_that_cannot_work_are_refused():
    for fields, message in (
        ({"value_min": 3.0, "value_max": 3.0}, "support needs low < high"),
        ({"num_bins": 1}, "num_bins 1 cannot work; it must be at least 2"),
        ({"exploration_noise_min": 0.5}, "exploration_noise_max 0.4 cannot work; it must be at least 0.5"),
        ({"noise_period": 0}, "noise_period 0 cannot work"),
    ):
        with pytest.raises(UsageError, match=message):
            toys.make("fast_td3", "box", **fields)
