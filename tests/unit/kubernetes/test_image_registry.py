"""The digest of a tag, asked at a registry as the OCI distribution specification has it."""

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
from aiohttp import web

from flettner.actuators.kubernetes.image_registry import MissingImageError, find_cuda, find_digest
from flettner.actuators.kubernetes.registry_login import find_login, read_logins
from flettner.agent.domain.errors import ActError
from flettner.clients.kubernetes.client import Reader
from flettner.clients.kubernetes.documents import Json

DIGEST = f"sha256:{'3' * 64}"
DOCUMENTS: dict[str, object] = {
    DIGEST: {"manifests": [{"digest": "sha256:amd64"}, {"digest": "sha256:arm64"}]},
    "v0.33.0": {"manifests": [{"digest": "sha256:amd64"}]},
    "sha256:amd64": {"config": {"digest": "sha256:config"}},
    "sha256:config": {"config": {"Env": ["PATH=/bin", "CUDA_VERSION=12.9.1"]}},
    "v0.1": {"config": {"digest": "sha256:plain"}},
    "sha256:plain": {"config": {}},
    "v0.2": {"manifests": []},
}


@asynccontextmanager
async def registry(
    *, token: str = "", login: str = "", basic: bool = False, digest: str = DIGEST
) -> AsyncIterator[str]:
    """Yield HOST:PORT of a registry with vllm:v0.33.0.

    `token`: that it asks for, and gives to who has the `login`. `basic`: it asks for the login itself.
    """

    async def manifest(request: web.Request) -> web.Response:
        if basic and request.headers.get("Authorization") != login:
            return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="registry"'})
        if token and request.headers.get("Authorization") != f"Bearer {token}":
            challenge = f'Bearer realm="http://{host}/token",service="s",scope="repository:acme/vllm:pull"'
            return web.Response(status=401, headers={"WWW-Authenticate": challenge})
        if request.match_info["tag"] != "v0.33.0":
            return web.Response(status=404)
        assert "application/vnd.oci.image.index.v1+json" in request.headers["Accept"]
        return web.Response(headers={"Docker-Content-Digest": digest})

    async def give_token(request: web.Request) -> web.Response:
        assert request.query["scope"] == "repository:acme/vllm:pull"
        if request.headers.get("Authorization", "") != login:
            return web.Response(status=401)
        return web.json_response({"token": token})

    async def document(request: web.Request) -> web.Response:
        if token and request.headers.get("Authorization") != f"Bearer {token}":
            return web.Response(status=401)
        return web.json_response(DOCUMENTS[request.path.rpartition("/")[2]])

    app = web.Application()
    app.router.add_route("HEAD", "/v2/acme/vllm/manifests/{tag}", manifest)
    app.router.add_route("GET", "/v2/acme/vllm/manifests/{tag}", document)
    app.router.add_get("/v2/acme/vllm/blobs/{digest}", document)
    app.router.add_get("/token", give_token)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host = f"127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield host
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("token", ["", "t"], ids=["open", "with a token for anybody"])
async def test_the_digest_of_a_tag(token: str) -> None:
    async with registry(token=token) as host:
        assert await find_digest(f"{host}/acme/vllm:v0.33.0") == DIGEST


async def test_an_image_that_the_registry_lacks() -> None:
    async with registry() as host:
        with pytest.raises(MissingImageError, match=r"has no image acme/vllm:v9"):
            await find_digest(f"{host}/acme/vllm:v9")


async def test_an_answer_without_a_digest_is_none() -> None:
    async with registry(digest="sha256:1") as host:
        with pytest.raises(ActError, match="answers 200 without a digest"):
            await find_digest(f"{host}/acme/vllm:v0.33.0")


async def test_a_registry_that_is_away() -> None:
    with pytest.raises(ActError, match=r"127.0.0.1:1 cannot be asked"):
        await find_digest("127.0.0.1:1/acme/vllm:v0.33.0")


LOGIN = "Basic YWxpY2U6cGFzczp3b3Jk"  # alice, pass:word


@pytest.mark.parametrize(("token", "basic"), [("t", False), ("", True)], ids=["token", "basic"])
async def test_a_private_registry_is_asked_with_the_login(token: str, basic: bool) -> None:
    async with registry(token=token, login=LOGIN, basic=basic) as host:
        assert await find_digest(f"{host}/acme/vllm:v0.33.0", LOGIN) == DIGEST
        for wrong in ("", "Basic eDp5"):
            with pytest.raises(ActError, match=r"cannot be asked|answers 401"):
                await find_digest(f"{host}/acme/vllm:v0.33.0", wrong)


AUTHS = {
    "https://index.docker.io/v1/": {"auth": "YWxpY2U6cGFzczp3b3Jk"},
    "ghcr.io": {"username": "bob", "password": "b"},
    "broken.example": {"auth": "!"},
    "helped.example": {},
}


def test_the_logins_of_a_config_of_docker() -> None:
    logins = read_logins(json.dumps({"auths": AUTHS, "credsStore": "desktop"}).encode(), "a file")

    assert {host: (login.user, login.password) for host, login in logins.items()} == {
        "registry-1.docker.io": ("alice", "pass:word"),
        "ghcr.io": ("bob", "b"),
    }
    assert logins["registry-1.docker.io"].basic == LOGIN
    assert "pass" not in repr(logins)
    assert read_logins(b"no JSON", "a file") == {}


class Secrets:
    """A reader with the right to read one secret."""

    async def get(self, resource: object, name: str) -> Json:
        del resource
        if name != "mine":
            raise ActError(f"{name} is forbidden")
        text = json.dumps({"auths": {"ghcr.io": AUTHS["ghcr.io"]}}).encode()
        return {"data": {".dockerconfigjson": base64.b64encode(text).decode()}}


async def test_the_pull_secrets_of_the_pods_come_before_the_users_own_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    pods = [{"imagePullSecrets": [{"name": "hidden"}, {"name": "mine"}]}, {}]
    reader = cast("Reader", Secrets())

    of_pods = await find_login(reader, "ghcr.io", pods)
    nobody = await find_login(reader, "ghcr.io", [])
    (tmp_path / "config.json").write_text(
        json.dumps({"auths": {"ghcr.io": {"auth": "YWxpY2U6cGFzczp3b3Jk"}}})
    )
    own = await find_login(reader, "ghcr.io", [])

    assert (of_pods and of_pods.source, nobody) == ("the secret mine", None)
    assert own is not None
    assert own.user == "alice"


@pytest.mark.parametrize(
    ("name", "cuda"),
    [
        (f"v0.33.0@{DIGEST}", "12.9.1"),
        ("v0.33.0", "12.9.1"),
        ("v0.1", ""),
        ("v0.2", ""),
        ("v9", ""),
    ],
    ids=["by its digest", "by its tag", "without a variable", "of no platform", "missing"],
)
@pytest.mark.parametrize("token", ["", "t0ken"])
async def test_the_cuda_of_an_image_is_in_its_configuration(name: str, cuda: str, token: str) -> None:
    async with registry(token=token) as host:
        assert await find_cuda(f"{host}/acme/vllm:{name}") == cuda


async def test_a_registry_that_is_away_tells_no_cuda() -> None:
    assert await find_cuda("localhost:1/acme/vllm:v0.33.0") == ""
