"""Features in which dynamics may be linear: polynomials, random Fourier features, a learned encoder, and stacks of them."""

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.checks import positive_int
from jaxrl.errors import UsageError
from jaxrl.networks import MLP, dense
from jaxrl.types import Array, Key, PyTree, check_key


class Dictionary(NamedTuple):
    """Functions of a state, ``psi(x)``. Without anything to learn, ``params`` is an empty dict and may be left as such.

    ``features`` of a NumPy array is a NumPy array in its own precision, except for an encoder's; this is what lets a fit
    in float64 see its data in float64.
    """

    name: str
    dim: int  # numbers in a state
    size: int  # features
    names: tuple[str, ...]  # one a feature: "x1", "x1 x2^2", "cos 3"
    init: Callable[[Key], PyTree]
    features: Callable[[PyTree, Array], Array]  # (params, x [..., dim]) -> [..., size]


class EncoderNetwork(nn.Module):
    """An MLP and a linear layer, ``[..., dim] -> [..., size]``, with no normalisation after it.

    A layer norm there would put every latent on a hyperplane: their covariance is then singular for ever, and the isotropy
    that spectral objectives ask for cannot be reached. Derived here; the released code of the method has one.
    """

    size: int
    hidden_sizes: tuple[int, ...] = (256, 256)
    activation: str = "silu"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        hidden = MLP(self.hidden_sizes, self.activation)(x)
        return dense(self.size, 1.0)(hidden)


def polynomial(dim: int, degree: int, constant: bool = True) -> Dictionary:
    """All monomials up to a degree, by degree and then in the order of their variables: ``1, x1, x2, x1^2, x1 x2, x2^2``.

    Raises:
        UsageError: for a dimension or degree below 1.
    """
    dim, degree = positive_int(dim, "dim of polynomials"), positive_int(degree, "degree of polynomials")
    first = 0 if constant else 1
    terms = [c for d in range(first, degree + 1) for c in itertools.combinations_with_replacement(range(dim), d)]
    names = tuple(_monomial_name(term) for term in terms)
    evaluate = partial(_monomials, dim, tuple(terms))
    return Dictionary(f"polynomial of degree {degree}", dim, len(terms), names, _nothing, evaluate)


def fourier(dim: int, size: int, bandwidth: float = 1.0) -> Dictionary:
    """Random Fourier features ``sqrt(2 / size) cos(W x + b)`` (Rahimi and Recht 2007) of the Gaussian kernel.

    Their inner product approaches ``exp(-|x - y|^2 / (2 bandwidth^2))`` as ``size`` grows.

    Raises:
        UsageError: for a size below 1 or a bandwidth that is not positive.
    """
    dim, size = positive_int(dim, "dim of Fourier features"), positive_int(size, "size of Fourier features")
    if not bandwidth > 0:
        raise UsageError(f"Fourier features need a bandwidth above 0, got {bandwidth}")
    names = tuple(f"cos {i + 1}" for i in range(size))
    init = partial(_init_fourier, dim, size, bandwidth)
    return Dictionary("fourier", dim, size, names, init, partial(_fourier_features, dim))


def identity(dim: int) -> Dictionary:
    """The state itself."""
    return polynomial(dim, 1, constant=False)._replace(name="identity")


def encoder(dim: int, size: int, hidden_sizes: tuple[int, ...] = (256, 256), activation: str = "silu") -> Dictionary:
    """A learned :class:`EncoderNetwork`."""
    dim, size = positive_int(dim, "dim of an encoder"), positive_int(size, "size of an encoder")
    network = EncoderNetwork(size, tuple(hidden_sizes), activation)
    names = tuple(f"phi {i + 1}" for i in range(size))
    init, evaluate = partial(_init_encoder, network, dim), partial(_encode, network, dim)
    return Dictionary("encoder", dim, size, names, init, evaluate)


def stack(*dictionaries: Dictionary) -> Dictionary:
    """The features of several, one after the other; parameters are a tuple.

    Raises:
        UsageError: for none, or for different dimensions of the state.
    """
    dims = {dictionary.dim for dictionary in dictionaries}
    if len(dims) != 1:
        raise UsageError(f"dictionaries of one dimension stack, got {sorted(dims) or 'none'}")
    names = tuple(itertools.chain.from_iterable(d.names for d in dictionaries))
    init, evaluate = partial(_init_stack, dictionaries), partial(_stack_features, dictionaries)
    title = " + ".join(d.name for d in dictionaries)
    return Dictionary(title, dims.pop(), len(names), names, init, evaluate)


def with_identity(dictionary: Dictionary) -> Dictionary:
    """The state first, then the dictionary: then ``x = psi(x)[..., :dim]``, and a cost on ``x`` is quadratic in ``psi``."""
    return stack(identity(dictionary.dim), dictionary)


def _nothing(key: Key) -> dict[str, Array]:
    check_key(key)
    return {}


def _monomial_name(term: tuple[int, ...]) -> str:
    counts = [(i, term.count(i)) for i in sorted(set(term))]
    return " ".join(f"x{i + 1}" + (f"^{n}" if n > 1 else "") for i, n in counts) or "1"


def _monomials(dim: int, terms: tuple[tuple[int, ...], ...], params: PyTree, x: Array) -> Array:
    _check_state(dim, x)
    ones = x[..., 0] * 0 + 1
    columns = [math.prod((x[..., i] for i in term), start=ones) for term in terms]
    return _library(x).stack(columns, -1)


def _init_fourier(dim: int, size: int, bandwidth: float, key: Key) -> PyTree:
    check_key(key)
    w_key, b_key = jax.random.split(key)
    weights = jax.random.normal(w_key, (dim, size)) / bandwidth
    return {"weights": weights, "phases": jax.random.uniform(b_key, (size,), maxval=2 * math.pi)}


def _fourier_features(dim: int, params: PyTree, x: Array) -> Array:
    _check_state(dim, x)
    library = _library(x)
    weights, phases = library.asarray(params["weights"]), library.asarray(params["phases"])
    return math.sqrt(2 / phases.shape[-1]) * library.cos(x @ weights + phases)


def _init_encoder(network: nn.Module, dim: int, key: Key) -> PyTree:
    check_key(key)
    return network.init(key, jnp.zeros((1, dim)))


def _encode(network: nn.Module, dim: int, params: PyTree, x: Array) -> Any:
    _check_state(dim, x)
    return network.apply(params, x)


def _init_stack(dictionaries: tuple[Dictionary, ...], key: Key) -> PyTree:
    check_key(key)
    keys = jax.random.split(key, len(dictionaries))
    return tuple(dictionary.init(part) for dictionary, part in zip(dictionaries, keys, strict=True))


def _stack_features(dictionaries: tuple[Dictionary, ...], params: PyTree, x: Array) -> Array:
    parts = [dictionary.features(p, x) for dictionary, p in zip(dictionaries, params, strict=True)]
    library = np if all(isinstance(part, np.ndarray) for part in parts) else jnp
    return library.concatenate(parts, -1)


def _check_state(dim: int, x: Array) -> None:
    if x.ndim < 1 or x.shape[-1] != dim:
        raise UsageError(f"the dictionary takes states of {dim} numbers, got shape {x.shape}")


def _library(x: Array) -> Any:
    return np if isinstance(x, np.ndarray) else jnp
