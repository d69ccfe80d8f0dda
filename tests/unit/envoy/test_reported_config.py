"""Which clusters of Envoy a write waits for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from flettner.actuators.envoy.admin import Admin
from flettner.actuators.envoy.reported_config import ReportedConfig, digests
from flettner.actuators.envoy.resources import cluster
from flettner.actuators.envoy.split import Json
from flettner.agent.domain.model import Server

BLUE = cluster(Server(name="vllm", setting={}, address="127.0.0.1:8000"), target="chat")
GREEN = cluster(Server(name="chat-r1", setting={}, address="green.chat.svc:8000"), target="chat")


@dataclass(frozen=True, slots=True)
class SlowNames(Admin):
    """An Envoy that has `active` in force, and looks up the address of `warming`."""

    active: Sequence[Json] = ()
    warming: Sequence[Json] = ()

    async def stats(self, pattern: str, kind: str = "All") -> Mapping[str, int | str]:
        del pattern, kind
        return {}

    async def dump(self, resource: str, *, name: str) -> Sequence[Json]:
        del name
        clusters = {"dynamic_active_clusters": self.active, "dynamic_warming_clusters": self.warming}
        return [{"cluster": listed} for listed in clusters[resource]]


@pytest.mark.parametrize(
    ("active", "warming", "idle", "confirmed"),
    [
        ([BLUE, GREEN], [], (), True),
        ([BLUE], [GREEN], (), False),
        ([BLUE], [GREEN], (GREEN["name"],), True),
        ([BLUE], [], (GREEN["name"],), False),
        ([GREEN], [BLUE], (GREEN["name"],), False),
    ],
    ids=["both", "green warms", "idle green warms", "green is not accepted", "blue warms"],
)
async def test_a_cluster_without_traffic_need_not_have_its_address(
    active: list[Json], warming: list[Json], idle: tuple[str, ...], confirmed: bool
) -> None:
    reported = ReportedConfig(SlowNames(Path("admin.sock"), active=active, warming=warming), "chat")

    why = await reported.wait(
        "cds", digests((BLUE, GREEN)), refused=0, within_s=0.05, may_warm=frozenset(idle)
    )

    assert (why == "") is confirmed, why
