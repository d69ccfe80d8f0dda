"""Timed faults of the daemon, the host, the proxy, the servers and the metrics."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from flettner.agent.domain import events as e
from flettner.agent.domain.errors import ConfigError, JournalError
from flettner.agent.machine.transitions import IDLE
from tests.simulation.api_client import PRINCIPALS
from tests.simulation.config_file import Content
from tests.simulation.load import change_lengths, return_load
from tests.simulation.scenario import Act
from tests.simulation.setup import BLUE, OWNERS_CAP
from tests.simulation.world import Process, Split

if TYPE_CHECKING:
    from tests.simulation.history import History

LASTING = frozenset({"metrics stale", "metrics NaN", "metrics reset", "metrics missing", "records missing"})
TO_SERVERS = frozenset(
    {
        "old server exits",
        "old server freezes for a while",
        "out of memory",
        "server removed by hand",
        "flags changed by hand",
        "stray server by hand",
    }
)
STATUS = {"exits": "exited", "hangs": "hung", "wedges": "wedged"}
STRAY = "chat-r99"
LONG_S = 20.0
ERRS = 0.8  # share of the requests of a server that errs
HOUR_S = 3600.0
Action = Callable[["History", Act], bool]


def do(history: "History", act: Act) -> bool:
    """Apply the act; False if it has no target yet."""
    what = act.what
    if what in LASTING:
        history.trouble(what, act.lasts_s)
        return True
    if what.startswith("operator "):
        return history.operator.do(what)
    if what in TO_SERVERS and not history.observer.writer:
        return False  # no daemon has observed the servers yet
    who, _, how = what.rpartition(" ")
    if how in {*STATUS, "errs"} and who in {"old server", "new server"}:
        return _break_server(history, how, new=who == "new server") is not None
    return ACTIONS[what](history, act)


def _break_server(history: "History", how: str, *, new: bool) -> Process | None:
    greens = history.observer.greens
    answering = [server for server in history.world.servers.values() if server.answers]
    servers = [server for server in answering if (server.name in greens) is new]
    if not servers:
        return None
    broken = history.random.choice(servers)
    if how == "errs":
        broken.errors, broken.since_s = ERRS, history.world.at_s
        history.world.changed("errs", broken.name, 0)
    else:
        history.world.set_status(broken.name, STATUS[how])
    return broken


def _freeze(history: "History", act: Act) -> bool:
    """An old server hangs, and answers again later."""
    frozen = _break_server(history, "hangs", new=False)
    if frozen is None:
        return False

    def thaw() -> None:
        if history.world.servers.get(frozen.name) is frozen and frozen.status == "hung":
            history.world.set_status(frozen.name, "healthy")

    history.loop.outside(act.lasts_s, thaw)
    return True


def _kill(history: "History", act: Act, after_s: float = 2.0) -> bool:
    del act
    daemon = history.daemon
    if daemon is None:
        return False
    daemon.kill(after_s)
    return True


def _kill_twice(history: "History", act: Act) -> bool:
    if not _kill(history, act):
        return False
    history.loop.outside(
        2.0 + act.lasts_s / 4, lambda: None if history.quiet else _kill(history, act) and None
    )
    return True


def _dead_for_long(history: "History", act: Act) -> bool:
    return _kill(history, act, LONG_S)


def _advise(history: "History", act: Act) -> bool:
    if not _kill(history, act):
        return False
    before, history.mode = history.mode, "advise"

    def back() -> None:
        history.mode = before
        if not history.quiet:
            _kill(history, act)

    history.loop.outside(2.0 + act.lasts_s, back)
    return True


def _pause(history: "History", act: Act) -> bool:
    daemon = history.daemon
    if daemon is None:
        return False
    daemon.owner.frozen = True

    def wake() -> None:
        history.observer.woke_s = history.loop.now_s
        history.loop.thaw(daemon.owner)

    history.loop.outside(act.lasts_s, wake)
    return True


def _replace(history: "History", act: Act) -> bool:
    daemon = history.daemon
    if daemon is None or history.observer.writer < daemon.epoch:
        return False  # without its lock, the two are indistinguishable before a write
    _pause(history, replace(act, lasts_s=act.lasts_s + 3.0))
    history.loop.outside(2.0, lambda: history.start(beside=True))
    return True


def _clock(seconds: float) -> Action:
    def jump(history: "History", act: Act) -> bool:
        del act
        history.loop.skew_s += seconds
        history.world.note_shares()
        return True

    return jump


def _proxy(history: "History", act: Act) -> bool:
    """Restart the proxy after a moment with its last route."""
    del act
    history.world.proxy_up = False

    def back() -> None:
        history.world.proxy_up = True

    history.loop.outside(2.0, back)
    return True


def _out_of_memory(history: "History", act: Act) -> bool:
    """The kernel kills the largest server, and another one a moment later."""
    del act
    names = [process.name for process in history.world.servers.values() if process.status != "starting"]
    history.random.shuffle(names)
    for name in names[:1]:
        history.world.set_status(name, "exited")
    return bool(names)


def _removed(history: "History", act: Act) -> bool:
    del act
    names = sorted(history.world.servers)
    if names:
        history.world.finish(history.random.choice(names), 0, keep=False)
    return bool(names)


def _other_flags(history: "History", act: Act) -> bool:
    """An operator restarts an adopted server with other flags."""
    del act
    servers = [process for process in history.world.servers.values() if not process.ours and process.answers]
    if not servers:
        return False
    server = history.random.choice(servers)
    history.world.finish(server.name, 0, keep=False)
    setting = {**server.setting, "max_num_seqs": OWNERS_CAP}
    history.mixed = True
    history.observer.allowed.add(frozenset(setting.items()))
    history.loop.outside(1.5, lambda: _again(history, server, setting))
    return True


def _again(history: "History", server: Process, setting: dict[str, object]) -> None:
    if server.name not in history.world.servers and server.name not in history.world.stopped:
        process = history.world.adopt(server.name, setting, ours=False)
        process.address = server.address


def _weights(history: "History", act: Act) -> bool:
    """An operator writes another split into the proxy."""
    del act
    split = history.world.split
    up = sorted(process.name for process in history.world.servers.values() if process.answers)
    if split is None or not up:
        return False
    mine: Split = replace(
        split,
        weights={up[-1]: 100},
        addresses={up[-1]: history.world.servers[up[-1]].address},
        fallback=up[-1],
        leased=None,
        closed_s=0.0,
        number=0,
    )
    history.world.split, history.observer.handed_s = mine, history.world.at_s
    history.world.note_shares()
    return True


def _stray(history: "History", act: Act) -> bool:
    """An untracked server with the ownership mark."""
    del act
    history.world.adopt(STRAY, dict(BLUE), ours=True)
    return True


def _token(history: "History", act: Act) -> bool:
    """Remove an operator's token from the file and send SIGHUP; restore it later."""
    all_principals = frozenset(PRINCIPALS)
    history.admit(all_principals - {history.random.choice(("alice", "bob"))})
    history.loop.outside(act.lasts_s, lambda: history.admit(all_principals))
    return True


