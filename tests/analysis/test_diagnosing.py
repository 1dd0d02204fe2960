import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import setup
from experiments.configs import Evaluate, Log, Train
from jaxrl.agents import dqn
from jaxrl.analysis import diagnostics
from jaxrl.analysis.diagnosing import activations, diagnosed, replay_ages
from jaxrl.errors import UsageError
from jaxrl.samplers.base import SampleInfo
from jaxrl.training import OffPolicy, run
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


def test_features_that_two_heads_read_count_once():
    agent = toys.make("sac", "box", hidden_sizes=(8, 8))  # its policy says a mean and a deviation
    layers = activations(agent, agent.init(jax.random.key(0)), jnp.ones((4, 3)))
    assert [x.shape for x in layers.values()] == [(4, 8), (4, 8)]


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


def test_ages_are_shares_of_what_a_lane_holds():
    """Two lanes of 20 rows: ages 0 and 1 lie in the newest tenth, 5 in the third, 19 in the last."""
    info = SampleInfo(*[jnp.zeros(4, jnp.int32)] * 2, jnp.array([0, 1, 5, 19]), jnp.ones(4))
    found = {n.rpartition("/")[2]: float(v) for n, v in replay_ages(2, info, jnp.int32(40)).items()}
    assert found.pop("mean") == pytest.approx(6.25 / 20)
    assert {name: share for name, share in found.items() if share} == {
        "tenth_1": 0.5,
        "tenth_3": 0.25,
        "tenth_10": 0.25,
    }


def test_a_run_that_asks_for_diagnostics_has_their_columns():
    config = Train(
        dqn.Config(hidden_sizes=(8,), discount=0.5), OffPolicy(4, batch_size=8, capacity=64, warmup=16), "toy:chain", 64,
        evaluate=Evaluate(every=32, episodes=4), log=Log(every=32, diagnostics=True), seeds=2,
    )  # fmt: skip
    built = setup.build(config)
    rows = run(built.program, built.plan.schedule, labels=built.labels).rows
    assert [row["member"] for row in rows] == [0, 1]
    for row in rows:
        assert sum(row[f"diagnostics/replay_age/tenth_{k}"] for k in range(1, 11)) == pytest.approx(1.0)
        assert {f"eval/overestimation/{name}" for name in ("bias", "std", "relative")} <= row.keys()
        # The chain pays 1 at most once an episode, and a fresh network says little.
        assert abs(row["eval/overestimation/bias"]) < 3
