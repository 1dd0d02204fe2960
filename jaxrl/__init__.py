"""Accelerated reinforcement-learning research in JAX.

Subpackages load when they are first named: ``jaxrl.agents``, ``jaxrl.samplers``, ``jaxrl.training``, …
"""

import importlib
import os
from pathlib import Path

_SUBMODULES = (
    "agents",
    "analysis",
    "distributions",
    "errors",
    "koopman",
    "losses",
    "networks",
    "normalise",
    "returns",
    "samplers",
    "spaces",
    "training",
    "types",
    "world_models",
)
__all__ = [*_SUBMODULES, "enable_compilation_cache"]
__version__ = "0.1.0"


def enable_compilation_cache(folder: str | os.PathLike | None = None) -> Path:
    """Keep compiled programs on disk, so that the second start of a study takes a fraction of the first.

    Every script of ``experiments`` calls this. It also has a CPU run programs synchronously,
    so that a program that fails or hangs does so where it is called. ``JAX_COMPILATION_CACHE_DIR`` overrides the folder, which is
    ``~/.cache/jaxrl`` by default.
    """
    import jax

    chosen = Path(folder or os.environ.get("JAX_COMPILATION_CACHE_DIR") or Path.home() / ".cache" / "jaxrl")
    chosen.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    jax.config.update("jax_compilation_cache_dir", str(chosen))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    return chosen


def __getattr__(name: str):
    if name in _SUBMODULES:
        return importlib.import_module(f"jaxrl.{name}")
    raise AttributeError(f"module 'jaxrl' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
