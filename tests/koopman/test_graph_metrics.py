import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.errors import UsageError
from jaxrl.koopman.graph import mesh, metrics

AREA = np.array([0.5, 0.25, 0.25])


def test_errors_by_hand():
    forecast, truth = jnp.array([1.0, 2.0, 3.0]), jnp.array([0.0, 2.0, 5.0])
    assert float(metrics.rmse(forecast, truth, AREA)) == pytest.approx(np.sqrt(0.5 * 1 + 0.25 * 4))
    # Anomalies from 1: forecast 0 1 2 (mean .75), truth -1 1 4 (mean .75); covariance and variances by area.
    a, b = np.array([-0.75, 0.25, 1.25]), np.array([-1.75, 0.25, 3.25])
    acc = (AREA * a * b).sum() / np.sqrt((AREA * a * a).sum() * (AREA * b * b).sum())
    climate = jnp.ones(3)
    assert float(metrics.anomaly_correlation(forecast, truth, climate, AREA)) == pytest.approx(acc, rel=1e-5)
    ratio = np.sqrt((AREA * a * a).sum() / (AREA * b * b).sum())
    assert float(metrics.activity(forecast, truth, climate, AREA)) == pytest.approx(ratio, rel=1e-5)
    assert float(metrics.anomaly_correlation(climate, truth, climate, AREA)) == 0.0


def test_activity_is_of_anomalies():
    # A forecast of the climate has activity 0 however much the climate varies over space.
    climate = jnp.array([5.0, -3.0, 0.0])
    assert float(metrics.activity(climate, climate + jnp.array([1.0, 0, -1]), climate, AREA)) == 0.0


def test_the_fair_crps_equals_a_loop_over_pairs():
    rng = np.random.default_rng(0)
    members, truth = rng.normal(size=(5, 2, 3)), rng.normal(size=(2, 3))
    pairs = sum(np.abs(members[i] - members[j]) for i in range(5) for j in range(5)) / (2 * 5 * 4)
    expected = np.abs(members - truth).mean(0) - pairs
    np.testing.assert_allclose(metrics.crps(jnp.asarray(members), jnp.asarray(truth)), expected, atol=1e-5)


def test_fair_scores_do_not_depend_on_how_many_members_there_are():
    rng = np.random.default_rng(1)
    truth = rng.normal(size=(4000, 1))
    for score in (metrics.crps, lambda m, y: metrics.energy_score(m, y, np.ones(1))):
        few, many = (float(np.mean(score(jnp.asarray(rng.normal(size=(m, 4000, 1))), truth))) for m in (2, 32))
        assert few == pytest.approx(many, abs=0.04)
    # A standard normal forecast of a standard normal scores 1/√π.
    assert many == pytest.approx(1 / np.sqrt(np.pi), abs=0.02)


def test_the_energy_score_equals_a_loop_over_pairs():
    rng = np.random.default_rng(2)
    members, truth = rng.normal(size=(4, 2, 3)), rng.normal(size=(2, 3))
    norm = lambda x: np.sqrt((AREA * x**2).sum(-1))
    pairs = sum(norm(members[i] - members[j]) for i in range(4) for j in range(4)) / (2 * 4 * 3)
    expected = norm(members - truth).mean(0) - pairs
    np.testing.assert_allclose(
        metrics.energy_score(jnp.asarray(members), jnp.asarray(truth), AREA), expected, atol=1e-5
    )


@pytest.mark.parametrize("count", [2, 10])
def test_spread_equals_skill_for_members_like_the_truth(count):
    rng = np.random.default_rng(3)
    drawn = rng.normal(size=(count + 1, 4000, 3))
    ratio = float(metrics.spread_skill_ratio(jnp.asarray(drawn[1:]), jnp.asarray(drawn[0]), AREA))
    assert ratio == pytest.approx(1.0, abs=0.03)  # without √((M + 1) / M) it is 0.82 for 2 members


def test_fourier_power_by_hand_and_by_parseval():
    x = 2 * np.pi * np.arange(8) / 8
    power = metrics.fourier_power(jnp.asarray(3.0 + 2 * np.cos(2 * x) + np.cos(4 * x)))
    np.testing.assert_allclose(power, [9, 0, 2, 0, 1], atol=1e-5)
    field = np.random.default_rng(4).normal(size=(2, 7))
    np.testing.assert_allclose(metrics.fourier_power(jnp.asarray(field)).sum(-1), (field**2).mean(-1), rtol=1e-5)


def test_degree_power_of_harmonics_on_a_mesh():
    graph = mesh.icosahedral_mesh(2)
    x, y, z = graph.coordinates.T
    basis = np.stack([np.ones_like(x), *(np.sqrt(3) * c for c in (x, y, z)), np.sqrt(5) * (3 * z**2 - 1) / 2], 1)
    field = jnp.asarray(2 * basis[:, 0] + 1.5 * basis[:, 1] - basis[:, 3] + 0.5 * basis[:, 4])
    power = metrics.degree_power(field, basis, np.array([0, 1, 1, 1, 2]), graph.weights)
    np.testing.assert_allclose(power, [4, 2.25 + 1, 0.25], atol=1e-4)


def test_the_ratio_of_high_wavenumbers():
    truth, forecast = jnp.array([[4.0, 2.0, 2.0, 8.0]]), jnp.array([[4.0, 1.0, 1.0, 0.0]])
    assert float(metrics.high_ratio(forecast, truth, 1)) == pytest.approx(2 / 12)
    assert float(metrics.high_ratio(forecast, truth, 1, 2)) == pytest.approx(0.5)


def test_dirichlet_energy_is_0_for_constants_and_1_for_noise():
    graph = mesh.icosahedral_mesh(3)
    assert float(metrics.dirichlet_energy(graph, jnp.ones((graph.nodes, 4)))) == 0.0
    noise = jnp.asarray(np.random.default_rng(5).normal(size=(graph.nodes, 64)))
    assert float(metrics.dirichlet_energy(graph, noise)) == pytest.approx(1.0, abs=0.03)
    pair = mesh.ring_mesh(4, (1,))
    # 1, -1, 1, -1: each edge has |2|² = 4, half of it is 2, over a mean square of 1.
    assert float(metrics.dirichlet_energy(pair, jnp.array([[1.0], [-1], [1], [-1]]))) == 2.0


def test_what_cannot_work_is_refused():
    with pytest.raises(UsageError, match=r"one weight a point, \(4,\), got shape \(1,\)"):
        metrics.rmse(jnp.ones(4), jnp.zeros(4), jnp.ones(1))
    with pytest.raises(UsageError, match="at least 2 members"):
        metrics.crps(jnp.ones((1, 3)), jnp.ones(3))
    with pytest.raises(UsageError, match="no range"):
        metrics.high_ratio(jnp.ones((1, 4)), jnp.ones((1, 4)), 4)
