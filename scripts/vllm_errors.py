# ruff: noqa: INP001, T201 - a script, which prints its answer
"""Writes the table of the errors that releases of vLLM raise by themselves. Run it in flettner's environment:

    .venv/bin/python scripts/vllm_errors.py FOLDER

FOLDER holds vLLM's source archives as PyPI has them (`vllm-0.32.0.tar.gz`), one for each release to look at.
It writes vllm_facts/releases/errors.tsv: below each file its messages, with the first and the last release
that has them and the flags that the message or its condition names. See CONTRIBUTING.md.
"""

import ast
import re
import sys
import tarfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from flettner.vllm_facts.deprecated_flags import RENAMED
from flettner.vllm_facts.knobs import FLAGS, KNOBS
from flettner.vllm_facts.raised_errors import (
    GAP,
    TABLE,
    Release,
    Run,
    format_release,
    hash_words,
    split_words,
)

LEAST_LETTERS, LEAST_WORDS, LEAST_RUN = 20, 3, 8  # of the constant parts: a shorter text says too little
LONGEST = 110  # characters of a message that are kept
MOST_FLAGS = 4

READ = re.compile(
    r"vllm/(?:config|engine|v1|worker|executor|core|attention|platforms|lora|spec_decode|entrypoints|distributed"
    r"|multimodal|transformers_utils|compilation|kernels|reasoning|tool_parsers|renderers|inputs"
    r"|model_executor/(?:layers|model_loader|kernels|guided_decoding)|model_executor/models/(?:registry|config"
    r"|adapters|interfaces|transformers|utils))(?:/.+)?\.py|vllm/(?:envs|utils|scripts)\.py|vllm/utils/.+\.py"
)
"""The files that a start runs through. Those of the models are left out: their errors name the model."""

SHAPES = re.compile(r"/(?:ops|kernels|kv_transfer|ec_transfer|fused_moe|device_communicators|backends)/")
"""Files whose assertions are about shapes of tensors unless they name a flag or a variable of vLLM."""

NAMES = {
    "tp_size": "tensor_parallel_size",
    "pp_size": "pipeline_parallel_size",
    "dp_size": "data_parallel_size",
    "cache_dtype": "kv_cache_dtype",
    "lora_config": "enable_lora",
    "eplb_config": "enable_eplb",
    "mm_config": "limit_mm_per_prompt",
    "num_gpu_blocks": "gpu_memory_utilization",
    "is_attention_free": "",
}
"""Names in vLLM's code for flags of another name."""

KNOWN = (frozenset(FLAGS) | frozenset(KNOBS) | frozenset(RENAMED)) - {
    *(
        "config",
        "name",
        "headless",
        "model",
        "tokenizer",
        "task",
        "seed",
        "revision",
        "host",
        "port",
        "api_key",
        "hf_token",
    ),
}  # names of many other things too
OWNERS = re.compile(r"(?:config|args|cfg)$")
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Found:
    """One message in one release. `template`: its constant parts, with GAP where values stand."""

    template: str
    file: str
    flags: tuple[str, ...]
    first: Release
    last: Release


