"""GraphMet: forecast a field on a graph by one linear step of a latent field; and its rival, message passing.

``x_t -> encode -> z``, ``z -> K z`` once a step, ``decode`` each. The field is encoded once a roll-out and never decoded in
between, and the decoder sees the latent and where it is, nothing of the initial field (the released decoder is given the
initial field, which it can copy). The rival encodes, passes messages ``layers`` times, decodes, adds the change to the field
and starts again from there, as GraphCast does.

Found in the released code: encoder and decoder of one message-passing layer each over the three nearest neighbours, widths,
activation, one shared block for each type of edge. Put right here, each with its flag where the released way can be had: the
start and the bound of the operator (:mod:`jaxrl.koopman.graph.operators`), the decoder's inputs, and the layer norm at the
end of the encoder, which keeps every latent on a hyperplane so that its covariance can never be the identity
(``latent_norm=True`` is the released way).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.checks import positive_int
from jaxrl.errors import UsageError, unknown
from jaxrl.koopman.graph import operators
from jaxrl.koopman.graph.layers import Edges, MessagePassing, TwoLayer, edges_of, init_params
from jaxrl.koopman.graph.mesh import Bipartite, Graph
from jaxrl.koopman.operators import Operator
from jaxrl.types import Array, Key, PyTree

Processor = Literal["block", "block_norm", "skew", "diag", "message_passing"]


@dataclass(frozen=True)
class GraphMetConfig:
    """Sizes and choices. The defaults are the published ones."""

    channels: int = 1
    """Numbers a grid point."""
    width: int = 128
    """Features a node in encoder, decoder and message passing."""
    hidden: int = 256
    """Hidden units of every network."""
    latent: int = 32
    """Numbers a node that the linear step acts on."""
    processor: Processor = "block_norm"
    """How a latent steps."""
    layers: int = 16
    """Of message passing; a linear step has none."""
    radius: float = 1.0
    """Bound of the norm of block_norm."""
    start: str = "small"
    """Where free blocks start: small or released."""
    substeps: int = 1
    """Of skew."""
    latent_norm: bool = False
    """Whether the encoder ends in a layer norm, as released."""


class GridMaps(NamedTuple):
    """Edges from a grid to the mesh and back, and what a grid point knows of its place."""

    to_mesh: Bipartite
    to_grid: Bipartite
    coordinates: np.ndarray  # [grid points, coordinates]


class Forecaster(NamedTuple):
    """Pure functions of a model of a field. Fields are ``[..., points, channels]``, standardised."""

    name: str
    config: GraphMetConfig
    points: int
    init: Callable[[Key], PyTree]
    encode: Callable[[PyTree, Array], Array]  # (params, field) -> [..., nodes, features]
    # (params, field) -> what is decoded at this time: the code of a linear model, the nodes after all messages of the other
    latents: Callable[[PyTree, Array], Array]
    decode: Callable[[PyTree, Array], Array]  # (params, latents) -> field
    rollout: Callable[[PyTree, Array, int], Array]  # (params, field, steps) -> [steps, ..., points, channels]
    operator: Operator | None = None  # of a linear step; its parameters are params["operator"]


class Encoder(nn.Module):
    """A field to features on the mesh: messages from the grid, or between the nodes where the field is on the mesh."""

    config: GraphMetConfig
    edges: Edges
    coordinates: np.ndarray
    mesh_coordinates: np.ndarray
    on_mesh: bool
    size: int

    @nn.compact
    def __call__(self, field: Array) -> Array:
        c = self.config
        senders = _with_coordinates(field, self.coordinates)
        receivers = senders if self.on_mesh else _places(self.mesh_coordinates, field)
        nodes = MessagePassing(self.edges, c.width, c.hidden, name="messages")(senders, receivers)
        return TwoLayer(self.size, c.hidden, layer_norm=c.latent_norm, name="latent")(nodes)


class Decoder(nn.Module):
    """Features on the mesh to a field. It is given coordinates, and nothing else that is not in the latent."""

    config: GraphMetConfig
    edges: Edges
    coordinates: np.ndarray
    on_mesh: bool

    @nn.compact
    def __call__(self, latent: Array) -> Array:
        c = self.config
        nodes = TwoLayer(c.width, c.hidden, layer_norm=True, name="latent")(latent)
        receivers = _with_coordinates(nodes, self.coordinates) if self.on_mesh else _places(self.coordinates, latent)
        return MessagePassing(self.edges, c.channels, c.hidden, layer_norm=False, name="messages")(nodes, receivers)


class Messages(nn.Module):
    """``layers`` rounds of message passing with their own parameters, each added to what came before.

    A loop over stacked parameters: sixteen layers compile as fast as one.
    """

    config: GraphMetConfig
    edges: Edges

    @nn.compact
    def __call__(self, nodes: Array) -> tuple[Array, Array]:
        """The nodes after the last layer, and after each: ``[layers, ..., nodes, width]``."""
        c = self.config
        rounds = nn.scan(_Round, variable_axes={"params": 0}, split_rngs={"params": True}, length=c.layers)
        return rounds(self.edges, c.width, c.hidden, name="layers")(nodes, None)


class _Round(nn.Module):
    edges: Edges
    width: int
    hidden: int

    @nn.compact
    def __call__(self, nodes: Array, _: None) -> tuple[Array, Array]:
        moved = MessagePassing(self.edges, self.width, self.hidden, residual=True, name="messages")(nodes, nodes)
        return moved, moved


def make(
    config: GraphMetConfig,
    graph: Graph,
    maps: GridMaps | None = None,
    basis: np.ndarray | None = None,
    pairs: int = 0,
) -> Forecaster:
    """A forecaster of fields on the graph's nodes, or on a grid where ``maps`` lead to the graph and back.

    ``basis`` and ``pairs`` are those of :func:`jaxrl.koopman.graph.operators.diag`.

    Raises:
        UsageError: for sizes below 1, an unknown processor, or maps that do not fit the graph.
    """
    check(config, graph, maps)
    edges = edges_of(graph) if maps is None else edges_of(maps.to_mesh)
    back = edges_of(graph) if maps is None else edges_of(maps.to_grid)
    coordinates = graph.coordinates if maps is None else maps.coordinates
    passing = config.processor == "message_passing"
    size = config.width if passing else config.latent
    encoder = Encoder(config, edges, coordinates, graph.coordinates, maps is None, size)
    decoder = Decoder(config, back, coordinates, maps is None)
    points = len(coordinates)
    if passing:
        messages = Messages(config, edges_of(graph))
        parts = (encoder, messages, decoder)
        return Forecaster(
            f"message_passing_{config.layers}",
            config,
            points,
            partial(_init_passing, parts, points, graph.nodes),
            partial(_encode, encoder),
            partial(_passing_latents, encoder, messages),
            partial(_decode, decoder),
            partial(_passing_rollout, parts),
        )
    operator = _operator(config, graph, basis, pairs)
    return Forecaster(
        config.processor,
        config,
        points,
        partial(_init_linear, encoder, decoder, operator, points, graph.nodes),
        partial(_encode, encoder),
        partial(_encode, encoder),
        partial(_decode, decoder),
        partial(_linear_rollout, encoder, decoder, operator),
        operator,
    )


def layer_latents(model: Forecaster, graph: Graph, params: PyTree, field: Array) -> Array:
    """The nodes of a message-passing model before and after each layer, ``[layers + 1, ..., nodes, width]``.

    Raises:
        UsageError: for a model without layers.
    """
    if model.operator is not None:
        raise UsageError(f"{model.name} has one linear step and no layers of messages")
    messages: Any = Messages(model.config, edges_of(graph))
    nodes = model.encode(params, field)
    return jnp.concatenate([nodes[None], messages.apply(params["messages"], nodes)[1]])


def check(config: GraphMetConfig, graph: Graph, maps: GridMaps | None) -> None:
    """Refuse what cannot work."""
    if config.processor not in get_args(Processor):
        raise unknown("processor", config.processor, get_args(Processor))
    for name in ("channels", "width", "hidden", "latent", "layers", "substeps"):
        positive_int(getattr(config, name), name)
    if maps is not None:
        ends = (maps.to_mesh.receiver_count, maps.to_grid.sender_count)
        if ends != (graph.nodes, graph.nodes):
            raise UsageError(f"the maps lead to {ends[0]} and from {ends[1]} nodes, the mesh has {graph.nodes}")
        grid = {maps.to_mesh.sender_count, maps.to_grid.receiver_count, len(maps.coordinates)}
        if len(grid) != 1:
            raise UsageError(f"the maps disagree about how many points the grid has: {sorted(grid)}")


def _operator(config: GraphMetConfig, graph: Graph, basis: np.ndarray | None, pairs: int) -> Operator:
    if config.processor == "block":
        return operators.block(graph, config.latent, config.start)
    if config.processor == "block_norm":
        return operators.block_norm(graph, config.latent, config.radius, config.start)
    if config.processor == "skew":
        return operators.skew(graph, config.latent, substeps=config.substeps)
    return operators.diag(graph.nodes, config.latent, basis, pairs)


def _places(coordinates: np.ndarray, like: Array) -> Array:
    """The coordinates of every point, for each field there is."""
    return jnp.broadcast_to(jnp.asarray(coordinates, like.dtype), (*like.shape[:-2], *coordinates.shape))


def _with_coordinates(field: Array, coordinates: np.ndarray) -> Array:
    known = jnp.broadcast_to(jnp.asarray(coordinates, field.dtype), (*field.shape[:-1], coordinates.shape[-1]))
    return jnp.concatenate([field, known], -1)


def _init_linear(encoder, decoder, operator: Operator, points: int, nodes: int, key: Key) -> PyTree:
    key, operator_key = jax.random.split(key)
    return _init_ends(encoder, decoder, points, nodes, key) | {"operator": operator.init(operator_key)}


def _init_passing(parts, points: int, nodes: int, key: Key) -> PyTree:
    encoder, messages, decoder = parts
    key, messages_key = jax.random.split(key)
    started = init_params(messages, messages_key, jnp.zeros((nodes, encoder.size)))
    return _init_ends(encoder, decoder, points, nodes, key) | {"messages": started}


def _init_ends(encoder, decoder, points: int, nodes: int, key: Key) -> PyTree:
    encoder_key, decoder_key = jax.random.split(key)
    return {
        "encoder": init_params(encoder, encoder_key, jnp.zeros((points, encoder.config.channels))),
        "decoder": init_params(decoder, decoder_key, jnp.zeros((nodes, encoder.size))),
    }


def _encode(encoder, params: PyTree, field: Array) -> Array:
    wanted = (len(encoder.coordinates), encoder.config.channels)
    if jnp.shape(field)[-2:] != wanted:
        raise UsageError(f"a field here is [..., {wanted[0]} points, {wanted[1]} channels], got {jnp.shape(field)}")
    return encoder.apply(params["encoder"], field)


def _decode(decoder, params: PyTree, latent: Array) -> Array:
    return decoder.apply(params["decoder"], latent)


def linear_latents(operator: Operator, params: PyTree, latent: Array, steps: int) -> Array:
    """``K z, K² z, …``: ``[..., nodes, width] -> [steps, ..., nodes, width]``; the transition is made once."""
    steps = positive_int(steps, "steps of a rollout")
    transition = operator.transition(params["operator"])
    flat = latent.reshape(*latent.shape[:-2], -1)

    def step(carried: Array, _: None) -> tuple[Array, Array]:
        moved = operator.apply(transition, carried)
        return moved, moved

    return jax.lax.scan(step, flat, None, steps)[1].reshape(steps, *latent.shape)


def _linear_rollout(encoder, decoder, operator: Operator, params: PyTree, field: Array, steps: int) -> Array:
    latents = linear_latents(operator, params, _encode(encoder, params, field), steps)
    return _decode(decoder, params, latents)


def _passing_latents(encoder, messages, params: PyTree, field: Array) -> Array:
    return messages.apply(params["messages"], _encode(encoder, params, field))[0]


def _passing_rollout(parts, params: PyTree, field: Array, steps: int) -> Array:
    encoder, messages, decoder = parts
    steps = positive_int(steps, "steps of a rollout")

    def step(current: Array, _: None) -> tuple[Array, Array]:
        moved = current + _decode(decoder, params, _passing_latents(encoder, messages, params, current))
        return moved, moved

    return jax.lax.scan(step, field, None, steps)[1]
