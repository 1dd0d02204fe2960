"""Fits in closed form: spectra that are known, an independent implementation, noise, control, and data that do not do."""

import numpy as np
import pytest

from jaxrl.errors import UsageError
from jaxrl.koopman import dictionaries, fits, operators, spectra

RNG = np.random.default_rng(0)


def a_linear_system(size=5, count=60):
    """A matrix with eigenvalues .99 e^(+-.3i), .9, .5, -.2 in a random basis, and one trajectory from a random start."""
    turn = 0.99 * np.array([[np.cos(0.3), -np.sin(0.3)], [np.sin(0.3), np.cos(0.3)]])
    blocks = np.zeros((size, size))
    blocks[:2, :2], blocks[2, 2], blocks[3, 3], blocks[4, 4] = turn, 0.9, 0.5, -0.2
    basis = RNG.normal(size=(size, size))
    matrix = basis @ blocks @ np.linalg.inv(basis)
    states = [RNG.normal(size=size)]
    for _ in range(count):
        states.append(matrix @ states[-1])
    return matrix, np.stack(states)


def in_order(values):
    return np.asarray(values)[spectra.dominant_order(values)]


KNOWN = in_order([0.99 * np.exp(0.3j), 0.99 * np.exp(-0.3j), 0.9, 0.5, -0.2])


def test_by_hand():
    """x' = 2 x over x = 1, 2 with a ridge of 5: (2 + 8) / (1 + 4 + 5) = 1."""
    fit = fits.edmd([[1.0], [2.0]], [[2.0], [4.0]], ridge=5.0)
    np.testing.assert_allclose(fit.A, [[1.0]], rtol=1e-12)
    assert fit.B is None and fit.error == pytest.approx(0.5)


@pytest.mark.parametrize("fit", [fits.edmd, fits.consistent])
def test_a_known_spectrum_to_1e_6(fit):
    matrix, _ = a_linear_system()
    states = RNG.normal(size=(50, 5))
    found = fit(states, states @ matrix.T)
    np.testing.assert_allclose(in_order(np.linalg.eigvals(found.A)), KNOWN, atol=1e-6)
    assert found.A.dtype == np.float64 and found.error < 1e-10


def test_dmd_on_one_trajectory_finds_the_spectrum_and_rebuilds_the_data():
    _, states = a_linear_system(count=30)
    found = fits.dmd(states[:-1], states[1:])
    np.testing.assert_allclose(in_order(found.eigenvalues), KNOWN, atol=1e-6)
    rebuilt = (found.modes * found.eigenvalues**7) @ found.amplitudes
    np.testing.assert_allclose(rebuilt.real, states[7], atol=1e-8)


def test_slow_manifold():
    """x1' = mu x1, x2' = lambda (x2 - x1^2) is linear in (x1, x2, x1^2), with rates mu, lambda and 2 mu, to 1e-4."""
    mu, decay, step = -0.05, -1.0, 0.1
    start = RNG.uniform(-1, 1, size=(40, 2))
    # The exact solution: x2 relaxes to b x1^2 with b = lambda / (lambda - 2 mu).
    b = decay / (decay - 2 * mu)
    x1 = start[:, 0] * np.exp(mu * step)
    x2 = b * x1**2 + (start[:, 1] - b * start[:, 0] ** 2) * np.exp(decay * step)
    dictionary = dictionaries.polynomial(2, 2, constant=False)
    keep = [dictionary.names.index(name) for name in ("x1", "x2", "x1^2")]
    before, after = (dictionary.features({}, x)[:, keep] for x in (start, np.stack([x1, x2], 1)))
    assert before.dtype == np.float64
    spectrum = spectra.spectrum(fits.edmd(before, after).A, step)
    np.testing.assert_allclose(sorted(spectrum.rates), sorted([mu, decay, 2 * mu]), atol=1e-4)
    np.testing.assert_allclose(spectrum.frequencies, 0, atol=1e-8)
    # x2 - b x1^2 is the eigenfunction of lambda: after a step it has shrunk by exactly that much.
    values, moved = (spectra.eigenfunctions(spectrum, data) for data in (before, after))
    np.testing.assert_allclose(moved, values * spectrum.eigenvalues, atol=1e-8)


@pytest.mark.parametrize(("shape", "rank"), [((40, 6), 4), ((40, 6), 6), ((12, 30), 5)])
def test_dmd_is_pydmd(shape, rank):
    """Eigenvalues, modes (up to their scale) and the rebuilt data, on noisy data tall and wide."""
    pydmd = pytest.importorskip("pydmd")
    data = RNG.normal(size=shape)
    reference = pydmd.DMD(svd_rank=rank, exact=True)
    reference.fit(data.T)
    found = fits.dmd(data[:-1], data[1:], rank=rank)
    ours, theirs = spectra.dominant_order(found.eigenvalues), spectra.dominant_order(reference.eigs)
    np.testing.assert_allclose(found.eigenvalues[ours], reference.eigs[theirs], atol=1e-6)
    a, b = found.modes[:, ours], reference.modes[:, theirs]
    np.testing.assert_allclose(np.abs(np.sum(a.conj() * b, 0)), np.linalg.norm(b, axis=0), rtol=1e-6)


