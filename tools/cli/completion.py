"""`flettner completion` and `flettner ids`: shell completion of commands, options and the daemon's names.

`flettner ids` runs while an operator types, so it imports little and gives up after a second.
"""

import argparse
import re
import sys
from collections.abc import Mapping
from dataclasses import replace

from flettner.agent.api.client import RefusedError, connect
from flettner.agent.domain.errors import FlettnerError
from flettner.tools.cli.dispatch import Subparsers, add_command, parser
from flettner.tools.cli.exits import NO, OK

SHELLS = ("bash", "zsh", "fish")
FILES, FOLDERS = frozenset({"FILE", "JSON"}), frozenset({"DIR"})  # metavars
KINDS = {"targets": "name", "suggestions": "id", "rollouts": "id"}
METAVARS = {kind.upper().removesuffix("S"): kind for kind in KINDS}
PATIENCE_S = 1.0
PENDING = frozenset({"checking", "open"})  # suggestions that can be approved or denied
SHELL_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # a shell would evaluate other characters
INSTALLATION = """\
install the script:
  bash  flettner completion bash > \\
          ~/.local/share/bash-completion/completions/flettner
  zsh   flettner completion zsh > ~/.zfunc/_flettner
          (with ~/.zfunc in fpath, before compinit)
  fish  flettner completion fish > ~/.config/fish/completions/flettner.fish
for all users:
  /usr/share/bash-completion/completions/flettner
  /usr/share/zsh/vendor-completions/_flettner
  /usr/share/fish/vendor_completions.d/flettner.fish
Names of targets, rollouts and pending suggestions come from the daemon at
FLETTNER_URL, or at its default address.
"""


def add_completion(subparsers: Subparsers) -> None:
    own = add_command(
        subparsers,
        "completion",
        "print the completion script for a shell",
        epilog=INSTALLATION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    own.add_argument("shell", choices=SHELLS, help="the shell")
    own.set_defaults(run=_print_script)


def add_ids(subparsers: Subparsers) -> None:
    own = add_command(
        subparsers,
        "ids",
        "list names for shell completion, one per line",
        "Prints nothing and exits with status 1 if no daemon answers within a second.",
    )
    own.add_argument(
        "kind", choices=tuple(KINDS), help="the kind of names; suggestions: only those that are pending"
    )
    own.set_defaults(run=_list_ids)


def _list_ids(args: argparse.Namespace) -> int:
    try:
        answer = replace(connect(None, None), patience_s=PATIENCE_S).get(f"/v1/{args.kind}")
    except (RefusedError, FlettnerError):
        return NO
    resources = (
        each for each in answer[args.kind] if args.kind != "suggestions" or each["status"] in PENDING
    )
    names = (str(each[KINDS[args.kind]]) for each in resources)
    sys.stdout.writelines(f"{name}\n" for name in names if SHELL_SAFE.fullmatch(name))
    return OK


def _print_script(args: argparse.Namespace) -> int:
    import shtab  # noqa: PLC0415 - for this command alone

    top = parser()
    completers: dict[object, object] = {name: _complete_ids(kind) for name, kind in METAVARS.items()}
    paths = dict.fromkeys(FILES, shtab.FILE) | dict.fromkeys(FOLDERS, shtab.DIRECTORY)
    _set_completers(top, completers | paths)
    sys.stdout.write(f"{shtab.complete(top, shell=args.shell)}\n")
    return OK


def _complete_ids(kind: str) -> object:
    """Return the completer of a kind of names for each shell, in shtab's form."""
    names, function = f"flettner ids {kind} 2>/dev/null", f"_flettner_ids_{kind}"
    return {
        "bash": function,
        "zsh": function,
        "fish": f"({names})",
        "preamble": {
            "bash": f'{function}() {{ compgen -W "$({names})" -- "$1"; }}',
            "zsh": f'{function}() {{ compadd "$@" -- ${{(f)"$({names})"}} }}',
        },
    }


def _set_completers(command: argparse.ArgumentParser, completers: Mapping[object, object]) -> None:
    """Give each argument the completer of its metavar, as an attribute that shtab reads."""
    for action in command._actions:  # noqa: SLF001 - argparse lists its arguments in no other way; shtab does so
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - it has no public name
            for inner in action.choices.values():
                _set_completers(inner, completers)
        elif action.metavar in completers:
            action.complete = completers[action.metavar]  # type: ignore[attr-defined]
