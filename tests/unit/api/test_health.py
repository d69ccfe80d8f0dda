"""What an orchestrator's probes get."""

import socket
from dataclasses import dataclass

import pytest
from aiohttp import ClientSession

from flettner.agent.api.health import HealthProbes
from flettner.agent.domain.errors import ConfigError
from flettner.primitives.address import Address
from tests.support.ports import free_port


@dataclass
class Progress:
    is_ready: bool = True
    is_stuck: bool = False

    def ready(self) -> bool:
        return self.is_ready

    def stuck(self) -> bool:
        return self.is_stuck


def free_address() -> Address:
    return Address("127.0.0.1", free_port())


@pytest.mark.parametrize(
    ("daemon", "healthz", "readyz"),
    [
        (None, (200, "ok"), (503, "waiting: see the daemon's log")),
        (Progress(is_ready=False), (200, "ok"), (503, "waiting: see the daemon's log")),
        (Progress(), (200, "ok"), (200, "ready")),
        (
            Progress(is_ready=False, is_stuck=True),
            (503, "stuck: see the daemon's log"),
            (503, "stuck: see the daemon's log"),
        ),
    ],
    ids=["waiting for another daemon", "recovering", "running", "stuck"],
)
async def test_only_a_stuck_daemon_is_unhealthy(
    daemon: Progress | None, healthz: tuple[int, str], readyz: tuple[int, str]
) -> None:
    address = free_address()
    async with HealthProbes(daemon).listening(address), ClientSession(f"http://{address}") as client:
        answers = {}
        for path in ("/healthz", "/readyz", "/v1/targets"):
            async with client.get(path, headers={"Host": "10.1.2.3:8081"}) as answer:
                answers[path] = (answer.status, (await answer.text()).strip())

    assert answers.pop("/v1/targets")[0] == 404
    assert answers == {"/healthz": healthz, "/readyz": readyz}


async def test_an_address_in_use_is_an_error_of_the_config() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = Address(*taken.getsockname())
        with pytest.raises(ConfigError, match=r"\[api\] health.*cannot listen"):
            async with HealthProbes().listening(address):
                pass
