"""What tests do across processes: devices made of one processor, and work that the suite's workers share."""

import fcntl
import json
import os


def with_devices(count):
    """An environment for a child process that finds ``count`` devices on the CPU."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    return os.environ | {"XLA_FLAGS": flags.strip(), "JAX_PLATFORMS": "cpu"}


def once(tmp_path_factory, name, make):
    """``make()``, as JSON would give it back, computed by the first of the suite's workers that asks; the others wait for it."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # which the workers of one run have in common
    path = folder / f"{name}.json"
    with open(folder / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            path.write_text(json.dumps(make()))
    return json.loads(path.read_text())
