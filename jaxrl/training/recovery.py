"""Going back to the last good checkpoint when a number is not finite, with other random numbers, a few times."""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.training.checkpoint import restore, saved_iterations
from jaxrl.training.distributed import is_first
from jaxrl.training.loop import LoopState
from jaxrl.training.program import Program
from jaxrl.training.records import truncate_rows
from jaxrl.training.run import NotFiniteError, Origin
from jaxrl.types import Key


@dataclass
class Recovery:
    """How often a run may go back, and where it went."""

    folder: Path  # of the run
    program: Program
    parts: tuple[str, ...]  # of a checkpoint
    attempts: int  # 0: stop at once
    wait: Any = lambda: None  # until the checkpoint that is being written is there
    taken: list[dict[str, Any]] = field(default_factory=list)  # one entry each: step, what, back_to (a step)


def recover(recovery: Recovery, error: NotFiniteError) -> Origin:
    """The state of the newest checkpoint with other keys for the members that failed; rows after it are dropped.

    Members that were well keep their keys, and repeat the steps they had already taken. That a run went back is in
    every later row (``restores``) and in every later checkpoint.

    Raises:
        NotFiniteError: the same, with the last good checkpoint named, where there is none or every attempt is used up.
    """
    recovery.wait()
    checkpoints = recovery.folder / "checkpoints"
    good = saved_iterations(checkpoints)
    per = recovery.program.steps_per_iteration
    last = f"the last good checkpoint is iteration {good[-1]} (step {good[-1] * per:,})" if good else ""
    if not good or len(recovery.taken) >= recovery.attempts:
        used = f"gone back {len(recovery.taken)} times already, " if recovery.taken else ""
        remedy = used + (last or "no checkpoint has been saved")
        raise NotFiniteError(error.what, error.step, error.members, remedy) from None
    state, meta = load_state(recovery.program, checkpoints, good[-1], recovery.parts)
    entry = {"step": error.step, "what": error.what, "members": list(error.members), "back_to": good[-1] * per}
    recovery.taken.append(entry)
    failed = np.isin(np.arange(recovery.program.members or 1), error.members)
    state = state._replace(key=change_keys(state.key, failed, len(recovery.taken)))
    rows = truncate_rows(recovery.folder, good[-1] * per) if is_first() else []
    return origin_of(state, meta, rows, recovery.taken)


def load_state(
    program: Program, checkpoints: Path, iteration: int | None, parts: tuple[str, ...]
) -> tuple[LoopState, dict[str, Any]]:
    """A checkpoint as a state that can go on; what it does not hold starts anew.

    That is a replay storage that was left out, and the episodes of environments that live on the host.
    """
    template = program.template()
    state, meta = restore(checkpoints, template, iteration, parts)
    if "replay" not in parts and jax.tree.leaves(template.replay):
        state = state._replace(replay=program.init().replay)
    if not jax.tree.leaves(template.env):
        state = state._replace(observation=program.init().observation)
    return state, meta


def origin_of(state: LoopState, meta: dict[str, Any], rows: list[dict], taken: list[dict[str, Any]]) -> Origin:
    """Where to go on from, as the checkpoint and the rows before it say."""
    score = meta.get("score")
    seconds = rows[-1].get("time/seconds", 0.0) if rows else 0.0
    columns = {"restores": len(taken)} if taken else {}
    return Origin(state, meta["iteration"], float("nan") if score is None else score, seconds, columns)


def change_keys(key: Key, failed: np.ndarray, attempt: int) -> Key:
    """Fold the attempt into the keys of the members that failed.

    Args:
        key: [] or [members].
        failed: bool [members]; [1] for a single run.
    """

    def changed(key: Key) -> Key:
        if not key.shape:
            return jax.random.fold_in(key, attempt)
        words = jax.random.key_data(key)
        folded = jax.random.key_data(jax.vmap(partial(_fold, attempt))(jax.random.clone(key)))
        return jax.random.wrap_key_data(jnp.where(failed[:, None], folded, words), impl=jax.random.key_impl(key))

    return jax.jit(changed, out_shardings=key.sharding)(key)


def _fold(attempt: int, key: Key) -> Key:
    return jax.random.fold_in(key, attempt)
