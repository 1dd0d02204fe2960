"""The arithmetic behind intervals: moments of an estimate, a skewness-corrected t, and the stratified bootstrap.

Scores are ``[..., runs, tasks]``. Runs are independent within a task, and tasks are fixed, so that all variances are
sums over tasks. The functions here trust their input; :mod:`jaxrl.analysis.statistics` checks it.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

# Both shrinkages were chosen by simulation, for a 95 % interval of a mean that covers 93 to 97 % on normal, exponential,
# lognormal and bimodal runs alike: the skewness of few runs is overestimated, and their variance is not chi-squared.
SKEWNESS_SHARE = 0.75
FREEDOM_SHARE = 0.75
MANY_RUNS = 8
COUNTED = 10  # resamples beyond a point, below which their number says little about the tail
CHUNK = 2_000_000  # numbers held at once by the bootstrap


class Moments(NamedTuple):
    """What is known about the error of an estimate that is a mean of independent influences. Each ``[...]``."""

    variance: np.ndarray  # of the estimate
    third: np.ndarray  # its third central moment, from the biased moments of the runs
    spread: np.ndarray  # its variance from the biased moments, which the third is relative to
    freedom: np.ndarray  # Satterthwaite's degrees of freedom


def moments(influence: np.ndarray) -> Moments:
    """Moments of ``mean(influence)`` for influences ``[..., runs, tasks]``, summed over tasks (Satterthwaite 1946)."""
    runs, tasks = influence.shape[-2:]
    centred = influence - influence.mean(-2, keepdims=True)
    second = (centred**2).mean(-2) / tasks**2
    of_task = second / (runs - 1)
    variance, squares = of_task.sum(-1), (of_task**2).sum(-1)
    freedom = (runs - 1) * np.where(squares > 0, variance**2 / np.where(squares > 0, squares, 1.0), 1.0)
    return Moments(variance, (centred**3).mean(-2).sum(-1) / (runs**2 * tasks**3), second.sum(-1) / runs, freedom)


def minus(a: Moments, b: Moments) -> Moments:
    """Moments of the difference of two independent estimates; degrees of freedom after Welch (1947)."""
    variance = a.variance + b.variance
    parts = a.variance**2 / a.freedom + b.variance**2 / b.freedom
    freedom = np.where(parts > 0, variance**2 / np.where(parts > 0, parts, 1.0), a.freedom + b.freedom)
    return Moments(variance, a.third - b.third, a.spread + b.spread, freedom)


def scaled(a: Moments, factor: float) -> Moments:
    """Moments of ``factor`` times the estimate."""
    return Moments(a.variance * factor**2, a.third * factor**3, a.spread * factor**2, a.freedom)


def _skewness(error: Moments) -> np.ndarray:
    safe = np.where(error.spread > 0, error.spread, 1.0)
    return SKEWNESS_SHARE * error.third / safe**1.5


def skew_t(value: np.ndarray, error: Moments, confidence: float) -> tuple[np.ndarray, np.ndarray]:
    """A t interval of Hall's cubic transformation, which removes the skewness of the t statistic.

    With ``a`` the estimate's skewness, ``g(t) = t + a t^2 / 3 + a^2 t^3 / 27 + a / 6`` is closer to a t distribution
    than ``t`` itself; ``g`` is monotone and inverted in closed form (Hall 1992, "On the removal of skewness by
    transformation"). Without skewness this is Student's (or Welch's) interval with a share of the degrees of freedom.
    """
    from scipy.special import stdtrit

    quantile = stdtrit(FREEDOM_SHARE * error.freedom, (1 + confidence) / 2)
    scale, skewness = np.sqrt(error.variance), _skewness(error)
    return value - scale * _hall_inverse(quantile, skewness), value - scale * _hall_inverse(-quantile, skewness)


def skew_t_p(value: np.ndarray, error: Moments) -> np.ndarray:
    """The two-sided p-value of "the estimate is 0" that belongs to :func:`skew_t`."""
    from scipy.special import stdtr

    scale, a = np.sqrt(error.variance), _skewness(error)
    t = _ratio(value, scale)
    finite = np.where(np.isfinite(t), t, 0.0)
    moved = np.where(np.isfinite(t), finite + a * finite**2 / 3 + a**2 * finite**3 / 27 + a / 6, t)
    return 2 * stdtr(FREEDOM_SHARE * error.freedom, -np.abs(moved))


def _ratio(value: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """``value / scale``; 0 for 0 / 0, infinite for anything else over 0."""
    safe = np.where(scale > 0, scale, 1.0)
    return np.where(scale > 0, value / safe, np.where(value == 0, 0.0, np.copysign(np.inf, value)))


def _hall_inverse(y: np.ndarray, a: np.ndarray) -> np.ndarray:
    small = np.abs(a) < 1e-6
    safe = np.where(small, 1.0, a)
    return np.where(small, y, 3 / safe * (np.cbrt(1 + safe * (y - safe / 6)) - 1))


def careful_t(value: np.ndarray, error: Moments, confidence: float) -> tuple[np.ndarray, np.ndarray]:
    """From the lowest to the highest bound of :func:`skew_t` with the skewness and without it.

    For differences. Of two alike methods the difference is symmetric, and what skewness a few runs show is chance, which
    the transformation follows; of unlike ones it is real, and the plain interval misses it.
    """
    skewed, plain = skew_t(value, error, confidence), skew_t(value, _symmetric(error), confidence)
    return np.minimum(skewed[0], plain[0]), np.maximum(skewed[1], plain[1])


def careful_p(value: np.ndarray, error: Moments) -> np.ndarray:
    """The two-sided p-value of "the estimate is 0" that belongs to :func:`careful_t`."""
    return np.maximum(skew_t_p(value, error), skew_t_p(value, _symmetric(error)))


def _symmetric(error: Moments) -> Moments:
    return error._replace(third=np.zeros_like(error.third))


def student_t(value: np.ndarray, error: Moments, confidence: float) -> tuple[np.ndarray, np.ndarray]:
    """The plain t interval."""
    from scipy.special import stdtrit

    half = np.sqrt(error.variance) * stdtrit(error.freedom, (1 + confidence) / 2)
    return value - half, value + half


def student_p(value: np.ndarray, error: Moments) -> np.ndarray:
    """The two-sided p-value of "the estimate is 0" that belongs to :func:`student_t`."""
    from scipy.special import stdtr

    scale = np.sqrt(error.variance)
    t = _ratio(value, scale)
    return 2 * stdtr(error.freedom, -np.abs(t))


def trimmed(scores: np.ndarray) -> tuple[np.ndarray, int, int]:
    """All scores ``[..., runs * tasks]`` in order, and the half-open range that a 25 % trimmed mean keeps."""
    flat = np.sort(scores.reshape(*scores.shape[:-2], -1), -1)
    cut = int(0.25 * flat.shape[-1])
    return flat, cut, flat.shape[-1] - cut


def winsorised(scores: np.ndarray) -> np.ndarray:
    """Scores ``[..., runs, tasks]`` pulled in to the smallest and largest kept by the interquartile mean."""
    flat, start, stop = trimmed(scores)
    return np.clip(scores, flat[..., start, None, None], flat[..., stop - 1, None, None])


def trimmed_moments(influence: np.ndarray, scores: np.ndarray) -> Moments:
    """Moments of an interquartile mean (or of a difference of two, paired) from winsorised scores.

    Yuen's (1974) variance and degrees of freedom for one task; Satterthwaite's sum over more of them. Of few runs the
    middle ones may be equal by chance where the rest are not; the plain mean's moments stand in where they are larger.

    Args:
        influence: winsorised scores ``[..., runs, tasks]``, or their paired difference.
        scores: the same, not winsorised.
    """
    runs, tasks = influence.shape[-2:]
    total = runs * tasks
    kept = total - 2 * int(0.25 * total)
    plain = moments(influence)
    factor = (total / kept) ** 2 * (total - 1) * kept / ((kept - 1) * total)
    yuen = scaled(plain, factor**0.5)._replace(freedom=plain.freedom * (kept - 1) / (total - 1))
    if runs >= MANY_RUNS:
        return yuen
    whole = moments(scores)
    return Moments(*(np.where(whole.variance > yuen.variance, a, b) for a, b in zip(whole, yuen, strict=True)))


def expanded_level(alpha: float, freedom: np.ndarray, runs: int) -> np.ndarray:
    """The bootstrap quantile that stands for ``alpha``: wider, as few runs deserve.

    Resampling ``n`` runs gives a variance that is ``(n - 1) / n`` of the right one, and normal rather than t tails;
    both are put right by moving out to ``Phi(sqrt(n / (n - 1)) t_alpha)`` (Hesterberg 2015).
    """
    from scipy.special import ndtr, stdtrit

    return ndtr(np.sqrt(runs / (runs - 1)) * stdtrit(freedom, alpha))


def expanded_p(draws: np.ndarray, freedom: float, runs: int) -> float:
    """The two-sided p-value of "the estimate is 0" that belongs to quantiles at :func:`expanded_level`.

    Where too few resamples lie beyond 0 to count them, the tail goes on as a normal's would from the last quantile that
    can be counted: without that no p-value would fall below what the number of resamples allows, and none would survive
    a correction for many comparisons.
    """
    from scipy.special import ndtri, stdtr

    below = (np.mean(draws < 0) + np.mean(draws <= 0)) / 2
    if below in (0.0, 1.0) and np.ptp(draws) == 0:
        return 0.0
    tail = np.clip(min(below, 1 - below), 0.5 / len(draws), 0.5)
    counted, score = COUNTED / len(draws), ndtri(tail)
    if tail < counted <= 0.5:
        centre, edge = np.quantile(draws, [0.5, counted if below < 0.5 else 1 - counted])
        if edge != centre:
            score = min(score, ndtri(counted) * abs(centre) / abs(centre - edge))
    return float(2 * stdtr(freedom, score * np.sqrt((runs - 1) / runs)))


@lru_cache(maxsize=8)
def _counts(runs: int, tasks: int, resamples: int, seed: tuple[int, ...]) -> np.ndarray:
    """How often each run is drawn: ``[resamples, runs, tasks]``, each task summing to ``runs``."""
    drawn = np.random.default_rng(seed).multinomial(runs, np.full(runs, 1 / runs), size=(resamples, tasks))
    counts = np.ascontiguousarray(drawn.swapaxes(1, 2).astype(np.int32))
    counts.setflags(write=False)
    return counts


def resampled_counts(runs: int, tasks: int, resamples: int, seed: tuple[int, ...]) -> Iterator[np.ndarray]:
    """Stratified resamples as counts ``[chunk, runs, tasks]``, in chunks that fit the memory."""
    chunk = max(1, min(resamples, CHUNK // (runs * tasks)))
    for index, start in enumerate(range(0, resamples, chunk)):
        yield _counts(runs, tasks, min(chunk, resamples - start), (*seed, index))


def mean_of_counts(scores: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Means ``[chunk]`` of resamples of ``[runs, tasks]``."""
    return counts.reshape(len(counts), -1) @ scores.ravel() / scores.size


def median_of_counts(scores: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Medians over tasks of the tasks' means ``[chunk]``."""
    return np.median(np.einsum("brt,rt->bt", counts, scores) / len(scores), -1)


def iqm_of_counts(scores: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Interquartile means ``[chunk]``, without sorting a resample: only the scores themselves are sorted."""
    flat = scores.ravel()
    order = np.argsort(flat, kind="stable")
    return iqm_weights(counts.reshape(len(counts), -1)[:, order]) @ flat[order]


def iqm_weights(counts: np.ndarray) -> np.ndarray:
    """The weight of each order statistic in each resample's interquartile mean. ``[chunk, total]``, rows sum to 1.

    Args:
        counts: how often each score is drawn, in the order of the scores.
    """
    total = counts.shape[1]
    cut = int(0.25 * total)
    upto = np.cumsum(counts, 1)
    kept = np.minimum(upto, total - cut) - np.maximum(upto - counts, cut)
    return np.maximum(kept, 0) / (total - 2 * cut)


def bootstrap_iqm_batch(scores: np.ndarray, resamples: int, seed: tuple[int, ...]) -> np.ndarray:
    """Interquartile means ``[..., resamples]`` of one task's runs ``[..., runs]``; every row shares its resamples."""
    ordered = np.sort(scores, -1)
    parts = [
        ordered @ iqm_weights(counts[..., 0]).T for counts in resampled_counts(scores.shape[-1], 1, resamples, seed)
    ]
    return np.concatenate(parts, -1)


def bootstrap(
    scores: np.ndarray, of_counts: Callable[[np.ndarray, np.ndarray], np.ndarray], resamples: int, seed: tuple[int, ...]
) -> np.ndarray:
    """An aggregate of every resample. ``[resamples]``."""
    runs, tasks = scores.shape
    return np.concatenate([of_counts(scores, counts) for counts in resampled_counts(runs, tasks, resamples, seed)])


def bootstrap_any(
    scores: np.ndarray, aggregate: Callable[[np.ndarray], np.ndarray], resamples: int, seed: tuple[int, ...]
) -> np.ndarray:
    """As :func:`bootstrap`, for any function of ``[..., runs, tasks]``."""
    runs, tasks = scores.shape
    generator = np.random.default_rng(seed)
    chunk = max(1, min(resamples, CHUNK // scores.size))
    parts = []
    for start in range(0, resamples, chunk):
        index = generator.integers(0, runs, (min(chunk, resamples - start), runs, tasks))
        parts.append(np.asarray(aggregate(scores[index, np.arange(tasks)]), np.float64))
    return np.concatenate(parts)


def task_t_draws(scores: np.ndarray, resamples: int, seed: tuple[int, ...]) -> np.ndarray:
    """Means of every task ``[resamples, tasks]``, each drawn from the t distribution that its runs leave it."""
    runs, tasks = scores.shape
    scale = scores.std(0, ddof=1) / np.sqrt(runs)
    return scores.mean(0) + scale * np.random.default_rng(seed).standard_t(runs - 1, (resamples, tasks))
