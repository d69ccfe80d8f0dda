"""Errors of the credentials name what was found and what to do; none ends the daemon."""

import asyncio
import json
import ssl
from pathlib import Path

import pytest

from flettner.agent.domain.errors import ActError
from flettner.clients.kubernetes.client import SERVICE, KubernetesClient
from flettner.clients.kubernetes.errors import AwayError
from tests.support.kubernetes import certificates
from tests.support.kubernetes.scripted_api import ScriptedApi


def kubeconfig(path: Path, server: str, **cluster: str) -> Path:
    content = {
        "clusters": [{"name": "test", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "me", "user": {"token": "t"}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "me"}}],
        "current-context": "test",
    }
    path.write_text(json.dumps(content))
    return path


async def error_of(path: Path) -> ActError:
    with pytest.raises(ActError) as refused:
        await KubernetesClient(kubeconfig=str(path), namespace="chat").find(SERVICE)
    return refused.value


@pytest.mark.parametrize("text", ["", "a: [", "[]", "clusters: 1", '{"current-context": "x"}'])
async def test_a_file_that_is_no_kubeconfig_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)

    assert "no access to a Kubernetes API server" in (await error_of(path)).why


async def test_a_missing_authority_is_named(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "k", "https://127.0.0.1:1", **{"certificate-authority": "/none.crt"})

    assert "its certificate-authority /none.crt is no file" in (await error_of(path)).why


async def test_expired_credentials_are_named(tmp_path: Path) -> None:
    async with ScriptedApi.running(tmp_path) as api:
        for _ in range(4):
            api.refuses(401)

        error = await error_of(tmp_path / "kubeconfig")

    assert "does not accept the credentials (401)" in error.why
    assert error.external


@pytest.mark.parametrize("wrong", ["authority", "name"])
async def test_a_certificate_that_is_not_accepted_is_named(tmp_path: Path, wrong: str) -> None:
    certificates.serving(tmp_path, "server", "127.0.0.1" if wrong == "authority" else "10.1.2.3")
    certificates.serving(tmp_path, "other", "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    listening = await asyncio.start_server(lambda _, __: None, "127.0.0.1", 0, ssl=context)
    address = f"https://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    authority = tmp_path / ("other.crt" if wrong == "authority" else "server.crt")

    error = await error_of(kubeconfig(tmp_path / "k", address, **{"certificate-authority": str(authority)}))
    listening.close()

    assert isinstance(error, AwayError)  # a replaced authority is read again
    assert "the certificate of the API server is not accepted" in error.why
