"""The variables that a shell script sets, and the words of a command with their values.

A variable is used if it is set once to a literal value or to a literal default: outside of any condition, or
alike in every branch.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from flettner.vllm_facts.flag_table import is_switch
from flettner.vllm_facts.launch_files.launch import Variable, Word, line_of
from flettner.vllm_facts.launch_files.shell_words import entry_place
from flettner.vllm_facts.shell_command.shell import ASSIGNMENT

SETS = frozenset({"export", "readonly", "declare", "typeset", "local"})
_DEFAULT = re.compile(r"\$?\$\{\w+:?-([^{}$]*)\}")
_ALTERNATIVE = re.compile(r"\$?\$\{\w{1,80}:?\+[^{}]{0,400}(?:\{[^{}]{0,200}\}[^{}]{0,200})?\}")
_STARTS_VLLM = re.compile(
    r"\bvllm\W{1,4}serve\b|\bvllm\.entrypoints\b|\bdynamo\.vllm\b|\bvllm-openai\b|(?:^|/)vllm\W{0,4}$"
)
_REFERENCE = re.compile(r"\$\$?(?:\{(\w+)(?::?-[^{}$]*)?\}|(\w+))")  # compose writes $$ for the shell's $
_PLACEHOLDER = re.compile(r"\$(\w+|\{\w+\}|\(\w+\))")
_PRODUCT = re.compile(r"\$\(\(([\w ${}*]{1,120})\)\)")
_WHOLE = re.compile(r"\$\$?(?:\{(\w+)(\[[@*]\])?\}|(\w+|[@*]))")


@dataclass(slots=True)
class Variables:
    """The literal values that a script sets, the arrays, and the names whose value is unknown."""

    values: dict[str, Word] = field(default_factory=dict)
    arrays: dict[str, tuple[Word, ...]] = field(default_factory=dict)
    exported: dict[str, Variable] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    commands: set[str] = field(default_factory=set)  # names of values that start vLLM
    outside: set[str] = field(default_factory=set)  # names that the script has not set again yet
    conditional: dict[str, list[Word]] = field(default_factory=dict)  # what a condition appends to an array

    @property
    def literals(self) -> Mapping[str, str]:
        return {name: word.text for name, word in self.values.items() if name not in self.unknown}

    def assign_all(self, words: Sequence[Word], *, sure: bool, text: str) -> bool:
        """Take over the variables of a command that only sets some; False for any other command."""
        if not words:
            return True
        sets = words[0].text in SETS
        given = [word for word in words[1:] if not word.text.startswith("-")] if sets else list(words)
        if not sets and not all(map(is_assignment, given)):
            return False
        exports, line = words[0].text == "export", text.rfind("\n", 0, words[0].start) + 1
        for at, word in enumerate(given):
            if is_assignment(word):
                name = self._assign(word, sure=sure)
                place = entry_place(text, given, at, line)
            else:
                name, place = word.text, None
            if exports and (value := self.literals.get(name)) is not None:
                self.exported[name] = Variable(value=value, start=word.start, whole=place)
        return True

    def settle(self, words: Sequence[Word], text: str) -> None:
        """Take over what a command sets, whatever was known of it."""
        name = words[-1].text.partition("=")[0]
        self.unknown.discard(name)
        self.values.pop(name, None)
        self.assign_all(words, sure=True, text=text)

    def _assign(self, word: Word, *, sure: bool) -> str:
        name, _, value = word.text.partition("=")
        if name in self.outside:
            if value.startswith((f"${{{name}:-", f"${{{name}-")):
                return name  # its default is not used
            self.outside.remove(name)
            self.values.pop(name)
        appends, name, value = name.endswith("+"), name.rstrip("+"), replace_defaults(value)
        is_array = word.text.endswith("=") and word.live
        if appends and is_array and name not in self.values:
            if sure and name in self.arrays:
                self.arrays[name] = (*self.arrays[name], *word.items)
            else:
                self.conditional.setdefault(name, []).append(word)
            return name
        value, grows = self._grown(name, value, appends=appends)
        if (appends or name in self.values or name in self.arrays or not sure) and not (grows and sure):
            self.unknown.add(name)
        if word.live and "$" in value + "`" * ("`" in value) and not is_array:
            self.unknown.add(name)
        if _STARTS_VLLM.search(" ".join([value, *(item.text for item in word.items)])):
            self.commands.add(name)
        if is_array:
            self.arrays[name] = word.items
        else:
            self.values[name] = replace(word, text=value)
        return name

    def _grown(self, name: str, value: str, *, appends: bool) -> tuple[str, bool]:
        """The value of `A+=" more"` or `A="$A more"` after the known one, and whether it is such a value."""
        if name not in self.literals or name in self.commands:
            return value, False
        before = self.literals[name]
        if appends:
            return before + value, True
        grown = re.sub(rf"^\$(?:\{{{name}\}}|{name}\b)", lambda _: before, value)
        return grown, grown != value


def is_assignment(word: Word) -> bool:
    return ASSIGNMENT.match(word.text.replace("+=", "=", 1)) is not None


def name_of_variable(word: Word) -> str:
    """The variable that the whole word is; "" for any other word."""
    variable = _WHOLE.fullmatch(word.text) if word.live else None
    return (variable[1] or variable[3] or "") if variable else ""


@dataclass(slots=True)
class Expansion:
    """The words of a command with the values of known variables, and its unreadable parts."""

    variables: Variables
    text: str
    words: list[Word] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    used: list[Word] = field(default_factory=list)  # assignments

    def add(self, word: Word) -> None:
        name, literals = name_of_variable(word), self.variables.literals
        if name in self.variables.arrays and name not in self.variables.unknown:
            for item in self.variables.arrays[name]:
                self.add(item)
            for appended in self.variables.conditional.get(name, ()):
                flags = " ".join(item.text for item in appended.items)
                self.unread.append(
                    f"line {line_of(self.text, appended.start)}: whether {flags} is added is unknown"
                )
        elif name in literals:
            self._add_value(word, literals[name], self.variables.values[name])
        elif _hides_flags(word) and is_place_of_flag(self.words):
            line = line_of(self.text, word.start)
            self.unread.append(f"line {line}: the flags in {word.text} are unknown")
        elif word.live:
            text = self._compute(replace_defaults(self._replace_literals(word.text)))
            if text or self.text[word.start : word.end].startswith(('"', "'")):
                self.words.append(replace(word, text=text))
        else:
            self.words.append(word)

    def _add_value(self, word: Word, value: str, assigned: Word) -> None:
        self.used.append(assigned)
        quoted = self.text[word.start : word.end].startswith('"') and "vllm serve" not in value
        parts = [value] if quoted else value.split()
        self.words += [replace(word, text=value)] if len(parts) == 1 else [Word(text=part) for part in parts]

    def _replace_literals(self, text: str) -> str:
        literals = self.variables.literals
        return _REFERENCE.sub(
            lambda reference: literals.get(reference[1] or reference[2], reference[0]), text
        )

    def _compute(self, text: str) -> str:
        """The text with the values of products as `$((HOSTS * 4))`."""
        literals = self.variables.literals

        def compute(product: re.Match[str]) -> str:
            names = [factor.strip(" ${}") for factor in product[1].split("*")]
            factors = [literals.get(name, name) for name in names]
            return str(prod(map(int, factors))) if all(map(str.isdecimal, factors)) else product[0]

        return _PRODUCT.sub(compute, text)


def _hides_flags(word: Word) -> bool:
    return word.live and (_WHOLE.fullmatch(word.text) or word.text.startswith(("$(", "`"))) is not None


def is_place_of_flag(before: Sequence[Word]) -> bool:
    """Whether the next word is a flag, rather than a flag's value, the model or the program."""
    last = before[-1].text if before else "serve"
    if last.startswith("-"):
        return "=" in last or last.startswith("--no-") or is_switch(last.lstrip("-").replace("-", "_"))
    serves = any(word.text == "serve" or word.text.startswith("vllm.entrypoints") for word in before)
    return serves and last != "serve"


