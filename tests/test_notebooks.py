"""Every notebook runs from top to bottom in under three minutes."""

import time
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path):
    notebook = nbformat.read(path, as_version=4)
    began = time.perf_counter()
    NotebookClient(
        notebook, timeout=180, kernel_name="python3", resources={"metadata": {"path": path.parent.parent}}
    ).execute()
    assert time.perf_counter() - began < 180
    assert all(not cell.outputs for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"), (
        "commit notebooks without outputs"
    )
