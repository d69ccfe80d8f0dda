"""Edits of the arguments of a call, or of the entries of a dictionary, in Python source."""

import json
import re
from collections.abc import Callable, Sequence

from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.launch_files.launch import Word

_NUMBER = re.compile(r"-?\d{1,18}(\.\d{1,18})?")
_TRUTH = re.compile(r"(True|False)$")

Place = tuple[int, int, str]
"""text[start:end], and what replaces it."""


def edit_arguments(
    text: str, words: Sequence[Word], wanted: Sequence[str], group: Callable[[Sequence[str]], list[list[str]]]
) -> list[Place]:
    """The edits by which a call has the wanted flags, in any order. Raises FlagError."""
    new, at = group(wanted), 0
    edits: list[Place] = []
    kept: list[Word] = []
    for old in group([word.text for word in words]):
        own, at = words[at : at + len(old)], at + len(old)
        same = next((each for each in new if each == old), None)
        same = same or next((each for each in new if _name(each) == _name(old)), None)
        if same is None:
            edits.append(_remove(text, own))
            continue
        new.remove(same)
        kept += own[:1] if own[0].form == "keyword" else []
        edits += _replace(text, own, same) if same != old else []
    if new:
        edits.append(_append(text, kept, new))
    return edits


def _name(words: Sequence[str]) -> str:
    return words[0].replace("--no-", "--", 1) if words[0].startswith("--") else ""


def _replace(text: str, own: Sequence[Word], new: Sequence[str]) -> list[Place]:
    key = own[0]
    if key.form != "keyword" or len(own) != len(new) or len(own) > 2:  # noqa: PLR2004 - a flag and its value
        raise FlagError(f"{key.text} is not a literal argument")
    if len(own) == 1:
        written = text[key.start : key.end]
        changed = _TRUTH.sub(str(not new[0].startswith("--no-")), written)
        return [(key.start, key.end, changed)]
    if own[1].form != "literal":
        raise FlagError(f"the value of {key.text} is computed")
    return [(own[1].start, own[1].end, _spell(new[1]))]


def _spell(value: str) -> str:
    if _NUMBER.fullmatch(value):
        return value
    if value[:1] in "{[":
        try:
            return repr(json.loads(value))
        except ValueError:
            pass
    return json.dumps(value, ensure_ascii=False)


def _remove(text: str, own: Sequence[Word]) -> Place:
    key = own[0]
    if key.form != "keyword":
        raise FlagError(f"{key.text} cannot be removed from this file")
    if after := re.compile(r"\s*,(?:[ \t]*\n)?[ \t]*").match(text, key.end):
        begin = text.rfind("\n", 0, key.start) + 1
        whole = "\n" in after[0] and not text[begin : key.start].strip()
        return (begin, text.index("\n", key.end) + 1, "") if whole else (key.start, after.end(), "")
    before = text[: key.start].rstrip()
    return len(before) - before.endswith(","), key.end, ""


def _append(text: str, kept: Sequence[Word], new: Sequence[Sequence[str]]) -> Place:
    last = kept[-1] if kept else None
    if last is None or any(not words[0].startswith("--") or len(words) > 2 for words in new):  # noqa: PLR2004
        raise FlagError("the file has no place for more arguments")
    begin = text.rfind("\n", 0, last.start) + 1
    indent = text[begin : last.start]
    between = ", " if indent.strip() else f",\n{indent}"
    quoted = text[last.start] in "\"'"
    return last.end, last.end, "".join(between + _entry(words, quoted=quoted) for words in new)


def _entry(words: Sequence[str], *, quoted: bool) -> str:
    off = words[0].startswith("--no-") and len(words) == 1
    name = words[0].removeprefix("--no-" if off else "--").replace("-", "_")
    value = _spell(words[1]) if len(words) > 1 else str(not off)
    return f'"{name}": {value}' if quoted else f"{name}={value}"
