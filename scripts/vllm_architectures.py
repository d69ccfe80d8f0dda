# ruff: noqa: INP001, T201 - a script, which prints its answer
"""Writes the tables of the architectures that each vLLM serves, and of the types of models. Run it as

    .venv/bin/python scripts/vllm_architectures.py FOLDER

FOLDER holds vLLM's source archives as PyPI has them (`vllm-0.32.0.tar.gz`), or the wheel of a release without
one, and those of Transformers (`transformers-5.16.0.tar.gz`). It reads the sources without running them, and
writes architectures.tsv, model_types.tsv and transformers.tsv of vllm_facts/releases. See CONTRIBUTING.md.
"""

import ast
import re
import sys
import tarfile
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TypeAlias

FOLDER = Path(__file__).parent.parent / "vllm_facts/releases"
READ = re.compile(
    r"vllm/(?:model_executor/models/(?:registry|__init__)|model_executor/model_loader"
    r"|transformers_utils/config)\.py"
    r"|(?:requirements/(?:common|test|test/cuda)|requirements(?:-common|-test)?)\.txt"
    r"|[^/]+\.dist-info/METADATA"
    r"|(?:src/)?transformers/models/auto/(?:configuration_auto|modeling_auto|auto_mappings)\.py"
)
REGISTRY = re.compile(r"_(?:[A-Z_]+_)?MODELS?|_MODEL_REGISTRY")
BY_TRANSFORMERS = "_TRANSFORMERS_SUPPORTED_MODELS"
OWN_CONFIGS = re.compile(r"_CONFIG_REGISTRY\w*")
REQUIRED = re.compile(
    r"^(?:Requires-Dist: )?transformers *(?:\[\w+\])? *\(?(?P<bounds>[<>=!][\d.*<>=!, ]+)", re.MULTILINE
)
CONFIGS = "CONFIG_MAPPING_NAMES"
CLASSES = re.compile(r"MODEL_FOR_(?:CAUSAL_LM|IMAGE_TEXT_TO_TEXT|VISION_2_SEQ|MULTIMODAL_LM)_MAPPING_NAMES")

Patch: TypeAlias = tuple[int, int, int]


@dataclass(slots=True)
class Release:
    """What one release of vLLM or of Transformers has.

    `backend`: architectures that vLLM lists, and runs by Transformers. `types`: model types of which it has
    the configuration. `classes`: the architectures of a type, of Transformers. `least`, `below`: the
    Transformers that it requires. `tested`: that of its own tests, the newest when it was made or nearly so.
    """

    own: set[str] = field(default_factory=set)
    backend: set[str] = field(default_factory=set)
    types: set[str] = field(default_factory=set)
    classes: dict[str, set[str]] = field(default_factory=dict)
    least: Patch | None = None
    below: Patch | None = None
    tested: Patch | None = None

    def has(self, version: Patch) -> bool:
        """Whether what it installs includes that Transformers, or a newer one."""
        return any(bound is not None and bound >= version for bound in (self.least, self.tested))

    def read(self, file: str, text: str) -> None:
        if not file.endswith(".py"):
            required = REQUIRED.search(text)
            if required and "test" in file:
                pin = re.match(r"== *([\d.]+)", required["bounds"])
                self.tested = _numbers(pin[1]) if pin else self.tested
            elif required:
                bounds = dict(re.findall(r"([<>=]+) *([\d.]+)", re.sub(r"!=[^,]+", "", required["bounds"])))
                self.least, self.below = (
                    _numbers(bounds[sign]) if sign in bounds else None for sign in (">=", "<")
                )
            return
        for name, value in _assignments(ast.parse(text)):
            pairs = dict(_pairs(value))
            if name == BY_TRANSFORMERS:
                self.backend.update(pairs)
            elif REGISTRY.fullmatch(name) and "vllm/model" in file:
                is_loader = file.endswith("model_loader.py")  # 0.2: its values are classes
                self.own.update(
                    key
                    for key, entry in pairs.items()
                    if isinstance(entry, ast.Tuple | ast.List) or is_loader
                )
            elif OWN_CONFIGS.fullmatch(name) or name == CONFIGS:
                self.types.update(pairs)
            elif CLASSES.fullmatch(name):
                for key, entry in pairs.items():
                    self.classes.setdefault(key, set()).update(_texts(entry))


def _assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(tree):
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                yield name, value


