"""A TLS handshake that is cancelled leaves no socket open."""

import asyncio
import gc

import httpx2
import pytest

from flettner.clients.kubernetes.connection import close_cancelled_handshakes


async def test_a_cancelled_handshake_closes_its_connection(recwarn: pytest.WarningsRecorder) -> None:
    close_cancelled_handshakes()
    begun, closed = asyncio.Event(), asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(4096):
            begun.set()
        closed.set()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, httpx2.AsyncClient(verify=False) as client:
        call = asyncio.create_task(client.get(f"https://127.0.0.1:{port}/"))
        async with asyncio.timeout(5):
            await begun.wait()
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            await closed.wait()
    gc.collect()
    assert [str(warning.message) for warning in recwarn if "unclosed" in str(warning.message)] == []
