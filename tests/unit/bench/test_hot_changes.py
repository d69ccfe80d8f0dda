"""The streams of the bench of hot changes: which answers are whole, and which are as the first."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from bench.hot_changes.streams import STREAMS, TOKENS, Streams


class Server:
    """Answers with `tokens`; `cut`: without an end."""

    tokens: tuple[int, ...] = tuple(range(TOKENS))
    cut = False

    async def answer(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for token in self.tokens:
            event = json.dumps({"choices": [{"token_ids": [token]}]})
            await response.write(f"data: {event}\n\n".encode())
        await response.write(b"" if self.cut else b"data: [DONE]\n\n")
        return response


@pytest.fixture
async def server() -> AsyncIterator[tuple[Server, Streams]]:
    answering, app = Server(), web.Application()
    app.router.add_post("/v1/completions", answering.answer)
    async with TestServer(app) as site:
        yield answering, Streams(str(site.make_url("")).rstrip("/"))


async def test_the_same_tokens_are_equal_and_others_are_not(server: tuple[Server, Streams]) -> None:
    answering, streams = server
    async with streams.running():
        await asyncio.sleep(0.05)
    assert streams.outcomes["equal"] == streams.outcomes.total() >= STREAMS

    answering.tokens = (1,) * TOKENS
    async with streams.running():
        await asyncio.sleep(0.05)
    assert streams.outcomes["other"] >= STREAMS


@pytest.mark.parametrize(
    ("changes", "why"), [({"cut": True}, "cut"), ({"tokens": (1, 2)}, "incomplete")], ids=["cut", "short"]
)
async def test_an_answer_that_is_not_whole_is_named(
    server: tuple[Server, Streams], changes: dict[str, object], why: str
) -> None:
    answering, streams = server
    vars(answering).update(changes)
    async with streams.running():
        await asyncio.sleep(0.05)
    assert set(streams.outcomes) == {why}
