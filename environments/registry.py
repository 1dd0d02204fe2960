"""Environments by name: ``scheme:name``, such as ``"brax:ant"`` or ``"toy:chain"``."""

import difflib
import importlib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from environments.adapters.gymnasium import HostEnvironment
from environments.base import Environment
from environments.wrappers.limits import time_limit
from jaxrl.errors import MissingExtraError, UsageError, unknown

# In this order a name without a scheme is looked for. A module is imported when one of its names is asked for.
_MODULES = {
    "brax": "environments.adapters.brax",
    "gymnax": "environments.adapters.gymnax",
    "playground": "environments.adapters.playground",
    "toy": "environments.toys",
    "gymnasium": "environments.adapters.gymnasium",
    "arm": "environments.arm",
    "point": "environments.point",
    "metaworld": "environments.adapters.metaworld",
}


@dataclass(frozen=True)
class _Registered:
    """What a user added: the same two functions that an adapter module has."""

    names: Callable[[], list[str]]
    make: Callable[..., Environment]


_registered: dict[str, _Registered] = {}


def make(name: str, max_steps: int | None = None, **kwargs) -> Environment | HostEnvironment:
    """A single environment with its time limit applied and no automatic reset; see :func:`environments.vectorise`.

    Names with the scheme ``gymnasium`` give a :class:`HostEnvironment`, which has lanes already.

    Args:
        name: ``scheme:name``, one of :func:`list_environments`.
        max_steps: a time limit in place of the environment's own.
        **kwargs: what the scheme takes: ``backend="mjx"`` for brax, ``gravity=3.7`` for gymnax, ``n=7`` for a toy.

    Raises:
        UsageError: for an unknown name, with the nearest known one, or an argument that the scheme does not take.
        MissingExtraError: where the scheme's package is not installed.
    """
    scheme, separator, rest = _text(name).partition(":")
    if not separator or scheme not in _schemes():
        raise _unknown_name(name)
    source = _source(scheme)
    if rest not in source.names():
        raise _unknown_name(name)
    accepted = inspect.signature(source.make).parameters
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values())
    for key in kwargs:
        if not open_ended and key not in accepted:
            takes = ", ".join(sorted({*list(accepted)[1:], "max_steps"}))
            raise UsageError(f"{scheme} environments take no '{key}'; they take {takes}")
    if max_steps is None:
        return source.make(rest, **kwargs)
    if open_ended or "max_steps" in accepted:
        return source.make(rest, max_steps=max_steps, **kwargs)
    return time_limit(source.make(rest, **kwargs), max_steps)


def list_environments(scheme: str | None = None) -> list[str]:
    """Every name that :func:`make` knows, or those of one scheme. Schemes whose package is missing are left out.

    Raises:
        UsageError: for an unknown scheme.
        MissingExtraError: for a scheme that was asked for and whose package is not installed.
    """
    if scheme is not None:
        if scheme not in _schemes():
            raise unknown("scheme", scheme, _schemes())
        return [f"{scheme}:{name}" for name in sorted(_source(scheme).names())]
    return [name for known in _schemes() for name in _installed(known)]


def register(scheme: str, names: Iterable[str] | Callable[[], Iterable[str]], make: Callable[..., Environment]) -> None:
    """Add a scheme of your own.

    Args:
        scheme: what stands before the colon.
        names: the names it knows, or a function that lists them.
        make: ``make(name, **kwargs) -> Environment``, single and without automatic reset. If it takes ``max_steps``, a
            time limit is left to it; otherwise :func:`environments.time_limit` is applied.

    Raises:
        UsageError: for a scheme that exists, is empty or has a colon.
    """
    if not _text(scheme) or ":" in scheme:
        raise UsageError(f"a scheme is one word before a colon, got {scheme!r}")
    if scheme in _schemes():
        raise UsageError(f"the scheme '{scheme}' exists already; choose another name than {', '.join(_schemes())}")
    known = names if callable(names) else tuple(names)
    _registered[scheme] = _Registered(lambda: list(known() if callable(known) else known), make)


def _schemes() -> list[str]:
    return [*_MODULES, *_registered]


def _source(scheme: str) -> Any:
    """Something with ``names()`` and ``make(name, **kwargs)``."""
    return _registered[scheme] if scheme in _registered else importlib.import_module(_MODULES[scheme])


def _installed(scheme: str) -> list[str]:
    try:
        return list_environments(scheme)
    except MissingExtraError:
        return []


def _text(name: Any) -> str:
    if not isinstance(name, str):
        raise UsageError(f"an environment is named by a text such as 'brax:ant', got {name!r}")
    return name


def _unknown_name(name: str) -> UsageError:
    """The error that names the nearest full name; for a name without a scheme, the nearest by what follows the colon."""
    scheme, separator, _ = name.partition(":")
    # A scheme spelt right is searched alone: the answer is nearer, and no other package is imported for it.
    known = list_environments(scheme) if separator and scheme in _schemes() else list_environments()
    if separator:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    else:
        bare = {full.partition(":")[2]: full for full in reversed(known)}
        near = [bare[match] for match in difflib.get_close_matches(name, bare, n=1, cutoff=0.4)]
    if near:
        return UsageError(f"unknown environment '{name}'; did you mean '{near[0]}'?")
    return UsageError(
        f"unknown environment '{name}'; names are scheme:name, such as '{known[0]}', with the schemes "
        f"{', '.join(_schemes())}; environments.list_environments() has them all"
    )
