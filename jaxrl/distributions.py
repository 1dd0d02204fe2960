"""Distributions over actions, as pytrees of their parameters.

The last axis is the event (Normal, TanhNormal) or the choices (Categorical); leading axes are a batch, and methods keep
them. Log-probabilities and entropies are float32, in nats, whatever the precision of the network that made the
parameters. Methods are pure; none keeps anything.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxrl.types import Array, Key, check_key

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class Normal(NamedTuple):
    """Independent Gaussians, without bounds. Both parameters broadcast to ``[..., D]``; ``scale`` is above 0."""

    loc: Array
    scale: Array

    def sample(self, key: Key) -> Array:
        """One action for every row, reparametrised. float32 [..., D]."""
        check_key(key)
        loc, scale = _float32(self.loc, self.scale)
        return loc + scale * jax.random.normal(key, loc.shape, loc.dtype)

    def sample_and_log_prob(self, key: Key) -> tuple[Array, Array]:
        """One action [..., D] and its log-probability [...]."""
        action = self.sample(key)
        return action, self.log_prob(action)

    def log_prob(self, action: Array) -> Array:
        """[...], for actions [..., D]."""
        return jnp.sum(_log_normal(action, self.loc, self.scale), axis=-1)

    def mode(self) -> Array:
        """The mean, float32 [..., D]."""
        return _float32(self.loc, self.scale)[0]

    def entropy(self, key: Key | None = None) -> Array:
        """[...], in closed form. The key is not used; it is there so that all distributions are called alike."""
        _, scale = _float32(self.loc, self.scale)
        return jnp.sum(0.5 + _HALF_LOG_TWO_PI + jnp.log(scale), axis=-1)


class TanhNormal(NamedTuple):
    """``low + (high - low) (tanh(u) + 1) / 2`` with ``u`` Gaussian: actions within bounds, in the environment's units.

    The density is that of the action itself (Haarnoja et al. 2018, appendix C, and the change of units):

        log p(a) = sum_i log N(u_i; loc_i, scale_i) - log(1 - tanh(u_i)^2) - log((high_i - low_i) / 2)

    with ``log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u))``, which neither overflows nor cancels. An entry whose
    bounds coincide has no choice in it, and adds nothing to a log-probability or an entropy.

    ``loc`` and ``scale`` broadcast to ``[..., D]``; ``low`` and ``high`` are finite and broadcast to ``[D]``.
    """

    loc: Array
    scale: Array
    low: ArrayLike
    high: ArrayLike

    def sample_pre_tanh(self, key: Key) -> Array:
        """One ``u`` for every row, reparametrised. float32 [..., D]."""
        return Normal(self.loc, self.scale).sample(key)

    def squash(self, pre_tanh: Array) -> Array:
        """The action that belongs to ``u``."""
        return scale_action(jnp.tanh(pre_tanh), self.low, self.high)

    def sample(self, key: Key) -> Array:
        """One action for every row, reparametrised, within the bounds. float32 [..., D]."""
        return self.squash(self.sample_pre_tanh(key))

    def sample_and_log_prob(self, key: Key) -> tuple[Array, Array]:
        """One action [..., D] and its log-probability [...], exact even where the action rounds to a bound."""
        pre_tanh = self.sample_pre_tanh(key)
        return self.squash(pre_tanh), self.log_prob_of_pre_tanh(pre_tanh)

    def log_prob_of_pre_tanh(self, pre_tanh: Array) -> Array:
        """The log-probability [...] of the *action* that belongs to ``u`` [..., D]; best where ``u`` is at hand."""
        gaussian = _log_normal(pre_tanh, self.loc, self.scale)
        return jnp.sum(self._free(gaussian - self._log_slope(pre_tanh)), axis=-1)

    def log_prob(self, action: Array) -> Array:
        """[...], for actions [..., D] in the environment's units.

        An action within rounding of a bound has lost its ``u``, which may have been anything above 8.3; it counts as
        8.3, so value and gradient are finite. Actions beyond the bounds count as at the bound.
        """
        (action,) = _float32(action)
        limit = 1.0 - jnp.finfo(action.dtype).eps
        unit = jnp.clip(unscale_action(action, self.low, self.high), -limit, limit)
        return self.log_prob_of_pre_tanh(jnp.arctanh(unit))

    def mode(self) -> Array:
        """The action that belongs to the Gaussian's mean, float32 [..., D]: the median, what evaluation acts with."""
        return self.squash(Normal(self.loc, self.scale).mode())

    def entropy(self, key: Key) -> Array:
        """An unbiased estimate [...] from one sample, reparametrised.

        There is no closed form. The Gaussian's part is exact, and only the term of the squashing is sampled:

            H = sum_i log(scale_i sqrt(2 pi e)) + E[log(1 - tanh(u_i)^2)] + log((high_i - low_i) / 2)
        """
        _, scale = _float32(self.loc, self.scale)
        gaussian = 0.5 + _HALF_LOG_TWO_PI + jnp.log(scale)
        return jnp.sum(self._free(gaussian + self._log_slope(self.sample_pre_tanh(key))), axis=-1)

    def _log_slope(self, pre_tanh: Array) -> Array:
        """Log of the derivative of the action in ``u``, for each entry."""
        _, half = _middle_and_half(self.low, self.high)
        (pre_tanh,) = _float32(pre_tanh)
        squashing = 2.0 * (math.log(2.0) - pre_tanh - jax.nn.softplus(-2.0 * pre_tanh))
        return squashing + jnp.log(jnp.where(half > 0.0, half, 1.0))

    def _free(self, term: Array) -> Array:
        """The term of each entry, 0 where the bounds coincide."""
        _, half = _middle_and_half(self.low, self.high)
        return jnp.where(half > 0.0, term, 0.0)


