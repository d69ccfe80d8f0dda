"""Edits of the words of a launch in the text of its file."""

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise

from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.launch_files.launch import Word
from flettner.vllm_facts.launch_files.python_edits import edit_arguments
from flettner.vllm_facts.shell_command.shell import quote_word

_PLAIN = re.compile(r"--?[A-Za-z][\w./=-]*|[A-Za-z_][\w./-]*")
_SPECIAL = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


@dataclass(frozen=True, slots=True, order=True)
class Edit:
    """Replaces text[start:end]."""

    start: int
    end: int
    text: str


def edit_words(text: str, words: Sequence[Word], wanted: Sequence[str]) -> list[Edit]:
    """The edits that turn `words` into `wanted`. Raises FlagError if the file's form does not allow them."""
    if any(word.form == "key" for word in words):
        return _edit_entries(text, words, wanted)
    if any(word.form == "keyword" for word in words):
        return [Edit(*place) for place in edit_arguments(text, words, wanted, _group)]
    edits: list[Edit] = []
    same = SequenceMatcher(a=[word.text for word in words], b=wanted, autojunk=False)
    for kind, low, high, first, last in same.get_opcodes():
        if kind == "equal":
            continue
        old, new = words[low:high], wanted[first:last]
        both = min(len(old), len(new))
        edits += [_replace(word, new[at], text) for at, word in enumerate(old[:both])]
        if old[both:]:
            edits += _remove(text, words, low + both, high)
        if new[both:]:
            edits.append(_insert(text, words, low + both, new[both:]))
    return edits


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """Raises FlagError if two edits overlap."""
    at, parts = 0, []
    for edit in sorted(set(edits)):
        if edit.start < at:
            raise FlagError("two servers share these words and need different words")
        parts += [text[at : edit.start], edit.text]
        at = edit.end
    return "".join([*parts, text[at:]])


def _replace(word: Word, new: str, text: str) -> Edit:
    if word.form == "none":
        raise FlagError(f"{word.text} is not written in the file")
    if word.form == "computed":
        raise FlagError(f"{word.text} is computed")
    if "$" in text[word.start : word.end]:
        raise FlagError(f"{text[word.start : word.end]} comes from a variable")
    return Edit(word.start, word.end, _quote(new, word, text))


def _edit_entries(text: str, words: Sequence[Word], wanted: Sequence[str]) -> list[Edit]:
    """The edits of a mapping, in which the order of the flags says nothing."""
    old, new = _group([word.text for word in words]), _group(wanted)
    at, edits, gone = 0, list[Edit](), list[Word]()
    for group in old:
        own, at = words[at : at + len(group)], at + len(group)
        if group in new:
            new.remove(group)
            continue
        same = next((other for other in new if other[0] == group[0] and len(other) == len(group)), None)
        if same is not None:
            new.remove(same)
            pairs = zip(own, same, strict=True)
            edits += [_replace(word, value, text) for word, value in pairs if word.text != value]
        elif own[0].form == "key":
            gone += own
        else:
            raise FlagError(f"{group[0]} cannot be removed from this file")
    added = [word for group in new for word in group]
    edits += _remove_entries(text, gone)
    return [*edits, _insert_entries(text, words, added)] if added else edits


def _group(words: Sequence[str]) -> list[list[str]]:
    """The flags, each with its values; the words before the first flag are one group each."""
    groups: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not groups or not groups[-1][0].startswith("--"):
            groups.append([word])
        else:
            groups[-1].append(word)
    return groups


def _spell_key(flag: str, like: str) -> str:
    """The flag as a key, with underscores where the other key has some."""
    key = flag.removeprefix("--")
    return key.replace("-", "_") if "_" in like else key