def _pairs(value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """The keys and values of a dictionary, of `dict(key=…)` and of `OrderedDict([(key, …)])`."""
    match value:
        case ast.Dict(keys=keys, values=values):
            for key, entry in zip(keys, values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.value, entry
        case ast.Call(args=args, keywords=words):
            yield from ((word.arg, word.value) for word in words if word.arg)
            for part in args:
                yield from _pairs(part)
        case ast.List(elts=parts):
            for part in parts:
                match part:
                    case ast.Tuple(elts=[ast.Constant(value=str(key)), entry]):
                        yield key, entry


def _texts(node: ast.expr) -> set[str]:
    texts = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant))
    return {text for text in texts if isinstance(text, str)}


def _files(archive: Path) -> Iterator[tuple[str, str]]:
    """The files to read, with their paths below the package's folder."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in filter(READ.fullmatch, wheel.namelist()):
                yield name, wheel.read(name).decode()
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            file = "/".join(PurePosixPath(member.name).parts[1:])
            if member.isfile() and READ.fullmatch(file) and (content := tar.extractfile(member)):
                yield file, content.read().decode()


def read_folder(folder: Path, package: str) -> dict[Patch, Release]:
    """The releases of a package, in their order. A `.post1` counts as the release that it mends."""
    releases: dict[Patch, Release] = {}
    archives = [*folder.glob(f"{package}-*.tar.gz"), *folder.glob(f"{package}-*.whl")]
    for archive in sorted(archives):
        number = re.match(rf"{package}-(\d+\.\d+\.\d+)", archive.name)
        if not number:
            raise SystemExit(f"{archive.name}: no archive of {package} ({package}-<release>.tar.gz)")
        release = releases.setdefault(_numbers(number[1]), Release())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            for file, text in _files(archive):
                release.read(file, text)
    return dict(sorted(releases.items()))


def _numbers(text: str) -> Patch:
    first, second, third = [*map(int, text.strip(".").split(".")), 0, 0][:3]
    return first, second, third


def _name(release: Patch) -> str:
    return ".".join(map(str, release))


def list_architectures(releases: Mapping[Patch, Release]) -> Iterator[str]:
    """Yield a line for each architecture that some release implements: its name and its spans of releases."""
    every = list(releases)
    for name in sorted(set().union(*(release.own for release in releases.values()))):
        spans: list[list[Patch]] = []
        for place, release in enumerate(every):
            if name not in releases[release].own | releases[release].backend:
                continue
            if spans and place and spans[-1][1] == every[place - 1]:
                spans[-1][1] = release
            else:
                spans.append([release, release])
        texts = (f"{_name(a)}-" + ("" if b == every[-1] else _name(b)) for a, b in spans)
        yield f"{name}\t{' '.join(texts)}"


def list_model_types(vllm: Mapping[Patch, Release], transformers: Mapping[Patch, Release]) -> Iterator[str]:
    """Yield a line for each type of model that some release of vLLM serves and the oldest one does not know.

    Its columns: the type, the first Transformers with its configuration, and the first vLLM that serves it
    with its own configuration, or with the Transformers of its own tests.
    """
    oldest, *later = transformers
    own = set().union(*(release.types for release in vllm.values()))
    every = own.union(*(release.types for release in transformers.values())) - transformers[oldest].types
    for kind in sorted(every):
        since = next((release for release in later if kind in transformers[release].types), None)
        names = set().union(*(release.classes.get(kind, set()) for release in transformers.values()))
        first = next(
            (
                number
                for number, release in vllm.items()
                if (release.own & names or not names)
                and (kind in release.types or (since and release.has(since)))
            ),
            None,
        )
        known = any(release.own & names for release in vllm.values()) or kind in own
        if known and (first or since):
            yield "\t".join((kind, _name(since) if since else "", _name(first) if first else ""))


def _head(releases: Mapping[Patch, Release]) -> str:
    return f"# {' '.join(map(_name, releases))}"


def list_requirements(vllm: Mapping[Patch, Release]) -> Iterator[str]:
    """Yield a line for each release of vLLM: the least Transformers, the first excluded, the tested one."""
    for number, release in vllm.items():
        bounds = (release.least, release.below, release.tested)
        yield "\t".join((_name(number), *(_name(bound) if bound else "" for bound in bounds)))


def main(folder: Path) -> int:
    vllm, transformers = (read_folder(folder, package) for package in ("vllm", "transformers"))
    for file, lines in (
        ("architectures.tsv", [_head(vllm), *list_architectures(vllm)]),
        ("model_types.tsv", [_head(transformers), *list_model_types(vllm, transformers)]),
        ("transformers.tsv", list(list_requirements(vllm))),
    ):
        (FOLDER / file).write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{file}: {len(lines)} lines, of {len(vllm)} vLLM and {len(transformers)} Transformers")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
