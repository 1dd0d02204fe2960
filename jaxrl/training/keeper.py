"""Writing checkpoints beside the training: one at a time, by orbax, on a thread of its own.

Training waits only while the state is copied to the host's memory; after that the device's buffers may be donated.
A folder appears under its final name when everything in it is written, so a kill leaves the checkpoint before it. Where
a write fails, as on a full disk, saving stops with one line and training goes on.
"""

import contextlib
import errno
import logging
import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.errors import UsageError
from jaxrl.training.checkpoint import FORMAT, checksum, describe, first_line, pack, saved_iterations, split
from jaxrl.training.loop import LoopState
from jaxrl.types import PyTree


class Checkpointer(NamedTuple):
    """An open folder of checkpoints."""

    # (iteration, state, meta: JSON-able facts of the run, score: for keeping the best) -> None; returns while writing
    save: Callable[[int, LoopState, dict[str, Any], float | None], None]
    wait: Callable[[], None]  # until what is being written is on disk, or has failed
    close: Callable[[], None]  # waits too
    stopped: Callable[[], str]  # why saving has stopped, or nothing


@dataclass
class _Writer:
    manager: Any  # orbax's; it deletes what is not to be kept
    folder: Path
    warn: Callable[[str], None]
    threaded: bool  # several hosts save in the main thread: what they do together must come in one order
    pool: ThreadPoolExecutor
    pending: Future | None = None
    stopped: str = ""


def open_checkpoints(
    folder: Path, *, keep: int = 3, keep_best: int = 1, replay: bool = True, warn: Callable[[str], None] = print
) -> Checkpointer:
    """A checkpointer that keeps the last ``keep`` checkpoints and the ``keep_best`` with the highest score.

    What an earlier process left half-written is deleted.

    Args:
        replay: whether the replay storage is written; without it a resumed run starts with an empty one, and is not
            the run it would have been.
        warn: told in one line when saving stops.
    Raises:
        UsageError: where nothing would be kept.
    """
    check_keeping(keep, keep_best)
    threaded = jax.process_count() == 1
    _clean(folder)
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
    writer = _Writer(_manager(folder, keep, keep_best), folder, warn, threaded, pool)
    return Checkpointer(
        partial(_save, writer, replay), partial(_wait, writer), partial(_close, writer), lambda: writer.stopped
    )


def check_keeping(keep: int, keep_best: int) -> None:
    """Refuse a policy that would keep nothing."""
    if keep < 1:
        raise UsageError(f"keep {keep} would delete every checkpoint; keep at least 1")
    if keep_best < 0:
        raise UsageError(f"keep_best {keep_best} cannot work; 0 keeps no best one")


def discard_after(folder: Path, iteration: int) -> None:
    """Delete the checkpoints of a future that the run has left, by going on from an earlier one."""
    for later in saved_iterations(folder):
        if later > iteration:
            shutil.rmtree(folder / str(later))


def _manager(folder: Path, keep: int, keep_best: int) -> Any:
    import orbax.checkpoint as ocp
    from orbax.checkpoint import checkpoint_managers as policies

    preserve: list[Any] = [policies.LatestN(keep)]
    if keep_best:
        preserve.append(
            policies.BestN(n=keep_best, get_metric_fn=lambda m: m["score"], keep_checkpoints_without_metrics=False)
        )
    logging.getLogger("absl").addFilter(_is_news)
    options = ocp.CheckpointManagerOptions(
        best_fn=lambda metrics: metrics[
            "score"
        ],  # without it scores are not written, and forgotten by the next process
        preservation_policy=policies.AnyPreservationPolicy(preserve),
        enable_async_checkpointing=False,  # the thread is ours: orbax's own holds up training for half a second a save
    )
    return ocp.CheckpointManager(folder.absolute(), options=options)


def _is_news(record: logging.LogRecord) -> bool:
    """Runs without an evaluation and folders cut short by a kill are no surprise here, and not worth a warning."""
    return not any(words in record.getMessage() for words in ("tracked_metric", "Metadata file does not exist"))


def _save(
    writer: _Writer, replay: bool, iteration: int, state: LoopState, meta: dict[str, Any], score: float | None
) -> None:
    _wait(writer)
    if writer.stopped:
        return
    parts = split(state)
    if not replay:
        parts["replay"] = ()
    facts = {"format": FORMAT, "iteration": iteration, **meta, "arrays": {n: describe(p) for n, p in parts.items()}}
    metrics = None if score is None or not np.isfinite(score) else {"score": float(score)}
    facts["score"] = metrics and metrics["score"]
    arrays = {name: pack(part) for name, part in parts.items() if jax.tree.leaves(part)}
    if writer.threaded:
        writer.pending = writer.pool.submit(_write_or_stop, writer, iteration, on_host(arrays), facts, metrics)
    else:
        _write_or_stop(writer, iteration, arrays, facts, metrics)


def on_host(arrays: PyTree) -> PyTree:
    """Copies in the host's memory that nothing else holds; all transfers are under way before the first is awaited."""
    for leaf in jax.tree.leaves(arrays):
        if isinstance(leaf, jax.Array):
            leaf.copy_to_host_async()
    return jax.tree.map(np.array, arrays)


def _write_or_stop(
    writer: _Writer, iteration: int, arrays: dict[str, PyTree], facts: dict[str, Any], metrics: dict | None
) -> None:
    """Write a checkpoint; if that fails, for whatever reason, say so and save no more."""
    import orbax.checkpoint as ocp

    if writer.threaded:
        facts |= {"checksums": {part: jax.tree.map(checksum, named) for part, named in arrays.items()}}
    saves = {name: ocp.args.StandardSave(part) for name, part in arrays.items()}
    arguments = ocp.args.Composite(meta=ocp.args.JsonSave(facts), **saves)
    with _stops(writer):
        _check_room(writer.folder, sum(leaf.nbytes for leaf in jax.tree.leaves(arrays)))
        writer.manager.save(iteration, args=arguments, metrics=metrics, force=True)


def _clean(folder: Path) -> None:
    """Delete checkpoints that were never finished."""
    if jax.process_index() == 0:
        for half in folder.glob("*.orbax-checkpoint-tmp*"):
            shutil.rmtree(half, ignore_errors=True)


def _check_room(folder: Path, size: int) -> None:
    """A disk that is nearly full is left as it is, rather than filled with half a checkpoint."""
    if shutil.disk_usage(folder).free < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextlib.contextmanager
def _stops(writer: _Writer):
    try:
        yield
    except Exception as error:  # tensorstore, orbax and the system each have their own word for a full disk
        writer.stopped = first_line(error)
        _clean(writer.folder)
        good = saved_iterations(writer.folder)
        last = f"the newest one is iteration {good[-1]}" if good else "there is none"
        writer.warn(f"checkpoints are no longer saved ({writer.stopped}); {last}. Training goes on.")


def _wait(writer: _Writer) -> None:
    if writer.pending is not None:
        writer.pending.result()
        writer.pending = None


def _close(writer: _Writer) -> None:
    _wait(writer)
    writer.pool.shutdown()
    # After a failure the manager may complain once more of what was already said.
    with contextlib.suppress(Exception) if writer.stopped else contextlib.nullcontext():
        writer.manager.close()
