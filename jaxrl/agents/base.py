"""The contract of an agent: four pure functions and an optional fifth, in the manner of an optax transformation."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import optax

from jaxrl.types import Array, Experience, Key, Metrics, PyTree


class AgentState(Protocol):
    """What every agent's state has. It is a NamedTuple of arrays: everything the agent is, including its optimiser.

    ``hyper`` is a NamedTuple of float32 scalars, the hyper-parameters a study may sweep (at least ``discount``). They
    are leaves, so ``vmap`` sweeps them without compiling again. ``params`` holds every trained parameter.
    """

    hyper: PyTree
    params: PyTree


class Agent(NamedTuple):
    """Functions that know neither an environment nor a logger.

    Order of the calls in every loop: ``act`` on what the environment shows, ``update`` on what was recorded, ``observe``
    what is new. ``observe`` comes after the on-policy ``update`` so that the loss sees the statistics the behaviour
    policy used.
    """

    name: str
    # key -> state
    init: Callable[[Key], PyTree]
    # (state, observation [..., *shape], key, explore: bool (static)) -> action [..., *shape] in the environment's units
    act: Callable[[PyTree, PyTree, Key, bool], Array]
    # (state, fresh experience with any leading axes) -> state; counts steps and feeds running statistics, nothing more
    observe: Callable[[PyTree, Experience], PyTree]
    # (state, batch, key) -> (state, metrics); the batch is a rollout [T, N] of Experience if on_policy, else a Transition
    # with leading axis [B]. Off-policy metrics may hold "priority" [B]: new priorities, which the loop takes out.
    update: Callable[[PyTree, PyTree, Key], tuple[PyTree, Metrics]]
    on_policy: bool = False
    # (state, observation [..., *shape], action [..., *shape]) -> [...] in units of reward: the critics' estimate of the
    # discounted return of taking the action and following the policy. For diagnostics; an agent without critics has none.
    estimate: Callable[[PyTree, PyTree, Array], Array] | None = None


# A learning rate (perhaps a traced leaf) -> transformation. optax.adam is one; so is a lambda around a chain.
OptimizerFactory = Callable[[Array], optax.GradientTransformation]


def optimizer_factory(
    optimizer: optax.GradientTransformation | OptimizerFactory | None, default: OptimizerFactory
) -> OptimizerFactory:
    """Accept any optax transformation, or a function from the learning rate to one, in place of the default.

    A function keeps the learning rate sweepable; a finished transformation has its own and ignores the agent's.
    """
    if optimizer is None:
        return default
    if isinstance(optimizer, optax.GradientTransformation):
        return lambda _: optimizer
    return optimizer
