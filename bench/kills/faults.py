"""Faults by kind: injected into a site during a rollout, then healed."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from bench.kills.site import Site
from tests.support.rig import until

LEASE_S = 5.0  # as in tests.support.config_builder
FULL_S = 8.0
LOOK_S = 0.05


async def kill(site: Site) -> None:
    """kill -9 of the daemon; systemd restarts it, in half of the cases after ExecStopPost."""
    fault = site.fault("kill")
    await site.rig.kill()
    await site.restart(fault, reverted=site.coin())
    fault.healed_s = site.now_s()


async def double(site: Site) -> None:
    """A second and a third kill while the restarted daemon recovers."""
    for _ in range(2):
        fault = site.fault("kill in recovery")
        await site.rig.kill()
        await site.ended_badly()
        await asyncio.sleep(0.1)
        await site.rig.start()
        await asyncio.sleep(site.random.uniform(0.3, 2.0))
        fault.healed_s = site.now_s()
    await kill(site)


async def torn(site: Site) -> None:
    """kill -9 during a write: the last line of the journal is truncated."""
    fault = site.fault("torn journal")
    await site.rig.kill()
    cut = site.coin()
    site.tear(cut=cut)
    fault.note = "last row cut" if cut else "half a row behind the last"
    await site.restart(fault, reverted=False)
    fault.healed_s = site.now_s()


async def pause(site: Site) -> None:
    """SIGSTOP in a canary: its lease ends green's share, and a second daemon is refused; then SIGCONT."""
    await site.rig.in_phase("canary")
    servers = (await site.rig.target())["servers"]
    green = next(str(server["name"]) for server in servers if server["color"] == "green")
    fault = site.fault("pause")
    site.signal_daemon(signal.SIGSTOP)
    other = asyncio.create_task(site.second_daemon())
    count, last_s = await site.rig.answered(green), site.now_s()
    while site.now_s() < fault.at_s + site.pause_s:
        await asyncio.sleep(LOOK_S)
        now = await site.rig.answered(green)
        if now != count:
            count, last_s = now, site.now_s()
    site.books.green_ended_s.append(last_s - fault.at_s)
    message = await other
    if "another flettner works here" not in message:
        site.books.wrong.append(f"a second daemon was not refused: {message}")
    fault.note = f"{green} got its last request after {last_s - fault.at_s:.1f} s; the second daemon: refused"
    site.signal_daemon(signal.SIGCONT)
    fault.healed_s = await site.ready()


async def proxy(site: Site) -> None:
    """kill -9 of Envoy; its connections end with it."""
    fault = site.fault("proxy")
    await site.rig.envoy.kill()

    async def listens() -> bool:
        return await site.rig.reported.listening()

    await until(listens, bool, "Envoy to listen again")
    fault.healed_s = site.now_s()
    fault.note = f"listens again after {fault.healed_s - fault.at_s:.1f} s"


async def metrics(site: Site) -> None:
    """kill -9 of Prometheus, for a while."""
    fault = site.fault("prometheus")
    site.prometheus.kill()
    await asyncio.sleep(site.random.uniform(3.0, 6.0))
    await asyncio.to_thread(site.prometheus.start)
    fault.healed_s = site.now_s()


async def green(site: Site) -> None:
    """kill -9 of the new server in the canary."""
    with suppress(AssertionError):
        await until(
            site.rig.rollout, lambda rollout: bool(rollout) and rollout["phase"] == "canary", "a canary", 15.0
        )
    fault = site.fault("green")
    await _end(site, newest=True)
    fault.healed_s = site.now_s()


async def blue(site: Site) -> None:
    """kill -9 of the server that serves all requests."""
    fault = site.fault("blue")
    await _end(site, newest=False)
    with suppress(AssertionError):
        answered = partial(_answers, site, fault.at_s)
        await until(answered, lambda fine: fine >= 10, "answers", 60.0)  # noqa: PLR2004
    fault.healed_s = site.now_s()
    fault.note = f"answered again after {fault.healed_s - fault.at_s:.1f} s"


async def full(site: Site) -> None:
    """The disk of the state directory is full for a while; the daemon may be killed meanwhile."""
    fault = site.fault("full disk")
    file = site.fill()
    await asyncio.sleep(FULL_S / 2)
    killed = site.coin()
    if killed:
        await site.rig.kill()
        await site.ended_badly()
        site.fill()
        await site.rig.start()
        fault.note = "killed meanwhile"
    await asyncio.sleep(FULL_S / 2)
    file.unlink()
    freed_s = site.now_s()
    fault.healed_s = await site.ready()
    if killed:
        fault.back_s = fault.healed_s - freed_s


async def _end(site: Site, *, newest: bool) -> None:
    """Return all processes of one server. Names end in an increasing number."""
    names = sorted(site.rig.processes(), key=lambda name: int(name.rpartition("r")[2]))
    for process in site.rig.processes()[names[-1 if newest else 0]]:
        with suppress(ProcessLookupError):
            os.killpg(os.getpgid(process.pid), signal.SIGKILL)


async def _answers(site: Site, since_s: float) -> int:
    """Return the length of the current run of successful requests sent since then."""
    ends = [record.outcome for record in site.traffic.tally.records if record.at > since_s]
    return next((count for count, end in enumerate(reversed(ends)) if end != "ok"), len(ends))


KINDS: dict[str, Callable[[Site], Awaitable[None]]] = {
    "kill": kill,
    "double": double,
    "torn": torn,
    "pause": pause,
    "proxy": proxy,
    "prometheus": metrics,
    "green": green,
    "blue": blue,
    "full": full,
}
KILLS = {"kill": 1, "double": 3, "torn": 1}
"""Number of kills of the daemon in each fault."""
