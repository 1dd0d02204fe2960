import jax
import jax.numpy as jnp
import numpy as np
import pytest
from env_helpers import roll, uniform

import environments
from environments import toys, vectorise
from jaxrl.errors import UsageError
from jaxrl.spaces import Box


def always(number):
    return lambda env, key: jnp.full((env.num_envs,), number, jnp.int32)


def test_one_state_is_worth_what_its_ending_says():
    # v = 1 + .9 v = 10; v = 1 + .9 v 4/5 = 1/.28; one step that terminates is worth its reward.
    assert toys.one_state_value(0.9, 5, "truncated") == pytest.approx(10.0)
    assert toys.one_state_value(0.9, 5, "terminated") == pytest.approx(1 / 0.28)
    assert toys.one_state_value(0.9, 1, "terminated", reward=3.0) == 3.0


@pytest.mark.parametrize("ending", ["terminated", "truncated"])
def test_temporal_differences_on_one_state_settle_on_its_value(ending):
    env = vectorise(environments.make("toy:one_state", n=4, ending=ending, reward=2.0), 1)
    _, steps, _ = roll(env, 8)
    ends = np.array([0, 0, 0, 1, 0, 0, 0, 1])
    np.testing.assert_array_equal(getattr(steps, ending)[:, 0], ends)
    other = {"terminated": "truncated", "truncated": "terminated"}[ending]
    np.testing.assert_array_equal(getattr(steps, other)[:, 0], 0 * ends)
    value, discounts = 0.0, 0.9 * (1 - np.asarray(steps.terminated[:, 0], np.float64))
    for _ in range(400):
        value = np.mean(np.asarray(steps.reward[:, 0]) + discounts * value)
    assert value == pytest.approx(toys.one_state_value(0.9, 4, ending, reward=2.0), rel=1e-6)


def test_a_chain_pays_at_its_end():
    np.testing.assert_allclose(toys.chain_optimal_values(0.5, 4), [0.25, 0.5, 1.0, 0.0])
    _, steps, _ = roll(vectorise(environments.make("toy:chain", n=4), 1), 4, policy=always(1))
    np.testing.assert_array_equal(steps.reward[:, 0], [0, 0, 1, 0])
    np.testing.assert_array_equal(steps.terminated[:, 0], [0, 0, 1, 0])
    np.testing.assert_array_equal(np.argmax(steps.next_observation[:, 0], axis=-1), [1, 2, 3, 1])
    np.testing.assert_array_equal(np.argmax(steps.observation[:, 0], axis=-1), [1, 2, 0, 1])
    _, steps, _ = roll(vectorise(environments.make("toy:chain", n=4, max_steps=3), 1), 3, policy=always(0))
    np.testing.assert_array_equal(np.argmax(steps.next_observation[:, 0], axis=-1), [0, 0, 0])
    np.testing.assert_array_equal(steps.truncated[:, 0], [0, 0, 1])
    _, steps, _ = roll(vectorise(environments.make("toy:chain", n=4, max_steps=3), 1), 3, policy=always(1))
    assert steps.truncated[2, 0] and steps.terminated[2, 0]


def test_endless_never_ends():
    env = environments.make("toy:endless")
    assert env.max_steps is None
    _, steps, _ = roll(vectorise(env, 1), 60, policy=always(1))
    assert not np.any(steps.terminated) and not np.any(steps.truncated)
    np.testing.assert_array_equal(steps.reward[:4, 0], [0, 1, 0, 1])
    _, steps, _ = roll(vectorise(environments.make("toy:endless", max_steps=3), 1), 3)
    np.testing.assert_array_equal(steps.truncated[:, 0], [0, 0, 1])


def test_gridworld_values_are_discounted_distances():
    # The only way round the wall is down, down, right, right: the reward comes with the fourth step.
    layout = ("S#.", ".#.", "..G")
    values = toys.optimal_values(0.5, layout).reshape(3, 3)
    np.testing.assert_allclose(values, [[0.125, 0, 0.5], [0.25, 0, 1], [0.5, 1, 0]])
    # On the grid that is made by default the shortest way takes 8 steps.
    np.testing.assert_allclose(toys.optimal_values(0.9)[0], 0.9**7)


