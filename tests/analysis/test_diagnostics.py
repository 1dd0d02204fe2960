"""Each diagnostic on literal numbers, then at extremes, and inside jit and vmap."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.analysis import diagnostics as d
from jaxrl.errors import UsageError


def test_dormant_fraction():
    # mean |activation| by unit: 0, 0.1, 2, 1.9 -> layer mean 1; relative 0, 0.1, 2, 1.9
    activations = jnp.array([[0.0, 0.1, 1.0, -1.9], [0.0, -0.1, 3.0, 1.9]])
    assert d.dormant_fraction(activations) == 0.25
    assert d.dormant_fraction(activations, 0.11) == 0.5
    assert d.dormant_fraction(activations, 0.09) == 0.25
    assert d.dormant_fraction(jnp.zeros((3, 4))) == 1
    assert d.dormant_fraction(jnp.full((3, 4), 1e-37)) == 0
    assert d.dormant_fraction(jnp.full((300, 4), 3e38)) == 0
    named = d.dormant_fractions({"a": activations, "b": {"c": jnp.ones((2, 12))}})
    assert {name: float(x) for name, x in named.items()} == {"dormant/a": 0.25, "dormant/b/c": 0, "dormant/all": 0.0625}
    with pytest.raises(UsageError, match="no activations"):
        d.dormant_fractions({})


def test_ranks_of_known_spectra():
    # singular values 3, 1, 0
    features = jnp.diag(jnp.array([3.0, 1.0, 0.0]))
    entropy = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    assert d.effective_rank(features) == pytest.approx(np.exp(entropy), rel=1e-5)  # 1.7548
    assert d.stable_rank(features) == pytest.approx(10 / 9, rel=1e-5)
    assert d.numerical_rank(features) == 2
    assert d.feature_rank(features, 0.25) == 1  # .75 is held by one, exactly
    assert d.feature_rank(features, 0.2) == 2
    assert d.effective_rank(jnp.eye(5)) == pytest.approx(5, rel=1e-5)
    assert d.feature_rank(jnp.eye(100), 0.01) == 99


def test_ranks_at_extremes():
    tall = jax.random.normal(jax.random.key(0), (64, 3)) @ jax.random.normal(jax.random.key(1), (3, 16))
    for scale in (1e-30, 1.0, 1e37):
        assert d.numerical_rank(scale * tall) == 3
        assert d.stable_rank(scale * tall) == pytest.approx(float(d.stable_rank(tall)), rel=1e-3)
        assert d.effective_rank(scale * tall) == pytest.approx(float(d.effective_rank(tall)), rel=1e-3)
    for rank in (d.effective_rank, d.stable_rank, d.feature_rank, d.numerical_rank):
        assert rank(jnp.zeros((4, 3))) == 0
        assert jnp.isnan(rank(jnp.full((4, 3), jnp.nan)))  # not a healthy rank, and not none
    assert jnp.isnan(d.dormant_fraction(jnp.full((4, 3), jnp.nan)))
    assert d.numerical_rank(tall.reshape(8, 8, 16)) == 3  # leading axes are one batch


def test_norms():
    params = {"a": jnp.array([3.0, 0.0]), "b": {"c": jnp.array([[4.0]])}, "count": jnp.int32(7)}
    assert {name: float(x) for name, x in d.weight_norms(params).items()} == {
        "weight_norm/a": 3,
        "weight_norm/b/c": 4,
        "weight_norm/all": 5,
    }
    assert d.gradient_norm(params) == 5
    assert d.gradient_norm({"x": jnp.array([2.4e38, 1.8e38])}) == pytest.approx(3e38, rel=1e-6)
    assert d.gradient_norm({"x": jnp.array([3e-30, 4e-30])}) == pytest.approx(5e-30, rel=1e-6)
    assert d.gradient_norm({"x": jnp.array([3.0, 4.0], jnp.bfloat16)}).dtype == jnp.float32
    assert jnp.isnan(d.gradient_norm({"x": jnp.array([1.0, jnp.nan])}))
    assert jnp.isposinf(d.gradient_norm({"x": jnp.array([1.0, -jnp.inf])}))
    assert d.gradient_norm({}) == 0


def test_value_overestimation():
    got = d.value_overestimation(jnp.array([3.0, 5.0]), jnp.array([2.0, -2.0]))
    assert {name: float(x) for name, x in got.items()} == {
        "overestimation/bias": 4,
        "overestimation/std": 3,
        "overestimation/relative": 2,
    }
    assert d.value_overestimation(jnp.ones(2), jnp.zeros(2))["overestimation/relative"] == 0


def test_explained_variance():
    target = jnp.array([1.0, 2.0, 3.0, 4.0])  # variance 1.25
    assert d.explained_variance(target, target) == 1
    assert d.explained_variance(target + 7, target) == 1
    assert d.explained_variance(jnp.zeros(4), target) == 0
    # errors 0, 1, 1, 2: variance .5
    assert d.explained_variance(jnp.array([1.0, 1.0, 2.0, 2.0]), target) == pytest.approx(0.6)
    assert d.explained_variance(-target, target) == -3
    assert d.explained_variance(jnp.ones(3), jnp.full(3, 2.0)) == 1
    assert d.explained_variance(jnp.arange(3.0), jnp.full(3, 2.0)) == 0


def test_policy_entropy():
    got = d.policy_entropy(jnp.array([0.0, 1.0, 2.0]), log_actions=2.0)
    assert float(got["entropy/mean"]) == 1 and float(got["entropy/std"]) == pytest.approx((2 / 3) ** 0.5)
    assert [float(got[f"entropy/{name}"]) for name in ("min", "max", "share")] == [0, 2, 0.5]
    assert "entropy/share" not in d.policy_entropy(jnp.zeros(2))


def test_replay_age_histogram():
    got = d.replay_age_histogram(jnp.array([0, 1, 2, 3, 4, 9, 25, -1]), 5, 10)
    np.testing.assert_allclose(got, [3 / 8, 2 / 8, 1 / 8, 0, 2 / 8])
    # 10 ages in 3 bins: [0, 4), [4, 7), [7, 10), as floor(3 age / 10) says
    np.testing.assert_allclose(d.replay_age_histogram(jnp.arange(10), 3, 10), [0.4, 0.3, 0.3], rtol=1e-6)
    # next to the edge at 2^30, where float32 has steps of 64
    edge = 2**30
    near = d.replay_age_histogram(jnp.array([edge - 1, edge]), 2, jnp.int32(2**31 - 1))
    np.testing.assert_allclose(near, [0.5, 0.5])
    for largest in (1, 7, 1000, 2**31 - 1):
        ages = np.random.default_rng(0).integers(0, largest, 500)
        expected = np.bincount([int(age) * 9 // largest for age in ages], minlength=9) / 500
        np.testing.assert_allclose(d.replay_age_histogram(jnp.asarray(ages), 9, largest), expected, rtol=1e-5)
    with pytest.raises(UsageError, match="at least 1 bin"):
        d.replay_age_histogram(jnp.arange(3), 0, 10)


def test_gradient_conflict():
    gradients = {"w": jnp.array([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]]), "b": jnp.array([0.0, 0.0, 4.0])}
    cosines = d.cosine_matrix(gradients)
    np.testing.assert_allclose(cosines, [[1, 0, -0.6], [0, 1, 0], [-0.6, 0, 1]], atol=1e-6)
    got = d.gradient_conflict(gradients)
    assert float(got["conflict/share"]) == pytest.approx(1 / 3)
    assert float(got["conflict/mean_cosine"]) == pytest.approx(-0.2)
    assert float(got["conflict/min_cosine"]) == pytest.approx(-0.6)
    apart = jnp.array([[3e38, 3e38], [1e-30, -1e-30], [0.0, 0.0], [1e-30, 1e-30]])
    expected = [[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 1]]
    np.testing.assert_allclose(d.cosine_matrix(apart), expected, atol=1e-6)
    with pytest.raises(UsageError, match="at least 2"):
        d.gradient_conflict(jnp.ones((1, 3)))


def test_all_work_in_jit_and_vmap():
    x = jax.random.normal(jax.random.key(3), (3, 10, 4))

    def everything(features):
        return {
            "dormant": d.dormant_fraction(features, 0.1),
            "effective": d.effective_rank(features),
            "stable": d.stable_rank(features),
            "srank": d.feature_rank(features, 0.05),
            "rank": d.numerical_rank(features),
            "ages": d.replay_age_histogram(jnp.arange(10), 4, features.shape[0]),
            **d.weight_norms({"w": features}),
            **d.value_overestimation(features[:, 0], features[:, 1]),
            "explained": d.explained_variance(features[:, 0], features[:, 1]),
            **d.policy_entropy(features[:, 2]),
            **d.gradient_conflict(features),
        }

    together = jax.jit(jax.vmap(everything))(x)
    alone = [everything(part) for part in x]
    for name, value in together.items():
        assert value.dtype == jnp.float32, name
        np.testing.assert_allclose(value, np.stack([one[name] for one in alone]), rtol=2e-5, atol=1e-6, err_msg=name)
