"""Request accounting of the traffic: complete, correct, and deterministic for a seed."""

import asyncio
import json
import sys

import pytest
from aiohttp import web

from flettner.simulator.tally import LoadSlo, RequestRecord, TrafficSummary
from flettner.simulator.text import draws
from flettner.simulator.traffic import Load, TrafficGenerator
from flettner.simulator.workload import Shape, conversations, gap_s, lengths
from tests.unit.simulator.running import process, running, until

SHORT = Shape(prompt=lengths("uniform:4:40"), output=lengths("uniform:2:20"))


async def test_an_open_loop_accounts_for_every_request() -> None:
    async with running("--max-num-seqs", "4") as server:
        traffic = TrafficGenerator(server.url, "tiny", Load(rate=40, cv=3), shape=SHORT, seed=1)
        await traffic.start()
        await until(lambda: traffic.tally.sent > 30)
        await traffic.stop()
        books = traffic.tally

    assert books.sent == books.outcomes["ok"] == len(books.records)
    assert books.in_flight == 0
    assert all(record.ttft_s is not None and record.tokens >= 2 for record in books.records)
    assert all(record.ttft_s <= record.e2e_s for record in books.records if record.ttft_s)


async def test_a_closed_loop_keeps_its_concurrency_and_follows_a_change() -> None:
    async with running() as server:
        traffic = TrafficGenerator(server.url, "tiny", Load(streams=3), shape=SHORT)
        await traffic.start()
        await until(lambda: traffic.tally.outcomes["ok"] > 10)
        assert traffic.tally.in_flight <= 3
        traffic.load = Load(streams=8)
        await until(lambda: traffic.tally.in_flight > 3)
        await traffic.stop()

    assert traffic.tally.sent == traffic.tally.outcomes["ok"]


async def test_requests_in_flight_when_traffic_stops_are_awaited() -> None:
    shape = Shape(prompt=lengths("4"), output=lengths("200"))
    async with running() as server:
        traffic = TrafficGenerator(server.url, "tiny", Load(streams=5), shape=shape)
        await traffic.start()
        await until(lambda: traffic.tally.in_flight == 5)
        await traffic.stop()

    assert traffic.tally.counts() == {"sent": 5, "ok": 5, "failed": 0, "truncated": 0, "aborted": 0}


async def test_all_requests_are_counted_when_a_server_is_killed_under_traffic() -> None:
    shape = Shape(prompt=lengths("4"), output=lengths("300"))
    async with process() as server:
        traffic = TrafficGenerator(server.url, "tiny", Load(streams=6), shape=shape)
        await traffic.start()
        await until(lambda: any(traffic.tally.records) or traffic.tally.in_flight == 6)
        await asyncio.sleep(1.0)
        server.process.kill()
        await until(lambda: traffic.tally.outcomes["failed"] > 3)
        await traffic.stop()
    counts = traffic.tally.counts()

    assert counts["truncated"] + counts["failed"] > 6
    assert counts["sent"] == sum(counts.values()) - counts["sent"]