def _remove_entries(text: str, words: Sequence[Word]) -> list[Edit]:
    """The lines of keys with their values, where each line holds nothing else."""
    edits = []
    for at, word in enumerate(words):
        if word.form != "key":
            continue
        value = words[at + 1] if at + 1 < len(words) else word
        begin, stop = text.rfind("\n", 0, word.start) + 1, text.find("\n", value.end)
        stop = len(text) if stop < 0 else stop
        rest = text[value.end : stop].strip()
        beside = text[begin : word.start].strip() or text[word.end : value.start].strip() != ":"
        if value.form != "value" or beside or (rest and not rest.startswith("#")):
            raise FlagError(f"{word.text} shares its line with something else")
        edits.append(Edit(begin, min(stop + 1, len(text)), ""))
    return edits


def _insert_entries(text: str, placed: Sequence[Word], new: Sequence[str]) -> Edit:
    """Keys with values in lines of their own before the first such line: its removal does not touch them."""
    lines = (
        (text.rfind("\n", 0, key.start) + 1, key, value)
        for key, value in pairwise(placed)
        if (key.form, value.form) == ("key", "value")
    )
    clean = next((line for line in lines if not text[line[0] : line[1].start].strip()), None)
    if clean is None or len(new) % 2 or not all(flag.startswith("--") for flag in new[::2]):
        raise FlagError(f"the file has no place to which {' '.join(new)} could be added")
    begin, key, value = clean
    indent, like = (
        text[begin : key.start],
        "".join(text[word.start : word.end] for word in placed if word.form == "key"),
    )
    added = [
        f"{indent}{_spell_key(flag, like)}: {_quote(wanted, value, text)}\n"
        for flag, wanted in zip(new[::2], new[1::2], strict=True)
    ]
    return Edit(begin, begin, "".join(added))


def _quote(new: str, like: Word, text: str) -> str:
    """`new` with the quotes of `like`, where it needs any."""
    if like.form == "shell":
        return quote_word(new, live=like.live and "$" in new)
    mark = text[like.start : like.start + 1]
    if mark == '"':
        return json.dumps(new, ensure_ascii=False)
    if mark == "'":
        return "'" + new.replace("'", "''") + "'"
    number = re.fullmatch(r"-?[0-9.]+", new) and re.fullmatch(r"-?[0-9.]+", like.text)
    if number or like.form == "value" or (_PLAIN.fullmatch(new) and new.lower() not in _SPECIAL):
        return new
    return json.dumps(new, ensure_ascii=False) if '"' not in new else "'" + new.replace("'", "''") + "'"


def _remove(text: str, words: Sequence[Word], low: int, high: int) -> list[Edit]:
    gone = words[low:high]
    forms = {word.form for word in gone}
    if forms <= {"shell"}:
        places = range(low, high)
        cuts = [at for at in places if at == low or not _is_beside(text, words[at - 1], words[at])]
        return [_remove_shell(text, words, start, stop) for start, stop in pairwise([*cuts, high])]
    if forms <= {"block"}:
        return [_remove_line(text, word) for word in gone]
    if forms <= {"flow", "computed"}:
        return [_remove_items(text, run) for run in _runs(text, gone)]
    raise FlagError(f"{gone[0].text} cannot be removed from this file")


def _remove_shell(text: str, words: Sequence[Word], low: int, high: int) -> Edit:
    """With the blanks before, so that a line of its own disappears."""
    start, end = words[low].start, words[high - 1].end
    before = words[low - 1] if low else None
    if before is not None and before.form == "shell" and _is_blank(text[before.end : start]):
        return Edit(before.end, end, "")
    after = words[high] if high < len(words) else None
    if after is not None and after.form == "shell" and _is_blank(text[end : after.start]):
        return Edit(start, after.start, "")
    return Edit(start, end, "")


def _is_beside(text: str, word: Word, following: Word) -> bool:
    """Whether nothing but blanks stands between two words, as within one command or array."""
    return word.end <= following.start and _is_blank(text[word.end : following.start])


def _is_blank(text: str) -> bool:
    return not text.replace("\\\n", "").replace("\\\r\n", "").strip() and bool(text)


