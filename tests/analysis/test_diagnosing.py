import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.analysis import diagnostics
from jaxrl.analysis.diagnosing import activations, diagnosed
from jaxrl.errors import UsageError
from tests.agents import toys


@pytest.mark.parametrize("name", ["brc", "dqn", "ppo"])
def test_agents_of_every_kind_measure_themselves_and_train_as_without(name):
    kind = "discrete" if name == "dqn" else "box"
    plain = toys.make(name, kind, hidden_sizes=(8, 8))
    state, rollout = plain.init(jax.random.key(0)), toys.experience(kind)
    state = plain.observe(state, rollout)
    batch = toys.batch_for(plain, rollout)
    new, metrics = jax.jit(diagnosed(plain, rows=4).update)(state, batch, jax.random.key(1))
    found = {n.removeprefix("diagnostics/"): float(v) for n, v in metrics.items() if n.startswith("diagnostics/")}
    assert 0.0 <= found["dormant/all"] <= 1.0 and 1.0 <= found["effective_rank"] <= 4.0
    assert any(n.startswith("update_norm/") and v > 0 for n, v in found.items())
    if name == "ppo":
        expected, _ = jax.jit(plain.update)(state, batch, jax.random.key(1))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), new.params, expected.params)


def test_activations_are_what_the_next_layer_reads():
    agent = toys.make("dqn", "discrete", hidden_sizes=(8, 8))
    state, observation = agent.init(jax.random.key(0)), jnp.ones((4, 3))
    layers = list(activations(agent, state, observation).values())
    assert [x.shape for x in layers] == [(4, 8), (4, 8)] and all(float(x.min()) >= 0 for x in layers)  # after relu
    torso = state.params["params"]["MLP_0"]["Dense_0"]
    np.testing.assert_allclose(layers[0], jnp.maximum(observation @ torso["kernel"] + torso["bias"], 0), rtol=1e-6)


def test_norms_are_those_of_the_parts():
    agent = toys.make("ppo", "box")
    state = agent.init(jax.random.key(0))
    new, metrics = diagnosed(agent).update(state, toys.batch_for(agent, toys.experience("box")), jax.random.key(1))
    np.testing.assert_allclose(
        metrics["diagnostics/weight_norm/actor"], diagnostics.global_norm(new.params["actor"]), rtol=1e-6
    )
    step = jax.tree.map(jnp.subtract, new.params["critic"], state.params["critic"])
    np.testing.assert_allclose(metrics["diagnostics/update_norm/critic"], diagnostics.global_norm(step), rtol=1e-5)


def test_refuses_a_single_row():
    with pytest.raises(UsageError, match="at least 2"):
        diagnosed(toys.make("ppo", "box"), rows=1)
