"""The ConfigMap of a route says what the daemon knows, and nothing else is taken for one."""

import json
from dataclasses import replace

import pytest

from flettner.actuators.shared.published_route import PublishedRoute
from flettner.agent.domain.effects import Route
from flettner.agent.domain.errors import FencedError
from flettner.agent.domain.model import Hold, Server

BLUE = Server(name="chat-r1", setting={"max_num_seqs": 4}, address="10.0.0.1:8000")
GREEN = Server(name="chat-r2", setting={}, address="10.0.0.2:8000")
CANARY = Route(
    number=7,
    servers=(BLUE, GREEN),
    weights={"chat-r1": 95, "chat-r2": 5},
    fallback="chat-r1",
    leased="chat-r2",
    lease_s=15.0,
)
PUBLISHED = PublishedRoute(
    target="chat",
    epoch=3,
    process="a",
    listen="0.0.0.0:8080",
    session_header="x-session-id",
    report_every_s=2.0,
    open_routes=("v1/load_lora_adapter",),
    route=CANARY,
    hold=Hold(wait_s=30.0, requests=512),
    write="1",
)


def test_a_route_is_read_back_without_the_settings_of_its_servers() -> None:
    read = PublishedRoute.parse(PUBLISHED.to_object("flettner-proxy"))

    assert read == replace(PUBLISHED, route=replace(CANARY, servers=(replace(BLUE, setting={}), GREEN)))


def test_a_renewal_is_another_write_of_the_same_route() -> None:
    renewed = replace(PUBLISHED.renewed(), epoch=4)

    assert renewed.write != PUBLISHED.write
    assert renewed.carries(PUBLISHED)
    assert not renewed.ended().carries(PUBLISHED)
    assert not replace(renewed, listen="0.0.0.0:8081").carries(PUBLISHED)


@pytest.mark.parametrize(
    ("epoch", "process", "refused"),
    [(2, "a", True), (3, "a", False), (3, "b", True), (4, "b", False)],
    ids=["older", "same", "another of this epoch", "newer"],
)
def test_an_older_daemon_is_refused(epoch: int, process: str, *, refused: bool) -> None:
    if refused:
        with pytest.raises(FencedError):
            PUBLISHED.refuse_older(epoch, process)
    else:
        PUBLISHED.refuse_older(epoch, process)


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"route": None},
        {"route": {}},
        {"epoch": "x"},
        {"write": None, "listen": None, "route": 1},
    ],
    ids=str,
)
def test_other_content_is_no_route(change: dict[str, object]) -> None:
    document = PUBLISHED.to_object("flettner-proxy")
    content = json.loads(document["data"]["route.json"]) | change
    document["data"]["route.json"] = json.dumps(content)

    with pytest.raises(ValueError, match="not a route that flettner published"):
        PublishedRoute.parse(document)


@pytest.mark.parametrize("data", [None, {}, {"route.json": "{"}, {"route.json": "[]"}], ids=str)
def test_a_config_map_without_a_route_is_none(data: object) -> None:
    document = PUBLISHED.to_object("flettner-proxy") | {"data": data}

    with pytest.raises(ValueError, match="not a route that flettner published"):
        PublishedRoute.parse(document)
