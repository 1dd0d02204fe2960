"""Linear steps of a latent state: operators, parallel rollouts, fits, dictionaries, objectives, spectra, uncertainty.

>>> import jax
>>> from jaxrl import koopman
>>> operator = koopman.operators.diagonal(size=64, control_size=6)
>>> params = operator.init(jax.random.key(0))
>>> latents = koopman.rollouts.associative(operator, params, jax.numpy.ones(64), jax.numpy.ones((200, 6)), 200)
>>> latents.shape
(200, 64)
"""

from jaxrl.koopman import (
    dictionaries,
    fits,
    gaussian,
    objectives,
    operators,
    parametrisations,
    rollouts,
    spectra,
)
from jaxrl.koopman.dictionaries import Dictionary
from jaxrl.koopman.fits import DMD, LinearFit
from jaxrl.koopman.operators import Operator, assemble
from jaxrl.koopman.spectra import Conditioning, Spectrum

__all__ = [
    "DMD",
    "Conditioning",
    "Dictionary",
    "LinearFit",
    "Operator",
    "Spectrum",
    "assemble",
    "dictionaries",
    "fits",
    "gaussian",
    "objectives",
    "operators",
    "parametrisations",
    "rollouts",
    "spectra",
]
