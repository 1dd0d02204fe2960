"""Checkpoints: everything a run is, readable whole or not at all. :mod:`jaxrl.training.keeper` writes them.

A checkpoint has three parts, so that a policy can be loaded without its replay: ``agent``, ``loop`` (environments,
observation, key) and ``replay``; and a ``meta`` file that lists every array by name, shape, dtype and checksum. A file
that does not fit is refused by the name of the first array that differs, before any of it is read.
"""

import json
import zlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from jaxrl.errors import UsageError
from jaxrl.training.loop import LoopState
from jaxrl.types import PyTree

FORMAT = 1
PARTS = ("agent", "loop", "replay")


def saved_iterations(folder: Path) -> list[int]:
    """Iterations of all finished checkpoints, oldest first. One that was being written when the run died is not listed."""
    if not folder.is_dir():
        return []
    return sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit() and (p / "_CHECKPOINT_METADATA").exists())


def load_meta(folder: Path, iteration: int | None = None) -> dict[str, Any]:
    """The facts saved beside a checkpoint (the newest, unless one is named).

    Raises:
        UsageError: no checkpoint there, or not one of ours.
    """
    iteration = newest(folder) if iteration is None else iteration
    if iteration not in saved_iterations(folder):
        raise UsageError(f"there is no checkpoint {folder / str(iteration)}: {_offer(folder, iteration)}")
    meta = _read_meta(folder, iteration)
    if meta is None:
        raise UsageError(f"checkpoint {folder / str(iteration)} is damaged or foreign: {_offer(folder, iteration)}")
    if meta["format"] != FORMAT:
        raise UsageError(
            f"checkpoint {folder / str(iteration)} has format {meta['format']}, this version reads {FORMAT}"
        )
    return meta


def _read_meta(folder: Path, iteration: int) -> dict[str, Any] | None:
    try:
        meta = json.loads((folder / str(iteration) / "meta" / "metadata").read_text())
        known = {"format", "iteration", "arrays"} <= meta.keys() and set(PARTS) <= meta["arrays"].keys()
    except (OSError, ValueError, AttributeError, TypeError, KeyError):
        return None
    return meta if known else None


def newest(folder: Path) -> int:
    iterations = saved_iterations(folder)
    if not iterations:
        raise UsageError(f"there is no finished checkpoint in {folder}")
    return iterations[-1]


def restore(
    folder: Path, template: LoopState, iteration: int | None = None, parts: tuple[str, ...] = PARTS
) -> tuple[LoopState, dict[str, Any]]:
    """Read a checkpoint into the structure, dtypes and typed keys of ``template``.

    Args:
        template: a state or the shapes of one (``jax.eval_shape(program.init)``); parts that are not read come back
            as they are in it.
        parts: which of ``agent``, ``loop``, ``replay``.
    Raises:
        UsageError: no checkpoint, a damaged one, or one whose arrays differ from the template, by name.
    """
    import orbax.checkpoint as ocp

    iteration = newest(folder) if iteration is None else iteration
    meta = load_meta(folder, iteration)
    wanted = split(template)
    for part in parts:
        check_fits(describe(wanted[part]), meta["arrays"][part], f"{folder / str(iteration)}, {part}")
    shapes = {part: pack_shapes(wanted[part]) for part in parts}
    arguments = {part: ocp.args.StandardRestore(shape) for part, shape in shapes.items() if shape}
    try:
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as reader:
            packed = reader.restore((folder / str(iteration)).absolute(), args=ocp.args.Composite(**arguments))
    except Exception as error:  # whatever orbax raises for a truncated file, the reader's next step is the same
        raise UsageError(
            f"checkpoint {folder / str(iteration)} cannot be read ({first_line(error)}): {_offer(folder, iteration)}"
        ) from error
    for part in arguments:
        _check_sums(packed[part], meta.get("checksums", {}).get(part, {}), folder, iteration)
    read = {part: unpack(packed[part], wanted[part]) for part in arguments}
    return join({**wanted, **read}), meta


