"""Files that a shell script writes by here-documents, and scripts that it so hands to another shell."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from flettner.vllm_facts.flag_parser import SHELLS
from flettner.vllm_facts.launch_files.launch import Launch, Variable
from flettner.vllm_facts.launch_files.shell_script import without_places
from flettner.vllm_facts.launch_files.shell_variables import replace_defaults
from flettner.vllm_facts.launch_files.shell_words import HereDocument, find_here_documents

_READERS = {"kubectl": "manifest.yaml", "oc": "manifest.yaml", "compose": "compose.yaml"}
"""Programs that read a file from their standard input, and a name for a file of that kind."""
_REFERENCE = re.compile(r"(?<!\\)\$(?:\{(\w+)\}|(\w+))")
_ESCAPED = re.compile(r"\\([$`\\\n])")


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """`text` begins with empty lines for those of the script. `placed`: its words stand so in the script."""

    name: str
    text: str
    start: int
    placed: bool

    def place(self, launch: Launch) -> Launch:
        """The launch with places in the script, as far as its words stand there."""
        if self.placed:
            return launch
        env = {name: Variable(value=variable.value) for name, variable in launch.env.items()}
        return replace(launch, start=self.start, words=without_places(launch.words), env=env)


def find_written_files(text: str, values: Mapping[str, str]) -> Iterator[WrittenFile]:
    """`values`: the variables of the script that it sets to literal values. Raises FlagError."""
    for document in find_here_documents(text):
        name = _name_of(document)
        if not name:
            continue
        inner = text[document.start : document.end]
        written = _expand(inner, values) if document.expands else inner
        before = text[: document.start]
        placed = written == inner
        lines = re.sub(r"[^\n]", " ", before) if placed else "\n" * before.count("\n")
        yield WrittenFile(name=name, text=lines + written, start=document.start, placed=placed)


def _name_of(document: HereDocument) -> str:
    """The file that the document becomes, or a name for what its reader takes; "" for any other text."""
    words = [word.text for word in chain.from_iterable(document.commands)]
    tees = [command for command in document.commands if any(word.text == "tee" for word in command)]
    files = [command[-1].text for command in tees] or [
        target for target in document.targets if target != "/dev/null"
    ]
    if files:
        return files[0]
    return _name_for_reader(words)


def _name_for_reader(words: Sequence[str]) -> str:
    parts = [part.rpartition("/")[2] for word in words for part in word.split()]
    if any(part in SHELLS or part == "ssh" for part in parts):
        return "script.sh"
    return next((_READERS[part] for part in parts if part in _READERS), "")


def _expand(text: str, values: Mapping[str, str]) -> str:
    """The text as the shell writes it, as far as the variables are known."""
    known = _REFERENCE.sub(
        lambda reference: values.get(reference[1] or reference[2], reference[0]), replace_defaults(text)
    )
    return _ESCAPED.sub(lambda escaped: escaped[1].strip("\n"), known)
