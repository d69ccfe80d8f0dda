"""Sends the requests of a trace to a server at their times, and measures the answers.

Prompts are token ids, drawn from the place in the trace, so their lengths are exact and no tokenizer is
needed; requests of one `prefix_group` begin with the same ids.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import aiohttp

from flettner.agent.domain.errors import ActError
from flettner.performance_model.trace import Trace, TraceRequest

_IDS = range(100, 1000)  # below every vocabulary, above the special tokens of most
_MAX_LINE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One request; times in seconds. `why` it failed; empty: it was answered completely."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int  # received
    ttft_s: float = 0.0
    itl_s: float = 0.0  # mean; 0 for a single token
    e2e_s: float = 0.0
    late_s: float = 0.0  # delay of sending
    why: str = ""


async def replay(
    url: str,
    trace: Trace,
    *,
    api_key: str = "",
    timeout_s: float = 600.0,
    series: str = "load",
    ended: Callable[[int], None] = lambda _: None,
) -> Sequence[Served]:
    """Send the requests, and return them in the order of the trace.

    Each `series` has prompts of its own. `ended` gets the number of ended requests. Raises ActError if the
    server names no model.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    session = aiohttp.ClientSession(
        url.rstrip("/") + "/",
        headers=headers,
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=10.0),
        read_bufsize=_MAX_LINE,
    )
    async with session:
        model = await _model(session)
        begin_s, count = asyncio.get_running_loop().time(), 0

        async def send(number: int, request: TraceRequest) -> Served:
            nonlocal count
            served = await _send(session, model, request, f"{series}:{number}", begin_s)
            count += 1
            ended(count)
            return served

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(send(number, request)) for number, request in enumerate(trace)]
    return [task.result() for task in tasks]


async def _model(session: aiohttp.ClientSession) -> str:
    try:
        async with session.get("v1/models") as answer:
            answer.raise_for_status()
            return str((await answer.json())["data"][0]["id"])
    except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError) as error:
        raise ActError(f"/v1/models names no model: {error!r:.200}") from error


async def _send(
    session: aiohttp.ClientSession, model: str, request: TraceRequest, name: str, begin_s: float
) -> Served:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(begin_s + request.arrival_s - loop.time())
    body = {
        "model": model,
        "prompt": _prompt(request, name),
        "max_tokens": request.output_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    sent_s = loop.time()
    stream = _Stream()
    try:
        async with session.post("v1/completions", json=body) as answer:
            if answer.status != 200:  # noqa: PLR2004
                stream.why = f"HTTP {answer.status}: {(await answer.text())[:200]}"
            else:
                async for line in answer.content:
                    stream.take(line, loop.time())
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        stream.why = repr(error)[:200]
    return Served(
        arrival_s=request.arrival_s,
        prompt_tokens=request.prompt_tokens,
        output_tokens=stream.tokens,
        ttft_s=stream.first_s - sent_s if stream.tokens else 0.0,
        itl_s=(stream.last_s - stream.first_s) / max(1, stream.tokens - 1),
        e2e_s=stream.last_s - sent_s if stream.tokens else 0.0,
        late_s=sent_s - begin_s - request.arrival_s,
        why=stream.why or ("" if stream.is_done else "the answer ended without [DONE]"),
    )


@dataclass(slots=True)
class _Stream:
    """Server-sent events of one answer."""

    first_s: float = 0.0
    last_s: float = 0.0
    tokens: int = 0
    is_done: bool = False
    why: str = ""

    def take(self, line: bytes, now_s: float) -> None:
        """Add received bytes. Raises ValueError for data that is not JSON."""
        if not line.startswith(b"data:"):
            return
        data = line[5:].strip()
        if data == b"[DONE]":
            self.is_done = True
            return
        event = json.loads(data)
        if "error" in event:
            self.why = str(event["error"])[:200]
        if event.get("choices"):
            self.first_s = self.first_s or now_s
            self.last_s = now_s
            self.tokens += 1
        if usage := event.get("usage"):
            self.tokens = int(usage["completion_tokens"])  # a chunk may hold several tokens


def _prompt(request: TraceRequest, name: str) -> list[int]:
    shared = request.cached_tokens if request.prefix_group else 0
    common = Random(f"prefix:{request.prefix_group}")  # noqa: S311 - not secret
    own = Random(f"prompt:{name}")  # noqa: S311 - not secret
    return [*common.choices(_IDS, k=shared), *own.choices(_IDS, k=request.prompt_tokens - shared)]
