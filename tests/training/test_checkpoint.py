"""Checkpoints: the same bits back, or a refusal that names what does not fit."""

import shutil

import jax
import jax.numpy as jnp
import pytest

from jaxrl.agents import ppo, sac
from jaxrl.errors import UsageError
from jaxrl.training import checkpoint
from tests.training import toy


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A SAC run with two checkpoints."""
    folder = tmp_path_factory.mktemp("checkpoints")
    program = toy.program("sac")
    keeper = checkpoint.open_checkpoints(folder, keep=2, keep_best=0)
    state = program.init()
    states = {}
    for iteration in (4, 8):
        state, _ = program.advance(state, iteration - 4, 4)
        keeper.save(iteration, state, {"command": "x"}, 1.0)
        states[iteration] = jax.tree.map(jnp.copy, state)
    keeper.close()
    return folder, program, states


def test_round_trip_keeps_structure_dtypes_keys_and_bits(saved):
    folder, program, states = saved
    template = jax.eval_shape(program.init)
    state, meta = checkpoint.restore(folder, template)
    assert meta["iteration"] == 8 and meta["command"] == "x"
    assert jax.tree.structure(state) == jax.tree.structure(states[8])
    assert [x.dtype for x in jax.tree.leaves(state)] == [x.dtype for x in jax.tree.leaves(states[8])]
    toy.assert_same_bits(state, states[8])
    older, _ = checkpoint.restore(folder, template, 4)
    toy.assert_same_bits(older, states[4])


def test_going_on_from_a_file_gives_the_same_bits(saved):
    folder, program, states = saved
    state, _ = checkpoint.restore(folder, jax.eval_shape(program.init), 4)
    state, _ = program.advance(state, 4, 4)
    toy.assert_same_bits(state, states[8])


def test_only_the_agent_can_be_read(saved):
    folder, program, states = saved
    state, _ = checkpoint.restore(folder, jax.eval_shape(program.init), parts=("agent",))
    toy.assert_same_bits(state.agent, states[8].agent)
    assert isinstance(jax.tree.leaves(state.replay)[0], jax.ShapeDtypeStruct)


def test_other_network_and_other_agent_are_refused_by_name(saved):
    folder, _, _ = saved
    wide = toy.program("sac", config=sac.Config(hidden_sizes=(9,), normalise_observations=True))
    with pytest.raises(UsageError, match=r"has 'params/actor/.* as float32\[.*8.*\], this run needs float32\[.*9"):
        checkpoint.restore(folder, jax.eval_shape(wide.init))
    other = toy.program("ppo", config=ppo.Config(hidden_sizes=(8,), minibatches=2))
    with pytest.raises(UsageError, match="lacks '"):
        checkpoint.restore(folder, jax.eval_shape(other.init), parts=("agent",))


def test_damaged_checkpoint_is_refused_and_the_other_offered(saved, tmp_path):
    folder, program, _ = saved
    copy = shutil.copytree(folder, tmp_path / "copy")
    data = [p for p in (copy / "8").rglob("*") if (p.is_file() and "ocdbt" in str(p)) or p.name.startswith("manifest")]
    assert data
    for path in (p for p in (copy / "8" / "agent").rglob("*") if p.is_file()):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UsageError, match=r"8 cannot be read .* newest other one is iteration 4"):
        checkpoint.restore(copy, jax.eval_shape(program.init))
    (copy / "8" / "meta" / "metadata").write_text("{")
    with pytest.raises(UsageError, match=r"8 is damaged or foreign: the newest other one is iteration 4"):
        checkpoint.restore(copy, jax.eval_shape(program.init))


def test_no_checkpoint_is_said(tmp_path):
    with pytest.raises(UsageError, match="no finished checkpoint"):
        checkpoint.newest(tmp_path)


def test_best_and_newest_are_kept(tmp_path):
    program = toy.program("ppo")
    state = program.init()
    keeper = checkpoint.open_checkpoints(tmp_path, keep=1, keep_best=1)
    for iteration, score in ((1, 0.0), (2, 5.0), (3, 1.0), (4, 2.0)):
        keeper.save(iteration, state, {}, score)
    keeper.close()
    assert checkpoint.saved_iterations(tmp_path) == [2, 4]
