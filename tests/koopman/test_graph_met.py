from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl.errors import UsageError
from jaxrl.koopman import objectives
from jaxrl.koopman.graph import graphmet, layers, mesh, operators, training

RING = mesh.ring_mesh(12, (1, 2))
SMALL = graphmet.GraphMetConfig(width=8, hidden=8, latent=4, processor="block_norm")
AREA = RING.weights
KEY = jax.random.key(5)


def config(**changes):
    return graphmet.GraphMetConfig(**({"width": 8, "hidden": 8, "latent": 4} | changes))


def fields(*shape, seed=0):
    return jax.random.normal(jax.random.key(seed), (*shape, 12, 1))


@lru_cache
def made(**changes):
    """A model with its functions compiled, and parameters."""
    model = graphmet.make(config(**changes), RING)
    params = jax.jit(model.init)(jax.random.key(0))
    fast = {name: jax.jit(getattr(model, name)) for name in ("latents", "decode")}
    return model._replace(rollout=jax.jit(model.rollout, static_argnums=2), **fast), params


def ensemble(steps=2, members=3, nodes=12):
    """Of a small model, with a climate of as many nodes as asked."""
    model, params = made()
    climate = training.latent_climate(jax.random.normal(jax.random.key(1), (8, nodes, 4)), 3)
    return training.ensemble(model, params, climate, fields(), steps, members, jax.random.key(2))


def test_a_layer_of_messages_equals_a_loop_over_edges():
    edges = layers.edges_of(mesh.icosahedral_mesh(0))
    layer = layers.MessagePassing(edges, width=3, hidden=5, layer_norm=False)
    nodes = jax.random.normal(jax.random.key(0), (12, 3))
    params = layer.init(jax.random.key(1), nodes, nodes)
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params["params"])
    silu = lambda x: x / (1 + np.exp(-x))
    h, sums, count = np.asarray(nodes, np.float64), np.zeros((12, 3)), np.zeros(12)
    for e, (s, r) in enumerate(zip(edges.senders, edges.receivers, strict=True)):
        # One dense layer on sender, receiver and features put together.
        kernel = np.concatenate([p[n]["kernel"] for n in ("edge_sender", "edge_receiver", "edge_features")])
        hidden = silu(np.concatenate([h[s], h[r], edges.features[e]]) @ kernel + p["edge_sender"]["bias"])
        sums[r] += hidden @ p["edge_out"]["kernel"] + p["edge_out"]["bias"]
        count[r] += 1
    x = np.concatenate([h, sums / count[:, None]], 1)
    x = silu(x @ p["node"]["Dense_0"]["kernel"] + p["node"]["Dense_0"]["bias"])
    expected = x @ p["node"]["Dense_1"]["kernel"] + p["node"]["Dense_1"]["bias"]
    np.testing.assert_allclose(layer.apply(params, nodes, nodes), expected, atol=1e-5)


def test_a_node_that_nothing_reaches_hears_nothing():
    edges = layers.Edges(np.array([0, 1]), np.array([2, 2]), np.zeros((2, 1)), 3)
    np.testing.assert_allclose(layers.mean_by_receiver(edges, jnp.array([[2.0], [4.0]])), [[0], [0], [3]])


def test_a_linear_model_encodes_once_and_steps_by_its_matrix():
    model, params = made()
    field = fields(2)
    forecast = model.rollout(params, field, 3)
    assert forecast.shape == (3, 2, 12, 1)
    matrix, _ = jax.jit(model.operator.matrix)(params["operator"])
    latent = model.latents(params, field).reshape(2, -1)
    for step in range(3):
        latent = latent @ matrix.T
        np.testing.assert_allclose(forecast[step], model.decode(params, latent.reshape(2, 12, 4)), atol=2e-5)


