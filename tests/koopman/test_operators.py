"""One linear step: literal numbers, the matrix it stands for, and that stable operators are stable."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.errors import UsageError
from jaxrl.koopman import operators, parametrisations, rollouts

SIZE, CONTROLS = 6, 2
ALL = {
    "dense": operators.dense(SIZE, CONTROLS),
    "bounded": operators.bounded(SIZE, CONTROLS),
    "skew": operators.skew(SIZE, CONTROLS),
    "block": operators.block(SIZE, CONTROLS, 3),
    "rotation": operators.block(SIZE, CONTROLS, kind="rotation"),
    "diagonal": operators.diagonal(SIZE, CONTROLS),
}
STABLE = [name for name, operator in ALL.items() if operator.stable]


def test_which_are_stable():
    assert sorted(STABLE) == ["bounded", "diagonal", "skew"]
    assert not operators.bounded(4, radius=1.1).stable


def test_diagonal_by_hand():
    """lambda = i/2: (1, 0) goes to (0, 1/2), and a control of 1 enters as sqrt(1 - 1/4)."""
    operator = operators.diagonal(2, 1)
    params = {
        "nu": jnp.log(jnp.log(jnp.full(1, 2.0))),
        "theta": jnp.full(1, math.pi / 2),
        "B": jnp.array([[1.0], [2.0]]),
    }
    moved = operator.step(params, jnp.array([1.0, 0.0]), jnp.ones(1))
    np.testing.assert_allclose(moved, [0.8660254, 0.5 + 1.7320508], rtol=3e-6)


def test_skew_by_hand():
    """A turn by 0.3 rad and a decay of log 2 a step: cos 0.3 / 2 and sin 0.3 / 2."""
    params = {"S": jnp.array([[0.0, -0.6], [0.0, 0.0]]), "D": jnp.log(jnp.expm1(jnp.log(jnp.full(2, 2.0))))}
    matrix, control = operators.skew(2).matrix(params)
    np.testing.assert_allclose(matrix, [[0.47766824, -0.1477601], [0.1477601, 0.47766824]], rtol=5e-6)
    assert control is None


def test_bounded_by_hand():
    """diag(4, 1) has norm 4 and becomes diag(1, 1/4); what is small enough stays as it is, to the bit."""
    operator = operators.bounded(2)
    np.testing.assert_allclose(
        operator.matrix({"A": jnp.diag(jnp.array([4.0, 1.0]))})[0], np.diag([1, 0.25]), rtol=1e-5
    )
    small = jnp.array([[0.3, 0.5], [0.0, -0.7]])
    assert (operator.matrix({"A": small})[0] == small).all()


def test_rotation_and_blocks_by_hand():
    params = {"mu": jnp.log(jnp.full(1, 2.0)), "omega": jnp.full(1, math.pi / 6)}
    expected = [[1.7320508, -1.0], [1.0, 1.7320508]]
    np.testing.assert_allclose(operators.block(2, kind="rotation").matrix(params)[0], expected, rtol=1e-6)
    blocks = {"blocks": jnp.array([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]])}
    moved = operators.block(4).step(blocks, jnp.array([1.0, 1.0, 1.0, -1.0]), None)
    np.testing.assert_allclose(moved, [3.0, 7.0, -1.0, -1.0])


@pytest.mark.parametrize("name", ALL)
def test_step_is_the_matrix_and_power_its_power(name):
    operator = ALL[name]
    params = operator.init(jax.random.key(1))
    latent, control = np.linspace(-1, 1, 3 * SIZE).reshape(3, SIZE), np.ones((3, CONTROLS))
    a, b = (np.asarray(part, np.float64) for part in operator.matrix(params))
    assert a.shape == (SIZE, SIZE) and b.shape == (SIZE, CONTROLS)
    step = operator.step(params, jnp.asarray(latent, jnp.float32), jnp.asarray(control, jnp.float32))
    np.testing.assert_allclose(step, latent @ a.T + control @ b.T, atol=3e-6)
    seven = operator.apply(operators.power(operator, operator.transition(params), 7), jnp.eye(SIZE)).T
    np.testing.assert_allclose(seven, np.linalg.matrix_power(a, 7), atol=3e-6)
    thin = operators.densify(operator)
    np.testing.assert_allclose(thin.step(params, jnp.ones(SIZE), None), a @ np.ones(SIZE), atol=3e-6)


@partial(jax.jit, static_argnums=0)
def largest_growth(name, params, latent):
    """The largest factor by which a norm grew over any number of steps up to 1,000."""
    states = rollouts.scan(ALL[name], params, latent, None, 1000)
    return jnp.max(jnp.linalg.norm(states, axis=-1)) / jnp.linalg.norm(latent), states[-1]


@pytest.mark.parametrize("name", STABLE)
@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**31 - 1), st.floats(-6, 38.3), st.floats(-6, 38.3), st.sampled_from(["normal", "alike", "sparse"])
)
def test_no_parameters_make_a_stable_operator_grow(name, seed, exponent, other, kind):
    """In float32, with all finite parameters, of different sizes: 1,000 steps never exceed the start by more than rounding."""
    rng = np.random.default_rng(seed)

    def draw(leaf, scale):
        values = rng.normal(size=leaf.shape)
        values = {"normal": values, "alike": np.sign(values), "sparse": values * (rng.random(leaf.shape) < 0.3)}[kind]
        return jnp.asarray(np.clip(values * scale, -3e38, 3e38), jnp.float32)

    leaves, tree = jax.tree.flatten(ALL[name].init(jax.random.key(0)))
    scales = [10.0**exponent, 10.0**other, 10.0**exponent]
    params = jax.tree.unflatten(tree, [draw(leaf, s) for leaf, s in zip(leaves, scales, strict=False)])
    growth, last = largest_growth(name, params, jnp.asarray(rng.normal(size=SIZE), jnp.float32))
    assert jnp.isfinite(last).all()
    assert growth <= 1.0 + 1e-5


@pytest.mark.parametrize("name", STABLE)
def test_slow_modes_survive_a_thousand_steps(name):
    """The margin against rounding costs little: an undamped operator keeps 99 % of a norm over 1,000 steps."""
    params = ALL[name].init(jax.random.key(0))
    slow = {"nu": -40.0, "D": -40.0}
    params = {k: jnp.full_like(v, slow[k]) if k in slow else v for k, v in params.items()}
    params = {k: 5.0 * v if k == "A" else v for k, v in params.items()}  # five rotations' worth of norm, cut to one
    states = rollouts.scan(ALL[name], params, jnp.ones(SIZE), None, 1000)
    kept = float(jnp.linalg.norm(states[-1]) / math.sqrt(SIZE))
    # A norm bound that is exact only for one singular value costs another 0.2 % a step where all are alike.
    assert kept > (0.1 if name == "bounded" else 0.99)


def test_what_is_too_large_is_turned_and_not_lost():
    """A norm of 3e38 becomes 1, and not 0 for the infinite product of bound and entry."""
    turn = operators.bounded(3).matrix({"A": 3e38 * jnp.eye(3)[::-1]})[0]
    np.testing.assert_allclose(turn, np.eye(3)[::-1], atol=5e-3)  # the bound is a little high where all are alike
    slope = jax.jit(jax.grad(lambda p: jnp.sum(operators.bounded(3).step(p, jnp.ones(3), None))))
    assert jnp.isfinite(slope({"A": 3e38 * jnp.ones((3, 3))})["A"]).all()


@pytest.mark.parametrize("name", ["diagonal", "skew", "bounded"])
@pytest.mark.parametrize("scale", [0.0, 1e-35, 1e-19, 1.0, 1e10, 1e35])
def test_gradients_are_finite_for_all_parameters(name, scale):
    operator = ALL[name]
    params = jax.tree.map(lambda leaf: leaf * scale, operator.init(jax.random.key(3)))
    loss = lambda p: jnp.mean(operator.step(p, jnp.ones(SIZE), jnp.ones(CONTROLS)) / max(scale, 1.0))
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(jax.jit(jax.grad(loss))(params)))


def test_exponential_against_an_independent_one():
    """Up to the largest norm there can be, against SciPy in float64."""
    rng = np.random.default_rng(0)
    for decay, turn in ((0.0, 3.14), (12.0, 3.14), (0.01, 0.3), (5.0, 0.0)):
        s = rng.normal(size=(20, 20))
        s = (s - s.T) * turn / np.linalg.norm(s - s.T, 2) - np.diag(rng.uniform(size=20) * decay)
        expected = scipy.linalg.expm(s)
        found = parametrisations.bounded_exponential(jnp.asarray(s, jnp.float32))
        np.testing.assert_allclose(found, expected, atol=2e-6)


def test_norm_bound_is_above_and_close():
    """Against a singular value decomposition in float64, for random, rotated, rank-one and huge matrices."""
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.normal(size=(64, 64)))[0]
    for matrix in (
        rng.normal(size=(64, 64)),
        rotation,
        np.ones((5, 5)),
        1e37 * rng.normal(size=(7, 7)),
        np.eye(3) * 1e-30,
    ):
        matrix = matrix.astype(np.float32)
        ratio = float(parametrisations.norm_bound(jnp.asarray(matrix))) / np.linalg.norm(matrix.astype(np.float64), 2)
        assert 1 - 1e-6 <= ratio <= len(matrix) ** (1 / 1024) * (1 + 1e-6)
    assert parametrisations.norm_bound(jnp.zeros((3, 3))) == 0


def test_diagonal_starts_uniform_in_area_of_its_ring():
    params = operators.diagonal(8000).init(jax.random.key(0))
    modes = np.asarray(parametrisations.ring_eigenvalues(params))
    radius, angle = np.abs(modes), np.angle(modes)
    assert radius.min() >= 0.9 - 1e-5 and radius.max() <= 0.999 + 1e-5
    assert angle.min() >= 0 and angle.max() <= math.pi / 10 + 1e-6
    # Squared radius is uniform on [.81, .998]: mean .904, and its standard error over 4,000 draws is 9e-4.
    assert abs(np.mean(radius**2) - (0.9**2 + 0.999**2) / 2) < 4e-3
    assert abs(np.mean(angle) - math.pi / 20) < 6e-3
    np.testing.assert_allclose(parametrisations.ring_input_scale(params) ** 2 + radius**2, 1.0, atol=1e-5)


def test_gradient_reaches_back_200_steps():
    """Norm of the gradient of |z_200|^2 / 2 in z_0, from the initial spectrum: neither vanished nor exploded."""
    operator = operators.diagonal(64)
    loss = lambda z, p: 0.5 * jnp.sum(rollouts.closed_form(operator, p, z, None, 200)[-1] ** 2)
    params = jax.vmap(operator.init)(jax.random.split(jax.random.key(0), 5))
    latents = jax.random.normal(jax.random.key(1), (5, 64))
    norms = jnp.linalg.norm(jax.jit(jax.vmap(jax.grad(loss)))(latents, params), axis=-1)
    assert ((norms >= 1e-3) & (norms <= 10)).all(), norms


@pytest.mark.parametrize("name", ["dense", "bounded"])
def test_a_start_turns_by_no_more_than_it_is_told(name):
    """A rotation by small angles, all of one radius; without a limit by any angle at all."""
    slow = getattr(operators, name)(16, max_phase=0.3)
    eigenvalues = np.linalg.eigvals(np.asarray(slow.matrix(slow.init(jax.random.key(0)))[0], np.float64))
    np.testing.assert_allclose(np.abs(eigenvalues), 0.99, rtol=1e-4)
    assert 0.1 < np.abs(np.angle(eigenvalues)).max() < 0.45
    fast = getattr(operators, name)(16)
    eigenvalues = np.linalg.eigvals(np.asarray(fast.matrix(fast.init(jax.random.key(0)))[0], np.float64))
    assert np.abs(np.angle(eigenvalues)).max() > 2.0


def test_init_consumes_each_key_once(key_reuse_checked):
    for operator in ALL.values():
        operator.init(jax.random.key(0))


def test_what_cannot_work_is_refused():
    operator = operators.dense(4, 2)
    params = operator.init(jax.random.key(0))
    for call, said in [
        (lambda: operators.diagonal(5), "use 6"),
        (lambda: operators.dense(0), "size of dense must be at least 1"),
        (lambda: operators.dense(2.5), "whole number"),
        (lambda: operators.dense(4, radius=math.nan), "radius above 0 and finite, got nan"),
        (lambda: operators.block(4, kind="rotation", radius=-1.0), "radius above 0"),
        (lambda: operators.skew(4, max_phase=math.inf), "max_phase above 0 and finite"),
        (lambda: operators.diagonal(4, max_phase=0.0), "max_phase above 0"),
        (lambda: operators.dense(4, -1), "at least 0"),
        (lambda: operators.block(7, block_size=3), "use size 9"),
        (lambda: operators.block(4, kind="rotatoin"), "did you mean 'rotation'"),
        (lambda: operators.block(6, block_size=3, kind="rotation"), "2 x 2"),
        (lambda: operators.bounded(4, radius=0.0), "above 0"),
        (lambda: operators.skew(4, max_decay=0.0), "above 0"),
        (lambda: operators.diagonal(4, min_radius=0.9, max_radius=1.0), "max_radius < 1"),
        (lambda: operators.assemble("x", 3, None, None, None, control_size=1), "no drive"),
        (lambda: operator.init(jax.random.PRNGKey(0)), "typed key"),
        (lambda: operator.step(params, jnp.ones(5), None), "size 4"),
        (lambda: operator.step(params, jnp.ones(4), jnp.ones(3)), "size 2"),
        (lambda: operators.dense(4).step({"A": params["A"]}, jnp.ones(4), jnp.ones(2)), "no control"),
        (lambda: operators.dense(4).step({"A": jnp.eye(5)}, jnp.ones(4), None), r"A of shape \(4, 4\), got \(5, 5\)"),
        (lambda: operators.dense(5).matrix({"A": jnp.ones((5, 4))}), r"A of shape \(5, 5\), got \(5, 4\)"),
        (lambda: operator.drive({**params, "B": jnp.ones((1, 2))}, jnp.ones(2)), r"B of shape \(4, 2\), got \(1, 2\)"),
        (lambda: operator.step({"A": jnp.eye(4)}, jnp.ones(4), None), "needs B of shape"),
        (lambda: operators.dense(4).step(params, jnp.ones(4), None), "got also B"),
        (lambda: operators.skew(4).transition({"S": jnp.eye(4), "D": jnp.ones(1)}), r"D of shape \(4,\)"),
        (lambda: operators.dense(4).matrix(jnp.eye(4)), "needs A of shape .* got one array"),
        (lambda: operators.power(operator, operator.transition(params), 0), "n of power must be at least 1"),
        (lambda: operators.power(operator._replace(compose=None), params["A"], 2), "densify"),
    ]:
        with pytest.raises(UsageError, match=said):
            call()
