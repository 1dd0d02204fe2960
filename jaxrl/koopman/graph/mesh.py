"""Graphs to step a field on: a multi-mesh on the sphere, a ring, and maps between a grid and a mesh. NumPy, cached.

The icosahedron refined ``R`` times has ``10 · 4^R + 2`` nodes: 12, 42, 162, 642, 2562, … Older nodes keep their index, so that
the edges of all levels live on the nodes of the finest (the multi-mesh of Lam et al. 2023, GraphCast).
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from jaxrl.errors import UsageError, unknown

BEARINGS = 6  # bins of 60 degrees
TYPINGS = ("edge", "source")


class Graph(NamedTuple):
    """Directed typed edges between nodes; every edge has its reverse. Self-loops are not edges: each node has a type.

    Edges are sorted by receiver. ``reverse[α]`` is the type that the reverse of every edge of type ``α`` has, and None where
    there is no such map.
    """

    nodes: int
    senders: np.ndarray  # int [edges]
    receivers: np.ndarray  # int [edges]
    types: np.ndarray  # int [edges], 0 … edge_types - 1
    edge_types: int
    reverse: tuple[int, ...] | None
    node_types: np.ndarray  # int [nodes]: the type of a node's step on itself
    features: np.ndarray  # float [edges, features]: what a message may know of its edge
    weights: np.ndarray  # float [nodes]: share of the whole area; they sum to 1
    coordinates: np.ndarray  # float [nodes, coordinates]: what encoder and decoder know of a place; may be empty

    @property
    def loop_types(self) -> int:
        return int(self.node_types.max()) + 1

    @property
    def in_degrees(self) -> np.ndarray:
        return np.bincount(self.receivers, minlength=self.nodes)


class Bipartite(NamedTuple):
    """Edges from one set of points to another, sorted by receiver."""

    senders: np.ndarray  # int [edges]
    receivers: np.ndarray  # int [edges]
    features: np.ndarray  # float [edges, 3]
    sender_count: int
    receiver_count: int


class Icosphere(NamedTuple):
    """Points of a refined icosahedron and the undirected edges of each level."""

    positions: np.ndarray  # [nodes, 3], unit vectors
    edges: tuple[np.ndarray, ...]  # int [edges of the level, 2], lower index first, one array a level
    faces: np.ndarray  # int [faces, 3] of the finest level


@lru_cache(maxsize=8)
def icosphere(refinements: int) -> Icosphere:
    """The icosahedron with each triangle cut in four, ``refinements`` times, its points pushed out to the unit sphere.

    Raises:
        UsageError: for a negative refinement or one above 7 (163,842 nodes).
    """
    if not 0 <= refinements <= 7 or int(refinements) != refinements:
        raise UsageError(f"an icosphere has 0 to 7 refinements, got {refinements}; 3 gives 642 nodes")
    points, faces = _icosahedron()
    edges = [_edges_of(faces)]
    for _ in range(refinements):
        points, faces = _refine(points, faces)
        edges.append(_edges_of(faces))
    return Icosphere(points, tuple(edges), faces)


def _icosahedron() -> tuple[np.ndarray, np.ndarray]:
    """Two poles and two rings of five, at latitudes ±arctan(1/2)."""
    ring = 2 * np.pi * np.arange(5) / 5
    height, radius = 1 / np.sqrt(5), 2 / np.sqrt(5)
    upper = np.stack([radius * np.cos(ring), radius * np.sin(ring), np.full(5, height)], 1)
    lower = np.stack([radius * np.cos(ring + np.pi / 5), radius * np.sin(ring + np.pi / 5), np.full(5, -height)], 1)
    points = np.concatenate([[[0, 0, 1.0]], upper, lower, [[0, 0, -1.0]]])
    i, after = np.arange(5), (np.arange(5) + 1) % 5
    north = np.stack([np.zeros(5, int), 1 + i, 1 + after], 1)
    south = np.stack([np.full(5, 11), 6 + after, 6 + i], 1)
    down = np.stack([1 + i, 6 + i, 1 + after], 1)
    up = np.stack([6 + i, 6 + after, 1 + after], 1)
    return points, np.concatenate([north, down, up, south])


def _edges_of(faces: np.ndarray) -> np.ndarray:
    pairs = np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]])
    return np.unique(np.sort(pairs, 1), axis=0)


def _refine(points: np.ndarray, faces: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    edges = _edges_of(faces)
    middles = points[edges].sum(1)
    middles /= np.linalg.norm(middles, axis=1, keepdims=True)
    codes = edges[:, 0] * len(points) + edges[:, 1]

    def middle(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        code = np.minimum(a, b) * len(points) + np.maximum(a, b)
        return len(points) + np.searchsorted(codes, code)

    a, b, c = faces.T
    ab, bc, ca = middle(a, b), middle(b, c), middle(c, a)
    parts = [(a, ab, ca), (b, bc, ab), (c, ca, bc), (ab, bc, ca)]
    return np.concatenate([points, middles]), np.concatenate([np.stack(part, 1) for part in parts])


@lru_cache(maxsize=8)
def _mesh(refinements: int, typing: str) -> Graph:
    sphere = icosphere(refinements)
    stored = np.unique(np.concatenate(sphere.edges), axis=0)
    senders, receivers = np.concatenate([stored, stored[:, ::-1]]).T
    latitude, longitude = latitude_longitude(sphere.positions)
    bins = np.floor(bearing(sphere.positions[senders], sphere.positions[receivers]) / (2 * np.pi) * BEARINGS)
    bins = np.minimum(bins.astype(int), BEARINGS - 1)
    if typing == "edge":
        bins = np.tile(bins[: len(stored)], 2)
    types = bins + BEARINGS * np.repeat([0, 1], len(stored))
    order = np.lexsort((senders, receivers))
    reverse = tuple((np.arange(2 * BEARINGS) + BEARINGS) % (2 * BEARINGS)) if typing == "edge" else None
    return Graph(
        len(sphere.positions),
        senders[order],
        receivers[order],
        types[order],
        2 * BEARINGS,
        reverse,
        np.zeros(len(sphere.positions), int),
        _features(latitude, longitude, latitude, longitude, senders, receivers)[order],
        node_areas(sphere),
        sphere.positions,
    )


def icosahedral_mesh(refinements: int, land: np.ndarray | None = None, typing: str = "edge") -> Graph:
    """The multi-mesh: edges of all levels on the nodes of the finest, both ways, in 12 types and 2 more for the nodes.

    A type is the bearing in 6 bins, from north through east, of an undirected edge as it is stored (from the older node) and
    which way the edge runs along it. With ``typing="source"`` the bearing is taken at each directed edge's own source, as
    in the released code; on a sphere the two bearings of one edge do not differ by half a turn, so that the type of an edge
    does not say the type of its reverse, and ``reverse`` is None.

    Args:
        land: bool ``[nodes]``; the nodes that step on themselves in another way. Without it all are alike.
    Raises:
        UsageError: for a mask that does not fit or an unknown typing.
    """
    if typing not in TYPINGS:
        raise unknown("typing", typing, TYPINGS)
    graph = _mesh(refinements, typing)
    if land is None:
        return graph
    land = np.asarray(land)
    if land.shape != (graph.nodes,):
        raise UsageError(f"a land mask of this mesh has shape ({graph.nodes},), got {land.shape}")
    return graph._replace(node_types=land.astype(bool).astype(int))


def ring_mesh(nodes: int, offsets: tuple[int, ...] = (1, 2, 4, 8), coordinates: bool = False) -> Graph:
    """Points on a circle, each joined to those ``±offset`` away; each signed offset is a type.

    Args:
        coordinates: whether nodes know where they are; a system that is the same everywhere needs no such thing.
    Raises:
        UsageError: for offsets that are not different, positive and less than half of the ring.
    """
    offsets = tuple(int(offset) for offset in offsets)
    if not offsets or len(set(offsets)) != len(offsets) or min(offsets) < 1 or 2 * max(offsets) >= nodes:
        raise UsageError(f"offsets must be different, at least 1 and below {nodes / 2:g}, got {offsets}")
    signed = np.concatenate([offsets, np.negative(offsets)])
    place = np.arange(nodes)
    receivers = np.repeat(place, len(signed))
    types = np.tile(np.arange(len(signed)), nodes)
    angle = 2 * np.pi * place / nodes
    known = np.stack([np.cos(angle), np.sin(angle)], 1) if coordinates else np.zeros((nodes, 0))
    return Graph(
        nodes,
        (receivers - signed[types]) % nodes,
        receivers,
        types,
        len(signed),
        tuple((np.arange(len(signed)) + len(offsets)) % len(signed)),
        np.zeros(nodes, int),
        np.stack([signed[types] / max(offsets), np.abs(signed[types]) / max(offsets)], 1),
        np.full(nodes, 1 / nodes),
        known,
    )


def nearest(senders: np.ndarray, receivers: np.ndarray, neighbours: int = 3, of: str = "senders") -> Bipartite:
    """Edges between two sets of points on the sphere: each of one set and its nearest of the other.

    From a fine grid to a coarser mesh, the grid's points choose (``of="senders"``), so that none is left out; back from the
    mesh, the grid's points choose again (``of="receivers"``). Features are latitude difference over 90 degrees, longitude
    difference over 180, and angular distance over 180, as in the released code.

    Args:
        senders, receivers: unit vectors ``[points, 3]``.
    Raises:
        UsageError: for more neighbours than there are points to choose from.
    """
    if of not in ("senders", "receivers"):
        raise unknown("choice", of, ("senders", "receivers"))
    choosing, chosen = (senders, receivers) if of == "senders" else (receivers, senders)
    if not 1 <= neighbours <= len(chosen):
        raise UsageError(f"each point has 1 to {len(chosen)} neighbours, got {neighbours}")
    found = _nearest_indices(choosing, chosen, neighbours).reshape(-1)
    choosers = np.repeat(np.arange(len(choosing)), neighbours)
    from_, to = (choosers, found) if of == "senders" else (found, choosers)
    order = np.lexsort((from_, to))
    from_, to = from_[order], to[order]
    features = _features(*latitude_longitude(senders), *latitude_longitude(receivers), from_, to)
    return Bipartite(from_, to, features, len(senders), len(receivers))


def _nearest_indices(choosing: np.ndarray, chosen: np.ndarray, neighbours: int, rows: int = 4096) -> np.ndarray:
    """By the dot product, in slices that fit into memory."""
    found = []
    for start in range(0, len(choosing), rows):
        closeness = choosing[start : start + rows] @ chosen.T
        found.append(np.argsort(-closeness, 1, kind="stable")[:, :neighbours])
    return np.concatenate(found)


def _features(lat_s, lon_s, lat_r, lon_r, senders: np.ndarray, receivers: np.ndarray) -> np.ndarray:
    dlat = lat_r[receivers] - lat_s[senders]
    dlon = (lon_r[receivers] - lon_s[senders] + np.pi) % (2 * np.pi) - np.pi
    half = np.sin(dlat / 2) ** 2 + np.cos(lat_s[senders]) * np.cos(lat_r[receivers]) * np.sin(dlon / 2) ** 2
    distance = 2 * np.arcsin(np.sqrt(np.clip(half, 0.0, 1.0)))
    return np.stack([dlat / (np.pi / 2), dlon / np.pi, distance / np.pi], 1)


def latitude_longitude(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Radians, ``[points]`` each, of unit vectors ``[points, 3]``."""
    return np.arcsin(np.clip(positions[:, 2], -1, 1)), np.arctan2(positions[:, 1], positions[:, 0])


