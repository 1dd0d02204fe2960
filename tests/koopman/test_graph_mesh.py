import numpy as np
import pytest

from jaxrl.errors import UsageError
from jaxrl.koopman.graph import mesh


def test_an_icosphere_has_its_nodes_edges_and_faces():
    for r, nodes in enumerate((12, 42, 162, 642)):
        sphere = mesh.icosphere(r)
        assert len(sphere.positions) == nodes == 10 * 4**r + 2
        assert [len(e) for e in sphere.edges] == [30 * 4**k for k in range(r + 1)]
        assert len(sphere.faces) == 20 * 4**r
        np.testing.assert_allclose(np.linalg.norm(sphere.positions, axis=1), 1.0, atol=1e-14)


def test_the_icosahedron_is_regular_and_its_faces_look_outwards():
    sphere = mesh.icosphere(0)
    ends = sphere.positions[sphere.edges[0]]
    np.testing.assert_allclose(np.einsum("ei,ei->e", ends[:, 0], ends[:, 1]), 1 / np.sqrt(5), atol=1e-14)
    a, b, c = (mesh.icosphere(2).positions[mesh.icosphere(2).faces[:, i]] for i in range(3))
    assert np.all(np.einsum("fi,fi->f", np.cross(b - a, c - a), a) > 0)


def test_degrees_of_the_multi_mesh_are_the_known_ones():
    # R = 4: the first twelve have 5 neighbours at each of 5 levels, the youngest 6; 26 and 7 with themselves.
    degrees = mesh.icosahedral_mesh(4).in_degrees
    assert degrees[:12].tolist() == [25] * 12 and degrees.max() == 25 and degrees.min() == 6


@pytest.mark.parametrize("typing", mesh.TYPINGS)
def test_every_edge_has_its_reverse_and_one_of_twelve_types(typing):
    graph = mesh.icosahedral_mesh(2, typing=typing)
    edges = set(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))
    assert len(edges) == len(graph.senders) == 2 * (30 + 120 + 480)
    assert edges == {(b, a) for a, b in edges}
    assert set(graph.types) == set(range(12)) and np.all(np.diff(graph.receivers) >= 0)


def reverse_types(graph):
    """For each type, the types that the reverses of its edges have."""
    of = {(s, r): t for s, r, t in zip(graph.senders, graph.receivers, graph.types, strict=True)}
    found = {t: set() for t in range(graph.edge_types)}
    for (s, r), t in of.items():
        found[t].add(of[(r, s)])
    return found


def test_only_the_type_of_the_undirected_edge_says_the_type_of_its_reverse():
    paired = mesh.icosahedral_mesh(3)
    assert reverse_types(paired) == {t: {paired.reverse[t]} for t in range(12)}
    released = mesh.icosahedral_mesh(3, typing="source")
    assert released.reverse is None
    assert all(len(types) > 1 for types in reverse_types(released).values())


def test_bearings_by_hand():
    # On the equator at 0 E: to the pole is north, to 90 E is east, to the south pole south, to 90 W west.
    start = np.tile([1.0, 0, 0], (4, 1))
    end = np.array([[0, 0, 1.0], [0, 1.0, 0], [0, 0, -1.0], [0, -1.0, 0]])
    np.testing.assert_allclose(mesh.bearing(start, end), np.pi * np.array([0, 0.5, 1, 1.5]), atol=1e-12)


def test_areas_sum_to_one_and_integrate_well():
    sphere = mesh.icosphere(3)
    weights = mesh.node_areas(sphere)
    assert weights.sum() == pytest.approx(1.0) and weights.max() / weights.min() < 2.0
    assert mesh.node_areas(mesh.icosphere(0)) == pytest.approx(np.full(12, 1 / 12))
    assert weights @ sphere.positions[:, 2] ** 2 == pytest.approx(1 / 3, abs=2e-3)


def test_nearest_by_hand_and_none_of_the_choosers_is_left_out():
    corners = mesh.icosphere(0).positions
    grid = mesh.unit_vectors(np.array([1.5, -1.5, 0.1]), np.array([0.0, 1.0, 0.0]))
    down = mesh.nearest(grid, corners, 1)
    assert dict(zip(down.senders.tolist(), down.receivers.tolist(), strict=True)) == {0: 0, 1: 11, 2: 1}
    up = mesh.nearest(corners, grid, 3, of="receivers")
    assert np.bincount(up.receivers).tolist() == [3, 3, 3] and (up.sender_count, up.receiver_count) == (12, 3)
    # From (1.5, 0) to the pole: latitude differs by (π/2 - 1.5) and so does the angle.
    pole = down.features[down.senders == 0][0]
    assert pole[0] == pytest.approx((np.pi / 2 - 1.5) / (np.pi / 2)) and pole[2] == pytest.approx(
        (np.pi / 2 - 1.5) / np.pi
    )


def test_a_ring_sends_from_the_right_places():
    graph = mesh.ring_mesh(8, (1, 3))
    of = {(s, r): t for s, r, t in zip(graph.senders, graph.receivers, graph.types, strict=True)}
    assert of[(7, 0)] == 0 and of[(5, 0)] == 1 and of[(1, 0)] == 2 and of[(3, 0)] == 3
    assert reverse_types(graph) == {t: {graph.reverse[t]} for t in range(4)}
    assert graph.coordinates.shape == (8, 0) and mesh.ring_mesh(8, (1,), True).coordinates.shape == (8, 2)


def test_land_steps_on_itself_in_another_way():
    land = np.arange(42) < 10
    graph = mesh.icosahedral_mesh(1, land)
    assert graph.loop_types == 2 and graph.node_types.sum() == 10
    assert mesh.icosahedral_mesh(1).loop_types == 1


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: mesh.icosphere(-1), "0 to 7"),
        (lambda: mesh.icosahedral_mesh(1, typing="bearing"), "unknown typing"),
        (lambda: mesh.icosahedral_mesh(1, land=np.ones(41)), r"\(42,\)"),
        (lambda: mesh.ring_mesh(8, (1, 4)), "below 4"),
        (lambda: mesh.ring_mesh(8, (1, 1)), "different"),
        (lambda: mesh.nearest(np.eye(3), np.eye(3), 4), "1 to 3"),
        (lambda: mesh.nearest(np.eye(3), np.eye(3), 1, of="both"), "unknown choice"),
    ],
)
def test_what_cannot_work_is_refused(make, said):
    with pytest.raises(UsageError, match=said):
        make()
