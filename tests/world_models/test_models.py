"""Every model keeps the contract, and the loss is what its equation says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.errors import UsageError
from jaxrl.types import Experience
from jaxrl.world_models import base, baselines, koopman_model

SIZE, HIDDEN, OBSERVATIONS, ACTIONS = 6, (8,), 3, 2
SMALL = {"latent_size": SIZE, "hidden_sizes": HIDDEN}
koopman = lambda **options: koopman_model.make(koopman_model.Config(**SMALL, **options), OBSERVATIONS, ACTIONS)
baseline = lambda kind: baselines.make(baselines.Config(**SMALL, kind=kind), OBSERVATIONS, ACTIONS)
MODELS = {
    "diagonal": koopman(),
    "closed form": koopman(rollout="closed_form"),
    "dense": koopman(operator="dense"),
    "rotation": koopman(operator="rotation"),
    "skew": koopman(operator="skew"),
    "control": koopman(control_sizes=(5, 4)),
    "bilinear": koopman(operator="bilinear"),
    "gru": baseline("gru"),
    "mlp": baseline("mlp"),
}


def batch_of(seed=0, size=4, length=5, **fields):
    """Random windows without a flag."""
    rng = np.random.default_rng(seed)
    draw = lambda *shape: jnp.asarray(rng.normal(size=(size, length, *shape)), jnp.float32)
    no = jnp.zeros((size, length), bool)
    return Experience(draw(OBSERVATIONS), draw(ACTIONS), draw(), no, no, draw(OBSERVATIONS))._replace(**fields)


def random_params(model, seed=0):
    """Parameters with every bias and bilinear term away from 0. Drawn in NumPy: nothing is compiled."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(model.init, jax.random.key(seed)).params
    draw = lambda x: jnp.asarray(0.3 * rng.normal(size=x.shape), x.dtype)
    return jax.tree.map(draw, shapes)


@pytest.mark.parametrize("name", MODELS)
def test_a_rollout_is_repeated_steps(name):
    model = MODELS[name]
    params = random_params(model)
    latents = model.encode(params, jax.random.normal(jax.random.key(2), (3, OBSERVATIONS)))
    actions = jax.random.normal(jax.random.key(3), (3, 7, ACTIONS))
    found = jax.jit(model.rollout)(params, latents, actions)
    step = jax.jit(model.step)
    for t in range(7):
        latents = step(params, latents, actions[:, t])
        np.testing.assert_allclose(found[:, t], latents, atol=2e-5)
    assert model.decode(params, found).shape == (3, 7, OBSERVATIONS)
    assert model.reward(params, found, actions).shape == model.value(params, found).shape == (3, 7)


@pytest.mark.parametrize("name", ["diagonal", "dense", "rotation", "skew"])
def test_linear_models_say_their_matrices(name):
    model = MODELS[name]
    params = random_params(model)
    a, b = model.matrices(params)
    z, u = jax.random.normal(jax.random.key(0), (SIZE,)), jnp.array([0.3, -0.7])
    np.testing.assert_allclose(model.step(params, z, u), a @ z + b @ u, atol=1e-5)


def test_a_control_encoder_sees_the_action_alone():
    """Two latents under one action keep a difference that does not depend on the action."""
    model = MODELS["control"]
    params, z = random_params(model), jax.random.normal(jax.random.key(0), (2, SIZE))
    gaps = [jnp.diff(model.step(params, z, jnp.full((2, ACTIONS), a)), axis=0) for a in (-1.0, 0.0, 2.0)]
    np.testing.assert_allclose(gaps[0], gaps[1], atol=1e-5)
    np.testing.assert_allclose(gaps[2], gaps[1], atol=1e-5)
    assert model.matrices is None and MODELS["bilinear"].matrices is None and MODELS["gru"].matrices is None


def test_a_bilinear_step_by_hand():
    """Against A z + B a + a_0 N_0 z + a_1 N_1 z in float64."""
    model = MODELS["bilinear"]
    params = random_params(model)
    linear = koopman_model.operator_of(model.config, ACTIONS)
    a, b = (np.asarray(x, np.float64) for x in linear.matrix(params["dynamics"]["operator"]))
    n = np.asarray(params["dynamics"]["N"], np.float64)
    z, u = np.linspace(-1, 1, SIZE), np.array([0.5, -2.0])
    found = model.step(params, jnp.asarray(z, jnp.float32), jnp.asarray(u, jnp.float32))
    np.testing.assert_allclose(found, a @ z + b @ u + 0.5 * n[0] @ z - 2.0 * n[1] @ z, atol=1e-5)


