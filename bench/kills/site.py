"""One site under load: the daemon as systemd runs it, and fault injection."""

import asyncio
import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from json import loads
from pathlib import Path
from random import Random
from typing import Any

from bench.kills.books import Books, Fault, carried_out
from bench.usage import usage_of
from flettner.actuators.host.procfs import processes, words
from flettner.simulator.traffic import TrafficGenerator
from tests.support.prometheus_server import RealPrometheus
from tests.support.rig import FLETTNER, Rig, at_rest, until

RESTART_S = 2.0  # RestartSec= of systemd/flettner.service
READY_S = 60.0  # timeout; the report lists slow restarts
REST_S = 150.0
EVERYTHING = "everything"  # file that fills the disk


@dataclass(slots=True, kw_only=True)
class Site:
    """`small`: the state directory is on a separate small file system that can be filled."""

    rig: Rig
    random: Random
    prometheus: RealPrometheus
    traffic: TrafficGenerator
    small: bool
    pause_s: float
    books: Books = field(default_factory=Books)
    phase: str = ""  # phase of the last audit row shown

    def coin(self) -> bool:
        return self.random.random() < 1 / 2

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def fault(self, kind: str) -> Fault:
        """Record a fault at the current moment, without a request that would correlate it with the daemon."""
        fault = Fault(kind=kind, at_s=self.now_s(), phase=self.phase)
        self.books.faults.append(fault)
        return fault

    # Behaviour of systemd.

    async def ended_badly(self) -> None:
        """Run ExecStopPost; its failure is ignored (`-`), as it cannot write to a full disk."""
        process = await asyncio.create_subprocess_exec(
            *(*FLETTNER, "revert", "-c", str(self.rig.config)),
            env={**os.environ, "SERVICE_RESULT": "signal", "EXIT_CODE": "killed", "EXIT_STATUS": "KILL"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        if process.returncode and not (self.rig.state_dir / EVERYTHING).exists():
            self.books.wrong.append(f"revert ended with {process.returncode}: {output[-300:]!r}")

    async def restart(self, fault: Fault, *, reverted: bool) -> None:
        """Restart the daemon as systemd does, and measure the time to readiness."""
        begun_s = self.now_s()
        if reverted:
            await self.ended_badly()
        await asyncio.sleep(max(0.0, begun_s + RESTART_S - self.now_s()))
        started_s = self.now_s()
        daemon = await self.rig.start()
        fault.back_s = await self.ready() - started_s
        fault.cpu_s = usage_of(daemon.pid).cpu_s

    async def ready(self) -> float:
        """Wait until the daemon has recovered. The daemon must not have exited."""

        async def is_ready() -> bool:
            return (await self.rig.ask("GET", "/readyz"))[0] == 200  # noqa: PLR2004 - HTTP

        await until(is_ready, bool, "readiness", READY_S)
        return self.now_s()

    # Checks at the end of each rollout.

    async def rests(self) -> dict[str, Any]:
        """Wait until the target has one server with all traffic, and check that no other process is left."""
        document = await until(self.rig.target, at_rest, "one server at rest", REST_S)
        name = document["servers"][0]["name"]
        await until(self.rig.weights, {name: 100}.__eq__, f"all traffic on {name}", REST_S)
        with suppress(AssertionError):
            await until(self._others, lambda left: left == {name}, "other servers to exit", 20.0)
        self.books.orphans += sorted(await self._others() - {name})
        return document

    async def _others(self) -> set[str]:
        """Return the running servers, and every Envoy beyond the first."""
        bootstrap = str(self.rig.envoy.bootstrap)
        envoys = [process.pid for process in processes() if words(process.pid)[1:3] == ["-c", bootstrap]]
        return {*self.rig.processes(), *(f"envoy {pid}" for pid in sorted(envoys)[1:])}

    async def follow(self) -> None:
        """Record each audit row that the API shows; a shown row must persist."""
        while True:
            with suppress(AssertionError, ValueError):
                after = max(self.books.seen, default=0)
                status, document = await self.rig.ask("GET", f"/v1/audit?after={after}&limit=500")
                if status == 200:  # noqa: PLR2004 - HTTP
                    self.books.seen |= {row["seq"]: row["hash"] for row in document["records"]}
                    for row in document["records"]:
                        self.phase = row["after"].get("phase", self.phase)
            await asyncio.sleep(0.3)

    # Fault injection.

    def tear(self, *, cut: bool) -> None:
        """Truncate the last row (`cut`), or append half of a next one."""
        lines = self.rig.journal.read_bytes().splitlines(keepends=True)
        half = lines[-1][: self.random.randrange(1, len(lines[-1]) - 1)]
        if cut and len(lines) > 1:
            last = loads(lines.pop())
            self.books.cut.add(last["seq"])
            self.books.seen.pop(last["seq"], None)
            approved = carried_out(last)
            self.books.approved = [suggestion for suggestion in self.books.approved if suggestion != approved]
        self.rig.journal.write_bytes(b"".join([*lines, half]))

    def fill(self) -> Path:
        """Fill the file system of the state directory; return the file that fills it."""
        file = self.rig.state_dir / EVERYTHING
        with suppress(OSError), file.open("ab", buffering=0) as full:
            while True:
                full.write(bytes(1 << 16))
        with suppress(OSError), file.open("ab", buffering=0) as full:
            while True:
                full.write(b"0")
        return file

    async def second_daemon(self) -> str:
        """Start a second daemon on the same site and return its last output."""
        process = await asyncio.create_subprocess_exec(
            *(*FLETTNER, "run", "-c", str(self.rig.config)),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(READY_S):
                _, output = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            return "it runs"
        return output.decode(errors="replace").strip().splitlines()[-1] if output else "no output"

    def signal_daemon(self, number: signal.Signals) -> None:
        assert self.rig.daemon is not None
        self.rig.daemon.send_signal(number)


def mounted(folder: Path, size: str = "48m") -> bool:
    """Mount a small file system at the folder, if permitted."""
    folder.mkdir(mode=0o700, exist_ok=True)
    mount = subprocess.run(  # noqa: S603
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "flettner-kills", str(folder)],  # noqa: S607
        capture_output=True,
        check=False,
    )
    return mount.returncode == 0


def unmounted(folder: Path) -> None:
    subprocess.run(["umount", "-l", str(folder)], check=False)  # noqa: S603, S607