def plain_values(env: Mapping[str, Variable]) -> dict[str, str]:
    """The variables whose values stand in the file, without those of others in them."""
    return {name: variable.value for name, variable in env.items() if "$" not in variable.value}


def expand_words(text: str, words: Sequence[Word], env: Mapping[str, Variable]) -> list[Word]:
    """The words of a shell's command with the values of its variables."""
    values = {name: Word(text=value) for name, value in plain_values(env).items()}
    expansion = Expansion(Variables(values=values), text)
    for word in words:
        expansion.add(word)
    return expansion.words if not expansion.unread else list(words)


def drop_unknown_flags(text: str, words: Sequence[Word]) -> tuple[list[Word], list[str]]:
    """The words without variables in the place of a flag, and the parts that are unread for that reason."""
    rest: list[Word] = []
    unread: list[str] = []
    for word in words:
        if _PLACEHOLDER.fullmatch(word.text) and is_place_of_flag(rest):
            unread.append(f"line {line_of(text, word.start)}: the flags in {word.text} are unknown")
        else:
            rest.append(word)
    return rest, unread


def replace_defaults(text: str) -> str:
    """The text with each `${NAME:-value}` read as its default, and without `${NAME:+value}`."""
    return _DEFAULT.sub(lambda default: default[1], _ALTERNATIVE.sub("", text))


def explain_defaults(text: str, words: Iterable[Word]) -> list[str]:
    """A remark for each word of the text that is read with a default."""
    return [
        f"line {line_of(text, word.start)}: {default[0]} is read as its default"
        for word in words
        if word.form != "none" and (default := _DEFAULT.search(text, word.start, word.end))
    ]
