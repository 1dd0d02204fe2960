"""Checkpoints: the same bits back, or a refusal that names what does not fit."""

import errno
import json
import shutil
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.agents import ppo, sac
from jaxrl.errors import UsageError
from jaxrl.training import checkpoint, keeper
from tests.training import toy


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A SAC run with two checkpoints."""
    folder = tmp_path_factory.mktemp("checkpoints")
    program = toy.program("sac")
    kept = keeper.open_checkpoints(folder, keep=2, keep_best=0)
    state = program.init()
    states = {}
    for iteration in (4, 8):
        state, _ = program.advance(state, iteration - 4, 4)
        kept.save(iteration, state, {"command": "x"}, 1.0)
        states[iteration] = jax.tree.map(jnp.copy, state)
    kept.close()
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
    with pytest.raises(UsageError, match=r"8 cannot be read .* newest other one is --iteration 4"):
        checkpoint.restore(copy, jax.eval_shape(program.init))
    for foreign in ("{", "[]", '{"format": 1}', '{"format": 1, "iteration": 8, "arrays": {"agent": {}}}'):
        (copy / "8" / "meta" / "metadata").write_text(foreign)
        with pytest.raises(UsageError, match=r"8 is damaged or foreign: the newest other one is --iteration 4"):
            checkpoint.restore(copy, jax.eval_shape(program.init))
    with pytest.raises(UsageError, match=r"no checkpoint .*/5: the newest other one is --iteration 4"):
        checkpoint.restore(copy, jax.eval_shape(program.init), 5)


def test_changed_bits_are_refused_by_the_name_of_the_array(saved, tmp_path):
    """The file is whole and readable; only a checksum can tell."""
    folder, program, _ = saved
    copy = shutil.copytree(folder, tmp_path / "copy")
    path = copy / "8" / "meta" / "metadata"
    meta = json.loads(path.read_text())
    meta["checksums"]["agent"]["params/temperature"] ^= 1
    path.write_text(json.dumps(meta))
    with pytest.raises(UsageError, match=r"8 is damaged, the bits of 'params/temperature' have changed: .*4"):
        checkpoint.restore(copy, jax.eval_shape(program.init))
    checkpoint.restore(copy, jax.eval_shape(program.init), parts=("loop", "replay"))


def test_checksum_is_that_of_the_bytes():
    """CRC-32 of the ASCII digits 1 to 9 is the published check value, 0xCBF43926."""
    assert checkpoint.checksum(np.frombuffer(b"123456789", np.uint8)) == 0xCBF43926
    assert checkpoint.checksum(np.float32(0.0)) != checkpoint.checksum(np.float32(-0.0))
    assert checkpoint.checksum(np.zeros((0, 3), np.float32)) == 0


def test_what_a_kill_leaves_of_a_save_or_of_a_deletion_is_no_checkpoint(saved, tmp_path):
    folder, program, states = saved
    copy = shutil.copytree(folder, tmp_path / "copy")
    shutil.copytree(copy / "8", copy / "12.orbax-checkpoint-tmp")
    shutil.rmtree(copy / "4" / "agent")
    (copy / "4" / "_CHECKPOINT_METADATA").unlink()
    assert checkpoint.saved_iterations(copy) == [8]
    state, _ = checkpoint.restore(copy, jax.eval_shape(program.init))
    toy.assert_same_bits(state, states[8])
    kept = keeper.open_checkpoints(copy, keep=2, keep_best=1)
    assert not list(copy.glob("*tmp*"))
    kept.save(12, state, {}, None)
    kept.close()
    assert checkpoint.saved_iterations(copy) == [8, 12] and not kept.stopped()


class _FullDisk:
    def __init__(self, error):
        self.error = error

    def save(self, *_, **__):
        raise self.error

    def close(self):
        raise RuntimeError("and another thing")


FULL = (
    OSError(errno.ENOSPC, "No space left on device"),
    ValueError('RESOURCE_EXHAUSTED: Error writing local file "x": Failed writing [OS error 28]\nmore\nlines'),
)


@pytest.mark.parametrize("error", FULL)
def test_full_disk_stops_saving_with_one_line_and_training_goes_on(error, tmp_path, monkeypatch):
    program, lines = toy.program("ppo"), []
    kept = keeper.open_checkpoints(tmp_path, warn=lines.append)
    state, _ = program.advance(program.init(), 0, 1)
    kept.save(1, state, {}, None)
    kept.wait()
    monkeypatch.setattr(keeper, "_manager", lambda *_: _FullDisk(error))
    full = keeper.open_checkpoints(tmp_path, warn=lines.append)
    (tmp_path / "2.orbax-checkpoint-tmp" / "agent").mkdir(parents=True)
    for iteration in (2, 3):
        full.save(iteration, state, {}, None)  # the error is raised on the writing thread
        state, _ = program.advance(state, iteration - 1, 1)
    full.close()
    said = (
        "checkpoints are no longer saved (no space left on the disk); the newest one is iteration 1. Training goes on."
    )
    assert lines == [said] and full.stopped()
    assert [p.name for p in tmp_path.iterdir()] == ["1"]
    whole, _ = program.advance(program.init(), 0, 3)
    toy.assert_same_bits(state, whole)
    kept.close()


def test_a_disk_without_room_for_the_whole_state_is_not_filled_with_half_of_it(tmp_path, monkeypatch):
    lines = []
    kept = keeper.open_checkpoints(tmp_path, warn=lines.append)
    monkeypatch.setattr(keeper.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    kept.save(1, toy.program("ppo").init(), {}, None)
    kept.close()
    assert len(lines) == 1 and "there is none" in lines[0] and list(tmp_path.iterdir()) == []


def test_leaving_a_future_deletes_its_checkpoints(saved, tmp_path):
    copy = shutil.copytree(saved[0], tmp_path / "copy")
    keeper.discard_after(copy, 4)
    assert checkpoint.saved_iterations(copy) == [4]


def test_no_checkpoint_is_said(tmp_path):
    with pytest.raises(UsageError, match="no finished checkpoint"):
        checkpoint.newest(tmp_path)


def test_best_and_newest_are_kept(tmp_path):
    program = toy.program("ppo")
    state = program.init()
    kept = keeper.open_checkpoints(tmp_path, keep=1, keep_best=1)
    for iteration, score in ((1, 0.0), (2, 5.0), (3, 1.0), (4, 2.0)):
        kept.save(iteration, state, {}, score)
    kept.close()
    assert checkpoint.saved_iterations(tmp_path) == [2, 4]
    again = keeper.open_checkpoints(tmp_path, keep=1, keep_best=1)  # another process remembers which was best
    again.save(5, state, {}, 3.0)
    again.save(6, state, {}, None)
    again.close()
    assert checkpoint.saved_iterations(tmp_path) == [2, 6]
    assert checkpoint.load_meta(tmp_path, 2)["score"] == 5.0 and checkpoint.load_meta(tmp_path)["score"] is None
