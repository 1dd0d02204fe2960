"""What every script does at its edges: read the command line, one line for a mistake, an exit code that tells."""

import shlex
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import tyro
from rich.console import Console

from jaxrl import enable_compilation_cache
from jaxrl.errors import UsageError
from jaxrl.training.run import NotFiniteError

Config = TypeVar("Config")
EXIT_USAGE, EXIT_NOT_FINITE = (
    2,
    3,
)  # a run stopped by a signal ends with 128 + its number, as shells and schedulers expect


def run_main(main: Callable[[list[str], Console], int | None]) -> None:
    """Run a script's ``main(arguments, console)`` and exit with its status."""
    console = Console(highlight=False)
    errors = Console(stderr=True, highlight=False)
    enable_compilation_cache()
    try:
        status = main(sys.argv[1:], console) or 0
    except UsageError as error:
        errors.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        status = EXIT_USAGE
    except NotFiniteError as error:
        errors.print(f"stopped: {error}", style="red", markup=False, soft_wrap=True)
        status = EXIT_NOT_FINITE
    sys.exit(status)


def parse(kind: Any, arguments: list[str], *, default: Any = None, description: str | None = None) -> Any:
    """A dataclass from flags: ``--loop.num-envs 64``, ``--checkpoint.replay False``.

    A flag that does not exist, or a value of the wrong type, ends the program with tyro's own message and status 2.
    """
    extra = {} if default is None else {"default": default}
    return tyro.cli(kind, args=arguments, description=description, config=(tyro.conf.FlagConversionOff,), **extra)


def take_option(arguments: list[str], name: str, default: str) -> tuple[str, list[str]]:
    """Take ``--name value`` (or ``--name=value``) out of the arguments.

    Raises:
        UsageError: where the value is missing.
    """
    rest, value, words = [], default, iter(arguments)
    for word in words:
        if word == f"--{name}":
            try:
                value = next(words)
            except StopIteration:
                raise UsageError(f"--{name} needs a value") from None
        elif word.startswith(f"--{name}="):
            value = word.partition("=")[2]
        else:
            rest.append(word)
    return value, rest


def new_folder(chosen: str | None, *parts: str) -> Path:
    """A run folder of its own: the chosen one, or ``runs/…`` with the time in its name.

    Raises:
        UsageError: where the chosen one exists; nothing is overwritten.
    """
    if chosen is None:
        stamp = datetime.now().strftime("%Y-%m-%d_%H%M%S")
        base = Path("runs", *parts[:-1], f"{stamp}_{parts[-1]}")
        folder = next(p for p in (base, *(Path(f"{base}-{i}") for i in range(2, 1000))) if not p.exists())
    else:
        folder = Path(chosen)
        if folder.exists():
            raise UsageError(f"run folder {folder} exists and is not overwritten; choose another, or --resume {folder}")
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"cannot make the run folder {folder}: {error.strerror}") from None
    return folder


def command_line(module: str, flags: list[str]) -> str:
    """The command that does the same again."""
    return shlex.join(["uv", "run", "python", "-m", module, *flags])
