"""Pages of the audit journal: complete, bounded, and paid for before they are read."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

import pytest
from aiohttp import ClientPayloadError
from aiohttp.test_utils import TestClient, TestServer

from flettner.agent.api.app import build_app
from flettner.agent.api.rate_limits import PIECE, RateLimits
from flettner.agent.api.routes.audit import PAGE_BYTES
from flettner.agent.api.tokens import Tokens
from flettner.agent.audit.offsets import SLICE_BYTES
from flettner.agent.config.listen import Role
from flettner.agent.domain.errors import JournalError
from tests.support.fake_daemon_view import FakeDaemonView
from tests.unit.api.conftest import Client, get

LARGEST = "/v1/audit?limit=1000"


@dataclass
class BrokenDisk(FakeDaemonView):
    """Reads one slice, then fails."""

    broken: bool = True

    def records(self, after: int, limit: int) -> Sequence[Mapping[str, object]]:
        if after and self.broken:
            raise JournalError("audit.jsonl: Input/output error")
        return super().records(after, limit)


@pytest.fixture
async def limited(
    daemon: FakeDaemonView, tokens: Tokens, bearers: dict[Role, dict[str, str]]
) -> AsyncIterator[Client]:
    """A viewer whose rate limit never refills."""
    app = build_app(daemon, tokens, limits=RateLimits(lambda: 0.0))
    async with TestClient(TestServer(app), headers=bearers["viewer"]) as client:
        yield client


async def test_pages_are_contiguous(client: Client, daemon: FakeDaemonView) -> None:
    for number in range(5):
        daemon.record(f"e{number}")

    page = await get(client, "/v1/audit?after=1&limit=2")
    rest = await get(client, f"/v1/audit?after={page['next']}")
    end = await get(client, f"/v1/audit?after={rest['next']}")

    assert [record["seq"] for record in page["records"]] == [2, 3]
    assert [record["seq"] for record in rest["records"]] == [4, 5]
    assert end == {"records": [], "next": 5}


@pytest.mark.parametrize("brief", ["true", "false"])
async def test_a_page_ends_early_and_the_next_one_continues(
    client: Client, daemon: FakeDaemonView, brief: str
) -> None:
    for _ in range(200):
        daemon.record("x" * 20_000)

    seqs, sizes, after = list[int](), [], 0
    while True:
        async with client.get(f"{LARGEST}&brief={brief}&after={after}") as response:
            sizes.append(len(await response.read()))
            page = await response.json()
        if not page["records"]:
            break
        seqs += [record["seq"] for record in page["records"]]
        after = page["next"]

    assert seqs == list(range(1, 201))
    assert max(sizes) <= PAGE_BYTES + 2 * SLICE_BYTES


async def test_a_record_larger_than_a_page_is_a_page(client: Client, daemon: FakeDaemonView) -> None:
    daemon.record("x" * 2 * PAGE_BYTES)
    daemon.record("small")

    page = await get(client, "/v1/audit?limit=1")

    assert len(page["records"][0]["event"]) == 2 * PAGE_BYTES
    assert page["next"] == 1


async def test_other_callers_are_answered_between_the_slices_of_large_pages(
    client: Client, daemon: FakeDaemonView, bearers: dict[Role, dict[str, str]]
) -> None:
    for _ in range(200):
        daemon.record("x" * 20_000)
    daemon.reads.clear()

    async def largest() -> None:
        async with client.get(LARGEST, headers=bearers["viewer"]) as response:
            await response.read()

    readers = [asyncio.create_task(largest()) for _ in range(8)]
    while not daemon.reads:
        await asyncio.sleep(0)
    async with client.get("/v1/targets") as response:
        assert response.status == 200
    read_meanwhile = len(daemon.reads)
    await asyncio.gather(*readers)

    assert read_meanwhile < len(daemon.reads) / 2


async def test_a_viewer_pays_for_a_page_before_it_is_read(limited: Client, daemon: FakeDaemonView) -> None:
    for _ in range(200):
        daemon.record("x" * 20_000)

    async def status() -> int:
        async with limited.get(LARGEST) as response:
            await response.read()
            return response.status

    statuses = Counter(await asyncio.gather(*(status() for _ in range(16))))

    assert statuses == {200: 15, 429: 1}  # a burst of 250, and 1 + 16 for each page
    assert len(daemon.reads) <= 15 * PAGE_BYTES // SLICE_BYTES


async def test_a_small_page_costs_little(limited: Client, daemon: FakeDaemonView) -> None:
    daemon.record("small")

    for _ in range(100):
        async with limited.get("/v1/audit?limit=1") as response:
            assert response.status == 200


async def test_a_page_costs_what_it_reads(limited: Client, daemon: FakeDaemonView) -> None:
    daemon.record("x" * 40 * PIECE)

    for expected in (200,) * 7 + (429,):  # 40 pieces and the request, of 250
        async with limited.get(LARGEST) as response:
            await response.read()
            assert response.status == expected


async def test_an_unreadable_journal_is_a_problem(client: Client, daemon: FakeDaemonView) -> None:
    daemon.next_error = JournalError("audit.jsonl: Input/output error")

    async with client.get("/v1/audit") as response:
        assert response.status == 503
        assert "Input/output error" in await response.text()


async def test_a_page_is_cut_if_the_journal_becomes_unreadable(
    tokens: Tokens, bearers: dict[Role, dict[str, str]]
) -> None:
    daemon = BrokenDisk()
    for _ in range(200):
        daemon.record("x" * 20_000)
    async with TestClient(TestServer(build_app(daemon, tokens)), headers=bearers["viewer"]) as client:
        with pytest.raises(ClientPayloadError):
            async with client.get(LARGEST) as response:
                await response.read()
        daemon.broken = False
        async with client.get(LARGEST) as response:
            assert response.status == 200
