"""Exported policies: run by other processes that have no jaxrl, they do what the live policy does."""

import json
import subprocess
import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import export, normalise, policy_numpy
from jaxrl.errors import MissingExtraError, UsageError
from jaxrl.spaces import Box
from tests.agents import toys

# agent, kind of actions, settings
KINDS: list[tuple[str, str, dict[str, Any]]] = [
    ("ppo", "discrete", {"activation": "silu"}),
    ("ppo", "box", {"layer_norm": True}),
    ("ppo", "box", {"squash": False}),
    ("sac", "box", {}),
    ("td3", "box", {"activation": "elu"}),
    ("dqn", "discrete", {"activation": "gelu"}),
    ("dqn", "discrete", {"duelling": True}),
]
CASES = [(*kind, normalised) for kind in KINDS for normalised in (False, True)]
OBSERVATIONS = np.random.default_rng(5).normal(size=(300, 3)).astype(np.float32) * np.float32([1.0, 5.0, 20.0])
ISOLATED = """
import sys
sys.modules.update({name: None for name in sys.argv[2:]})  # an import of these now fails, wherever they are installed
for name in sys.argv[2:]:
    try:
        __import__(name)
    except ImportError:
        continue
    raise SystemExit(f"{name} can be imported")
import pathlib
import numpy
"""
JAX_ALONE = """
import jax.export
for folder in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    observation = numpy.load(folder / "observation.npy")
    policy = jax.export.deserialize(bytearray((folder / "policy.stablehlo").read_bytes()))
    rows = [policy.call(observation[:1]), policy.call(observation[1:4]), policy.call(observation[4:])]
    numpy.save(folder / "jax.npy", numpy.concatenate(rows))
"""
NUMPY_ALONE = """
import runpy
for folder in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    module = runpy.run_path(str(folder / "policy_numpy.py"))
    action = module["act"](module["load"](folder / "policy.npz"), numpy.load(folder / "observation.npy"))
    numpy.save(folder / "numpy.npy", action)
"""


def trained(name, kind, normalised=False, **fields):
    """An agent whose weights are of the size that training leaves, not those of a fresh policy."""
    agent = toys.make(name, kind, normalise_observations=normalised, hidden_sizes=(32, 32), **fields)
    state, rng = agent.init(jax.random.key(0)), np.random.default_rng(0)
    moved = lambda x: jnp.asarray(x + 0.1 * rng.normal(size=x.shape), jnp.float32)
    state = state._replace(params=jax.tree.map(moved, state.params))
    return agent, agent.observe(state, toys.experience(kind)) if normalised else state


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Every case written into a folder of its own, and run there by processes without jaxrl."""
    root = tmp_path_factory.mktemp("policies")
    live = []
    for i, (name, kind, fields, normalised) in enumerate(CASES):
        agent, state = trained(name, kind, normalised, **fields)
        folder = root / f"{i:02d}"
        export.write_policy(folder, agent, state, toys.OBSERVATIONS, toys.ACTIONS[kind], facts={"environment": "toy"})
        np.save(folder / "observation.npy", OBSERVATIONS)
        live.append(np.asarray(jax.jit(agent.act, static_argnums=3)(state, OBSERVATIONS, jax.random.key(1), False)))
    for script, blocked in ((JAX_ALONE, ("jaxrl", "flax", "optax")), (NUMPY_ALONE, ("jaxrl", "jax", "jaxlib"))):
        run_isolated(ISOLATED + script, root, *blocked)
    return root, live


def run_isolated(script, *arguments):
    """Python without its environment variables, the user's packages and the current folder."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", script, *map(str, arguments)], cwd="/", capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("index", range(len(CASES)), ids=lambda i: "-".join(map(str, CASES[i])))
