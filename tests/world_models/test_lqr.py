"""Gains against numbers worked by hand and an independent float64 reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import solve_discrete_are

from jaxrl.errors import UsageError
from jaxrl.world_models import lqr

ONE = jnp.ones((1, 1))


def problem(seed, size=5, controls=2, radius=1.1):
    """A random problem with an unstable mode, in float32."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(size, size))
    a *= radius / np.abs(np.linalg.eigvals(a)).max()
    half = rng.normal(size=(size, size))
    parts = a, rng.normal(size=(size, controls)), half @ half.T / size, np.diag(rng.uniform(0.1, 1.0, controls))
    return [jnp.asarray(x, jnp.float32) for x in parts]


def test_integrator_by_hand():
    """x' = x + u with Q = R = 1: backwards from P = 1, P = 1 + P / (1 + P) = 3/2, 8/5; K = P / (1 + P); at last the golden ratio."""
    gains = lqr.finite_horizon(ONE, ONE, ONE, ONE, 2)
    np.testing.assert_allclose(gains.cost[:, 0, 0], [1.6, 1.5, 1.0], rtol=1e-6)
    np.testing.assert_allclose(gains.feedback[:, 0, 0], [0.6, 0.5], rtol=1e-6)
    golden = (1 + np.sqrt(5)) / 2
    regulator = lqr.infinite_horizon(ONE, ONE, ONE, ONE)
    np.testing.assert_allclose(regulator.cost[0, 0], golden, rtol=1e-6)
    np.testing.assert_allclose(regulator.feedback[0, 0], golden / (1 + golden), rtol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_stationary_gain_equals_scipy(seed):
    a, b, q, r = problem(seed)
    expected = solve_discrete_are(*(np.asarray(x, np.float64) for x in (a, b, q, r)))
    found = jax.jit(lambda *args: lqr.infinite_horizon(*args))(a, b, q, r)
    np.testing.assert_allclose(found.cost, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
    closed = np.asarray(a - b @ found.feedback, np.float64)
    assert np.abs(np.linalg.eigvals(closed)).max() < 1
    with jax.enable_x64(True):
        exact = lqr.infinite_horizon(*(jnp.asarray(np.asarray(x, np.float64)) for x in (a, b, q, r)))
    np.testing.assert_allclose(exact.cost, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


def test_finite_horizon_equals_a_quadratic_programme():
    """The first action over 4 steps is that of the whole problem solved at once."""
    a, b, q, r = (np.asarray(x, np.float64) for x in problem(7, 3, 1))
    gains = lqr.finite_horizon(*problem(7, 3, 1), 4)
    start = np.array([1.0, -0.5, 0.3])
    gamma = np.zeros((4, 3, 4))
    for seen in range(4):
        for acted in range(seen + 1):
            gamma[seen, :, acted] = (np.linalg.matrix_power(a, seen - acted) @ b)[:, 0]
    free = np.stack([np.linalg.matrix_power(a, t + 1) @ start for t in range(4)])
    hessian = np.einsum("tis,ij,tjp->sp", gamma, q, gamma) + r[0, 0] * np.eye(4)
    plan = -np.linalg.solve(hessian, np.einsum("tis,ij,tj->s", gamma, q, free))
    np.testing.assert_allclose(-(gains.feedback[0] @ start)[0], plan[0], rtol=1e-4)


def test_drift_is_met_by_a_constant_action():
    """x' = x / 2 + u + 1, Q = 1: with R -> 0 the best is u = -x / 2 - 1, and with R = 1 the average cost is least."""
    half = 0.5 * ONE
    nearly = lqr.infinite_horizon(half, ONE, ONE, 1e-4 * ONE, jnp.ones(1))
    np.testing.assert_allclose(nearly.feedback[0, 0], 0.5, atol=1e-3)
    np.testing.assert_allclose(nearly.feedforward[0], 1.0, atol=1e-3)
    # At rest x = (1 + u) / (1 - 1/2) = 2 + 2 u, and x^2 + u^2 is least at u = -4/5, x = 2/5.
    found = lqr.infinite_horizon(half, ONE, ONE, ONE, jnp.ones(1))
    x = (1 - found.feedforward[0]) / (0.5 + found.feedback[0, 0])
    np.testing.assert_allclose(x, 0.4, rtol=1e-5)


def test_batches_and_stabilises_an_unstable_pair():
    parts = [jnp.stack(x) for x in zip(problem(1), problem(2), strict=True)]
    together = jax.vmap(lambda *args: lqr.infinite_horizon(*args).feedback)(*parts)
    alone = lqr.infinite_horizon(*problem(2)).feedback
    np.testing.assert_allclose(together[1], alone, rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"horizon": 0}, "horizon of a regulator must be at least 1, got 0"),
        ({"a": jnp.ones((2, 3))}, "A is square"),
        ({"b": jnp.ones((2, 1))}, "B has shape"),
        ({"q": jnp.eye(2)}, "Q has shape"),
        ({"q": jnp.array([[1.0, 1.0, 0], [0, 1, 0], [0, 0, 1]])}, "Q is not symmetric"),
        ({"q": -jnp.eye(3)}, "negative eigenvalue"),
        ({"q": jnp.full((3, 3), jnp.nan)}, "Q holds nan"),
        ({"a": jnp.eye(3) * jnp.nan}, "A holds nan"),
        ({"b": jnp.full((3, 1), jnp.inf)}, "B holds inf"),
        ({"r": jnp.zeros((1, 1))}, "R is not positive definite"),
        ({"r": -jnp.ones((1, 1))}, "R is not positive definite"),
        ({"final": jnp.eye(2)}, "final cost has shape"),
    ],
)
def test_refusals(change, words):
    given = {"a": jnp.eye(3), "b": jnp.ones((3, 1)), "q": jnp.eye(3), "r": jnp.ones((1, 1)), "horizon": 3} | change
    with pytest.raises(UsageError, match=words):
        lqr.finite_horizon(**given)


def test_what_no_control_reaches_has_no_stationary_regulator():
    """A mode that doubles a step beside the one that is controlled."""
    a, b = jnp.diag(jnp.array([0.5, 2.0])), jnp.array([[1.0], [0.0]])
    with pytest.raises(UsageError, match="B cannot reach"):
        lqr.infinite_horizon(a, b, jnp.eye(2), jnp.eye(1))
    assert jnp.isfinite(lqr.finite_horizon(a, b, jnp.eye(2), jnp.eye(1), 5).feedback).all()


def test_a_drift_of_the_wrong_size_is_refused():
    with pytest.raises(UsageError, match="drift has shape"):
        lqr.infinite_horizon(ONE, ONE, ONE, ONE, jnp.ones(2))
    with pytest.raises(UsageError, match="drift holds nan"):
        lqr.infinite_horizon(ONE, ONE, ONE, ONE, jnp.full(1, jnp.nan))


def test_a_constant_feature_takes_nothing_from_the_gain():
    """An eigenvalue of 1 that no control reaches costs without limit; the gain is that of the rest."""
    a, b = jnp.array([[0.9, 0.3], [0.0, 1.0]]), jnp.array([[1.0], [0.0]])
    found = lqr.infinite_horizon(a, b, jnp.eye(2), jnp.eye(1))
    alone = lqr.infinite_horizon(a[:1, :1], b[:1], ONE, ONE)
    np.testing.assert_allclose(found.feedback[0, 0], alone.feedback[0, 0], rtol=1e-4)
