"""Plans against numbers worked by hand, a bounded solver and a grid."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from jaxrl.errors import UsageError
from jaxrl.world_models import baselines, koopman_model, lqr, planning
from tests.world_models.test_lqr import problem

ONE = jnp.ones((1, 1))
condense = jax.jit(planning.condense, static_argnames="horizon")


def test_condensed_problem_by_hand():
    """x' = x / 2 + u, Q = 2, R = 1, two steps: x_1 = x/2 + u_0, x_2 = x/4 + u_0/2 + u_1."""
    found = condense(0.5 * ONE, ONE, 2 * ONE, ONE, 2)
    np.testing.assert_allclose(found.hessian, [[3.5, 1.0], [1.0, 3.0]], rtol=1e-6)
    np.testing.assert_allclose(found.from_latent, [[1.25], [0.5]], rtol=1e-6)
    np.testing.assert_allclose(found.from_goal, [[3.0], [2.0]], rtol=1e-6)
    assert (5 + np.sqrt(17) / 2) / 2 <= found.largest < 1.05 * np.linalg.eigvalsh(found.hessian)[-1]
    heavier = condense(0.5 * ONE, ONE, 2 * ONE, ONE, 2, final=4 * ONE)
    np.testing.assert_allclose(heavier.hessian, [[4.0, 2.0], [2.0, 5.0]], rtol=1e-6)


