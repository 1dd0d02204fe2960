"""What importing costs and pulls in, and what the project must never do."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
HEAVY = ("brax", "mujoco", "wandb", "tensorflow", "torch", "gymnax", "orbax", "matplotlib", "scipy.stats")


def test_import_is_light():
    """Neither jaxrl nor its agents, samplers, losses and loops load a simulator or a logger."""
    code = (
        "import sys, jaxrl; from jaxrl import agents, losses, networks, samplers, training; agents.config_class('ppo');"
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_environments_load_no_simulator_before_one_is_asked_for():
    code = (
        "import sys, environments; environments.make('toy:chain'); environments.list_environments('brax');"
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_nothing_imports_the_trainer_of_brax_or_replicates_by_pmap():
    for folder in ("jaxrl", "environments", "experiments"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            # Its queue and its trainer are peers that ours are timed beside; nothing is built on them.
            peer = path.name in ("replay_speed.py", "brax_worker.py")
            assert peer or not re.search(r"^\s*(from|import) brax\.training", text, re.MULTILINE), path
            assert "jax.pmap" not in text, path


def test_layers_import_downwards_only():
    """A lower row of the folders' order never imports a higher one."""
    order = ["samplers", "losses", "networks", "koopman", "world_models", "agents", "training"]
    for level, name in enumerate(order):
        for path in (ROOT / "jaxrl" / name).rglob("*.py"):
            for imported in re.findall(r"jaxrl\.(\w+)", path.read_text()):
                assert imported not in order[level + 1 :] or imported == name, f"{path} imports jaxrl.{imported}"
            assert not re.search(r"^\s*(from|import) (environments|experiments)", path.read_text(), re.MULTILINE), path
