"""Start a process that outlives the daemon, get its exit code, and end it with all its descendants."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from flettner.actuators.host.procfs import Process, process, processes, runs, with_descendants, words
from flettner.agent.domain.errors import ActError
from flettner.primitives.waiting import poll_until

_POLL_S = 0.05
_EXEC_S = 0.001
_KILLED_WITHIN_S = 30.0  # SIGKILL waits for the kernel: freeing a GPU's memory takes seconds

# Module state, because the parent process must reap its children, whatever engine object started them.
_children: dict[tuple[int, int], subprocess.Popen[bytes]] = {}  # by pid and start time


def spawn(argv: Sequence[str], *, env: Mapping[str, str], cwd: str, log: Path) -> Process:
    """Start `argv` in a session of its own, its output appended to `log`. Raises OSError if it cannot."""
    opened = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        child = subprocess.Popen(  # noqa: S603 - the command is configured by the operator
            argv,
            env=env,
            cwd=cwd or None,
            stdin=subprocess.DEVNULL,
            stdout=opened,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    finally:
        os.close(opened)
    spawned = process(child.pid)
    if spawned is None:
        raise ProcessLookupError(f"{argv[0]} ended as it was started")
    _children[spawned.pid, spawned.started] = child
    _expose_to_oom(spawned.pid)
    while runs(spawned) and not words(spawned.pid):
        time.sleep(_EXEC_S)  # the kernel shows command line and environment a moment after exec
    return spawned


def _expose_to_oom(pid: int) -> None:
    """Do not inherit a negative OOMScoreAdjust: systemd protects the daemon by it, not the servers."""
    score = Path("/proc", str(pid), "oom_score_adj")
    with suppress(OSError):  # it has ended, or /proc is not writable
        if int(score.read_text(encoding="ascii")) < 0:
            score.write_text("0", encoding="ascii")


def exit_code(process: Process) -> int | None:
    """Return the exit code, negative for a signal. None: it runs, or is no child of this process."""
    child = _children.get((process.pid, process.started))
    return child.poll() if child else None


def how_it_ended(code: int | None) -> str:
    """Describe an exit code. The meanings of 1 and 2 were observed with vLLM 0.32."""
    if code is None:
        return "exited (code unknown: it was not started by this daemon)"
    if code < 0 or code > 128:  # noqa: PLR2004 - a shell reports "killed by code - 128" so
        number = -code if code < 0 else code - 128
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        return f"was killed by {name}" + (" (out of host memory?)" if number == signal.SIGKILL else "")
    meaning = {
        1: ": invalid value, or the engine failed to start",
        2: ": unknown flag, or a value of the wrong kind",
    }
    return f"exited with code {code}{meaning.get(code, '')}"


def was_ended_from_outside(code: int | None, *, cause: str = "", oom: bool = False) -> bool:
    """Whether a third party ended the process by a signal, which vLLM may answer by an exit with code 0.

    `cause`: what its log names. `oom`: the kernel has killed a process for lack of memory meanwhile.
    """
    if code == 0:
        return not cause
    number = -code if code is not None and code < 0 else (code or 0) - 128
    return number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM) or (number == signal.SIGKILL and not oom)


def group_of(leader: Process) -> Callable[[], list[Process]]:
    """Return the processes to end with an adopted server: its descendants, and its group if it leads one."""
    family = with_descendants([leader])

    def members() -> list[Process]:
        left = with_descendants([member for member in family if runs(member)])
        if leader.group == leader.pid and any(member.group == leader.group for member in left):
            left += [member for member in processes() if member.group == leader.group and member not in left]
        return left

    return members


async def end(leader: Process | None, members: Callable[[], list[Process]], grace_s: float) -> None:
    """Send SIGTERM to the leader, SIGKILL to all members `grace_s` later; return when none is left.

    Raises ActError without permission, or if a process survives SIGKILL.
    """
    if leader and grace_s > 0 and _signal(leader, signal.SIGTERM):
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await ended(leader)
    elif leader:
        _signal(leader, signal.SIGKILL)  # before the first await, which may be cancelled
    left: list[Process] = []

    async def none_is_left() -> bool:
        nonlocal left
        left = await asyncio.to_thread(members)
        for survivor in left:
            _signal(survivor, signal.SIGKILL)
        return not left

    if not await poll_until(none_is_left, _POLL_S, _KILLED_WITHIN_S):
        pids = ", ".join(str(survivor.pid) for survivor in left)
        raise ActError(f"process {pids} still runs {_KILLED_WITHIN_S:g} s after SIGKILL: look at the driver")
    if leader:
        exit_code(leader)  # reap it


async def ended(process: Process, every_s: float = _POLL_S) -> None:
    """Return when the process has ended."""

    async def is_over() -> bool:
        exit_code(process)  # reap it
        return not runs(process)

    await poll_until(is_over, every_s)


def _signal(process: Process, number: signal.Signals) -> bool:
    """Return whether the signal was delivered."""
    if not runs(process):
        return False
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        return False
    except PermissionError as error:
        raise ActError(f"not permitted to stop process {process.pid}: it belongs to another user") from error
    return True
