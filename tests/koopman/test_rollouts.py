"""Three ways to roll out: equal to each other and to a float64 loop."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.errors import UsageError
from jaxrl.koopman import operators, rollouts

SIZE, CONTROLS = 6, 2
OPERATORS = {
    "dense": operators.dense(SIZE, CONTROLS),
    "skew": operators.skew(SIZE, CONTROLS),
    "block": operators.block(SIZE, CONTROLS, 3),
    "rotation": operators.block(SIZE, CONTROLS, kind="rotation"),
    "diagonal": operators.diagonal(SIZE, CONTROLS),
    "without products": operators.dense(SIZE, CONTROLS)._replace(compose=None),
    "many controls": operators.diagonal(SIZE, 60),
}


def loop(operator, params, latent, controls, horizon):
    """Step after step in float64."""
    a, b = (np.asarray(part, np.float64) for part in operator.matrix(params))
    states, state = [], np.asarray(latent, np.float64)
    for t in range(horizon):
        state = a @ state + (0 if controls is None else b @ np.asarray(controls[t], np.float64))
        states.append(state)
    return np.stack(states)


@partial(jax.jit, static_argnums=(0, 4))
def all_ways(operator, params, latent, controls, horizon):
    return {
        (way, kind): rollout(operator, params, latent, given, horizon)
        for way, rollout in rollouts.ROLLOUTS.items()
        for kind, given in (("free", None), ("forced", controls))
    }


@pytest.mark.parametrize("horizon", [1, 7, 200])
@pytest.mark.parametrize("name", OPERATORS)
def test_all_three_equal_a_float64_loop(name, horizon):
    operator = OPERATORS[name]
    rng = np.random.default_rng(horizon)
    params = operator.init(jax.random.key(2))
    # Forced by what keeps latents near 1, so that 1e-5 means what it says.
    params["B"] = params["B"] * 0.1
    latent = jnp.asarray(rng.normal(size=SIZE) / np.sqrt(SIZE), jnp.float32)
    controls = jnp.asarray(rng.normal(size=(horizon, operator.control_size)), jnp.float32)
    expected = {
        "free": loop(operator, params, latent, None, horizon),
        "forced": loop(operator, params, latent, controls, horizon),
    }
    for (way, kind), states in all_ways(operator, params, latent, controls, horizon).items():
        assert states.shape == (horizon, SIZE) and states.dtype == jnp.float32
        np.testing.assert_allclose(states, expected[kind], atol=1e-5, err_msg=f"{way}, {kind}")


def test_no_length_of_block_and_tree_drops_a_step():
    """In whole numbers, where any error shows: z' = z + c from 1 with controls 1, 2, 3 … counts triangles."""
    for controls in (5, 60):
        operator = operators.dense(1, controls)
        params = {"A": jnp.ones((1, 1)), "B": jnp.ones((1, controls))}
        for horizon in (3, 10, 17, 31):
            given = jnp.zeros((horizon, controls)).at[:, -1].set(jnp.arange(horizon) + 1.0)
            states = jax.jit(rollouts.associative, static_argnums=(0, 4))(operator, params, jnp.ones(1), given, horizon)
            assert states[:, 0].tolist() == [1 + t * (t + 1) / 2 for t in range(1, horizon + 1)]


def test_by_hand():
    """z' = z / 2 + c from 8 with controls 1, 0, 2: 5, 2.5, 3.25."""
    operator = operators.dense(1, 1)
    params = {"A": jnp.array([[0.5]]), "B": jnp.array([[1.0]])}
    for rollout in rollouts.ROLLOUTS.values():
        states = rollout(operator, params, jnp.array([8.0]), jnp.array([[1.0], [0.0], [2.0]]), 3)
        np.testing.assert_allclose(states[:, 0], [5.0, 2.5, 3.25], rtol=1e-6)


def test_gradients_and_batches_agree():
    """Gradients in parameters, start and controls, over a batch of starts, are the same whichever way."""
    operator = operators.diagonal(4, 2)
    params = operator.init(jax.random.key(0))
    latents, controls = jnp.ones((3, 4)), jnp.ones((3, 20, 2)) * jnp.arange(3)[:, None, None]

    def loss(params, latents, controls, rollout):
        states = jax.vmap(lambda z, c: rollout(operator, params, z, c, 20))(latents, controls)
        return jnp.mean(states**2)

    gradient = jax.jit(jax.grad(loss, (0, 1, 2)), static_argnums=3)
    wanted, *others = (gradient(params, latents, controls, rollout) for rollout in rollouts.ROLLOUTS.values())
    for other in others:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), wanted, other)


def test_gradients_of_an_operator_that_grows_are_finite():
    """Growth by 1.5 a step: 1.5^200 is finite in float32 and 1.5^256 is not, and nothing computes it."""
    operator = operators.dense(2, 1)
    params = {"A": 1.5 * jnp.eye(2), "B": jnp.ones((2, 1))}
    for rollout in (rollouts.associative, rollouts.closed_form):
        loss = lambda p, r=rollout: jnp.mean(r(operator, p, jnp.full(2, 1e-30), jnp.zeros((200, 1)), 200))
        gradient = jax.jit(jax.grad(loss))(params)
        assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(gradient)), rollout


def test_the_depth_of_the_parallel_ways_is_logarithmic():
    """No loop over steps is left in them, only one over squarings, and the program hardly grows with the horizon."""
    operator = operators.diagonal(4, 2)
    params = operator.init(jax.random.key(0))

    def equations(rollout, horizon):
        args = (params, jnp.ones(4), jnp.ones((horizon, 2)))
        jaxpr = jax.make_jaxpr(lambda p, z, c: rollout(operator, p, z, c, horizon))(*args)
        loops = [e.params.get("length", horizon) for e in jaxpr.eqns if str(e.primitive) in ("scan", "while")]
        assert max(loops, default=0) <= 1 + np.log2(horizon)
        return len(jaxpr.eqns)

    for rollout in (rollouts.associative, rollouts.closed_form):
        assert equations(rollout, 1024) < 2.5 * equations(rollout, 32)


def test_what_cannot_work_is_refused():
    operator = operators.diagonal(4, 2)
    params, latent = operator.init(jax.random.key(0)), jnp.ones(4)
    large = operators.assemble("graph", 5000, lambda key: {}, lambda p: p, lambda t, z: z)
    for rollout in rollouts.ROLLOUTS.values():
        for args, said in [
            ((operator, params, latent, None, 0), "at least 1"),
            ((operator, params, latent, None, 2.0), "whole number"),
            ((operator, params, latent, None, True), "at least 1"),
            ((operator, operators.diagonal(6, 2).init(jax.random.key(0)), latent, None, 2), r"of shape \(4, 2\)"),
            ((operator, params, latent[None], None, 2), "vmap"),
            ((operator, params, jnp.ones(6), None, 2), "size 4"),
            ((operator, params, latent, jnp.ones((2, 3)), 2), "size 2"),
            ((operator, params, latent, jnp.ones((3, 2)), 2), r"\(2, 2\)"),
            ((operators.diagonal(4), params, latent, jnp.ones((2, 2)), 2), "no control"),
        ]:
            with pytest.raises(UsageError, match=said):
                rollout(*args)
        assert rollout(operator, params, latent, None, np.int64(2)).shape == (2, 4)
    with pytest.raises(UsageError, match="use scan"):
        rollouts.associative(large, {}, jnp.ones(5000), None, 3)
    with pytest.raises(UsageError, match="did you mean 'scan'"):
        rollouts.by_name("scann")
    assert rollouts.by_name("closed_form") is rollouts.closed_form