def test_gradients_survive_a_long_rollout():
    """Neither vanishing nor exploding at 200 steps, with the initial eigenvalues."""
    config = koopman_model.Config(latent_size=32)
    model = koopman_model.make(config, OBSERVATIONS, ACTIONS)
    operator = koopman_model.operator_of(config, ACTIONS).init(jax.random.key(0))
    params = {"dynamics": {"operator": operator, "control": {}}}
    norm = lambda z: jnp.linalg.norm(model.rollout(params, z, jnp.zeros((200, ACTIONS)))[-1])
    slope = jax.jit(jax.grad(norm))(jnp.ones(32) / np.sqrt(32))
    assert 1e-3 < float(jnp.linalg.norm(slope)) < 1e1


def test_step_weights_by_hand():
    """Up to and including the first flag of either kind; rho^t."""
    terminated = jnp.array([[0, 1, 0, 0], [0, 0, 0, 0]], bool)
    truncated = jnp.array([[0, 0, 0, 1], [1, 0, 0, 0]], bool)
    found = base.step_weights(batch_of(size=2, length=4, terminated=terminated, truncated=truncated), 0.5)
    np.testing.assert_allclose(found, [[1, 0.5, 0, 0], [1, 0, 0, 0]])
    np.testing.assert_allclose(base.step_weights(batch_of(size=1, length=3), 1.0), [[1, 1, 1]])


def test_windows_by_hand():
    steps = jax.tree.map(lambda x: x, batch_of(size=6, length=2))  # six steps of two lanes
    steps = steps._replace(reward=jnp.arange(12.0).reshape(6, 2))
    found = base.windows(steps, jnp.array([1, 0]), jnp.array([0, 3]), 3)
    np.testing.assert_array_equal(found.reward, [[1, 3, 5], [6, 8, 10]])
    assert found.observation.shape == (2, 3, OBSERVATIONS)
    with pytest.raises(UsageError, match="1 to 6 steps"):
        base.windows(steps, jnp.array([0]), jnp.array([0]), 7)


def loop_loss(model, state, batch):
    """The equation, one window and one step at a time, from the contract's functions alone."""
    c, params = model.config, state.params
    model = model._replace(
        **{name: jax.jit(getattr(model, name)) for name in ("encode", "decode", "step", "reward", "value")}
    )
    target = params | state.target_params
    sums, weights, reconstruction = np.zeros(4), 0.0, 0.0
    length = batch.reward.shape[1]
    for row in range(len(batch.reward)):
        w = jax.tree.map(lambda x, row=row: x[row], batch)
        z = model.encode(params, w.observation[0])
        reconstruction += np.mean((model.decode(params, z) - w.observation[0]) ** 2)
        flagged = np.asarray(w.terminated | w.truncated)
        end = int(np.argmax(flagged)) + 1 if flagged.any() else length
        after = model.encode(target, w.next_observation)
        goal = 0.0 if w.terminated[end - 1] else float(model.value(target, after[end - 1]))
        goals = {}
        for t in reversed(range(end)):
            goal = float(w.reward[t]) + c.discount * goal
            goals[t] = goal
        for t in range(end):
            reward = float(model.reward(params, z, w.action[t]) - w.reward[t]) ** 2
            value = float(model.value(params, z) - goals[t]) ** 2
            z = model.step(params, z, w.action[t])
            consistency = np.mean((z - after[t]) ** 2)
            observation = np.mean((model.decode(params, z) - w.next_observation[t]) ** 2)
            sums += c.decay**t * np.array([consistency, reward, value, observation])
            weights += c.decay**t
    parts = sums / weights
    scales = [c.consistency_weight, c.reward_weight, c.value_weight, c.observation_weight]
    return float(parts @ scales + c.observation_weight * reconstruction / len(batch.reward))


@pytest.fixture(scope="module")
def trained():
    """A model, a state whose targets are not its networks, and its update, compiled once. Scans compile fastest."""
    model = koopman(
        decay=0.8, discount=0.9, tau=0.25, consistency_weight=2.0, reward_weight=3.0, value_weight=0.5, rollout="scan"
    )
    state = jax.jit(model.init)(jax.random.key(0))
    return model, state._replace(params=random_params(model)), jax.jit(model.update)