def test_optimal_rank_of_low_rank_data_in_noise():
    clean = RNG.normal(size=(200, 3)) @ RNG.normal(size=(3, 50))
    noisy = clean + 0.01 * RNG.normal(size=clean.shape)
    assert len(fits.dmd(noisy[:-1], noisy[1:], rank="optimal").eigenvalues) == 3


def test_control_is_told_from_dynamics():
    matrix, _ = a_linear_system()
    states, controls, effect = RNG.normal(size=(40, 5)), RNG.normal(size=(40, 2)), RNG.normal(size=(5, 2))
    after = states @ matrix.T + controls @ effect.T
    fit = fits.edmd(states, after, controls)
    np.testing.assert_allclose(fit.A, matrix, atol=1e-9)
    np.testing.assert_allclose(fit.B, effect, atol=1e-9)
    params = fits.dense_params(fit)
    moved = operators.dense(5, 2).step(params, np.float32(states), np.float32(controls))
    np.testing.assert_allclose(moved, after, atol=1e-4)
    # Without the controls what they did is put down to chance, and the dynamics come out wrong.
    assert np.abs(fits.edmd(states, after).A - matrix).max() > 0.05


def test_consistent_fit_undoes_the_shrinking_by_noise():
    """A slow turn seen through noise: eigenvalues of the one-way fit lie well inside, those of the consistent fit do not."""
    angle = np.arange(2001) * 0.2
    states = np.stack([np.cos(angle), np.sin(angle)], 1) + 0.3 * RNG.normal(size=(2001, 2))
    one_way, both = (np.abs(np.linalg.eigvals(f(states[:-1], states[1:]).A)) for f in (fits.edmd, fits.consistent))
    assert (one_way < 0.9).all()
    np.testing.assert_allclose(both, 1.0, atol=0.02)


def test_float32_is_an_option_and_less_precise():
    matrix, _ = a_linear_system()
    states = RNG.normal(size=(50, 5))
    found = fits.edmd(states, states @ matrix.T, dtype=np.float32)
    assert found.A.dtype == np.float32
    error = np.abs(found.A - matrix).max()
    assert 1e-9 < error < 1e-4


def test_data_that_cannot_work_are_refused():
    x = RNG.normal(size=(4, 5))
    hole = x.copy()
    hole[2, 3] = np.nan
    tall = RNG.normal(size=(9, 2))
    for call, said in [
        (lambda: fits.edmd(x, x), "4 snapshots do not determine 5 features"),
        (lambda: fits.edmd(tall[:3], tall[:3], tall[:3]), "3 snapshots do not determine 4"),
        (lambda: fits.consistent(x, x), "ridge=1e-6"),
        (lambda: fits.dmd(x, x), "rank=4"),
        (lambda: fits.edmd(hole, x, ridge=1.0), r"nan at \[2, 3\]"),
        (lambda: fits.edmd(x, hole, ridge=1.0), r"nan at \[2, 3\]"),
        (lambda: fits.dmd(tall, tall * np.inf), "inf at"),
        (lambda: fits.edmd(tall, tall, tall * np.nan), "controls hold nan"),
        (lambda: fits.edmd(x, x[:3], ridge=1.0), "data"),
        (lambda: fits.edmd(tall, tall, tall[:5]), "as many controls"),
        (lambda: fits.edmd(x[0], x[0]), "one row a snapshot"),
        (lambda: fits.edmd(tall, tall, ridge=-1.0), "at least 0"),
        (lambda: fits.edmd(tall, tall, ridge=np.inf), "finite"),
        (lambda: fits.edmd(tall, tall, ridge="a"), "got 'a'"),
        (lambda: fits.edmd(1e200 * tall, tall, dtype=np.float32), "more than float32 can"),
        (lambda: fits.dmd(0 * tall, 0 * tall), "0 everywhere"),
        (lambda: fits.dmd(tall, tall, rank=3), "use at most 2"),
        (lambda: fits.dmd(tall, tall, rank=0), "unknown rank 0"),
        (lambda: fits.dmd(tall, tall, rank="best"), "unknown rank 'best'"),
        (lambda: fits.edmd(tall, tall, dtype=np.float16), "float16"),
        (lambda: fits.consistent(tall * [1, 0], tall * [1, 0]), "has rank 1 of 2"),
    ]:
        with pytest.raises(UsageError, match=said):
            call()
    # With a ridge fewer snapshots than features are enough.
    assert np.isfinite(fits.edmd(x, x, ridge=1e-6).A).all()
