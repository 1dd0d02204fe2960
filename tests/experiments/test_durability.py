"""A run that is killed without warning, and resumed, ends with the bits of one that was left in peace."""

import json
import random
import shutil

import numpy as np

from experiments import durability
from jaxrl.training.checkpoint import saved_iterations


def test_killed_run_ends_with_the_same_bits_and_a_changed_bit_is_seen(tmp_path):
    few = [word if word != "640" else "192" for word in durability.SAC]
    claim = durability.run_case("sac", few, 2, random.Random(1), tmp_path / "case")
    assert claim["holds"] and claim["kills"] == 2 and claim["differs"] == []
    # The comparison itself: other rows, and other arrays, are found.
    whole, killed = tmp_path / "case" / "whole", tmp_path / "case" / "killed"
    last = saved_iterations(killed / "checkpoints")[-1]
    shutil.rmtree(killed / "checkpoints" / str(last))
    lines = (killed / "metrics.jsonl").read_text().splitlines()
    row = json.loads(lines[1])
    lines[1] = json.dumps({**row, "reward": float(np.nextafter(row.get("reward", 1.0), 9.0))})
    (killed / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    found = durability.differences(whole, killed)
    assert "metrics.jsonl" in found and any(name.startswith("agent/params") for name in found)
    assert "which checkpoints are kept" in found and "metrics.csv" not in found