def _tokens_broken(history: "History", act: Act) -> bool:
    """Write an invalid tokens file; the tokens in force stay."""
    del act
    history.admit(history.principals, broken=True)
    return True


def _configured(history: "History", act: Act) -> bool:
    """Other steps, bounds, drain and lease after a restart; an approved rollout keeps its plan."""
    if not _kill(history, act):
        return False
    history.other = not history.other
    return True


def _asleep(why: str) -> Action:
    def fail(history: "History", act: Act) -> bool:
        del act
        return history.world.fail_asleep(why)

    return fail


def _reload(history: "History", act: Act) -> bool:
    """Reload another configuration; a rollout that runs keeps the earlier rules until its end."""
    del act
    daemon, file, content = history.daemon, history.file, Content(not history.other)
    if daemon is None or file.is_read:
        return False

    def done(error: Exception | None) -> None:
        file.is_read = False
        if error is None:
            history.other = content.other
        elif not isinstance(error, JournalError):
            history.observer.wrong(f"reload: a valid config is refused: {error}")

    file.content, file.is_read = content, True
    daemon.reload(history.random.choice(("", "bob")), done)
    return True


def _refused_reload(content: Content | None) -> Action:
    """Reload a file that no daemon may take: nothing changes."""

    def act_on(history: "History", act: Act) -> bool:
        del act
        daemon, file = history.daemon, history.file
        if daemon is None or daemon.loop is None or daemon.runtime.config is None or file.is_read:
            return False
        loop, config = daemon.loop, daemon.runtime.config
        before, asked, reloads = config.config, loop._next, history.observer.reloads

        def done(error: Exception | None) -> None:
            file.content, file.is_read = file.in_force, False
            same = config.config is before and (loop._next is None or loop._next is asked)
            if not isinstance(error, ConfigError) or not same or history.observer.reloads != reloads:
                history.observer.wrong(f"reload: an invalid config changes something: {error}")

        file.content, file.is_read = content and replace(content, other=not history.other), True
        daemon.reload("bob", done)
        return True

    return act_on


