"""Several hosts as one run: finding each other, and what each of them may read and write.

Every host runs the same program on the same mesh. Process 0 alone writes rows and figures; all of them write their part
of a checkpoint. JAX's own service notices a host that has died and ends the others, so that a scheduler can start the
run again from its last checkpoint.
"""

import jax
import numpy as np

from jaxrl.errors import UsageError
from jaxrl.training.sharding import replicated
from jaxrl.types import PyTree

HEARTBEAT = 100  # seconds without a word after which a host counts as dead


def connect(
    coordinator: str = "", process: int | None = None, processes: int | None = None, heartbeat: int = HEARTBEAT
) -> None:
    """Join the other processes of the run. Must come before anything touches a device.

    Args:
        coordinator: ``host:port`` of process 0; where absent, JAX asks Slurm, GKE, Open MPI or the TPU pod.
        process, processes: which one this is, and how many there are; needed with ``coordinator``.
        heartbeat: seconds without a word after which a host counts as dead.
    Raises:
        UsageError: for flags that do not belong together, or where nobody says who the others are.
    """
    by_hand = [value for value in (coordinator or None, process, processes) if value is not None]
    if by_hand and len(by_hand) != 3:
        raise UsageError("--coordinator, --process-id and --num-processes belong together; give all three or none")
    if processes is not None and process is not None and not 0 <= process < processes:
        raise UsageError(f"process-id {process} cannot be one of {processes} processes; the first is 0")
    if coordinator and not coordinator.rpartition(":")[2].isdigit():
        raise UsageError(f"coordinator {coordinator} has no port; write {coordinator or 'host'}:1234")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(coordinator or None, processes, process, heartbeat_timeout_seconds=heartbeat)
    except ValueError as error:
        raise UsageError(
            f"no cluster was found ({str(error).splitlines()[0]}); say --coordinator host:port --process-id 0 "
            "--num-processes N in each process"
        ) from None


def is_first() -> bool:
    """Whether this process writes the records."""
    return jax.process_index() == 0


def readable(tree: PyTree) -> PyTree:
    """A copy of arrays spread over several hosts that this host can read; every host must ask for it."""
    if jax.process_count() == 1:
        return tree
    mesh = next(leaf.sharding.mesh for leaf in jax.tree.leaves(tree))
    copy = jax.jit(lambda tree: tree, out_shardings=replicated(mesh))(tree)
    return jax.tree.map(lambda leaf: leaf.addressable_data(0), copy)


def agree(value: int) -> int:
    """The largest of every process's number: a signal that one host has had is a signal to all."""
    if jax.process_count() == 1:
        return value
    from jax.experimental import multihost_utils

    return int(np.max(multihost_utils.process_allgather(np.int32(value))))


def same_text(text: str) -> str:
    """Process 0's text, on every process."""
    if jax.process_count() == 1:
        return text
    from jax.experimental import multihost_utils

    words = np.zeros(1024, np.uint8)
    encoded = text.encode()[:1024]
    words[: len(encoded)] = list(encoded)
    return bytes(np.asarray(multihost_utils.broadcast_one_to_all(words))).rstrip(b"\0").decode()
