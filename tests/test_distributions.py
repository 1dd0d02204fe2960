"""Numbers worked out by hand, agreement with scipy in float64, and finiteness at the extremes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from jaxrl.distributions import Categorical, Normal, TanhNormal, scale_action, smoothing_noise, unscale_action
from jaxrl.errors import UsageError

LOW, HIGH = np.float32([-2, 0]), np.float32([2, 10])
UNIT = TanhNormal(jnp.zeros(1), jnp.ones(1), -jnp.ones(1), jnp.ones(1))
BOX = TanhNormal(jnp.array([0.3, -0.5]), jnp.array([0.5, 1.5]), LOW, HIGH)


@pytest.fixture(autouse=True)
def _each_key_once():
    with jax.debug_key_reuse(True):
        yield


def test_tanh_log_prob_at_the_extreme():
    # -200 - log(2 pi)/2 - 2 (log 2 - 20 - softplus(-40)) = -162.3052; the derivative is -20 + 2 tanh(20) = -18.
    pre_tanh = jnp.array([20.0])
    np.testing.assert_allclose(UNIT.log_prob_of_pre_tanh(pre_tanh), -162.305, atol=5e-4)
    np.testing.assert_allclose(jax.grad(UNIT.log_prob_of_pre_tanh)(pre_tanh), [-18.0], rtol=1e-6)
    np.testing.assert_allclose(UNIT.log_prob_of_pre_tanh(-pre_tanh), -162.305, atol=5e-4)
    np.testing.assert_allclose(jax.grad(UNIT.log_prob_of_pre_tanh)(-pre_tanh), [18.0], rtol=1e-6)


@pytest.mark.parametrize("bound", [LOW, HIGH, LOW - 1.0, HIGH + 1.0])
def test_tanh_log_prob_of_a_stored_action_at_a_bound_is_finite(bound):
    def log_prob(loc, scale, action):
        return TanhNormal(loc, scale, LOW, HIGH).log_prob(action)

    value, gradients = jax.jit(jax.value_and_grad(log_prob, (0, 1, 2)))(BOX.loc, BOX.scale, jnp.asarray(bound))
    assert jnp.isfinite(value)
    assert all(jnp.isfinite(g).all() for g in gradients)
    assert (gradients[0] != 0).all(), "the policy must still learn from an action at its bound"


def test_tanh_log_prob_is_in_environment_units():
    pre_tanh = jnp.array([0.7, -0.2])
    one = BOX._replace(low=-jnp.ones(2), high=jnp.ones(2)).log_prob_of_pre_tanh(pre_tanh)
    np.testing.assert_allclose(one - BOX.log_prob_of_pre_tanh(pre_tanh), np.log(2) + np.log(5), rtol=1e-6)


def test_tanh_log_prob_integrates_to_one():
    loc, scale, low, high = 0.4, 0.6, -3.0, 1.0
    policy = TanhNormal(jnp.array([loc]), jnp.array([scale]), jnp.array([low]), jnp.array([high]))
    grid = np.linspace(low, high, 20_001)
    density = np.exp(np.asarray(policy.log_prob(jnp.asarray(grid, jnp.float32)[:, None]), np.float64))
    np.testing.assert_allclose(scipy.integrate.trapezoid(density, grid), 1.0, atol=1e-4)


def test_tanh_log_prob_agrees_with_float64():
    rng = np.random.default_rng(0)
    pre_tanh = rng.normal(size=(100, 2)) * 3
    slope = np.log(4.0) - 2 * np.logaddexp(pre_tanh, -pre_tanh) + np.log([2.0, 5.0])  # 1 - tanh^2 = 4 / (e^u + e^-u)^2
    gaussian = scipy.stats.norm.logpdf(pre_tanh, np.float64(BOX.loc), np.float64(BOX.scale))
    result = BOX.log_prob_of_pre_tanh(jnp.asarray(pre_tanh, jnp.float32))
    np.testing.assert_allclose(result, (gaussian - slope).sum(-1), rtol=1e-5, atol=1e-5)


def test_tanh_samples_lie_within_bounds_and_agree_with_their_log_prob():
    policy = TanhNormal(jnp.full((5000, 2), 0.3), jnp.full((5000, 2), 1.0), LOW, HIGH)
    action, log_prob = jax.jit(policy.sample_and_log_prob)(jax.random.key(0))
    assert action.shape == (5000, 2) and log_prob.shape == (5000,) and action.dtype == log_prob.dtype == jnp.float32
    np.testing.assert_allclose(policy.log_prob(action), log_prob, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(policy.sample(jax.random.key(0)), action, rtol=1e-5, atol=1e-5)
    wide = policy._replace(scale=jnp.full((5000, 2), 50.0))
    action, log_prob = wide.sample_and_log_prob(jax.random.key(1))
    assert (action >= LOW).all() and (action <= HIGH).all() and jnp.isfinite(log_prob).all()
    assert (action == LOW).any() and (action == HIGH).any(), "the case this test is for did not occur"


def test_tanh_entropy_estimates_minus_the_mean_log_prob():
    rows = 200_000
    policy = BOX._replace(loc=jnp.tile(BOX.loc, (rows, 1)))
    estimate = policy.entropy(jax.random.key(0))
    mean_surprise = -policy.sample_and_log_prob(jax.random.key(1))[1].mean()
    assert estimate.shape == (rows,)
    np.testing.assert_allclose(estimate.mean(), mean_surprise, atol=0.02)


def test_tanh_gradients_of_a_sample_reach_both_parameters():
    def first(loc, scale):
        action, log_prob = TanhNormal(loc, scale, LOW, HIGH).sample_and_log_prob(jax.random.key(3))
        return action.sum() + log_prob

    for gradient in jax.jit(jax.grad(first, (0, 1)))(BOX.loc, BOX.scale):
        assert jnp.isfinite(gradient).all() and (gradient != 0).all()


def test_tanh_mode_is_the_squashed_mean():
    np.testing.assert_allclose(BOX.mode(), [2 * np.tanh(0.3), 5 + 5 * np.tanh(-0.5)], rtol=1e-6)


def test_an_entry_without_choice_adds_nothing():
    fixed = TanhNormal(jnp.array([0.3, 0.1]), jnp.array([0.5, 0.2]), jnp.array([-2.0, 4.0]), jnp.array([2.0, 4.0]))
    alone = TanhNormal(jnp.array([0.3]), jnp.array([0.5]), jnp.array([-2.0]), jnp.array([2.0]))
    action, log_prob = fixed.sample_and_log_prob(jax.random.key(0))
    assert action[1] == 4.0
    np.testing.assert_allclose(log_prob, alone.log_prob(action[:1]), rtol=1e-5)
    np.testing.assert_allclose(fixed.log_prob(action), log_prob, rtol=1e-5)
    entropy = fixed.entropy(jax.random.key(1))
    assert jnp.isfinite(entropy)
    np.testing.assert_array_equal(fixed._replace(scale=jnp.array([0.5, 9.0])).entropy(jax.random.key(1)), entropy)


def test_half_precision_parameters_give_float32():
    policy = UNIT._replace(loc=jnp.zeros((4, 1), jnp.bfloat16), scale=jnp.ones((4, 1), jnp.bfloat16))
    action, log_prob = policy.sample_and_log_prob(jax.random.key(0))
    assert action.dtype == log_prob.dtype == policy.entropy(jax.random.key(1)).dtype == jnp.float32
    assert Normal(policy.loc, policy.scale).entropy().dtype == jnp.float32
    assert Categorical(policy.loc).log_prob(jnp.zeros(4, int)).dtype == jnp.float32


def test_normal_agrees_with_scipy():
    loc, scale = np.float32([[1.0, -2.0], [0.0, 3.0]]), np.float32([0.5, 2.0])
    policy, reference = Normal(loc, scale), scipy.stats.norm(np.float64(loc), np.float64(scale))
    action, log_prob = policy.sample_and_log_prob(jax.random.key(0))
    assert action.shape == (2, 2) and not jnp.array_equal(action[0] - loc[0], action[1] - loc[1])
    np.testing.assert_allclose(log_prob, reference.logpdf(np.float64(action)).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(policy.entropy(), reference.entropy().sum(-1), rtol=1e-6)
    np.testing.assert_array_equal(policy.mode(), loc)


def test_categorical_by_hand():
    policy = Categorical(jnp.log(jnp.array([[1.0, 2.0, 1.0], [3.0, 3.0, 6.0]])))
    np.testing.assert_allclose(policy.log_prob(jnp.array([1, 0])), np.log([0.5, 0.25]), rtol=1e-6)
    np.testing.assert_allclose(policy.entropy(), [1.5 * np.log(2)] * 2, rtol=1e-6)
    np.testing.assert_array_equal(policy.mode(), [1, 2])
    assert policy.mode().dtype == jnp.int32


def test_categorical_is_stable_and_knows_masks():
    huge = Categorical(jnp.array([1e4, 1e4 - 1.0]))
    np.testing.assert_allclose(huge.log_prob(jnp.array(1)), -1.0 - np.log1p(np.exp(-1.0)), rtol=1e-4)
    masked = jnp.array([0.0, -jnp.inf, 0.0])
    np.testing.assert_allclose(Categorical(masked).entropy(), np.log(2), rtol=1e-6)
    gradient = jax.grad(lambda logits: Categorical(logits).entropy() + Categorical(logits).log_prob(jnp.array(0)))(
        masked
    )
    np.testing.assert_allclose(gradient, [0.5, 0.0, -0.5], atol=1e-6)
    one_left = Categorical(jnp.array([-jnp.inf, 5.0]))
    assert one_left.entropy() == 0.0 and one_left.log_prob(jnp.array(1)) == 0.0
    samples = Categorical(jnp.tile(masked, (2000, 1))).sample(jax.random.key(0))
    assert set(np.unique(samples)) == {0, 2}


def test_categorical_samples_follow_the_probabilities():
    policy = Categorical(jnp.tile(jnp.log(jnp.array([0.2, 0.5, 0.3])), (50_000, 1)))
    action, log_prob = policy.sample_and_log_prob(jax.random.key(0))
    assert action.dtype == jnp.int32
    np.testing.assert_allclose(np.bincount(action) / 50_000, [0.2, 0.5, 0.3], atol=0.01)
    np.testing.assert_allclose(log_prob, np.log([0.2, 0.5, 0.3])[action], rtol=1e-5)


def test_scaling_by_hand_and_back():
    np.testing.assert_array_equal(scale_action(jnp.array([-1.0, -1.0]), LOW, HIGH), LOW)
    np.testing.assert_array_equal(scale_action(jnp.array([1.0, 1.0]), LOW, HIGH), HIGH)
    np.testing.assert_allclose(scale_action(jnp.array([0.5, -0.5]), LOW, HIGH), [1.0, 2.5])
    np.testing.assert_allclose(unscale_action(jnp.array([1.0, 2.5]), LOW, HIGH), [0.5, -0.5])
    unit = jax.random.uniform(jax.random.key(0), (100, 2), minval=-1.0)
    np.testing.assert_allclose(unscale_action(scale_action(unit, LOW, HIGH), LOW, HIGH), unit, atol=1e-6)


def test_scaling_survives_awkward_bounds():
    # In float32, .5 (.82 + 3.86) + .5 (3.86 - .82) is above 3.86.
    low, high = np.float32([-1e37, 0.82, 7.0]), np.float32([1e37, 3.86, 7.0])
    action = scale_action(jnp.linspace(-1.0, 1.0, 1001)[:, None], low, high)
    assert (action >= low).all() and (action <= high).all()
    unit = unscale_action(jnp.stack([jnp.asarray(low), jnp.asarray(high)]), low, high)
    np.testing.assert_allclose(unit, [[-1, -1, 0], [1, 1, 0]], rtol=1e-6)


def test_smoothing_noise_has_the_scale_of_each_entry():
    middle = jnp.tile(jnp.array([0.0, 5.0]), (100_000, 1))
    result = smoothing_noise(jax.random.key(0), middle, 0.2, 10.0, LOW, HIGH)
    np.testing.assert_allclose((result - middle).std(0), [0.4, 1.0], rtol=0.01)
    assert np.unique(result[:, 0]).size > 90_000, "rows share their noise"
    assert abs(np.corrcoef(result.T)[0, 1]) < 0.02, "entries share their noise"
    clipped = smoothing_noise(jax.random.key(1), middle, 0.2, 0.1, LOW, HIGH)
    np.testing.assert_allclose(jnp.abs(clipped - middle).max(0), [0.2, 0.5], rtol=1e-5)
    at_bound = smoothing_noise(jax.random.key(2), jnp.tile(HIGH, (1000, 1)), 0.2, 0.5, LOW, HIGH)
    assert (at_bound <= HIGH).all() and (at_bound >= HIGH - np.float32([1.0, 2.5])).all()
    assert (at_bound == HIGH).any() and (at_bound < HIGH).any()


@pytest.mark.parametrize("key", [0, jax.random.PRNGKey(0), jax.random.split(jax.random.key(0))])
def test_legacy_keys_are_refused(key):
    for call in (
        UNIT.sample,
        UNIT.sample_and_log_prob,
        UNIT.entropy,
        Normal(*UNIT[:2]).sample,
        Categorical(LOW).sample,
    ):
        with pytest.raises(UsageError, match="key"):
            call(key)
    with pytest.raises(UsageError, match="key"):
        smoothing_noise(key, LOW, 0.2, 0.5, LOW, HIGH)
