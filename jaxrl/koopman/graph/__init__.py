"""Fields on graphs: meshes, typed linear steps, GraphMet and its message-passing rival, and how forecasts are judged.

graph = mesh.icosahedral_mesh(refinements=3)
model = graphmet.make(graphmet.GraphMetConfig(processor="skew"), graph)
forecast = model.rollout(model.init(jax.random.key(0)), field, 40)  # field [642, 1] -> [40, 642, 1]
"""

from jaxrl.koopman.graph import graphmet, layers, mesh, metrics, operators, training
from jaxrl.koopman.graph.graphmet import Forecaster, GraphMetConfig, GridMaps
from jaxrl.koopman.graph.mesh import Graph, icosahedral_mesh, ring_mesh
from jaxrl.koopman.graph.training import LossWeights

__all__ = [
    "Forecaster",
    "Graph",
    "GraphMetConfig",
    "GridMaps",
    "LossWeights",
    "graphmet",
    "icosahedral_mesh",
    "layers",
    "mesh",
    "metrics",
    "operators",
    "ring_mesh",
    "training",
]
