"""vLLM's V1 scheduler as arithmetic: the number of tokens of each request in the next step.

The rules and their order are those of vLLM 0.32 (v1/core/sched/scheduler.py, v1/core/kv_cache_manager.py) for
one engine without LoRA or connectors, first come first served.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from flettner.simulator.drafts import Drafts
from flettner.simulator.kv_cache import KvCache
from flettner.simulator.step_time import StepWork


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """The scheduler's knobs under vLLM's names; None is the flag's default."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_num_active_seqs: int | None = None
    max_num_scheduled_tokens: int | None = None
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    watermark: float = 0.0
    scheduler_reserve_full_isl: bool = True
    enable_chunked_prefill: bool = True


@dataclass(slots=True, eq=False, kw_only=True)
class SimulatedRequest:
    """One sequence. The owner of the clock sets the `at` times."""

    name: str
    prompt: int  # tokens
    wanted: int  # tokens to produce, at least 1
    hashes: list[int] = field(default_factory=list)  # of its full blocks; may grow as it produces
    arrived_at: float = 0.0
    scheduled_at: float | None = None
    first_at: float | None = None
    last_at: float | None = None
    computed: int = 0
    produced: int = 0
    new_tokens: int = 0  # of the last step that produced any; more than one by speculative decoding
    chunks: int = 0  # steps that produced tokens
    cached: int = 0  # prompt tokens found in the cache when first admitted
    preemptions: int = 0
    blocks: list[int] = field(default_factory=list)
    ended: bool = False

    @property
    def tokens(self) -> int:
        return self.prompt + self.produced

    @property
    def decoding(self) -> bool:
        """True if only the last generated token is not computed yet."""
        return self.produced > 0 and self.computed == self.prompt + self.produced - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledStep:
    """The next step: the number of tokens of each request, in order of admission."""

    chunks: tuple[tuple[SimulatedRequest, int], ...]
    admitted: tuple[SimulatedRequest, ...]
    work: StepWork
    stuck: bool = False  # requests waited, none could be admitted, none was preempted


