# ruff: noqa: INP001, T201 - a script, which prints its answer
"""Writes the table of the flags, values, JSON keys, defaults, variables and metrics of each vLLM. Run it as

    .venv/bin/python scripts/vllm_history.py FOLDER

FOLDER holds vLLM's source archives as PyPI has them (`vllm-0.32.0.tar.gz`), one for each release to look at.
It reads the sources without running them, and writes vllm_facts/releases/history.tsv. See CONTRIBUTING.md.
"""

import ast
import json
import re
import sys
import tarfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TypeAlias

TABLE = Path(__file__).parent.parent / "vllm_facts/releases/history.tsv"
READ = re.compile(
    r"vllm/(?:config(?:/.+)?|compilation/config|envs|engine/arg_utils|entrypoints/(?:.+/)?cli_args"
    r"|entrypoints/cli/serve"
    r"|(?:entrypoints/openai/)?(?:tool_parsers|reasoning)/.+|reasoning/.+|parser/.+"
    r"|model_executor/layers/quantization/__init__|(?:v1/)?attention/backends/registry"
    r"|entrypoints/chat_utils|(?:.+/)?metrics(?:/.+)?)\.py"
)
ENTRANCES = re.compile(r"vllm/(?:engine/arg_utils|entrypoints/(?:.+/)?cli_args|entrypoints/cli/serve)\.py")
FRONTEND = re.compile(r"(?:Base)?FrontendArgs")
PARSERS = {"ToolParserManager": "tool_call_parser", "ReasoningParserManager": "reasoning_parser"}
METRIC = re.compile(r"vllm:\w+")
LAZY = re.compile(r"_?(TOOL|REASONING)_PARSERS_TO_REGISTER")

Patch: TypeAlias = tuple[int, int, int]
Row: TypeAlias = tuple[str, str, str]
"""Kind, flag, and value or key. An `open_key` is one of a flag that ignores unknown keys.

A `default` is JSON, null where vLLM decides at the start; it is that of a flag, of a key (`flag.key`) or of a
variable. One that never changed has no row. A `variable` is one of the environment."""


