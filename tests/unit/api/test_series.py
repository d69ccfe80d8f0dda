"""GET /v1/targets/{target}/series."""

from collections.abc import Sequence
from datetime import timedelta

from flettner.agent.domain.rollout import Canary
from flettner.agent.observe.minute_rows import MinuteRow
from tests.support.fake_daemon_view import NOON, PLAN, FakeDaemonView
from tests.support.suggestions import approved
from tests.unit.api.conftest import Client, get


def hours(*, minutes: int, without: Sequence[int] = ()) -> list[MinuteRow]:
    begin = int(NOON.timestamp()) - minutes * 60
    return [
        MinuteRow(at=begin + 60 * number, running=float(number))
        for number in range(minutes)
        if number not in without
    ]


async def test_the_columns_are_of_one_length_and_gaps_are_null(
    client: Client, daemon: FakeDaemonView
) -> None:
    daemon.targets()["chat"].minutes = hours(minutes=10, without=(4, 5))
    series = await get(client, "/v1/targets/chat/series?hours=1")

    assert series["every_s"] == 60
    assert series["start"] == "2026-11-20T11:50:00Z"
    assert series["running"] == [0.0, 1.0, 2.0, 3.0, None, None, 6.0, 7.0, 8.0, 9.0]
    assert {len(column) for column in series.values() if isinstance(column, list) and column} == {10}


async def test_downsamples_a_day(client: Client, daemon: FakeDaemonView) -> None:
    daemon.targets()["chat"].minutes = hours(minutes=1440)
    series = await get(client, "/v1/targets/chat/series?hours=24&points=144")

    assert (series["every_s"], len(series["running"])) == (600, 144)


async def test_omits_points_older_than_the_requested_range(client: Client, daemon: FakeDaemonView) -> None:
    daemon.targets()["chat"].minutes = hours(minutes=1440)
    series = await get(client, "/v1/targets/chat/series?hours=2")

    assert len(series["running"]) == 120


async def test_rollouts_are_marked(client: Client, daemon: FakeDaemonView) -> None:
    began = NOON - timedelta(minutes=30)
    rollout = Canary(
        id="chat-o1",
        suggestion=approved(),
        server="chat-r1",
        replicas={},
        plan=PLAN,
        started_at=began,
        phase_since=began,
        outcome="promoted",
        ended_at=NOON,
    )
    daemon._rollouts = {"chat-o1": ("chat", rollout), "other-o1": ("other", rollout)}
    series = await get(client, "/v1/targets/chat/series?hours=1")

    assert [(mark["what"], mark["rollout"]) for mark in series["marks"]] == [
        ("started", "chat-o1"),
        ("promoted", "chat-o1"),
    ]
