"""Runs the Envoy of a state directory as a child of the main program of a pod.

Containers end with their main program. An Envoy that exits is started again; at the end it finishes its open
requests.
"""

import asyncio
import subprocess
from contextlib import suppress
from pathlib import Path

import structlog

from flettner.actuators.envoy.admin import Admin
from flettner.actuators.envoy.process import EnvoyProcess
from flettner.primitives.waiting import poll_until

log = structlog.get_logger(__name__)

_LOOK_S = 0.5  # between two looks at the requests of a drained Envoy
_END_S = 5.0  # from SIGTERM to SIGKILL of a drained Envoy
_LAST_RECORDS_S = 0.5  # of requests that have just ended: Envoy flushes its log four times a second
_OPEN = "http.ingress.downstream_rq_active"


class Runner:
    """The Envoy with the files in `state_dir`."""

    def __init__(self, state_dir: Path, binary: str, concurrency: int) -> None:
        self._envoy = EnvoyProcess(state_dir.absolute() / "envoy")
        self._binary, self._concurrency = binary, concurrency
        self._running: subprocess.Popen[bytes] | None = None

    def start_missing(self) -> None:
        """Start Envoy once its files are written, unless it runs."""
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

    async def is_idle() -> bool:
        return not (await admin.stats(pattern) or {}).get(_OPEN)

    await poll_until(is_idle, _LOOK_S)
