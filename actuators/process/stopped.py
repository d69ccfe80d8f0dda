"""The note on a server that flettner has stopped for a rollout, `stopped/SERVER.json`: only a launch ends it.

It is written before the server sleeps or ends, so that a daemon that starts meanwhile gives it no traffic.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from flettner.actuators.host.ownership_env import write_private
from flettner.actuators.host.procfs import Process
from flettner.agent.domain.ports import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class StopNote:
    """The process that sleeps; `pid` 0: it has ended. `epoch`: of the daemon that stopped it."""

    pid: int = 0
    started: int = 0
    epoch: int

    @property
    def sleeps(self) -> bool:
        return self.pid > 0

    def names(self, one: Process | None) -> bool:
        """Whether this process sleeps, not one that a third party has started again."""
        return one is not None and (one.pid, one.started) == (self.pid, self.started)


def write_asleep(site: Site, server: str, one: Process) -> None:
    _write(site, server, StopNote(pid=one.pid, started=one.started, epoch=site.epoch))


def write_ended(site: Site, server: str) -> None:
    _write(site, server, StopNote(epoch=site.epoch))


def read_note(site: Site, server: str) -> StopNote | None:
    """Return None if it is not stopped, or if the note cannot be read."""
    try:
        return StopNote(**json.loads((_folder(site) / f"{server}.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def drop_note(site: Site, server: str) -> None:
    (_folder(site) / f"{server}.json").unlink(missing_ok=True)


def is_asleep(site: Site, server: str, one: Process | None) -> bool:
    note = read_note(site, server)
    return note is not None and note.names(one)


def newest_epoch(site: Site) -> int:
    """Return 0 if no server is stopped."""
    notes = [read_note(site, file.stem) for file in _folder(site).glob("*.json")]
    return max((note.epoch for note in notes if note is not None), default=0)


def _write(site: Site, server: str, note: StopNote) -> None:
    _folder(site).mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(_folder(site) / f"{server}.json", asdict(note))


def _folder(site: Site) -> Path:
    return site.state_dir / "stopped"
