"""Resolution and ownership of containers, checked with the engine over real sockets."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.unit.docker_proxy.fake_docker import ADOPTED, EVIL, FOREIGN, HEXNAMED, IMAGE, OURS, as_json
from tests.unit.docker_proxy.rig import VLLM, Rig, rigged
from tests.unit.docker_proxy.specimens import policy


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with rigged() as made:
        yield made


CHANGES = [
    ("POST", "/start"),
    ("POST", "/stop?t=3"),
    ("POST", "/kill?signal=SIGKILL"),
    ("POST", "/wait"),
    ("DELETE", "?force=True&v=False&link=False"),
]


@pytest.mark.parametrize(("method", "tail"), CHANGES)
@pytest.mark.parametrize(
    ("ref", "full"), [("vllm", ADOPTED), ("flettner-chat-r3", OURS), (OURS, OURS), ("bbbb", OURS)]
)
async def test_a_request_for_an_own_container_is_forwarded_with_its_full_id(
    rig: Rig, method: str, tail: str, ref: str, full: str
) -> None:
    status, _ = await rig.ask(method, f"/v1.41/containers/{ref}{tail}")

    assert status in (204, 304)
    assert rig.engine.changes[0][1] == f"/containers/{full}{tail.partition('?')[0]}"


@pytest.mark.parametrize(
    ("method", "tail"),
    [*CHANGES, *(("GET", look) for look in ("/json", "/logs?stdout=1", "/stats?stream=0"))],
)
@pytest.mark.parametrize("ref", ["postgres", FOREIGN, "cccccc", "aaaaaaaaaaaa", HEXNAMED])
async def test_a_foreign_container_is_protected_under_every_name(
    rig: Rig, method: str, tail: str, ref: str
) -> None:
    status, why = await rig.ask(method, f"/v1.41/containers/{ref}{tail}")

    assert status == 403
    assert "is not in the policy's containers.adopt" in why
    assert rig.engine.changes == []


async def test_a_foreign_container_that_takes_an_adopted_name_becomes_the_adopted_one(
    rig: Rig,
) -> None:
    adopted, foreign = rig.engine.containers[0], rig.engine.containers[2]
    adopted["Name"], foreign["Name"] = "/vllm-old", "/vllm"

    assert (await rig.ask("POST", f"/containers/{ADOPTED}/stop"))[0] == 403
    assert (await rig.ask("POST", "/containers/vllm/stop"))[0] == 204
    assert rig.engine.changes[0][1] == f"/containers/{FOREIGN}/stop"


async def test_an_adopted_container_renamed_by_hand_is_read_only(rig: Rig) -> None:
    assert (await rig.ask("GET", "/containers/vllm/json"))[0] == 200
    rig.engine.containers[0]["Name"] = "/vllm-old"

    for look in ("/json", "/logs"):
        rig.engine.events.put_nowait(None)
        assert (await rig.ask("GET", f"/containers/{ADOPTED}{look}"))[0] == 200
    _, entries = await rig.ask("GET", "/containers/json?all=1")
    assert [entry["Id"] for entry in entries] == [ADOPTED, OURS]
    for method, tail in CHANGES[:3]:
        assert (await rig.ask(method, f"/containers/{ADOPTED}{tail}"))[0] == 403


@pytest.mark.parametrize("flag", ["1", "True", "true"])
async def test_the_anonymous_volumes_of_an_adopted_container_are_kept(rig: Rig, flag: str) -> None:
    assert (await rig.ask("DELETE", f"/containers/flettner-chat-r3?v={flag}"))[0] == 204
    status, why = await rig.ask("DELETE", f"/containers/vllm?v={flag}&force=1")

    assert (status, len(rig.engine.changes)) == (403, 1)
    assert "anonymous volumes" in why


async def test_an_unknown_container_gets_the_error_of_the_engine(rig: Rig) -> None:
    assert await rig.ask("POST", "/containers/nobody/stop") == (404, "No such object: nobody")


@pytest.mark.parametrize(
    ("ref", "name", "status"),
    [
        ("flettner-chat-r3", "flettner-chat-old", 204),
        ("flettner-chat-r3", "vllm", 204),
        ("flettner-chat-r3", "postgres", 403),
        ("flettner-chat-r3", "FLETTNER-x", 403),
        ("vllm", "flettner-old", 403),  # adopted by name
        ("postgres", "flettner-x", 403),
        ("postgres", "vllm", 403),
    ],
)
async def test_a_rename_neither_takes_a_foreign_name_nor_drops_an_adopted_one(
    rig: Rig, ref: str, name: str, status: int
) -> None:
    assert (await rig.ask("POST", f"/containers/{ref}/rename?name={name}"))[0] == status
    assert len(rig.engine.changes) == (status == 204)


async def test_an_update_is_forwarded_as_checked(rig: Rig) -> None:
    good = {"RestartPolicy": {"Name": "no"}}

    assert (await rig.ask("POST", "/containers/vllm/update", json=good))[0] == 204
    assert (await rig.ask("POST", "/containers/vllm/update", json={**good, "CpuShares": 2}))[0] == 403
    assert (await rig.ask("POST", "/containers/postgres/update", json=good))[0] == 403
    assert [as_json(body) for _, _, _, body in rig.engine.changes] == [good]


@pytest.mark.parametrize("path", ["start", "stop", "kill", "rename?name=flettner-x"])
async def test_an_unexpected_body_is_refused(rig: Rig, path: str) -> None:
    status, why = await rig.ask("POST", f"/containers/vllm/{path}", data=b'{"Privileged":1}')

    assert (status, rig.engine.received) == (403, [])
    assert "takes no body" in why


async def test_a_container_is_created_as_checked_under_a_flettner_name(rig: Rig) -> None:
    status, made = await rig.create({**VLLM, "HostConfig": {"Binds": ["hf-cache:/c"]}})

    assert (status, made["Id"]) == (201, "7" * 64)
    method, path, query, body = rig.engine.changes[0]
    assert (method, path, query) == ("POST", "/containers/create", {"name": "flettner-chat-r4"})
    assert as_json(body) == {**VLLM, "HostConfig": {"Binds": ["hf-cache:/c"]}}


@pytest.mark.parametrize("name", ["postgres", "", "vllm2", "xflettner-"])
async def test_a_name_outside_flettner_is_refused(rig: Rig, name: str) -> None:
    assert (await rig.create(VLLM, name))[0] == 403


NETWORK_OF_THE_HOST = {"HostConfig": {"NetworkMode": "0" * 64}}
NETWORKS: dict[str, Any] = {"NetworkingConfig": {"EndpointsConfig": {"db": {}}}}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"Image": "evil/vllm-openai:v0.11.0"}, "create.images"),
        ({"Image": EVIL}, "create.images"),
        ({"Image": "2" * 12}, "create.images"),
        ({"Image": "../images/x"}, "is not the name of an image"),
        ({"Image": "a/../../containers/x"}, "is not the name of an image"),
        (NETWORK_OF_THE_HOST, "networks.host is false"),
        ({"HostConfig": {"NetworkMode": "0000"}}, "networks.host is false"),
        ({"HostConfig": {"NetworkMode": "db"}}, "networks.names"),
        (NETWORKS, "networks.names"),
        ({"HostConfig": {"Binds": ["pgdata:/d"]}}, "volumes not in the policy's mounts.volumes: pgdata"),
        ({"HostConfig": {"Binds": ["vllm-root:/d"]}}, "mounts.volumes: vllm-root"),
        (
            {"HostConfig": {"Mounts": [{"Type": "volume", "Source": "pgdata", "Target": "/d"}]}},
            "mounts.volumes: pgdata",
        ),
        ({"HostConfig": {"Binds": ["cache-of-postgres:/d"]}}, "mounts.volumes: cache-of-postgres"),
    ],
)
async def test_escalations_that_only_the_engine_reveals_are_refused(
    rig: Rig, change: dict[str, Any], reason: str
) -> None:
    status, why = await rig.create({**VLLM, **change})

    assert status == 403
    assert reason in why
    assert rig.engine.changes == []


@pytest.mark.parametrize(
    "change",
    [
        {"Image": IMAGE},
        {"HostConfig": {"NetworkMode": "none"}},
        {"HostConfig": {"NetworkMode": "llm"}},
        {"HostConfig": {"Binds": ["vllm-plain:/d", "vllm-new:/e"]}},
        {"HostConfig": {"Binds": ["cache-of-vllm:/d"]}},
    ],
)
async def test_entries_listed_in_the_policy_or_used_by_an_adopted_container_pass(
    rig: Rig, change: dict[str, Any]
) -> None:
    assert (await rig.create({**VLLM, **change}))[0] == 201


async def test_an_image_without_a_name_passes_while_an_adopted_container_runs_it(rig: Rig) -> None:
    rig.engine.images[IMAGE] = []
    assert (await rig.create({**VLLM, "Image": IMAGE}))[0] == 201

    rig.engine.containers[0]["Name"] = "/aaaa"  # `vllm` no longer exists
    assert (await rig.create({**VLLM, "Image": IMAGE}))[0] == 403


async def test_adopted_containers_grant_rights_only_if_the_policy_allows_it(rig: Rig) -> None:
    rig.policy = policy(create={"as_adopted": False})

    assert (await rig.create({**VLLM, "HostConfig": {"Binds": ["cache-of-vllm:/d"]}}))[0] == 403


MARKED = {"flettner.target": "chat"}
TRAEFIK = {"traefik.http.routers.x.rule": "Host(`bank`)"}


@pytest.mark.parametrize("label", [*TRAEFIK, "ofelia.job-local.x.command", "com.centurylinklabs.watchtower"])
async def test_labels_of_other_tools_are_refused(rig: Rig, label: str) -> None:
    status, why = await rig.create({**VLLM, "Labels": {**MARKED, label: "sh"}})

    assert status == 403
    assert f"labels not in the policy's create.labels: '{label}'" in why


async def test_labels_are_allowed_by_the_policy_or_where_the_adopted_container_has_them(rig: Rig) -> None:
    labels = {**MARKED, **TRAEFIK}
    rig.engine.containers[0]["Config"]["Labels"] = TRAEFIK
    adopted = (await rig.create({**VLLM, "Labels": labels}))[0]
    other_value = (await rig.create({**VLLM, "Labels": {**labels, **dict.fromkeys(TRAEFIK, "Host(`x`)")}}))[0]
    rig.policy = policy(create={"as_adopted": False, "labels": ["traefik.*"]})
    listed = (await rig.create({**VLLM, "Labels": labels}))[0]

    assert (adopted, other_value, listed) == (201, 403, 201)


async def test_a_missing_image_gets_the_error_of_the_engine(rig: Rig) -> None:
    answer = await rig.create({**VLLM, "Image": "vllm/vllm-openai:v9"})

    assert answer == (404, "No such object: vllm/vllm-openai:v9")


@pytest.mark.parametrize("verb", ["connect", "disconnect"])
async def test_own_containers_join_listed_networks(rig: Rig, verb: str) -> None:
    assert (await rig.ask("POST", f"/networks/llm/{verb}", json={"Container": "vllm"}))[0] == 204
    for network, container in (
        ("llm", "postgres"),
        ("db", "vllm"),
        ("host", "vllm"),
        ("llm", "aaaaaaaaaaaa"),
    ):
        assert (await rig.ask("POST", f"/networks/{network}/{verb}", json={"Container": container}))[0] == 403

    ((_, path, _, body),) = rig.engine.changes
    assert (path, as_json(body)) == (f"/networks/{'f' * 64}/{verb}", {"Container": ADOPTED})


async def test_only_listed_files_of_own_containers_are_read(rig: Rig) -> None:
    async def read(path: str, container: str = "vllm") -> int:
        return (await rig.ask("GET", f"/containers/{container}/archive?path={path}"))[0]

    assert await read("/etc/vllm/config.yaml") == 200
    assert await read("/etc/vllm/config.yaml", "postgres") == 403
    for path in ("/etc/shadow", "/etc/vllm/../shadow.yaml", "/etc/vllm/a/b.yaml", "etc/vllm/c.yaml", ""):
        assert await read(path) == 403


async def test_the_list_shows_only_containers_of_flettner(rig: Rig) -> None:
    _, entries = await rig.ask("GET", "/containers/json?all=1")
    assert [entry["Id"] for entry in entries] == [ADOPTED, OURS]

    rig.policy = policy(containers={"read": "all"})
    _, entries = await rig.ask("GET", "/containers/json?all=1")
    assert len(entries) == 4
    assert (await rig.ask("GET", "/containers/postgres/json"))[0] == 200
    assert (await rig.ask("GET", "/containers/postgres/archive?path=/etc/vllm/c.yaml"))[0] == 403
    assert (await rig.ask("POST", "/containers/postgres/stop"))[0] == 403
