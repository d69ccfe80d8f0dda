"""The command line: every module of this package that has `register` adds its own commands.

A command module looks like this, and nothing else needs to know of it:

    def register(subparsers: Subparsers) -> None:
        parser = subparsers.add_parser("status", help="what the daemon is doing")
        parser.set_defaults(run=_status)

    def _status(args: argparse.Namespace) -> int: ...  # the exit status
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from agent.errors import TrimtabError

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 - it has no public name
else:
    Subparsers = argparse._SubParsersAction  # noqa: SLF001


def parser() -> argparse.ArgumentParser:
    """The whole command line, from every module found here."""
    whole = argparse.ArgumentParser(prog="trimtab", description="An autopilot for vLLM servers.")
    whole.add_argument("--version", action="version", version=f"trimtab {_version()}")
    subparsers = whole.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in sorted(iter_modules(__path__), key=lambda found: found.name):
        register = getattr(import_module(f"{__name__}.{module.name}"), "register", None)
        if register is not None:
            register(subparsers)
    return whole


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; 2 with one line on stderr for what trimtab can name."""
    args = parser().parse_args(argv)
    try:
        status: int = args.run(args)
        sys.stdout.flush()
    except (TrimtabError, ExceptionGroup) as error:
        known = named(error)
        if known is None:
            raise
        print(f"trimtab: {known}", file=sys.stderr)  # noqa: T201 - this is the command line's output
        return 2
    except BrokenPipeError:  # `trimtab audit show | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


def named(error: Exception) -> TrimtabError | None:
    """What trimtab can name of an error that may have come out of nested groups of tasks."""
    if isinstance(error, TrimtabError):
        return error
    inner = error.exceptions if isinstance(error, ExceptionGroup) else ()
    return next((known for known in map(named, inner) if known is not None), None)


def _version() -> str:
    try:
        return version("trimtab")
    except PackageNotFoundError:
        return "(not installed)"