@pytest.mark.parametrize(
    ("lines", "outcome"),
    [
        (['{"choices":[{"delta":{"content":"a"},"finish_reason":"length"}]}', "[DONE]"], "ok"),
        (['{"choices":[{"delta":{"content":"a"},"finish_reason":null}]}', "[DONE]"], "truncated"),
        (['{"choices":[{"delta":{"content":"a"},"finish_reason":"length"}]}'], "truncated"),
        (['{"choices":[{"delta":{"content":""},"finish_reason":"abort"}]}', "[DONE]"], "aborted"),
        (
            ['{"choices":[{"delta":{"content":"a"},"finish_reason":null}]}', '{"error":{"code":500}}'],
            "failed",
        ),
        (["{not json"], "failed"),
        ([], "truncated"),
    ],
    ids=["ok", "no reason", "no end", "abort", "error", "garbage", "empty"],
)
async def test_an_answer_is_classified_by_its_end(lines: list[str], outcome: str) -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(
            text="".join(f"data: {line}\n\n" for line in lines), content_type="text/event-stream"
        )

    app = web.Application()
    app.add_routes([web.post("/v1/chat/completions", answer)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    traffic = TrafficGenerator(f"http://{host}:{port}", "tiny", Load(rate=50))
    await traffic.start()
    await until(lambda: traffic.tally.sent >= 2)
    await traffic.stop()
    await runner.cleanup()

    assert {record.outcome for record in traffic.tally.records} == {outcome}


async def test_turns_of_a_conversation_share_a_session_and_grow() -> None:
    shape = Shape(prompt=lengths("20"), output=lengths("8"), turns=lengths("3"), system_tokens=200)
    async with running() as server:
        traffic = TrafficGenerator(server.url, "tiny", Load(streams=2), shape=shape)
        await traffic.start()
        await until(lambda: traffic.tally.outcomes["ok"] >= 12)
        await traffic.stop()
        hits = server.engine.scheduler.prefix_hits
    sessions = [record.session for record in traffic.tally.records]

    assert max(sessions.count(session) for session in sessions) == 3
    assert hits > 10 * 192


@pytest.mark.parametrize(("cap", "running_and_waiting"), [(4, (4, 8)), (16, (12, 0))])
async def test_a_cap_of_4_queues_where_16_does_not(cap: int, running_and_waiting: tuple[int, int]) -> None:
    shape = Shape(prompt=lengths("64"), output=lengths("40"))
    async with running("--max-num-seqs", str(cap)) as server:
        scheduler = server.engine.scheduler
        traffic = TrafficGenerator(server.url, "tiny", Load(streams=12), shape=shape)
        await traffic.start()
        await until(lambda: (len(scheduler.running), len(scheduler.waiting)) == running_and_waiting)
        await traffic.stop()


def test_conversations_and_gaps_repeat_with_the_seed() -> None:
    def first(seed: int) -> list[object]:
        coming = conversations(SHORT, seed)
        return [next(coming).ask(SHORT) for _ in range(3)]

    assert first(1) == first(1) != first(2)


@pytest.mark.parametrize("cv", [0, 0.5, 1, 4])
def test_gaps_have_the_requested_rate_and_variation(cv: float) -> None:
    random = draws(1, "test")
    gaps = [gap_s(random, 5, cv) for _ in range(40_000)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5

    assert mean == pytest.approx(0.2, rel=0.1)
    assert deviation / mean == pytest.approx(cv, rel=0.1, abs=1e-6)


@pytest.mark.parametrize(
    "text", ["", "0", "uniform:5", "uniform:9:3", "lognormal:0:1", "poisson:3", "lognormal:a:b"]
)
def test_invalid_lengths_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="lengths are"):
        lengths(text)


def test_a_tally_covers_a_time_span() -> None:
    books = TrafficSummary()
    for end, ttft_s in ((1.0, 0.1), (2.0, 0.2), (3.0, 0.9), (4.0, 0.3)):
        books.opened()
        books.closed(RequestRecord(at=end - 1, ended=end, outcome="ok", ttft_s=ttft_s))
    books.opened()
    books.closed(RequestRecord(at=3.5, ended=4.5, outcome="failed"))

    assert books.quantile("ttft_s", 1.0, 0, 2.5) == 0.2
    assert books.goodput(LoadSlo(ttft_s=0.5), 0, 5) == 3 / 5
    assert books.goodput(LoadSlo(ttft_s=0.5), 2, 4) == 1 / 2
    assert books.counts() == {"sent": 5, "ok": 4, "failed": 1, "truncated": 0, "aborted": 0}


async def test_the_command_prints_json_and_its_exit_status_shows_success() -> None:
    async with running() as server:
        command = (
            sys.executable,
            "-m",
            "flettner.simulator.traffic",
            server.url,
            "--streams",
            "2",
            "--for",
            "1",
            "--json",
        )
        run = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        out, _ = await run.communicate()
    summary = json.loads(out)

    assert run.returncode == 0
    assert summary["requests"]["sent"] == summary["requests"]["ok"] > 0
    assert summary["ttft_p50_ms"] > 0
