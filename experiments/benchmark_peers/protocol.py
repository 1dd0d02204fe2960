"""How a worker of the speed benchmark is spoken to: one JSON line each way. It needs nothing but Python.

A request is ``{"verb", "part", "sizes", "arguments"}``. A part is an object made from the sizes, once, and kept; a verb is a
method of it. A reply is what the method returns, the ``seconds`` it took and the ``cpu`` seconds of the process in them, or
``{"error"}`` in one line. These verbs exist:

* ``run(amount)`` does at least so many units of work, waits for the end, and returns ``{"units"}``;
* ``compile()`` makes the part's programs anew; ``seconds`` is what that took;
* ``begin(seeds)`` starts learning, ``advance(units)`` goes on and judges: ``{"returns": one for each seed}``. The seconds of
  both are with everything that had to be compiled.

A reply may bring ``seconds`` of its own, where a trainer says better than a clock around it.
"""

import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any


def serve(parts: Mapping[str, Callable[[dict], Any]], packages: tuple[str, ...]) -> None:
    """Greet with the versions, then answer until the input ends.

    Args:
        parts: name -> function from the sizes to the part.
        packages: those whose version belongs to a record.
    """
    wire = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints from here on must not look like a reply
    versions = {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in packages}}
    wire.write(json.dumps({"versions": versions, "parts": sorted(parts)}) + "\n")
    held: dict[str, Any] = {}
    for line in sys.stdin:
        try:
            reply = answer(parts, held, json.loads(line))
        except Exception as error:
            words = str(error).strip().splitlines() or [""]
            reply = {"error": f"{type(error).__name__}: {words[0][:300]}"}
        wire.write(json.dumps(reply) + "\n")
    os._exit(0)  # a trainer in a thread must not keep the process


def answer(parts: Mapping[str, Callable[[dict], Any]], held: dict[str, Any], request: dict) -> dict:
    """What one request comes to."""
    name, sizes = request["part"], request["sizes"]
    identity = json.dumps([name, sizes], sort_keys=True)
    if identity not in held:
        held.clear()  # the part before it is done with, and may be large
        held[identity] = parts[name](sizes)
    verb = getattr(held[identity], request["verb"])
    began, worked = time.perf_counter(), time.process_time()
    result = verb(**request["arguments"]) or {}
    return {"seconds": time.perf_counter() - began, "cpu": time.process_time() - worked, **result}


def whole(amount: float, block: int) -> int:
    """How many blocks hold at least the amount."""
    return max(1, -(-int(amount) // block))
