"""The service under a real systemd: start, reload, crash, hang, stop and upgrade in canaries under load."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from flettner.agent.api.tokens import load_tokens, store_tokens
from flettner.agent.audit import chain
from flettner.simulator.traffic import TrafficGenerator
from tests.e2e.test_adopting import third_party_server
from tests.integration.systemd.conftest import NEXT
from tests.integration.systemd.service import Service, Start
from tests.support.config_builder import SiteConfig
from tests.support.rig import lost, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

STEP_S = 12.0  # of the canary: longer than it takes to be stopped and started
UPGRADE_S = 30.0
SLOW = SiteConfig(steps=((50, 5, STEP_S),), hold_s=1.0)


async def in_thread(rig: Service, *words: str) -> str:
    """Run a command in the machine under load."""
    return await asyncio.to_thread(rig.machine.run, *words)


async def changed_under_load(rig: Service, traffic: TrafficGenerator) -> str:
    """Wait until blue's baseline covers the full load."""
    await until(lambda: _ok(traffic), lambda count: count > 100, "the load")
    return await rig.change(max_num_seqs=16)


async def test_the_shipped_unit_is_sandboxed_and_finds_its_proxy_after_a_crash(service: Start) -> None:
    async with third_party_server() as (url, _):
        rig = await service(SiteConfig(serving=url), bare_metal=False)
        await until(rig.weights, bool, "the proxy to serve")
        envoy = rig.envoy_pid()
        assert_unit_is_sandboxed(rig)

        async with rig.observer() as answers, rig.clients() as traffic:
            rig.machine.run("kill", "-9", str(rig.main))
            await until(lambda: _restarts(rig), lambda count: count == 1, "a restart", 90.0)
            await rig.serving()

    assert rig.restarts == 1
    assert rig.envoy_pid() == envoy
    assert lost(traffic) == []
    assert set(answers) == {"200"}


def assert_unit_is_sandboxed(rig: Service) -> None:
    machine = rig.machine
    status = machine.run("cat", f"/proc/{rig.main}/status")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    uid = machine.run("id", "-u", "flettner").strip()

    assert machine.shown("flettner", "ActiveState") == "active"
    assert machine.shown("flettner", "StatusText").startswith("chat ")
    assert fields["Uid"].split() == [uid] * 4
    assert (fields["CapEff"], fields["CapBnd"], fields["NoNewPrivs"]) == ("0" * 16, "0" * 16, "1")
    assert fields["Seccomp"] == "2"
    places = machine.run("stat", "-c", "%U %a", "/var/lib/flettner", "/etc/flettner").split()
    assert places == ["flettner", "700", "root", "750"]
    assert "chat" in machine.run("flettner", "status")
    signers = machine.run(
        "journalctl", "-u", "flettner", "-o", "cat", "--output-fields=FLETTNER_SIGNED_BY"
    ).split()
    assert signers
    assert "null" not in signers
    read = machine.run("runuser", "-u", "flettner", "--", "cat", "/etc/flettner/audit.key", check=False)
    assert "Permission denied" in read
    socket = machine.run("stat", "-c", "%G %a", "/run/flettner-docker-proxy/docker.sock").split()
    assert socket == ["flettner", "660"]
    for unit in ("flettner", "flettner-docker-proxy"):
        machine.run("systemd-analyze", "security", "--threshold=10", "--no-pager", unit)


async def test_a_reload_rereads_the_tokens_without_a_restart(service: Start) -> None:
    rig = await service(SiteConfig())
    await rig.serving()
    daemon = rig.main
    tokens = load_tokens(rig.tokens)
    owner = rig.machine.run("stat", "-c", "%U %a", "/etc/flettner/tokens").split()

    store_tokens(rig.tokens, [])
    rig.machine.run("systemctl", "reload", "flettner")
    await until(lambda: rig.ask("GET", "/v1/targets"), lambda answer: answer[0] == 401, "a refusal")
    store_tokens(rig.tokens, list(tokens.values()))
    rig.machine.run("systemctl", "reload", "flettner")
    await until(lambda: rig.ask("GET", "/v1/targets"), lambda answer: answer[0] == 200, "an answer")

    assert owner == ["flettner", "600"]
    assert rig.machine.run("stat", "-c", "%U %a", "/etc/flettner/tokens").split() == owner
    assert (rig.main, rig.restarts) == (daemon, 0)


