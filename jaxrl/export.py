"""A trained policy as files that run without this library.

* ``policy.stablehlo``: the deterministic policy, with its normaliser and the scaling of its actions, compiled for any
  batch size on CPU, CUDA and TPU; any process with JAX alone runs it (:func:`~jaxrl.export_kinds.export_policy`).
* ``policy.npz`` and ``policy_numpy.py``: the same for policies that are multi-layer perceptrons, in NumPy alone
  (:func:`~jaxrl.export_kinds.numpy_policy`).
* ``policy.onnx``, where the extra ``onnx`` is installed (:func:`~jaxrl.export_kinds.onnx_policy`).
* ``policy.json``: shapes, dtypes and bounds of what goes in and comes out.

Nothing is written that was not compared with the live policy first.
"""

import json
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl import normalise, policy_numpy
from jaxrl.agents.base import Agent
from jaxrl.errors import MissingExtraError, UsageError, unknown
from jaxrl.export_kinds import PLATFORMS, export_policy, live_policy, map_space, numpy_policy, onnx_policy
from jaxrl.spaces import Box, Discrete, Space
from jaxrl.types import PyTree

# The policy of each kind, and what goes with it.
FILES = {
    "jax": ("policy.stablehlo", "load_policy.py"),
    "numpy": ("policy.npz", "policy_numpy.py"),
    "onnx": ("policy.onnx",),
}
KINDS = tuple(FILES)
# Rounding differs by a few 1e-7 of an action's range, more in deep networks; a mistake differs by far more than this.
TOLERANCE = 1e-5
CHECKED = 256

_LOADER = '''"""Runs the policy in policy.stablehlo with JAX alone; policy.json says what goes in and comes out."""
import pathlib
import jax.export, numpy
policy = jax.export.deserialize(bytearray(pathlib.Path(__file__).with_name("policy.stablehlo").read_bytes()))
action = policy.call({example})
print(action)
'''


class Written(NamedTuple):
    """What :func:`write_policy` left in its folder."""

    files: dict[str, Path]  # kind -> its file
    differences: dict[str, float]  # kind -> the largest absolute difference from the live policy that was seen
    left_out: dict[str, str]  # kind -> why, in one line


def describe(agent: Agent, observation_space: Space, action_space: Space, facts: dict[str, Any]) -> dict[str, Any]:
    """What ``policy.json`` holds: input and output with ``"batch"`` as the first axis, versions, and the ``facts``."""
    return {
        "format": 1,
        "agent": agent.name,
        **facts,
        "input": map_space(observation_space, _describe_space),
        "output": map_space(action_space, _describe_space),
        "deterministic": True,
        "versions": {name: metadata.version(name) for name in ("jax", "flax", "jaxrl")},
    }


def _describe_space(space: Box | Discrete) -> dict[str, Any]:
    entry: dict[str, Any] = {"shape": ["batch", *space.shape], "dtype": np.dtype(space.dtype).name}
    if isinstance(space, Discrete):
        return {**entry, "choices": space.n}
    return {**entry, "low": _bounds(space.low), "high": _bounds(space.high)}


def _bounds(values: np.ndarray) -> Any:
    """One number where all are equal, else nested lists; null where there is no bound, which JSON cannot say."""
    if values.size and np.all(values == values.flat[0]):
        return values.flat[0].item() if np.isfinite(values.flat[0]) else None
    return _null_unless_finite(values.tolist())


def _null_unless_finite(values: Any) -> Any:
    if isinstance(values, list):
        return [_null_unless_finite(value) for value in values]
    return values if np.isfinite(values) else None


def write_policy(
    folder: str | Path,
    agent: Agent,
    state: PyTree,
    observation_space: Space,
    action_space: Space,
    *,
    kinds: Sequence[str] | None = None,
    platforms: Sequence[str] = PLATFORMS,
    facts: dict[str, Any] | None = None,
) -> Written:
    """Write the policy in every kind that it can be written in, each compared with the live policy first.

    Args:
        kinds: some of ``jax``, ``numpy`` and ``onnx``; what of these cannot be written is then an error. By default
            ``jax`` and, where it can be, ``numpy``.
        facts: put into ``policy.json``.

    Raises:
        UsageError: for an unknown kind, one that was asked for and cannot be written, or one that disagrees.
    """
    for kind in kinds or ():
        if kind not in KINDS:
            raise unknown("kind of export", str(kind), KINDS)
    live = jax.jit(live_policy(agent, state))
    observation = map_space(observation_space, partial(example_observations, getattr(state, "normaliser", None)))
    expected = np.asarray(live(observation))
    contents: dict[str, Any] = {}
    written = Written({}, {}, {})
    for kind in kinds or ("jax", "numpy"):
        try:
            contents[kind], run = _make(kind, agent, state, observation_space, platforms)
        except UsageError as error:
            if kinds is not None:
                raise
            written.left_out[kind] = str(error)
            continue
        written.differences[kind] = check_agreement(kind, np.asarray(run(observation)), expected, action_space)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("policy.json", *(name for names in FILES.values() for name in names)):
        (folder / name).unlink(missing_ok=True)  # what an earlier export left is of another policy
    for kind, content in contents.items():
        written.files[kind] = _write(folder, kind, content, observation_space)
    spec = describe(agent, observation_space, action_space, facts or {})
    spec |= {"files": {kind: path.name for kind, path in written.files.items()}, "platforms": list(platforms)}
    spec["largest_difference"] = written.differences
    written.files["spec"] = folder / "policy.json"
    written.files["spec"].write_text(json.dumps(spec, indent=2, allow_nan=False) + "\n")
    return written


