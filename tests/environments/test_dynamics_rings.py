from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from environments import dynamics
from environments.dynamics.base import repeated, rk4
from environments.dynamics.rings import etdrk4, exponential_scheme, ring_frequencies
from environments.dynamics.small import lorenz96_derivative
from jaxrl.errors import UsageError


def order_of(errors):
    """The slope of error over step size, each half the one before."""
    return np.log2(np.asarray(errors[:-1]) / np.asarray(errors[1:]))


def test_the_ring_turns_each_mode_by_its_frequency():
    # k = 3: ω = 3 * 1 - 1e-3 * 27 = 2.973; five samples of 0.1 turn cos(3x) by 1.4865.
    system = dynamics.ring()
    x = 2 * np.pi * np.arange(64) / 64
    state = jnp.fft.rfft(jnp.cos(3 * x))
    seen = dynamics.observed(system, state, 6)
    np.testing.assert_allclose(seen[5], np.cos(3 * x - 1.4865), atol=2e-6)
    assert ring_frequencies(64, 1.0, 1e-3)[3] == pytest.approx(2.973)


def test_the_ring_keeps_its_norm_and_its_spectrum_has_the_slope():
    system = dynamics.ring(slope=1.5, modes=12)
    fields = jax.vmap(lambda key: dynamics.trajectory(system, key, 60))(jax.random.split(jax.random.key(0), 2000))
    norms = jnp.mean(fields**2, -1)
    np.testing.assert_allclose(norms, jnp.broadcast_to(norms[:, :1], norms.shape), rtol=2e-5)
    assert float(norms.mean()) == pytest.approx(1.0, abs=0.04)
    power = np.mean(np.abs(np.fft.rfft(fields[:, 0])) ** 2, 0)
    slope = np.polyfit(np.log(np.arange(1, 13)), np.log(power[1:13]), 1)[0]
    assert slope == pytest.approx(-3.0, abs=0.12)
    assert power[13:].max() < 1e-8 * power[1] and power[0] < 1e-8 * power[1]


def test_runge_kutta_is_of_fourth_order_on_lorenz96():
    with jax.enable_x64(True):
        start = 8.0 + jnp.sin(jnp.arange(40.0) ** 2)
        derivative = partial(lorenz96_derivative, forcing=8.0)
        run = lambda dt, n: repeated(lambda x: rk4(derivative, x, dt), start, n)
        exact = run(0.4 / 512, 512)
        errors = [float(jnp.abs(run(0.4 / n, n) - exact).max()) for n in (8, 16, 32)]
    assert order_of(errors) == pytest.approx(4.0, abs=0.25)


def test_lorenz96_by_hand():
    # x = 1..5, F = 8; i = 0: (x1 - x3) x4 - x0 + 8 = (2 - 4) 5 - 1 + 8 = -3; i = 2: (4 - 1) 2 - 3 + 8 = 11.
    rate = lorenz96_derivative(jnp.arange(1.0, 6.0), 8.0)
    np.testing.assert_allclose(rate, [-3.0, (3 - 5) * 1 + 6.0, 11.0, (5 - 2) * 3 + 4.0, (1 - 3) * 4 + 3.0])
    x = np.random.default_rng(0).normal(size=40).astype(np.float32)
    assert abs(float(np.sum(x * (lorenz96_derivative(x, 0.0) + x)))) < 1e-4  # the quadratic part keeps Σ x²


def test_lorenz96_has_the_climate_that_is_known():
    # Mean 2.34 and standard deviation 3.64 at F = 8 (Lorenz 1996 and later work).
    fields = dynamics.trajectory(dynamics.lorenz96(), jax.random.key(1), 4000, burn_in=400)
    assert float(fields.mean()) == pytest.approx(2.34, abs=0.08)
    assert float(fields.std()) == pytest.approx(3.64, abs=0.08)


