"""Spectral objectives: identities among them, and where the released code and the mathematics part."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.errors import UsageError
from jaxrl.koopman import objectives

RNG = np.random.default_rng(0)


def pair(count=40, size=6, noise=0.5):
    x = RNG.normal(size=(count, size)) @ RNG.normal(size=(size, size))
    y = x @ RNG.normal(size=(size, size)) + noise * RNG.normal(size=(count, size))
    return x, y


def moments(x, y, centre=True):
    """In float64, from the definition."""
    x, y = (a - a.mean(0) if centre else a for a in (x, y))
    return x.T @ x / len(x), y.T @ y / len(y), x.T @ y / len(x)


@pytest.mark.parametrize("centre", [True, False])
def test_l_spec_is_linear_cka(centre):
    """|C_xy|^2 / (|C_x| |C_y|) from covariances equals the score from Gram matrices, to 1e-6."""
    x, y = pair()
    y = y + 3.0
    cx, cy, cxy = moments(x, y, centre)
    expected = np.sum(cxy**2) / (np.linalg.norm(cx) * np.linalg.norm(cy))
    with jax.enable_x64(True):
        found = objectives.linear_cka(jnp.asarray(x), jnp.asarray(y), centre)
        assert abs(float(found) - expected) < 1e-12
    assert abs(float(objectives.linear_cka(jnp.float32(x), jnp.float32(y), centre)) - expected) < 1e-6


def test_cka_by_hand():
    """Centred: x = (-1, 0, 1), y = (1, -2, 1): orthogonal, 0; with itself, or turned and scaled, 1."""
    x, y = jnp.array([[1.0], [2.0], [3.0]]), jnp.array([[1.0], [-2.0], [1.0]])
    assert float(objectives.linear_cka(x, y)) == pytest.approx(0.0, abs=1e-7)
    both = jnp.concatenate([x, y], 1)
    turned = 1e12 * both @ jnp.array([[0.0, -1.0], [1.0, 0.0]])
    assert float(objectives.linear_cka(both, turned)) == pytest.approx(1.0, abs=1e-6)
    assert float(objectives.linear_cka(x, jnp.ones((3, 1)))) == 0.0
    gradient = jax.grad(lambda a: objectives.linear_cka(a, jnp.ones((3, 1))))(x)
    assert jnp.isfinite(gradient).all()


def test_isotropy_by_hand():
    """R(diag(2, 1/2)) = (4 - 2 - ln 2) + (1/4 - 1/2 + ln 2) = 1.75; R(I) = 0; a zero costs -ln of the floor."""
    assert float(objectives.isotropy_penalty(jnp.diag(jnp.array([2.0, 0.5])))) == pytest.approx(1.75, rel=1e-6)
    assert float(objectives.isotropy_penalty(jnp.eye(4))) == pytest.approx(0.0, abs=1e-6)
    assert float(objectives.isotropy_penalty(jnp.diag(jnp.array([1.0, 0.0])))) == pytest.approx(13.8155, rel=1e-5)


def test_vamp_of_what_does_not_vary_is_0():
    assert objectives.vamp2(jnp.ones((8, 3)), jnp.ones((8, 3))) == 0.0


def test_vamp_and_dpnets_of_white_latents_are_sums_of_squared_correlations():
    """Against an SVD in float64; and for white latents DPNets' score is VAMP-2, and CKA times the size."""
    x, y = pair(200)
    cx, cy, cxy = moments(x, y)
    roots = [np.linalg.cholesky(np.linalg.inv(c)) for c in (cx, cy)]
    expected = np.sum(np.linalg.svd(roots[0].T @ cxy @ roots[1], compute_uv=False) ** 2)
    assert float(objectives.vamp2(jnp.float32(x), jnp.float32(y), ridge=0.0)) == pytest.approx(expected, rel=1e-4)
    u, v = objectives.whiten(jnp.float32(x), 0.0), objectives.whiten(jnp.float32(y), 0.0)
    np.testing.assert_allclose(u.T @ u / len(u), np.eye(6), atol=1e-4)
    assert float(objectives.dpnets(u, v)) == pytest.approx(expected, rel=1e-3)
    assert 6 * float(objectives.linear_cka(u, v)) == pytest.approx(expected, rel=1e-3)
    # The relaxed score never exceeds the exact one.
    assert float(objectives.dpnets(jnp.float32(x), jnp.float32(y), penalty=0.0)) <= expected


