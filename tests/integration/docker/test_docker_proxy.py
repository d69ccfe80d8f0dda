"""A real dockerd behind the proxy: escalations are rejected, and a full container lifecycle is allowed."""

import asyncio
import io
import os
import secrets
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import APIError, NotFound

from flettner.tools.docker_proxy.main import listening
from flettner.tools.docker_proxy.policy import parse_policy
from flettner.tools.docker_proxy.proxy import serving
from tests.unit.docker_proxy.specimens import ESCALATIONS

ENGINE = Path(os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://"))
BINDS = [f"{path}:{path}:ro" for path in ("/usr", "/bin", "/lib", "/lib64") if Path(path).exists()]
LABEL = {"flettner.target": "proxy-test"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Real:
    """`engine` connects to dockerd directly, `client` through the proxy; `prefix` starts every name."""

    engine: docker.APIClient
    client: docker.APIClient
    prefix: str
    image: str

    def body(self, **fields: Any) -> dict[str, Any]:  # noqa: ANN401
        plain = {
            "Image": self.image,
            "Cmd": ["sh", "-c", "echo hello; echo oops >&2; trap 'exit 0' TERM; sleep 600 & wait"],
            "Labels": LABEL,
            "HostConfig": {"Binds": BINDS, "Init": False},
        }
        return {**plain, **fields}

    def host(self, **fields: Any) -> dict[str, Any]:  # noqa: ANN401
        return self.body(HostConfig={"Binds": BINDS, **fields})

    async def create(self, body: dict[str, Any], name: str = "flettner-green") -> str:
        return await asyncio.to_thread(created, self.client, body, f"{name}-{self.prefix}")

    def names(self) -> set[str]:
        """Names of all containers of this test in dockerd."""
        entries = self.engine.containers(all=True, filters={"name": self.prefix})
        return {entry["Names"][0].removeprefix("/") for entry in entries}


def created(client: docker.APIClient, body: dict[str, Any], name: str) -> str:
    made = client.create_container_from_config(body, name)  # type: ignore[no-untyped-call]
    return str(made["Id"])


@pytest.fixture(scope="module")
def engine() -> Iterator[docker.APIClient]:
    client = docker.APIClient(base_url=f"unix://{ENGINE}", version="auto")
    yield client
    client.close()


@pytest.fixture(scope="module")
def image(engine: docker.APIClient) -> Iterator[str]:
    """An empty one: its files are those of the host, bound read-only."""
    empty = io.BytesIO()
    tarfile.open(fileobj=empty, mode="w").close()
    name = f"flettner-proxy-test-{secrets.token_hex(4)}"
    engine.import_image_from_data(empty.getvalue(), repository=name, tag="empty")
    yield f"{name}:empty"
    engine.remove_image(f"{name}:empty", force=True)


@pytest.fixture
async def real(engine: docker.APIClient, image: str) -> AsyncIterator[Real]:
    with tempfile.TemporaryDirectory(prefix="proxy-") as folder:  # the pytest folder is too long for a socket
        async with _between(engine, image, Path(folder) / "p.sock") as made:
            yield made


@asynccontextmanager
async def _between(engine: docker.APIClient, image: str, path: Path) -> AsyncIterator[Real]:
    prefix = secrets.token_hex(5)
    policy = parse_policy(
        {
            "socket": {"path": str(path), "engine": str(ENGINE)},
            "containers": {"adopt": [f"blue-{prefix}"]},
            "create": {"images": [f"{image.partition(':')[0]}:*"], "gpus": []},
            "mounts": {"read": [bind.split(":")[0] for bind in BINDS]},
        }
    )
    with listening(path, ENGINE) as listener:
        async with serving(listener, lambda: policy):
            client = await asyncio.to_thread(docker.APIClient, base_url=f"unix://{path}", version="auto")
            made = Real(engine=engine, client=client, prefix=prefix, image=image)
            try:
                yield made
            finally:
                client.close()
                await asyncio.to_thread(_removed, made)


def _removed(made: Real) -> None:
    for name in made.names():
        with suppress(NotFound):
            made.engine.remove_container(name, force=True)


@pytest.fixture
def foreign(real: Real) -> str:
    """The id of a third-party container."""
    made = created(real.engine, real.body(Labels={}), f"other-{real.prefix}")
    real.engine.start(made)
    return made


async def test_no_escalation_reaches_the_engine(real: Real) -> None:
    """Nor the network of the host by its id, and an image that is not listed: the engine knows these."""
    of_host = await asyncio.to_thread(real.engine.inspect_network, "host")
    bodies = {
        "the host's network by id": real.host(NetworkMode=of_host["Id"]),
        "an image not listed": real.body(Image="busybox"),
        **{case.name: {**real.host(**case.host_config), **case.config} for case in ESCALATIONS},
    }
    for name, body in bodies.items():
        with pytest.raises(APIError) as refused:
            await real.create(body)
        assert refused.value.status_code in ((403, 404) if name == "an image not listed" else (403,)), name
        assert refused.value.explanation, name

    assert await asyncio.to_thread(real.names) == set()


async def test_a_foreign_container_is_unreachable_by_any_name(real: Real, foreign: str) -> None:
    other = f"other-{real.prefix}"
    for ref in (other, foreign, foreign[:12]):
        for action in (
            lambda ref=ref: real.client.stop(ref),
            lambda ref=ref: real.client.kill(ref),
            lambda ref=ref: real.client.remove_container(ref, force=True),
            lambda ref=ref: real.client.rename(ref, f"blue-{real.prefix}"),
            lambda ref=ref: real.client.update_container(ref, cpu_shares=2),
            lambda ref=ref: real.client.exec_create(ref, "id"),
            lambda ref=ref: real.client.inspect_container(ref),
            lambda ref=ref: real.client.logs(ref),
            lambda ref=ref: real.client.stats(ref, stream=False, one_shot=True),
            lambda ref=ref: real.client.get_archive(ref, "/etc/hostname"),
            lambda ref=ref: real.client.disconnect_container_from_network(ref, "bridge"),
        ):
            with pytest.raises(APIError) as refused:
                await asyncio.to_thread(action)
            assert refused.value.status_code == 403

    seen = await asyncio.to_thread(real.engine.inspect_container, foreign)
    assert (seen["State"]["Running"], seen["Name"]) == (True, f"/{other}")
    listed = await asyncio.to_thread(real.client.containers, all=True, filters={"name": real.prefix})
    assert listed == []


async def test_allows_the_full_lifecycle_of_a_container(real: Real) -> None:
    stream = await asyncio.to_thread(
        real.client.events,
        decode=True,
        filters={"type": ["container"], "label": ["flettner.target=proxy-test"]},
    )
    made = await real.create(real.body(ExposedPorts={"8000/tcp": {}}))
    await asyncio.to_thread(_life, real, made)

    assert (await asyncio.to_thread(_actions, stream, made, "destroy"))[:3] == ["create", "start", "update"]
    assert await asyncio.to_thread(real.names) == set()


def _life(real: Real, made: str) -> None:
    client = real.client
    client.start(made)
    client.start(made)  # 304 is an answer
    follow = client.logs(made, stdout=True, stderr=True, stream=True, follow=True)
    assert {next(follow), next(follow)} == {b"hello\n", b"oops\n"}
    _end(follow)
    assert client.inspect_container(made)["State"]["Running"]
    image = client.inspect_image(real.image)  # type: ignore[no-untyped-call]
    assert image["Id"] == client.inspect_container(made)["Image"]
    client.update_container(made, restart_policy={"Name": "on-failure", "MaximumRetryCount": 1})
    assert client.inspect_container(made)["HostConfig"]["RestartPolicy"]["Name"] == "on-failure"
    client.rename(made, f"flettner-renamed-{real.prefix}")
    client.disconnect_container_from_network(made, "bridge")
    client.connect_container_to_network(made, "bridge")
    assert [entry["Id"] for entry in client.containers(filters={"name": real.prefix})] == [made]
    client.stop(made, timeout=20)
    assert client.wait(made)["StatusCode"] == 0
    assert client.logs(made, stdout=True, stderr=False, tail=10) == b"hello\n"
    assert "memory_stats" in client.stats(made, stream=False, one_shot=True)
    client.remove_container(made)
    with pytest.raises(NotFound):
        client.inspect_container(made)


def _actions(stream: Any, made: str, last: str) -> list[str]:  # noqa: ANN401
    actions = []
    for event in stream:
        if event["Actor"]["ID"] == made:
            actions.append(event["Action"])
            if event["Action"] == last:
                break
    _end(stream)
    return actions


def _end(stream: Any) -> None:  # noqa: ANN401 - of docker-py
    """The library closes the socket alone, which stays open for its answer until that is collected."""
    stream.close()
    stream._response.close()


async def test_allows_a_clone_with_all_inspected_defaults(real: Real) -> None:
    first = await real.create(real.host(ShmSize=1 << 26, Memory=1 << 26, NetworkMode="bridge"))
    seen = await asyncio.to_thread(real.client.inspect_container, first)
    config = {**seen["Config"], "Image": seen["Image"], "HostConfig": seen["HostConfig"]}

    twin = await real.create(config, "flettner-twin")

    made = await asyncio.to_thread(real.engine.inspect_container, twin)
    assert made["HostConfig"] == seen["HostConfig"]


async def test_stops_and_starts_an_adopted_container_by_name(real: Real) -> None:
    blue = created(real.engine, real.body(Labels={}), f"blue-{real.prefix}")

    def stop_and_start() -> dict[str, Any]:
        real.client.start(f"blue-{real.prefix}")
        real.client.stop(blue[:12], timeout=20)
        state: dict[str, Any] = real.client.inspect_container(blue)["State"]
        return state

    assert (await asyncio.to_thread(stop_and_start))["Status"] == "exited"
