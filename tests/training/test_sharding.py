"""Many devices and many processes against one of each."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from jaxrl.errors import UsageError
from jaxrl.training import distributed, sharding
from tests.processes import once, with_devices

ROOT = Path(__file__).parents[2]
CHECKS = ("equal ppo 1", "equal sac 1", "equal ppo 2 2x4", "equal sac 2 2x4", "guard")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Every check in one process with eight devices, so that what they share compiles once."""

    def run():
        checks = [*CHECKS, f"elsewhere {tmp_path_factory.mktemp('spread')}"]
        command = [sys.executable, "-m", "tests.training.spread", *" + ".join(checks).split()]
        done = subprocess.run(command, capture_output=True, text=True, env=with_devices(8), cwd=ROOT, timeout=1200)
        assert done.returncode == 0, done.stderr[-2000:]
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        return {name.split(" /")[0]: value for line in lines for name, value in line.items()}

    return once(tmp_path_factory, "spread", run)


@pytest.mark.parametrize("check", CHECKS[:4])
def test_eight_devices_equal_one_after_twenty_updates(found, check):
    """Parameters, optimiser, normalisers, replay, environments, metrics and evaluation."""
    got = found[check]
    assert got["state"][1] < 1e-5 and got["metrics"][1] < 1e-5, got
    assert got["evaluation"] < 1e-4  # returns of about 20, summed over 20 steps
    assert got["devices"] == 8
    assert got["observation shard"] == ([1, 2, 4] if "2x4" in check else [1, 4])
    assert (got["replay over envs"] > 0) == ("sac" in check)


def test_checkpoint_of_eight_devices_goes_on_on_four_and_on_one(found):
    got = found["elsewhere"]
    assert got["ppo on 8"][1] == 0 and got["sac on 8"][1] == 0
    assert {name for name, (_, gap) in got.items() if gap < 1e-5} == {
        *("ppo on 8", "ppo on 1", "sac on 8", "sac on 4", "sac on 1")
    }


def test_nan_on_a_few_devices_is_found_and_named(found):
    assert found["guard"]["members"] == [1]
    assert "agent/params/temperature (member 1)" in found["guard"]["said"]


REFUSED = [
    ((-1, "", 1, 8), "devices -1 cannot work"),
    ((64, "", 1, 64), "64 devices were asked for"),
    ((1, "2by4", 2, 8), "cannot read the mesh '2by4'; write 2x4"),
    ((1, "0x4", 2, 8), "cannot read the mesh"),
    ((3, "2x4", 2, 8), "mesh 2x4 needs 8 devices, not 3"),
]


@pytest.mark.parametrize("given, words", REFUSED)
def test_mesh_that_cannot_work_is_refused(given, words):
    with pytest.raises(UsageError, match=words):
        sharding.choose_mesh(*given)


def test_what_does_not_divide_is_refused_with_the_nearest(monkeypatch):
    monkeypatch.setattr(sharding.jax, "devices", lambda: list(range(8)))
    with pytest.raises(UsageError, match=r"num_envs 6 cannot be divided over 4 devices; nearest are \[4, 8\]"):
        sharding.make_mesh(8, (2, 4), 2, 6)
    with pytest.raises(UsageError, match=r"members 3 cannot be divided over 2 devices; nearest are \[2, 4\]"):
        sharding.make_mesh(8, (2, 4), 3, 8)


def test_one_device_needs_no_mesh():
    assert sharding.choose_mesh(1, "", 3, 7) is None


@pytest.mark.parametrize(
    "given, words",
    [
        (("localhost:1", None, None), "belong together"),
        (("", 0, None), "belong together"),
        (("localhost:1", 2, 2), "process-id 2 cannot be one of 2"),
        (("localhost", 0, 2), "has no port"),
    ],
)
def test_flags_of_several_hosts_that_do_not_fit_are_refused(given, words):
    with pytest.raises(UsageError, match=words):
        distributed.connect(*given)
