"""Several servers behind one name, as the pods of a headless Service are."""

from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from flettner.agent.domain.reading import EngineSample, count_replicas
from flettner.sensors.shared.addresses import resolve
from flettner.sensors.vllm_metrics import plugin
from flettner.sensors.vllm_metrics.plugin import VllmMetrics
from flettner.sensors.vllm_metrics.replicas import add_up
from flettner.vllm_facts.metrics.names import BORN
from flettner.vllm_facts.metrics.page_totals import PageTotals
from flettner.vllm_facts.metrics.totals import PageReader, totals
from tests.unit.sensors.pages import LATER, PAGE, page_server, two_engines, with_values, without
from tests.unit.sensors.run_sensor import Fleet, run_sensor

QUICK = VllmMetrics(every_s=0.02, timeout_s=20.0)


async def test_an_ip_address_is_its_own_and_a_name_has_all_its_addresses() -> None:
    assert await resolve("127.0.0.1:8000") == ("127.0.0.1:8000",)
    assert await resolve("[::1]:8000") == ("[::1]:8000",)
    assert await resolve("127.0.0.1:8000, [::1]:8000") == ("127.0.0.1:8000", "[::1]:8000")
    assert "127.0.0.1:8000" in await resolve("localhost:8000")


async def test_a_name_that_does_not_resolve_is_an_error() -> None:
    with pytest.raises(OSError, match=r"."):
        await resolve("no-such-name.invalid:8000")


def of_engines(page: PageTotals) -> PageTotals:
    """Without what a process has once, and without the names of the engines."""
    return replace(page, engines={}, facts={}, born={}, series=0, answered={}, statuses=0)


def test_the_totals_of_replicas_are_those_of_one_process_with_as_many_engines() -> None:
    reader = PageReader()
    replicas = {"10.0.0.1:8000": reader.totals(PAGE), "10.0.0.2:8000": reader.totals(LATER)}

    both = add_up(replicas)

    ranks = totals(two_engines(PAGE, LATER))
    assert set(both.engines) == {"10.0.0.1:8000/0", "10.0.0.2:8000/0"}
    assert list(both.engines.values()) == list(ranks.engines.values())
    assert (count_replicas(both.facts), len(both.born[BORN[0]])) == (2, 2)
    assert of_engines(both) == of_engines(ranks)


def test_the_totals_of_one_replica_are_its_own() -> None:
    assert add_up({"10.0.0.1:8000": totals(PAGE)}) == totals(PAGE)


def test_what_one_replica_lacks_is_missing() -> None:
    old = without(PAGE, "num_preemptions", "e2e_request_latency_seconds", "request_success")
    broken = with_values(PAGE, kv_cache_usage_perc="NaN")

    both = add_up({"a": totals(PAGE), "b": totals(old), "c": totals(broken)})

    assert both.missing == {
        *("num_preemptions", "e2e_request_latency_seconds", "request_success", "kv_cache_usage_perc")
    }
    assert "preemptions" not in both.counters
    assert "kv_usage" not in both.gauges
    assert "e2e" not in both.histograms
    assert (both.finished, both.engines) == ({}, {})


def test_histograms_with_other_edges_are_missing() -> None:
    moved = PAGE.replace(
        b'time_to_first_token_seconds_bucket{engine="0",le="0.001"',
        b'time_to_first_token_seconds_bucket{engine="0",le="0.002"',
    )

    both = add_up({"a": totals(PAGE), "b": totals(moved)})

    assert both.missing == {"time_to_first_token_seconds"}


def test_replicas_are_awake_only_together() -> None:
    asleep = (
        PAGE.replace(b'sleep_state="awake"', b'sleep_state="x"')
        .replace(b'sleep_state="weights_offloaded"', b'sleep_state="awake"')
        .replace(b'sleep_state="x"', b'sleep_state="weights_offloaded"')
    )

    both = add_up({"a": totals(PAGE), "b": totals(asleep)})

    assert both.facts["sleep_state"] == "weights_offloaded"


async def test_the_replicas_of_a_server_give_one_sample_while_they_come_and_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(page_server()) for _ in range(2)]
        serving = [first.address, second.address]

        async def resolve_to_serving(_: str) -> tuple[str, ...]:
            return tuple(sorted(serving))

        monkeypatch.setattr(plugin, "resolve", resolve_to_serving)
        received = await stack.enter_async_context(
            run_sensor(QUICK, Fleet({"chat-r0": "vllm.chat.svc:8000"}))
        )
        await received.until(lambda: len(received.of(EngineSample)) > 1)
        first.says(LATER)
        second.says(LATER)
        await received.until(lambda: any(sample.prompt_tokens for sample in received.of(EngineSample)))
        serving.remove(second.address)
        await received.until(lambda: not received.of(EngineSample)[-1].engines)
        for _ in range(3):
            await received.next(EngineSample)

    samples = received.of(EngineSample)
    assert [count_replicas(sample.facts) for sample in (samples[0], samples[-1])] == [2, 1]
    assert sum(sample.prompt_tokens for sample in samples) == 18.0
    assert not any(sample.restarted for sample in samples)
    assert received.states() == []


async def test_a_replica_that_does_not_answer_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve_to_one_that_is_gone(_: str) -> tuple[str, ...]:
        return ("127.0.0.1:1", pages.address)

    monkeypatch.setattr(plugin, "resolve", resolve_to_one_that_is_gone)
    async with (
        page_server(PAGE) as pages,
        run_sensor(QUICK, Fleet({"chat-r0": "vllm.chat.svc:8000"})) as received,
    ):
        await received.until(lambda: len(received.of(EngineSample)) > 2)

    assert received.states() == []
