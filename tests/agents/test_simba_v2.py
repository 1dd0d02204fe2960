"""SimbaV2: weights that stay on the sphere, soft distributional targets at time limits, scaled rewards, the order of steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.agents import brc, simba_v2
from jaxrl.errors import UsageError
from jaxrl.returns import transition
from jaxrl.types import Experience
from tests.agents import toys
from tests.agents.test_fast_td3 import FIRST, SECOND, Says, says


class Fixed:
    """A policy whose every draw is 0 with a log-probability of -1."""

    def sample_and_log_prob(self, key):
        del key
        return jnp.zeros((1, 2)), -jnp.ones(1)


class Config:
    value_max, num_bins = 2.0, 5


def parts_of(agent):
    return agent.update.args[0]._replace(critic=Says(), config=Config())


def one_step(terminated, truncated, reward=0.25):
    observation = jnp.ones((1, 3))
    flags = jnp.array([terminated]), jnp.array([truncated])
    return transition(Experience(observation, jnp.zeros((1, 2)), jnp.full(1, reward), *flags, observation), 0.5)


@pytest.mark.parametrize(
    ("flags", "expected"),
    # A temperature of 0.5 makes the entropy worth 0.5: 0.25 + 0.5 * (-1 + 0.5, 2 + 0.5) = (0, 1.5). The smaller critic's.
    [
        ((False, True), [0.0, 0.0, 0.5, 0.25, 0.25]),
        ((False, False), [0.0, 0.0, 0.5, 0.25, 0.25]),
        ((True, False), [0.0, 0.0, 0.75, 0.25, 0.0]),
        ((True, True), [0.0, 0.0, 0.75, 0.25, 0.0]),
    ],
)
def test_target_at_a_time_limit_and_at_a_death(monkeypatch, flags, expected):
    monkeypatch.setattr(simba_v2, "policy", lambda *_: Fixed())
    parts = parts_of(toys.make("simba_v2", "box"))
    params = {"actor": None, "temperature": jnp.log(0.5)}
    target = simba_v2.critic_target(params, {"critic": says(FIRST, SECOND)}, parts, one_step(*flags), jax.random.key(0))
    np.testing.assert_allclose(target, [expected], atol=1e-6)


def test_the_policy_s_loss_is_the_worth_of_its_entropy_and_the_smaller_mean(monkeypatch):
    monkeypatch.setattr(simba_v2, "policy", lambda *_: Fixed())
    parts = parts_of(toys.make("simba_v2", "box"))
    others = {"critic": says(FIRST, SECOND), "temperature": jnp.log(0.2)}
    loss, log_prob = simba_v2.actor_loss(None, others, parts, one_step(False, False), jax.random.key(0))
    np.testing.assert_allclose(loss, 0.2 * -1.0 - 0.5, rtol=1e-5)
    np.testing.assert_array_equal(log_prob, [-1.0])


def test_the_target_entropy_is_half_a_nat_below_zero_for_each_dimension():
    """Two dimensions: the target is -1, so the temperature rests where the log-probability is 1."""
    parts = toys.make("simba_v2", "box").update.args[0]
    hyper = toys.compiled("simba_v2", "box").init(jax.random.key(0)).hyper
    slope = jax.grad(simba_v2.temperature_loss)
    np.testing.assert_allclose(slope(jnp.float32(0.0), parts, hyper, jnp.array([1.0])), 0.0, atol=1e-7)
    np.testing.assert_allclose(slope(jnp.float32(0.0), parts, hyper, jnp.array([3.0])), -2.0, rtol=1e-6)


def kernels(tree):
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [leaf for path, leaf in leaves if "SphereDense" in jax.tree_util.keystr(path)]


def test_weights_stay_on_the_sphere_and_targets_follow_them():
    agent = toys.compiled("simba_v2", "box")
    state = agent.init(jax.random.key(0))
    state = toys.with_hyper(state, actor_learning_rate=0.1, critic_learning_rate=0.1, tau=0.25)
    for turn in range(3):
        before = state
        state, _ = agent.update(state, toys.batch_for(agent.agent, toys.experience("box")), jax.random.key(turn))
        found = kernels(state.params)
        # Input, the two of a block, two a head: 3 + 2 * 2 for the policy and 3 + 2 for the critics.
        assert len(found) == 12
        for kernel in found:
            np.testing.assert_allclose(np.linalg.norm(kernel, axis=-2), 1.0, rtol=1e-5)
        moved = zip(kernels(before.params), found, strict=True)
        assert all(float(jnp.abs(a - b).max()) > 1e-3 for a, b in moved)
        expected = jax.tree.map(
            lambda o, n: 0.75 * o + 0.25 * n, before.target_params["critic"], state.params["critic"]
        )
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), state.target_params["critic"], expected
        )


def test_rewards_are_divided_by_the_spread_of_returns():
    """Rewards and statistics ten times as large: the same update, bit for bit but for rounding."""
    agent = toys.compiled("simba_v2", "box")
    results = []
    for factor in (1.0, 10.0):
        rollout = toys.experience("box")
        rollout = rollout._replace(reward=factor * rollout.reward)
        state = agent.observe(agent.init(jax.random.key(0)), rollout)
        results.append(agent.update(state, toys.batch_for(agent.agent, rollout), jax.random.key(1)))
    (small, measured), (large, other) = results
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), small.params, large.params)
    np.testing.assert_allclose(other["reward/divisor"], 10.0 * measured["reward/divisor"], rtol=1e-5)
    # A support of ±20 is far from binding, so that the divisor is the deviation of the sums.
    np.testing.assert_allclose(measured["reward/divisor"], np.sqrt(small.scale.statistics.var), rtol=1e-5)


def test_rewards_are_left_alone_if_told_so():
    agent = toys.make("simba_v2", "box", scale_rewards=False)
    state = jax.eval_shape(agent.init, jax.random.key(0))
    assert state.scale is None
    assert float(simba_v2.reward_divisor(agent.update.args[0], state)) == 1.0


def test_settings_that_cannot_work_are_refused():
    for fields, message in (
        ({"value_max": 0.0}, "value_max 0.0 cannot work"),
        ({"num_bins": 1}, "num_bins 1 cannot work; it must be at least 2"),
        ({"initial_temperature": 0.0}, "initial_temperature 0.0 cannot work"),
        ({"followed_envs": 0}, "followed_envs 0 cannot work; it must be at least 1"),
        ({"final_learning_rate_share": 1.5}, "final_learning_rate_share 1.5 is not within"),
    ):
        with pytest.raises(UsageError, match=message):
            toys.make("simba_v2", "box", **fields)


@pytest.mark.parametrize("module", [brc, simba_v2])
def test_an_estimate_is_in_units_of_reward(module):
    """The critics' own units are rewards over a divisor, which follows the returns seen."""
    name = module.__name__.rpartition(".")[2]
    agent = toys.make(name, "box", normalise_observations=False)
    fresh = agent.init(jax.random.key(0))
    seen = toys.experience("box")
    louder = agent.observe(fresh, seen._replace(reward=1e3 * jnp.ones_like(seen.reward)))
    divisor = [float(jnp.max(module.reward_divisor(agent.update.args[0], state))) for state in (fresh, louder)]
    said = [agent.estimate(state, seen.observation, seen.action) for state in (fresh, louder)]
    assert divisor[1] > 10 * divisor[0] and float(jnp.abs(said[0]).min()) > 0
    np.testing.assert_allclose(said[1] / said[0], divisor[1] / divisor[0], rtol=1e-4)
