"""What the suites of tasks share: the spread of their reward scales, and how their tasks are named."""

import numbers
from collections.abc import Mapping, Sequence

import numpy as np

from environments.base import Environment
from environments.multi_task import task_set
from environments.wrappers.vector import vectorise
from jaxrl.errors import UsageError, unknown

WIDEST = 1e12
ORDERS = ("mixed", "rising", "falling")


def reward_scales(count: int, spread: float, order: str | Sequence[int], mixed: Sequence[int]) -> np.ndarray:
    """A factor for each task's reward: a geometric series whose largest is ``spread`` times its smallest, of geometric mean 1.

    ``scale_k = spread ** (rank_k / (count - 1) - 1/2)``.

    Args:
        spread: from 1 to 1e12; 1 gives 1 for every task.
        order: who has which: "rising" ranks the tasks as they stand, "falling" the other way round, "mixed" as the suite
            says; or a rank from 0 to ``count - 1`` for each task.
        mixed: the suite's own ranks.

    Returns:
        float32 [count].

    Raises:
        UsageError: for a spread that is no number from 1 to 1e12, or an order that is no permutation.
    """
    if not isinstance(spread, numbers.Real) or not 1 <= spread <= WIDEST:
        raise UsageError(
            f"spread={spread!r} is no number from 1 (every task has the same scale; 1e4 is wide) to {WIDEST:g} (returns "
            "whose squares float32 can still add up)"
        )
    if isinstance(order, str) and order not in ORDERS:
        raise unknown("order of reward scales", order, ORDERS)
    ranks = {"mixed": list(mixed), "rising": list(range(count)), "falling": list(range(count))[::-1]}
    rank = ranks[order] if isinstance(order, str) else [int(r) for r in order]
    if sorted(rank) != list(range(count)):
        raise UsageError(f"order={order} is no rank from 0 to {count - 1} for each task; use {', '.join(ORDERS)}")
    return np.float64(spread) ** (np.asarray(rank) / max(count - 1, 1) - 0.5)


def pick(
    name: str, envs: Sequence[Environment], sets: Mapping[str, Sequence[str]], num_envs: int | None = None
) -> Environment:
    """The task or the set of that name, with lanes if a number of them is given.

    Args:
        name: without its scheme.
        envs: every task of the suite, named ``scheme:task``.
        sets: the tasks of each set.
    """
    by_task = {env.name.partition(":")[2]: env for env in envs}
    scheme = envs[0].name.partition(":")[0]
    if name not in by_task and name not in sets:
        raise unknown(f"{scheme} environment", name, [*by_task, *sets])
    env = by_task[name] if name in by_task else task_set([by_task[t] for t in sets[name]], f"{scheme}:{name}")
    return env if num_envs is None else vectorise(env, num_envs)
