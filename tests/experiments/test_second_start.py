"""A second start finds its programs compiled, by default."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_second_start_takes_under_three_fifths_of_the_first(tmp_path):
    """In processes of their own, with a cache of their own that nobody asked for but by naming its folder."""
    command = [sys.executable, "-m", "experiments.train", "--steps", "2048", "--evaluate.episodes", "2"]
    where = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")}
    took = []
    for turn in ("first", "second"):
        began = time.perf_counter()
        subprocess.run(
            [*command, "--run-dir", str(tmp_path / turn)],
            env=where, cwd=Path(__file__).parents[2], check=True, capture_output=True,
        )  # fmt: skip
        took.append(time.perf_counter() - began)
    assert took[1] < 0.6 * took[0], took
