from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from environments import dynamics
from environments.dynamics import harmonics as sh
from environments.dynamics import vorticity as bt
from environments.dynamics.base import repeated, rk4
from jaxrl.errors import UsageError


def random_coefficients(truncation, seed=0, low=1, high=None):
    grid = sh.sphere(truncation)
    amplitude = bt.band(grid, (low, high or truncation), "test")
    return np.asarray(bt._draw(amplitude, jax.random.key(seed)))


def inviscid(truncation, rotation=bt.ROTATION):
    return bt.Flow(sh.sphere(truncation), rotation, np.zeros((1, truncation + 1)))


def run(flow, vorticity, days, steps):
    step = lambda v: rk4(partial(bt.tendency, flow), v, days / steps)
    return jax.jit(lambda v: repeated(step, v, steps))(jnp.asarray(vorticity))


def test_harmonics_by_hand():
    # P_00 = 1, P_10 = √3 μ, P_11 = √(3/2) cos φ, P_20 = √5 (3μ² - 1)/2, P_21 = √(15/2) μ cos φ, P_22 = √(15/8) cos² φ.
    mu = np.array([-0.8, 0.0, 0.3])
    cos = np.sqrt(1 - mu**2)
    p = sh.associated_legendre(2, mu)
    expected = {(0, 0): 1 + 0 * mu, (0, 1): np.sqrt(3) * mu, (1, 1): np.sqrt(1.5) * cos}
    expected |= {(0, 2): np.sqrt(5) * (3 * mu**2 - 1) / 2, (1, 2): np.sqrt(7.5) * mu * cos}
    for (m, degree), value in (expected | {(2, 2): np.sqrt(15 / 8) * cos**2}).items():
        np.testing.assert_allclose(p[m, degree], value, atol=1e-14)


def test_the_grids_are_the_usual_ones_and_the_functions_orthonormal():
    assert [(len(sh.sphere(t).latitudes), sh.sphere(t).longitudes) for t in (21, 42)] == [(32, 64), (64, 128)]
    grid = sh.sphere(21)
    products = np.einsum("mlj,mkj,j->mlk", grid.legendre, grid.legendre, grid.weights)
    np.testing.assert_allclose(products, np.eye(22) * grid.mask[:, :, None], atol=1e-12)


def test_slopes_equal_numerical_ones():
    mu, h = np.linspace(-0.9, 0.9, 7), 1e-6
    plus, minus = (sh.associated_legendre(7, mu + s * h) for s in (1, -1))
    numerical = (1 - mu**2) * (plus - minus)[:7, :7] / (2 * h)
    np.testing.assert_allclose(sh._slopes(sh.associated_legendre(7, mu)), numerical, atol=1e-7)


def test_a_round_trip_changes_nothing_and_power_sums_to_the_mean_square():
    grid, coefficients = sh.sphere(21), random_coefficients(21, low=1)
    field = sh.synthesise(grid, jnp.asarray(coefficients))
    np.testing.assert_allclose(sh.analyse(grid, field), coefficients, atol=2e-6)
    mean_square = np.sum(grid.weights[:, None] * np.asarray(field, np.float64) ** 2) / grid.longitudes
    assert float(sh.power(jnp.asarray(coefficients)).sum()) == pytest.approx(mean_square, rel=1e-5)
    with jax.enable_x64(True):
        wide = jnp.asarray(coefficients, jnp.complex128)
        np.testing.assert_allclose(sh.analyse(grid, sh.synthesise(grid, wide)), wide, atol=1e-13)


def test_points_see_the_field_of_the_grid():
    grid, coefficients = sh.sphere(10), jnp.asarray(random_coefficients(10))
    rows, columns = np.array([0, 5, 15]), np.array([3, 0, 20])
    matrix = sh.points_matrix(10, grid.latitudes[rows], 2 * np.pi * columns / grid.longitudes)
    field = np.asarray(sh.synthesise(grid, coefficients))
    np.testing.assert_allclose(sh.at_points(matrix, coefficients), field[rows, columns], atol=1e-5)
    pole = sh.at_points(sh.points_matrix(10, np.array([np.pi / 2] * 2), np.array([0.0, 2.0])), coefficients)
    np.testing.assert_allclose(pole[0], pole[1], atol=1e-6)