@pytest.mark.parametrize("number", ["SIGKILL", "SIGSTOP"])
async def test_replaces_a_dead_or_hanging_daemon_in_a_canary_without_losing_a_request(
    service: Start, number: str
) -> None:
    rig = await service(SLOW)
    await rig.serving()
    daemon, envoy = rig.main, rig.envoy_pid()

    async with rig.observer() as answers, rig.clients() as traffic:
        change = await changed_under_load(rig, traffic)
        await rig.in_phase("canary")
        rig.machine.run("kill", "-s", number, str(daemon))
        await until(lambda: _restarts(rig), lambda count: count == 1, "a restart", 90.0)
        rollout = await rig.ended(change)
        server = await rig.consistent_server()

    assert (rollout["outcome"], rollout["lost"], server) == ("promoted", 0, "chat-r2"), rollout
    assert lost(traffic) == []
    assert set(answers) == {"200"}
    assert ("Watchdog timeout" in rig.log_of_systemd()) == (number == "SIGSTOP")
    assert (rig.main != daemon, rig.envoy_pid()) == (True, envoy)


async def _restarts(rig: Service) -> int:
    return rig.restarts


async def test_a_stop_in_a_canary_leaves_all_traffic_to_blue(service: Start) -> None:
    rig = await service(SLOW)
    await rig.serving()

    async with rig.observer() as answers, rig.clients() as traffic:
        change = await changed_under_load(rig, traffic)
        await rig.in_phase("canary")
        await in_thread(rig, "systemctl", "stop", "flettner")
        stopped = [rig.machine.shown("flettner", what) for what in ("ActiveState", "Result")]
        await until(lambda: _new_ones(rig, "chat-r2"), lambda count: count == 0, "green's lease to end")
        alone = traffic.tally.outcomes["ok"]
        await until(lambda: _ok(traffic), lambda count: count > alone + 20, "good answers")
        await in_thread(rig, "systemctl", "start", "flettner")
        rollout = await rig.ended(change)
        await rig.consistent_server()

    assert stopped == ["inactive", "success"]
    assert rollout["restarts"] == 1, rollout
    assert lost(traffic) == []
    assert set(answers) == {"200"}
    assert chain.verify(rig.journal).ok


async def _new_ones(rig: Service, server: str) -> int:
    """Requests that this server receives in a second."""
    before = await rig.answered(server)
    await asyncio.sleep(1.0)
    return await rig.answered(server) - before


async def _ok(traffic: TrafficGenerator) -> int:
    return traffic.tally.outcomes["ok"]


async def test_an_upgrade_in_a_canary_loses_no_request(service: Start, next_package: Path) -> None:
    rig = await service(replace(SLOW, steps=((50, 5, UPGRADE_S),), at_most_s=UPGRADE_S * 4))
    await rig.serving()
    daemon, envoy = rig.main, rig.envoy_pid()

    async with rig.observer() as answers, rig.clients() as traffic:
        change = await changed_under_load(rig, traffic)
        await rig.in_phase("canary")
        await asyncio.to_thread(rig.machine.install, next_package)
        replaced = rig.main != daemon
        rollout = await rig.ended(change)
        server = await rig.consistent_server()

    assert rig.machine.run("dpkg-query", "-W", "-f", "${Version}", "flettner") == NEXT
    assert replaced
    assert (rollout["outcome"], rollout["restarts"], rollout["lost"]) == ("promoted", 1, 0), rollout
    assert server == "chat-r2"
    assert lost(traffic) == []
    assert set(answers) == {"200"}
    assert rig.envoy_pid() == envoy
    print(f"upgrade: {traffic.tally.sent} requests sent, {len(lost(traffic))} lost, {answers}")  # noqa: T201
