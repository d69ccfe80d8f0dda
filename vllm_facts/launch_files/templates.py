"""Templates of Helm and Jinja, read without their values: what stands in them as it is, in its own place."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flettner.vllm_facts.launch_files.launch import Launch, Variable, Word, line_of

_ACTION = re.compile(r"\{\{(?:[^{}]|\{[^{}]{0,200}\}){0,2000}\}\}|\{%[^%]{0,2000}%\}|\{#[^#]{0,2000}#\}")
_OPENS = re.compile(r"\{[{%][-+]?[ \t\n]*(?:if|with|range|for|define|block|macro)\b")
_CLOSES = re.compile(r"\{[{%][-+]?[ \t\n]*end\w*\b")
_BRANCHES = re.compile(r"\{[{%][-+]?[ \t\n]*(?:else|elif)\b")
_SPEAKS = re.compile(r"\{\{[-+]?[ \t\n]*(?:/\*|include\b|template\b|toYaml\b|tpl\b|\$\w+[ \t]*:?=)")
_HIDDEN = re.compile(r"\$_{3,}")
_HIDDEN_TAG = re.compile(r"[:@/]?\$_{3,400}")


@dataclass(frozen=True, slots=True)
class Masked:
    """The text with a variable of equal length for each value, and blanks for control and whole blocks.

    `branches`: the places whose text is there under a condition.
    """

    text: str
    branches: tuple[tuple[int, int], ...]


def is_template(text: str) -> bool:
    return "{{" in text or "{%" in text


def mask_template(text: str) -> Masked:
    parts: list[str] = []
    open_at: list[int] = []
    branches: list[tuple[int, int]] = []
    at = 0
    for action in _ACTION.finditer(text):
        parts.append(text[at : action.start()])
        at = action.end()
        written = action[0]
        if _OPENS.match(written):
            open_at.append(at)
        elif (_CLOSES.match(written) or _BRANCHES.match(written)) and open_at:
            branches.append((open_at.pop(), action.start()))
            open_at += [at] if _BRANCHES.match(written) else []
        alone = not text[text.rfind("\n", 0, action.start()) + 1 : action.start()].strip()
        speaks = written.startswith("{{") and not (
            _OPENS.match(written) or _CLOSES.match(written) or _BRANCHES.match(written)
        )
        whole = alone and (not text[at : _line_end(text, at)].strip() or _SPEAKS.match(written) is not None)
        hidden = speaks and not whole and "\n" not in written
        parts.append("$" + "_" * (len(written) - 1) if hidden else re.sub(r"[^\n]", " ", written))
    return Masked("".join([*parts, text[at:]]), tuple(branches))


def without_hidden(image: str) -> str:
    """The name of an image without what the template fills in."""
    return _HIDDEN_TAG.sub("", image)


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def restore(text: str, masked: Masked, launch: Launch) -> Launch:
    """The launch with the marks of the template, and without the words that a condition may leave out."""
    words: list[Word] = []
    unread: list[str] = []
    for word in launch.words:
        branch = any(start <= word.start < end and launch.start < start for start, end in masked.branches)
        if word.end and branch:
            unread.append(f"line {line_of(text, word.start)}: whether {word.text[:60]} is added is unknown")
        else:
            words.append(replace(word, text=_unmask(text, masked.text, word.start, word.end, word.text)))
    env = {
        name: variable
        if not _HIDDEN.search(variable.value)
        else Variable(value="{{ }}", start=variable.start, whole=variable.whole)
        for name, variable in launch.env.items()
    }
    remark = "a template is read without its values: `helm template CHART | flettner lint -f -` has them"
    return replace(
        launch,
        name=_HIDDEN.sub("{{ }}", launch.name),
        words=tuple(words),
        env=env,
        unread=(*launch.unread, *unread),
        remarks=(remark, *launch.remarks),
        version="" if _HIDDEN.search(launch.version) else launch.version,
    )


def _unmask(text: str, masked: str, start: int, end: int, value: str) -> str:
    """The value with the marks that its place has; any other mark where it has no place of its own."""
    if not _HIDDEN.search(value):
        return value
    begin = masked.find(value, start, end) if end else -1
    return text[begin : begin + len(value)] if begin >= 0 else _HIDDEN.sub("{{ }}", value)


def restore_all(text: str, masked: Masked, launches: Sequence[Launch]) -> list[Launch]:
    return [restore(text, masked, launch) for launch in launches]