def test_a_greedy_walk_through_the_gridworld_earns_its_value():
    discount, (table, start, goal) = 0.9, toys._grid(toys.GRID)
    values = toys.optimal_values(discount)
    best = np.where(table == goal, 1.0, discount * values[table]).argmax(axis=1)

    env = environments.make("toy:gridworld")
    state, step = env.reset(jax.random.key(0))
    take, value, weight, cell = jax.jit(env.step), 0.0, 1.0, start
    for t in range(20):
        state, step = take(state, jnp.int32(best[cell]), jax.random.key(t))
        value, weight, cell = value + weight * float(step.reward), weight * discount, int(step.observation.argmax())
        if step.terminated:
            break
    assert cell == goal and value == pytest.approx(values[start])


def test_walls_and_edges_stop_a_walk():
    env = vectorise(environments.make("toy:gridworld", layout=("S#", ".G")), 1)
    for action, lands in ((0, 0), (1, 0), (2, 2), (3, 0)):
        _, steps, _ = roll(env, 1, policy=always(action))
        assert steps.next_observation[0, 0].argmax() == lands


def test_target_rewards_its_goal():
    env = environments.make("toy:target", goal=2.0)
    state, _ = env.reset(jax.random.key(0))
    for action, reward in ((2.0, 0.0), (0.0, -4.0), (5.0, -9.0)):
        _, step = env.step(state, jnp.array([action]), jax.random.key(1))
        assert step.reward == reward and step.terminated


def test_the_best_return_of_a_point_mass_is_reached_and_not_passed():
    # A gap of (.25, .1) closes as (.15, 0), (.05, 0), (0, 0): the distances add up to .2.
    assert toys.point_mass_optimal_return([0, 0], [0.25, -0.1], 3) == pytest.approx(-0.2)
    env = environments.make("toy:point_mass")
    assert env.action_space == Box(low=[-2.0, 0.0], high=[2.0, 10.0])

    def run(key, greedy):
        reset_key, scan_key = jax.random.split(key)
        state, first = env.reset(reset_key)

        def body(carry, key):
            state, seen = carry
            unit = jnp.clip((seen[2:] - seen[:2]) / 0.1, -1, 1)
            best = jnp.array([0.0, 5.0]) + unit * jnp.array([2.0, 5.0])
            state, step = env.step(state, jnp.where(greedy, best, env.action_space.sample(key)), key)
            return (state, step.observation), step

        return first.observation, jax.lax.scan(body, (state, first.observation), jax.random.split(scan_key, 25))[1]

    first, steps = jax.jit(run)(jax.random.key(3), True)
    best = toys.point_mass_optimal_return(first[:2], first[2:], 25)
    assert float(steps.reward.sum()) == pytest.approx(best, abs=1e-4)
    assert steps.truncated[-1] and not np.any(steps.truncated[:-1]) and not np.any(steps.terminated)
    _, steps = jax.jit(run)(jax.random.key(3), False)
    assert float(steps.reward.sum()) < best - 1.0


def test_random_start_moves_by_its_action():
    env = vectorise(environments.make("toy:random_start"), 2)
    first, steps, _ = roll(env, 1, policy=lambda env, key: jnp.full((2, 1), 0.5))
    np.testing.assert_allclose(steps.observation[0, :, 0] - first.observation[:, 0], [0.1, 0.1], atol=1e-6)
    gap = np.abs(steps.observation[0, :, 0] - steps.observation[0, :, 1])
    np.testing.assert_allclose(steps.reward[0], -gap, rtol=1e-6)
    assert uniform(env, jax.random.key(0)).shape == (2, 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: toys.one_state(ending="done"), "ending must be 'terminated' or 'truncated', got 'done'"),
        (lambda: toys.one_state(n=0), "n must be at least 1"),
        (lambda: toys.chain(n=1), "at least 2 states, got n=1"),
        (lambda: toys.gridworld(("S.", "G")), "rows of one length"),
        (lambda: toys.gridworld(("S.", "..")), "one S and one G"),
        (lambda: toys.make("chian"), "did you mean 'chain'"),
        (lambda: toys.make("chain", length=3), "toy:chain takes no 'length'; it takes n, max_steps"),
    ],
)
def test_toys_that_cannot_be_are_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()
