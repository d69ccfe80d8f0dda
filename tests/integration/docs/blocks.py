"""The fenced blocks of the pages, and the simple commands in `sh` blocks."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

REPOSITORY = Path(__file__).parents[3]
PAGES = (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md")))
FENCE = re.compile(r"^( *)```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
BETWEEN = frozenset(["&&", "||", ";", "|", "&", "(", ")", "\n"]) | {";;", "\n\n"}
ASSIGNS = re.compile(r"[A-Z_]+=.*", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """`where`: page and line of the fence."""

    where: str
    kind: str
    text: str

    @property
    def page(self) -> str:
        return self.where.partition(":")[0]


def blocks(kind: str) -> list[Block]:
    return [
        Block(where=_where(page, text, match.start()), kind=kind, text=dedent(match[3]))
        for page in PAGES
        for text in [page.read_text()]
        for match in FENCE.finditer(text)
        if match[2] == kind
    ]


def _where(page: Path, text: str, at: int) -> str:
    return f"{page.relative_to(REPOSITORY)}:{text.count(chr(10), 0, at) + 1}"


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each simple command, also in $(…), without `sudo`, `export`, assignments and `>`.

    ValueError if a quote is not closed.
    """
    for line in re.sub(r"\\\n", " ", text).splitlines():
        words: list[str] = []
        for word in (*_words(line), ";"):
            if word in BETWEEN:
                yield from _stripped(words)
                words = []
            else:
                words.append(word)


def _words(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="();&|")
    lexer.whitespace_split, lexer.commenters = True, "#"
    return list(lexer)


def _stripped(words: list[str]) -> Iterator[list[str]]:
    left = list(words)
    while left and (left[0] in {"sudo", "export"} or ASSIGNS.fullmatch(left[0])):
        left.pop(0)
    if left:
        yield left[: left.index(">")] if ">" in left else left
