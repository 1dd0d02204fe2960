"""What every script does at its edges: read the command line, one line for a mistake, an exit code that tells."""

import errno
import shlex
import signal
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import tyro
from rich.console import Console

from jaxrl import enable_compilation_cache
from jaxrl.errors import UsageError
from jaxrl.training import distributed
from jaxrl.training.run import NotFiniteError

Config = TypeVar("Config")
# A run stopped by a signal ends with 128 + its number, as shells and schedulers expect.
EXIT_USAGE, EXIT_NOT_FINITE, EXIT_DISK = 2, 3, 4


def run_main(main: Callable[[list[str], Console], int | None]) -> None:
    """Run a script's ``main(arguments, console)`` and exit with its status."""
    console = Console(highlight=False, emoji=False)
    errors = Console(stderr=True, highlight=False, emoji=False)
    enable_compilation_cache()
    try:
        status = main(sys.argv[1:], console) or 0
    except KeyboardInterrupt:
        errors.print("interrupted")
        status = 128 + signal.SIGINT
    except UsageError as error:
        errors.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        status = EXIT_USAGE
    except NotFiniteError as error:
        errors.print(f"stopped: {error}", style="red", markup=False, soft_wrap=True)
        status = EXIT_NOT_FINITE
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        errors.print(f"error: {error.filename or 'a file'} cannot be written: {error.strerror}", markup=False)
        status = EXIT_DISK
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
            if value.startswith("--"):
                raise UsageError(f"--{name} needs a value, and {value} is another option")
        elif word.startswith(f"--{name}="):
            value = word.partition("=")[2]
        else:
            rest.append(word)
    return value, rest


def check_seed(seed: int) -> None:
    """Refuse a seed that is none."""
    if not 0 <= seed < 2**32:
        raise UsageError(f"seed {seed} cannot work; seeds are whole numbers from 0 to 4,294,967,295")


def take_hosts(arguments: list[str]) -> list[str]:
    """Take the flags of a run over several hosts, and join it; what is left is the script's own.

    Raises:
        UsageError: where the flags do not belong together, or nobody says who the others are.
    """
    asked, rest = take_option(arguments, "distributed", "False")
    coordinator, rest = take_option(rest, "coordinator", "")
    numbers: list[int | None] = []
    for name in ("process-id", "num-processes", "heartbeat"):
        text, rest = take_option(rest, name, "")
        if text and not text.isdigit():
            raise UsageError(f"{name} {text} cannot work; give a whole number")
        numbers.append(int(text) if text else None)
    if asked not in ("True", "False"):
        raise UsageError(f"distributed {asked} cannot work; it is True or False")
    if asked == "True" or coordinator or numbers != [None, None, None]:
        process, processes, heartbeat = numbers
        distributed.connect(coordinator, process, processes, heartbeat or distributed.HEARTBEAT)
    return rest


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


def with_option(command: str, name: str, value: str) -> str:
    """A command with another value of an option, which is appended where it was not given."""
    words = shlex.split(command)
    _, words = take_option(words, name, "")
    return shlex.join([*words, f"--{name}", value])


def command_line(module: str, flags: list[str]) -> str:
    """The command that does the same again."""
    return shlex.join(["uv", "run", "python", "-m", module, *flags])
