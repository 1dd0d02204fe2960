"""A policy in the kinds that :mod:`jaxrl.export` writes: StableHLO, NumPy arrays, ONNX."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import normalise, policy_numpy
from jaxrl.agents.base import Agent
from jaxrl.errors import MissingExtraError, UsageError, unknown
from jaxrl.networks import CategoricalPolicy, DeterministicPolicy, DiscreteActionValue, GaussianPolicy
from jaxrl.spaces import Box, Space
from jaxrl.types import Array, PyTree

PLATFORMS = ("cpu", "cuda", "tpu")


def live_policy(agent: Agent, state: PyTree) -> Callable[[PyTree], Array]:
    """``observation [N, ...] -> action [N, ...]``: what evaluation acts with, as a function of the observation alone.

    Raises:
        UsageError: for the state of a whole population.
    """
    members = {jnp.shape(leaf) for leaf in jax.tree.leaves(state.hyper)} - {()}
    if members:
        raise UsageError(
            f"this is the state of a population of {members.pop()[0]}; export one member, jaxrl.training.member(state, 0)"
        )
    return partial(_act, agent, jax.device_get(state))


def _act(agent: Agent, state: PyTree, observation: PyTree) -> Array:
    # The key has no say in what a deterministic policy does, and the compiler drops it.
    return agent.act(state, observation, jax.random.key(0), False)


def export_policy(
    agent: Agent, state: PyTree, observation_space: Space, platforms: Sequence[str] = PLATFORMS
) -> bytearray:
    """The policy as serialised StableHLO, for ``jax.export.deserialize``; its batch size is free.

    The weights are inside. ``jax.export.deserialize(blob).call(observation)`` takes ``[N, *observation_shape]`` of the
    space's dtype, for any N from 1 on.

    Args:
        state: of one agent, not of a population.
        platforms: what it shall run on, whatever it is exported on.

    Raises:
        UsageError: for a platform that is none of ``cpu``, ``cuda``, ``rocm`` and ``tpu``, a population, or where
            flatbuffers is not installed.
    """
    for platform in platforms:
        if platform not in (*PLATFORMS, "rocm"):
            raise unknown("platform", str(platform), (*PLATFORMS, "rocm"))
    from jax import export

    (batch,) = export.symbolic_shape("batch")
    shapes = map_space(observation_space, lambda box: jax.ShapeDtypeStruct((batch, *box.shape), box.dtype))
    exported = export.export(jax.jit(live_policy(agent, state)), platforms=tuple(platforms))(shapes)
    try:
        return exported.serialize()
    except ImportError:
        raise UsageError("a serialised JAX export needs the package flatbuffers: pip install flatbuffers") from None


def numpy_policy(agent: Agent, state: PyTree) -> dict[str, np.ndarray]:
    """The arrays of a policy that :mod:`jaxrl.policy_numpy` runs, with their ``settings`` as JSON among them.

    Raises:
        UsageError: for a policy that is not a multi-layer perceptron of this library.
    """
    parts: Any = getattr(agent.act, "args", (None,))[0]
    module: Any = getattr(parts, "actor", getattr(parts, "network", None))
    if type(module) not in (GaussianPolicy, DeterministicPolicy, CategoricalPolicy, DiscreteActionValue):
        what = type(module).__name__ if module is not None else "no network that it names"
        raise UsageError(
            f"numpy knows multi-layer perceptrons of jaxrl.networks, {agent.name} has {what}; use kind 'jax'"
        )
    if module.rank == 3:
        raise UsageError(f"numpy runs no convolutions, and this {agent.name} sees images; use kind 'jax'")
    live_policy(agent, state)  # refuses a population
    params = jax.device_get(state.params)
    params = (params["actor"] if hasattr(parts, "actor") else params)["params"]
    head, kind = _head_of(module, parts)
    arrays = {**_torso(params.get("MLP_0", {})), **_linear(params[head], "head_")}
    if head == "advantage":
        arrays |= _linear(params["value"], "value_")
    if kind == "tanh":
        arrays |= {"low": parts.action_space.low, "high": parts.action_space.high}
    if state.normaliser is not None:
        arrays |= {"mean": state.normaliser.mean, "std": normalise.std(state.normaliser)}
    settings = {
        "format": policy_numpy.FORMAT,
        "observation_shape": parts.observation_space.shape,
        "layers": len(module.hidden_sizes),
        "activation": module.activation,
        "head": kind,
        "action_dtype": np.dtype(parts.action_space.dtype).name,
    }
    return {"settings": np.asarray(json.dumps(settings)), **{n: np.asarray(a, np.float32) for n, a in arrays.items()}}


def _head_of(module: Any, parts: Any) -> tuple[str, str]:
    """The name of the last layer, and what is made of its output."""
    if isinstance(module, GaussianPolicy):
        squashed = getattr(parts.config, "squash", True) and parts.action_space.bounded
        return "loc", "tanh" if squashed else "linear"
    if isinstance(module, DeterministicPolicy):
        return "Dense_0", "tanh"
    if isinstance(module, CategoricalPolicy):
        return "Dense_0", "argmax"
    return ("advantage" if module.duelling else "value"), "argmax"


def _torso(params: dict[str, Any]) -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    for name, layer in params.items():
        kind, _, index = name.partition("_")
        names = {"Dense": {"kernel": "kernel", "bias": "bias"}, "LayerNorm": {"scale": "scale", "bias": "offset"}}[kind]
        arrays |= {f"{there}_{index}": layer[here] for here, there in names.items()}
    return arrays


def _linear(layer: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {f"{prefix}{name}": layer[name] for name in ("kernel", "bias")}


def onnx_policy(agent: Agent, state: PyTree, observation_space: Space) -> bytes:
    """The policy as an ONNX model with a free batch size, converted by jax2onnx.

    Raises:
        MissingExtraError: where jax2onnx is not installed.
        UsageError: for observations that are not one array, or an operation that jax2onnx does not know.
    """
    if not isinstance(observation_space, Box):
        raise UsageError(f"onnx takes observations that are one array, got {observation_space}; use kind 'jax'")
    try:
        from jax2onnx import to_onnx
    except ImportError:
        raise MissingExtraError("export to ONNX", "onnx") from None
    shape = jax.ShapeDtypeStruct(("batch", *observation_space.shape), observation_space.dtype)
    try:
        return to_onnx(live_policy(agent, state), [shape], model_name="policy").SerializeToString()
    except UsageError:
        raise
    except Exception as error:  # jax2onnx has no error of its own for an operation that it lacks
        line = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise UsageError(f"jax2onnx cannot convert this {agent.name}: {line}; use kind 'jax'") from error


def map_space(space: Space, function: Callable[[Any], Any]) -> Any:
    """A function of every leaf of a space, in the same dicts."""
    if isinstance(space, dict):
        return {name: map_space(part, function) for name, part in space.items()}
    return function(space)
