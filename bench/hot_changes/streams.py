"""Streams that send the same greedy prompts again and again, and compare the tokens of each answer."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp

STREAMS, TOKENS = 16, 24
TIMEOUT_S = 300.0
OK = 200


@dataclass(slots=True)
class Streams:
    """`outcomes` of requests: tokens `equal` to those of the first answer, `other`, or a failure."""

    url: str
    first: dict[int, tuple[int, ...]] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Yield all streams; at the exit each has ended its request."""
        stop, timeout = asyncio.Event(), aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session,
            asyncio.TaskGroup() as streams,
        ):
            for number in range(STREAMS):
                streams.create_task(self._repeat(session, number, stop))
            try:
                yield
            finally:
                stop.set()

    async def _repeat(self, session: aiohttp.ClientSession, number: int, stop: asyncio.Event) -> None:
        while not stop.is_set():
            tokens, why = await self._ask(session, number)
            if why:
                self.outcomes[why] += 1
                continue
            first = self.first.setdefault(number, tokens)
            self.outcomes["equal" if tokens == first else "other"] += 1

    async def _ask(self, session: aiohttp.ClientSession, number: int) -> tuple[tuple[int, ...], str]:
        """Return the tokens of one answer, and what is wrong with it."""
        body = {
            "model": "tiny",
            "prompt": f"Say {number}. " * 8,
            "max_tokens": TOKENS,
            "temperature": 0,
            "seed": number,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
        }
        tokens: list[int] = []
        try:
            async with session.post(f"{self.url}/v1/completions", json=body) as answer:
                if answer.status != OK:
                    return (), f"HTTP {answer.status}"
                async for line in answer.content:
                    event = line.decode().removeprefix("data: ").strip()
                    if event == "[DONE]":
                        return tuple(tokens), "" if len(tokens) == TOKENS else "incomplete"
                    for choice in json.loads(event)["choices"] if event else ():
                        tokens += choice["token_ids"]
        except (aiohttp.ClientError, TimeoutError) as error:
            return (), type(error).__name__
        return (), "cut"