def test_other_processes_agree_with_the_live_policy(exported, index):
    root, live = exported
    kind = CASES[index][1]
    for how in ("jax", "numpy"):
        action = np.load(root / f"{index:02d}" / f"{how}.npy")
        assert action.shape == live[index].shape and action.dtype == live[index].dtype
        if kind == "discrete":
            assert len(np.unique(live[index])) > 1
            np.testing.assert_array_equal(action, live[index])
        else:
            assert np.ptp(live[index], axis=0).min() > 1.0
            # A millionth of each action's range, 4 and 10: float32 has no finer step at 10.
            difference = np.abs(action.astype(np.float64) - live[index])
            assert np.all(difference <= 1e-6 * np.float64([4.0, 10.0])), difference.max(0)


def test_the_loader_that_is_written_runs_as_it_is(exported):
    root, _ = exported
    script = f"import sys, runpy; sys.modules['jaxrl'] = None; runpy.run_path({str(root / '06' / 'load_policy.py')!r})"
    assert run_isolated(script).count("[") == 3  # two actions of two entries


def test_the_specification_says_what_goes_in_and_comes_out(exported):
    root, _ = exported
    spec = json.loads((root / "02" / "policy.json").read_text())
    assert spec["agent"] == "ppo" and spec["environment"] == "toy" and spec["platforms"] == ["cpu", "cuda", "tpu"]
    assert spec["input"] == {"shape": ["batch", 3], "dtype": "float32", "low": -10.0, "high": 10.0}
    assert spec["output"] == {"shape": ["batch", 2], "dtype": "float32", "low": [-2.0, 0.0], "high": [2.0, 10.0]}
    discrete = json.loads((root / "00" / "policy.json").read_text())
    assert discrete["output"] == {"shape": ["batch"], "dtype": "int32", "choices": 3}


def test_numpy_forward_by_hand():
    """Normalised (3 - 1) / 2 = 1, 4 clipped to 10: relu(1 - 10 + 10, 1 + 10 - 13) = (1, 0); tanh(1) of [0, 10]."""
    policy = {"observation_shape": [2], "layers": 1, "activation": "relu", "head": "tanh", "action_dtype": "float32"}
    arrays = {
        "mean": [1.0, 0.0],
        "std": [2.0, 1e-3],
        "kernel_0": [[1.0, 1.0], [-1.0, 1.0]],
        "bias_0": [10.0, -13.0],
        "head_kernel": [[2.0], [7.0]],
        "head_bias": [-1.0],
        "low": [0.0],
        "high": [10.0],
    }
    policy["arrays"] = {name: np.float32(values) for name, values in arrays.items()}
    action = policy_numpy.act(policy, [3.0, 4.0])
    assert action.shape == (1,) and action.dtype == np.float32
    np.testing.assert_allclose(action, [5 + 5 * 0.7615941559557649], rtol=1e-6)
    assert policy_numpy.act(policy, np.zeros((4, 5, 2))).shape == (4, 5, 1)
    assert policy_numpy.act(policy, np.zeros((0, 2))).shape == (0, 1)
    with pytest.raises(ValueError, match="shape"):
        policy_numpy.act(policy, np.zeros(3))


def test_numpy_duelling_head_by_hand():
    """Advantages (1, 4) about their mean 2.5, plus the value 10: (8.5, 11.5), of which the second is best."""
    policy = {"observation_shape": [1], "layers": 0, "head": "argmax", "action_dtype": "int32"}
    arrays = {"head_kernel": [[1.0, 4.0]], "head_bias": [0.0, 0.0], "value_kernel": [[10.0]], "value_bias": [0.0]}
    policy["arrays"] = {name: np.float32(values) for name, values in arrays.items()}
    action = policy_numpy.act(policy, [[1.0], [-1.0]])
    assert action.tolist() == [1, 0] and action.dtype == np.int32


@pytest.mark.parametrize("name", ["relu", "tanh", "elu", "gelu", "silu"])
def test_numpy_activations_are_those_of_the_networks(name):
    from jaxrl.networks import activation_function

    x = np.float32([-200.0, -3.0, -1e-4, 0.0, 1e-4, 0.7, 3.0, 200.0])
    with np.errstate(all="raise", under="ignore"):
        np.testing.assert_allclose(policy_numpy.activate(name, x), activation_function(name)(x), rtol=2e-6, atol=1e-7)


