"""The point-mass suite: its physics by hand, its reward, its success and its spread."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from env_helpers import roll

import environments
from environments import point
from jaxrl.errors import UsageError


def test_a_step_by_hand():
    """Task 1 turns by -90 + 180/7 degrees and has no lag; task 4 by 180/14 degrees and a lag of 0.07."""
    for task, angle, lag in ((1, -np.pi / 2 + np.pi / 7, 0.0), (4, np.pi / 14, 0.07)):
        env = environments.make(f"point:reach-{task}", spread=1e4, order="rising")
        state, first = env.reset(jax.random.key(task))
        p, goal = np.asarray(state.position, np.float64), np.asarray(state.goal, np.float64)
        np.testing.assert_allclose(first.observation, [*p, 0, 0, *(goal - p)], rtol=1e-6)
        v = np.zeros(2)
        for action in ([0.5, -1.0], [3.0, 0.2]):  # the 3 counts as 1
            a = np.clip(action, -1, 1)
            turned = [np.cos(angle) * a[0] - np.sin(angle) * a[1], np.sin(angle) * a[0] + np.cos(angle) * a[1]]
            v = lag * v + (1 - lag) * np.asarray(turned)
            p = np.clip(p + 0.2 * v, -1.5, 1.5)
            state, step = env.step(state, jnp.asarray(action, jnp.float32), jax.random.key(0))
        distance = np.linalg.norm(p - goal)
        np.testing.assert_allclose(step.observation, [*p, *v, *(goal - p)], rtol=1e-5, atol=1e-6)
        scale = 1e4 ** (task / 7 - 0.5)
        np.testing.assert_allclose(step.reward, scale * ((distance < 0.12) - distance), rtol=1e-5)


def test_success_is_the_share_of_the_last_steps_at_the_goal():
    """A point held at its goal; then one that leaves it in the last two of eight steps judged."""
    env = environments.make("point:reach-1", max_steps=10)
    state, _ = env.reset(jax.random.key(0))
    at_goal = state._replace(goal=state.position)
    for leaves, expected in ((99, 1.0), (9, 0.75)):
        state = at_goal
        for t in range(1, 11):
            action = jnp.ones(2) if t >= leaves else jnp.zeros(2)
            state, step = env.step(state, action, jax.random.key(1))
            assert step.metrics["success"] == (expected if t == 10 else 0.0) and bool(step.truncated) == (t == 10)


def test_the_set_is_one_family_of_eight():
    env = environments.make("point:MT8")
    assert len(env.tasks) == 8 and len(env.groups) == 1 and env.max_steps == 40
    lanes = environments.make("point:MT8", num_envs=16, max_steps=3)
    _, steps, _ = roll(lanes, 3)
    assert steps.reward.shape == (3, 16) and steps.truncated[2].all() and not steps.truncated[:2].any()
    assert environments.make("point:reach-2", num_envs=4).num_envs == 4


def test_spread_is_the_largest_scale_over_the_smallest():
    """The same start and action in every task without angle or lag to tell them apart: only the scale differs."""
    env = environments.make("point:MT8", spread=1e4)
    scales = np.asarray(env.groups[0].parameters[0].scale)
    np.testing.assert_allclose(scales.max() / scales.min(), 1e4, rtol=1e-5)
    np.testing.assert_allclose(np.exp(np.log(scales).mean()), 1.0, rtol=1e-5)
    assert abs(np.corrcoef(np.log(scales), point.LAGS)[0, 1]) < 0.2
    given = environments.make("point:MT8", spread=1e7, order=(7, 6, 5, 4, 3, 2, 1, 0)).groups[0].parameters[0].scale
    np.testing.assert_allclose(given, 10.0 ** np.arange(3.5, -4, -1), rtol=1e-5)
    np.testing.assert_array_equal(environments.make("point:MT8").groups[0].parameters[0].scale, 1.0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"spread": 0.5}, "spread=0.5 is no number from 1"),
        ({"spread": "wide"}, "spread='wide' is no number"),
        ({"spread": 1e40}, "to 1e\\+12"),
        ({"order": "risin"}, "did you mean 'rising'"),
        ({"order": (1, 2)}, "no rank from 0 to 7"),
        ({"num_envs": 12}, "num_envs=12 is not divisible by the 8 tasks; nearest: 8 and 16"),
        ({"speed": 1}, "point environments take no 'speed'"),
    ],
)
def test_bad_input_is_refused(options, words):
    with pytest.raises(UsageError, match=words):
        environments.make("point:MT8", **options)


def test_a_misspelt_task_gets_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'point:reach-"):
        environments.make("point:reach-9")
