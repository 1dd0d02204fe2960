"""What the tests of many devices and many processes run in processes of their own: ``python -m tests.training.spread CHECK …``.

Each check prints one line of JSON. The number of devices comes from ``XLA_FLAGS``, the other processes from the arguments.
"""

import json
import sys
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import enable_compilation_cache
from jaxrl.training import NotFiniteError, OffPolicy, OnPolicy, Schedule, distributed, run
from jaxrl.training.checkpoint import pack, restore
from jaxrl.training.keeper import open_checkpoints
from jaxrl.training.sharding import choose_mesh
from tests.training import toy

LOOPS = {
    "ppo": OnPolicy(num_envs=8, unroll=4),
    "sac": OffPolicy(num_envs=8, unroll=1, updates=1, batch_size=16, capacity=128, warmup=16),
}
ITERATIONS = {"ppo": 20, "sac": 22}  # 20 updates: the warm-up of SAC takes two


@cache
def program(name, members, devices, shape=""):
    mesh = choose_mesh(devices, shape, members, 8)
    return toy.program(name, seeds=range(members), population=members > 1, loop=LOOPS[name], mesh=mesh)


def numbers(state):
    return {name: np.asarray(leaf) for name, leaf in pack(distributed.readable(state)).items()}


def worst(ours, theirs):
    """The largest difference, relative where numbers are large, over agent, normalisers, replay and environments."""
    assert ours.keys() == theirs.keys()
    gaps = {}
    for name, b in theirs.items():
        a = np.asarray(ours[name], np.float64)
        b = np.asarray(b, np.float64)
        gaps[name] = float(np.max(np.abs(a - b) / np.maximum(1.0, np.abs(b)), initial=0.0))
    name = max(gaps, key=gaps.get)
    return [name, gaps[name]]


def equal(name, members, shape):
    """The run on all devices against the one on a single device."""
    many, one = program(name, members, len(jax.devices()), shape), program(name, members, 1)
    ours, chunk = many.advance(many.init(), 0, ITERATIONS[name])
    theirs, chunk_one = one.advance(one.init(), 0, ITERATIONS[name])
    lanes, replay = ours.observation.sharding, [x.sharding.spec for x in jax.tree.leaves(ours.replay)]
    scores = [np.asarray(p.evaluate(s, 1).returns) for p, s in ((many, ours), (one, theirs))]
    return {
        "state": worst(numbers(ours), numbers(theirs)),
        "metrics": worst(jax.device_get(chunk.metrics), jax.device_get(chunk_one.metrics)),
        "evaluation": float(np.max(np.abs(scores[0] - scores[1]))),
        "devices": len(lanes.device_set),
        "observation shard": list(lanes.shard_shape(ours.observation.shape)),
        "replay over envs": sum("envs" in spec for spec in replay),
    }


def elsewhere(folder):
    """A checkpoint written on 8 devices goes on on 8, 4 and 1."""
    found = {}
    for name, others in (("ppo", (8, 1)), ("sac", (8, 4, 1))):
        many = program(name, 1, 8)
        state, _ = many.advance(many.init(), 0, 10)
        kept = open_checkpoints(Path(folder, name))
        kept.save(10, state, {}, None)
        kept.close()
        state, _ = many.advance(state, 10, ITERATIONS[name] - 10)
        expected = numbers(state)
        for devices in others:
            other = program(name, 1, devices)
            restored, _ = restore(Path(folder, name), other.template())
            assert len(restored.observation.sharding.device_set) == devices
            restored, _ = other.advance(restored, 10, ITERATIONS[name] - 10)
            found[f"{name} on {devices}"] = worst(numbers(restored), expected)
    return found


def guard():
    """NaN in one member's parameters, which lives on four devices of eight."""
    many = program("sac", 2, 8, "2x4")
    state = many.init()
    params = state.agent.params
    spoil = jax.jit(lambda x: x + jnp.asarray([0.0, jnp.nan]), out_shardings=params["temperature"].sharding)
    agent = state.agent._replace(params=params | {"temperature": spoil(params["temperature"])})
    try:
        run(many._replace(init=lambda: state._replace(agent=agent)), Schedule(1, 1, 0, 0))
    except NotFiniteError as error:
        return {"said": str(error), "members": list(error.members)}
    return {"said": ""}


CHECKS = {
    "equal": lambda name, members, shape="": equal(name, int(members), shape),
    "elsewhere": elsewhere,
    "guard": guard,
}

if __name__ == "__main__":
    enable_compilation_cache()
    for words in " ".join(sys.argv[1:]).split(" + "):
        check, *rest = words.split()
        print(json.dumps({words: CHECKS[check](*rest)}), flush=True)
