"""The scheduler on the event loop's clock: requests in, tokens out, at the computed pace."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from math import isinf

from flettner.simulator.metrics import Metrics
from flettner.simulator.pace import Pace
from flettner.simulator.scheduler import ScheduledStep, Scheduler, SimulatedRequest
from flettner.simulator.text import Transcript

_MAY_LAG_S = 0.25  # of delay that is caught up when a busy machine wakes late; a longer delay is lost


class TokenStream:
    """The answer to one request, step by step: a token, or several by speculative decoding."""

    def __init__(self, request: SimulatedRequest, text: Transcript, *, natural: bool) -> None:
        self.request = request
        self.text = text
        self.finish_reason = "stop" if natural else "length"
        self._tokens: asyncio.Queue[tuple[str, str | None]] = asyncio.Queue()

    def put(self, token: str, finish_reason: str | None) -> None:
        self._tokens.put_nowait((token, finish_reason))

    async def token(self) -> tuple[str, str | None]:
        """Return the next token; the last one has a finish reason."""
        return await self._tokens.get()


class SimulatedEngine:
    """Runs the scheduler until cancelled, on the clock of the loop."""

    def __init__(
        self,
        scheduler: Scheduler,
        pace: Pace,
        metrics: Metrics,
        *,
        seed: int = 0,
        log_step: Callable[[str], object] | None = None,
        rank: int = 0,
    ) -> None:
        """`rank`: among the data-parallel engines of a server."""
        self.scheduler = scheduler
        self.pace = pace
        self.metrics = metrics
        self.rank = rank
        self.new_limits: Callable[[], Mapping[str, float] | None] = lambda: None  # since the last step
        self.used_at: float | None = None  # loop time of the first completion that was asked for
        self._seed = seed
        self._log_step = log_step
        self._steps = 0
        self._streams: dict[SimulatedRequest, TokenStream] = {}
        self._work_came = asyncio.Event()
        self._count = 0

    @property
    def requests(self) -> int:
        """Number of running and of waiting requests."""
        return len(self._streams)

    @property
    def prefill_backlog(self) -> int:
        """Prompt tokens of requests without an output token."""
        return sum(request.prompt for request in self._streams if request.first_at is None)

    def page(self, *, log_stats: bool = True) -> str:
        """Return the page of metrics of one scrape."""
        return self.metrics.text(self.scheduler, log_stats=log_stats)

    def read(self, prompt: str | Sequence[int], *, wrong: bool = False) -> Transcript:
        """Count and hash a prompt; a prompt marked `wrong` gets a different answer."""
        return Transcript(prompt, self.scheduler.cache.block_size, self._seed + wrong)

    def submit(self, text: Transcript, wanted: int, *, ignore_eos: bool) -> TokenStream:
        """Queue a request for at most `wanted` tokens."""
        natural = not ignore_eos and text.natural_length <= wanted
        self._count += 1
        request = SimulatedRequest(
            name=f"{self._count}",
            prompt=text.prompt_tokens,
            wanted=text.natural_length if natural else wanted,
            hashes=text.hashes,
            arrived_at=asyncio.get_running_loop().time(),
        )
        stream = TokenStream(request, text, natural=natural)
        self.scheduler.add(request)
        self._streams[request] = stream
        self._work_came.set()
        return stream

    def abort(self, stream: TokenStream) -> None:
        """Remove a request that has not ended, because its client disconnected."""
        if self._streams.pop(stream.request, None) is not None:
            self.scheduler.abort(stream.request)
            stream.put("", "abort")

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            self._apply_limits()
            step = self.scheduler.plan()
            if step is None:
                self._work_came.clear()
                await self._work_came.wait()
                due = loop.time()
                continue
            now = loop.time()
            due = max(due, now - _MAY_LAG_S)
            for request in step.admitted:
                request.scheduled_at = now if request.scheduled_at is None else request.scheduled_at
            began = due
            due = self.pace.ends_s(step.work, due, since_s=now if self.used_at is None else self.used_at)
            if isinf(due):
                await asyncio.Event().wait()
            await asyncio.sleep(due - loop.time())
            self._log(step, due - began)
            self._deliver(step, loop.time())

    def _apply_limits(self) -> None:
        if (values := self.new_limits()) is not None:
            self.scheduler.set_limits(values)

    def _log(self, step: ScheduledStep, seconds: float) -> None:
        """Write the line of vLLM with --enable-logging-iteration-details."""
        self._steps += 1
        if self._log_step is None:
            return
        work = step.work
        decodes = work.sequences - work.prefills
        generated = decodes + work.drafted
        self._log_step(
            f"Engine {self.rank:03d}: Iteration({self._steps}): {work.prefills} context requests, "
            f"{work.tokens - generated} context tokens, {decodes} generation requests, "
            f"{generated} generation tokens, iteration elapsed time: {1000 * seconds:.2f} ms, "
            f"GPU KV cache usage: {100 * self.scheduler.cache.used_share:.1f}%"
        )

    def _deliver(self, step: ScheduledStep, now: float) -> None:
        tokens = prompts = 0
        for request in self.scheduler.finish(step):
            stream = self._streams[request]
            tokens += request.new_tokens
            if request.first_at is None or request.last_at is None:
                request.first_at = now
                prompts += request.prompt - request.cached
                self.metrics.prefilled(request, now)
            else:
                self.metrics.observe("inter_token_latency_seconds", now - request.last_at)
            request.last_at = now
            text = "".join(stream.text.produce() for _ in range(request.new_tokens))
            stream.put(text, stream.finish_reason if request.ended else None)
            if request.ended:
                del self._streams[request]
                self.metrics.ended(request, stream.finish_reason)
        self.metrics.generation_tokens += tokens
        self.metrics.observe("iteration_tokens_total", prompts + tokens)
