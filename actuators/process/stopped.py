"""The note on a server that flettner has stopped for a rollout, `stopped/SERVER.json`: only a launch ends it.

It is written before the server sleeps or ends, so that a daemon that starts meanwhile gives it no traffic.
"""

from dataclasses import asdict, dataclass

from flettner.actuators.host.notes import Note, Notes
from flettner.actuators.host.procfs import Process
from flettner.agent.domain.ports import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class StopNote:
    """A sleeping process. `pid`: 0 if it has ended. `epoch`: that of the daemon that stopped it."""

    pid: int = 0
    started: int = 0
    epoch: int

    @property
    def sleeps(self) -> bool:
        return self.pid > 0

    def names(self, process: Process | None) -> bool:
        """Whether this process sleeps, not one that a third party has started again."""
        return process is not None and (process.pid, process.started) == (self.pid, self.started)


def write_asleep(site: Site, server: str, process: Process) -> None:
    note = StopNote(pid=process.pid, started=process.started, epoch=site.epoch)
    _notes(site).write(server, asdict(note))


def write_ended(site: Site, server: str) -> None:
    _notes(site).write(server, asdict(StopNote(epoch=site.epoch)))


def read_note(site: Site, server: str) -> StopNote | None:
    """Return None if it is not stopped, or if the note cannot be read."""
    return _parse(_notes(site).read(server))


def drop_note(site: Site, server: str) -> None:
    _notes(site).drop(server)


def is_asleep(site: Site, server: str, process: Process | None) -> bool:
    note = read_note(site, server)
    return note is not None and note.names(process)


def newest_epoch(site: Site) -> int:
    """Return 0 if no server is stopped."""
    notes = map(_parse, _notes(site).read_all())
    return max((note.epoch for note in notes if note is not None), default=0)


def _parse(note: Note | None) -> StopNote | None:
    try:
        return StopNote(**note) if note else None
    except TypeError:
        return None


def _notes(site: Site) -> Notes:
    return Notes(site.state_dir / "stopped")