def _maintenance(history: "History", act: Act) -> bool:
    """Pause for maintenance; an old server ends meanwhile, and nobody but the operator starts it again.

    An operator whose pause is refused, as while the journal cannot be written, leaves the server alone.
    """
    daemon = history.daemon
    if daemon is None or daemon.state is None or daemon.state.phase not in IDLE or daemon.state.paused:
        return False
    path = f"/v1/targets/{daemon.state.target}"
    history.operator.ask("bob", f"{path}/pause?maintenance=true", None)

    def end_server() -> None:
        if history.observer.maintenance and not history.quiet:  # then no owner starts an adopted one again
            _break_server(history, "exits", new=False)

    history.loop.outside(1.0, end_server)
    history.loop.outside(2.0 + act.lasts_s, lambda: history.operator.ask("bob", f"{path}/resume", None))
    return True


ACTIONS: dict[str, Action] = {
    "lengths change": change_lengths,
    "load returns": return_load,
    "config reloaded": _reload,
    "config broken": _refused_reload(None),
    "config needs a restart": _refused_reload(Content(other=False, state_dir="/elsewhere")),
    "maintenance": _maintenance,
    "sleeping server exits": _asleep("ended while it slept"),
    "sleeping server does not wake": _asleep("did not wake"),
    "token removed": _token,
    "tokens file broken": _tokens_broken,
    "restarted with another configuration": _configured,
    "daemon killed": _kill,
    "daemon killed twice": _kill_twice,
    "daemon paused": _pause,
    "daemon paused and replaced": _replace,
    "daemon dead for long": _dead_for_long,
    "daemon restarted in advise mode": _advise,
    "clock forward": _clock(HOUR_S),
    "clock back": _clock(-HOUR_S),
    "proxy restarts": _proxy,
    "old server freezes for a while": _freeze,
    "out of memory": _out_of_memory,
    "server removed by hand": _removed,
    "flags changed by hand": _other_flags,
    "weights changed by hand": _weights,
    "stray server by hand": _stray,
}


def heal(history: "History") -> None:
    """End all faults: hanging servers answer, adopted servers run, operators are present."""
    end_faults(history)
    world = history.world
    for name in [running.name for running in world.servers.values() if running.status in {"hung", "wedged"}]:
        world.set_status(name, "healthy")
    for process in (*world.servers.values(), *world.stopped.values()):
        process.errors = 0.0
    state = history.daemons[-1].state
    if not history.scenario.ours and state is not None:
        missing = [s for s in state.fleet.servers if not s.ours and s.name not in state.fleet.stopped]
        for server in missing:
            if server.name not in world.servers and server.name not in world.stopped:
                process = world.adopt(server.name, dict(server.setting), ours=False)
                process.address = server.address
    run_daemon(history)


def end_faults(history: "History") -> None:
    """End the faults of the daemon, the disk, the metrics and the proxy."""
    history.quiet = history.world.quiet = True
    history.say("-- all faults end")
    for what in {*history.troubles} - {"unwritable"}:  # decisions made meanwhile still need writing
        del history.troubles[what]
    history.trouble("nothing", 0.0)
    history.mode = history.scenario.mode
    history.admit(frozenset(PRINCIPALS))
    history.world.proxy_up = True
    for daemon in history.daemons:
        history.loop.thaw(daemon.owner)


def run_daemon(history: "History") -> None:
    """Start a daemon that acts, unless one runs."""
    newest = history.daemons[-1]
    if newest.killed or newest.over or (newest.state is not None and newest.state.mode == "advise"):
        newest.kill(None)
        history.loop.outside(1.0, history.start)
    history.loop.outside(3.0, lambda: _last_words(history))


def _last_words(history: "History") -> None:
    """Start nothing new; an impatient operator aborts the running rollout."""
    at, state = history.now(), history.daemons[-1].state
    if state is not None and state.maintenance:
        history.operator.say(e.Resumed(at=at, actor="alice"))
    history.operator.say(e.Paused(at=at, actor="alice"))
    if history.scenario.impatient:
        history.operator.say(e.Aborted(at=at, actor="alice", reason="enough"))
