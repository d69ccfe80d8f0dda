"""A Docker Engine for one test, which can be suspended, killed and run out of disk.

It lives in a network namespace of its own: in the host's, a second one would take the first one's bridge
and firewall rules away. A pair of virtual interfaces leads there: its containers are published at `address`.
"""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

_START_S = 60.0


class OwnEngine:
    """`async with OwnEngine() as engine`: `engine.host` is for a client. `disk_mib`: what it may store."""

    def __init__(self, disk_mib: int = 256) -> None:
        self._disk_mib = disk_mib
        self._folder = Path(tempfile.mkdtemp(prefix="dockerd-"))
        self._name = self._folder.name[-8:].replace("_", "x")
        number = os.getpid() % 200 + 20
        self.address = f"10.213.{number}.2"
        self._host_address = f"10.213.{number}.1"
        self._daemon: asyncio.subprocess.Process | None = None

    @property
    def host(self) -> str:
        return f"unix://{self._folder}/docker.sock"

    @property
    def data(self) -> Path:
        """The data folder; filling it makes a full disk."""
        return self._folder / "data"

    async def __aenter__(self) -> Self:
        try:
            self._lay()
            await self.start()
        except BaseException:
            self._clear_away()
            raise
        return self

    def _lay(self) -> None:
        self.data.mkdir()
        _run("mount", "-t", "tmpfs", "-o", f"size={self._disk_mib}m", "dockerd", str(self.data))
        _run("ip", "netns", "add", self._name)
        ours, theirs = f"{self._name}h", f"{self._name}c"
        _run("ip", "link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", self._name)
        _run("ip", "address", "add", f"{self._host_address}/30", "dev", ours)
        _run("ip", "link", "set", ours, "up")
        _run("ip", "-n", self._name, "address", "add", f"{self.address}/30", "dev", theirs)
        _run("ip", "-n", self._name, "link", "set", theirs, "up")
        _run("ip", "-n", self._name, "link", "set", "lo", "up")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the Engine and its containers in any state."""
        if self._daemon is not None and self._daemon.returncode is None:
            self._daemon.send_signal(signal.SIGCONT)
            self._daemon.terminate()
            with suppress(TimeoutError):
                async with asyncio.timeout(30):
                    await self._daemon.wait()
        self._clear_away()

    async def start(self) -> None:
        """Raises AssertionError with the end of its log when it does not answer in time."""
        self._forget_the_dead()
        command = [
            *("nsenter", f"--net=/run/netns/{self._name}"),  # `ip netns exec` would hide the cgroups
            *("dockerd", "--host", self.host, "--log-level", "warn"),
            *("--data-root", str(self.data), "--exec-root", str(self._folder / "exec")),
            *("--pidfile", str(self._folder / "docker.pid"), "--default-ulimit", "nofile=4096:8192"),
        ]
        with self._log.open("ab") as log:
            self._daemon = await asyncio.create_subprocess_exec(
                *command, stdout=log, stderr=log, start_new_session=True
            )
        clock = asyncio.get_running_loop().time
        end_s = clock() + _START_S
        while not await asyncio.to_thread(self._answers):
            assert clock() < end_s, self._log.read_text()[-2000:]
            assert self._daemon.returncode is None, self._log.read_text()[-2000:]
            await asyncio.sleep(0.1)

    def hang(self) -> None:
        assert self._daemon is not None
        self._daemon.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._daemon is not None
        self._daemon.send_signal(signal.SIGCONT)

    async def kill(self) -> None:
        """Kill only the daemon: its containers run until the next start."""
        assert self._daemon is not None
        self._daemon.kill()
        await self._daemon.wait()

    def _clear_away(self) -> None:
        for pid in self._processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        subprocess.run(["ip", "netns", "delete", self._name], check=False)
        for mount in self._mounts():
            subprocess.run(["umount", "--lazy", mount], check=False)
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _log(self) -> Path:
        return self._folder / "dockerd.log"

    def _answers(self) -> bool:
        with suppress(OSError), socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(5)
            asking.connect(self.host.removeprefix("unix://"))
            asking.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
            return b" 200 " in asking.recv(64)
        return False

    def _forget_the_dead(self) -> None:
        """A killed one leaves its containerd, and what says that it runs."""
        for pid in self._processes("containerd "):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for left in ("docker.pid", "exec/containerd/containerd.pid", "exec/containerd/containerd.sock"):
            (self._folder / left).unlink(missing_ok=True)

    def _processes(self, program: str = "") -> list[int]:
        """Whose command line names its folder and the program: its containers' shims, and so these, too."""
        pids = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if str(self._folder) in command and program in command:
                    pids.append(int(entry.name))
        return pids

    def _mounts(self) -> list[str]:
        """The deepest first."""
        lines = Path("/proc/self/mounts").read_text().splitlines()
        return sorted((at for line in lines if str(self._folder) in (at := line.split()[1])), reverse=True)


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
