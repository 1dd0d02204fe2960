"""Combiners against cases worked out by hand and their published invariances; PopArt against exact preservation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.errors import UsageError
from jaxrl.losses import combiners, popart


def direction(name, gradients, **options):
    gradients = jnp.asarray(gradients, jnp.float32)
    return np.asarray(combiners.combine(combiners.combiner(name, **options), gradients, jax.random.key(0)))


def test_gram_and_sum_run_over_all_leaves():
    gradients = {"a": jnp.asarray([[1.0, 2.0], [0.0, 1.0]]), "b": jnp.asarray([[[1.0]], [[3.0]]])}
    np.testing.assert_allclose(combiners.gram(gradients), [[6.0, 5.0], [5.0, 10.0]])
    summed = combiners.weighted_sum(gradients, jnp.asarray([2.0, -1.0]))
    np.testing.assert_allclose(summed["a"], [2.0, 3.0])
    np.testing.assert_allclose(summed["b"], [[-1.0]])


@pytest.mark.parametrize("name", combiners.COMBINERS)
def test_one_task_comes_back_as_it_is(name):
    np.testing.assert_allclose(direction(name, [[0.3, -2.0, 1e-3]]), [0.3, -2.0, 1e-3], rtol=1e-5)


def test_pcgrad_by_hand():
    """g1 = (1, 0), g2 = (-1, 1): g1 loses its part along g2, (1, 0) + 1/2 (-1, 1) = (.5, .5); g2 becomes (0, 1)."""
    np.testing.assert_allclose(direction("pcgrad", [[1, 0], [-1, 1]]), [0.25, 0.75], atol=1e-6)


def test_pcgrad_leaves_gradients_without_conflict_alone():
    gradients = [[1.0, 0.0, 0.5], [0.2, 1.0, 0.0], [0.0, 0.3, 2.0]]
    np.testing.assert_allclose(direction("pcgrad", gradients), np.mean(gradients, 0), atol=1e-6)


def test_pcgrad_of_three_tasks_equals_the_loop_over_vectors():
    gradients = np.asarray([[1.0, 0.2], [-0.8, 0.5], [0.1, -1.0]])
    key = jax.random.key(3)
    out = []
    for i, order_key in enumerate(jax.random.split(key, 3)):
        own = gradients[i].copy()
        for j in np.asarray(jax.random.permutation(order_key, 3)):
            if j != i and own @ gradients[j] < 0:
                own -= own @ gradients[j] / (gradients[j] @ gradients[j]) * gradients[j]
        out.append(own)
    found = combiners.combine(combiners.pcgrad, jnp.asarray(gradients, jnp.float32), key)
    np.testing.assert_allclose(found, np.mean(out, 0), atol=1e-6)


def test_cagrad_at_zero_is_the_mean():
    gradients = [[3.0, 0.0], [-1.0, 1.0]]
    np.testing.assert_allclose(direction("cagrad", gradients, c=0.0), [1.0, 0.5], atol=1e-6)


@pytest.mark.parametrize("c", [0.3, 0.9])
def test_cagrad_helps_the_worst_task_most_within_its_ball(c):
    """Against a fine search over directions in the plane."""
    gradients = np.asarray([[2.0, 0.3], [-0.7, 0.9]])
    mean = gradients.mean(0)
    angles = np.linspace(0, 2 * np.pi, 200_001)
    ball = mean + c * np.linalg.norm(mean) * np.stack([np.cos(angles), np.sin(angles)], 1)
    best = ball[np.argmax((ball @ gradients.T).min(1))] / (1 + c * c)
    np.testing.assert_allclose(direction("cagrad", gradients, c=c), best, atol=2e-3)


def stacked(tasks, spread, size=200):
    """Gradients in float64 whose norms are spread evenly over decades, and their Gram matrix in float32."""
    rng = np.random.default_rng(tasks)
    gradients = rng.normal(size=(tasks, size)) * np.logspace(0, np.log10(spread), tasks)[:, None]
    return gradients, jnp.asarray(gradients @ gradients.T, jnp.float32)


SPREADS = [(2, 1), (3, 1e2), (3, 1e4), (10, 1e3), (10, 1e4), (50, 1e4)]


@pytest.mark.parametrize("tasks, spread", SPREADS)
def test_fairgrad_meets_its_optimality_condition(tasks, spread):
    """w_k (G w)_k = 1 for every task, in float64, once the length is taken back out; norms far below the median are floored."""
    gradients, gram = stacked(tasks, spread)
    length = np.linalg.norm(gradients.mean(0)) / np.sqrt(tasks)
    weights = np.asarray(combiners.fairgrad(gram), np.float64) / length
    exact = gradients @ gradients.T
    exact += np.diag(np.maximum(1e-6 * np.median(np.diag(exact)) - np.diag(exact), 0.0))
    assert np.abs(weights * (exact @ weights) - 1).max() < 1e-4


@pytest.mark.parametrize("tasks, spread", SPREADS)
@pytest.mark.parametrize("c", [0.5, 0.9])
def test_cagrad_leaves_no_duality_gap(tasks, spread, c):
    """No task gains less than the mixture that the direction leans on: what the worst one gains is all there is to gain."""
    gradients, gram = stacked(tasks, spread)
    direction = (1 + c * c) * np.asarray(combiners.cagrad(gram, c=c), np.float64)
    mixture = direction - 1 / tasks
    gains = gradients @ (direction @ gradients)
    assert gains.min() >= (mixture / mixture.sum()) @ gains * (1 - 1e-2) > 0
    mean = gradients.mean(0)
    assert np.linalg.norm(mixture @ gradients) == pytest.approx(c * np.linalg.norm(mean), rel=1e-4)


@pytest.mark.parametrize("tasks, spread", SPREADS)
def test_mgda_meets_its_optimality_condition(tasks, spread):
    """<g_k, d> >= |d|^2 for every task: d is the foot of the perpendicular."""
    gradients, gram = stacked(tasks, spread)
    weights = np.asarray(combiners.mgda(gram), np.float64)
    assert weights.sum() == pytest.approx(1.0, rel=1e-5) and (weights >= 0).all()
    direction = weights @ gradients
    assert (gradients @ direction).min() >= (1 - 1e-4) * direction @ direction


@pytest.mark.parametrize("name", combiners.COMBINERS)
@pytest.mark.parametrize(
    "gradients",
    [
        [[1.0, 0.0], [-1.0, 0.0]],
        [[1.0, 0.0], [-1.0, 1e-4]],
        [[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]],
        [[1.0, 0.0], [0.0, 0.0]],
        [[0.0, 0.0], [0.0, 0.0]],
        [[1e-12, 0.0], [0.0, 1e9]],
    ],
)
def test_gradients_that_cancel_or_vanish_give_a_finite_direction_no_longer_than_the_longest(name, gradients):
    found = direction(name, gradients)
    assert np.isfinite(found).all()
    assert np.linalg.norm(found) <= 1.001 * max(np.linalg.norm(gradient) for gradient in gradients)


def test_fairgrad_pushes_no_task_uphill_and_keeps_the_mean_s_length():
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(6, 40)) + 0.3
    found = direction("fairgrad", gradients)
    assert (gradients @ found > 0).all()
    np.testing.assert_allclose(np.linalg.norm(found), np.linalg.norm(gradients.mean(0)), rtol=1e-4)


def test_fairgrad_survives_a_solved_task():
    found = direction("fairgrad", [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    assert np.isfinite(found).all() and (found > 0).all()


def test_fairgrad_of_orthogonal_gradients_by_hand():
    """G = diag(4, 1): w = 1 / |g|, so d is along (1, 1), with the length of the mean (1, .5)."""
    np.testing.assert_allclose(direction("fairgrad", [[2, 0], [0, 1]]), np.full(2, np.sqrt(1.25 / 2)), rtol=1e-4)


def test_mgda_is_the_shortest_vector_of_the_hull():
    """Of (2, 0) and (0, 1): foot of the perpendicular from the origin, (.4, .8)."""
    np.testing.assert_allclose(direction("mgda", [[2, 0], [0, 1]]), [0.4, 0.8], atol=1e-3)
    np.testing.assert_allclose(direction("mgda", [[1, 0], [2, 0]]), [1.0, 0.0], atol=1e-3)


def test_conditioning_by_hand():
    """Norms 10 and 1 at 60 degrees."""
    gram = jnp.asarray([[100.0, 5.0], [5.0, 1.0]])
    found = {name: float(value) for name, value in combiners.conditioning(gram).items()}
    np.testing.assert_allclose(found["norm_spread"], 1.0, rtol=1e-5)
    np.testing.assert_allclose(found["largest_share"], 10 / 11, rtol=1e-5)
    np.testing.assert_allclose(found["mean_cosine"], 0.5, rtol=1e-5)
    np.testing.assert_allclose(found["condition"], np.log10(3), rtol=1e-4)
    assert found["conflicts"] == 0
    np.testing.assert_allclose([found["norm/0"], found["norm/1"], found["cosine/0-1"]], [10.0, 1.0, 0.5], rtol=1e-5)
    assert not [name for name in combiners.conditioning(jnp.eye(11)) if name.startswith("cosine/")]


def test_unknown_combiner_is_refused():
    with pytest.raises(UsageError, match="did you mean 'pcgrad'"):
        combiners.combiner("pcgard")
    with pytest.raises(UsageError, match="at least 0, got -1"):
        combiners.combiner("cagrad", c=-1.0)
    with pytest.raises(UsageError, match="mgda takes no 'c'"):
        combiners.combiner("mgda", c=0.5)
    with pytest.raises(UsageError, match=r"\[3\] tasks need one weight a task, got shape \(2,\)"):
        combiners.weighted_sum(jnp.ones((3, 4)), jnp.ones(2))


def test_popart_preserves_outputs_while_statistics_move_by_ten_thousand():
    rng = np.random.default_rng(0)
    statistics, head = popart.init(3)
    head = popart.Head(jnp.asarray([1.0, 0.5, -2.0]), jnp.asarray([0.1, -0.3, 0.0]))
    trunk = jnp.asarray(rng.normal(size=(50, 3)), jnp.float32)
    for target_scale in (1.0, 1e4, 1e2, 1e4):
        targets = jnp.asarray(target_scale * (rng.normal(size=(64, 3)) + 2.0), jnp.float32)
        before = popart.denormalise(statistics, popart.value(head, trunk))
        moved = popart.update(statistics, targets)
        head = popart.preserve(head, statistics, moved)
        after = popart.denormalise(moved, popart.value(head, trunk))
        size = float(jnp.max(popart.scale(moved)))
        np.testing.assert_allclose(after / size, before / size, atol=1e-5)
        statistics = moved


def test_popart_statistics_equal_those_of_all_targets_together():
    rng = np.random.default_rng(1)
    batches = [rng.normal(3.0, 5.0, size=(n, 2)) for n in (10, 200, 1, 37)]
    statistics, _ = popart.init(2)
    for batch in batches:
        statistics = popart.update(statistics, jnp.asarray(batch, jnp.float32))
    together = np.concatenate(batches)
    np.testing.assert_allclose(statistics.mean, together.mean(0), rtol=1e-4)
    np.testing.assert_allclose(popart.scale(statistics), together.std(0), rtol=1e-4)
    assert (statistics.count == len(together)).all()


def test_popart_loss_by_hand_and_constant_target():
    """mu 10, sigma 2; target 14 is 2 normalised; value 0.5 * 3 + 0.1 = 1.6: loss 0.08."""
    statistics = popart.Statistics(jnp.ones(1), jnp.asarray([10.0]), jnp.asarray([4.0]))
    head = popart.Head(jnp.asarray([0.5]), jnp.asarray([0.1]))
    args = head, statistics, jnp.asarray([3.0]), jnp.asarray([14.0])
    np.testing.assert_allclose(popart.loss(*args), [0.08], rtol=1e-5)
    assert jax.grad(lambda t: popart.loss(head, statistics, jnp.asarray([3.0]), t).sum())(jnp.asarray([14.0])) == 0