def test_contour_coefficients_equal_their_limits():
    # As L dt -> 0: stage dt/2, first dt/6, middle dt/3, last dt/6. At L dt = -2, by the formulas themselves.
    scheme = exponential_scheme(np.array([0.0, -4.0, 1e-9]), 0.5)
    for part, limit in zip(scheme[2:], (0.25, 0.5 / 6, 0.5 / 3, 0.5 / 6), strict=True):
        assert part[0] == pytest.approx(limit, rel=1e-12) and part[2] == pytest.approx(limit, rel=1e-8)
    assert scheme.stage[1] == pytest.approx(0.5 * (np.exp(-1.0) - 1) / -2.0, rel=1e-12)
    assert scheme.first[1] == pytest.approx(0.5 * (-2.0 + np.exp(-2.0) * (4 + 6 + 4)) / -8.0, rel=1e-12)


def test_etdrk4_is_exact_for_a_linear_equation_and_of_fourth_order_for_a_stiff_one():
    linear = np.array([-1.0, -50.0])
    with jax.enable_x64(True):
        start = jnp.array([1.0, 0.5])
        held = etdrk4(exponential_scheme(linear, 0.3), lambda v: 0.0 * v, start)
        np.testing.assert_allclose(held, np.exp(0.3 * linear) * start, rtol=1e-13)
        push = lambda v: jnp.array([1.0, 50.0]) * v[::-1] ** 2
        run = lambda n: repeated(partial(etdrk4, exponential_scheme(linear, 1.0 / n), push), start, n)
        exact = run(2048)
        errors = [float(jnp.abs(run(n) - exact).max()) for n in (64, 128, 256)]
    assert order_of(errors) == pytest.approx(4.0, abs=0.35)


@pytest.fixture(scope="module")
def developed():
    """A state of the Kuramoto–Sivashinsky equation on its attractor, float64."""
    with jax.enable_x64(True):
        system = dynamics.kuramoto_sivashinsky()
        return np.asarray(jax.jit(partial(dynamics.advance, system, samples=150))(system.initial(jax.random.key(0))))


def test_kuramoto_sivashinsky_converges_at_fourth_order(developed):
    # On 64 points, where L dt is no larger than 3 at these steps: stiffer modes reach the order at smaller steps only.
    with jax.enable_x64(True):

        def run(dt):
            return dynamics.kuramoto_sivashinsky(points=64, dt=dt, interval=2.0).step(jnp.asarray(developed[:33] / 2))

        exact = run(1 / 1024)
        errors = [float(jnp.abs(run(dt) - exact).max()) for dt in (1 / 32, 1 / 64, 1 / 128)]
    assert order_of(errors) == pytest.approx(4.0, abs=0.35)


def test_kuramoto_sivashinsky_against_a_plain_numpy_integration(developed):
    # Explicit RK4 with a step far below the stability limit, and derivatives by numpy's own transform.
    k = 2 * np.pi / 64.0 * np.arange(65)

    def rate(u):
        v = np.fft.rfft(u)
        return np.fft.irfft((k**2 - k**4) * v, n=128) - u * np.fft.irfft(1j * k * v, n=128)

    u, dt = np.fft.irfft(developed, n=128), 1e-3
    for _ in range(1000):
        k1 = rate(u)
        k2 = rate(u + dt / 2 * k1)
        k3 = rate(u + dt / 2 * k2)
        u = u + dt / 6 * (k1 + 2 * k2 + 2 * k3 + rate(u + dt * k3))
    with jax.enable_x64(True):
        system = dynamics.kuramoto_sivashinsky(dt=1 / 32)
        np.testing.assert_allclose(system.observe(system.step(jnp.asarray(developed))), u, atol=1e-6)


def test_kuramoto_sivashinsky_keeps_its_mean_and_stays_on_its_attractor():
    system = dynamics.kuramoto_sivashinsky()
    fields = dynamics.trajectory(system, jax.random.key(2), 300, burn_in=200)
    assert float(jnp.abs(fields.mean(-1)).max()) < 1e-5
    assert 1.0 < float(fields.std()) < 1.6 and float(jnp.abs(fields).max()) < 4.5
    shifted = jnp.fft.rfft(fields[0] + 0.7)  # any mean stays, not only 0
    assert float(system.observe(system.step(shifted)).mean()) == pytest.approx(0.7, abs=1e-5)