class Categorical(NamedTuple):
    """A choice among ``K``. ``logits`` [..., K] need not be normalised; -inf rules a choice out (not all of them)."""

    logits: Array

    def log_probs(self) -> Array:
        """Normalised log-probabilities, float32 [..., K]."""
        return jax.nn.log_softmax(_float32(self.logits)[0])

    def sample(self, key: Key) -> Array:
        """One choice for every row, int32 [...]."""
        check_key(key)
        return jax.random.categorical(key, _float32(self.logits)[0]).astype(jnp.int32)

    def sample_and_log_prob(self, key: Key) -> tuple[Array, Array]:
        """One choice and its log-probability, both [...]."""
        action = self.sample(key)
        return action, self.log_prob(action)

    def log_prob(self, action: Array) -> Array:
        """[...], for choices int [...]."""
        index = jnp.asarray(action).astype(jnp.int32)[..., None]
        return jnp.take_along_axis(self.log_probs(), index, axis=-1)[..., 0]

    def mode(self) -> Array:
        """The likeliest choice, the first of equals, int32 [...]."""
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)

    def entropy(self, key: Key | None = None) -> Array:
        """[...], exact; a choice ruled out adds nothing. The key is not used, see :meth:`Normal.entropy`."""
        log_probs = self.log_probs()
        finite = jnp.where(jnp.isneginf(log_probs), 0.0, log_probs)
        return -jnp.sum(jnp.exp(log_probs) * finite, axis=-1)


def scale_action(unit: Array, low: ArrayLike, high: ArrayLike) -> Array:
    """From [-1, 1] to [low, high], entry by entry; never outside, whatever the rounding. float32 [..., D]."""
    middle, half = _middle_and_half(low, high)
    return jnp.clip(middle + half * unit, low, high)


def unscale_action(action: Array, low: ArrayLike, high: ArrayLike) -> Array:
    """From [low, high] to [-1, 1], the inverse of :func:`scale_action`; 0 where bounds coincide. float32 [..., D]."""
    middle, half = _middle_and_half(low, high)
    return jnp.where(half > 0.0, (action - middle) / jnp.where(half > 0.0, half, 1.0), 0.0)


def smoothing_noise(
    key: Key, action: Array, std: Array | float, clip: Array | float, low: ArrayLike, high: ArrayLike
) -> Array:
    """An action with clipped Gaussian noise added, within the bounds (Fujimoto et al. 2018, equation 14).

        clip(action + clip(noise, -c, c), low, high),    noise ~ N(0, s^2)

    ``std`` and ``clip`` are in units of half the range of each entry, so that s = std (high - low) / 2, and c likewise.

    Args:
        key: used once; every row and entry has its own noise.
        action: [..., D], in the environment's units.
    """
    check_key(key)
    _, half = _middle_and_half(low, high)
    noise = jnp.clip(std * jax.random.normal(key, jnp.shape(action), jnp.float32), -clip, clip)
    return jnp.clip(action + half * noise, low, high)


def _float32(*arrays: Array) -> tuple[Array, ...]:
    """Broadcast against each other, in float32 (float64 stays)."""
    return tuple(
        x.astype(jnp.promote_types(x.dtype, jnp.float32)) for x in jnp.broadcast_arrays(*map(jnp.asarray, arrays))
    )


def _log_normal(x: Array, loc: Array, scale: Array) -> Array:
    x, loc, scale = _float32(x, loc, scale)
    return -0.5 * jnp.square((x - loc) / scale) - jnp.log(scale) - _HALF_LOG_TWO_PI


def _middle_and_half(low: ArrayLike, high: ArrayLike) -> tuple[Array, Array]:
    """Centre and half the width of the bounds."""
    low, high = _float32(low, high)
    return 0.5 * (low + high), 0.5 * (high - low)