def test_the_loss_equals_a_loop(trained):
    model, state, update = trained
    terminated = jnp.zeros((3, 4), bool).at[0, 1].set(True)
    truncated = jnp.zeros((3, 4), bool).at[1, 2].set(True)
    batch = batch_of(1, 3, 4, terminated=terminated, truncated=truncated)
    _, metrics = update(state, batch)
    np.testing.assert_allclose(metrics["model/loss"], loop_loss(model, state, batch), rtol=1e-4)
    # What lies behind a flag is another episode's: it changes nothing, except at the start of the next window.
    behind = jax.tree.map(lambda x: x.at[0, 2:].set(x[2, 2:]), batch)
    np.testing.assert_allclose(update(state, behind)[1]["model/loss"], metrics["model/loss"], rtol=1e-6)


def test_targets_follow_by_tau_and_members_equal_single_runs(trained):
    model, state, update = trained
    batch = batch_of(0, 3, 4)
    after, metrics = update(state, batch)
    for name in ("encoder", "value"):
        expected = jax.tree.map(lambda t, p: 0.75 * t + 0.25 * p, state.target_params[name], after.params[name])
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), after.target_params[name], expected)
    assert int(after.updates) == 1 and np.isfinite(metrics["model/gradient_norm"])
    other = state._replace(hyper=state.hyper._replace(learning_rate=jnp.float32(1e-2)))
    together = jax.tree.map(lambda *leaves: jnp.stack(leaves), other, state)
    many = jax.jit(jax.vmap(model.update, (0, None)))
    together, _ = many(together, batch)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x[1], y, atol=1e-6), together.params, after.params)


def test_a_model_learns_a_turning_point():
    """Observations turn by 0.2 rad a step and are pushed; the error over 12 steps falls to a hundredth of their size."""
    turn = np.array([[np.cos(0.2), -np.sin(0.2), 0], [np.sin(0.2), np.cos(0.2), 0], [0, 0, 0.9]])
    push = np.array([[0.1, 0.0], [0.0, 0.1], [0.1, -0.1]])
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (64, 12, ACTIONS))
    seen = [rng.normal(size=(64, OBSERVATIONS))]
    for t in range(12):
        seen.append(seen[-1] @ turn.T + actions[:, t] @ push.T)
    states = jnp.asarray(np.stack(seen, 1), jnp.float32)
    batch = batch_of(0, 64, 12)._replace(
        observation=states[:, :-1], next_observation=states[:, 1:], action=jnp.asarray(actions, jnp.float32),
        reward=states[:, :-1, 0],
    )  # fmt: skip
    model = koopman(max_phase=0.5, rollout="scan")
    state = jax.jit(model.init)(jax.random.key(0))
    state = state._replace(hyper=state.hyper._replace(learning_rate=jnp.float32(5e-3)))
    train = jax.jit(lambda state: jax.lax.scan(lambda s, _: model.update(s, batch), state, None, 600))
    _, metrics = train(state)
    first, last = metrics["model/observation"][0], metrics["model/observation"][-20:].mean()
    assert last < 0.05 * first and metrics["model/reward"][-1] < 0.1


def test_refusals():
    made = MODELS["diagonal"]
    params = random_params(made)
    small = koopman_model.Config
    cases = [
        (lambda: koopman_model.make(small(latent_size=5), 3, 1), "pairs"),
        (lambda: koopman_model.make(small(operator="diag"), 3, 1), "unknown operator"),
        (lambda: koopman_model.make(small(rollout="fft"), 3, 1), "unknown rollout"),
        (lambda: koopman_model.make(small(control_sizes=(0,)), 3, 1), "width of at least 1"),
        (lambda: koopman_model.make(small(learning_rate=0.0), 3, 1), "learning_rate"),
        (lambda: koopman_model.make(small(discount=1.5), 3, 1), "discount 1.5"),
        (lambda: koopman_model.make(small(reward_weight=-1.0), 3, 1), "reward_weight"),
        (lambda: koopman_model.make(small(), 0, 1), "observation_size"),
        (lambda: baselines.make(baselines.Config(kind="lstm"), 3, 1), "unknown kind"),
        (lambda: baselines.make(baselines.Config(kind="mlp", step_layers=-1), 3, 1), "step_layers must be at least 0"),
        (lambda: made.encode(params, jnp.zeros(4)), "observations of 3"),
        (lambda: made.step(params, jnp.zeros(SIZE), jnp.zeros(1)), "actions of 2"),
        (lambda: made.rollout(params, jnp.zeros(SIZE), jnp.zeros((0, 2))), "T >= 1"),
        (lambda: made.rollout(params, jnp.zeros((2, SIZE)), jnp.zeros((5, 2))), "same leading"),
        (lambda: made.init(jax.random.PRNGKey(0)), "typed key"),
    ]
    for call, words in cases:
        with pytest.raises(UsageError, match=words):
            call()