def test_a_slow_manifold_has_its_koopman_eigenfunctions():
    system = dynamics.slow_manifold(mu=-0.05, lam=-1.0, interval=0.1)
    x = np.asarray(dynamics.observed(system, jnp.array([1.5, -0.7]), 30), np.float64)
    b = 1.0 / 0.9
    times = 0.1 * np.arange(30)
    np.testing.assert_allclose(x[:, 0], 1.5 * np.exp(-0.05 * times), rtol=1e-5)
    np.testing.assert_allclose(x[:, 1] - b * x[:, 0] ** 2, (-0.7 - b * 2.25) * np.exp(-times), rtol=1e-3, atol=1e-5)
    slope = (x[1:, 1] - x[:-1, 1])[0] / 0.1  # dx2/dt = -(x2 - x1²) = 2.95 at the start, falling
    assert slope == pytest.approx(2.95, rel=0.06)


def test_a_linear_map_and_its_noise():
    system = dynamics.linear([[0.0, 1.0], [-1.0, 0.0]])
    seen = dynamics.observed(system, (jnp.array([1.0, 2.0]), jax.random.key(0)), 3)
    np.testing.assert_allclose(seen, [[1, 2], [2, -1], [-1, -2]])
    noisy = dynamics.trajectory(dynamics.linear([[0.5]], noise=0.3), jax.random.key(0), 20_000, burn_in=20)
    assert float(noisy.var()) == pytest.approx(0.09 / 0.75, rel=0.05)  # σ² / (1 - a²)


def test_trajectories_start_after_the_burn_in_and_repeat_with_their_key():
    system = dynamics.lorenz96()
    whole = dynamics.trajectory(system, jax.random.key(3), 12)
    late = dynamics.trajectory(system, jax.random.key(3), 5, burn_in=7)
    np.testing.assert_allclose(late, whole[7:], rtol=1e-5)
    assert not np.allclose(whole[0], dynamics.trajectory(system, jax.random.key(4), 1)[0])


@pytest.mark.parametrize("name", dynamics.names())
def test_every_system_is_found_by_name_and_runs(name, key_reuse_checked):
    kwargs = {"linear": {"matrix": np.eye(2), "noise": 0.1}, "barotropic": {"truncation": 8, "forcing": 1.0}}
    system = dynamics.make(name, **kwargs.get(name, {}))
    seen = jax.jit(jax.vmap(lambda key: dynamics.trajectory(system, key, 3)))(jax.random.split(jax.random.key(0), 2))
    assert seen.shape[:2] == (2, 3) and bool(jnp.isfinite(seen).all()) and seen.dtype == jnp.float32


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: dynamics.make("ringg"), "ring"),
        (lambda: dynamics.make("ring", size=3), "takes no 'size'"),
        (lambda: dynamics.ring(points=63), "even"),
        (lambda: dynamics.ring(speed=np.nan), "ring speed must be finite"),
        (lambda: dynamics.lorenz96(forcing=np.inf), "forcing must be finite"),
        (lambda: dynamics.slow_manifold(mu=np.nan), "mu must be finite"),
        (lambda: dynamics.ring(points=0), "nearest that works is 4"),
        (lambda: dynamics.ring(points=7), "8 works"),
        (lambda: dynamics.ring(modes=32), "resolve 31"),
        (lambda: dynamics.lorenz96(variables=3), "at least 4"),
        (lambda: dynamics.lorenz96(dt=0.03), "not a multiple"),
        (lambda: dynamics.kuramoto_sivashinsky(dt=0.3), "the nearest dt is 0.333"),
        (lambda: dynamics.kuramoto_sivashinsky(length=-1.0), "above 0"),
        (lambda: dynamics.kuramoto_sivashinsky(32, 64.0), "at least 42"),
        (lambda: dynamics.slow_manifold(mu=-0.5, lam=-1.0), "other than 2 mu"),
        (lambda: dynamics.linear(np.ones((2, 3))), "square"),
        (lambda: dynamics.linear([[np.nan]]), "finite"),
        (lambda: dynamics.trajectory(dynamics.ring(), jax.random.key(0), 0), "at least 1"),
        (lambda: dynamics.trajectory(dynamics.ring(), jax.random.key(0), 3, burn_in=-1), "at least 0"),
        (lambda: dynamics.trajectory(dynamics.ring(), jax.random.PRNGKey(0), 3), "typed key"),
    ],
)
def test_what_cannot_work_is_refused(make, said):
    with pytest.raises(UsageError, match=said):
        make()
