"""The command line: COMMANDS names the module of each command, which has a function to add it.

    def add_status(subparsers: Subparsers) -> None:
        parser = add_command(subparsers, "status", "show the status of all targets")
        parser.set_defaults(run=_show_status)

    def _show_status(args: argparse.Namespace) -> int: ...  # returns the exit status

Only the module of the given command is imported. One that calls the daemon needs the standard library only,
`lint` also PyYAML; most others need the extra `daemon`.
"""

import argparse
import errno
import os
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Protocol

from flettner.agent.domain.errors import FlettnerError
from flettner.tools.cli.exits import EXITS, OK, STOPPED, USAGE
from flettner.tools.terminal.messages import complain
from flettner.vllm_facts.errors import VllmFactsError

USER_ERRORS = (FlettnerError, VllmFactsError)  # their message is for the user; any other exception is a bug
INTRODUCTION = """\
An autopilot for vLLM servers. To see it work: `flettner demo`. To begin:
`flettner init`, `flettner token new`, `flettner check` and `flettner run`."""
COMMANDS: Mapping[str, str] = {
    "abort": "decide",
    "advise": "advise",
    "approve": "decide",
    "audit": "audit",
    "bundle": "bundle",
    "check": "run",
    "completion": "completion",
    "demo": "demo",
    "deny": "decide",
    "detach": "detach",
    "ids": "completion",
    "init": "init",
    "knobs": "knobs",
    "lint": "lint",
    "model": "model",
    "notify": "notify",
    "pause": "decide",
    "policies": "knobs",
    "predict": "predict",
    "propose": "decide",
    "reload": "decide",
    "report": "report",
    "resume": "decide",
    "revert": "revert",
    "rollouts": "rollouts",
    "run": "run",
    "status": "decide",
    "suggestions": "decide",
    "token": "token",
    "top": "top",
    "trace": "model",
    "tune": "tune",
    "undo": "decide",
}
OTHER_NAMES = {  # what other tools call a command; the nearest spelling is another one
    "apply": "approve",
    "diagnose": "check",
    "doctor": "check",
    "history": "rollouts",
    "logs": "audit show",
    "promote": "approve",
    "retry": "propose",
    "rollback": "abort",
    "serve": "run",
    "set": "propose",
    "start": "run",
    "uninstall": "detach",
    "validate": "check",
}
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
MAX_LISTED_CHOICES = 12  # more do not fit into a one-line error


class Subparsers(Protocol):
    """The return value of `ArgumentParser.add_subparsers`, whose class has no public name."""

    def add_parser(self, name: str, **options: Any) -> argparse.ArgumentParser: ...  # noqa: ANN401 - as argparse


class _Version(argparse.Action):
    """Look the version up only when it is requested."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:  # noqa: ANN401
        parser.exit(message=f"flettner {find_version()}\n")


class _Parser(argparse.ArgumentParser):
    """Suggests the nearest choice for an unknown word."""

    def _check_value(self, action: argparse.Action, value: object) -> None:
        choices = list(map(str, action.choices or ()))
        if not choices or value in choices:
            return
        near = get_close_matches(str(value), choices, 1)
        if self.prog == "flettner" and str(value) in OTHER_NAMES:
            hint = f"see `flettner {OTHER_NAMES[str(value)]}`"
        elif near:
            hint = f"did you mean {near[0]}?"
        elif len(choices) <= MAX_LISTED_CHOICES:
            hint = f"choose from {', '.join(choices)}"
        else:
            hint = f"`{self.prog} --help` lists the choices"
        raise argparse.ArgumentError(action, f"unknown {str(value)!r}; {hint}")


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog)
        self._action_max_length = 15  # argparse does not count the indent of the list of commands


def parser(command: str = "") -> argparse.ArgumentParser:
    """Return the parser of a command of COMMANDS, of --version alone, or of all commands that are installed.

    Raises ModuleNotFoundError if the packages of `command` are not.
    """
    top: argparse.ArgumentParser = _Parser(
        prog="flettner", description=INTRODUCTION, epilog=_format_exits(), formatter_class=_HelpFormatter
    )
    top.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    subparsers: Subparsers = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    left_out = []
    names: Iterable[str] = () if command == "--version" else (command,) if command in COMMANDS else COMMANDS
    for name in names:
        try:
            module = import_module(f"flettner.tools.cli.{COMMANDS[name]}")
        except ModuleNotFoundError as error:
            if command in COMMANDS or _is_own(error):
                raise
            left_out.append(name)
            continue
        getattr(module, f"add_{name}")(subparsers)
    if left_out:
        top.epilog = f"not installed (extra `daemon`): {', '.join(left_out)}\n\n{top.epilog}"
    return top


def add_command(
    subparsers: Subparsers,
    name: str,
    summary: str,
    details: str = "",
    **options: Any,  # noqa: ANN401 - as ArgumentParser takes them
) -> argparse.ArgumentParser:
    """Return a command whose own help starts with its summary from the list of commands."""
    description = f"{summary[0].upper()}{summary[1:]}. {details}".strip()
    return subparsers.add_parser(name, help=summary, description=description, **options)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; a FlettnerError becomes one line on stderr."""
    words = sys.argv[1:] if argv is None else list(argv)
    if not words:
        parser().print_help(sys.stderr)
        return USAGE
    try:
        return _run(words)
    except ModuleNotFoundError as error:
        if _is_own(error):
            raise
        complain(
            f"`flettner {words[0]}` needs {error.name}, which is not installed: install flettner with the "
            "extra `daemon`, as in pip install '.[daemon]' in its source, or 'FILE.whl[daemon]'"
        )
        return USAGE


def _run(words: Sequence[str]) -> int:
    args, unknown = parser(words[0]).parse_known_args(words)
    if unknown:
        command = next((word for word in words if not word.startswith("-")), "")
        complain(f"{' '.join(unknown)}: not an argument of `flettner {command}`; see its --help")
        return USAGE
    try:
        status: int = args.run(args)
        sys.stdout.flush()
    except (*USER_ERRORS, ExceptionGroup) as error:
        user_error = find_user_error(error)
        if user_error is None:
            raise
        complain(user_error)
        return USAGE
    except BrokenPipeError:  # `flettner audit show | head`
        _discard_stdout()
        return OK
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        _discard_stdout()
        complain(f"cannot write the output: {error.strerror}")
        return USAGE
    except KeyboardInterrupt:
        return STOPPED
    return status


def _is_own(error: ModuleNotFoundError) -> bool:
    """Return whether it is flettner that lacks the module, which is a bug."""
    return (error.name or "").partition(".")[0] == "flettner"


def _discard_stdout() -> None:
    """Send the text that is still buffered for stdout to /dev/null."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _format_exits() -> str:
    rows = (textwrap.fill(meaning, 72, subsequent_indent=" " * 7) for meaning in EXITS.values())
    table = "".join(f"  {code:<5}{meaning}\n" for code, meaning in zip(EXITS, rows, strict=True))
    return f"exit status of every command:\n{table}"


def find_user_error(error: Exception) -> FlettnerError | VllmFactsError | None:
    """Return the error itself, or the first one with a message for the user in nested groups of tasks."""
    if isinstance(error, USER_ERRORS):
        return error
    inner = error.exceptions if isinstance(error, ExceptionGroup) else ()
    return next((cause for cause in map(find_user_error, inner) if cause is not None), None)


def find_version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - half of all imports here

    try:
        return version("flettner")
    except PackageNotFoundError:
        return "(not installed)"
