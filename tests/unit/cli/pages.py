"""docs/cli.md and the man page, generated from the parser. To write them:

python -m tests.unit.cli.pages
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from flettner.tools.cli.completion import INSTALLATION
from flettner.tools.cli.dispatch import parser
from flettner.tools.cli.exits import EXITS
from tests.integration.docs.markdown import table

ROOT = Path(__file__).parents[3]
LEAD = "flettner suggests changes to vLLM's flags, rolls them out blue-green, and rolls bad ones back."
SEEN = (
    "Output to a terminal has colours and fits its width. Output to a pipe or a file has no colours, "
    "one line for each row and for each sentence below the rows, and `--json` for scripts. `--watch` and "
    "`flettner top` draw a screen that ends with `q` or Ctrl-C; in a pipe `--watch` writes a line, or with "
    "`--json` a document, for each change."
)
ENVIRONMENT = {
    "FLETTNER_URL": "address of the daemon; --url overrides it",
    "FLETTNER_TOKEN": "API token; --token-file overrides it",
    "FLETTNER_TOKEN_FILE": "file with an API token; FLETTNER_TOKEN overrides it",
    "NO_COLOR": "not empty: no colours; by default only terminals other than TERM=dumb get colours",
    "COLUMNS": "characters in a line; overrides the terminal width",
}
FILES = {
    "/etc/flettner/flettner.toml": "the config of the service",
    "/run/flettner/api.sock": "socket of the daemon; tried first",
    "/var/lib/flettner": "the journal and the state of the daemon",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    name: str  # `flettner audit show`
    about: str
    usage: str
    options: tuple[tuple[str, str], ...]  # spelling and help text


def commands() -> list[Command]:
    return list(_below(parser()))


def _below(command: argparse.ArgumentParser) -> Iterator[Command]:
    groups = [action for action in command._actions if isinstance(action, argparse._SubParsersAction)]
    for group in groups:
        for inner in group.choices.values():
            yield from _below(inner)
    if not groups:
        yield _command(command)


def _command(command: argparse.ArgumentParser) -> Command:
    actions = [action for action in command._actions if not isinstance(action, argparse._HelpAction)]
    needed = [_written(action) for action in actions if action.option_strings and action.required]
    places = [_place(action) for action in actions if not action.option_strings]
    return Command(
        name=command.prog,
        about=command.description or "",
        usage=command.usage or " ".join([command.prog, "[options]", *needed, *places]),
        options=tuple((_written(action), _help(action, command.prog)) for action in actions),
    )


def _written(action: argparse.Action) -> str:
    if not action.option_strings:
        return _value(action)
    value = "" if action.nargs == 0 else f" {_value(action)}"
    return f"{', '.join(action.option_strings)}{value}"


def _value(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    return "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()


def _place(action: argparse.Action) -> str:
    shown = {"?": "[{}]", "+": "{} ...", "*": "[{} ...]"}.get(str(action.nargs), "{}")
    return shown.format(_value(action))


def _help(action: argparse.Action, prog: str) -> str:
    words = (action.help or "") % {**vars(action), "prog": prog}
    return f"{words}; required" if action.required and action.option_strings else words


def markdown() -> str:
    parts = [
        "# The command line",
        f"{LEAD} Every command has `--help`; `man flettner` holds this page.",
        SEEN,
        "## Exit status",
        table(
            ("status", "of every command"), ((f"`{code}`", about) for code, about in EXITS.items())
        ).rstrip(),
        "## Environment",
        table(("variable", "is"), ((f"`{name}`", about) for name, about in ENVIRONMENT.items())).rstrip(),
        "## Completion",
        f"```text\n{INSTALLATION.rstrip()}\n```",
    ]
    for command in commands():
        parts += [f"## {command.name}", command.about, f"```text\n{command.usage}\n```"]
        if command.options:
            rows = ((f"`{name}`", about) for name, about in command.options)
            parts.append(table(("argument", "is"), rows).rstrip())
    return "\n\n".join(parts) + "\n"


def man() -> str:
    """man(7)."""
    lines = ['.TH FLETTNER 1 "" "flettner" "User Commands"', ".SH NAME"]
    lines += [
        r"flettner \- an autopilot for vLLM servers",
        ".SH SYNOPSIS",
        ".B flettner",
        "COMMAND [options]",
    ]
    lines += [".SH DESCRIPTION", _roff(LEAD), ".PP", _roff(SEEN.replace("`", "")), ".SH COMMANDS"]
    for command in commands():
        lines += [
            f".SS {_roff(command.name.removeprefix('flettner '))}",
            _roff(command.about),
            ".PP",
            f".B {_roff(command.usage)}",
        ]
        lines += _terms(dict(command.options))
    lines += [".SH EXIT STATUS", *_terms({str(code): about for code, about in EXITS.items()})]
    lines += [".SH ENVIRONMENT", *_terms(ENVIRONMENT), ".SH FILES", *_terms(FILES)]
    lines += [".SH SEE ALSO", r"docs/cli.md, docs/runbook.md; \fBsystemctl\fR(1), \fBjournalctl\fR(1)"]
    return "\n".join(lines) + "\n"


def _terms(words: Mapping[str, str]) -> Iterator[str]:
    for name, about in words.items():
        yield from (".TP", f".B {_roff(name)}", _roff(about))


def _roff(text: str) -> str:
    """Escape one line of plain text so that it contains no roff request."""
    plain = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return f"\\&{plain}" if plain.startswith((".", "'")) else plain


PAGES: Mapping[str, Callable[[], str]] = {"docs/cli.md": markdown, "packaging/man/flettner.1": man}


def write() -> None:
    for name, made in PAGES.items():
        (ROOT / name).write_text(made(), encoding="utf-8")


if __name__ == "__main__":
    write()
