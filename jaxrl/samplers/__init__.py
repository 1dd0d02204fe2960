"""Replay: where experience is stored, and who is replayed.

A sampler is a bundle of pure functions over a storage pytree (:class:`Sampler`). Storage is a ring with a lane for every
environment; who is drawn from it is chosen apart, by age (:mod:`~jaxrl.samplers.ages`), by priority, or by both:

>>> import jax, jax.numpy as jnp
>>> from jaxrl import samplers
>>> from jaxrl.types import Experience
>>> no, zero = jnp.bool_(False), jnp.float32(0)
>>> example = Experience(jnp.zeros(3), jnp.int32(0), zero, no, no, jnp.zeros(3))
>>> sampler = samplers.truncated_geometric(beta=4.6, length=3)
>>> storage = sampler.init(example, 1000, 4)
>>> steps = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (10, 4, *leaf.shape)), example)
>>> storage = jax.jit(sampler.add, donate_argnums=0)(storage, steps)
>>> samplers.check_can_sample(sampler, storage, 32)
>>> batch, info = sampler.sample(storage, jax.random.key(0), 32)
>>> batch.observation.shape, int(sampler.size(storage))
((32, 3, 3), 40)

Every factory takes ``length`` (1 for single steps, n for n-step returns, L for sequences), and ``next_observations`` and
``finals_every``, which say how next observations are kept (:mod:`~jaxrl.samplers.ring`).

What a study sweeps is a leaf of the storage: ``storage.recency`` holds the parameters of the age distribution, and a
prioritised storage has ``exponent`` and ``importance``. Stack storages that differ in them and ``vmap`` the sampler.
"""

from jaxrl.samplers import ages, goals, prioritised, replay
from jaxrl.samplers.ages import Distribution
from jaxrl.samplers.base import SampleInfo, Sampler
from jaxrl.samplers.replay import check_can_sample, sampler


def uniform(length: int = 1, **storage) -> Sampler:
    """Every window alike."""
    return sampler(ages.uniform(), length, **storage)


def truncated_geometric(beta: float | None = None, rate: float | None = None, length: int = 1, **storage) -> Sampler:
    """Exponentially less of what is older; see :func:`jaxrl.samplers.ages.truncated_geometric`."""
    return sampler(ages.truncated_geometric(beta, rate), length, **storage)


def window(share: float | None = None, rows: int | None = None, length: int = 1, **storage) -> Sampler:
    """The newest alone, all alike; see :func:`jaxrl.samplers.ages.window`."""
    return sampler(ages.window(share, rows), length, **storage)


def linear(length: int = 1, **storage) -> Sampler:
    """In proportion to the steps left until overwritten; see :func:`jaxrl.samplers.ages.linear`."""
    return sampler(ages.linear(), length, **storage)


def newest_mixture(share: float = 0.5, newest: float = 0.02, length: int = 1, **storage) -> Sampler:
    """A share of every batch from the newest; see :func:`jaxrl.samplers.ages.newest_mixture`."""
    return sampler(ages.newest_mixture(share, newest), length, **storage)


def emphasising_recent(eta: float = 0.996, c_min: int = 5000, updates: int = 32, length: int = 1, **storage) -> Sampler:
    """Windows that shrink over the updates of a cycle; see :func:`jaxrl.samplers.ages.emphasising_recent`."""
    return sampler(ages.emphasising_recent(eta, c_min, updates), length, **storage)


def proportional(exponent: float = 0.6, importance: float = 0.4, length: int = 1, **storage) -> Sampler:
    """In proportion to a power of priority; see :func:`jaxrl.samplers.prioritised.sampler`."""
    return prioritised.sampler(exponent, importance, length, **storage)


def ranked(exponent: float = 0.6, importance: float = 0.4, length: int = 1, **storage) -> Sampler:
    """By the rank of priority, so that outliers do not matter; see :func:`jaxrl.samplers.prioritised.sampler`."""
    return prioritised.sampler(exponent, importance, length, by_rank=True, **storage)


def combined(
    recency: Distribution, exponent: float = 0.6, importance: float = 0.4, length: int = 1, **storage
) -> Sampler:
    """Priority times a distribution over age; see :func:`jaxrl.samplers.prioritised.sampler`."""
    return prioritised.sampler(exponent, importance, length, recency=recency, **storage)


def hindsight(reward: goals.GoalFunction, strategy: str = "future", share: float = 0.8, **options) -> Sampler:
    """A share of the windows relabelled with goals that were reached; see :func:`jaxrl.samplers.goals.sampler`."""
    return goals.sampler(reward, strategy, share, **options)


__all__ = [
    "Distribution",
    "SampleInfo",
    "Sampler",
    "ages",
    "check_can_sample",
    "combined",
    "emphasising_recent",
    "goals",
    "hindsight",
    "linear",
    "newest_mixture",
    "prioritised",
    "proportional",
    "ranked",
    "replay",
    "sampler",
    "truncated_geometric",
    "uniform",
    "window",
]
