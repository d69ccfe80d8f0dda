"""The files of a support bundle: what explains a daemon to an outsider, without secrets and prompts."""

import json
import re
import urllib.request
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from flettner.agent.api.client import ApiClient, RefusedError, UnreachableError
from flettner.agent.audit.continuity import verify_in_place
from flettner.agent.audit.segments import open_files
from flettner.agent.domain.errors import FlettnerError, JournalError
from flettner.primitives.wall_clock import utc_now
from flettner.redaction import MASK, masked
from flettner.tools.cli.remote_command import path

HEAD_ENTRIES, TAIL_ENTRIES = 20, 2000
TAIL_BYTES = 32 * 2**20
PAGE_BYTES = 4 * 2**20  # of one server's metrics
_PROMPT = re.compile(r"(?is)((?:prompt(?:_token_ids|_embeds)?|messages)[\"']?\s{0,9}[:=]\s{0,9})\S.*")
"""vLLM logs requests as `prompt: 'TEXT', params: …`, so the rest of the text goes."""
_SECRET_TABLES = frozenset({"notify", "env", "headers"})
_HARMLESS = frozenset({"kind", "name", "severity"})
_NAMES = frozenset(
    {"host", "hosts", "containers", "model", "served_model_name", "public_url", "serving", "url"}
)
"""Keys whose values name a host, a container or a model, wherever they are."""
_PUBLIC = frozenset({"", MASK, "localhost", "127.0.0.1", "0.0.0.0", "http:", "https:", "unix:"})  # noqa: S104


@dataclass(slots=True)
class Contents:
    """`files` by name; `missing`: why a file is not there. `names`: what each name is replaced by."""

    files: dict[str, bytes] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def add_json(self, name: str, document: object) -> None:
        self.files[name] = json.dumps(clean(document), indent=1).encode()

    def add_lines(self, name: str, documents: Iterable[object]) -> None:
        self.files[name] = b"".join(json.dumps(clean(each)).encode() + b"\n" for each in documents)

    def try_to_add(self, name: str, add: Callable[[], None]) -> None:
        """Note why the file is missing, instead of giving up the others."""
        try:
            add()
        except (FlettnerError, RefusedError, UnreachableError, OSError, ValueError) as error:
            self.missing[name] = clean_text(str(error))


def clean(document: object) -> Any:  # noqa: ANN401 - any JSON value
    """Return JSON without secrets, and without what follows the word `prompt:` in any text."""
    return _map_text(masked(document), cut_prompts)


def clean_text(text: str) -> str:
    return "".join(str(clean(line)) for line in text.splitlines(keepends=True))


def cut_prompts(text: str) -> str:
    return _PROMPT.sub(rf"\1{MASK}", text)


def _map_text(value: Any, change: Callable[[str], str]) -> Any:  # noqa: ANN401
    match value:
        case str():
            return change(value)
        case dict():
            return {change(key): _map_text(item, change) for key, item in value.items()}
        case list():
            return [_map_text(item, change) for item in value]
        case _:
            return value


# The config.


