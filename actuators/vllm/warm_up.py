"""The warm-up of a server: requests of several lengths, repeated while they trigger compilation."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import aiohttp
from tenacity import AsyncRetrying, retry_if_result, wait_fixed

from flettner.actuators.vllm.answers import BUSY
from flettner.agent.retrying import retry
from flettner.primitives.bounded import parse_json, read_error
from flettner.vllm_facts.log_lines import compile_lines

_AT_ONCE = 8
_TOKENS = 16  # requested: some decode steps
_LENGTHS = (8, 64, 256, 1024)  # words of a prompt, up to an eighth of the context
_RETRY_S = 0.2
_QUIET_S = 3.0  # of requests after the last sign of compilation

Log = Callable[[], Awaitable[Sequence[str]]]


async def no_log() -> Sequence[str]:
    return ()


@dataclass(slots=True, kw_only=True)
class WarmUpRequests:
    """One warm-up. `done`: for each ended request why it failed; empty: it did not."""

    session: aiohttp.ClientSession
    model: str
    context: int  # tokens
    prompts: Sequence[str]  # configured by the operator, sent as well
    log: Log  # the last lines of the server's
    done: list[str] = field(default_factory=list)
    compiled: str = ""  # the last log line that reports it
    _sent: int = 0
    _gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))

    async def run(self, requests: int) -> None:
        """Send the first request alone, the others concurrently; then rounds of them until none compiles."""
        now = asyncio.get_running_loop().time
        seen, quiet_at = compile_lines(await self.log()), now()
        await self._round(1)
        await self._round(requests - 1)
        while True:
            reported = compile_lines(await self.log())
            if fresh := reported - seen:
                seen, quiet_at, self.compiled = reported, now() + _QUIET_S, list(fresh)[-1][:300]
            if now() >= quiet_at:
                return
            await self._round(max(requests, 1))

    async def _round(self, requests: int) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(requests):
                group.create_task(self._send(self._sent))
                self._sent += 1

    async def _send(self, number: int) -> None:
        async with self._gate:
            self.done.append(await _complete(self.session, self.model, self._prompt(number)))

    def _prompt(self, number: int) -> str:
        """Every second one is configured; each begins with its number, so no prefix is cached."""
        turn, own = divmod(number, 2) if self.prompts else (number, 0)
        if own:
            return f"{number} {self.prompts[turn % len(self.prompts)]}"
        lengths = [length for length in _LENGTHS if length * 8 <= self.context] or [1]
        return " ".join([str(number), *["warm"] * lengths[turn % len(lengths)]])


async def _complete(session: aiohttp.ClientSession, model: str, prompt: str) -> str:
    """Return why the request failed; empty: it did not. It is sent again while the server is busy."""
    body = {"model": model, "prompt": prompt, "max_tokens": _TOKENS, "stream": True, "ignore_eos": True}

    async def send() -> str | None:
        try:
            async with session.post("/v1/completions", json=body, allow_redirects=False) as answer:
                return None if answer.status in BUSY else await _streamed(answer)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            return repr(error)

    sending = AsyncRetrying(retry=retry_if_result(lambda why: why is None), wait=wait_fixed(_RETRY_S))
    return await retry(sending, send) or ""


async def _streamed(answer: aiohttp.ClientResponse) -> str:
    if answer.status != 200:  # noqa: PLR2004
        return f"status {answer.status}: {(await read_error(answer))[:200]}"
    tokens = 0
    async for line in answer.content:
        data = line.strip().removeprefix(b"data:").strip()
        if not data or data == b"[DONE]":
            continue
        match parse_json(data):
            case {"error": error}:
                return f"an error in the stream: {str(error)[:200]}"
            case {"choices": [{"finish_reason": "abort"}, *_]}:
                return "the server aborted it"
            case _:
                tokens += 1
    return "" if tokens else "the stream was empty"
