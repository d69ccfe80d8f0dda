"""A rollout as one trace, as a local OTLP/HTTP receiver gets it."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from flettner.agent.audit.journal import Journal
from flettner.agent.audit.records import JournalRecord
from flettner.agent.domain.errors import ConfigError
from flettner.agent.domain.state import Phase
from flettner.agent.notify.rollout_spans import RolloutEntries, SpanRecord
from flettner.agent.runtime.trace_export import TraceExport, build_sender
from tests.support.answering import answering
from tests.support.fast_time import NOON, in_no_time
from tests.unit.scenarios.test_loop import approve, reach
from tests.unit.scenarios.test_unwritable import Place


def records_of(folder: Path, *, green_fails: bool = False) -> list[JournalRecord]:
    """The journal of one rollout in virtual time."""

    async def roll_out() -> None:
        async with Place(folder).running(green_fails=green_fails) as loop:
            await approve(loop)
            await reach(loop, Phase.COOLDOWN if green_fails else Phase.OBSERVING)

    in_no_time(roll_out())
    return Journal.open(folder / "audit.jsonl", now=lambda: NOON).after(0, 10_000)


@dataclass
class Collector:
    """`fails`: how many requests are answered 400 first."""

    fails: int = 0
    requests: list[ExportTraceServiceRequest] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def collector() -> Iterator[Collector]:
    seen = Collector()

    def answer(_: str, body: bytes) -> tuple[int, bytes]:
        if seen.fails:
            seen.fails -= 1
            return 400, b""
        seen.requests.append(ExportTraceServiceRequest.FromString(body))
        return 200, b""

    with answering(answer) as url:
        seen.url = f"{url}/v1/traces"
        yield seen


def export(records: list[JournalRecord], url: str, head: int = 0) -> None:
    async def follow(after: int) -> AsyncIterator[JournalRecord]:
        for record in records:
            if record["seq"] > after:
                yield record

    asyncio.run(TraceExport(follow=follow, head=head, send=build_sender(url)).run())


def spans_of(records: list[JournalRecord]) -> tuple[SpanRecord, ...]:
    entries = RolloutEntries()
    return tuple(span for record in records for span in entries.add(record))


def attributes_of(of: Any) -> dict[str, str]:  # noqa: ANN401 - of protobuf, without types
    return {pair.key: pair.value.string_value for pair in of.attributes}


def test_a_collector_gets_the_rollout_with_its_phases_and_verdicts(
    tmp_path: Path, collector: Collector
) -> None:
    export(records_of(tmp_path), collector.url)

    (request,) = collector.requests
    (resource,) = request.resource_spans
    root, *phases = resource.scope_spans[0].spans
    assert attributes_of(resource.resource)["service.name"] == "flettner"
    assert root.name == "rollout chat"
    assert attributes_of(root)["flettner.rollout"] == "chat-1"
    assert attributes_of(root)["flettner.outcome"] == "promoted"
    assert attributes_of(root)["flettner.decided_by"] == "alice"
    assert [phase.name for phase in phases] == ["launching", "warming", "canary", "promoting"]
    assert {phase.parent_span_id for phase in phases} == {root.span_id}
    assert {phase.trace_id for phase in phases} == {root.trace_id}
    events = {phase.name: [event.name for event in phase.events] for phase in phases}
    assert "rollout.advanced" in events["canary"]
    assert events["promoting"][-1] == "rollout.promoted"
    assert root.status.code == 1
    for before, after in pairwise(phases):
        assert before.end_time_unix_nano == after.start_time_unix_nano
    assert root.start_time_unix_nano == phases[0].start_time_unix_nano
    assert root.end_time_unix_nano == phases[-1].end_time_unix_nano > root.start_time_unix_nano


def test_a_rollout_that_is_rolled_back_has_an_error_with_the_reason(tmp_path: Path) -> None:
    root, *phases = spans_of(records_of(tmp_path, green_fails=True))

    assert root.failure
    assert root.attributes["flettner.outcome"] == "rolled_back"
    assert phases[-1].name == "rolling_back"


def test_a_collector_that_refuses_is_asked_again(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flettner.agent.runtime.trace_export.FIRST_PAUSE_S", 0.01)
    collector.fails = 2

    export(records_of(tmp_path), collector.url)

    assert len(collector.requests) == 1


def test_what_ended_before_the_start_is_not_sent_again(tmp_path: Path, collector: Collector) -> None:
    records = records_of(tmp_path)

    export(records, collector.url, head=records[-1]["seq"])

    assert collector.requests == []


def test_the_same_rollout_is_the_same_trace_after_a_restart(tmp_path: Path) -> None:
    records = records_of(tmp_path)

    assert spans_of(records) == spans_of(records)


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)

    with pytest.raises(ConfigError, match="install flettner with the extra `otlp`"):
        build_sender("http://127.0.0.1:9/v1/traces")
