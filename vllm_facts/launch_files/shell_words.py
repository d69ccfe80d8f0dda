"""The simple commands of a shell text, with the place of each word.

`a && b; c` are three commands. Redirections, comments and here-documents are skipped. Expansions stay as
they are written, and mark their word as live.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.launch_files.launch import Word, line_of


@dataclass(frozen=True, slots=True, kw_only=True)
class HereDocument:
    """The lines behind `<<`. `expands`: the shell replaces variables in them, as their mark is not quoted."""

    commands: tuple[tuple[Word, ...], ...]  # of the line that has the `<<`
    targets: tuple[str, ...]  # the files behind `>` in that line
    start: int
    end: int
    expands: bool


_BLANK = " \t\r"
_ENDS = ";|&()"
_HERE = re.compile(r"<<-?[ \t]*(['\"]?)(\w+)\1")
_PLACEHOLDER = re.compile(r"<[A-Za-z][\w.|/-]{0,60}>(?=[\s/]|$)")  # of an example, for its reader to fill in
_REDIRECTION = re.compile(rf"(?!{_PLACEHOLDER.pattern})(\d{{0,3}}|&)(>>|>\||>&|<&|<>|<<<|>|<)[ \t]*")
_EXPANSIONS = ("$(", "${")
_CLOSING = {"(": ")", "{": "}", '"': '"'}
_ARRAY = re.compile(r"[A-Za-z_]\w{0,200}\+?=\(")


def entry_place(text: str, words: Sequence[Word], at: int, line: int) -> tuple[int, int]:
    """The place to remove for the word at `at`: its line from `line` on if the line has no other word."""
    if len(words) == 1:
        stop = text.find("\n", words[0].end)
        return line, len(text) if stop < 0 else stop + 1
    if at:
        return words[at - 1].end, words[at].end
    return words[0].start, words[1].start


def split_commands(
    text: str, start: int = 0, end: int | None = None, *, lines: bool = True
) -> list[tuple[Word, ...]]:
    """The commands between `start` and `end`. `lines`: a line's end is a command's end. Raises FlagError."""
    return _Lexer(text, start, len(text) if end is None else end, lines=lines).commands()


def find_here_documents(text: str, start: int = 0, end: int | None = None) -> list[HereDocument]:
    """Raises FlagError."""
    lexer = _Lexer(text, start, len(text) if end is None else end, lines=True)
    lexer.commands()
    return lexer.documents


class _Lexer:
    def __init__(self, text: str, start: int, end: int, *, lines: bool) -> None:
        self._text, self._at, self._end, self._lines = text, start, end, lines
        self._here: list[re.Match[str]] = []
        self._targets: list[str] = []
        self.documents: list[HereDocument] = []

    def commands(self) -> list[tuple[Word, ...]]:
        commands: list[tuple[Word, ...]] = []
        words: list[Word] = []
        line = 0  # the first command of the line
        while self._at < self._end:
            self._skip_blanks()
            if self._at >= self._end:
                break
            char = self._text[self._at]
            if here := _HERE.match(self._text, self._at, self._end):
                self._here.append(here)
                self._at = here.end()
            elif redirection := _REDIRECTION.match(self._text, self._at, self._end):
                self._at = redirection.end()
                if self._at < self._end and self._text[self._at] not in "\n;|":
                    target = self._word()
                    self._targets += [target.text] if ">" in redirection[2] else []
            elif char == "#":
                self._at = self._line_end()
            elif char == "\n" or char in _ENDS:
                self._at += 1
                if char == "\n":
                    self._skip_here_documents((*commands[line:], tuple(words)))
                    line = len(commands) + 1
                if char != "\n" or self._lines:
                    commands.append(tuple(words))
                    words = []
            else:
                words.append(self._word())
        return [command for command in [*commands, tuple(words)] if command]

    def _skip_blanks(self) -> None:
        while self._at < self._end:
            if self._text[self._at] in _BLANK:
                self._at += 1
            elif continued := re.compile(r"\\[ \t]*\r?\n").match(self._text, self._at, self._end):
                self._at = continued.end()
            else:
                return

    def _line_end(self) -> int:
        place = self._text.find("\n", self._at, self._end)
        return self._end if place < 0 else place

    def _skip_here_documents(self, commands: tuple[tuple[Word, ...], ...]) -> None:
        for here in self._here:
            closing = re.compile(rf"^[ \t]*{here[2]}[ \t]*$", re.MULTILINE).search(
                self._text, self._at, self._end
            )
            document = HereDocument(
                commands=commands,
                targets=tuple(self._targets),
                start=self._at,
                end=closing.start() if closing else self._end,
                expands=not here[1],
            )
            self.documents.append(document)
            self._at = closing.end() if closing else self._end
        self._here, self._targets = [], []

    def _word(self) -> Word:
        start = self._at
        if array := _ARRAY.match(self._text, self._at, self._end):
            self._at = array.end()
            return self._array(start, array[0][:-1])
        parts: list[str] = []
        live = False
        while self._at < self._end:
            char = self._text[self._at]
            if placeholder := _PLACEHOLDER.match(self._text, self._at, self._end):
                parts.append(placeholder[0])
                self._at = placeholder.end()
                continue
            if char in _BLANK or char == "\n" or char in _ENDS or (char in "<>" and parts):
                break
            part, expands = self._part(char)
            parts.append(part)
            live = live or expands
        return Word(text="".join(parts), start=start, end=self._at, form="shell", live=live)

    def _part(self, char: str) -> tuple[str, bool]:
        """A character, or the text between quotes; and whether the shell expands it."""
        if char == "'":
            closing = self._find_closing("'")
            inner, self._at = self._text[self._at + 1 : closing], closing + 1
            return inner, False
        if char == '"':
            return self._double_quoted()
        if char == "\\" and self._at + 1 < self._end:  # the last character of a text stands for itself
            self._at += 2
            escaped = self._text[self._at - 1 : self._at]
            return ("" if escaped == "\n" else escaped), False
        if char == "`" or self._text.startswith(_EXPANSIONS, self._at):
            return self._expansion(), True
        self._at += 1
        return char, char == "$"

    def _double_quoted(self) -> tuple[str, bool]:
        self._at += 1
        parts: list[str] = []
        live = False
        while self._at < self._end and (char := self._text[self._at]) != '"':
            if char == "\\" and self._text[self._at + 1 : self._at + 2] in ('"', "\\", "$", "`", "\n"):
                following = self._text[self._at + 1]
                parts.append("" if following == "\n" else following)
                self._at += 2
            elif char == "`" or self._text.startswith(_EXPANSIONS, self._at):
                parts.append(self._expansion(quoted=True))
                live = True
            else:
                parts.append(char)
                live = live or char == "$"
                self._at += 1
        if self._at >= self._end:
            raise self._unclosed('"')
        self._at += 1
        return "".join(parts), live

    def _expansion(self, *, quoted: bool = False) -> str:
        """The text of `$(…)`, `${…}` or a command between backticks. `quoted`: between double quotes."""
        start = self._at
        if self._text[start] == "`":
            self._at = self._find_closing("`") + 1
            return self._text[start : self._at]
        closing = ['"'] if quoted else []  # what closes each quote and bracket that is open
        outside = len(closing)
        while self._at < self._end:
            if self._pass_over(closing):
                continue
            char = self._text[self._at]
            expands = self._text.startswith(_EXPANSIONS, self._at)
            if expands:
                closing.append(_CLOSING[self._text[self._at + 1]])
            elif char == closing[-1]:
                closing.pop()
            elif char == '"' or (char == "(" and closing[-1] == ")"):
                closing.append(_CLOSING[char])
            self._at += 2 if expands else 1
            if len(closing) == outside:
                return self._text[start : self._at]
        self._at = start
        raise self._unclosed(self._text[start : start + 2])

    def _pass_over(self, closing: Sequence[str]) -> bool:
        """Whether something begins here whose brackets and double quotes are characters."""
        char, inner = self._text[self._at], closing[-1] if closing else ""
        if char == "\\":
            self._at += 2
        elif char == "`" or (char == "'" and inner != '"'):
            self._at = self._find_closing(char) + 1
        elif char == "#" and inner == ")" and self._text[self._at - 1] in "( \t\n":
            self._at = self._line_end()
        else:
            return False
        return True

    def _array(self, start: int, name: str) -> Word:
        items: list[Word] = []
        while self._at < self._end:
            self._skip_blanks()
            char = self._text[self._at : self._at + 1]
            if char == ")":
                self._at += 1
                return Word(text=name, start=start, end=self._at, form="shell", items=tuple(items), live=True)
            if char == "\n":
                self._at += 1
            elif char == "#":
                self._at = self._line_end()
            elif char:
                before = self._at
                items.append(self._word())
                if self._at == before:
                    break
        raise self._unclosed(f"{name}(")

    def _find_closing(self, mark: str) -> int:
        place = self._text.find(mark, self._at + 1, self._end)
        if place < 0:
            raise self._unclosed(mark)
        return place

    def _unclosed(self, mark: str) -> FlagError:
        return FlagError(f"line {line_of(self._text, self._at)}: {mark} is not closed")
