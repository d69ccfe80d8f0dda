"""Mark the processes of servers by their environment, so that a later daemon finds them.

The mark exists from the first instant of a process, so a crash of the daemon between a start and its note
loses no server. The note (`servers/NAME.json`) adds the command line, which a process can change, and where
its log began.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from flettner.actuators.host.notes import Notes
from flettner.actuators.host.procfs import Process, environment, name_of, processes, user_of, words
from flettner.agent.domain.ports import Site

_SERVER = "FLETTNER_SERVER"
_STATE = "FLETTNER_STATE"
_EPOCH = "FLETTNER_EPOCH"
_NEWEST_EPOCH = 10**9  # starts of a daemon: one each second for 30 years
_LOGS_KEPT = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipNote:
    """`servers/NAME.json`. It holds secrets: only the user of the daemon may read it."""

    pid: int
    started: int
    argv: tuple[str, ...]
    port: int
    epoch: int
    log_from: int = 0  # size of the log before the start, bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedProcess:
    """A running server of this site."""

    name: str
    process: Process
    argv: tuple[str, ...]
    epoch: int


def marks(site: Site, name: str) -> dict[str, str]:
    """Return the environment that marks a process as the server `name` of this site."""
    return {_SERVER: f"{site.target}/{name}", _STATE: _state(site), _EPOCH: str(site.epoch)}


def without_marks(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in {_SERVER, _STATE, _EPOCH}}


def any_marked() -> Iterator[tuple[Process, Mapping[str, str]]]:
    """Yield the visible processes of all servers of all daemons of this user.

    Anyone can give a process an environment: a mark of another user counts only in `marked`, for a process
    that a note of ours names.
    """
    for process in processes():
        env = environment(process.pid)
        if _SERVER in env and is_of_this_user(process.pid):
            yield process, env


def first_processes() -> Iterator[tuple[str, Process, Mapping[str, str]]]:
    """Yield target and name, the leader of the session, and the environment of all servers on this host."""
    for process, env in any_marked():
        if process.session == process.pid:
            yield env[_SERVER], process, env


def epoch_in(text: str) -> int:
    """Parse the epoch of a mark; 0 if it is none, or larger than a daemon of ours can have reached."""
    epoch = int(text) if text.isdecimal() and len(text) <= len(str(_NEWEST_EPOCH)) else 0
    return epoch if epoch <= _NEWEST_EPOCH else 0


def describe(pid: int) -> str:
    """Name a process by the server that it belongs to, if it is marked, and by what `ps` shows."""
    server = environment(pid).get(_SERVER, "")
    return f"{server or 'another server'} (process {pid}, {name_of(pid)})"


def is_of_this_user(pid: int) -> bool:
    """Whether the kernel says that the process belongs to the user of the daemon."""
    return os.geteuid() in user_of(pid)


def is_marked(process: Process) -> bool:
    return _SERVER in environment(process.pid) and is_of_this_user(process.pid)


def marked(site: Site) -> dict[str, MarkedProcess]:
    """Return the servers of the site whose first process, the leader of its session, runs."""
    newest: dict[str, MarkedProcess] = {}
    noted = {(note.pid, note.started) for note in _read_notes(site)}
    for process in processes():
        env = environment(process.pid)
        if _SERVER not in env:
            continue
        if not is_of_this_user(process.pid) and (process.pid, process.started) not in noted:
            continue  # another user's; a server of ours may have become another user's by its command
        target, _, name = env[_SERVER].rpartition("/")
        older = newest.get(name)
        if target != site.target or env.get(_STATE) != _state(site) or process.session != process.pid:
            continue
        if older and older.process.started <= process.started:
            continue  # a child of the server in a session of its own
        note = read_note(site, name)
        is_noted = note is not None and note.pid == process.pid and note.started == process.started
        argv = note.argv if note and is_noted else tuple(words(process.pid))
        newest[name] = MarkedProcess(
            name=name, process=process, argv=argv, epoch=epoch_in(env.get(_EPOCH, ""))
        )
    return newest


def members(site: Site, name: str) -> list[Process]:
    """Return all processes with the mark of the server and all of their sessions, even without a leader."""
    mark = marks(site, name)
    note, running = read_note(site, name), list(processes())
    marked_processes = []
    for process in running:
        env = environment(process.pid)
        is_ours = is_of_this_user(process.pid) or (note is not None and process.session == note.pid)
        if is_ours and env.get(_SERVER) == mark[_SERVER] and env.get(_STATE) == mark[_STATE]:
            marked_processes.append(process)
    sessions = {process.session for process in marked_processes}
    return marked_processes + [
        process for process in running if process.session in sessions and process not in marked_processes
    ]


def newest_epoch(site: Site, running: Mapping[str, MarkedProcess]) -> int:
    """Return the newest epoch of the daemons that started a server here."""
    noted = (note.epoch for note in _read_notes(site))
    return max([0, *(process.epoch for process in running.values()), *noted])


def _read_notes(site: Site) -> list[OwnershipNote]:
    return [note for note in map(_parse, _notes(site).read_all()) if note is not None]


def log_of(site: Site, name: str) -> Path:
    return _folder(site) / f"{name}.log"


def read_note(site: Site, name: str) -> OwnershipNote | None:
    """Return None if there is none that can be read; the mark suffices then."""
    return _parse(_notes(site).read(name))


def write_note(site: Site, name: str, note: OwnershipNote) -> None:
    _notes(site).write(name, asdict(note))


def claim(site: Site, name: str) -> None:
    """Take over a server that an older daemon was launching, so that the older one does not end it."""
    note = read_note(site, name)
    if note is not None and note.epoch < site.epoch:
        write_note(site, name, replace(note, epoch=site.epoch))


def drop_note(site: Site, name: str) -> None:
    _notes(site).drop(name)


def prepare_folder(site: Site) -> None:
    """Make the folder of notes and logs; remove old logs."""
    folder = _folder(site)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    logs = sorted(folder.glob("*.log"), key=lambda file: file.stat().st_mtime)
    for old in logs[:-_LOGS_KEPT]:
        if not old.with_suffix(".json").exists():
            old.unlink(missing_ok=True)


def _parse(note: Mapping[str, Any] | None) -> OwnershipNote | None:
    try:
        return OwnershipNote(**{**note, "argv": tuple(note["argv"])}) if note else None
    except (TypeError, KeyError):
        return None


def _notes(site: Site) -> Notes:
    return Notes(_folder(site))


def _folder(site: Site) -> Path:
    return site.state_dir / "servers"


def _state(site: Site) -> str:
    return str(site.state_dir.resolve())
