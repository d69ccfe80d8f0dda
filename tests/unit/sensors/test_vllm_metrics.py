import asyncio
from contextlib import AsyncExitStack

import pytest

from flettner.agent.domain.reading import EngineSample
from flettner.sensors.vllm_metrics.plugin import VllmMetrics
from tests.unit.sensors.pages import (
    DISABLED_LOG_STATS,
    LATER,
    NOT_THERE,
    PAGE,
    answer,
    page_server,
    with_values,
)
from tests.unit.sensors.run_sensor import Fleet, run_sensor

QUICK = VllmMetrics(every_s=0.02, timeout_s=20.0)
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_a_server_is_scraped_repeatedly() -> None:
    async with page_server() as pages, run_sensor(QUICK, Fleet({"chat-r0": pages.address})) as received:
        await received.until(lambda: len(received.of(EngineSample)) > 2)
        pages.says(LATER)
        await received.until(lambda: any(sample.prompt_tokens for sample in received.of(EngineSample)))

    samples = received.of(EngineSample)
    assert received.states() == []
    assert {sample.server for sample in samples} == {"chat-r0"}
    assert samples[0].interval_s == 0.0
    assert all(sample.interval_s > 0 for sample in samples[1:])
    assert sum(sample.prompt_tokens for sample in samples) == 9.0


async def test_added_servers_are_scraped_and_removed_ones_are_not() -> None:
    async with AsyncExitStack() as stack:
        blue, green = [await stack.enter_async_context(page_server()) for _ in range(2)]
        fleet = Fleet({"blue": blue.address})
        received = await stack.enter_async_context(run_sensor(QUICK, fleet))
        await received.next(EngineSample)
        fleet.addresses["green"] = green.address
        await received.until(lambda: any(sample.server == "green" for sample in received.of(EngineSample)))
        del fleet.addresses["blue"]
        await asyncio.sleep(0.2)
        requests = blue.requests["/metrics"]
        for _ in range(5):
            await received.next(EngineSample)

        assert blue.requests["/metrics"] == requests
        assert received.states() == []


async def test_a_server_without_an_address_is_not_scraped() -> None:
    async with run_sensor(QUICK, Fleet({"chat-r1": ""})) as received:
        await asyncio.sleep(0.1)

    assert received.samples == []


async def test_the_version_is_requested_once_per_process() -> None:
    async with page_server() as pages, run_sensor(QUICK, Fleet({"chat-r0": pages.address})) as received:
        await received.until(lambda: len(received.of(EngineSample)) > 3)
        first = (received.of(EngineSample)[-1].facts["version"], pages.requests["/version"])
        pages.says(with_values(PAGE, process_start_time_seconds=1.9e9), b'{"version":"0.33.0"}')
        await received.until(lambda: received.of(EngineSample)[-1].facts["version"] == "0.33.0")
        await received.next(EngineSample)

    assert first == ("0.32.0", 1)
    assert pages.requests["/version"] == 2


@pytest.mark.parametrize(
    "response",
    [
        NOT_THERE,
        answer(b""),
        answer(b"[1]"),
        answer(b"[" * 4000),
        answer(b'{"version": 3}'),
        answer(b"\xff" * 9999),
    ],
    ids=["404", "empty", "list", "deep", "number", "huge"],
)
async def test_a_server_without_a_version_is_asked_once(response: bytes) -> None:
    async with page_server() as pages:
        pages.answers["/version"] = response
        async with run_sensor(QUICK, Fleet({"chat-r0": pages.address})) as received:
            await received.until(lambda: len(received.of(EngineSample)) > 3)

    assert pages.requests["/version"] == 1
    assert "version" not in received.of(EngineSample)[-1].facts
    assert received.states() == []


async def test_a_refused_page_is_no_restart_and_hides_none() -> None:
    async with page_server() as pages, run_sensor(QUICK, Fleet({"chat-r0": pages.address})) as received:
        pages.says(LATER)
        await received.next(EngineSample)
        for page in (LATER, PAGE):  # the counts of the second one are those of a new process
            pages.says(with_values(LATER, num_requests_running=1e5))
            await received.until(lambda: bool(received.states()) and not received.states()[-1].available)
            before = len(received.of(EngineSample))
            pages.says(page)
            await received.until(lambda: len(received.of(EngineSample)) > before + 1)  # noqa: B023

    samples = received.of(EngineSample)
    assert [sample.restarted for sample in samples].count(True) == 1
    assert next(sample for sample in samples if sample.restarted).interval_s == 0.0


