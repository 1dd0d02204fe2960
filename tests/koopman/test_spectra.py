"""Spectra, their order and units, how latents are spread, and that figures are drawn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.analysis import spectral_figures
from jaxrl.errors import UsageError
from jaxrl.koopman import operators, spectra


def test_rates_and_frequencies_by_hand():
    """A step of .5 s that halves and turns by 90 degrees: rate -2 ln 2 a second, half a cycle a second."""
    spectrum = spectra.spectrum([[0.0, -0.5], [0.5, 0.0]], step=0.5)
    np.testing.assert_allclose(spectrum.eigenvalues, [0.5j, -0.5j], atol=1e-12)
    np.testing.assert_allclose(spectrum.rates, [-1.3862944] * 2, rtol=1e-7)
    np.testing.assert_allclose(spectrum.frequencies, [0.5, -0.5], rtol=1e-12)
    assert spectra.spectrum(np.zeros((1, 1))).rates == [-np.inf]


def test_dominant_first_and_vectors_fit():
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(7, 7))
    spectrum = spectra.spectrum(matrix)
    assert (np.diff(np.abs(spectrum.eigenvalues)) < 1e-9).all()
    pairs = np.flatnonzero(np.abs(spectrum.eigenvalues.imag) > 1e-9)
    assert (spectrum.eigenvalues[pairs[::2]].imag > 0).all()
    np.testing.assert_allclose(matrix @ spectrum.right, spectrum.right * spectrum.eigenvalues, atol=1e-9)
    np.testing.assert_allclose(spectrum.left @ spectrum.right, np.eye(7), atol=1e-9)
    x = rng.normal(size=(3, 7))
    moved = spectra.eigenfunctions(spectrum, x @ matrix.T)
    np.testing.assert_allclose(moved, spectra.eigenfunctions(spectrum, x) * spectrum.eigenvalues, atol=1e-9)
    np.testing.assert_allclose(spectra.modes(spectrum, np.eye(7)[:2]), spectrum.right[:2])


def test_an_operators_spectrum_is_its_parameters():
    operator = operators.diagonal(8)
    params = operator.init(jax.random.key(0))
    found = spectra.of_operator(operator, params)
    modes = np.asarray(operator.transition(params))
    both = np.concatenate([modes, modes.conj()])
    np.testing.assert_allclose(found.eigenvalues, both[spectra.dominant_order(both)], atol=1e-5)


def test_conditioning_by_hand():
    """Variances 4, 1 and 0: rank 2, smallest 1, 4 without the zero, infinite with it. Batch and nodes are one axis."""
    rows = np.array([[2.0, 1.0, 5.0], [-2.0, 1.0, 5.0], [2.0, -1.0, 5.0], [-2.0, -1.0, 5.0]], np.float32)
    found = spectra.conditioning(jnp.asarray(rows).reshape(2, 2, 3))
    np.testing.assert_allclose(found.eigenvalues, [4, 1, 0], atol=1e-12)
    assert (found.rank, found.condition) == (2, np.inf)
    assert found.smallest == pytest.approx(1) and found.effective_condition == pytest.approx(4)
    few = spectra.conditioning(np.random.default_rng(0).normal(size=(3, 10)))
    assert few.rank == 2 and len(few.eigenvalues) == 10


def test_figures_are_drawn(tmp_path):
    spectrum = spectra.spectrum(np.diag([0.9, 0.5, 0.1]))
    spectral_figures.plot_spectrum(spectrum.eigenvalues, reference=[0.9]).savefig(tmp_path / "a.png")
    spectral_figures.plot_modes(spectrum.right, spectrum.eigenvalues, 2, ["a", "b", "c"]).savefig(tmp_path / "b.png")
    assert (tmp_path / "a.png").stat().st_size > 1000 and (tmp_path / "b.png").stat().st_size > 1000


def test_what_cannot_work_is_refused():
    for call, said in [
        (lambda: spectra.spectrum(np.ones((2, 3))), "square"),
        (lambda: spectra.spectrum([[np.nan]]), "finite"),
        (lambda: spectra.spectrum([[1.0]], step=0.0), "positive"),
        (lambda: spectra.spectrum([[1j]]), "real matrix"),
        (lambda: spectra.conditioning(np.ones((1, 3))), "at least 2"),
        (lambda: spectra.conditioning(np.array([[1.0, 2.0], [np.nan, 0.0]])), r"nan at \[1, 0\]"),
        (lambda: spectral_figures.plot_modes(np.ones((3, 2)), np.ones(3)), "one an eigenvalue"),
    ]:
        with pytest.raises(UsageError, match=said):
            call()
