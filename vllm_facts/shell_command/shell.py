"""A command in shell syntax: its words, its redirections, and quoting."""

import re
import shlex
from collections.abc import Sequence

from flettner.vllm_facts.errors import FlagError

ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=", re.ASCII)
_CONTINUED = re.compile(r"\\[ \t]*\r?\n")
_ASIDE = re.compile(r"\A(?:&|&?\d*>>?.*|\d*<.*)")  # `> log 2>&1 &`
_VARIABLE = re.compile(r"\$[A-Za-z_({]")


def split_command(text: str) -> tuple[list[str], list[str]]:
    """The words of the command, and its redirections. Raises FlagError."""
    try:
        words = shlex.split(_CONTINUED.sub(" ", text))
    except ValueError as error:
        raise FlagError(f"the command cannot be read: {error}") from error
    if words[:1] == ["$"]:  # a guide's prompt
        del words[0]
    for at, word in enumerate(words):
        if _joins_commands(word) and not (word == "|" and words[at + 1 : at + 2] == ["tee"]):
            raise FlagError(
                f"{word!r} joins several commands: give only the command that starts the server, with what "
                "an `export` sets in front of it: `NAME=VALUE vllm serve MODEL …`"
            )
        if word == "|" or _ASIDE.fullmatch(word):
            return words[:at], words[at:]
        if word.endswith("&") and at == len(words) - 1 and ASSIGNMENT.match(word) is None:
            return [*words[:at], word[:-1]], ["&"]
    return words, []


def _joins_commands(word: str) -> bool:
    return word in {"&&", "|", "||", ";"} or (word.endswith(";") and not word.endswith("\\;"))


def quote_word(word: str, *, live: bool = False) -> str:
    """Quote a word for a shell. `live`: leave `$NAME` for the shell to expand."""
    assigned = ASSIGNMENT.match(word)
    name, value = (assigned[0], word[assigned.end() :]) if assigned else ("", word)
    if live and _VARIABLE.search(value) and not value.startswith(("{", "[")):
        return name + '"' + re.sub(r'(["\\`])', r"\\\1", value) + '"'
    if live and value.startswith("~/"):
        return f"{name}~/{shlex.quote(value[2:])}" if value[2:] else name + value
    return name + shlex.quote(value) if value or not name else name


def join_redirections(words: Sequence[str]) -> str:
    """The redirections after a command, as written."""
    return " ".join(word if _ASIDE.fullmatch(word) or word == "|" else shlex.quote(word) for word in words)