def test_advection_equals_a_jacobian_by_finite_differences():
    # -J(ψ, ζ + 2Ωμ) at a few points from values of ψ and ζ around them, in float64 NumPy.
    with jax.enable_x64(True):
        zeta = random_coefficients(6, seed=3)
        psi = np.asarray(bt.stream_function(jnp.asarray(zeta)))
        # The product reaches degree 11: a truncation of 12 holds it whole.
        wide = np.zeros((13, 13), np.complex128)
        wide[:7, :7] = zeta
        rate = bt.advection(inviscid(12), jnp.asarray(wide))
        lat, lon, h = np.array([-0.9, 0.2, 0.7]), np.array([0.3, 2.0, 5.0]), 1e-5

        def slopes(coefficients):
            see = lambda dlat, dlon: np.asarray(sh.at_points(sh.points_matrix(6, lat + dlat, lon + dlon), coefficients))
            return (see(h, 0) - see(-h, 0)) / (2 * h), (see(0, h) - see(0, -h)) / (2 * h)

        psi_lat, psi_lon = slopes(psi)
        zeta_lat, zeta_lon = slopes(zeta)
        planetary = 2 * bt.ROTATION * np.cos(lat)
        expected = -(psi_lon * (zeta_lat + planetary) - psi_lat * zeta_lon) / np.cos(lat)
        np.testing.assert_allclose(sh.at_points(sh.points_matrix(12, lat, lon), rate), expected, atol=1e-7)


def test_energy_and_enstrophy_stay_where_nothing_takes_them():
    # The truncated equation conserves both exactly, which the rates of change show; the time step does so nearly.
    with jax.enable_x64(True):
        flow, start = inviscid(21), 3.0 * random_coefficients(21, low=2, high=10)
        rate = bt.tendency(flow, jnp.asarray(start))
        of_enstrophy = float(jnp.sum(jax.jvp(bt.enstrophy, (jnp.asarray(start),), (rate,))[1]))
        of_energy = float(jnp.sum(jax.jvp(bt.energy, (jnp.asarray(start),), (rate,))[1]))
        end = run(flow, start, 2.5, 320)
        before, after = [np.array([bt.energy(v), bt.enstrophy(v)]) for v in (jnp.asarray(start), end)]
    assert abs(of_enstrophy) < 1e-12 and abs(of_energy) < 1e-13
    np.testing.assert_allclose(after, before, rtol=1e-6)
    assert np.abs(np.asarray(end) - start).max() > 0.3  # it is not that nothing moved


def test_runge_kutta_is_of_fourth_order_on_the_sphere():
    with jax.enable_x64(True):
        flow, start = inviscid(10), 3.0 * random_coefficients(10, low=2, high=6)
        exact = run(flow, start, 1.0, 512)
        errors = [float(jnp.abs(run(flow, start, 1.0, n) - exact).max()) for n in (16, 32, 64)]
    assert np.log2(np.divide(errors[:-1], errors[1:])) == pytest.approx(4.0, abs=0.2)


@pytest.mark.parametrize(("degree", "order"), [(5, 4), (3, 1)])
def test_a_rossby_haurwitz_wave_turns_at_its_speed(degree, order):
    with jax.enable_x64(True):
        start, speed = bt.rossby_haurwitz(21, degree, order, amplitude=1.5, solid=0.4)
        end = np.asarray(run(inviscid(21), start, 3.0, 192))
    moved = -np.angle(end[order, degree] / start[order, degree]) / order
    around = 2 * np.pi / order
    assert (moved - 3.0 * speed + around / 2) % around - around / 2 == pytest.approx(0.0, abs=2e-5)
    start[order, degree] *= np.exp(-3.0j * order * speed)
    np.testing.assert_allclose(end, start, atol=1e-4)  # and nothing else appears


