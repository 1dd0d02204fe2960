"""The tests run on the CPU, with compiled programs kept between runs."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "agg")
# Programs of tests compile for seconds and run for moments. XLA_FLAGS="" runs them as users have them, half as long again.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import pytest

from jaxrl import enable_compilation_cache

enable_compilation_cache()


@pytest.fixture
def key_reuse_checked():
    """Every key may be consumed once; a second use is an error."""
    import jax

    with jax.debug_key_reuse(True):
        yield