def clean_config(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of a config file; of notices, environments and headers only the keys are left."""
    return {
        key: _without_values(value) if key in _SECRET_TABLES else _clean_table(value)
        for key, value in document.items()
    }


def _clean_table(value: Any) -> Any:  # noqa: ANN401 - any TOML value
    match value:
        case dict():
            return clean_config(value)
        case list():
            return [_clean_table(item) for item in value]
        case _:
            return value


def _without_values(value: Any, key: str = "") -> Any:  # noqa: ANN401 - any TOML value
    match value:
        case dict():
            return {name: _without_values(item, name) for name, item in value.items()}
        case list():
            return [_without_values(item, key) for item in value]
        case str() if key not in _HARMLESS:
            return MASK
        case _:
            return value


# The journal.


def add_journal(contents: Contents, journal: Path) -> None:
    """Add the result of its verification, and its first and last entries. Raises JournalError."""
    result = verify_in_place(journal, now=utc_now())
    contents.add_json("journal/verification.json", asdict(result))
    contents.add_lines("journal/head.jsonl", islice(_entries(journal, 0), HEAD_ENTRIES))
    tail: deque[bytes] = deque(maxlen=TAIL_ENTRIES)
    tail.extend(_lines(journal, max(0, result.head.seq - TAIL_ENTRIES)))
    while sum(map(len, tail)) > TAIL_BYTES:
        tail.popleft()
    contents.add_lines("journal/tail.jsonl", map(json.loads, tail))


def _entries(journal: Path, after: int) -> Iterator[Any]:
    return map(json.loads, _lines(journal, after))


def _lines(journal: Path, after: int) -> Iterator[bytes]:
    try:
        for _, file, _ in open_files(journal, after):
            yield from (line for line in file if line.endswith(b"\n"))
    except OSError as error:
        raise JournalError(f"{error.filename or journal}: cannot be read: {error.strerror}") from error


# The daemon and its servers.


def add_daemon(contents: Contents, daemon: ApiClient, targets: Sequence[str]) -> None:
    def add(name: str, request: str) -> None:
        contents.try_to_add(name, lambda: contents.add_json(name, daemon.get(request)))

    def add_text(name: str, request: str) -> None:
        contents.try_to_add(
            name, lambda: contents.files.update({name: clean_text(daemon.get_text(request)).encode()})
        )

    add_text("metrics.txt", "/metrics")
    for kind in ("targets", "suggestions", "rollouts"):
        add(f"{kind}.json", f"/v1/{kind}")
    for target in targets:
        add(f"targets/{target}/inputs.json", path("targets", target, "inputs"))
        add(f"targets/{target}/model.json", path("targets", target, "model"))
        add(f"targets/{target}/series.json", path("targets", target, "series"))
        add_text(f"targets/{target}/trace.jsonl", path("targets", target, "trace"))
    with suppress(KeyError):
        for target in json.loads(contents.files["targets.json"])["targets"]:
            for server in target["servers"]:
                name = f"targets/{target['name']}/{server['name']}.metrics.txt"
                contents.try_to_add(name, lambda name=name, server=server: _add_page(contents, name, server))  # type: ignore[misc]


def _add_page(contents: Contents, name: str, server: Mapping[str, str]) -> None:
    """The server's own /metrics."""
    with urllib.request.urlopen(f"http://{server['address']}/metrics", timeout=5) as page:
        contents.files[name] = clean_text(page.read(PAGE_BYTES).decode("utf-8", "replace")).encode()


# Names.


def hide_names(contents: Contents, targets: Sequence[str]) -> None:
    """Replace the names of targets, models, containers, people and hosts, each by the same other one."""
    all_names = {
        *targets,
        *(name for file in contents.files.values() for name in _find_names(_parse_all(file))),
    }
    names = sorted(all_names - _PUBLIC)
    if not names:
        return
    replaced = {name: f"name{number}" for number, name in enumerate(names, 1)}
    longest_first = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    pattern = re.compile(rf"(?<![A-Za-z0-9_])(?:{longest_first})(?![A-Za-z0-9_])")

    def change(text: str) -> str:
        return pattern.sub(lambda match: replaced[match[0]], text)

    contents.files = {
        change(name): change(content.decode()).encode() for name, content in contents.files.items()
    }
    contents.missing = {change(name): change(why) for name, why in contents.missing.items()}


def _parse_all(content: bytes) -> Iterator[Any]:
    with suppress(ValueError):
        yield json.loads(content)
        return
    for line in content.splitlines():
        with suppress(ValueError):
            yield json.loads(line)


def _find_names(documents: Iterable[Any]) -> Iterator[str]:
    for document in documents:
        if isinstance(document, list):
            yield from _find_names(document)
        if not isinstance(document, dict):
            continue
        if document.get("kind") == "person":
            yield str(document.get("id", ""))
        for key, value in document.items():
            if key in _NAMES:
                for text in value if isinstance(value, list) else [value]:
                    yield from _parts_of(text) if isinstance(text, str) else ()
            yield from _find_names([value])


def _parts_of(name: str) -> Iterator[str]:
    """A path or a URL in full, and its parts, which occur alone, too: `org/model`, `http://host:8000`."""
    yield name
    for part in name.split("/"):
        yield part.partition(":")[0] if "." in part or ":" in part else part