def _check_sums(packed: dict[str, Any], sums: dict[str, int], folder: Path, iteration: int) -> None:
    """Refuse an array whose bits are not those that were saved. Hosts that hold only a part of an array do not look."""
    for name, leaf in packed.items():
        if name in sums and leaf.is_fully_addressable and checksum(np.asarray(leaf)) != sums[name]:
            where, offer = folder / str(iteration), _offer(folder, iteration)
            raise UsageError(f"checkpoint {where} is damaged, the bits of '{name}' have changed: {offer}")


def checksum(array: np.ndarray) -> int:
    """CRC-32 of an array's bytes: a file whose bits have changed is refused, not trained on."""
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def split(state: LoopState) -> dict[str, PyTree]:
    return {"agent": state.agent, "loop": (state.env, state.observation, state.key), "replay": state.replay}


def join(parts: dict[str, PyTree]) -> LoopState:
    env, observation, key = parts["loop"]
    return LoopState(parts["agent"], env, observation, parts["replay"], key)


def pack(tree: PyTree) -> dict[str, Any]:
    """Every leaf by its path; typed keys as the words they are made of, which is what a file can hold.

    Paths, not containers, name the arrays: what comes back has the template's structure, whatever it is made of.
    """

    def plain(leaf):
        return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf

    return {name: plain(leaf) for name, leaf in named_leaves(tree)}


def pack_shapes(template: PyTree) -> dict[str, jax.ShapeDtypeStruct]:
    """Name -> shape, dtype and place of every leaf as it is in the file. Without a place it goes to the first device."""
    shapes = jax.eval_shape(pack, template)
    here = SingleDeviceSharding(jax.local_devices()[0])

    def placed(name: str, like: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(
            shapes[name].shape, shapes[name].dtype, sharding=getattr(like, "sharding", None) or here
        )

    return {name: placed(name, leaf) for name, leaf in named_leaves(template)}


def unpack(packed: dict[str, Any], template: PyTree) -> PyTree:
    """The inverse of :func:`pack` into the template's structure."""

    def typed(name: str, like):
        if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
            return jax.jit(jax.random.wrap_key_data, out_shardings=getattr(like, "sharding", None))(packed[name])
        return packed[name]

    leaves = [typed(name, leaf) for name, leaf in named_leaves(template)]
    return jax.tree.unflatten(jax.tree.structure(template), leaves)


def describe(tree: PyTree) -> dict[str, str]:
    """Name -> 'float32[3,4]' for every leaf."""
    return {name: f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]" for name, leaf in named_leaves(tree)}


def check_fits(wanted: dict[str, str], found: dict[str, str], where: str) -> None:
    """Refuse a checkpoint by the name of the first array that is missing, unknown, or of another shape."""
    for name in wanted:
        if name not in found:
            raise UsageError(
                f"checkpoint {where} lacks '{name}' {wanted[name]}; it is from another agent, configuration or version"
            )
        if found[name] != wanted[name]:
            raise UsageError(f"checkpoint {where} has '{name}' as {found[name]}, this run needs {wanted[name]}")
    for name in found:
        if name not in wanted:
            raise UsageError(f"checkpoint {where} has '{name}' {found[name]}, which this run does not know")


def named_leaves(tree: PyTree) -> list[tuple[str, Any]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in leaves]


def _offer(folder: Path, bad: int) -> str:
    others = [i for i in saved_iterations(folder) if i != bad and _read_meta(folder, i) is not None]
    return f"the newest other one is --iteration {others[-1]}" if others else "there is no other one in its folder"


def first_line(error: Exception) -> str:
    """What went wrong, in one line."""
    if "No space left" in str(error) or "RESOURCE_EXHAUSTED" in str(error):
        return "no space left on the disk"
    line = (str(error).strip().splitlines() or [""])[0][:200]
    # Some libraries put the names of their own functions in place of words.
    return type(error).__name__ if not line or line.startswith("<") else line
