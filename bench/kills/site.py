"""One site under load: the daemon as systemd runs it, and what a fault does to it."""

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

from actuators.host.procfs import processes, words
from bench.kills.books import Books, Fault
from simulator.traffic import TrafficGenerator
from tests.e2e.rig import TRIMTAB, Rig, at_rest, until
from tests.support.prometheus_server import RealPrometheus

RESTART_S = 2.0  # RestartSec= of systemd/trimtab.service
READY_S = 60.0  # patience; what counts as slow is told at the end
REST_S = 150.0
EVERYTHING = "everything"  # the file that fills the disk
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True, kw_only=True)
class Site:
    """`small`: the state directory is a small file system of its own, so that it can be full."""

    rig: Rig
    random: Random
    prometheus: RealPrometheus
    traffic: TrafficGenerator
    small: bool
    pause_s: float
    books: Books = field(default_factory=Books)
    phase: str = ""  # of the last row of the audit that was shown

    def coin(self) -> bool:
        return self.random.random() < 1 / 2

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def fault(self, kind: str) -> Fault:
        """Now: nobody is asked first, so that the moment is not one in which the daemon has just answered."""
        found = Fault(kind=kind, at_s=self.now_s(), phase=self.phase)
        self.books.faults.append(found)
        return found

    # What systemd does.

    async def ended_badly(self) -> None:
        """ExecStopPost, whose failure fails nothing (`-`): on a full disk it can write nothing."""
        process = await asyncio.create_subprocess_exec(
            *(*TRIMTAB, "revert", "-c", str(self.rig.config)),
            env={**os.environ, "SERVICE_RESULT": "signal", "EXIT_CODE": "killed", "EXIT_STATUS": "KILL"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        if process.returncode and not (self.rig.state_dir / EVERYTHING).exists():
            self.books.wrong.append(f"revert ended with {process.returncode}: {said[-300:]!r}")

    async def restart(self, fault: Fault, *, reverted: bool) -> None:
        """After the daemon's end: what systemd does until it runs again, and how long it then takes."""
        begun_s = self.now_s()
        if reverted:
            await self.ended_badly()
        await asyncio.sleep(max(0.0, begun_s + RESTART_S - self.now_s()))
        started_s = self.now_s()
        await self.rig.start()
        fault.back_s = await self.ready() - started_s
        fault.cpu_s = self.cpu_s()

    def cpu_s(self) -> float:
        """Of the daemon since its start (proc(5), utime and stime): what a busy machine cannot lengthen."""
        assert self.rig.daemon is not None
        fields = Path(f"/proc/{self.rig.daemon.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / TICKS_PER_S

    async def ready(self) -> float:
        """When it had looked around and decided. The daemon must not have ended."""

        async def is_ready() -> bool:
            return (await self.rig.ask("GET", "/readyz"))[0] == 200  # noqa: PLR2004 - HTTP

        await until(is_ready, bool, "readiness", READY_S)
        return self.now_s()

    # What must hold at the end of each rollout.

    async def rests(self) -> dict[str, Any]:
        """Wait until the target has one server with all traffic, and see that nothing else is left."""
        document = await until(self.rig.target, at_rest, "one server at rest", REST_S)
        name = document["servers"][0]["name"]
        await until(self.rig.weights, {name: 100}.__eq__, f"all traffic on {name}", REST_S)
        with suppress(AssertionError):
            await until(self._others, lambda left: left == {name}, "the others to be gone", 20.0)
        self.books.orphans += sorted(await self._others() - {name})
        return document

    async def _others(self) -> set[str]:
        """The servers whose processes run, and every Envoy but one."""
        bootstrap = str(self.rig.envoy.bootstrap)
        envoys = [one.pid for one in processes() if words(one.pid)[1:3] == ["-c", bootstrap]]
        return {*self.rig.processes(), *(f"envoy {pid}" for pid in sorted(envoys)[1:])}

    async def follow(self) -> None:
        """Note each row of the audit that the API shows: shown is promised."""
        while True:
            with suppress(AssertionError, ValueError):
                after = max(self.books.seen, default=0)
                status, document = await self.rig.ask("GET", f"/v1/audit?after={after}&limit=500")
                if status == 200:  # noqa: PLR2004 - HTTP
                    self.books.seen |= {row["seq"]: row["hash"] for row in document["records"]}
                    for row in document["records"]:
                        self.phase = row["after"].get("phase", self.phase)
            await asyncio.sleep(0.3)

    # What is done to it.

    def tear(self, *, cut: bool) -> None:
        """The last row is half there (`cut`), or half of a next one behind it."""
        lines = self.rig.journal.read_bytes().splitlines(keepends=True)
        half = lines[-1][: self.random.randrange(1, len(lines[-1]) - 1)]
        if cut and len(lines) > 1:
            last = loads(lines.pop())
            self.books.cut.add(last["seq"])
            self.books.seen.pop(last["seq"], None)
            approved = ((last["state"] or {}).get("suggestion") or {}).get("id")
            self.books.approved = [one for one in self.books.approved if one != approved]
        self.rig.journal.write_bytes(b"".join([*lines, half]))

    def fill(self) -> Path:
        """Take every byte of the state directory's file system; returns the file that has them."""
        file = self.rig.state_dir / EVERYTHING
        with suppress(OSError), file.open("ab", buffering=0) as full:
            while True:
                full.write(bytes(1 << 16))
        with suppress(OSError), file.open("ab", buffering=0) as full:
            while True:
                full.write(b"0")
        return file

    async def second_daemon(self) -> str:
        """Start another one on the same site; what it says as it ends."""
        process = await asyncio.create_subprocess_exec(
            *(*TRIMTAB, "run", "-c", str(self.rig.config)),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(READY_S):
                _, said = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            return "it runs"
        return said.decode(errors="replace").strip().splitlines()[-1] if said else "it said nothing"

    def signal_daemon(self, number: signal.Signals) -> None:
        assert self.rig.daemon is not None
        self.rig.daemon.send_signal(number)


def mounted(folder: Path, size: str = "48m") -> bool:
    """A small file system at the folder, where this user may."""
    folder.mkdir(mode=0o700, exist_ok=True)
    told = subprocess.run(  # noqa: S603
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "trimtab-kills", str(folder)],  # noqa: S607
        capture_output=True,
        check=False,
    )
    return told.returncode == 0


def unmounted(folder: Path) -> None:
    subprocess.run(["umount", "-l", str(folder)], check=False)  # noqa: S603, S607