class Reader(ast.NodeVisitor):
    """Collects the errors of one file."""

    def __init__(self, file: str, release: Release) -> None:
        self.file, self.release = file, release
        self.errors: list[Found] = []
        self._conditions: list[ast.expr] = []
        self._texts: dict[str, ast.expr] = {}  # variables that hold a text

    def visit_FunctionDef(self, node: Function) -> None:
        outer = self._conditions, self._texts
        self._conditions, self._texts = [], {}
        self.generic_visit(node)
        self._conditions, self._texts = outer

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_If(self, node: ast.If) -> None:
        self._conditions.append(node.test)
        self.generic_visit(node)
        self._conditions.pop()

    def visit_Assign(self, node: ast.Assign) -> None:
        if len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            self._texts[node.targets[0].id] = node.value

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name) and (before := self._texts.get(node.target.id)):
            self._texts[node.target.id] = ast.BinOp(before, ast.Add(), node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        error = node.exc
        if isinstance(error, ast.Call) and error.args and _last_name(error.func):
            message = error.args[0] if len(error.args) == 1 else ast.Tuple(error.args, ast.Load())
            self._add(message, ())

    def visit_Assert(self, node: ast.Assert) -> None:
        if node.msg and (_names_setting(node.test, node.msg, self.file) or not SHAPES.search(self.file)):
            self._add(node.msg, (node.test,))

    def _add(self, message: ast.expr, conditions: tuple[ast.expr, ...]) -> None:
        if isinstance(message, ast.Name):
            message = self._texts.get(message.id, message)
        template = shorten(_template(message))
        if template:
            inner = (*conditions, message, *reversed(self._conditions))
            named = [*_spelled(message), *(flag for node in inner for flag in _attributes(node, self.file))]
            flags = tuple(dict.fromkeys(named))[:MOST_FLAGS]
            self.errors.append(Found(template, self.file, flags, self.release, self.release))


def _last_name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _template(node: ast.expr) -> str:
    """Return the constant parts of a text, with GAP for each of its values."""
    match node:
        case ast.Constant(value=str(text)):
            return text.replace(GAP, " ")
        case ast.JoinedStr(values=parts):
            return "".join(_template(part) for part in parts)
        case ast.Tuple(elts=parts):
            return GAP.join(_template(part) for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _template(left) + _template(right)
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod()):
            return re.sub(r"%(?:\(\w+\))?[-+ #0]*[\d.]*[a-z]", GAP, text)
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format")):
            return re.sub(r"\{[^{}]*\}", GAP, text)
        case _:
            return GAP


def shorten(template: str) -> str:
    """Return the line of the template that identifies it, without what follows LONGEST; "" if none does."""
    for line in template.replace("\t", " ").splitlines():
        text = re.sub(r"\s+", " ", re.sub(rf"{GAP}(?:\s*{GAP})*", GAP, line)).strip(f" {GAP}")
        if len(text) > LONGEST:
            text = text[:LONGEST].rpartition(" ")[0].rstrip(f" {GAP}")
        letters = [sum(map(str.isalpha, part)) for part in text.split(GAP)]
        words = re.findall(r"[A-Za-z]{2,}", text)
        if sum(letters) >= LEAST_LETTERS and len(words) >= LEAST_WORDS and max(letters) >= LEAST_RUN:
            return text
    return ""


def _spelled(message: ast.expr) -> Iterator[str]:
    """Yield the flags that the text of a message names."""
    for word in re.findall(r"--[a-z][\w-]+|\b[a-z]+(?:_[a-z]+)+\b", _template(message)):
        name = word.removeprefix("--").replace("-", "_")
        if name in KNOWN:
            yield name


def _attributes(node: ast.expr, file: str) -> Iterator[str]:
    """Yield the flags among the attributes of configurations, and among the variables, in an expression."""
    own = file.startswith(("vllm/config", "vllm/engine/arg_utils"))
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute):
            owner = _last_name(part.value)
            if OWNERS.search(owner) or (own and owner == "self") or "_" in part.attr:
                yield from _flag(part.attr)
            yield from (_flag(owner) if owner in {"speculative_config", "compilation_config"} else ())
        elif isinstance(part, ast.Name) and "_" in part.id:
            yield from _flag(part.id)


def _names_setting(test: ast.expr, message: ast.expr, file: str) -> bool:
    return "VLLM_" in _template(message) or any(_attributes(test, file)) or any(_spelled(message))


def _flag(name: str) -> Iterator[str]:
    flag = NAMES.get(name, name)
    if flag in KNOWN:
        yield flag


def read_source(source: str, file: str, release: Release) -> list[Found]:
    reader = Reader(file, release)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        reader.visit(ast.parse(source))
    return reader.errors


def read_archive(archive: Path) -> Iterator[Found]:
    """Yield the errors of one release, from the .py files of its source archive."""
    release = release_of_name(archive.name)
    with tarfile.open(archive) as tar:
        for member in tar:
            file = "/".join(PurePosixPath(member.name).parts[1:])
            if member.isfile() and READ.fullmatch(file) and (content := tar.extractfile(member)):
                try:
                    yield from read_source(content.read().decode(), file, release)
                except SyntaxError as error:
                    print(f"{archive.name}: {file} left out: {error}", file=sys.stderr)


def release_of_name(name: str) -> Release:
    match = re.match(r"vllm-(\d+)\.(\d+)(?:\.(\d+))?", name)
    if not match:
        raise SystemExit(f"{name}: no source archive of vLLM (vllm-<release>.tar.gz)")
    return int(match[1]), int(match[2])


def merge(errors: list[Found]) -> list[Found]:
    """Merge the errors to one row for each message, with the file and the flags of its newest release."""
    rows: dict[str, Found] = {}
    for row in sorted(errors, key=lambda row: (row.last, row.file, row.flags)):
        old = rows.get(row.template, row)
        flags = row.flags or old.flags
        rows[row.template] = replace(row, flags=flags, first=min(row.first, old.first))
    return sorted(rows.values(), key=lambda row: (row.file, row.template))


def _runs_of(template: str) -> tuple[Run, ...]:
    """Return the runs of a template, in which GAP stands for each value.

    A word beside a GAP without a space is left out: the value may be its other half.
    """
    whole = re.sub(rf"[A-Za-z]+{GAP}|{GAP}[A-Za-z]+", GAP, template)
    parts = [split_words(part) for part in whole.split(GAP)]
    return tuple((len(words), hash_words(words)) for words in parts if words)


def _line(row: Found) -> str:
    runs = " ".join(f"{length}:{digest}" for length, digest in _runs_of(row.template))
    return "\t".join((format_release(row.first), format_release(row.last), ",".join(row.flags), runs))


def main(folder: Path) -> int:
    archives = sorted(folder.glob("vllm-*.tar.gz"), key=lambda archive: release_of_name(archive.name))
    rows = merge([error for archive in archives for error in read_archive(archive)])
    releases = " ".join(dict.fromkeys(format_release(release_of_name(archive.name)) for archive in archives))
    lines = [f"# {releases}"]
    for file, group in groupby(rows, key=lambda row: row.file):
        lines.append(file)
        lines += [_line(row) for row in group]
    TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{TABLE}: {len(rows)} messages of {len(archives)} releases")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
