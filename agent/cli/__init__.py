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
import textwrap
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from agent.cli.exits import EXITS, OK, STOPPED, USAGE
from agent.errors import TrimtabError

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 - it has no public name
else:
    Subparsers = argparse._SubParsersAction  # noqa: SLF001


class _Version(argparse.Action):
    """Looked up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:  # noqa: ANN401
        parser.exit(message=f"trimtab {_version()}\n")


def parser(command: str = "") -> argparse.ArgumentParser:
    """The whole command line, from every module found here.

    Where a module is called like the `command`, it alone: the others take half a second to load.
    """
    whole = argparse.ArgumentParser(
        prog="trimtab",
        description="An autopilot for vLLM servers.",
        epilog=_exits(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    whole.add_argument("--version", action=_Version, nargs=0, help="show the version and end")
    subparsers = whole.add_subparsers(title="commands", metavar="COMMAND", required=True)
    named_so = command.isidentifier() and find_spec(f"{__name__}.{command}") is not None
    for name in [command] if named_so else sorted(module.name for module in iter_modules(__path__)):
        register = getattr(import_module(f"{__name__}.{name}"), "register", None)
        if register is not None:
            register(subparsers)
    return whole if subparsers.choices else parser()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status, with one line on stderr for what trimtab can name."""
    words = sys.argv[1:] if argv is None else list(argv)
    args = parser(words[0] if words else "").parse_args(words)
    try:
        status: int = args.run(args)
        sys.stdout.flush()
    except (TrimtabError, ExceptionGroup) as error:
        known = named(error)
        if known is None:
            raise
        print(f"trimtab: {known}", file=sys.stderr)  # noqa: T201 - this is the command line's output
        return USAGE
    except BrokenPipeError:  # `trimtab audit show | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except KeyboardInterrupt:
        return STOPPED
    return status


def _exits() -> str:
    """The table of exit statuses."""
    rows = (textwrap.fill(says, 72, subsequent_indent=" " * 7) for says in EXITS.values())
    told = "".join(f"  {code:<5}{says}\n" for code, says in zip(EXITS, rows, strict=True))
    return f"exit status, of every command:\n{told}"


def named(error: Exception) -> TrimtabError | None:
    """What trimtab can name of an error that may have come out of nested groups of tasks."""
    if isinstance(error, TrimtabError):
        return error
    inner = error.exceptions if isinstance(error, ExceptionGroup) else ()
    return next((known for known in map(named, inner) if known is not None), None)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - half of all imports here

    try:
        return version("trimtab")
    except PackageNotFoundError:
        return "(not installed)"
