"""The one exception a user's input can raise."""

import difflib
from collections.abc import Iterable


class UsageError(ValueError):
    """A value that cannot work: says the value, the reason, and the nearest that works, in one line.

    Raised before anything compiles. Scripts print it without a traceback and exit with status 2.
    """


class MissingExtraError(UsageError, ImportError):
    """An optional package is not installed; the message is the command that installs it."""

    def __init__(self, what: str, extra: str):
        super().__init__(f"{what} needs the '{extra}' extra: pip install 'jaxrl[{extra}]' (or uv sync --extra {extra})")


def unknown(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for a misspelt name, with the nearest known one."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known)}"
    return UsageError(f"unknown {kind} '{name}'; {hint}")
