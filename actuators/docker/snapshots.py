"""What is kept of each container, `containers/SERVER.json`: enough to make it again when it is gone.

The environment is in it, secrets too, so only the daemon's user may read it.
"""

import json
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from actuators.docker.spec import NEVER, ContainerSpec, Json
from actuators.host.ownership_env import write_private
from agent.domain.ports import Site

_OURS_KEPT = 5  # of containers that are gone; those that somebody else made are kept for good


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshots:
    server: str
    id: str
    ours: bool
    epoch: int
    spec: Json = field(repr=False)  # as clone.document_to_keep returns it
    policy: Json = field(default_factory=lambda: dict(NEVER))  # its restart policy, when it is not stopped
    stopped: bool = False  # by us: nothing but a launch starts it again
    gone: bool = False  # removed by us

    def parsed(self) -> ContainerSpec:
        return ContainerSpec.parse(self.spec)


def read(site: Site, server: str) -> Snapshots | None:
    """None where nothing is kept, or nothing that can be read."""
    try:
        body = json.loads((_folder(site) / f"{server}.json").read_text(encoding="utf-8"))
        return Snapshots(**{key.name: body[key.name] for key in fields(Snapshots)})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def every(site: Site) -> list[Snapshots]:
    """The latest written first."""
    files = sorted(_folder(site).glob("*.json"), key=_written, reverse=True)
    return [kept for file in files if (kept := read(site, file.stem)) is not None]


def write(site: Site, kept: Snapshots) -> None:
    folder = _folder(site)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(folder / f"{kept.server}.json", asdict(kept))


def change(site: Site, server: str, **to: Any) -> None:  # noqa: ANN401 - the fields of Kept
    """Fine if nothing is kept of it, or it says so already."""
    kept = read(site, server)
    if kept is not None and (changed := replace(kept, **to)) != kept:
        write(site, changed)


def forget_old(site: Site) -> None:
    """Of the containers that we made and removed, the latest few are enough to make another one like them."""
    for old in [kept for kept in every(site) if kept.ours and kept.gone][_OURS_KEPT:]:
        (_folder(site) / f"{old.server}.json").unlink(missing_ok=True)


def _written(file: Path) -> int:
    try:
        return int(file.stat().st_mtime_ns)
    except OSError:
        return 0


def _folder(site: Site) -> Path:
    return site.state_dir / "containers"
