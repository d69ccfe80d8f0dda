"""The command line: every module of this package that has `register` adds its own commands.

A command module looks like this, and nothing else needs to know of it:

    def register(subparsers: Subparsers) -> None:
        parser = subparsers.add_parser("status", help="what the daemon is doing")
        parser.set_defaults(run=_status)

    def _status(args: argparse.Namespace) -> int: ...  # the exit status
"""

import argparse
import errno
import os
import sys
import textwrap
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from agent import cli
from agent.cli.exits import EXITS, OK, STOPPED, USAGE
from agent.domain.errors import TrimtabError
from agent.terminal.tables import complain
from vllm_facts.errors import VllmFactsError

NAMED = (TrimtabError, VllmFactsError)  # errors whose message is for the user; all else is a bug

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 - it has no public name
else:
    Subparsers = argparse._SubParsersAction  # noqa: SLF001


BEGIN = """\
An autopilot for vLLM servers. To see it work: `trimtab demo`. To begin:
`trimtab init`, `trimtab check` and `trimtab run`."""
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
FEW = 12  # choices that a line of complaint can hold


class _Version(argparse.Action):
    """Looked up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:  # noqa: ANN401
        parser.exit(message=f"trimtab {_version()}\n")


class _Parser(argparse.ArgumentParser):
    """Says what was meant by a word that is none of the choices."""

    def _check_value(self, action: argparse.Action, value: object) -> None:
        choices = list(map(str, action.choices or ()))
        if not choices or value in choices:
            return
        near = get_close_matches(str(value), choices, 1)
        few = (
            f"choose from {', '.join(choices)}" if len(choices) <= FEW else f"`{self.prog} --help` tells all"
        )
        raise argparse.ArgumentError(
            action, f"{str(value)!r} is not known; {f'did you mean {near[0]}?' if near else few}"
        )


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog)
        self._action_max_length = 15  # argparse forgets that the list of commands is indented


def parser(command: str = "") -> argparse.ArgumentParser:
    """The whole command line, from every module found here.

    Where a module is called like the `command`, it alone: the others take half a second to load.
    """
    whole: argparse.ArgumentParser = _Parser(
        prog="trimtab", description=BEGIN, epilog=_exits(), formatter_class=_Help
    )
    whole.add_argument("--version", action=_Version, nargs=0, help="show the version and end")
    subparsers = whole.add_subparsers(title="commands", metavar="COMMAND", required=True)
    named_so = command.isidentifier() and find_spec(f"agent.cli.{command}") is not None
    for name in [command] if named_so else sorted(module.name for module in iter_modules(cli.__path__)):
        register = getattr(import_module(f"agent.cli.{name}"), "register", None)
        if register is not None:
            register(subparsers)
    if not subparsers.choices:
        return parser()
    _sort(subparsers)
    _describe(subparsers)
    return whole


def _sort(commands: Subparsers) -> None:
    commands._choices_actions.sort(key=lambda choice: choice.dest)  # noqa: SLF001 - as below
    for name in sorted(commands.choices):
        commands.choices[name] = commands.choices.pop(name)


def _describe(commands: Subparsers) -> None:
    """What the list of commands says of each one stands in front of its own help."""
    for choice in commands._choices_actions:  # noqa: SLF001 - argparse tells of them in no other way
        own = commands.choices[choice.dest]
        own.description = " ".join(_sentence(text) for text in (choice.help, own.description) if text)
        for inner in own._actions:  # noqa: SLF001 - as above
            if isinstance(inner, argparse._SubParsersAction):  # noqa: SLF001 - it has no public name
                _describe(inner)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}{'' if text.endswith(('.', '?')) else '.'}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status, with one line on stderr for what trimtab can name."""
    words = sys.argv[1:] if argv is None else list(argv)
    if not words:
        parser().print_help(sys.stderr)
        return USAGE
    args, unknown = parser(words[0]).parse_known_args(words)
    if unknown:
        command = next((word for word in words if not word.startswith("-")), "")
        complain(f"{' '.join(unknown)}: `trimtab {command}` takes no such thing; see its --help")
        return USAGE
    try:
        status: int = args.run(args)
        sys.stdout.flush()
    except (*NAMED, ExceptionGroup) as error:
        known = named(error)
        if known is None:
            raise
        complain(known)
        return USAGE
    except BrokenPipeError:  # `trimtab audit show | head`
        _mute()
        return OK
    except OSError as error:
        if error.errno not in FULL:
            raise
        _mute()
        complain(f"the answer cannot be written: {error.strerror}")
        return USAGE
    except KeyboardInterrupt:
        return STOPPED
    return status


def _mute() -> None:
    """What stdout still holds goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _exits() -> str:
    """The table of exit statuses."""
    rows = (textwrap.fill(says, 72, subsequent_indent=" " * 7) for says in EXITS.values())
    told = "".join(f"  {code:<5}{says}\n" for code, says in zip(EXITS, rows, strict=True))
    return f"exit status, of every command:\n{told}"


def named(error: Exception) -> TrimtabError | VllmFactsError | None:
    """What trimtab can name of an error that may have come out of nested groups of tasks."""
    if isinstance(error, NAMED):
        return error
    inner = error.exceptions if isinstance(error, ExceptionGroup) else ()
    return next((known for known in map(named, inner) if known is not None), None)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - half of all imports here

    try:
        return version("trimtab")
    except PackageNotFoundError:
        return "(not installed)"
