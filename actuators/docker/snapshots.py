"""The snapshot of each container, `containers/SERVER.json`: enough to make it again when it is gone.

It holds the environment with its secrets, so only the user of the daemon may read it.
"""

import json
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from flettner.actuators.docker.spec import NEVER, ContainerSpec, Json
from flettner.actuators.host.ownership_env import write_private
from flettner.agent.domain.ports import Site

_OURS_KEPT = 5  # of containers that are gone; snapshots of adopted ones are kept for good


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    server: str
    id: str
    ours: bool
    epoch: int
    spec: Json = field(repr=False)  # as clone.document_to_keep returns it
    policy: Json = field(default_factory=lambda: dict(NEVER))  # its restart policy while it is not stopped
    stopped: bool = False  # by this daemon: only a launch starts it again
    asleep: str = ""  # when the container that sleeps was started; empty: it does not sleep
    gone: bool = False  # removed by this daemon

    def to_spec(self) -> ContainerSpec:
        return ContainerSpec.parse(self.spec)


def read_snapshot(site: Site, server: str) -> Snapshot | None:
    """Return None if there is no snapshot, or none that can be read."""
    try:
        body = json.loads((_folder(site) / f"{server}.json").read_text(encoding="utf-8"))
        return Snapshot(**{key.name: body[key.name] for key in fields(Snapshot) if key.name in body})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def read_all(site: Site) -> list[Snapshot]:
    """Return all snapshots, the latest written first."""
    files = sorted(_folder(site).glob("*.json"), key=_written, reverse=True)
    return [kept for file in files if (kept := read_snapshot(site, file.stem)) is not None]


def write_snapshot(site: Site, kept: Snapshot) -> None:
    folder = _folder(site)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(folder / f"{kept.server}.json", asdict(kept))


def update(site: Site, server: str, **to: Any) -> None:  # noqa: ANN401 - the fields of Snapshot
    """Change fields of a snapshot; no error if there is none."""
    kept = read_snapshot(site, server)
    if kept is not None and (changed := replace(kept, **to)) != kept:
        write_snapshot(site, changed)


def prune(site: Site) -> None:
    """Remove snapshots of containers that this daemon made and removed, except the latest few."""
    for old in [kept for kept in read_all(site) if kept.ours and kept.gone][_OURS_KEPT:]:
        (_folder(site) / f"{old.server}.json").unlink(missing_ok=True)


def _written(file: Path) -> int:
    try:
        return int(file.stat().st_mtime_ns)
    except OSError:
        return 0


def _folder(site: Site) -> Path:
    return site.state_dir / "containers"