def test_unbounded_plan_is_the_regulators():
    """With the stationary cost at its end a short horizon acts as an infinite one."""
    a, b, q, r = problem(3)
    regulator = lqr.infinite_horizon(a, b, q, r)
    condensed = condense(a, b, q, r, 6, regulator.cost)
    latent = jnp.asarray([1.0, -1.0, 0.5, 0.2, -0.3])
    plan = jax.jit(partial(planning.mpc, low=-1e6, high=1e6, iterations=3000))(
        condensed, latent, jnp.zeros(5), jnp.zeros((6, 2))
    )
    np.testing.assert_allclose(plan[0], -regulator.feedback @ latent, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("seed", range(3))
def test_bounded_plan_equals_a_bounded_solver(seed):
    a, b, q, r = problem(seed, radius=0.95)
    condensed = condense(a, b, q, r, 5)
    rng = np.random.default_rng(seed)
    latent, goal = (jnp.asarray(2 * rng.normal(size=5), jnp.float32) for _ in range(2))
    h = np.asarray(condensed.hessian, np.float64)
    f = np.asarray(condensed.from_latent @ latent - condensed.from_goal @ goal, np.float64)
    objective = lambda x: 0.5 * x @ h @ x + f @ x
    exact = minimize(objective, np.zeros(10), jac=lambda x: h @ x + f, bounds=[(-0.25, 0.5)] * 10, method="L-BFGS-B",
                     options={"ftol": 1e-15, "gtol": 1e-10})  # fmt: skip
    assert np.sum(np.isclose(exact.x, -0.25) | np.isclose(exact.x, 0.5)) >= 2  # the bounds matter here
    solve = jax.jit(partial(planning.mpc, low=-0.25, high=0.5), static_argnames="iterations")
    long = solve(condensed, latent, goal, jnp.zeros((5, 2)), iterations=500)
    np.testing.assert_allclose(long.reshape(-1), exact.x, atol=2e-3)
    assert float(long.min()) >= -0.25 and float(long.max()) <= 0.5
    # Twenty iterations, and twenty more from where they ended.
    once = solve(condensed, latent, goal, jnp.zeros((5, 2)), iterations=20)
    twice = solve(condensed, latent, goal, once, iterations=20)
    gap = [objective(np.asarray(x, np.float64).reshape(-1)) - exact.fun for x in (jnp.zeros((5, 2)), once, twice)]
    assert gap[1] < 0.02 * gap[0] and gap[2] < 0.005 * gap[0]


def test_plans_batch_over_problems_and_latents():
    parts = [jnp.stack(x) for x in zip(problem(1), problem(2), strict=True)]
    condensed = jax.vmap(lambda a, b, q, r: condense(a, b, q, r, 3))(*parts)
    latents = jnp.ones((2, 4, 5))
    solve = jax.jit(jax.vmap(jax.vmap(planning.mpc, (None, 0, None, 0)), (0, 0, None, 0)))
    plans = solve(condensed, latents, jnp.zeros(5), jnp.zeros((2, 4, 3, 2)))
    alone = planning.mpc(condense(*problem(2), 3), latents[1, 2], jnp.zeros(5), jnp.zeros((3, 2)))
    np.testing.assert_allclose(plans[1, 2], alone, atol=1e-4)


def test_shifted():
    np.testing.assert_array_equal(planning.shifted(jnp.array([[1.0], [2.0], [3.0]])), [[2.0], [3.0], [3.0]])


def test_cem_finds_the_top_of_a_quadratic_within_bounds():
    top = jnp.array([[0.3, -0.8], [2.0, 0.1]])  # one entry lies beyond the bound
    score = lambda plans: -jnp.sum((plans - top) ** 2, (-2, -1))
    config = planning.CEM(population=128, elites=16, iterations=12, min_std=0.01)
    found = jax.jit(partial(planning.cem, config, score))(jnp.zeros((2, 2)), jax.random.key(0))
    np.testing.assert_allclose(found, [[0.3, -0.8], [1.0, 0.1]], atol=0.03)


def test_cem_takes_nan_for_the_worst():
    score = lambda plans: jnp.where(plans[:, 0, 0] > 0, jnp.nan, -((plans[:, 0, 0] + 0.5) ** 2))
    config = planning.CEM(iterations=10, min_std=0.01)
    found = planning.cem(config, score, jnp.zeros((1, 1)), jax.random.key(1))
    np.testing.assert_allclose(found, [[-0.5]], atol=0.03)


@pytest.fixture(scope="module")
def model():
    made = koopman_model.make(koopman_model.Config(latent_size=4, hidden_sizes=(8,), rollout="scan"), 3, 1)
    return made, jax.jit(made.init)(jax.random.key(0)).params


def test_cem_and_mpc_minimise_one_cost(model):
    """On the same linear model and cost, sampling comes to where projected gradient does."""
    model, params = model
    goal = jnp.array([0.5, 0.0, -0.5])
    cost = planning.latent_cost(model, params, jnp.diag(jnp.array([1.0, 1.0, 0.1])), 0.01 * ONE, goal)
    latent = model.encode(params, jnp.array([-1.0, 0.2, 0.1]))
    condensed = condense(*planning.linear_part(model, params), cost.q, cost.r, 3)
    exact = jax.jit(partial(planning.mpc, iterations=300))(condensed, latent, cost.goal, jnp.zeros((3, 1)))
    score = partial(planning.negative_cost, model, params, cost, latent)
    config = planning.CEM(population=256, elites=16, iterations=16, min_std=0.01)
    found = jax.jit(partial(planning.cem, config, score))(jnp.zeros((3, 1)), jax.random.key(2))
    best, near, nothing = jax.jit(score)(jnp.stack([exact, found, jnp.zeros((3, 1))]))
    assert 0 <= best - near < 0.02 * (best - nothing) + 1e-4


def test_a_quadratic_cost_on_latents_is_that_on_observations(model):
    model, params = model
    q = jnp.diag(jnp.array([1.0, 2.0, 0.5]))
    cost = planning.latent_cost(model, params, q, ONE, jnp.ones(3), ridge=0.0)
    z = jax.random.normal(jax.random.key(3), (4,))
    off = model.decode(params, z) - model.decode(params, cost.goal)
    np.testing.assert_allclose((z - cost.goal) @ cost.q @ (z - cost.goal), off @ q @ off, rtol=1e-4)


def test_predicted_return_sums_rewards_and_value(model):
    model, params = model
    latent, plan = jnp.ones(4), jnp.array([[[0.5], [-0.5]]])
    after = jax.jit(model.rollout)(params, latent, plan[0])
    rewards = model.reward(params, latent, plan[0, 0]), model.reward(params, after[0], plan[0, 1])
    expected = rewards[0] + 0.9 * rewards[1] + 0.81 * model.value(params, after[1])
    found = jax.jit(partial(planning.predicted_return, model, discount=0.9))(params, latent, plan)
    np.testing.assert_allclose(found, [expected], rtol=1e-5)


def test_refusals(model):
    model, params = model
    a, b, q, r = problem(0)
    condensed = condense(a, b, q, r, 2)
    mpc = partial(planning.mpc, condensed, jnp.zeros(5), jnp.zeros(5))
    score = lambda plans: plans[:, 0, 0]
    deep = koopman_model.make(koopman_model.Config(latent_size=4, decoder_sizes=(4,)), 3, 1)
    gru = baselines.make(baselines.Config(latent_size=4), 3, 1)
    cases = [
        (lambda: planning.condense(a, b, q, r, 0), "horizon of a rollout must be at least 1"),
        (lambda: planning.condense(a, b, q, jnp.zeros((2, 2)), 3), "R is not positive definite"),
        (lambda: planning.condense(a, b[:2], q, r, 3), "B has shape"),
        (lambda: planning.condense(a, b, jnp.triu(q), r, 3), "Q is not symmetric"),
        (lambda: mpc(jnp.zeros((3, 2))), r"of \(2, 2\), got .* plan \(3, 2\)"),
        (lambda: planning.mpc(condense(a, b, q, r, 4), jnp.zeros(5), jnp.zeros(5), jnp.zeros((2, 4))), r"of \(4, 2\)"),
        (lambda: mpc(jnp.zeros((2, 2)), iterations=0), "at least 1 iteration"),
        (lambda: mpc(jnp.zeros((2, 2)), low=1.0, high=-1.0), "low <= high"),
        (lambda: planning.CEM(elites=65), "elites <= population"),
        (lambda: planning.CEM(min_std=0.0), "min_std"),
        (lambda: planning.cem(planning.CEM(), score, jnp.zeros((0, 1)), jax.random.key(0)), "at least 1"),
        (lambda: planning.cem(planning.CEM(), score, jnp.zeros((1, 1)), jax.random.PRNGKey(0)), "typed key"),
        (lambda: planning.linear_part(gru, {}), "no linear step"),
        (lambda: planning.latent_cost(deep, {}, jnp.eye(3), ONE, jnp.zeros(3)), "linear decoder"),
        (lambda: planning.latent_cost(model, params, jnp.eye(2), ONE, jnp.zeros(3)), "q is"),
    ]
    for call, words in cases:
        with pytest.raises(UsageError, match=words):
            call()