def unit_vectors(latitude: np.ndarray, longitude: np.ndarray) -> np.ndarray:
    """The inverse of :func:`latitude_longitude`."""
    cos = np.cos(latitude)
    return np.stack([cos * np.cos(longitude), cos * np.sin(longitude), np.sin(latitude)], -1)


def bearing(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The direction in which a great circle leaves, from north through east, radians in [0, 2π). ``[points, 3] -> [points]``."""
    lat_a, lon_a = latitude_longitude(start)
    lat_b, lon_b = latitude_longitude(end)
    east = np.sin(lon_b - lon_a) * np.cos(lat_b)
    north = np.cos(lat_a) * np.sin(lat_b) - np.sin(lat_a) * np.cos(lat_b) * np.cos(lon_b - lon_a)
    return np.mod(np.arctan2(east, north), 2 * np.pi)


def node_areas(sphere: Icosphere) -> np.ndarray:
    """A third of the area of each spherical triangle to each of its corners, over the whole; ``[nodes]``, sums to 1."""
    a, b, c = (sphere.positions[sphere.faces[:, i]] for i in range(3))
    volume = np.abs(np.einsum("fi,fi->f", a, np.cross(b, c)))
    dots = [np.einsum("fi,fi->f", x, y) for x, y in ((a, b), (b, c), (c, a))]
    area = 2 * np.arctan2(volume, 1 + sum(dots))  # van Oosterom and Strackee (1983)
    total = np.zeros(len(sphere.positions))
    np.add.at(total, sphere.faces, area[:, None] / 3)
    return total / total.sum()
