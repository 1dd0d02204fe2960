"""From recorded steps to what a loss sees: transitions, n-step transitions, advantages and returns.

Two flags, two meanings, everywhere in this module: ``terminated`` cuts the bootstrap, because nothing follows;
``truncated`` only ends the sum, because something would have followed, and its value stands in for it. A sum never runs
past either flag, since the next recorded step belongs to another episode.
"""

import jax
import jax.numpy as jnp

from jaxrl.errors import UsageError
from jaxrl.types import Array, Experience, Transition


def transition(experience: Experience, gamma: Array | float, weight: Array | float | None = None) -> Transition:
    """One-step transitions, ``discount = gamma * (1 - terminated)``.

    Args:
        experience: steps with any leading axes ``[...]``.
        gamma: the discount factor, a scalar or anything that broadcasts to ``[...]``.
        weight: ``[...]``, the weight of each sample in the loss; ones if not given.

    Returns:
        A transition with the same leading axes; reward, discount and weight are float32.
    """
    shape = jnp.shape(experience.terminated)
    alive = 1.0 - jnp.asarray(experience.terminated, jnp.float32)
    weight = 1.0 if weight is None else weight
    return Transition(
        observation=experience.observation,
        action=experience.action,
        reward=jnp.asarray(experience.reward, jnp.float32),
        discount=gamma * alive,
        next_observation=experience.next_observation,
        weight=jnp.broadcast_to(jnp.asarray(weight, jnp.float32), shape),
    )


def n_step_transition(window: Experience, gamma: Array | float, weight: Array | float = 1.0) -> Transition:
    """The n-step transition that starts at a window's first step. Unbatched: ``vmap`` over windows.

    With ``m <= n`` the number of steps up to and including the first flagged one,

        R = sum_{k<m} gamma^k r_k,    discount = gamma^m, or 0 if step m-1 terminated,

    and ``next_observation`` is where step ``m-1`` really led (Sutton 1988; Mnih et al. 2016 for its use in replay).
    For ``n = 1`` this equals :func:`transition`. Rows behind the first flag may hold anything, even NaN.

    Args:
        window: ``n`` consecutive steps ``[n, ...]`` of one environment.
        gamma: the discount factor, a scalar.
        weight: the weight of this sample in the loss, a scalar.
    """
    length = window.reward.shape[0]
    done = jnp.logical_or(window.terminated, window.truncated)
    last = jnp.where(jnp.any(done), jnp.argmax(done), length - 1)
    # gamma^1 … gamma^n by multiplication: a power function need not return gamma itself for an exponent of one.
    powers = jnp.cumprod(jnp.full((length,), gamma, jnp.float32))
    factors = jnp.concatenate([jnp.ones((1,), jnp.float32), powers[:-1]])
    rewards = jnp.where(jnp.arange(length) <= last, factors * window.reward.astype(jnp.float32), 0.0)
    return Transition(
        observation=jax.tree.map(lambda x: x[0], window.observation),
        action=jax.tree.map(lambda x: x[0], window.action),
        reward=jnp.sum(rewards),
        discount=jnp.where(window.terminated[last], 0.0, powers[last]),
        next_observation=jax.tree.map(lambda x: x[last], window.next_observation),
        weight=jnp.asarray(weight, jnp.float32),
    )


def generalized_advantages(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    gamma: Array | float,
    lam: Array | float,
) -> Array:
    """Generalised advantage estimates (Schulman et al. 2016, equation 16), cut at either flag.

        delta_t = r_t + gamma (1 - terminated_t) V(next_t) - V(s_t)
        A_t     = delta_t + gamma lam (1 - flagged_t) A_{t+1},    A_T = 0

    ``next_value`` is the value of where each step *really* led, so it holds the true last observation of an episode,
    not the first of the next. Add ``value`` for the targets of the critic.

    Args:
        reward, value, next_value, terminated, truncated: ``[T, ...]``, all of one shape; time is the leading axis and
            other axes ride along, so no ``vmap`` is needed.
        gamma, lam: scalars, or arrays that broadcast to ``[...]``.

    Returns:
        float32 ``[T, ...]``. Gradients flow into both values; losses stop them.

    Raises:
        UsageError: if the shapes differ, which would otherwise broadcast silently.
    """
    _check_shapes(reward=reward, value=value, next_value=next_value, terminated=terminated, truncated=truncated)
    reward, value, next_value = (x.astype(jnp.float32) for x in (reward, value, next_value))
    delta = reward + gamma * jnp.where(terminated, 0.0, next_value) - value
    decay = gamma * lam * _going_on(terminated, truncated)
    return _reverse_linear(delta, decay, jnp.zeros_like(delta[0]))


def lambda_returns(
    reward: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    gamma: Array | float,
    lam: Array | float,
) -> Array:
    """Lambda returns (Sutton & Barto 2018, equation 12.18), cut at either flag.

        G_t = r_t + gamma (1 - terminated_t) [(1 - l_t) V(next_t) + l_t G_{t+1}],    l_t = lam (1 - flagged_t)

    with ``l = 0`` at the last step, which so bootstraps from ``V(next)``. Where ``V(next_t) = V(s_{t+1})`` inside
    episodes, this equals :func:`generalized_advantages` plus the values.

    Args and errors as there; returns float32 ``[T, ...]``.
    """
    _check_shapes(reward=reward, next_value=next_value, terminated=terminated, truncated=truncated)
    reward, next_value = reward.astype(jnp.float32), next_value.astype(jnp.float32)
    bootstrap = gamma * jnp.where(terminated, 0.0, next_value)
    trace = lam * _going_on(terminated, truncated)
    # Starting from the last step's V(next) makes (1 - l) V + l V = V there, whatever l is.
    return _reverse_linear(
        reward + (1.0 - trace) * bootstrap, gamma * trace, jnp.where(terminated[-1], 0.0, next_value[-1])
    )


def discounted_returns(
    reward: Array, next_value: Array, terminated: Array, truncated: Array, gamma: Array | float
) -> Array:
    """Discounted sums of rewards to the end of each episode, the :func:`lambda_returns` with ``lam = 1``.

    A truncated episode, and the one still going on at the last step, are completed with ``V(next)``; pass zeros as
    ``next_value`` for plain sums.

    Args and errors as there; returns float32 ``[T, ...]``.
    """
    return lambda_returns(reward, next_value, terminated, truncated, gamma, 1.0)


def _going_on(terminated: Array, truncated: Array) -> Array:
    return 1.0 - jnp.logical_or(terminated, truncated).astype(jnp.float32)


def _linear_step(carry: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
    offset, decay = inputs
    carry = offset + decay * carry
    return carry, carry


def _reverse_linear(offset: Array, decay: Array, final: Array) -> Array:
    """``y_t = offset_t + decay_t y_{t+1}`` backwards over the leading axis, with ``y_T = final``.

    A scan, so that neither the program nor its compile time grows with T.
    """
    decay = jnp.broadcast_to(decay, offset.shape).astype(offset.dtype)
    _, result = jax.lax.scan(_linear_step, final, (offset, decay), reverse=True)
    return result


def _check_shapes(**arrays: Array) -> None:
    shapes = {name: jnp.shape(array) for name, array in arrays.items()}
    expected = shapes["reward"]
    if len(set(shapes.values())) > 1 or not expected:
        listed = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise UsageError(
            f"expected arrays of one shape with a leading time axis, got {listed}; e.g. {list(expected) or '[T]'}"
        )