@dataclass(slots=True)
class Sources:
    """What the modules of one release define, by name."""

    types: dict[str, ast.expr] = field(default_factory=dict)  # X = Literal[...]
    backends: list[str] = field(default_factory=list)  # of attention
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    arguments: list[tuple[ast.Call, dict[str, str]]] = field(default_factory=list)  # with group -> class
    parsers: dict[str, set[str]] = field(default_factory=dict)  # flag: names
    forbids: bool = False  # the configuration classes refuse unknown keys
    variables: dict[str, ast.expr | None] = field(default_factory=dict)  # with their defaults
    metrics: set[str] = field(default_factory=set)

    def read(self, file: str, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            match node:
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                ):
                    self._read_assignment(name, value)
                case ast.ClassDef(name=name):
                    self._read_class(node)
        if ENTRANCES.fullmatch(file):
            groups = dict(_groups(tree))
            calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
            self.arguments += [(call, groups) for call in calls if _name(call.func) == "add_argument"]
        if file == "vllm/config/utils.py":
            self.forbids = self.forbids or "extra='forbid'" in ast.unparse(tree)
        if file == "vllm/envs.py":
            self._read_variables(tree)
        if "metrics" in file:
            texts = _strings(node for node in ast.walk(tree) if isinstance(node, ast.Constant))
            self.metrics.update(filter(METRIC.fullmatch, texts))
        self._read_registrations(tree)

    def _read_variables(self, tree: ast.Module) -> None:
        """The keys of `environment_variables`, and their defaults as the block for type checkers has them."""
        values = {
            node.target.id: node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        }
        table = values.get("environment_variables")
        if isinstance(table, ast.Dict):
            self.variables = {name: values.get(name) for name in _strings(table.keys)}

    def _read_assignment(self, name: str, value: ast.expr) -> None:
        if isinstance(value, ast.Subscript) and _name(value.value) == "Literal":
            self.types[name] = value
        elif isinstance(value, ast.Subscript | ast.BinOp | ast.Name):
            self.types.setdefault(name, value)
        lazy = LAZY.fullmatch(name)
        if lazy and isinstance(value, ast.Dict):
            flag = "tool_call_parser" if lazy[1] == "TOOL" else "reasoning_parser"
            self.parsers.setdefault(flag, set()).update(_strings(value.keys))

    def _read_class(self, node: ast.ClassDef) -> None:
        if node.name == "AttentionBackendEnum":
            self.backends = [name for name in map(_target, node.body) if name not in {"", "CUSTOM"}]
        elif node.name not in self.classes or len(node.body) > len(self.classes[node.name].body):
            self.classes[node.name] = node

    def _read_registrations(self, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if not (
                isinstance(node, ast.Call) and _name(node.func) in {"register_module", "register_lazy_module"}
            ):
                continue
            owner = _name(node.func.value) if isinstance(node.func, ast.Attribute) else ""
            named = [*node.args[:1], *(word.value for word in node.keywords if word.arg == "name")]
            for value in named:
                parts = value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
                if owner in PARSERS:
                    self.parsers.setdefault(PARSERS[owner], set()).update(_strings(parts))

    def rows(self) -> Iterator[Row]:
        for call, groups in self.arguments:
            yield from self._rows_of_argument(call, groups)
        for name in self.classes:
            if FRONTEND.fullmatch(name):
                for key, annotation in _fields(self.classes[name]):
                    yield "flag", key, ""
                    yield from (("value", key, choice) for choice in self.choices(annotation))
        for flag, names in self.parsers.items():
            yield from (("value", flag, name) for name in names)
        yield from (("variable", name, "") for name in self.variables)
        yield from (("metric", name, "") for name in self.metrics)
        yield from self._rows_of_defaults()
        methods = self.types.get("QuantizationMethods")
        if methods is not None:
            yield from (("value", "quantization", choice) for choice in self.choices(methods))

    def _rows_of_argument(self, call: ast.Call, groups: dict[str, str]) -> Iterator[Row]:
        names = [text for text in _strings(call.args) if text.startswith("--")]
        if not names:
            return
        flags = [_canonical(name) for name in names if not name.startswith("--no-")]
        for flag in flags:
            yield "flag", flag, ""
        annotation: ast.expr | None = None
        for word in call.keywords:
            if word.arg is None and isinstance(word.value, ast.Subscript):
                owner = self.classes.get(groups.get(_name(word.value.value), ""))
                key = next(iter(_strings([word.value.slice])), "")
                annotation = dict(_fields(owner)).get(key) if owner else None
            if word.arg == "choices" and isinstance(word.value, ast.List | ast.Tuple):
                yield from (("value", flags[0], choice) for choice in _constants(word.value.elts))
        annotation = annotation or self._field_of_arguments(flags[0])
        if annotation is not None:
            yield from (("value", flags[0], choice) for choice in self.choices(annotation))
            yield from self._rows_of_keys(flags[0], annotation)

    def _rows_of_defaults(self) -> Iterator[Row]:
        values: dict[str, ast.expr] = {name: value for name, value in self.variables.items() if value}
        for call, _ in self.arguments:
            names = [text for text in _strings(call.args) if text.startswith("--")]
            given = {word.arg: word.value for word in call.keywords}
            if names and "default" in given:
                values[_canonical(names[0])] = given["default"]
        for name, owner in self.classes.items():
            if FRONTEND.fullmatch(name) or name in {"EngineArgs", "AsyncEngineArgs"}:
                values |= self._defaults_of(owner)
                for flag, annotation in _fields(owner):
                    for kind in re.findall(r"[A-Z]\w+Config\b", ast.unparse(annotation)):
                        keys = self._defaults_of(self.classes[kind]) if kind in self.classes else {}
                        values |= {f"{flag}.{key}": value for key, value in keys.items()}
        for name, value in values.items():
            if (text := self._literal_default(value)) is not None:
                yield "default", name, text

    def _defaults_of(self, owner: ast.ClassDef) -> dict[str, ast.expr]:
        bases = (self.classes.get(_name(base)) for base in owner.bases)
        values = {key: value for base in bases if base for key, value in self._defaults_of(base).items()}
        for node in owner.body:
            match node:
                case (
                    ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                    | ast.Assign(targets=[ast.Name(id=name)], value=value)
                ):
                    values[name] = value
        return {key: value for key, value in values.items() if not key.startswith("_")}

    def _literal_default(self, value: ast.expr, depth: int = 5) -> str | None:
        """The default as JSON; None if it is computed."""
        owner = key = ""
        match value:
            case ast.Attribute(value=ast.Name(id=owner), attr=key):
                pass
            case ast.Call(
                func=ast.Name(id="get_field"), args=[ast.Name(id=owner), ast.Constant(value=str(key))]
            ):
                pass
            case ast.Call(func=ast.Name(id="field" | "Field"), args=args, keywords=words):
                given = [*args[:1], *(word.value for word in words if word.arg == "default")]
                return self._literal_default(given[0], depth) if given else None
        if owner:
            inner = self._defaults_of(self.classes[owner]).get(key) if owner in self.classes else None
            return self._literal_default(inner, depth - 1) if inner and depth else None
        try:
            return json.dumps(ast.literal_eval(value))
        except (ValueError, TypeError):
            return None

    def _field_of_arguments(self, flag: str) -> ast.expr | None:
        owners = (self.classes.get(name) for name in ("EngineArgs", "AsyncEngineArgs"))
        return next(
            (dict(_fields(owner))[flag] for owner in owners if owner and flag in dict(_fields(owner))), None
        )

    def _rows_of_keys(self, flag: str, annotation: ast.expr) -> Iterator[Row]:
        named = re.findall(r"[A-Z]\w+Config\b", ast.unparse(annotation))
        for name in dict.fromkeys(["SpeculativeConfig"] if flag == "speculative_config" else named):
            owner = self.classes.get(name)
            if owner is not None:
                for key, kind in self._all_fields(owner):
                    yield ("key" if self._is_strict(owner) else "open_key"), flag, key
                    yield from (("value", f"{flag}.{key}", choice) for choice in self.choices(kind))

    def _is_strict(self, owner: ast.ClassDef) -> bool:
        head = " ".join(map(ast.unparse, owner.decorator_list))
        if "forbid" in head:
            return True
        return self.forbids and bool(re.search(r"\bconfig\b", head)) and "ignore" not in head

    def _all_fields(self, owner: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
        for base in owner.bases:
            if (parent := self.classes.get(_name(base))) is not None:
                yield from self._all_fields(parent)
        yield from _fields(owner)

    def choices(self, annotation: ast.expr, seen: frozenset[str] = frozenset()) -> list[str]:
        """The values of a Literal or an enum; empty if any text is allowed."""
        match annotation:
            case ast.Constant(value=str(text)) if "[" in text or text in self.types:
                return self.choices(ast.parse(text, mode="eval").body, seen)
            case ast.Name(id="AttentionBackendEnum"):
                return self.backends
            case ast.Name(id=name) if name in self.types and name not in seen:
                return self.choices(self.types[name], seen | {name})
            case ast.Subscript(value=ast.Name(id="Literal"), slice=parts):
                elements = parts.elts if isinstance(parts, ast.Tuple) else [parts]
                return [choice for part in elements for choice in self._literal(part, seen)]
            case ast.Subscript(value=ast.Name(id="Optional" | "Annotated" | "SkipValidation"), slice=parts):
                inner = parts.elts[0] if isinstance(parts, ast.Tuple) else parts
                return self.choices(inner, seen)
            case ast.Subscript(value=ast.Name(id="Union"), slice=ast.Tuple(elts=parts)):
                return self._union(parts, seen)
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return self._union([left, right], seen)
            case _:
                return []

    def _literal(self, part: ast.expr, seen: frozenset[str]) -> list[str]:
        return _constants([part]) or self.choices(part, seen)

    def _union(self, parts: Iterable[ast.expr], seen: frozenset[str]) -> list[str]:
        if any(_name(part) == "str" for part in parts):
            return []
        return [choice for part in parts for choice in self.choices(part, seen)]


def _groups(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """`model_kwargs = get_kwargs(ModelConfig)`"""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)], value=ast.Call(func=function, args=[ast.Name(id=owner), *_])
            ):
                if _name(function) == "get_kwargs":
                    yield name, owner


