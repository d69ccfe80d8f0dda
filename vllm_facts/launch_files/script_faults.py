"""Faults of a script by which its server does not run, or not for long, whatever its flags are."""

import re
from collections.abc import Sequence

from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.launch_files.launch import Launch, line_of
from flettner.vllm_facts.launch_files.shell_words import split_commands
from flettner.vllm_facts.serve_config import EntryFault

_STRICT = re.compile(r"-[a-z]{0,9}e[a-z]{0,9}")
_SETS = frozenset({"export", "declare", "typeset", "readonly", "local"})
_JOB = re.compile(r"^#SBATCH\b", re.MULTILINE)
_DUPLICATES = re.compile(r"\d?>&\d|&>>?")  # of a redirection: no operator
_BACKGROUND = re.compile(r"[^\n;|&]{0,2000}&(?!&)")
_SAYS = frozenset({"echo", "printf", "disown", "exit", "date", "true"})


def explain_script_fault(text: str, launches: Sequence[Launch]) -> EntryFault | None:
    """Why the last server of a script does not run; None if nothing tells against it. Raises FlagError."""
    placed = [word.end for launch in launches for word in launch.words if word.end]
    if not placed:
        return None
    why = _explain_lost_assignment(text, launches[0].start)
    if not why and _JOB.search(text):
        why = (
            _explain_end_of_job(text, max(placed))
            if text.startswith("#!")
            else "line 1 does not begin with #!, so that sbatch takes the file for no script"
        )
    return EntryFault(why, of="script") if why else None


def _explain_lost_assignment(text: str, end: int) -> str:
    """`NAME = VALUE` under `set -e`, before the server."""
    strict = False
    for command in split_commands(text):
        if command[0].start >= end:
            break
        words = [word.text for word in command]
        strict = strict or (words[0] == "set" and any(map(_STRICT.fullmatch, words[1:])))
        rest = words[1:] if words[0] in _SETS else words
        if strict and rest[1:2] == ["="] and rest[0].isidentifier():
            line = line_of(text, command[0].start)
            return (
                f"line {line}: with blanks around its = the value of {rest[0]} is not set, and `set -e` ends "
                "the script there"
            )
    return ""


def _explain_end_of_job(text: str, end: int) -> str:
    """A server in the background of a job for which the script does not wait."""
    rest = _DUPLICATES.sub(" ", text[end:].replace("\\\n", " "))
    background = _BACKGROUND.match(rest)
    if background is None:
        return ""
    try:
        later = split_commands(rest, background.end())
    except FlagError:  # the server's command is a part of another one
        return ""
    if any(command[0].text not in _SAYS for command in later):
        return ""
    return (
        "the script ends while the server runs in the background, and Slurm ends a job with its script (take "
        "the & away, or let the script `wait`)"
    )
