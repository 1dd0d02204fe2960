"""Numbers worked out by hand for the ends of episodes, then agreement with quadratic float64 loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import returns
from jaxrl.errors import UsageError
from jaxrl.types import Experience

GAMMA, LAM = 0.9, 0.8
REWARD = jnp.ones(3)
VALUE = jnp.array([10.0, 20.0, 30.0])
NEXT_VALUE = jnp.array([20.0, 50.0, 40.0])
NEVER = jnp.zeros(3, bool)
AT_SECOND = jnp.array([False, True, False])


def window(terminated=NEVER, truncated=NEVER, reward=REWARD) -> Experience:
    """Three steps whose observation is 10 t and whose true next observation is 10 t + 7."""
    time = jnp.arange(3, dtype=jnp.uint8)
    return Experience({"state": 10 * time}, time, reward, terminated, truncated, {"state": 10 * time + 7})


@pytest.mark.parametrize(
    ("terminated", "truncated", "reward", "discount", "next_state"),
    [
        (NEVER, NEVER, 2.71, 0.729, 27),
        (AT_SECOND, NEVER, 1.9, 0.0, 17),
        (NEVER, AT_SECOND, 1.9, 0.81, 17),
        (AT_SECOND, AT_SECOND, 1.9, 0.0, 17),
        # The flag on the last step of the window, and a flag that belongs to a later episode than the first.
        (NEVER, jnp.array([False, False, True]), 2.71, 0.729, 27),
        (jnp.array([False, False, True]), NEVER, 2.71, 0.0, 27),
        (jnp.array([False, False, True]), AT_SECOND, 1.9, 0.81, 17),
        (jnp.array([True, True, True]), NEVER, 1.0, 0.0, 7),
    ],
)
def test_n_step_transition_by_hand(terminated, truncated, reward, discount, next_state):
    result = returns.n_step_transition(window(terminated, truncated), GAMMA, weight=0.5)
    np.testing.assert_allclose(result.reward, reward, rtol=1e-6)
    np.testing.assert_allclose(result.discount, discount, rtol=1e-6)
    assert result.next_observation["state"] == next_state
    assert result.observation["state"] == 0 and result.action == 0 and result.weight == 0.5
    assert result.next_observation["state"].dtype == jnp.uint8
    assert {x.dtype for x in (result.reward, result.discount, result.weight)} == {jnp.dtype("float32")}


def test_rows_behind_the_first_flag_do_not_matter():
    reward = jnp.array([1.0, 1.0, jnp.nan])
    result = returns.n_step_transition(window(truncated=AT_SECOND, reward=reward), GAMMA)
    np.testing.assert_allclose(result.reward, 1.9, rtol=1e-6)


def test_one_step_of_n_step_is_transition_to_the_bit():
    steps = window(terminated=jnp.array([False, True, False]), truncated=jnp.array([True, True, False]))
    by_window = jax.vmap(returns.n_step_transition, (0, None))(jax.tree.map(lambda x: x[:, None], steps), 0.937)
    one_step = returns.transition(steps, 0.937)
    jax.tree.map(np.testing.assert_array_equal, by_window, one_step)
    np.testing.assert_array_equal(one_step.discount, np.float32([0.937, 0.0, 0.937]))
    assert jax.tree.map(lambda x: x.dtype, by_window) == jax.tree.map(lambda x: x.dtype, one_step)


def test_transition_keeps_leading_axes_and_weights():
    steps = jax.tree.map(lambda x: jnp.stack([x, x]), window(terminated=AT_SECOND))
    result = returns.transition(steps, GAMMA)
    np.testing.assert_array_equal(result.weight, np.ones((2, 3), np.float32))
    np.testing.assert_allclose(result.discount, [[0.9, 0.0, 0.9]] * 2, rtol=1e-6)
    assert returns.transition(steps, GAMMA, weight=jnp.full((2, 3), 2.0)).weight.sum() == 12.0


def test_n_step_agrees_with_a_loop_and_sweeps_gamma():
    rng = np.random.default_rng(0)
    reward, flags = rng.normal(size=(64, 5)), rng.random((2, 64, 5)) < 0.2
    gammas = rng.uniform(0, 1, 64)
    steps = Experience(jnp.zeros((64, 5)), jnp.zeros((64, 5)), *map(jnp.asarray, (reward, *flags)), jnp.zeros((64, 5)))
    steps = steps._replace(next_observation=jnp.broadcast_to(jnp.arange(5), (64, 5)))
    result = jax.jit(jax.vmap(returns.n_step_transition))(steps, jnp.float32(gammas))
    for row in range(64):
        total, discount, last = 0.0, 1.0, 0
        for k in range(5):
            total, last = total + gammas[row] ** k * reward[row, k], k
            discount = 0.0 if flags[0, row, k] else gammas[row] ** (k + 1)
            if flags[:, row, k].any():
                break
        np.testing.assert_allclose(result.reward[row], total, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(result.discount[row], discount, rtol=1e-5)
        assert result.next_observation[row] == last


def test_advantages_by_hand():
    advantages = returns.generalized_advantages(REWARD, VALUE, NEXT_VALUE, NEVER, AT_SECOND, GAMMA, LAM)
    np.testing.assert_allclose(advantages, [27.72, 26.0, 7.0], rtol=1e-6)
    advantages = returns.generalized_advantages(REWARD, VALUE, NEXT_VALUE, AT_SECOND, NEVER, GAMMA, LAM)
    np.testing.assert_allclose(advantages, [-4.68, -19.0, 7.0], rtol=1e-6)
    both = returns.generalized_advantages(REWARD, VALUE, NEXT_VALUE, AT_SECOND, AT_SECOND, GAMMA, LAM)
    np.testing.assert_array_equal(both, advantages)


def test_returns_by_hand():
    # Truncated at the second: 1 + .9*50 = 46 there, 1 + .9*40 = 37 at the last, 1 + .9*(.2*20 + .8*46) = 37.72 first.
    result = returns.lambda_returns(REWARD, NEXT_VALUE, NEVER, AT_SECOND, GAMMA, LAM)
    np.testing.assert_allclose(result, [37.72, 46.0, 37.0], rtol=1e-6)
    result = returns.discounted_returns(REWARD, NEXT_VALUE, NEVER, AT_SECOND, GAMMA)
    np.testing.assert_allclose(result, [42.4, 46.0, 37.0], rtol=1e-6)
    result = returns.discounted_returns(REWARD, NEXT_VALUE, AT_SECOND, NEVER, GAMMA)
    np.testing.assert_allclose(result, [1.9, 1.0, 37.0], rtol=1e-6)


def draw(seed: int, length: int = 12):
    """Random rewards, values and flags; inside an episode V(next_t) is V(s_{t+1})."""
    rng = np.random.default_rng(seed)
    reward, value, elsewhere = rng.normal(size=(3, length)).astype(np.float32)
    terminated, truncated = rng.random((2, length)) < 0.2
    going_on = ~(terminated | truncated)
    next_value = np.where(going_on, np.append(value[1:], elsewhere[-1]), elsewhere)
    return reward, value, next_value, terminated, truncated


def quadratic_advantages(reward, value, next_value, terminated, truncated):
    result = np.zeros(len(reward))
    for t in range(len(reward)):
        for k in range(t, len(reward)):
            bootstrap = 0.0 if terminated[k] else float(next_value[k])
            result[t] += (GAMMA * LAM) ** (k - t) * (float(reward[k]) + GAMMA * bootstrap - float(value[k]))
            if terminated[k] or truncated[k]:
                break
    return result


def test_advantages_and_returns_agree_with_quadratic_loops():
    draws = [draw(seed) for seed in range(200)]
    columns = [jnp.asarray(np.stack(column, axis=1)) for column in zip(*draws, strict=True)]  # [T, 200]
    expected = np.stack([quadratic_advantages(*one) for one in draws], axis=1)
    advantages = jax.jit(returns.generalized_advantages)(*columns, GAMMA, LAM)
    np.testing.assert_allclose(advantages, expected, rtol=1e-5, atol=1e-6)
    reward, value, next_value, *flags = columns
    lambda_returns = returns.lambda_returns(reward, next_value, *flags, GAMMA, LAM)
    np.testing.assert_allclose(lambda_returns, expected + value, rtol=1e-5, atol=2e-6)
    one_column = returns.generalized_advantages(*(x[:, 7] for x in columns), GAMMA, LAM)
    np.testing.assert_allclose(one_column, advantages[:, 7], rtol=1e-6)


def test_gamma_and_lam_may_differ_by_column():
    columns = [jnp.asarray(np.stack([x, x], axis=1)) for x in draw(3)]
    both = returns.generalized_advantages(*columns, jnp.array([0.9, 0.5]), jnp.array([0.8, 0.0]))
    for i, (gamma, lam) in enumerate([(0.9, 0.8), (0.5, 0.0)]):
        alone = returns.generalized_advantages(*map(jnp.asarray, draw(3)), gamma, lam)
        np.testing.assert_allclose(both[:, i], alone, rtol=1e-6)


def test_value_of_a_terminal_state_is_never_used():
    next_value = jnp.array([20.0, 30.0, jnp.nan])
    ends = jnp.array([False, False, True])
    assert jnp.isfinite(returns.generalized_advantages(REWARD, VALUE, next_value, ends, NEVER, GAMMA, LAM)).all()
    assert jnp.isfinite(returns.lambda_returns(REWARD, next_value, ends, NEVER, GAMMA, LAM)).all()


@pytest.mark.parametrize("function", [returns.generalized_advantages, returns.lambda_returns])
def test_program_does_not_grow_with_time(function):
    def operations(length):
        row, flags = jnp.zeros(length), jnp.zeros(length, bool)
        values = (row, row) if function is returns.generalized_advantages else (row,)
        program = jax.make_jaxpr(function)(row, *values, flags, flags, 0.9, 0.8)
        return [equation.primitive.name for equation in program.eqns]

    assert operations(1000) == operations(3)
    assert operations(3).count("scan") == 1


@pytest.mark.parametrize("value", [jnp.zeros((3, 1)), jnp.zeros(2), jnp.zeros(())])
def test_shapes_that_would_broadcast_are_refused(value):
    with pytest.raises(UsageError, match=r"reward \[3\].*next_value"):
        returns.generalized_advantages(REWARD, VALUE, value, NEVER, NEVER, GAMMA, LAM)
    with pytest.raises(UsageError, match="leading time axis"):
        returns.lambda_returns(*(jnp.zeros(()),) * 4, GAMMA, LAM)
