"""The files that Envoy reads for all targets, made from the part of each target.

A part is a file `targets/TARGET/KIND.json`. Its resources are named TARGET, or TARGET/ and a name. The union
is a function of the parts: any process may make it again, and a process that is killed between the two
writes leaves the union of before.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from flettner.actuators.envoy.fence import locked
from flettner.actuators.envoy.response_file import BrokenFileError, read_response, replace_response
from flettner.actuators.envoy.split import Json

KINDS = ("cds", "lds")
"""Clusters and listeners. Routes have no union: Envoy reads those of each target from its part."""

PARTS = "targets"


def path(home: Path, kind: str) -> Path:
    return home / "xds" / f"{kind}.json"


def part(home: Path, target: str, kind: str) -> Path:
    return home / PARTS / target / f"{kind}.json"


def targets(home: Path) -> list[str]:
    """The names of the targets that have a part."""
    return sorted({file.parent.name for file in (home / PARTS).glob("*/*.json")})


def unite(home: Path, kind: str) -> None:
    """Replace the union, so that Envoy also tries again what it refused before. Raises ActError, OSError."""
    united = path(home, kind)
    united.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(home / "union.lock"):
        former = _readable(united) or ()
        resources = [resource for target in targets(home) for resource in _of(target, home, kind, former)]
        replace_response(united, _response(resources))


def _of(target: str, home: Path, kind: str, former: Sequence[Json]) -> list[Json]:
    """The resources of a target's part, or those of the former union while its part is broken."""
    response = _readable(part(home, target, kind))
    own = (resource for resource in (former if response is None else response) if _owner(resource) == target)
    return list(
        {str(resource["name"]): resource for resource in own}.values()
    )  # Envoy refuses a name that comes twice


def _readable(file: Path) -> tuple[Json, ...] | None:
    """None if the file is broken."""
    try:
        response = read_response(file)
    except BrokenFileError:
        return None
    return response[1] if response else ()


def _owner(resource: Json) -> str:
    return str(resource.get("name", "")).partition("/")[0]


def _response(resources: Sequence[Json]) -> bytes:
    version = hashlib.sha256(json.dumps(resources).encode()).hexdigest()[:16]
    return json.dumps({"version_info": version, "resources": resources}, indent=1).encode()