def test_difference_1_the_second_argument_is_what_followed():
    """On data nothing can predict, K phi(x_t) scores as high as K likes: 1 for K ~ I. What followed scores near 0."""
    x, y = (jnp.float32(RNG.normal(size=(2000, 4))) for _ in range(2))
    assert float(objectives.linear_cka(x, 0.3 * x)) == pytest.approx(1.0, abs=1e-6)
    assert float(objectives.linear_cka(x, y)) < 0.02
    assert objectives.two_term(x, y)[1]["koopman/cka"] < 0.02


def test_difference_2_covariances_are_shared_by_nodes():
    """White latents, 8 x 40 nodes x 16: isotropic as a shared 16 x 16, but 640 features of rank 8 are mostly floor."""
    latents = jnp.float32(RNG.normal(size=(8, 40, 16)))
    shared = objectives.isotropy_penalty(objectives.covariances(latents, latents).x)
    flat = latents.reshape(8, -1)
    unshared = objectives.isotropy_penalty(objectives.covariances(flat, flat).x)
    assert float(shared) < 2.0  # sampling alone gives about 3/2 * 16^2 / 320 = 1.2
    assert float(unshared) > 0.99 * (632 * -np.log(1e-6)) and float(unshared) > 2e4
    assert float(objectives.two_term(latents, latents, penalty=1.0)[1]["koopman/isotropy"]) == pytest.approx(
        2 * float(shared)
    )


def test_difference_3_features_on_a_hyperplane_can_never_be_isotropic():
    """After a layer norm an eigenvalue stays at the floor: R keeps -ln 1e-6 - 0, however well the rest is spread."""
    x = jnp.float32(RNG.normal(size=(4000, 8)))
    normed = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
    best = objectives.whiten(x, 0.0)
    assert float(objectives.isotropy_penalty(objectives.covariances(best, best).x)) < 1e-3
    assert float(objectives.isotropy_penalty(objectives.covariances(normed, normed).x)) > 13.0
    # Uncentred, the constant direction is still missing, for rows of a layer norm sum to 0.
    assert float(objectives.isotropy_penalty(objectives.covariances(normed, normed, False).x)) > 13.0


def test_two_term_raises_prediction_without_collapse():
    x, y = (jnp.float32(a) for a in pair())
    loss, metrics = objectives.two_term(x, y, penalty=0.01)
    expected = 0.01 * metrics["koopman/isotropy"] - metrics["koopman/cka"]
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)
    constant = jnp.ones_like(x)
    assert float(objectives.linear_cka(constant, constant, centre=False)) == pytest.approx(1.0)  # what centring is for
    assert float(objectives.two_term(constant, constant, 0.01)[0]) > 0.5


def test_ncp_by_hand_and_at_its_minimum():
    """Halves u = 1, 2 and v = 3, 4, S = 1: (16 + 36) / 2 - (-1)(-1) = 25. For u = v on a fair coin the loss is -s^2."""
    loss = objectives.ncp_loss(jnp.array([[1.0], [2.0]]), jnp.array([[3.0], [4.0]]), jnp.zeros(1), penalty=0.0)
    assert float(loss) == pytest.approx(25.0)
    with pytest.raises(UsageError, match="use 4"):
        objectives.ncp_loss(jnp.ones((5, 2)), jnp.ones((5, 2)), jnp.zeros(2))

    def expected_loss(s):
        """y = x with probability (1 + r) / 2, r = .6: u = x, v = y is the one pair of singular functions, value r."""
        x = jnp.asarray(RNG.choice([-1.0, 1.0], size=(200000, 1)), jnp.float32)
        y = x * jnp.asarray(RNG.choice([1.0, -1.0], size=x.shape, p=[0.8, 0.2]), jnp.float32)
        return float(objectives.ncp_loss(x, y, jnp.sqrt(-jnp.log(jnp.full(1, s))), penalty=1.0))

    losses = [expected_loss(s) for s in (0.3, 0.6, 0.9)]
    # E: s^2 - 2 s r, least at s = r, where it is -r^2.
    np.testing.assert_allclose(losses, [0.09 - 0.36, -0.36, 0.81 - 1.08], atol=0.03)


def test_what_cannot_work_is_refused():
    with pytest.raises(UsageError, match="one shape"):
        objectives.two_term(jnp.ones((4, 2)), jnp.ones((4, 3)))
    with pytest.raises(UsageError, match="one length"):
        objectives.linear_cka(jnp.ones((4, 2)), jnp.ones((5, 2)))
