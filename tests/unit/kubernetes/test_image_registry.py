"""The digest of a tag, asked at a registry as the OCI distribution specification has it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from flettner.actuators.kubernetes.image_registry import MissingImageError, find_digest
from flettner.agent.domain.errors import ActError

DIGEST = f"sha256:{'3' * 64}"


@asynccontextmanager
async def registry(*, token: str = "", digest: str = DIGEST) -> AsyncIterator[str]:
    """Yield HOST:PORT of a registry with vllm:v0.33.0. `token`: that it gives to anybody, and asks for."""

    async def manifest(request: web.Request) -> web.Response:
        if token and request.headers.get("Authorization") != f"Bearer {token}":
            challenge = f'Bearer realm="http://{host}/token",service="s",scope="repository:acme/vllm:pull"'
            return web.Response(status=401, headers={"WWW-Authenticate": challenge})
        if request.match_info["tag"] != "v0.33.0":
            return web.Response(status=404)
        assert "application/vnd.oci.image.index.v1+json" in request.headers["Accept"]
        return web.Response(headers={"Docker-Content-Digest": digest})

    async def give_token(request: web.Request) -> web.Response:
        assert request.query["scope"] == "repository:acme/vllm:pull"
        return web.json_response({"token": token})

    app = web.Application()
    app.router.add_route("HEAD", "/v2/acme/vllm/manifests/{tag}", manifest)
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
