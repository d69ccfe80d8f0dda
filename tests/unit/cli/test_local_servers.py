"""The command of the server of this host that a URL leads to."""

import socket
from typing import Any

import pytest

from flettner.agent.domain.model import Server
from flettner.tools.advisor import local_servers

OWN_NAME, OTHER_NAME = "gpu-1.example", "gpu-2.example"


@pytest.mark.parametrize(
    ("listens_at", "url", "is_read"),
    [
        pytest.param("127.0.0.1:8000", "http://127.0.0.1:8000", True, id="a process"),
        pytest.param("127.0.0.1:8000", "localhost:8000", True, id="without a scheme"),
        pytest.param("127.0.0.1:8000", f"http://{OWN_NAME}:8000", True, id="the name of this host"),
        pytest.param("172.17.0.2:8000", "http://172.17.0.2:8000", True, id="the address of a container"),
        pytest.param("127.0.0.1:8000", "http://127.0.0.1:8001", False, id="another port"),
        pytest.param("127.0.0.1:8000", f"http://{OTHER_NAME}:8000", False, id="another host"),
        pytest.param("127.0.0.1:8000", "http://nowhere.example:8000", False, id="no host"),
    ],
)
def test_a_url_leads_to_the_command_of_a_server_of_this_host(
    monkeypatch: pytest.MonkeyPatch, listens_at: str, url: str, *, is_read: bool
) -> None:
    server = Server(name="chat", setting={"model": "tiny", "max_num_seqs": 8}, address=listens_at, ours=False)

    async def find(*_: object, **__: object) -> tuple[list[local_servers.FoundEngines], list[str]]:
        return [("docker", server, {})], []

    plain, names = socket.getaddrinfo, {OWN_NAME: "127.0.0.1", OTHER_NAME: "203.0.113.9"}

    def resolve(host: str, *given: Any, **more: Any) -> Any:  # noqa: ANN401
        if host == "nowhere.example":
            raise socket.gaierror
        return plain(names.get(host, host), *given, **more)

    monkeypatch.setattr(local_servers, "find_servers", find)
    monkeypatch.setattr(socket, "getaddrinfo", resolve)

    found = local_servers.read_command(url)

    assert (found is not None) is is_read
    if found:
        command, whose = found
        assert (command.setting["max_num_seqs"], whose) == (8, "docker chat")
