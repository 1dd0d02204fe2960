"""A trained policy in NumPy alone. This file needs nothing of the library: copy it and the ``.npz`` to where they run.

policy = load("policy.npz")
action = act(policy, observation)  # [4] -> one action; [N, 4] -> N of them

It is the deterministic policy of a multi-layer perceptron: normalise, layers, head, scale to the action's bounds. The
arithmetic is float32, in the order of the network it was made from.
"""

import json
from typing import Any

import numpy as np

FORMAT = 1
NORMALISED_CLIP = 10.0
LAYER_NORM_EPSILON = 1e-6


def load(path: Any) -> dict[str, Any]:
    """The settings of a policy and its ``arrays``.

    Raises:
        ValueError: for a file of another format.
    """
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    settings = json.loads(str(arrays.pop("settings"))) if "settings" in arrays else {}
    if settings.get("format") != FORMAT:
        raise ValueError(f"{path} is not a policy of format {FORMAT}, but {settings.get('format')}")
    return {**settings, "arrays": arrays}


def act(policy: dict[str, Any], observation: Any) -> np.ndarray:
    """Actions ``[..., *action_shape]``, in the environment's units, for observations with any leading axes.

    Raises:
        ValueError: where the observation has not the shape that the policy was trained on.
    """
    arrays, shape = policy["arrays"], tuple(policy["observation_shape"])
    x = np.asarray(observation, np.float32)
    leading = x.shape[: x.ndim - len(shape)]
    if x.shape[len(leading) :] != shape:
        raise ValueError(f"this policy takes observations of shape {shape}, got {x.shape}")
    if "mean" in arrays:
        x = np.clip((x - arrays["mean"]) / arrays["std"], -NORMALISED_CLIP, NORMALISED_CLIP)
    x = x.reshape(int(np.prod(leading)), int(np.prod(shape)))
    for layer in range(policy["layers"]):
        x = hidden(arrays, layer, policy["activation"], x)
    output = x @ arrays["head_kernel"] + arrays["head_bias"]
    if policy["head"] == "argmax":
        if "value_kernel" in arrays:  # duelling: a state's value and the centred advantages of its actions
            value = x @ arrays["value_kernel"] + arrays["value_bias"]
            output = value + output - np.mean(output, axis=-1, keepdims=True)
        return np.argmax(output, axis=-1).astype(policy["action_dtype"]).reshape(leading)
    if policy["head"] == "tanh":
        low, high = arrays["low"], arrays["high"]
        middle, half = np.float32(0.5) * (low + high), np.float32(0.5) * (high - low)
        output = np.clip(middle + half * np.tanh(output), low, high)
    return output.astype(policy["action_dtype"]).reshape(*leading, output.shape[-1])


def hidden(arrays: dict[str, np.ndarray], layer: int, activation: str, x: np.ndarray) -> np.ndarray:
    """One layer ``[N, features] -> [N, size]``: linear, normalised if it was trained so, activated."""
    x = x @ arrays[f"kernel_{layer}"] + arrays[f"bias_{layer}"]
    if f"scale_{layer}" in arrays:
        mean = np.mean(x, axis=-1, keepdims=True)
        variance = np.maximum(np.mean(x * x, axis=-1, keepdims=True) - mean * mean, np.float32(0))
        x = (x - mean) * (arrays[f"scale_{layer}"] / np.sqrt(variance + np.float32(LAYER_NORM_EPSILON)))
        x = x + arrays[f"offset_{layer}"]
    return activate(activation, x)


def activate(name: str, x: np.ndarray) -> np.ndarray:
    """The activation of that name."""
    one, half = np.float32(1), np.float32(0.5)
    if name == "relu":
        return np.maximum(x, np.float32(0))
    if name == "tanh":
        return np.tanh(x)
    if name == "elu":
        return np.where(x > 0, x, np.expm1(np.minimum(x, np.float32(0))))
    if name == "silu":
        return x * half * (one + np.tanh(half * x))  # the logistic function, which does not overflow written so
    if name == "gelu":
        return x * half * (one + np.tanh(np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3)))
    raise ValueError(f"unknown activation {name!r}")
