"""A target's last hours as columns of numbers, for charts."""

from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from flettner.agent.api.operations import Call, Operation
from flettner.agent.api.routes.targets import find_target
from flettner.agent.observe.minute_rows import COLUMNS, MINUTE_S, MinuteRow, downsample

Column = list[float | None]


class SeriesQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    hours: int = Field(default=24, ge=1, le=24)
    points: int = Field(
        default=1440, ge=10, le=1440, description="maximum number of points; minutes are merged"
    )


class MarkDocument(BaseModel):
    at: datetime
    what: Literal["started", "promoted", "rolled_back"]
    rollout: str


class SeriesDocument(BaseModel):
    """Columns of one length; place 0 is `start`. null: unknown, or the daemon did not run."""

    target: str
    start: datetime
    every_s: int
    requests_rps: Column = Field(description="of all servers")
    goodput_rps: Column = Field(description="that met every objective; without the proxy an upper bound")
    attainment: Column = Field(description="share of the requests that met every objective")
    ttft_p95_s: Column
    itl_p95_s: Column
    running: Column = Field(description="this and the following: of the server with most traffic")
    waiting: Column
    kv_usage: Column
    preemptions_per_s: Column
    gpu_utilization: Column
    gpu_memory: Column = Field(description="share of the fullest GPU's memory")
    generated_per_s: Column = Field(description="tokens of answers, of all servers")
    power_w: Column = Field(description="of all GPUs")
    marks: list[MarkDocument] = Field(description="rollouts that began or ended in this time")


async def _series(call: Call) -> SeriesDocument:
    query = call.parsed_as(SeriesQuery)
    target = find_target(call)
    now = int(call.daemon.now().timestamp())
    every_s = -(-query.hours * 60 // query.points) * MINUTE_S
    since = now - query.hours * 3600
    rows = downsample((row for row in target.minutes if since <= row.at <= now), every_s)
    start = rows[0].at if rows else now // every_s * every_s
    return SeriesDocument(
        target=target.state.target,
        start=datetime.fromtimestamp(start, UTC),
        every_s=every_s,
        marks=_marks(call, target.state.target, since),
        **_columns(rows, start, every_s),
    )


def _columns(rows: list[MinuteRow], start: int, every_s: int) -> dict[str, Column]:
    """A null for a missing row, so that a chart shows a gap."""
    length = (rows[-1].at - start) // every_s + 1 if rows else 0
    columns: dict[str, Column] = {name: [None] * length for name in COLUMNS}
    for row in rows:
        for name in COLUMNS:
            columns[name][(row.at - start) // every_s] = getattr(row, name)
    return columns


def _marks(call: Call, target: str, since: int) -> list[MarkDocument]:
    marks = []
    for name, rollout in call.daemon.rollouts():
        if name != target:
            continue
        marks.append(MarkDocument(at=rollout.started_at, what="started", rollout=rollout.id))
        if rollout.ended_at is not None and rollout.outcome != "running":
            marks.append(MarkDocument(at=rollout.ended_at, what=rollout.outcome, rollout=rollout.id))
    return sorted((mark for mark in marks if mark.at.timestamp() >= since), key=lambda mark: mark.at)


OPERATIONS = (
    Operation(
        name="showSeries",
        method="GET",
        path="/v1/targets/{name}/series",
        role="viewer",
        summary="The last hours of a target, one point a minute",
        handler=_series,
        response=SeriesDocument,
        query=SeriesQuery,
        errors={404: "No such target."},
    ),
)
