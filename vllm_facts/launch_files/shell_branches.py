"""The variables that every branch of a shell's `case` or `if` sets to one value."""

from collections.abc import Iterator, Mapping, Sequence

from flettner.vllm_facts.launch_files.launch import Word
from flettner.vllm_facts.launch_files.shell_variables import SETS, is_assignment

OPENS, CLOSES = frozenset({"if", "for", "while", "until", "case", "select"}), {"fi", "done", "esac"}
_RESERVED = frozenset({"if", "then", "else", "elif", "do", "while", "until", "{", "}", "!", "time"})
_TESTS = frozenset({"[", "[[", "test", "!", "grep", "command", "which"})
_BRANCHES = frozenset({"elif", "else"})

_Command = Sequence[Word]


def without_reserved(command: _Command) -> tuple[Word, ...]:
    at = 0
    while at < len(command) and command[at].text in _RESERVED:
        at += 1
    return tuple(command[at:])


def is_conditional(text: str, before: _Command, command: _Command) -> bool:
    """Whether a command runs by the answer of the one before it: `[ -n "$X" ] && A+=(…)`."""
    if not before or before[-1].end > command[0].start:
        return False
    between = text[before[-1].end : command[0].start]
    tests = any(word.text in _TESTS for word in (before[0], *without_reserved(before)[:1]))
    return "||" in between or ("&&" in between and tests)


def find_agreements(text: str, commands: Sequence[_Command]) -> Mapping[int, list[tuple[Word, ...]]]:
    """What the branches of outer blocks agree on, as commands, by the place of the word that ends the block.

    Left out are names that are set before the block, too, and values with variables in them.
    """
    agreed: dict[int, list[tuple[Word, ...]]] = {}
    depth, complete, earlier = 0, False, set[str]()
    branches: list[dict[str, tuple[Word, ...]]] = []
    for at, command in enumerate(commands):
        first, before = command[0].text, commands[at - 1] if at else ()
        between = text[before[-1].end : command[0].start] if before else ""
        depth = max(0, depth + (first in OPENS) - (first in CLOSES))
        if first in OPENS and depth == 1:
            branches, complete = [{}], False
        elif depth == 0 and first in CLOSES and branches:
            if complete:
                agreed[at] = [given for name, given in _common(branches) if name not in earlier]
            earlier.update(name for branch in branches for name in branch)
            branches = []
        elif depth == 1 and (first in _BRANCHES or ";;" in between):
            branches.append({})
        complete |= depth == 1 and (first == "else" or [word.text for word in command] == ["*"])
        sets = dict(_assignments(command))
        if depth == 1 and not is_conditional(text, before, command):
            branches[-1].update(sets)
        else:
            earlier.update(sets)
    return agreed


def _assignments(command: _Command) -> Iterator[tuple[str, tuple[Word, ...]]]:
    """The names that a command only sets, each as a command of its own."""
    words = without_reserved(command)
    head = words[:1] if words and words[0].text in SETS else ()
    rest = words[len(head) :]
    if all(is_assignment(word) or (head and word.text.startswith("-")) for word in rest):
        for word in filter(is_assignment, rest):
            yield word.text.partition("=")[0].removesuffix("+"), (*head, word)


def _common(
    branches: Sequence[Mapping[str, tuple[Word, ...]]],
) -> Iterator[tuple[str, tuple[Word, ...]]]:
    for name, given in branches[-1].items():
        all_given = [branch[name] for branch in branches if name in branch]
        texts = {words[-1].text for words in all_given}
        if (
            len(all_given) == len(branches)
            and len(texts) == 1
            and not given[-1].live
            and "+=" not in texts.pop()
        ):
            yield name, given
