"""Hindsight: goals come from the same episode, and reward and flags follow them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import samplers
from jaxrl.errors import UsageError
from tests.samplers.common import example, flagged, goal_reward, steps

SLOTS, LANES = 16, 2


def reached(achieved, desired, step):
    return jnp.all(achieved == desired)


def filled(strategy, blocks, length=1, **options):
    sampler = samplers.hindsight(goal_reward, strategy, share=1.0, length=length, **options)
    storage, total = sampler.init(example(), SLOTS * LANES, LANES), 0
    sampler = sampler._replace(add=jax.jit(sampler.add), sample=jax.jit(sampler.sample, static_argnums=2))
    for count in blocks:
        storage = sampler.add(storage, steps(total, count, LANES))
        total += count
    return sampler, storage, total


def achieved_by(t, lane):
    """What row t achieved: where it led."""
    return -1 - t if flagged(t, lane)[0] else t + 1


def goals_allowed(strategy, t, lane, total):
    """The goals row t may be given, by walking through its episode."""
    last = t
    while not flagged(last, lane)[0] and last < total - 1:
        last += 1
    first = t
    while first > max(0, total - SLOTS) and not flagged(first - 1, lane)[0]:
        first -= 1
    rows = {"future": range(t, last + 1), "final": [last], "episode": range(first, last + 1)}[strategy]
    return {achieved_by(row, lane) for row in rows}


@pytest.mark.parametrize("next_observations", ["stored", "derived"])
@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_goals_are_those_of_the_same_episode_and_all_of_them(strategy, next_observations):
    for blocks in ([3], [1, 3, 3, 3, 3, 1, 3, 3, 3]):
        sampler, storage, total = filled(strategy, blocks, next_observations=next_observations, finals_every=1)
        batch, info = sampler.sample(storage, jax.random.key(0), 4000)
        seen = {}
        for t, lane, goal in zip(
            *map(np.asarray, (batch.action[:, 0], info.lane, batch.observation["desired_goal"][:, 0, 0])), strict=True
        ):
            seen.setdefault((int(t), int(lane)), set()).add(int(goal))
        assert seen.keys() == {(t, lane) for t in range(max(0, total - SLOTS), total) for lane in range(LANES)}
        for (t, lane), goals in seen.items():
            assert goals == goals_allowed(strategy, t, lane, total), (t, lane)


def test_reward_and_termination_are_those_of_the_new_goal():
    sampler, storage, _ = filled("future", [8, 8], length=2, terminated=reached)
    batch, _ = sampler.sample(storage, jax.random.key(1), 500)
    achieved, goal = batch.next_observation["achieved_goal"], batch.next_observation["desired_goal"]
    np.testing.assert_array_equal(batch.observation["desired_goal"], goal)
    np.testing.assert_array_equal(goal[:, 0], goal[:, 1])  # one goal a window
    np.testing.assert_array_equal(batch.reward, -np.abs(achieved - goal)[..., 0])
    np.testing.assert_array_equal(batch.terminated, (achieved == goal)[..., 0])
    assert 0.1 < np.mean(batch.terminated) < 0.9
    ends, deaths = flagged(batch.action, np.asarray(batch.observation["observation"][..., 1]))
    np.testing.assert_array_equal(batch.truncated, ends & ~deaths)


def test_the_share_kept_is_as_it_was():
    sampler, storage, _ = filled("final", [8, 8])
    storage = storage._replace(share=jnp.float32(0.25))
    batch, info = sampler.sample(storage, jax.random.key(2), 4000)
    kept = np.asarray(batch.observation["desired_goal"][:, 0, 0]) == -np.asarray(info.lane)
    np.testing.assert_allclose(kept.mean(), 0.75, atol=0.03)
    np.testing.assert_array_equal(batch.reward[kept, 0], batch.action[kept, 0])


def test_an_episode_longer_than_the_ring():
    def never(t, lane):
        return np.zeros_like(t, bool), np.zeros_like(t, bool)

    for strategy in ("future", "final", "episode"):
        sampler = samplers.hindsight(goal_reward, strategy, share=1.0)
        storage = sampler.init(example(), SLOTS, 1)
        add = jax.jit(sampler.add)
        for start in range(0, 60, 4):
            storage = add(storage, steps(start, 4, 1, never))
        batch, _ = jax.jit(sampler.sample, static_argnums=2)(storage, jax.random.key(0), 2000)
        t, goal = np.asarray(batch.action[:, 0]), np.asarray(batch.observation["desired_goal"][:, 0, 0])
        oldest = {"future": t + 1, "final": np.full_like(t, 60), "episode": np.full_like(t, 45)}[strategy]
        assert (goal >= oldest).all() and (goal <= 60).all()
        assert goal.max() == 60 and goal.min() == oldest.min()


def test_what_cannot_work_is_refused():
    with pytest.raises(UsageError, match="did you mean 'future'"):
        samplers.hindsight(goal_reward, "futur")
    with pytest.raises(UsageError, match=r"\[0, 1\], got 2"):
        samplers.hindsight(goal_reward, share=2)
    sampler = samplers.hindsight(goal_reward)
    flat = example()._replace(observation=jnp.zeros(2))
    with pytest.raises(UsageError, match="needs observation to be a dict"):
        sampler.init(flat, 8, 1)
