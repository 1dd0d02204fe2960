"""What a linear step does, drawn: eigenvalues about the unit circle, and modes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jaxrl.analysis import figures
from jaxrl.errors import UsageError


def plot_spectrum(eigenvalues: ArrayLike, reference: ArrayLike | None = None) -> Any:
    """Eigenvalues with the unit circle; ``reference`` ones as crosses. A matplotlib figure."""
    figure, axis = figures.new_figure(height=figures.COLUMN_WIDTH)
    angle = np.linspace(0.0, 2.0 * np.pi, 400)
    axis.plot(np.cos(angle), np.sin(angle), color="0.6", linewidth=0.8)
    values = np.asarray(eigenvalues, complex)
    axis.scatter(values.real, values.imag, s=18, facecolors="none", edgecolors=figures.COLOURS[0], label="fitted")
    if reference is not None:
        known = np.asarray(reference, complex)
        axis.scatter(
            known.real, known.imag, s=18, marker="x", color=figures.COLOURS[1], linewidth=1.0, label="reference"
        )
        axis.legend(fontsize=7, frameon=False)
    axis.set(aspect="equal", xlabel="real part", ylabel="imaginary part")
    return figure


def plot_modes(columns: ArrayLike, eigenvalues: ArrayLike, count: int = 4, names: Sequence[str] | None = None) -> Any:
    """Real (line) and imaginary (dashed) parts of the first ``count`` modes, one panel each. A matplotlib figure.

    Args:
        columns: complex ``[outputs, modes]``, such as :func:`jaxrl.koopman.spectra.modes`.
        names: of the outputs, for the ticks.
    Raises:
        UsageError: for no mode at all.
    """
    shown = np.asarray(columns, complex)
    values = np.asarray(eigenvalues, complex)
    if shown.ndim != 2 or shown.shape[1] != len(values) or count < 1:
        raise UsageError(f"modes are columns, one an eigenvalue, got {shown.shape} and {values.shape}, showing {count}")
    count = min(count, shown.shape[1])
    figure, axes = figures.new_figure(height=1.1 * count, rows=count)
    for axis, mode, value in zip(np.ravel(axes), shown.T, values, strict=False):
        axis.plot(mode.real, color=figures.COLOURS[0], linewidth=1.0)
        axis.plot(mode.imag, color=figures.COLOURS[1], linewidth=1.0, linestyle="--")
        axis.set_title(f"|λ| = {abs(value):.4f}, angle {np.angle(value):.4f} rad", fontsize=7)
        if names is not None:
            axis.set_xticks(range(len(names)), names)
    return figure