def test_the_speed_of_a_wave_by_hand():
    # l = 5: 0.4 - 2 (2π + 0.4) / 30 = -0.045546 radians a day.
    assert bt.rossby_haurwitz(6, 5, 4, 1.0, 0.4)[1] == pytest.approx(-0.0455457, abs=1e-6)


def test_two_truncations_agree_on_a_smooth_flow():
    coarse = 2.0 * random_coefficients(21, seed=5, low=1, high=4)
    fine = np.zeros((43, 43), coarse.dtype)
    fine[:22, :22] = coarse
    ends = [np.asarray(run(inviscid(t), v, 2.0, 48)) for t, v in ((21, coarse), (42, fine))]
    assert np.abs(ends[0] - coarse).max() > 0.3
    np.testing.assert_allclose(ends[0][:10, :10], ends[1][:10, :10], atol=5e-3)


def test_damping_by_hand_and_forcing_by_its_variance():
    # Without flow across degrees: one zonal mode has no advection, so ζ falls by exp(-(drag + hyper) t).
    rates = bt.damping_rates(21, 0.1, 4.0)
    assert rates[0, 21] == pytest.approx(4.1) and rates[0, 1] == pytest.approx(0.1 + 4.0 * (2 / 462) ** 4)
    system = dynamics.barotropic(drag=0.1, hyperviscosity=4.0)
    still = np.zeros((22, 22), np.complex64)
    still[0, 21] = 1.0
    after = system.step(dynamics.BarotropicState(jnp.asarray(still), jax.random.key(0)))
    assert float(after.vorticity[0, 21].real) == pytest.approx(np.exp(-4.1 / 4), rel=1e-4)
    pushed = dynamics.barotropic(8, forcing=1.5, vorticity=0.0, interval=1.0, rotation=0.0)
    keys = jax.random.split(jax.random.key(1), 48)
    fields = jax.jit(jax.vmap(lambda key: dynamics.trajectory(pushed, key, 2)))(keys)
    weights = sh.sphere(8).weights[:, None] / sh.sphere(8).longitudes
    assert float(jnp.abs(fields[:, 0]).max()) == 0.0
    assert float(jnp.mean(jnp.sum(weights * fields[:, 1] ** 2, (1, 2)))) == pytest.approx(2.25, rel=0.1)


def test_a_start_has_its_size_and_is_seen_at_points():
    north = (np.array([0.5, -0.2]), np.array([1.0, 4.0]))
    system = dynamics.barotropic(10, vorticity=2.0, points=north)
    keys = jax.random.split(jax.random.key(0), 500)
    seen = jax.jit(jax.vmap(lambda key: system.observe(system.initial(key))))(keys)
    assert seen.shape == (500, 2)
    assert float(jnp.sqrt(jnp.mean(seen**2))) == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: dynamics.barotropic(0), "truncation"),
        (lambda: dynamics.barotropic(dt=0.1), "not a multiple"),
        (lambda: dynamics.barotropic(forcing=-1.0), "forcing"),
        (lambda: dynamics.barotropic(drag=float("nan")), "drag"),
        (lambda: dynamics.barotropic(10, start=(2, 12)), "<= 10"),
        (lambda: dynamics.barotropic(10, points=(np.zeros(2), np.zeros(3))), "points"),
        (lambda: dynamics.barotropic(10, points=(np.array([90.0]), np.zeros(1))), "radians"),
        (lambda: bt.rossby_haurwitz(6, 7, 1, 1.0, 0.0), "degree"),
    ],
)
def test_what_cannot_work_is_refused(make, said):
    with pytest.raises(UsageError, match=said):
        make()