def _fields(owner: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    for node in owner.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            kind = ast.unparse(node.annotation)
            inner = node.value is not None and re.search(r"init=False", ast.unparse(node.value))
            if "ClassVar" not in kind and not inner:
                yield node.target.id, node.annotation


def _target(node: ast.stmt) -> str:
    """`NAME` of `NAME = value`."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name
        case _:
            return ""


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _strings(nodes: Iterable[ast.expr | None]) -> list[str]:
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def _constants(nodes: Iterable[ast.expr]) -> list[str]:
    values = (node.value for node in nodes if isinstance(node, ast.Constant))
    return [str(value) for value in values if value is not None]


def _canonical(name: str) -> str:
    return name.removeprefix("--").replace("-", "_")


def read_archive(archive: Path) -> set[Row]:
    """The rows of one release, from its source archive."""
    sources = Sources()
    with tarfile.open(archive) as tar, warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        for member in tar:
            file = "/".join(PurePosixPath(member.name).parts[1:])
            if member.isfile() and READ.fullmatch(file) and (content := tar.extractfile(member)):
                sources.read(file, ast.parse(content.read().decode()))
    return set(sources.rows())


def patch_of_name(name: str) -> Patch:
    match = re.match(r"vllm-(\d+)\.(\d+)\.(\d+)", name)
    if not match:
        raise SystemExit(f"{name}: no source archive of vLLM (vllm-<release>.tar.gz)")
    return int(match[1]), int(match[2]), int(match[3])


def spans(present: list[bool], releases: list[str]) -> str:
    """`0.9.0-0.11.1 0.20.0-`: the first and the last releases that have it; no last one is the newest."""
    written, at = [], 0
    while at < len(present):
        if not present[at]:
            at += 1
            continue
        stop = next((end for end in range(at, len(present)) if not present[end]), len(present))
        written.append(f"{releases[at]}-" + (releases[stop - 1] if stop < len(present) else ""))
        at = stop
    return " ".join(written)


def _without_shared_defaults(found: Sequence[set[Row]]) -> set[Row]:
    """All rows without defaults that never changed, but with those of flags that came or went."""
    shared = set.intersection(*found)
    values = Counter(name for kind, name, _ in set().union(*found) if kind == "default")
    return {
        (kind, name, text)
        for kind, name, text in set().union(*found)
        if kind != "default"
        or values[name] > 1
        or (name.islower() and "." not in name and (kind, name, text) not in shared)
    }


def main(folder: Path) -> int:
    archives = sorted(folder.glob("vllm-*.tar.gz"), key=lambda archive: patch_of_name(archive.name))
    found = [read_archive(archive) for archive in archives]
    releases = [".".join(map(str, patch_of_name(archive.name))) for archive in archives]
    lines = [f"# {' '.join(releases)}"]
    rows = sorted(_without_shared_defaults(found))
    lines += ["\t".join((*row, spans([row in own for own in found], releases))) for row in rows]
    TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{TABLE}: {len(lines) - 1} rows of {len(archives)} releases")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
