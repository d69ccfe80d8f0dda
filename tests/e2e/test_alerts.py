"""A real Prometheus alerts on problems of a real daemon, with the shipped rules."""

import asyncio
import os
import resource
import signal
from pathlib import Path

import pytest

from tests.e2e.conftest import Start
from tests.e2e.test_adopting import third_party_server
from tests.integration.prometheus.real_alerts import Alerting, alerting
from tests.support.config_builder import SiteConfig
from tests.support.rig import Rig

pytestmark = pytest.mark.timeout(300)

UNREACHABLE = '[[notify]]\nkind = "slack"\nurl = "http://127.0.0.1:1/"\n'


async def fires(prometheus: Alerting, alert: str) -> None:
    await asyncio.to_thread(prometheus.fires, alert)


async def ends(prometheus: Alerting, alert: str) -> None:
    await asyncio.to_thread(prometheus.ends, alert)


def limit_files(rig: Rig, size: int) -> None:
    """Limit the file size of the daemon to `size` bytes, as on a full disk."""
    assert rig.daemon is not None
    resource.prlimit(rig.daemon.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


async def test_alerts_on_daemon_problems(site: Start, tmp_path: Path) -> None:
    rig = await site(SiteConfig(tables=UNREACHABLE))
    await rig.serving()
    with alerting(tmp_path, rig) as prometheus:
        await fires(prometheus, "FlettnerNotifierFailing")
        await rig.propose(max_num_seqs=16)
        await fires(prometheus, "FlettnerSuggestionWaiting")

        limit_files(rig, 1)
        assert (await rig.ask("POST", "/v1/targets/chat/pause", {}))[0] == 503
        await fires(prometheus, "FlettnerAuditUnwritable")
        limit_files(rig, resource.RLIM_INFINITY)
        await ends(prometheus, "FlettnerAuditUnwritable")

        assert rig.daemon is not None
        rig.daemon.send_signal(signal.SIGSTOP)
        await fires(prometheus, "FlettnerDown")
        await asyncio.sleep(7)
        rig.daemon.send_signal(signal.SIGCONT)
        await fires(prometheus, "FlettnerLoopStalled")
        await ends(prometheus, "FlettnerDown")

        await rig.kill()
        await fires(prometheus, "FlettnerDown")


async def test_alerts_on_target_problems(site: Start, tmp_path: Path) -> None:
    async with third_party_server() as (url, process):
        rig = await site(SiteConfig(serving=url, ttft="1ms"))
        await rig.serving()
        with alerting(tmp_path, rig) as prometheus:
            async with rig.clients():
                await fires(prometheus, "FlettnerBudgetBurning")

            os.killpg(process.pid, signal.SIGKILL)
            await fires(prometheus, "FlettnerTargetLost")
            await fires(prometheus, "FlettnerMetricsStale")


async def test_alerts_when_the_lease_is_not_renewed(site: Start, tmp_path: Path) -> None:
    rig = await site(SiteConfig(steps=((25, 100_000, 50.0),), at_most_s=1000.0))
    await rig.serving()
    with alerting(tmp_path, rig) as prometheus:
        async with rig.clients():
            await rig.change(max_num_seqs=16)
            await rig.in_phase("canary")
        envoy = rig.envoy.pid()
        assert envoy is not None
        os.kill(envoy, signal.SIGSTOP)
        try:
            await fires(prometheus, "FlettnerLeaseNotRenewed")
            await fires(prometheus, "FlettnerEffectsFailing")
        finally:
            os.kill(envoy, signal.SIGCONT)


async def test_alerts_when_a_rollout_is_held(site: Start, tmp_path: Path) -> None:
    rig = await site(SiteConfig(steps=((25, 100_000, 50.0),), at_most_s=1000.0))
    await rig.serving()
    with alerting(tmp_path, rig) as prometheus:
        async with rig.clients():
            await rig.change(max_num_seqs=16)
            await rig.in_phase("canary")
        (rig.envoy.home / "records.sock").unlink()  # the next Envoy cannot report requests
        await rig.envoy.kill()
        await fires(prometheus, "FlettnerRolloutHeld")
        await fires(prometheus, "FlettnerMetricsStale")