def test_the_decoder_cannot_copy_the_first_field():
    # Where the step forgets everything, so must the forecast: with the initial field as an input it would not.
    model, params = made(processor="block")
    forgetful = params | {"operator": jax.tree.map(jnp.zeros_like, params["operator"])}
    a, b = (model.rollout(forgetful, fields(seed=seed), 1) for seed in (0, 1))
    np.testing.assert_array_equal(a, b)
    assert not np.allclose(*(model.rollout(params, fields(seed=seed), 1) for seed in (0, 1)))


def test_a_layer_norm_at_the_end_puts_latents_on_a_hyperplane():
    free, normed = (made(latent_norm=norm) for norm in (False, True))
    smallest = {}
    for name, (model, params) in {"free": free, "normed": normed}.items():
        latents = model.latents(params, 3.0 * fields(400))
        covariance = objectives.covariances(latents, latents).x
        smallest[name] = float(jnp.linalg.eigvalsh(covariance / jnp.trace(covariance))[0])
        floor = float(jax.jit(objectives.isotropy_penalty)(covariance))
    assert smallest["normed"] < 1e-6 < 1e-4 < smallest["free"]
    assert floor > -np.log(1e-6) - 4  # one eigenvalue at its floor for ever


def test_message_passing_feeds_itself_its_own_fields():
    model, params = made(processor="message_passing", layers=2)
    assert model.name == "message_passing_2" and model.operator is None
    field = fields(2)
    forecast = model.rollout(params, field, 2)
    first = field + model.decode(params, model.latents(params, field))
    np.testing.assert_allclose(forecast[0], first, atol=1e-5)
    second = first + model.decode(params, model.latents(params, first))
    np.testing.assert_allclose(forecast[1], second, atol=1e-5)
    seen = graphmet.layer_latents(model, RING, params, field)
    assert seen.shape == (3, 2, 12, 8)
    np.testing.assert_allclose(seen[-1], layered(params, seen[0], 2), atol=1e-5)
    np.testing.assert_allclose(seen[-1], model.latents(params, field), atol=1e-5)


def layered(params, nodes, layers_):
    """The rounds one by one, each with its slice of the stacked parameters."""
    layer = layers.MessagePassing(layers.edges_of(RING), 8, 8, residual=True)
    for i in range(layers_):
        own = jax.tree.map(lambda x, i=i: x[i], params["messages"]["params"]["layers"]["messages"])
        nodes = layer.apply({"params": own}, nodes, nodes)
    return nodes


def test_a_ring_without_coordinates_is_the_same_everywhere():
    for processor in ("skew", "message_passing"):
        model, params = made(processor=processor, layers=2)
        field = fields()
        turned = model.rollout(params, jnp.roll(field, 3, 0), 2)
        np.testing.assert_allclose(turned, jnp.roll(model.rollout(params, field, 2), 3, 1), atol=1e-5)


def test_a_grid_goes_to_the_mesh_and_back():
    graph = mesh.icosahedral_mesh(1)
    latitude, longitude = (x.reshape(-1) for x in np.meshgrid(np.linspace(-1.4, 1.4, 6), np.arange(8) * np.pi / 4))
    grid = mesh.unit_vectors(latitude, longitude)
    maps = graphmet.GridMaps(
        mesh.nearest(grid, graph.coordinates), mesh.nearest(graph.coordinates, grid, of="receivers"), grid
    )
    model = graphmet.make(config(channels=2), graph, maps)
    params = jax.jit(model.init)(jax.random.key(0))
    field = jax.random.normal(jax.random.key(1), (3, 48, 2))
    assert model.points == 48 and jax.eval_shape(model.latents, params, field).shape == (3, 42, 4)
    assert jax.jit(model.rollout, static_argnums=2)(params, field, 2).shape == (2, 3, 48, 2)


