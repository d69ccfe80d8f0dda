"""A Debian or Ubuntu booted by systemd: a container over a folder of .cache, on the network of this host.

It takes root, as the tests of Docker do. `scripts/bootstrap test` makes .cache/debian,
`scripts/bootstrap systems` the others.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

REPOSITORY = Path(__file__).parents[3]
DEBIAN = REPOSITORY / ".cache" / "debian" / "root"
CONFIG = """
[[targets]]
name = "chat"
[targets.engine]
kind = "process"
serving = "http://127.0.0.1:9"
[targets.traffic]
listen = "127.0.0.1:9002"
[api]
tokens_file = "tokens"
"""
"""Of a daemon that starts, whose server nobody runs."""
_BOOTS_WITHIN_S = 90.0
_UP = frozenset({"running", "degraded"})


class Machine:
    """`with Machine() as machine`: booted. `root`: its files, seen from here.

    `seen`: what of this host is there too, at the same place; only to be read, but for sockets.
    `system`: the system's files.
    """

    def __init__(self, *seen: Path, system: Path = DEBIAN) -> None:
        self._system = system
        self._seen = [f"--bind{'' if place.is_socket() else '-ro'}={place}" for place in seen]
        self._folder = Path(tempfile.mkdtemp(prefix="fl-"))  # short: a unix socket's path has 107 bytes
        self.root = self._folder / "root"
        self.process: subprocess.Popen[bytes] | None = None
        self._leader = 0

    def __enter__(self) -> Self:
        try:
            self._lay()
            self._boot()
        except BaseException:
            self._clear_away()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clear_away()

    def run(self, *words: str, check: bool = True) -> str:
        """Run a command inside as root; return its output."""
        done = subprocess.run(
            [*("nsenter", "-t", str(self._leader), "-m", "-u", "-i", "-n", "-p", "-r", "-w", "--"), *words],
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "TERM": "dumb"},
        )
        assert done.returncode == 0 or not check, f"{' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def shown(self, unit: str, what: str) -> str:
        """One property of a unit, from `systemctl show`."""
        return self.run("systemctl", "show", unit, "-P", what).strip()

    def install(self, package: Path) -> str:
        """Without fsync: the machine is disposable."""
        inside = self.root / "root" / package.name
        shutil.copy(package, inside)
        return self.run("dpkg", "--force-unsafe-io", "-i", f"/root/{package.name}")

    def is_inside(self, pid: int) -> bool:
        """Whether a process of this host runs in the machine."""
        try:
            return _namespace(pid) == _namespace(self._leader)
        except OSError:
            return False

    def _lay(self) -> None:
        assert self._system.is_dir(), f"{self._system} is not there: run scripts/bootstrap test, or systems"
        for name in ("upper", "work", "root"):
            (self._folder / name).mkdir()
        places = f"lowerdir={self._system},upperdir={self._folder}/upper,workdir={self._folder}/work"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", places, str(self.root)], check=True)

    def _boot(self) -> None:
        with (self._folder / "console").open("wb") as console:
            self.process = subprocess.Popen(
                [
                    *("systemd-nspawn", "--quiet", "--directory", str(self.root), "--boot"),
                    *("--register=no", "--keep-unit", "--console=pipe", *self._seen),
                    f"--machine={self._folder.name.replace('_', 'x')}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )
        end_s = time.monotonic() + _BOOTS_WITHIN_S
        while self._state() not in _UP:
            output = (self._folder / "console").read_text(errors="replace")
            assert self.process.poll() is None, output
            assert time.monotonic() < end_s, f"it is {self._state()!r} after {_BOOTS_WITHIN_S:g} s: {output}"
            time.sleep(0.1)

    def _state(self) -> str:
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        self._leader = int(children[0]) if children else 0
        return self.run("systemctl", "is-system-running", check=False).strip() if children else ""

    def _clear_away(self) -> None:
        """Kill its first process, which ends all others."""
        if self._leader:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._leader, signal.SIGKILL)
        if self.process is not None:
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for _ in range(50):
            if subprocess.run(["umount", str(self.root)], check=False, capture_output=True).returncode == 0:
                break
            if not self.root.is_mount():
                break
            time.sleep(0.1)
        shutil.rmtree(self._folder, ignore_errors=True)


def _namespace(pid: int) -> str:
    return str(Path(f"/proc/{pid}/ns/pid").readlink())
