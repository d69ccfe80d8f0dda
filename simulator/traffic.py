"""`python -m flettner.simulator.traffic URL`: sends and records requests to an OpenAI-compatible server."""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from time import process_time
from typing import Any

import aiohttp

from flettner.simulator.answer import CompletionWriter
from flettner.simulator.tally import LoadOutcome, LoadSlo, RequestRecord, TrafficSummary
from flettner.simulator.text import draws
from flettner.simulator.workload import Conversation, Shape, conversations, gap_s, lengths

_MAY_LAG_S = 1.0  # of delayed arrivals that are caught up on a busy machine; older arrivals are lost
_PAUSE_S = 0.2  # before a stream whose request failed sends the next: a dead server is not hammered


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load: an open loop of `rate` new conversations per second, or `streams` in a closed loop."""

    rate: float | None = None
    cv: float = 1.0  # of the gaps between arrivals: 1 Poisson, above 1 bursts
    streams: int | None = None

    def __post_init__(self) -> None:
        if (self.rate is None) == (self.streams is None):
            raise ValueError("a load has either a rate or a number of streams")
        if (self.rate is not None and self.rate <= 0) or (self.streams or 1) < 1 or self.cv < 0:
            raise ValueError("rate and streams must be positive, cv not negative")


class TrafficGenerator:
    """Sends from `start` to `stop`; `stop` waits for requests in flight. Times are the loop's.

    `load` may be replaced during a run: a new rate applies from the next arrival; in a closed loop, streams
    are added at once and removed as their conversations end.
    """

    def __init__(
        self,
        url: str,
        model: str,
        load: Load,
        *,
        shape: Shape | None = None,
        seed: int = 0,
        timeout_s: float = 300,
    ) -> None:
        self.tally = TrafficSummary()
        self._url = url.rstrip("/") + "/v1/chat/completions"
        self._model = model
        self._load = load
        self._shape = shape or Shape()
        self._gaps = draws(seed, "gaps")
        self._coming = conversations(self._shape, seed)
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._changed = asyncio.Event()
        self._stopping = False
        self._going = 0  # conversations
        self._source: asyncio.Task[None] | None = None
        self._session: aiohttp.ClientSession | None = None

    @property
    def load(self) -> Load:
        return self._load

    @load.setter
    def load(self, load: Load) -> None:
        self._load = load
        self._changed.set()

    async def start(self) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(connector=connector, timeout=self._timeout)
        self._source = asyncio.create_task(self._send(self._session), name="traffic")

    async def stop(self) -> None:
        """Send no new request; return when all requests in flight have ended or timed out."""
        self._stopping = True
        self._changed.set()
        if self._source is not None:
            await self._source
        if self._session is not None:
            await self._session.close()

    async def _send(self, session: aiohttp.ClientSession) -> None:
        """Start conversations by the load; end after the stop and the last conversation."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        async with asyncio.TaskGroup() as conversing:
            while not self._stopping:
                load, wait_s = self._load, None
                if load.rate is not None:
                    due = max(due, loop.time() - _MAY_LAG_S) + gap_s(self._gaps, load.rate, load.cv)
                    wait_s = max(0.0, due - loop.time())
                for _ in range((load.streams or 0) - self._going):
                    self._begin(conversing, session)
                if await self._changed_within(wait_s):
                    due = loop.time()
                elif load.rate is not None:
                    self._begin(conversing, session)

    async def _changed_within(self, wait_s: float | None) -> bool:
        """True if the load changed, a stream became free, or the traffic stops."""
        try:
            async with asyncio.timeout(wait_s):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return True

    def _begin(self, conversing: asyncio.TaskGroup, session: aiohttp.ClientSession) -> None:
        self._going += 1
        conversing.create_task(self._converse(session, next(self._coming))).add_done_callback(self._over)

    def _over(self, _task: asyncio.Task[None]) -> None:
        self._going -= 1
        if self._load.streams is not None:
            self._changed.set()

    async def _converse(self, session: aiohttp.ClientSession, conversation: Conversation) -> None:
        """Send turn after turn until one fails, none is left, or the traffic stops."""
        for _ in range(conversation.turns):
            messages, wanted = conversation.ask(self._shape)
            answer = await self._ask(session, messages, wanted, conversation.session)
            if answer is None and self._load.streams is not None:
                await asyncio.sleep(_PAUSE_S)
            if answer is None or self._stopping:
                return
            conversation.answered(answer)

    async def _ask(
        self, session: aiohttp.ClientSession, messages: list[dict[str, str]], wanted: int, name: str
    ) -> str | None:
        """Send and record one request. Returns the text of an ok one."""
        body = {
            "model": self._model,
            "messages": messages,
            "max_tokens": wanted,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        loop = asyncio.get_running_loop()
        answer = CompletionWriter(at=loop.time())
        outcome: LoadOutcome = "failed"
        why = "cancelled"
        self.tally.opened()
        try:
            async with session.post(self._url, json=body, headers={"x-session-id": name}) as response:
                if response.status != 200:  # noqa: PLR2004
                    await response.read()
                    why = f"HTTP {response.status}"
                else:
                    async for line in response.content:
                        answer.take(line, loop.time())
                    outcome, why = answer.verdict()
        except aiohttp.ClientPayloadError as error:
            outcome, why = answer.cut(f"cut: {type(error).__name__}")
        except (aiohttp.ClientError, TimeoutError, ConnectionError, ValueError) as error:
            outcome, why = answer.cut(type(error).__name__)
        finally:
            self.tally.closed(
                RequestRecord(
                    at=answer.at,
                    ended=loop.time(),
                    outcome=outcome,
                    session=name,
                    tokens=answer.tokens,
                    ttft_s=answer.ttft_s,
                    itl_s=answer.itl_s,
                    why=why,
                )
            )
        return "".join(answer.text) if outcome == "ok" else None


async def drive(options: argparse.Namespace) -> dict[str, Any]:
    """Generate the load of a command line until the last request ends; return the summary."""
    shape = Shape(
        prompt=options.prompt,
        output=options.output,
        turns=options.turns,
        system_tokens=options.system_tokens,
    )
    load = Load(streams=options.streams) if options.streams else Load(rate=options.rate, cv=options.cv)
    traffic = TrafficGenerator(
        options.url, options.model, load, shape=shape, seed=options.seed, timeout_s=options.timeout
    )
    if options.follow:
        traffic.tally.on_close = lambda record: print(json.dumps(asdict(record)), flush=True)  # noqa: T201
    loop = asyncio.get_running_loop()
    enough = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, enough.set)
    since = loop.time()
    await traffic.start()
    try:
        async with asyncio.timeout(options.seconds):
            await enough.wait()
    except TimeoutError:
        pass
    await traffic.stop()
    slo = LoadSlo(ttft_s=options.slo_ttft, itl_s=options.slo_itl)
    summary = traffic.tally.summary(since, loop.time(), slo)
    return summary | {"cpu_s": round(process_time(), 2)}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="flettner.simulator.traffic", description="Load for an OpenAI-compatible server."
    )
    parser.add_argument("url", help="base URL of the server, for example http://127.0.0.1:8000")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--rate", type=float, default=2.0, help="new conversations per second")
    parser.add_argument(
        "--cv",
        type=float,
        default=1.0,
        help="coefficient of variation of the gaps: 1 Poisson, above 1 bursts",
    )
    parser.add_argument("--streams", type=int, help="number of closed-loop streams, instead of --rate")
    parser.add_argument("--for", dest="seconds", type=float, default=10.0, help="duration in seconds")
    parser.add_argument(
        "--prompt", type=lengths, default=Shape().prompt, help="prompt tokens: N, uniform:A:B, lognormal:M:S"
    )
    parser.add_argument(
        "--output", type=lengths, default=Shape().output, help="answer tokens, in the form of --prompt"
    )
    parser.add_argument(
        "--turns",
        type=lengths,
        default=Shape().turns,
        help="turns of a conversation, in the form of --prompt",
    )
    parser.add_argument(
        "--system-tokens", type=int, default=0, help="tokens of a system prompt that all conversations share"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=300.0, help="timeout of one request in seconds")
    parser.add_argument("--slo-ttft", type=float, help="TTFT objective in seconds")
    parser.add_argument("--slo-itl", type=float, help="ITL objective in seconds")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--follow", action="store_true", help="print a JSON line for each finished request")
    options = parser.parse_args(argv)
    summary = asyncio.run(drive(options))
    if options.json:
        sys.stdout.write(json.dumps(summary) + "\n")
    else:
        sys.stdout.writelines(f"{key:>14}  {value}\n" for key, value in summary.items())
    return 0 if summary["requests"]["sent"] == summary["requests"]["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