def test_a_policy_of_images_goes_to_jax_but_not_to_numpy(tmp_path):
    images = Box(0, 255, (10, 10, 3), np.uint8)
    agent = toys.make("dqn", "discrete", observations=images)
    state = agent.init(jax.random.key(0))
    written = export.write_policy(tmp_path, agent, state, images, toys.ACTIONS["discrete"])
    assert set(written.files) == {"jax", "spec"} and not (tmp_path / "policy.npz").exists()
    assert "no convolutions" in written.left_out["numpy"]
    with pytest.raises(UsageError, match="no convolutions"):
        export.write_policy(tmp_path / "x", agent, state, images, toys.ACTIONS["discrete"], kinds=["numpy"])
    assert not (tmp_path / "x").exists()


def test_what_cannot_be_exported_is_refused_in_one_line(tmp_path):
    agent, state = trained("td3", "box")
    spaces = toys.OBSERVATIONS, toys.ACTIONS["box"]
    population = jax.tree.map(lambda x: jnp.stack([x] * 3), state)
    with pytest.raises(UsageError, match="population of 3"):
        export.write_policy(tmp_path, agent, population, *spaces)
    with pytest.raises(UsageError, match="did you mean 'numpy'"):
        export.write_policy(tmp_path, agent, state, *spaces, kinds=["numpi"])
    with pytest.raises(UsageError, match="unknown platform 'gpu'"):
        export.export_policy(agent, state, toys.OBSERVATIONS, platforms=["gpu"])
    other = agent._replace(act=lambda *arguments: agent.act(*arguments))
    with pytest.raises(UsageError, match="multi-layer perceptrons"):
        export.numpy_policy(other, state)


def test_a_forward_that_disagrees_is_not_written(tmp_path, monkeypatch):
    agent, state = trained("sac", "box")
    arrays = export.numpy_policy(agent, state)
    arrays["head_bias"] = arrays["head_bias"] + np.float32(1e-3)
    monkeypatch.setattr(export, "numpy_policy", lambda *_: arrays)
    with pytest.raises(UsageError, match="differ from the live policy"):
        export.write_policy(tmp_path / "x", agent, state, toys.OBSERVATIONS, toys.ACTIONS["box"], kinds=["numpy"])
    assert not (tmp_path / "x").exists()


def test_nothing_of_an_earlier_policy_stays(tmp_path):
    agent, state = trained("sac", "box")
    write = partial(export.write_policy, tmp_path, agent, state, toys.OBSERVATIONS, toys.ACTIONS["box"])
    write()
    (tmp_path / "notes.txt").write_text("mine")
    write(kinds=["jax"])
    assert {path.name for path in tmp_path.iterdir()} == {
        "notes.txt",
        "load_policy.py",
        "policy.json",
        "policy.stablehlo",
    }


def test_onnx_agrees_or_says_what_to_install(tmp_path):
    agent, state = trained("ppo", "box", normalised=True)
    write = lambda: export.write_policy(tmp_path, agent, state, toys.OBSERVATIONS, toys.ACTIONS["box"], kinds=["onnx"])
    try:
        import jax2onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError:
        with pytest.raises(MissingExtraError, match=r"jaxrl\[onnx\]"):
            write()
        return
    assert write().differences["onnx"] <= 1e-5


def test_normalised_observations_are_made_about_the_running_mean():
    _, state = trained("ppo", "box", normalised=True)
    made = export.example_observations(state.normaliser, Box(-np.inf, np.inf, (3,)))
    assert made.shape == (export.CHECKED, 3) and made.dtype == np.float32
    distance = (made - np.asarray(state.normaliser.mean)) / np.asarray(normalise.std(state.normaliser))
    assert np.all(np.abs(np.median(distance, 0)) < 0.3) and np.sum(np.abs(distance) > 10) > 20