def test_the_loss_by_hand():
    model, params = made()
    windows, area = fields(6, 3), np.arange(1.0, 13) / 78
    weights = training.LossWeights(2.0, 0.01, 3.0, 0.5, 0.25)
    total, metrics = jax.jit(partial(training.loss, model, weights=weights))(params, windows, area)
    forecast = np.asarray(model.rollout(params, windows[:, 0], 2))[..., 0]
    error = (forecast - np.moveaxis(np.asarray(windows[:, 1:, :, 0]), 1, 0)) ** 2
    physical = (error * area).sum(-1).mean()
    z = [model.latents(params, windows[:, i]) for i in range(3)]
    spectral = float(jax.jit(objectives.two_term)(z[0], z[1], 0.01)[0])
    rebuilt = ((np.asarray(model.decode(params, z[0]) - windows[:, 0])[..., 0] ** 2) * area).sum(-1).mean()
    stepped = jax.jit(partial(graphmet.linear_latents, model.operator, steps=2))(params, latent=z[0])
    linearity = float(np.mean((stepped - jnp.stack(z[1:])) ** 2))
    assert float(metrics["graphmet/physical"]) == pytest.approx(physical, rel=1e-4)
    assert float(total) == pytest.approx(3 * physical + 2 * spectral + rebuilt / 2 + linearity / 4, rel=1e-4)


def test_the_spectral_terms_see_the_data_and_not_the_step():
    # Fed with K φ(x_t), as released, they would change with K; they must not.
    model, params = made(processor="block")
    other = params | {"operator": jax.tree.map(lambda x: 3.0 * x, params["operator"])}
    measure = jax.jit(partial(training.loss, model))
    seen = [measure(p, fields(6, 2), AREA)[1] for p in (params, other)]
    assert seen[0]["koopman/cka"] == seen[1]["koopman/cka"] and 0 < seen[0]["koopman/cka"] < 1
    assert seen[0]["graphmet/physical"] != seen[1]["graphmet/physical"]


@pytest.mark.parametrize("processor", ["skew", "message_passing"])
def test_training_learns_to_shift_a_field(processor):
    model, params = made(processor=processor, layers=2)
    start = np.random.default_rng(0).normal(size=(256, 12))
    windows = jnp.asarray(np.stack([start, np.roll(start, 1, 1)], 1)[..., None], jnp.float32)
    optimiser = optax.adam(1e-2)
    objective = partial(training.loss, model, weights=training.LossWeights(spectral=0.0))

    def update(carried, i):
        params, state = carried
        batch = jax.lax.dynamic_slice_in_dim(windows, (i * 32) % 256, 32)
        (_, metrics), slope = jax.value_and_grad(objective, has_aux=True)(params, batch, AREA)
        change, state = optimiser.update(slope, state)
        return (optax.apply_updates(params, change), state), metrics["graphmet/physical"]

    run = jax.jit(lambda p: jax.lax.scan(update, (p, optimiser.init(p)), jnp.arange(300))[1])
    errors = run(params)
    assert float(errors[-20:].mean()) < 0.25 * float(errors[0]) and float(errors[-20:].mean()) < 0.3


def test_an_ensemble_has_the_spread_of_a_linear_gaussian_climate():
    # Known answer: latents are the field itself (width 1), the step is 0.8, the climate white with variance 4.
    model, params = made()
    identity = model._replace(
        latents=lambda params, field: field,
        decode=lambda params, latent: latent,
        operator=operators.block(RING, 1),
    )
    params = {"operator": {"edges": jnp.zeros((4, 1, 1)), "loops": jnp.full((1, 1, 1), 0.8)}}
    climate = training.LatentClimate(jnp.zeros(12), jnp.eye(12), jnp.full(12, 4.0))
    draw = jax.jit(partial(training.ensemble, identity, steps=3, members=4000))
    members = draw(params, climate, jnp.ones((12, 1)), key=jax.random.key(0))
    assert members.shape == (3, 4000, 12, 1)
    for lead in range(3):
        power = 0.8 ** (lead + 1)
        assert float(members[lead].mean()) == pytest.approx(power, abs=0.03)
        assert float(members[lead].var()) == pytest.approx(4 * (1 - power**2), rel=0.03)


