"""Experience whose every value says when and where it was recorded, and what must hold for any batch drawn from it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import samplers
from jaxrl.types import Experience

GOAL_KEYS = ("achieved_goal", "desired_goal")


def goal_reward(achieved, desired, step):
    return -jnp.abs(achieved - desired)[0]


# Every sampler there is, by name: length -> Sampler.
FACTORIES = {
    "uniform": samplers.uniform,
    "truncated_geometric": functools.partial(samplers.truncated_geometric, 4.6, None),
    "truncated_geometric_rate": functools.partial(samplers.truncated_geometric, None, 0.3),
    "window": functools.partial(samplers.window, 0.5, None),
    "linear": samplers.linear,
    "newest_mixture": functools.partial(samplers.newest_mixture, 0.5, 0.2),
    "emphasising_recent": functools.partial(samplers.emphasising_recent, 0.996, 2, 8),
    "proportional": functools.partial(samplers.proportional, 0.6, 0.4),
    "ranked": functools.partial(samplers.ranked, 0.6, 0.4),
    "combined": functools.partial(samplers.combined, samplers.ages.truncated_geometric(2.0), 0.6, 0.4),
    "hindsight": lambda length, **storage: samplers.hindsight(goal_reward, share=0.0, length=length, **storage),
}


def flagged(t, lane):
    """Which rows end an episode (in a way that looks irregular), and which of those are deaths."""
    ends = (np.asarray(t) * 7 + np.asarray(lane) * 3) % 5 == 0
    return ends, ends & (np.asarray(t) % 2 == 0)


def observe(value, lane):
    """An observation as a dict, so that goal relabelling takes it too. Leaves ``[..., 2]`` and ``[..., 1]``."""
    value, lane = np.broadcast_arrays(np.asarray(value, np.float32), np.asarray(lane, np.float32))
    return {
        "observation": np.stack([value, lane], -1),
        "achieved_goal": value[..., None],
        "desired_goal": -lane[..., None],
    }


def steps(start, count, num_envs, flags=flagged):
    """Rows ``start … start + count - 1`` of every lane: Experience ``[count, num_envs, …]``.

    Row t of a lane observes t; it leads to t + 1, or where it ends an episode to -1 - t.
    """
    t, lane = np.meshgrid(np.arange(start, start + count), np.arange(num_envs), indexing="ij")
    ends, deaths = flags(t, lane)
    return jax.tree.map(
        jnp.asarray,
        Experience(
            observation=observe(t, lane),
            action=t.astype(np.int32),
            reward=t.astype(np.float32),
            terminated=deaths,
            truncated=ends & ~deaths,
            next_observation=observe(np.where(ends, -1 - t, t + 1), lane),
        ),
    )


def example():
    return jax.tree.map(lambda leaf: leaf[0, 0], steps(0, 1, 1))


def check_batch(batch, info, total, slots, num_envs, length, flags=flagged):
    """Everything a batch must fulfil, from a lane to which rows 0 … total - 1 were added."""
    batch, info = jax.tree.map(np.asarray, (batch, info))
    start = batch.action[:, 0]
    assert (info.weight > 0).all()
    assert (start >= max(0, total - slots)).all(), "a row that was overwritten or never written"
    assert (start <= total - length).all(), "a window across the write head"
    assert ((info.lane >= 0) & (info.lane < num_envs)).all()
    np.testing.assert_array_equal(info.time, start % slots)
    np.testing.assert_array_equal(info.age, total - length - start)
    t = start[:, None] + np.arange(length)
    lane = np.broadcast_to(info.lane[:, None], t.shape)
    ends, deaths = flags(t, lane)
    wanted = Experience(
        observation=observe(t, lane),
        action=t,
        reward=t.astype(np.float32),
        terminated=deaths,
        truncated=ends & ~deaths,
        next_observation=observe(np.where(ends, -1 - t, t + 1), lane),
    )
    jax.tree.map(np.testing.assert_array_equal, batch, wanted)


@functools.cache
def compiled(name, length, next_observations="stored", finals_every=8):
    """A sampler by name, with jitted functions that are shared by the tests."""
    sampler = FACTORIES[name](length=length, next_observations=next_observations, finals_every=finals_every)
    return sampler._replace(
        add=jax.jit(sampler.add),
        sample=jax.jit(sampler.sample, static_argnums=2),
        update_priority=jax.jit(sampler.update_priority),
    )