BAD = {
    "disable-log-stats": (answer(DISABLED_LOG_STATS), "no vllm: metric: not a vLLM server, or one run with"),
    "html": (answer(b"<html><body>Bad Gateway</body></html>\n"), "not a metrics page: starts with '<html>"),
    "binary": (answer(bytes(range(256)) * 40), "not a metrics page: not UTF-8"),
    "empty": (answer(b""), "the metrics page is empty"),
    "last line cut": (answer(LATER[:-20]), "cut: it ends in"),
    "connection cut": (answer(LATER)[:-5000], "ContentLengthError"),
    "chunks cut": (CHUNKED + b"ffff\r\n" + LATER[:9000], "TransferEncodingError"),
    "lines lost": (answer(b"".join(LATER.splitlines(keepends=True)[:100])), "series are gone"),
    "counter jumped": (
        answer(with_values(LATER, generation_tokens_total=9e12)),
        "not plausible: 9e+12 gener",
    ),
    "too many run": (
        answer(with_values(LATER, num_requests_running=1e5)),
        "100000 requests run, at most 4096",
    ),
    "bad chunks": (CHUNKED + b"lalala\r\n", "/metrics: "),
    "not http": (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "/metrics: "),
    "closed": (b"", "disconnected"),
    "404": (NOT_THERE, "answered 404, not 200"),
    "redirect": (b"HTTP/1.1 302 Found\r\nLocation: /version\r\nContent-Length: 0\r\n\r\n", "answered 302"),
    "malformed": (answer(PAGE.replace(b"} 1422.0", b"} many")), "cannot be read"),
    "huge": (answer(b"# TYPE a gauge\n" + b"a 1\n" * 2_500_000), "larger than 8388608 bytes"),
    "gzip bomb": (
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 9\r\n\r\n" + b"no gzip!!",
        "/metrics: ",
    ),
}


@pytest.mark.parametrize("kind", BAD)
async def test_a_bad_answer_and_the_recovery_are_each_reported_once(kind: str) -> None:
    response, why = BAD[kind]
    async with page_server() as pages, run_sensor(QUICK, Fleet({"chat-r0": pages.address})) as received:
        await received.next(EngineSample)
        pages.answers["/metrics"] = response
        await received.until(received.states)
        requests, scraped = pages.requests["/metrics"], len(received.of(EngineSample))
        await pages.until_requested("/metrics", requests + 3)
        if kind not in {"lines lost", "counter jumped"}:  # these are accepted once they repeat
            assert len(received.of(EngineSample)) == scraped
        pages.says(LATER)
        await received.until(
            lambda: received.samples[-1] in received.of(EngineSample) and len(received.states()) > 1
        )

    assert [state.available for state in received.states()] == [False, True]
    assert {state.source for state in received.states()} == {"vllm_metrics chat-r0"}
    assert why in received.states()[0].why
    assert all(sample.prompt_tokens in {0.0, 9.0} for sample in received.of(EngineSample))


async def test_counts_missed_during_an_unreadable_page_are_added_later() -> None:
    async with page_server() as pages, run_sensor(QUICK, Fleet({"chat-r0": pages.address})) as received:
        await received.next(EngineSample)
        pages.answers["/metrics"] = answer(LATER[:-20])
        await received.until(received.states)
        pages.says(LATER)
        sample = await received.next(EngineSample)

    assert (sample.prompt_tokens, sample.generation_tokens) == (9.0, 1500.0)
    assert sample.interval_s > 0.02


async def test_a_hanging_server_does_not_delay_other_servers() -> None:
    quick = VllmMetrics(every_s=0.02, timeout_s=0.5)
    async with page_server() as well, page_server() as hung:
        hung.answers["/metrics"] = None
        async with run_sensor(quick, Fleet({"hung": hung.address, "well": well.address})) as received:
            await received.until(
                lambda: any(state.source == "vllm_metrics hung" for state in received.states())
            )
            before = len(received.of(EngineSample))
            await received.until(lambda: len(received.of(EngineSample)) > before + 5)
            hung.says(PAGE)
            await received.until(lambda: any(sample.server == "hung" for sample in received.of(EngineSample)))

    of_hung = [state for state in received.states() if state.source == "vllm_metrics hung"]
    assert [state.available for state in of_hung] == [False, True]
    assert "in time" in of_hung[0].why


async def test_a_hanging_version_request_times_out() -> None:
    async with page_server() as pages:
        pages.answers["/version"] = None
        fleet = Fleet({"chat-r0": pages.address})
        async with run_sensor(VllmMetrics(every_s=0.02, timeout_s=0.3), fleet) as received:
            await received.until(lambda: len(received.of(EngineSample)) > 5)

    assert pages.requests["/version"] == 3


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:99999", "no such host:80", "[::1"])
async def test_a_refused_connection_is_reported_once(address: str) -> None:
    async with run_sensor(QUICK, Fleet({"chat-r0": address})) as received:
        await received.until(received.states)
        await asyncio.sleep(0.2)

    assert [state.available for state in received.states()] == [False]
