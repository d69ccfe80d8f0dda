"""Sends each rollout as one trace to an OpenTelemetry collector, once it has ended."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog
from tenacity import AsyncRetrying, retry_if_exception_type

from flettner.agent.audit.records import JournalRecord
from flettner.agent.domain.errors import ConfigError
from flettner.agent.notify.rollout_spans import RolloutEntries, SpanRecord
from flettner.agent.retrying import Backoff, ReasonLog, retry, stop_before

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0  # between attempts
RETRIED_S = 900.0  # until a trace is given up: the journal has all of it
READ_BACK = 2000  # entries before the start, for a rollout that runs over it
log = structlog.get_logger()

Send = Callable[[Sequence[SpanRecord]], None]
"""Sends the spans, blocking. Raises OSError."""


@dataclass(slots=True, kw_only=True)
class TraceExport:
    follow: Callable[[int], AsyncIterator[JournalRecord]]  # the entries after a seq, without an end
    head: int  # seq of the last entry before the start: what ended by then was sent, or given up
    send: Send

    async def run(self) -> None:
        """Run until cancelled."""
        entries = RolloutEntries()
        async for record in self.follow(max(self.head - READ_BACK, 0)):
            spans = entries.add(record)
            if spans and record["seq"] > self.head:
                await self._deliver(spans)

    async def _deliver(self, spans: Sequence[SpanRecord]) -> None:
        rollout = str(spans[0].attributes["flettner.rollout"])
        sending = AsyncRetrying(
            retry=retry_if_exception_type(OSError),
            wait=Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S),
            stop=stop_before(RETRIED_S),
            before_sleep=ReasonLog("trace.waiting", {"rollout": rollout}),
            reraise=True,
        )
        try:
            await retry(sending, lambda: asyncio.to_thread(self.send, spans))
        except OSError as error:
            log.warning("trace.not_sent", rollout=rollout, why=str(error))
        else:
            log.info("trace.sent", rollout=rollout, spans=len(spans))


def build_sender(endpoint: str) -> Send:
    """Send by OTLP over HTTP; headers and certificates are those of OpenTelemetry's variables.

    Raises ConfigError without the extra `otlp`.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 - an extra
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import SpanExportResult  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"[agent] otlp_endpoint: needs {error.name}: install flettner with the extra `otlp`"
        ) from error
    exporter = OTLPSpanExporter(endpoint=endpoint)
    resource = Resource.create({"service.name": "flettner"})

    def send(spans: Sequence[SpanRecord]) -> None:
        if exporter.export([_convert(span, resource) for span in spans]) is not SpanExportResult.SUCCESS:
            raise OSError(f"{endpoint} did not take the trace")

    return send


def _convert(span: SpanRecord, resource: Any) -> Any:  # noqa: ANN401 - types of an extra
    from opentelemetry.sdk.trace import Event, ReadableSpan  # noqa: PLC0415 - an extra
    from opentelemetry.trace import SpanContext, TraceFlags  # noqa: PLC0415
    from opentelemetry.trace.status import Status, StatusCode  # noqa: PLC0415

    def context(id_: bytes) -> SpanContext:
        return SpanContext(
            trace_id=int.from_bytes(span.trace, "big"),
            span_id=int.from_bytes(id_, "big"),
            is_remote=False,
            trace_flags=TraceFlags(TraceFlags.SAMPLED),
        )

    status = Status(StatusCode.ERROR, span.failure) if span.failure else Status(StatusCode.OK)
    return ReadableSpan(
        name=span.name,
        context=context(span.id),
        parent=context(span.parent) if span.parent else None,
        resource=resource,
        attributes=_plain(span.attributes),
        events=[Event(event.name, _plain(event.attributes), _nanoseconds(event.at)) for event in span.events],
        status=status,
        start_time=_nanoseconds(span.start),
        end_time=_nanoseconds(span.end),
    )


def _plain(attributes: Mapping[str, str | int | float]) -> dict[str, str | int | float]:
    return dict(attributes)


def _nanoseconds(at: datetime) -> int:
    return round(at.timestamp() * 1000) * 1_000_000  # the journal has milliseconds
