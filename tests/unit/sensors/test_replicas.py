"""Several servers behind one name, as the pods of a headless Service are."""

from contextlib import AsyncExitStack

import pytest

from agent.domain.reading import EngineSample, count_replicas
from sensors.shared.addresses import resolve
from sensors.vllm_metrics import plugin
from sensors.vllm_metrics.plugin import VllmMetrics
from sensors.vllm_metrics.replicas import join_pages
from tests.unit.sensors.pages import LATER, PAGE, page_server
from tests.unit.sensors.run_sensor import Fleet, run_sensor
from vllm_facts.metrics.totals import totals

QUICK = VllmMetrics(every_s=0.02, timeout_s=20.0)


async def test_an_ip_address_is_its_own_and_a_name_has_all_its_addresses() -> None:
    assert await resolve("127.0.0.1:8000") == ("127.0.0.1:8000",)
    assert await resolve("[::1]:8000") == ("[::1]:8000",)
    assert "127.0.0.1:8000" in await resolve("localhost:8000")


async def test_a_name_that_does_not_resolve_is_an_error() -> None:
    with pytest.raises(OSError, match=r"."):
        await resolve("no-such-name.invalid:8000")


def test_joined_pages_add_up_and_each_replica_is_an_engine() -> None:
    alone, both = totals(LATER), totals(join_pages({"10.0.0.1:8000": LATER, "10.0.0.2:8000": LATER}))

    assert both.counters == {name: 2 * count for name, count in alone.counters.items()}
    assert both.gauges["running"] == 2 * alone.gauges["running"]
    assert both.gauges.get("kv_usage") == alone.gauges.get("kv_usage")
    assert both.histograms["ttft"].counts[-1] == 2 * alone.histograms["ttft"].counts[-1]
    assert set(both.engines) == {"10.0.0.1:8000/0", "10.0.0.2:8000/0"}


async def test_the_replicas_of_a_server_give_one_sample_while_they_come_and_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with AsyncExitStack() as stack:
        one, other = [await stack.enter_async_context(page_server()) for _ in range(2)]
        serving = [one.address, other.address]

        async def resolve_to_serving(_: str) -> tuple[str, ...]:
            return tuple(sorted(serving))

        monkeypatch.setattr(plugin, "resolve", resolve_to_serving)
        received = await stack.enter_async_context(
            run_sensor(QUICK, Fleet({"chat-r0": "vllm.chat.svc:8000"}))
        )
        await received.until(lambda: len(received.of(EngineSample)) > 1)
        one.says(LATER)
        other.says(LATER)
        await received.until(lambda: any(sample.prompt_tokens for sample in received.of(EngineSample)))
        serving.remove(other.address)
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
