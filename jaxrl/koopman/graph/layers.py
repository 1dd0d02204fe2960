"""Message passing between nodes: a network on each edge, the mean at each receiver, a network on each node."""

import math
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.koopman.graph.mesh import Bipartite, Graph
from jaxrl.networks.mlp import activation_function
from jaxrl.types import Array, Key, PyTree


class Edges(NamedTuple):
    """What a layer needs of a graph; NumPy, constants of a compiled program."""

    senders: np.ndarray
    receivers: np.ndarray
    features: np.ndarray  # [edges, features]
    receiver_count: int


def edges_of(graph: Graph | Bipartite) -> Edges:
    """The edges of a graph or of a map between two."""
    count = graph.nodes if isinstance(graph, Graph) else graph.receiver_count
    return Edges(graph.senders, graph.receivers, graph.features, count)


class TwoLayer(nn.Module):
    """Linear, activation, linear; then perhaps a layer norm. ``[..., features] -> [..., size]``."""

    size: int
    hidden: int
    activation: str = "silu"
    layer_norm: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = activation_function(self.activation)(nn.Dense(self.hidden)(x))
        x = nn.Dense(self.size)(x)
        return nn.LayerNorm()(x) if self.layer_norm else x


class MessagePassing(nn.Module):
    """One layer: messages along edges, their mean, an update of each receiver. ``[..., nodes, width]``.

    The first linear map of the edge network acts on sender, receiver and edge features put together; it is computed as a sum
    of three, so that it runs once a node rather than once an edge.

    Attributes:
        residual: add the update to the receiver (their widths must then agree), as processors do.
    """

    edges: Edges
    width: int
    hidden: int
    activation: str = "silu"
    layer_norm: bool = True
    residual: bool = False

    @nn.compact
    def __call__(self, senders: Array, receivers: Array) -> Array:
        from_sender = nn.Dense(self.hidden, name="edge_sender")(senders)[..., self.edges.senders, :]
        from_receiver = nn.Dense(self.hidden, use_bias=False, name="edge_receiver")(receivers)
        features = jnp.asarray(self.edges.features, senders.dtype)
        from_edge = nn.Dense(self.hidden, use_bias=False, name="edge_features")(features)
        message = activation_function(self.activation)(
            from_sender + from_receiver[..., self.edges.receivers, :] + from_edge
        )
        message = nn.Dense(self.width, name="edge_out")(message)
        gathered = jnp.concatenate([receivers, mean_by_receiver(self.edges, message)], -1)
        update = TwoLayer(self.width, self.hidden, self.activation, self.layer_norm, name="node")(gathered)
        return receivers + update if self.residual else update


def mean_by_receiver(edges: Edges, messages: Array) -> Array:
    """The mean over the edges that end in each node, 0 where none does. ``[..., edges, width] -> [..., nodes, width]``."""
    count = np.maximum(np.bincount(edges.receivers, minlength=edges.receiver_count), 1)[:, None]
    sums = jnp.zeros((*messages.shape[:-2], edges.receiver_count, messages.shape[-1]), messages.dtype)
    return sums.at[..., edges.receivers, :].add(messages) / jnp.asarray(count, messages.dtype)


def init_params(module: nn.Module, key: Key, *example: Array) -> PyTree:
    """Parameters of a module: kernels normal with variance 1 / inputs, biases 0, scales 1, from one draw.

    Drawn leaf by leaf, a small network would take longer to compile its start than its training step.
    """
    shapes = jax.eval_shape(module.init, key, *example)
    leaves, tree = jax.tree_util.tree_flatten_with_path(shapes)
    sizes = [math.prod(leaf.shape) for _, leaf in leaves]
    ends = np.cumsum(sizes)
    drawn = jax.random.normal(key, (int(ends[-1]),))
    parts = []
    for (path, leaf), end, size in zip(leaves, ends, sizes, strict=True):
        kind = path[-1].key
        if kind == "kernel":
            inputs = max(leaf.shape[-2], 1)
            parts.append(drawn[end - size : end].reshape(leaf.shape) / math.sqrt(inputs))
        else:
            parts.append(jnp.full(leaf.shape, float(kind == "scale")))
    return jax.tree.unflatten(tree, parts)
