"""Invalid input from every side: a clear error, and a daemon that keeps running."""

import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import web

from flettner.agent.audit import chain
from flettner.simulator.flags import parse
from flettner.simulator.server import build_server
from tests.e2e.conftest import Start
from tests.support.config_builder import SiteConfig
from tests.support.ports import free_port
from tests.support.rig import Document, Rig, flettner, until

BODIES = (
    b"",
    b"{",
    b"null",
    b"[]",
    b"\xff\xfe\x00",
    b'{"to": {"max_num_seqs": NaN}, "reason": "x"}',
    b'{"to": {"max_num_seqs": 1e999}, "reason": "x"}',
    b'{"to": {"max_num_seqs": [8]}, "reason": "x"}',
    b'{"to": {"--max-num-seqs": 8}, "reason": "x"}',
    b'{"to": {}, "reason": "x"}',
    b'{"to": {"max_num_seqs": 16}, "reason": ""}',
    b'{"to": {"max_num_seqs": 16}, "reason": "x", "digest": "y"}',
    b'{"to": {"max_num_seqs": 16}, "to": {"max_num_seqs": 32}, "reason": "x"}',
    b"[" * 60_000,
    b'{"reason": "' + b"x" * 70_000 + b'"}',
)

NONSENSE = """
[agent]
mode = "yolo"
state_dir = 7
[api]
listen = "0.0.0.0:99999"
[[targets]]
name = "../../etc"
[targets.slo]
ttft = { under = "fast", share = 3 }
[targets.engine]
kind = "bicycle"
[targets.rollout]
steps = [{weight=500, requests=0, at_least="5s", at_most="1s"}]
lease = "1h"
[targets.bounds]
max_num_sequences = { min = 9, max = 1 }
"""


async def test_survives_any_request_body(site: Start) -> None:
    rig = await site(SiteConfig())
    await rig.serving()

    for body in BODIES:
        for path in ("targets/chat/suggestions", "suggestions/chat-s1/approve", "rollouts/chat-1/abort"):
            status, answer = await rig.ask("POST", f"/v1/{path}", data=body)
            assert 400 <= status < 500, (body[:40], path, status)
            assert answer["detail"], (body[:40], path)

    assert (await rig.target())["suggestion"] is None
    assert await rig.consistent_server() == "chat-r1"


@pytest.mark.parametrize("text", [NONSENSE, "\0\0", "targets = 3"])
async def test_rejects_an_invalid_config_with_every_reason(tmp_path: Path, text: str) -> None:
    config = tmp_path / "flettner.toml"
    config.write_text(text)

    checked, problems = await flettner("check", str(config))
    ran, why = await flettner("run", "-c", str(config))

    assert (checked, ran) == (1, 2)
    assert "Traceback" not in problems + why
    assert str(config) in why
    if text == NONSENSE:
        for key in ("mode", "state_dir", "listen", "name", "under", "share", "bicycle", "weight", "lease"):
            assert key in problems, key
        assert "max_num_sequences" in problems


@dataclass
class TamperedServer:
    """A simulated server whose /metrics returns `body` while it is set."""

    url: str
    body: bytes | None = None

    @web.middleware
    async def middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.path == "/metrics" and self.body is not None:
            return web.Response(body=self.body)
        return await handler(request)


@asynccontextmanager
async def tampered_server() -> AsyncIterator[TamperedServer]:
    port = free_port()
    server = TamperedServer(url=f"http://127.0.0.1:{port}")
    _, frontend = build_server(parse(["--model", "tiny"]), now=lambda: 1_800_000_000.0)
    app = frontend.app()
    app.middlewares.append(server.middleware)
    runner = web.AppRunner(app, shutdown_timeout=0.01)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield server
    finally:
        await runner.cleanup()


async def test_reports_invalid_metrics_as_lost_once(site: Start) -> None:
    async with tampered_server() as server:
        rig = await site(SiteConfig(serving=server.url, mode="advise", policies=True))

        async def source() -> Document:
            sources = (await rig.target()).get("sources", [])
            return next((state for state in sources if state["source"].startswith("vllm_metrics")), {})

        for body in (b"<html>no</html>", bytes(range(256)) * 40, b"vllm:num_requests_running{} NaN\n"):
            server.body = None
            await until(lambda: _reads(rig), bool, "a reading")
            server.body = body
            gone = await until(source, lambda state: state.get("available") is False, "the source to be lost")
            assert "/metrics" in gone["why"]
            await _goes_on(rig)
            assert await source() == gone
            server.body = None
            await until(source, lambda state: state["available"], "the source to be back")

        assert (await rig.target())["suggestion"] is None
        assert rig.log().count("Traceback") == 0


async def _reads(rig: Rig) -> bool:
    return bool((await rig.target()).get("reading"))


async def _goes_on(rig: Rig) -> None:
    before = await rig.target()
    await until(rig.target, before.__ne__, "another round of the loop")


async def test_refuses_to_start_with_a_modified_journal(site: Start) -> None:
    rig = await site(SiteConfig())
    await rig.serving()
    await rig.kill(signal.SIGTERM)
    lines = rig.journal.read_bytes().splitlines(keepends=True)
    rig.journal.write_bytes(b"".join([lines[0], lines[1].replace(b"flettner", b"trimtob"), *lines[2:]]))

    code, output = await flettner("run", "-c", str(rig.config))

    assert code == 2
    assert "entry 2" in output
    assert "Traceback" not in output
    assert rig.pid("chat-r1")
    assert rig.envoy.find() is not None


async def test_sets_aside_and_reports_a_truncated_journal_line(site: Start) -> None:
    rig = await site(SiteConfig())
    await rig.serving()
    await rig.kill()
    with rig.journal.open("ab") as file:
        file.write(b'{"action":"target.obs')

    await rig.start()

    assert await rig.consistent_server() == "chat-r1"
    assert any(entry["action"] == "audit.truncated_tail" for entry in rig.audit())
    assert chain.verify(rig.journal).ok
    assert (rig.state_dir / "audit.torn-1").read_bytes() == b'{"action":"target.obs'
