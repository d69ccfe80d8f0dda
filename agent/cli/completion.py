"""`trimtab completion`: the script by which a shell completes trimtab's commands and options."""

import argparse
import sys
from collections.abc import Mapping

from agent.cli.dispatch import Subparsers, parser
from agent.cli.exits import OK
from agent.cli.ids import KINDS

SHELLS = ("bash", "zsh", "fish")
FILES, FOLDERS = frozenset({"FILE", "JSON"}), frozenset({"DIR"})  # metavars
NAMES = {kind.upper().removesuffix("S"): kind for kind in KINDS}  # as well
WHERE = """\
where it is found:
  bash  trimtab completion bash > \\
          ~/.local/share/bash-completion/completions/trimtab
  zsh   trimtab completion zsh > ~/.zfunc/_trimtab
          (with ~/.zfunc in fpath, before compinit)
  fish  trimtab completion fish > ~/.config/fish/completions/trimtab.fish
for all users:
  /usr/share/bash-completion/completions/trimtab
  /usr/share/zsh/vendor-completions/_trimtab
  /usr/share/fish/vendor_completions.d/trimtab.fish
The daemon of TRIMTAB_URL, or the usual one, is asked for targets, rollouts
and suggestions that wait.
"""


def register(subparsers: Subparsers) -> None:
    says = "the script by which a shell completes commands and names"
    own = subparsers.add_parser(
        "completion",
        help=says,
        epilog=WHERE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    own.add_argument("shell", choices=SHELLS, help="whose script")
    own.set_defaults(run=_completion)


def _completion(args: argparse.Namespace) -> int:
    import shtab  # noqa: PLC0415 - for this command alone

    whole = parser()
    kinds: dict[object, object] = {metavar: _asked(kind) for metavar, kind in NAMES.items()}
    _mark(whole, kinds | dict.fromkeys(FILES, shtab.FILE) | dict.fromkeys(FOLDERS, shtab.DIRECTORY))
    sys.stdout.write(f"{shtab.complete(whole, shell=args.shell)}\n")
    return OK


def _asked(kind: str) -> object:
    """How each shell asks the daemon for names, as shtab reads it."""
    names, function = f"trimtab ids {kind} 2>/dev/null", f"_trimtab_ids_{kind}"
    return {
        "bash": function,
        "zsh": function,
        "fish": f"({names})",
        "preamble": {
            "bash": f'{function}() {{ compgen -W "$({names})" -- "$1"; }}',
            "zsh": f'{function}() {{ compadd "$@" -- ${{(f)"$({names})"}} }}',
        },
    }


def _mark(command: argparse.ArgumentParser, kinds: Mapping[object, object]) -> None:
    """Give each argument that is a path its completion, as shtab reads it."""
    for action in command._actions:  # noqa: SLF001 - argparse tells of them in no other way
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - as above
            for inner in action.choices.values():
                _mark(inner, kinds)
        elif action.metavar in kinds:
            action.complete = kinds[action.metavar]  # type: ignore[attr-defined]
