"""Checkpoints: everything a run is, written by orbax beside the training, readable whole or not at all.

A checkpoint has three parts, so that a policy can be loaded without its replay: ``agent``, ``loop`` (environments,
observation, key) and ``replay``; and a ``meta`` file that lists every array by name, shape and dtype. A file that does
not fit is refused by the name of the first array that differs, before any of it is read.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.errors import UsageError
from jaxrl.training.loop import LoopState
from jaxrl.types import PyTree

FORMAT = 1
PARTS = ("agent", "loop", "replay")


class Checkpointer(NamedTuple):
    """An open folder of checkpoints."""

    # (iteration, state, meta: JSON-able facts of the run, score: for keeping the best) -> None; returns while writing
    save: Callable[[int, LoopState, dict[str, Any], float | None], None]
    close: Callable[[], None]  # waits for what is being written


def open_checkpoints(folder: Path, *, keep: int = 3, keep_best: int = 1, replay: bool = True) -> Checkpointer:
    """A checkpointer that keeps the last ``keep`` checkpoints and the ``keep_best`` with the highest score.

    Args:
        replay: whether the replay storage is written; without it a resumed run starts with an empty one, and is not
            the run it would have been.
    Raises:
        UsageError: where nothing would be kept.
    """
    if keep < 1:
        raise UsageError(f"keep {keep} would delete every checkpoint; keep at least 1")
    import orbax.checkpoint as ocp
    from orbax.checkpoint import checkpoint_managers as policies

    preserve: list[Any] = [policies.LatestN(keep)]
    if keep_best:
        preserve.append(
            policies.BestN(n=keep_best, get_metric_fn=lambda m: m["score"], keep_checkpoints_without_metrics=False)
        )
    manager = ocp.CheckpointManager(
        folder.absolute(),
        options=ocp.CheckpointManagerOptions(preservation_policy=policies.AnyPreservationPolicy(preserve)),
    )

    def save(iteration: int, state: LoopState, meta: dict[str, Any], score: float | None) -> None:
        parts = split(state)
        if not replay:
            parts["replay"] = ()
        arrays = {name: ocp.args.StandardSave(pack(part)) for name, part in parts.items() if jax.tree.leaves(part)}
        facts = {"format": FORMAT, "iteration": iteration, **meta, "arrays": {n: describe(p) for n, p in parts.items()}}
        metrics = None if score is None or not np.isfinite(score) else {"score": float(score)}
        manager.save(
            iteration, args=ocp.args.Composite(meta=ocp.args.JsonSave(facts), **arrays), metrics=metrics, force=True
        )

    def close() -> None:
        manager.wait_until_finished()
        manager.close()

    return Checkpointer(save, close)


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
    import json

    iteration = newest(folder) if iteration is None else iteration
    path = folder / str(iteration) / "meta" / "metadata"
    try:
        meta = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(
            f"checkpoint {folder / str(iteration)} is damaged or foreign: {_offer(folder, iteration)}"
        ) from error
    if meta.get("format") != FORMAT:
        raise UsageError(
            f"checkpoint {folder / str(iteration)} has format {meta.get('format')}, this version reads {FORMAT}"
        )
    return meta


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
    shapes = {part: jax.eval_shape(pack, wanted[part]) for part in parts}
    arguments = {part: ocp.args.StandardRestore(shape) for part, shape in shapes.items() if jax.tree.leaves(shape)}
    # Only the parts asked for are registered: a manager that knew of the others would look for them too.
    try:
        with ocp.CheckpointManager(folder.absolute(), options=ocp.CheckpointManagerOptions(read_only=True)) as manager:
            packed = manager.restore(iteration, args=ocp.args.Composite(**arguments))
    except Exception as error:  # whatever orbax raises for a truncated file, the reader's next step is the same
        raise UsageError(
            f"checkpoint {folder / str(iteration)} cannot be read ({_first_line(error)}): {_offer(folder, iteration)}"
        ) from error
    read = {part: unpack(packed[part], wanted[part]) for part in arguments}
    return join({**wanted, **read}), meta


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


def unpack(packed: dict[str, Any], template: PyTree) -> PyTree:
    """The inverse of :func:`pack` into the template's structure."""

    def typed(name: str, like):
        if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(packed[name])
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
    others = [i for i in saved_iterations(folder) if i != bad]
    return f"the newest other one is iteration {others[-1]}" if others else "there is no other one in its folder"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