def example_observations(normaliser: Any, space: Box) -> np.ndarray:
    """Made-up observations ``[256, ...]`` such as the policy may see: about the running mean where there is one."""
    rng = np.random.default_rng(0)
    shape = (CHECKED, *space.shape)
    if np.issubdtype(space.dtype, np.integer):
        return rng.integers(space.low, space.high.astype(np.int64) + 1, shape).astype(space.dtype)
    numbers = rng.normal(size=shape)
    if isinstance(getattr(normaliser, "mean", None), jax.Array | np.ndarray):
        numbers[::4] *= 20.0  # far enough out that the normaliser clips them
        numbers = np.asarray(normaliser.mean) + np.asarray(normalise.std(normaliser)) * numbers
    return np.clip(numbers, space.low, space.high).astype(space.dtype)


def check_agreement(kind: str, actions: np.ndarray, live: np.ndarray, action_space: Space) -> float:
    """The largest absolute difference from the live policy's actions.

    Raises:
        UsageError: where it is more than rounding can explain, 1e-5 of an action's range (of its size, where it has no
            bounds), or where one choice in a hundred differs (two of equal worth may fall either way).
    """
    if actions.shape != live.shape or actions.dtype != live.dtype:
        raise UsageError(
            f"{kind}: actions are {actions.dtype} {actions.shape}, the live ones {live.dtype} {live.shape}"
        )
    if isinstance(action_space, Discrete):
        differ = float(np.mean(actions != live))
        if differ > 0.01:
            raise UsageError(
                f"{kind}: {100 * differ:.0f} % of the choices differ from the live policy's; nothing is written"
            )
        return differ
    difference = np.abs(actions.astype(np.float64) - live)
    if isinstance(action_space, Box) and action_space.bounded:
        scale = np.maximum(action_space.high - action_space.low, 1.0)
    else:
        scale = np.maximum(np.abs(live), 1.0)
    if not np.all(difference <= TOLERANCE * scale):
        raise UsageError(f"{kind}: actions differ from the live policy's by {difference.max():.2g}; nothing is written")
    return float(difference.max())


def _make(
    kind: str, agent: Agent, state: PyTree, observation_space: Space, platforms: Sequence[str]
) -> tuple[Any, Callable[[PyTree], Any]]:
    """The content of a kind's file, and a function that runs it."""
    if kind == "jax":
        from jax import export

        blob = export_policy(agent, state, observation_space, platforms)
        here = jax.default_backend()
        runs_here = {"gpu": "cuda"}.get(here, here) in platforms
        return blob, export.deserialize(blob).call if runs_here else jax.jit(live_policy(agent, state))
    if kind == "onnx":
        return _make_onnx(agent, state, observation_space)
    arrays = numpy_policy(agent, state)
    policy = {**json.loads(str(arrays["settings"])), "arrays": arrays}
    return arrays, partial(policy_numpy.act, policy)


def _make_onnx(agent: Agent, state: PyTree, observation_space: Space) -> tuple[bytes, Callable[[PyTree], Any]]:
    content = onnx_policy(agent, state, observation_space)
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtraError("comparing an ONNX model with the live policy", "onnx") from None
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return content, lambda observation: session.run(None, {name: observation})[0]


def _write(folder: Path, kind: str, content: Any, observation_space: Space) -> Path:
    path = folder / FILES[kind][0]
    if kind == "numpy":
        np.savez(path, **content)
        (folder / "policy_numpy.py").write_text(
            Path(policy_numpy.__file__).read_text(encoding="utf-8"), encoding="utf-8"
        )
        return path
    path.write_bytes(content)
    if kind == "jax":
        example = _example_text(observation_space)
        (folder / "load_policy.py").write_text(_LOADER.replace("{example}", example), encoding="utf-8")
    return path


def _example_text(space: Space) -> str:
    """Two observations of zeros, as Python."""
    if isinstance(space, dict):
        return "{" + ", ".join(f"{name!r}: {_example_text(part)}" for name, part in space.items()) + "}"
    return f'numpy.zeros({(2, *space.shape)}, "{np.dtype(space.dtype).name}")'
