"""Latent world models and planners: Koopman models that roll out in parallel, recurrent baselines, LQR, MPC and CEM.

>>> import jax
>>> from jaxrl import world_models
>>> model = world_models.koopman_model.make(world_models.koopman_model.Config(latent_size=8), 3, 1)
>>> state = model.init(jax.random.key(0))
>>> a, b = world_models.planning.linear_part(model, state.params)
>>> a.shape, b.shape
((8, 8), (8, 1))
"""

from jaxrl.world_models import base, baselines, koopman_model, lqr, planning, training
from jaxrl.world_models.base import Dynamics, State, WorldModel
from jaxrl.world_models.planning import CEM, Condensed, LatentCost

__all__ = [
    "CEM",
    "Condensed",
    "Dynamics",
    "LatentCost",
    "State",
    "WorldModel",
    "base",
    "baselines",
    "koopman_model",
    "lqr",
    "planning",
    "training",
]
