"""What the forecast study forecasts, on which graph, and how large everything is at each preset."""

from dataclasses import dataclass
from functools import lru_cache, partial

import jax
import numpy as np

from environments import dynamics
from environments.dynamics.harmonics import points_matrix
from jaxrl.koopman.graph import Graph, icosahedral_mesh, operators, ring_mesh
from jaxrl.koopman.graph import mesh as meshes
from jaxrl.types import Array


@dataclass(frozen=True)
class Problem:
    """A system seen on the nodes of a graph."""

    name: str
    system: str
    interval: float  # time between samples
    graph: tuple[str, int]  # ("ring", nodes) or ("sphere", refinements)
    high: tuple[int, int]  # wavenumbers, or degrees, that count as high
    middle: int  # a lead at which something is still known
    late: int  # the last lead
    burn_in: int = 0
    truncation: int = 21  # of the sphere
    degrees: int = 8  # of the harmonics on the sphere's nodes


@dataclass(frozen=True)
class Sizes:
    """How large and how long."""

    seeds: int = 4
    width: int = 16
    hidden: int = 16
    latent: int = 16
    linear: tuple[str, ...] = ("block", "block_norm", "skew", "diag")
    layers: tuple[int, ...] = (2, 8, 16)  # of the message-passing models that are trained
    timed_layers: tuple[int, ...] = (2, 8, 16)  # of those whose cost is measured
    window: int = 3
    noise: float = 0.1  # on the input where one is trained with it, over the standard deviation of the data
    updates: int = 250
    batch: int = 4
    learning_rate: float = 3e-3
    final_rate: float = 3e-5
    trajectories: int = 16
    length: int = 100
    tests: int = 16
    members: int = 16
    rank: int = 48
    bounded_steps: int = 200
    effort: int = 1  # of the compiler on a CPU


RING = Problem("ring", "ring", 0.1, ("ring", 64), (8, 19), 8, 40)
KS = Problem("ks", "kuramoto_sivashinsky", 1.0, ("ring", 64), (10, 20), 8, 40, 200)
KS_COARSE = Problem("ks_coarse", "kuramoto_sivashinsky", 6.0, ("ring", 64), (10, 20), 2, 20, 40)
SPHERE = Problem("sphere", "barotropic", 0.5, ("sphere", 2), (6, 8), 4, 30, 60)

TINY: dict = {
    "seeds": 2,
    "linear": ("block_norm", "skew"),
    "layers": (2,),
    "timed_layers": (2, 16),
    "window": 2,
    "updates": 4,
    "batch": 2,
    "tests": 4,
}
PRESETS: dict[str, tuple[tuple[Problem, ...], Sizes]] = {
    "smoke": (
        (
            Problem("ring", "ring", 0.1, ("ring", 48), (6, 12), 2, 4),
            Problem("ks_coarse", "kuramoto_sivashinsky", 6.0, ("ring", 48), (6, 12), 2, 4, 4),
        ),
        Sizes(
            **TINY,
            width=8,
            hidden=8,
            latent=8,
            trajectories=4,
            length=20,
            members=4,
            rank=8,
            bounded_steps=20,
            effort=0,
        ),
    ),
    "cpu": ((RING, KS, KS_COARSE, SPHERE), Sizes()),
    "paper": (
        (
            Problem("ring", "ring", 0.1, ("ring", 64), (8, 19), 8, 40),
            Problem("ks", "kuramoto_sivashinsky", 1.0, ("ring", 128), (10, 20), 8, 40, 200),
            Problem("ks_coarse", "kuramoto_sivashinsky", 6.0, ("ring", 128), (10, 20), 2, 20, 40),
            Problem("sphere", "barotropic", 0.25, ("sphere", 4), (10, 30), 8, 60, 200, truncation=42, degrees=30),
        ),
        Sizes(
            seeds=5,
            width=128,
            hidden=256,
            latent=32,
            layers=(2, 8, 16),
            window=8,
            updates=100_000,
            batch=8,
            learning_rate=1e-3,
            final_rate=1e-6,
            trajectories=256,
            length=200,
            tests=64,
            members=50,
            rank=512,
        ),
    ),
}


@lru_cache
def graph_of(kind: tuple[str, int]) -> Graph:
    return ring_mesh(kind[1]) if kind[0] == "ring" else icosahedral_mesh(kind[1])


def system_of(problem: Problem) -> dynamics.System:
    """The system, sampled as the problem says."""
    if problem.system == "barotropic":
        graph = graph_of(problem.graph)
        return dynamics.barotropic(
            problem.truncation,
            interval=problem.interval,
            drag=0.05,
            hyperviscosity=8.0,
            forcing=0.6,
            points=meshes.latitude_longitude(graph.coordinates),
        )
    nodes = problem.graph[1]
    if problem.system == "ring":
        return dynamics.ring(nodes, modes=min(20, nodes // 2 - 2), interval=problem.interval)
    return dynamics.kuramoto_sivashinsky(nodes, interval=problem.interval)


def data_of(problem: Problem, sizes: Sizes) -> tuple[Array, Array]:
    """Standardised fields to train and to test on, ``[trajectories, time, nodes, 1]``; the test ones reach the last lead.

    One mean and one standard deviation for all nodes: all three systems are the same at every place but for latitude.
    """
    system = system_of(problem)
    length = max(sizes.length, problem.late + 1)
    draw = jax.jit(jax.vmap(partial(dynamics.trajectory, system, length=length, burn_in=problem.burn_in)))
    fields = draw(jax.random.split(jax.random.key(20), sizes.trajectories + sizes.tests))[..., None]
    train, test = fields[: sizes.trajectories, : sizes.length], fields[sizes.trajectories :, : problem.late + 1]
    mean, deviation = train.mean(), train.std()
    return (train - mean) / deviation, (test - mean) / deviation


@lru_cache
def basis_of(kind: tuple[str, int], degrees: int) -> tuple[np.ndarray, int]:
    """A basis of the graph for complex modes: Fourier on the ring, spherical harmonics on the sphere, and its pairs."""
    if kind[0] == "ring":
        return operators.ring_basis(kind[1])
    columns, of = harmonics_of(kind, degrees)
    return operators.orthonormal(columns), int(np.sum(of < 0) // 2)


@lru_cache
def harmonics_of(kind: tuple[str, int], degrees: int) -> tuple[np.ndarray, np.ndarray]:
    """Real harmonics at the nodes ``[nodes, modes]``, cosine beside sine and the zonal ones last, and a code of each.

    The code is the degree of a zonal mode, and ``-1`` less the degree of one of a pair.
    """
    matrix = points_matrix(degrees, *meshes.latitude_longitude(graph_of(kind).coordinates))
    columns, codes = [], []
    for order in range(1, degrees + 1):
        for degree in range(order, degrees + 1):
            columns += [matrix[:, order, degree].real / np.sqrt(2), -matrix[:, order, degree].imag / np.sqrt(2)]
            codes += [-1 - degree] * 2
    columns += [matrix[:, 0, degree].real for degree in range(degrees + 1)]
    return np.stack(columns, 1), np.array(codes + list(range(degrees + 1)))


def degree_of(codes: np.ndarray) -> np.ndarray:
    """The degree of every mode of :func:`harmonics_of`."""
    return np.where(codes < 0, -1 - codes, codes)
