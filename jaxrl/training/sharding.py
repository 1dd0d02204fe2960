"""A run over many devices: one mesh with an axis for population members and one for environments.

Members are independent, so their axis costs no communication. Environments, their experience and their lanes of the
replay storage live together on one device; the agent is the same on all, and its gradients and running statistics are
those of the whole batch, because ``jit`` inserts the sums. Nothing in a loop or an agent knows of it.
"""

import re
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxrl.errors import UsageError
from jaxrl.training.loop import LoopState
from jaxrl.types import PyTree

MEMBERS, ENVS = "members", "envs"


def make_mesh(devices: int = 0, shape: tuple[int, int] | None = None, members: int = 1, num_envs: int = 1) -> Mesh:
    """A mesh ``(members, envs)``.

    Args:
        devices: how many, over all hosts; 0 for all there are.
        shape: devices along members and environments; where absent, as many members as divide, the rest to environments.
        members, num_envs: what is to be divided.
    Raises:
        UsageError: where the devices are not there, or do not divide what is to be divided.
    """
    available = jax.devices()
    if shape is not None:
        devices = devices or shape[0] * shape[1]
        if shape[0] * shape[1] != devices:
            raise UsageError(f"mesh {shape[0]}x{shape[1]} needs {shape[0] * shape[1]} devices, not {devices}")
    devices = devices or len(available)
    if not 1 <= devices <= len(available):
        raise UsageError(f"{devices} devices were asked for, {len(available)} are there")
    if shape is None:
        along = max(d for d in range(1, devices + 1) if devices % d == 0 and members % d == 0)
        shape = (along, devices // along)
    for what, count, parts in (("members", members, shape[0]), ("num_envs", num_envs, shape[1])):
        if count % parts:
            nearest = sorted({max(parts, count // parts * parts), (count // parts + 1) * parts})
            raise UsageError(f"{what} {count} cannot be divided over {parts} devices; nearest are {nearest}")
    grid = np.asarray(available[:devices]).reshape(shape)
    return Mesh(grid, (MEMBERS, ENVS), axis_types=(AxisType.Auto, AxisType.Auto))


def choose_mesh(devices: int, shape: str, members: int, num_envs: int) -> Mesh | None:
    """The mesh that two flags ask for; None for one device. Several hosts always share one.

    Args:
        devices: how many, over all hosts; 0 for all there are.
        shape: ``2x4``: devices along members and along environments; "" to choose.
    Raises:
        UsageError: where they contradict each other or what is there, or do not divide what is to be divided.
    """
    if devices < 0:
        raise UsageError(f"devices {devices} cannot work; 0 takes all {len(jax.devices())} there are")
    if devices == 1 and jax.process_count() > 1:
        devices = 0  # every host has a part in the run
    if not shape:
        return None if devices == 1 else make_mesh(devices, None, members, num_envs)
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", shape)
    if match is None:
        raise UsageError(
            f"cannot read the mesh '{shape}'; write 2x4 for 2 devices along members and 4 along environments"
        )
    both = int(match[1]), int(match[2])
    return make_mesh(0 if devices == 1 else devices, both, members, num_envs)


def state_sharding(mesh: Mesh, shapes: LoopState, num_envs: int, population: bool) -> LoopState:
    """Where every leaf of a state lives.

    Lanes are the leading axis of environments and observations, and the second one of the replay storage (behind its
    slots); the axis of members, if any, comes before both. What has no lanes is the same on all devices.
    """
    first = int(population)

    def sharding(leaf: Any, lanes: int | None) -> NamedSharding:
        axes: list[str | None] = [None] * leaf.ndim
        if population:
            axes[0] = MEMBERS
        if lanes is not None and leaf.ndim > lanes and leaf.shape[lanes] == num_envs:
            axes[lanes] = ENVS
        return NamedSharding(mesh, PartitionSpec(*axes))

    def part(tree: PyTree, lanes: int | None) -> PyTree:
        return jax.tree.map(lambda leaf: sharding(leaf, lanes), tree)

    return LoopState(
        agent=part(shapes.agent, None),
        env=part(shapes.env, first),
        observation=part(shapes.observation, first),
        replay=part(shapes.replay, first + 1),
        key=part(shapes.key, None),
    )


def replicated(mesh: Mesh) -> NamedSharding:
    """The same on every device, so that every host can read it."""
    return NamedSharding(mesh, PartitionSpec())
