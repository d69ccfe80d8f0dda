"""Another process that listens at a server's address gets no request, and not the server's key."""

import asyncio
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from flettner.actuators.host import procfs
from flettner.actuators.host.listeners import describe_foreign
from flettner.agent.domain.errors import ActError
from flettner.agent.domain.model import Server
from flettner.primitives.address import Address
from tests.support.engine_watch import watched
from tests.support.ports import free_port
from tests.support.process_rig import STUB, Bound, until

pytestmark = pytest.mark.smoke


@contextmanager
def squatting(port: int, *flags: str, **options: object) -> Iterator[subprocess.Popen[bytes]]:
    """A stub that nobody of flettner has started."""
    process = subprocess.Popen([*STUB, "--port", str(port), *flags], **options)  # type: ignore[call-overload]
    try:
        while not procfs.find_listener(port):
            assert process.poll() is None
        yield process
    finally:
        process.kill()
        process.wait()


async def test_a_launch_fails_when_another_process_answers_on_its_port(bound: Bound, tmp_path: Path) -> None:
    """The server itself is slow to bind, as one that imports and loads."""
    port = free_port()
    (slow := tmp_path / "slow.py").write_text("import time; time.sleep(600)")
    engine = bound(command=(sys.executable, str(slow)), ports=(port, port))
    launching = asyncio.create_task(engine.launch(Server(name="chat-r1", setting={}), 60))
    await until(lambda: engine._process_of(Server(name="chat-r1", setting={})))

    with squatting(port) as squatter, pytest.raises(ActError, match=f"process {squatter.pid} .* listens on"):
        await launching


async def test_no_key_is_sent_to_another_process(bound: Bound) -> None:
    engine = bound("--api-key", "server-key")
    server = await engine.launch(Server(name="chat-r1", setting={}), 60)
    await engine.check_address(server)
    heard: list[str] = []

    class Listener(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(str(self.headers))
            self.send_response(200)
            self.end_headers()

    with http.server.HTTPServer(("127.0.0.1", 0), Listener) as squatter:
        threading.Thread(target=squatter.serve_forever, daemon=True).start()
        foreign = replace(server, address=f"127.0.0.1:{squatter.server_port}")
        with pytest.raises(ActError, match="listens on"):
            await engine.warm_up(foreign, 1, 10)
        with pytest.raises(ActError, match="listens on"):
            await engine.answers(foreign, ["a"], 10)
        squatter.shutdown()

    assert heard == []


async def test_no_key_is_sent_to_a_port_that_anybody_may_take(bound: Bound) -> None:
    engine = bound()
    server = await engine.launch(Server(name="chat-r1", setting={}), 60)

    with pytest.raises(ActError, match="no process listens"):
        await engine.check_address(replace(server, address=f"127.0.0.1:{free_port()}"))


async def test_a_running_server_whose_address_another_process_has_is_silent(bound: Bound) -> None:
    engine = bound(health_every_s=0.05)
    server = await engine.launch(Server(name="chat-r1", setting={}), 60)
    port = free_port()

    with squatting(port) as squatter:
        async with watched(engine, replace(server, address=f"127.0.0.1:{port}")) as losses:
            await until(lambda: losses)
            lost = losses[0]

    assert not lost.gone
    assert f"process {squatter.pid} " in lost.why


def test_a_socket_at_another_address_of_the_port_is_no_concern() -> None:
    with squatting(port := free_port(), "--host", "127.0.0.2"):
        assert describe_foreign(Address("127.0.0.1", port), list) == ""
        assert "listens on" in describe_foreign(Address("127.0.0.2", port), list)


def test_a_descendant_is_of_the_family() -> None:
    with squatting(port := free_port()) as process:
        ours, other = procfs.process(process.pid), procfs.process(1)
        assert ours
        assert describe_foreign(Address("127.0.0.1", port), lambda: [ours]) == ""
        assert "listens on" in describe_foreign(Address("127.0.0.1", port), lambda: [other] if other else [])
