"""The warm-up of a server: requests of several lengths, repeated while they trigger compilation."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import aiohttp
from tenacity import AsyncRetrying, retry_if_result, wait_fixed

from flettner.actuators.vllm.answers import BUSY
from flettner.agent.domain.warm_up import SharedPrefix
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
    prompts: Sequence[str]  # configured by the operator, sent as well
    log: Log  # the last lines of the server's
    model: str = ""  # its name, as the server says it
    context: int = 0  # tokens
    done: list[str] = field(default_factory=list)
    compiled: str = ""  # the last log line that reports it
    ended: bool = False  # nothing compiles any more
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
            self.done.append(await self._complete(self.model, self._prompt(number)))

    async def ask_adapters(self, names: Iterable[str]) -> str:
        """Send one request to each adapter, so that its weights are loaded. Return which does not answer.

        A refusal of the request itself (400) says nothing of the adapter.
        """
        async with asyncio.TaskGroup() as group:
            asking = {name: group.create_task(self._gated(self._complete(name, "warm"))) for name in names}
        whys = {name: why for name, task in asking.items() if (why := task.result())}
        return "; ".join(
            f"it lists the adapter {name} and does not answer for it: {why}"
            for name, why in whys.items()
            if not why.startswith("status 400")
        )

    async def send_prefixes(self, prefixes: Sequence[SharedPrefix], names: Sequence[str]) -> list[str]:
        """Send each once for its name, or for each of `names`. Return why some were refused.

        The first, which most clients share, is sent when the others have been answered: a full cache drops
        what was used longest ago.
        """
        sent: list[asyncio.Task[str]] = []
        for together in (prefixes[1:], prefixes[:1]):
            async with asyncio.TaskGroup() as group:
                for prefix in reversed(together):
                    for name in [prefix.model] if prefix.model else names:
                        asking = _ask(self.session, *_prefix_request(prefix, name))
                        sent.append(group.create_task(self._gated(asking)))
        return [why for task in sent if (why := task.result())]

    async def _complete(self, model: str, prompt: str) -> str:
        body = {"model": model, "prompt": prompt, "max_tokens": _TOKENS, "ignore_eos": True}
        return await _ask(self.session, "/v1/completions", body)

    async def _gated(self, asking: Awaitable[str]) -> str:
        async with self._gate:
            return await asking

    def _prompt(self, number: int) -> str:
        """Every second one is configured; each begins with its number, so no prefix is cached."""
        turn, own = divmod(number, 2) if self.prompts else (number, 0)
        if own:
            return f"{number} {self.prompts[turn % len(self.prompts)]}"
        lengths = [length for length in _LENGTHS if length * 8 <= self.context] or [1]
        return " ".join([str(number), *["warm"] * lengths[turn % len(lengths)]])


def _prefix_request(prefix: SharedPrefix, model: str) -> tuple[str, dict[str, object]]:
    """The path and the body of a request that begins as clients' do. A template may want a user's message."""
    body: dict[str, object] = {"model": model, "max_tokens": 1}
    if not prefix.chat:
        return "/v1/completions", {**body, "prompt": prefix.text}
    messages = [{"role": "system", "content": prefix.text}, {"role": "user", "content": "."}]
    return "/v1/chat/completions", {**body, "messages": messages}


async def _ask(session: aiohttp.ClientSession, path: str, body: Mapping[str, object]) -> str:
    """Return why the request failed; empty: it did not. It is sent again while the server is busy."""
    streamed = {**body, "stream": True}

    async def send() -> str | None:
        try:
            async with session.post(path, json=streamed, allow_redirects=False) as answer:
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
