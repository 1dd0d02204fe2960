import jax
import jax.numpy as jnp
import numpy as np
import pytest

import environments
from environments.lock import lock_depth
from jaxrl.errors import UsageError


def play(env, actions):
    state, _ = env.reset(jax.random.key(0))
    steps = []
    for i, action in enumerate(actions):
        state, step = jax.jit(env.step)(state, jnp.int32(action), jax.random.key(i + 1))
        steps.append(step)
    return steps


def combination(levels, actions, features):
    """By trying: the action after which the episode goes on."""
    env = environments.make("toy:lock", levels=levels, actions=actions, features=features)
    found = []
    for _ in range(levels):
        for action in range(actions):
            step = play(env, [*found, action])[-1]
            if step.reward > 0:
                found.append(action)
                break
    return found


def test_right_actions_reward_and_open_the_lock():
    right = combination(3, 2, 4)
    steps = play(environments.make("toy:lock", levels=3, actions=2, features=4), right)
    np.testing.assert_allclose([s.reward for s in steps], [1 / 3, 1 / 3, 4 / 3], rtol=1e-6)
    assert [bool(s.terminated) for s in steps] == [False, False, True]


def test_a_wrong_action_ends_the_episode_without_reward():
    right = combination(3, 2, 4)
    step = play(environments.make("toy:lock", levels=3, actions=2, features=4), [right[0], 1 - right[1]])[-1]
    assert float(step.reward) == 0.0 and bool(step.terminated) and not bool(step.truncated)


def test_observations_are_a_code_with_noise_of_the_deviation():
    env = environments.make("toy:lock", noise=0.3)
    keys = jax.random.split(jax.random.key(3), 4000)
    seen = jax.vmap(lambda key: env.reset(key)[1].observation)(keys)
    assert seen.shape == (4000, 16)
    np.testing.assert_allclose(jnp.std(seen, 0), 0.3, rtol=0.06)
    again = environments.make("toy:lock", noise=0.0).reset(jax.random.key(9))[1].observation
    np.testing.assert_allclose(jnp.mean(seen, 0), again, atol=0.03)  # the same lock in every run


def test_depth_of_a_return():
    np.testing.assert_allclose(lock_depth(np.array([0.0, 0.5, 23 / 24, 2.0])), [0, 12, 23, 24])


@pytest.mark.parametrize("wrong", [{"levels": 0}, {"actions": 1}, {"noise": -0.1}, {"features": 1.5}])
def test_refuses(wrong):
    with pytest.raises(UsageError):
        environments.make("toy:lock", **wrong)
