"""Small environments in pure JAX whose answers are known, for tests and first experiments.

Each factory makes a single environment; its docstring gives the answer, and a function beside it computes the answer
where there is one to compute. ``environments.make("toy:chain", n=7)`` finds them by name.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from environments import drawings
from environments.adapters import first_step, single_step
from environments.base import Environment
from environments.lock import lock
from environments.rendering import drawing
from environments.wrappers.actions import unscale
from environments.wrappers.limits import time_limit
from jaxrl.checks import positive_int
from jaxrl.errors import UsageError, unknown
from jaxrl.spaces import Box, Discrete
from jaxrl.types import Array, Key, PyTree, Step, check_key


def names() -> list[str]:
    """Every toy, without its scheme."""
    return sorted(_FACTORIES)


def make(name: str, max_steps: int | None = None, **kwargs) -> Environment:
    """The toy of that name. ``max_steps`` is a time limit in place of the toy's own.

    Raises:
        UsageError: for a name or an argument that it does not have.
    """
    if name not in _FACTORIES:
        raise unknown("toy", name, _FACTORIES)
    factory = _FACTORIES[name]
    accepted = [key for key in inspect.signature(factory).parameters if key != "max_steps"]
    for key in kwargs:
        if key not in accepted:
            raise UsageError(f"toy:{name} takes no '{key}'; it takes {', '.join([*accepted, 'max_steps'])}")
    if max_steps is not None:
        kwargs["max_steps"] = max_steps
    return factory(**kwargs)


def _toy(name: str, reset, step, observation_space, action_space, max_steps: int | None, draw) -> Environment:
    rendering = drawing(draw, drawings.TOY_SECONDS)
    env = Environment(f"toy:{name}", partial(_keyed, reset), step, observation_space, action_space, rendering=rendering)
    return env if max_steps is None else time_limit(env, max_steps)


# --- counter ----------------------------------------------------------------------------------------------------------


def _keyed(reset: Callable[[Key], tuple[PyTree, Step]], key: Key) -> tuple[PyTree, Step]:
    check_key(key)
    return reset(key)


def counter(limit: int | None = 4, max_steps: int | None = None) -> Environment:
    """Observes the number of steps taken, float32 [1]; every step rewards 1; truncated after ``limit`` steps.

    With limit 4, five steps from a reset in one automatically reset lane give ``next_observation`` 1, 2, 3, 4, 1;
    ``observation`` 1, 2, 3, 0, 1; ``truncated`` 0, 0, 0, 1, 0; ``terminated`` all 0.
    """
    space = Box(0.0, np.inf, (1,))
    limit = limit if max_steps is None else max_steps
    return _toy("counter", _counter_reset, _counter_step, space, Discrete(2), limit, drawings.draw_counter)


def _counter_reset(key: Key) -> tuple[Array, Step]:
    return jnp.zeros((), jnp.int32), first_step(jnp.zeros(1, jnp.float32))


def _counter_step(time: Array, action: Array, key: Key) -> tuple[Array, Step]:
    return time + 1, single_step((time + 1).astype(jnp.float32)[None], 1.0, False)


# --- one_state --------------------------------------------------------------------------------------------------------


def one_state(n: int = 5, ending: str = "truncated", reward: float = 1.0, max_steps: int | None = None) -> Environment:
    """One state, observed as [1], with a constant reward; episodes of ``n`` steps end as ``ending`` says.

    The only difference between "truncated" and "terminated" is the flag, and :func:`one_state_value` tells them apart.
    """
    n = positive_int(n, "n")
    if ending not in ("terminated", "truncated"):
        raise UsageError(f"ending must be 'terminated' or 'truncated', got {ending!r}")
    step = partial(_one_state_step, n, ending, reward)
    env = _toy("one_state", _one_state_reset, step, Box(0.0, 1.0, (1,)), Discrete(2), max_steps, drawings.draw_counter)
    return time_limit(env, n) if ending == "truncated" else env


def one_state_value(discount: float, n: int = 5, ending: str = "truncated", reward: float = 1.0) -> float:
    """The value that temporal differences settle on when every step of an episode is seen equally often.

    Truncated, ``v = r + γ v``. Terminated, one step in n has nothing after it: ``v = r + γ v (n - 1) / n``.
    """
    survival = 1.0 if ending == "truncated" else (n - 1) / n
    return reward / (1.0 - discount * survival)


def _one_state_reset(key: Key) -> tuple[Array, Step]:
    return jnp.zeros((), jnp.int32), first_step(jnp.ones(1, jnp.float32))


def _one_state_step(n: int, ending: str, reward: float, time: Array, action: Array, key: Key) -> tuple[Array, Step]:
    dies = time + 1 >= n if ending == "terminated" else False
    return time + 1, single_step(jnp.ones(1, jnp.float32), reward, dies)


# --- chain ------------------------------------------------------------------------------------------------------------


def chain(n: int = 5, max_steps: int | None = 50) -> Environment:
    """States 0 to n-1 in a row, observed one-hot; starts at 0; action 1 steps right, 0 left (and stays at 0).

    Entering state n-1 rewards 1 and terminates; nothing else rewards. Always stepping right is optimal
    (:func:`chain_optimal_values`).
    """
    if positive_int(n, "n") < 2:
        raise UsageError(f"a chain needs at least 2 states, got n={n}")
    space = Box(0.0, 1.0, (n,))
    reset, step, draw = partial(_chain_reset, n), partial(_chain_step, n), partial(drawings.draw_chain, n)
    return _toy("chain", reset, step, space, Discrete(2), max_steps, draw)


def chain_optimal_values(discount: float, n: int = 5) -> np.ndarray:
    """Float64 [n]: ``γ^(n - 2 - s)`` in state s, since the reward comes with the (n - 1 - s)-th step; 0 at the end."""
    return np.append(np.float64(discount) ** np.arange(n - 2, -1, -1), 0.0)


def _chain_reset(n: int, key: Key) -> tuple[Array, Step]:
    return jnp.zeros((), jnp.int32), first_step(jax.nn.one_hot(0, n, dtype=jnp.float32))


def _chain_step(n: int, state: Array, action: Array, key: Key) -> tuple[Array, Step]:
    state = jnp.clip(state + jnp.where(action == 1, 1, -1), 0, n - 1).astype(jnp.int32)
    arrived = state == n - 1
    return state, single_step(jax.nn.one_hot(state, n, dtype=jnp.float32), arrived, arrived)


# --- endless ----------------------------------------------------------------------------------------------------------


def endless(max_steps: int | None = None) -> Environment:
    """Never ends. Observes the parity of the time, float32 [1]; rewards 1 for the action equal to it, 0 for the other.

    The optimal value is 1 / (1 - γ) everywhere.
    """
    draw = partial(drawings.draw_chain, 2)
    return _toy("endless", _endless_reset, _endless_step, Box(0.0, 1.0, (1,)), Discrete(2), max_steps, draw)


def _endless_reset(key: Key) -> tuple[Array, Step]:
    return jnp.zeros((), jnp.int32), first_step(jnp.zeros(1, jnp.float32))


def _endless_step(parity: Array, action: Array, key: Key) -> tuple[Array, Step]:
    return 1 - parity, single_step((1 - parity).astype(jnp.float32)[None], action == parity, False)


# --- gridworld --------------------------------------------------------------------------------------------------------

GRID = ("S...#", ".##..", "...#.", "#....", "...#G")
_MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))  # up, right, down, left


def gridworld(layout: tuple[str, ...] = GRID, max_steps: int | None = 50) -> Environment:
    """A walk from S to G between walls (#), observed one-hot over all cells in row-major order.

    Actions 0 to 3 go up, right, down, left; a step into a wall or off the grid stays. Entering G rewards 1 and
    terminates; nothing else rewards. :func:`optimal_values` has the answer.
    """
    table, start, goal = _grid(tuple(layout))
    space = Box(0.0, 1.0, (len(table),))
    reset, step = partial(_grid_reset, start, len(table)), partial(_grid_step, table, goal)
    draw = partial(drawings.draw_gridworld, tuple(layout))
    return _toy("gridworld", reset, step, space, Discrete(4), max_steps, draw)


def optimal_values(discount: float, layout: tuple[str, ...] = GRID, tolerance: float = 1e-12) -> np.ndarray:
    """Float64 [cells]: optimal values of :func:`gridworld` by value iteration; 0 in G, in walls and where G is shut off.

    ``v(s) = max_a [r(s') + γ v(s') (s' is not G)]``.
    """
    table, _, goal = _grid(tuple(layout))
    free = np.array([cell != "#" for cell in "".join(layout)])
    free[goal] = False
    values = np.zeros(len(table))
    while True:
        best = np.where(table == goal, 1.0, discount * values[table]).max(axis=1) * free
        if np.abs(best - values).max() <= tolerance:
            return best
        values = best


def _grid(layout: tuple[str, ...]) -> tuple[np.ndarray, int, int]:
    """Where each action leads from each cell, int32 [cells, 4], and the cells of S and G."""
    width, cells = len(layout[0]) if layout else 0, "".join(layout)
    if any(len(row) != width for row in layout) or cells.count("S") != 1 or cells.count("G") != 1:
        raise UsageError(f"a grid needs rows of one length, one S and one G, got {layout}")
    table = np.empty((len(cells), 4), np.int32)
    for cell in range(len(cells)):
        for action, (down, right) in enumerate(_MOVES):
            row, column = cell // width + down, cell % width + right
            inside = 0 <= row < len(layout) and 0 <= column < width
            table[cell, action] = row * width + column if inside and layout[row][column] != "#" else cell
    return table, cells.index("S"), cells.index("G")


def _grid_reset(start: int, cells: int, key: Key) -> tuple[Array, Step]:
    return jnp.full((), start, jnp.int32), first_step(jax.nn.one_hot(start, cells, dtype=jnp.float32))


def _grid_step(table: np.ndarray, goal: int, cell: Array, action: Array, key: Key) -> tuple[Array, Step]:
    cell = jnp.asarray(table)[cell, action]
    arrived = cell == goal
    return cell, single_step(jax.nn.one_hot(cell, len(table), dtype=jnp.float32), arrived, arrived)


# --- random_start -----------------------------------------------------------------------------------------------------


class Walk(NamedTuple):
    position: Array  # [dims]
    goal: Array  # [dims]


def random_start(max_steps: int | None = 5) -> Environment:
    """A point on a line whose start and goal are drawn from U(0, 1) at every reset; observes [position, goal].

    The action, in [-0.1, 0.1], is added to the position; the reward is minus the distance to the goal after it. Over
    episodes the starts have mean 0.5 and no two are alike.
    """
    space = Box(-np.inf, np.inf, (2,))
    return _toy("random_start", _walk_reset, _walk_step, space, Box(-0.1, 0.1, (1,)), max_steps, drawings.draw_line)


def _walk_reset(key: Key) -> tuple[Walk, Step]:
    start_key, goal_key = jax.random.split(key)
    state = Walk(jax.random.uniform(start_key, (1,)), jax.random.uniform(goal_key, (1,)))
    return state, first_step(jnp.concatenate(state))


def _walk_step(state: Walk, action: Array, key: Key) -> tuple[Walk, Step]:
    state = state._replace(position=state.position + jnp.clip(action, -0.1, 0.1).astype(jnp.float32))
    return state, single_step(jnp.concatenate(state), -jnp.abs(state.position - state.goal), False)


# --- target -----------------------------------------------------------------------------------------------------------


def target(goal: float = 0.0, bound: float = 10.0, max_steps: int | None = None) -> Environment:
    """A bandit: one step, reward ``-(a - goal)²`` for an action in [-bound, bound], then it terminates; observes [1].

    The best action is ``goal``, of value 0; a standard normal policy earns ``-(1 + goal²)`` on average.
    """
    space = Box(-abs(bound), abs(bound), (1,))
    step, draw = partial(_target_step, goal), partial(drawings.draw_target, goal, abs(bound))
    return _toy("target", _target_reset, step, Box(0.0, 1.0, (1,)), space, max_steps, draw)


class Guess(NamedTuple):
    action: Array  # float32 [1]: the last one
    made: Array  # bool []: whether there has been one


def _target_reset(key: Key) -> tuple[Guess, Step]:
    return Guess(jnp.zeros(1, jnp.float32), jnp.bool_(False)), first_step(jnp.ones(1, jnp.float32))


def _target_step(goal: float, state: Guess, action: Array, key: Key) -> tuple[Guess, Step]:
    guess = Guess(jnp.asarray(action, jnp.float32).reshape(1), jnp.bool_(True))
    return guess, single_step(jnp.ones(1, jnp.float32), -((action - goal) ** 2), True)


# --- point_mass -------------------------------------------------------------------------------------------------------

POINT_MASS_ACTIONS = Box(low=[-2.0, 0.0], high=[2.0, 10.0])
POINT_MASS_STRIDE = 0.1


def point_mass(max_steps: int | None = 25) -> Environment:
    """A point in the plane that is to reach a goal, both drawn from U(-1, 1)²; observes [position, goal], float32 [4].

    The two dimensions of the action have different bounds, [-2, 2] and [0, 10]. The middle of the bounds stands still
    and an end moves by 0.1, so an agent that takes every bound for [-1, 1] drifts. The reward is minus the distance
    after the move. :func:`point_mass_optimal_return` has the answer.
    """
    space = Box(-np.inf, np.inf, (4,))
    return _toy("point_mass", _point_reset, _point_step, space, POINT_MASS_ACTIONS, max_steps, drawings.draw_plane)


def point_mass_optimal_return(position: np.ndarray, goal: np.ndarray, steps: int = 25) -> float:
    """The largest undiscounted return of ``steps`` steps: both gaps shrink by 0.1 a step until they are closed."""
    gap = np.abs(np.asarray(position, np.float64) - np.asarray(goal, np.float64))
    left = np.maximum(gap - POINT_MASS_STRIDE * np.arange(1, steps + 1)[:, None], 0.0)
    return float(-np.linalg.norm(left, axis=1).sum())


def _point_reset(key: Key) -> tuple[Walk, Step]:
    start_key, goal_key = jax.random.split(key)
    start = jax.random.uniform(start_key, (2,), minval=-1.0, maxval=1.0)
    state = Walk(start, jax.random.uniform(goal_key, (2,), minval=-1.0, maxval=1.0))
    return state, first_step(jnp.concatenate(state))


def _point_step(state: Walk, action: Array, key: Key) -> tuple[Walk, Step]:
    move = POINT_MASS_STRIDE * jnp.clip(unscale(action, POINT_MASS_ACTIONS), -1.0, 1.0)
    state = state._replace(position=state.position + move)
    return state, single_step(jnp.concatenate(state), -jnp.linalg.norm(state.position - state.goal), False)


_FACTORIES = {
    factory.__name__: factory
    for factory in (counter, one_state, chain, endless, gridworld, random_start, target, point_mass, lock)
}