def _remove_line(text: str, word: Word) -> Edit:
    begin = text.rfind("\n", 0, word.start) + 1
    stop = text.find("\n", word.end)
    stop = len(text) if stop < 0 else stop
    rest = text[word.end : stop].strip()
    if text[begin : word.start].strip() != "-" or (rest and not rest.startswith("#")):
        raise FlagError(f"{word.text} shares its line with something else")
    return Edit(begin, min(stop + 1, len(text)), "")


def _runs(text: str, words: Sequence[Word]) -> list[list[Word]]:
    """The words in groups that stand side by side in one list."""
    runs: list[list[Word]] = []
    for word in words:
        beside = bool(runs) and not text[runs[-1][-1].end : word.start].strip(" \t\r\n,")
        if beside and runs[-1][-1].end <= word.start:
            runs[-1].append(word)
        else:
            runs.append([word])
    return runs


def _remove_items(text: str, run: Sequence[Word]) -> Edit:
    start, end = run[0].start, run[-1].end
    after = re.compile(r"\s*,[ \t]*").match(text, end)
    if after:
        return Edit(start, after.end(), "")
    before = text[:start].rstrip(" \t\r\n\\")  # with the end of a continued line of a Dockerfile
    return Edit(len(before) - before.endswith(","), end, "")


def _insert(text: str, words: Sequence[Word], at: int, new: Sequence[str]) -> Edit:
    placed = [word for word in words[:at] if word.form != "none"]
    if not placed and at < len(words) and words[at].form in ("flow", "block", "shell"):
        return _insert_before(text, words[at], new)
    if not placed or placed[-1].form == "value" or words[at - 1].form == "none":
        raise FlagError(f"the file has no list to which {' '.join(new)} could be added")
    last = placed[-1]
    if last.form == "shell":
        return Edit(last.end, last.end, _shell_lines(text, placed, new))
    alike = ("flow", "computed") if last.form == "computed" else (last.form,)
    siblings = [word for word in placed if word.form in alike]
    quoted = [_quote(word, _quoting_sibling(text, siblings), text) for word in new]
    if last.form in ("flow", "computed"):
        return Edit(last.end, last.end, "".join(f", {word}" for word in quoted))
    begin = text.rfind("\n", 0, last.start) + 1
    stop = text.find("\n", last.end)
    stop = len(text) if stop < 0 else stop
    indent = text[begin : text.index("-", begin)]
    return Edit(stop, stop, "".join(f"\n{indent}- {word}" for word in quoted))


def _insert_before(text: str, word: Word, new: Sequence[str]) -> Edit:
    """The new words before the first one that the file has."""
    if word.form == "shell":
        return Edit(word.start, word.start, "".join(f"{shlex.quote(each)} " for each in new))
    quoted = [_quote(each, word, text) for each in new]
    if word.form == "flow":
        return Edit(word.start, word.start, "".join(f"{each}, " for each in quoted))
    begin = text.rfind("\n", 0, word.start) + 1
    if text[begin : word.start].strip() != "-":
        raise FlagError(f"{word.text} shares its line with something else")
    indent = text[begin : text.index("-", begin)]
    return Edit(begin, begin, "".join(f"{indent}- {each}\n" for each in quoted))


def _quoting_sibling(text: str, siblings: Sequence[Word]) -> Word:
    return next((word for word in siblings if text[word.start] in "\"'"), siblings[-1])


def _shell_lines(text: str, placed: Sequence[Word], new: Sequence[str]) -> str:
    """The new words, each flag on a line of its own where the words before are so."""
    between = " "
    for word, following in reversed(list(pairwise(placed))):
        gap = text[word.end : following.start]
        if not _is_blank(gap):
            break
        if "\n" in gap:
            between = gap
            break
    return "".join((between if word.startswith("-") else " ") + shlex.quote(word) for word in new)