class Scheduler:
    """Call `plan`, let the step's time pass, then `finish`. Requests may be added or aborted in between."""

    def __init__(
        self, limits: SchedulerLimits, cache: KvCache, *, leak: int = 0, drafts: Drafts | None = None
    ) -> None:
        """`leak`: the blocks of each request that are never free again, as by a fault."""
        self.limits = limits
        self.drafts = drafts
        self._leak = leak
        self.cache = cache
        self.waiting: deque[SimulatedRequest] = deque()
        self.running: list[SimulatedRequest] = []
        self.preemptions = 0
        self.prefix_queries = 0  # tokens
        self.prefix_hits = 0
        self._cap = min(limits.max_num_active_seqs or limits.max_num_seqs, limits.max_num_seqs)
        self._budget = min(
            limits.max_num_batched_tokens, limits.max_num_scheduled_tokens or limits.max_num_batched_tokens
        )
        self._watermark = int(limits.watermark * cache.blocks)

    def set_limits(self, values: Mapping[str, float]) -> None:
        """Change what bounds the next step. Requests that run go on: a lower cap is reached as they end.

        `values`: all of them, by the names of the scheduler class's control endpoint.
        """
        threshold = int(values["long_prefill_token_threshold"])
        self.limits = replace(self.limits, long_prefill_token_threshold=threshold)
        self._cap, self._budget = int(values["max_num_seqs"]), int(values["max_num_scheduled_tokens"])
        self._watermark = int(values["watermark"] * self.cache.blocks)

    def add(self, request: SimulatedRequest) -> None:
        """Queue a request.

        Raises ValueError if the full cache cannot hold it: it would preempt itself forever.
        """
        if request.prompt < 1 or request.wanted < 1:
            raise ValueError(f"{request.name}: a request has at least one token to read and one to write")
        if self.cache.needed(request.prompt + request.wanted) > self.cache.blocks:
            raise ValueError(
                f"{request.name} needs {request.prompt + request.wanted} tokens of KV cache, there are "
                f"{self.cache.blocks * self.cache.block_size}"
            )
        self.waiting.append(request)

    def abort(self, request: SimulatedRequest) -> None:
        """Remove a request in any state; a step in progress continues without its token."""
        if request.ended:
            return
        self._end(request)
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)

    def plan(self) -> ScheduledStep | None:
        """Assign the tokens of the next step, running requests first; None if nothing can run."""
        chunks: list[tuple[SimulatedRequest, int]] = []
        longest = self._longest_chunk()
        left, preempted = self._plan_running(chunks, self._budget, longest)
        admitted = [] if preempted else self._admit(chunks, left, longest)
        if not chunks:
            return None
        stuck = bool(self.waiting) and not preempted and not admitted
        return ScheduledStep(chunks=tuple(chunks), admitted=tuple(admitted), work=_work(chunks), stuck=stuck)

    def finish(self, step: ScheduledStep) -> list[SimulatedRequest]:
        """Account for a computed step; return the requests with new tokens, finished or not."""
        produced: list[SimulatedRequest] = []
        block = self.cache.block_size
        for request, count in step.chunks:
            if request.ended:
                continue
            since, new = request.computed, 1
            if self.drafts is not None and request.decoding:
                new += self.drafts.verify(count - 1) if count > 1 else 0
                count = new  # noqa: PLW2901 - what is rejected is computed again
            request.computed += count
            if since // block <= len(request.hashes):  # beyond, no block has a name
                self.cache.register(request.blocks, request.hashes, since, request.computed)
            if request.computed < request.prompt + request.produced:
                continue
            request.produced += new
            request.new_tokens = new
            request.chunks += 1
            produced.append(request)
            if request.produced >= request.wanted:
                self._end(request)
        if any(request.ended for request in produced):
            self.running = [request for request in self.running if not request.ended]
        return produced

    def repeats(self, step: ScheduledStep) -> int:
        """Return how many steps after the finished `step` are like it, unless a request comes or is aborted.

        Every running sequence then decodes one token, none ends, and none is admitted or preempted.
        """
        running, cache = self.running, self.cache
        if self.drafts is not None:
            return 0
        held_back = not self.waiting or step.stuck or len(running) >= self._cap
        if step.work.prefills or step.admitted or len(step.chunks) != len(running) or not held_back:
            return 0
        ends = min((request.wanted - request.produced for request in running), default=1) - 1
        room = (cache.free // max(1, len(running)) - 1) * cache.block_size
        return max(0, min(ends, room))

    def repeat(self, times: int) -> None:
        """Account for `count` steps at once; at most the number that `repeats` returned."""
        for request in self.running:
            request.computed += times
            request.produced += times
            request.chunks += times
            need = self.cache.needed(request.computed) - len(request.blocks)
            if need > 0:
                request.blocks += self.cache.take(need)

    def _longest_chunk(self) -> int:
        """long_prefill_token_threshold protects other requests, so it does not limit a single one."""
        limits, present = self.limits, len(self.running) + len(self.waiting)
        if present <= 1 or limits.long_prefill_token_threshold == 0:
            return self.cache.blocks * self.cache.block_size
        if limits.long_prefill_token_threshold_adaptive:
            fair = limits.max_num_batched_tokens // present
            return max(limits.long_prefill_token_threshold, fair)
        return limits.long_prefill_token_threshold

    def _plan_running(
        self, chunks: list[tuple[SimulatedRequest, int]], left: int, longest: int
    ) -> tuple[int, bool]:
        """Serve running requests in order of admission; preempt the latest. Returns (left, preempted)."""
        preempted, cache, block = False, self.cache, self.cache.block_size
        at = 0
        while at < len(self.running) and left > 0:
            request = self.running[at]
            count = request.prompt + request.produced - request.computed
            if count > 1:
                count = min(count, longest, left)
            elif self.drafts is not None and request.decoding:
                count += min(self.drafts.tokens, request.wanted - request.produced - 1, left - 1)
            need = -(-(request.computed + count) // block) - len(request.blocks)
            while need > 0 and need > cache.free:
                preempted = True
                if self._preempt() is request:
                    return left, True
            if need > 0:
                request.blocks += cache.take(need)
            chunks.append((request, count))
            left -= count
            at += 1
        return left, preempted

    def _preempt(self) -> SimulatedRequest:
        """Move the last admitted request, without its blocks, to the front of the queue."""
        victim = self.running.pop()
        self.cache.release(victim.blocks)
        victim.blocks = []
        victim.computed = 0
        victim.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(victim)
        return victim

    def _admit(
        self, chunks: list[tuple[SimulatedRequest, int]], left: int, longest: int
    ) -> list[SimulatedRequest]:
        """Admit from the front of the queue; the first request that does not fit blocks the rest."""
        admitted: list[SimulatedRequest] = []
        while self.waiting and left > 0 and len(self.running) < self._cap:
            request = self.waiting[0]
            cached = self.cache.cached(request.hashes, request.tokens)
            computed = len(cached) * self.cache.block_size
            count = min(request.tokens - computed, longest)
            if count > left and not self.limits.enable_chunked_prefill:
                break
            count = min(count, left)
            reserve = self._watermark if self.running else 0
            whole = request.tokens if self.limits.scheduler_reserve_full_isl else computed + count
            room = self.cache.free - self.cache.idle(cached) - reserve
            if self.cache.needed(whole) - len(cached) > room:
                break
            self.waiting.popleft()
            self.cache.share(cached)
            request.blocks = cached + self.cache.take(self.cache.needed(computed + count) - len(cached))
            request.computed = computed
            if not request.preemptions:
                request.cached = computed
                if self.cache.caching:
                    self.prefix_queries += request.prompt
                    self.prefix_hits += computed
            self.running.append(request)
            admitted.append(request)
            chunks.append((request, count))
            left -= count
        return admitted

    def _end(self, request: SimulatedRequest) -> None:
        request.ended = True
        self.cache.release(request.blocks[: max(0, len(request.blocks) - self._leak)])
        request.blocks = []


def _work(chunks: list[tuple[SimulatedRequest, int]]) -> StepWork:
    tokens = prefills = kv_read = drafted = 0
    area = 0.0
    longest_draft = 0
    for request, count in chunks:
        tokens += count
        if request.decoding:
            kv_read += request.computed + 1
            drafted += count - 1
            longest_draft = max(longest_draft, count - 1)
        else:
            prefills += 1
            area += count * (request.computed + count / 2)
    return StepWork(
        tokens=tokens,
        sequences=len(chunks),
        prefills=prefills,
        kv_read=kv_read,
        prefill_area=area,
        drafted=drafted,
        longest_draft=longest_draft,
    )