def test_the_climate_of_latents_by_numpy():
    latents = fields(40, seed=3) * np.linspace(0.5, 2, 12)[:, None]
    climate = training.latent_climate(latents, rank=5)
    rows = np.asarray(latents, np.float64).reshape(40, 12)
    expected = np.sort(np.linalg.eigvalsh(np.cov(rows.T, bias=True)))[::-1][:5]
    np.testing.assert_allclose(climate.variance, expected, rtol=1e-4)
    np.testing.assert_allclose(climate.directions.T @ climate.directions, np.eye(5), atol=1e-5)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: graphmet.make(config(processor="dense"), RING), "unknown processor"),
        (lambda: graphmet.make(config(layers=0), RING), "layers must be at least 1"),
        (lambda: graphmet.make(config(processor="skew", substeps=0), RING), "substeps"),
        (lambda: training.loss(graphmet.make(SMALL, RING), {}, fields(6, 1), AREA), ">= 2, 12"),
        (lambda: graphmet.make(config(width=2.5), RING), "width must be a whole number"),
        (lambda: made()[0].rollout(made()[1], fields(), 0), "steps of a rollout must be at least 1"),
        (
            lambda: made(processor="message_passing")[0].rollout(made(processor="message_passing")[1], fields(), -1),
            "-1",
        ),
        (lambda: graphmet.make(SMALL, RING).rollout(made()[1], jnp.ones((11, 1)), 2), "12 points, 1 channels"),
        (lambda: graphmet.make(SMALL, RING).encode(made()[1], jnp.ones((12, 2))), "12 points, 1 channels"),
        (lambda: training.loss(made()[0], made()[1], fields(6, 2), jnp.ones(1)), r"one weight a point, \(12,\)"),
        (
            lambda: training.fit(
                made()[0],
                training.Fit(1, 1),
                training.PUBLISHED,
                made()[1],
                fields(2, 3) * jnp.nan,
                AREA,
                jax.random.key(0),
            ),
            "data holds nan",
        ),
        (lambda: ensemble(steps=0), "steps of a rollout"),
        (lambda: ensemble(members=1), "at least 2"),
        (lambda: ensemble(nodes=6), "latents of 24 numbers, the model's have 48"),
        (lambda: training.latent_climate(jnp.ones((4, 12, 1)), 4), "below 4"),
        (
            lambda: training.ensemble(
                graphmet.make(config(processor="message_passing"), RING), {}, None, fields(), 1, 4, None
            ),
            "no linear step",
        ),
        (lambda: graphmet.layer_latents(graphmet.make(SMALL, RING), RING, {}, fields()), "no layers"),
        (
            lambda: graphmet.make(
                config(),
                mesh.icosahedral_mesh(1),
                graphmet.GridMaps(
                    mesh.nearest(np.eye(3), np.eye(3), 1), mesh.nearest(np.eye(3), np.eye(3), 1), np.eye(3)
                ),
            ),
            "the mesh has 42",
        ),
    ],
)
def test_what_cannot_work_is_refused(make, said):
    with pytest.raises(UsageError, match=said):
        make()


def test_noise_is_of_the_input_and_not_of_what_it_is_judged_by():
    """Of a model that does not move and fields of 0, noise with deviation 2 on the start alone leaves an error of 4."""
    model = made()[0]._replace(
        rollout=lambda params, field, steps: jnp.tile(field[None], (steps, 1, 1, 1)), operator=None
    )
    run = lambda noise: training.fit(
        model,
        training.Fit(50, 8),
        training.LossWeights(0.0, noise=noise),
        made()[1],
        jnp.zeros((2, 3, 12, 1)),
        AREA,
        KEY,
    )[1]["graphmet/physical"].mean()
    assert run(0.0) == 0.0
    assert float(run(2.0)) == pytest.approx(4.0, rel=0.05)
