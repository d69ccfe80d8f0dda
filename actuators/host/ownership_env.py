"""How a server process is known again by a daemon that did not start it: by what stands in its environment.

The mark is there from the server's first instant, so no crash between starting it and noting it loses it.
The note beside it (`servers/NAME.json`) adds what a process can hide: its words, where its log began.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from actuators.host.procfs import Process, environment, processes, words
from agent.domain.ports import Site

_SERVER = "TRIMTAB_SERVER"
_STATE = "TRIMTAB_STATE"
_EPOCH = "TRIMTAB_EPOCH"
_LONGEST_EPOCH = 18  # digits
_LOGS_KEPT = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipNote:
    """`servers/NAME.json`: the whole command line, secrets too, so only the daemon's user may read it."""

    pid: int
    started: int
    argv: tuple[str, ...]
    port: int
    epoch: int
    log_from: int = 0  # bytes that were in the log before


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedProcess:
    """A server of ours that runs."""

    name: str
    process: Process
    argv: tuple[str, ...]
    epoch: int


def marks(site: Site, name: str) -> dict[str, str]:
    """The environment that makes a process the server `name` of this site."""
    return {_SERVER: f"{site.target}/{name}", _STATE: _state(site), _EPOCH: str(site.epoch)}


def any_marked() -> Iterator[tuple[Process, Mapping[str, str]]]:
    """Every process of every server of every daemon on this host that we may see."""
    for one in processes():
        env = environment(one.pid)
        if _SERVER in env:
            yield one, env


def epoch_in(text: str) -> int:
    """What a mark says; 0 where that is no epoch."""
    return int(text) if text.isdecimal() and len(text) <= _LONGEST_EPOCH else 0


def is_marked(one: Process) -> bool:
    return _SERVER in environment(one.pid)


def marked(site: Site) -> dict[str, MarkedProcess]:
    """The site's servers whose first process, the leader of their session, runs."""
    found: dict[str, MarkedProcess] = {}
    for one, env in any_marked():
        target, _, name = env[_SERVER].rpartition("/")
        older = found.get(name)
        if target != site.target or env.get(_STATE) != _state(site) or one.session != one.pid:
            continue
        if older and older.process.started <= one.started:
            continue  # something that the server started in a session of its own
        note = read_note(site, name)
        known = note is not None and note.pid == one.pid and note.started == one.started
        argv = note.argv if note and known else tuple(words(one.pid))
        found[name] = MarkedProcess(name=name, process=one, argv=argv, epoch=epoch_in(env.get(_EPOCH, "")))
    return found


def members(site: Site, name: str) -> list[Process]:
    """All processes of the server, its leader dead or alive: those that bear its mark, and their sessions."""
    mark = marks(site, name)
    everybody = list(processes())
    bearing = []
    for one in everybody:
        env = environment(one.pid)
        if env.get(_SERVER) == mark[_SERVER] and env.get(_STATE) == mark[_STATE]:
            bearing.append(one)
    sessions = {one.session for one in bearing}
    return bearing + [one for one in everybody if one.session in sessions and one not in bearing]


def newest_epoch(site: Site, running: Mapping[str, MarkedProcess]) -> int:
    """Of the daemons that started a server here."""
    notes = (read_note(site, file.stem) for file in _folder(site).glob("*.json"))
    return max([0, *(one.epoch for one in running.values()), *(note.epoch for note in notes if note)])


def log_of(site: Site, name: str) -> Path:
    return _folder(site) / f"{name}.log"


def read_note(site: Site, name: str) -> OwnershipNote | None:
    """None where there is none that can be read: the mark alone must do then."""
    try:
        body = json.loads((_folder(site) / f"{name}.json").read_text(encoding="utf-8"))
        return OwnershipNote(**{**body, "argv": tuple(body["argv"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write_note(site: Site, name: str, note: OwnershipNote) -> None:
    write_private(_folder(site) / f"{name}.json", asdict(note))


def claim(site: Site, name: str) -> None:
    """A server that an older daemon was launching is this one's from now on: that one must not end it."""
    note = read_note(site, name)
    if note is not None and note.epoch < site.epoch:
        write_note(site, name, replace(note, epoch=site.epoch))


def drop_note(site: Site, name: str) -> None:
    (_folder(site) / f"{name}.json").unlink(missing_ok=True)


def make_room(site: Site) -> None:
    """A folder for notes and logs, with the latest logs only."""
    folder = _folder(site)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    logs = sorted(folder.glob("*.log"), key=lambda file: file.stat().st_mtime)
    for old in logs[:-_LOGS_KEPT]:
        if not old.with_suffix(".json").exists():
            old.unlink(missing_ok=True)


def write_private(file: Path, body: Mapping[str, Any]) -> None:
    """Whole or not at all, and readable by nobody else."""
    draft = file.with_suffix(".new")
    draft.touch(mode=0o600)
    draft.write_text(json.dumps(body), encoding="utf-8")
    draft.replace(file)


def _folder(site: Site) -> Path:
    return site.state_dir / "servers"


def _state(site: Site) -> str:
    return str(site.state_dir.resolve())
