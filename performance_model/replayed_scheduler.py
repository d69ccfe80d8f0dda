"""One vLLM engine under a recorded load, in virtual time.

The rules and their order are those of vLLM 0.32 (v1/core/sched/scheduler.py, v1/core/kv_cache_manager.py),
first come first served, without speculative decoding, LoRA or connectors; queue limits as in
v1/engine/async_llm.py. A stretch of steps in which only decoding happens is one event; where blocks or the
token budget do not suffice, the requests are served one by one, as vLLM does.
tests/unit/performance_model/test_engine.py compares it with a stepwise scheduler.
"""

from collections import deque
from dataclasses import dataclass
from math import exp, floor, log, sqrt

from flettner.performance_model.block_pool import BlockPool, Prefix
from flettner.performance_model.decode_batch import DecodeBatch
from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.extrapolation import LargestStep
from flettner.performance_model.request_state import RequestState, initial_states
from flettner.performance_model.step_law import StepLaw
from flettner.performance_model.trace import Trace

_BINS = 50  # for each factor of e: 2 % wide
_PARTS = 8  # at most, of a stretch whose steps become slower


class TokenGaps:
    """The times between the tokens of all requests, counted in narrow bins."""

    def __init__(self) -> None:
        self._counts: dict[int, float] = {}

    @property
    def count(self) -> float:
        return sum(self._counts.values())

    def add(self, seconds: float, count: float) -> None:
        place = floor(_BINS * log(seconds))
        self._counts[place] = self._counts.get(place, 0.0) + count

    def add_stretch(self, first: float, growth: float, steps: int, sequences: int) -> None:
        """Steps of a constant batch, each `growth` seconds longer than the one before."""
        parts = min(_PARTS, steps, 1 + int(_BINS * growth * steps / first))
        for part in range(parts):
            middle = (part + 0.5) / parts * (steps - 1)
            self.add(first + growth * middle, sequences * steps / parts)

    def quantile(self, share: float) -> float | None:
        """Seconds; None without a gap."""
        wanted = share * self.count
        for place in sorted(self._counts):
            wanted -= self._counts[place]
            if wanted <= 0:
                return exp((place + 0.5) / _BINS)
        return None


class RequestCache:
    def __init__(self, pool: BlockPool, limits: EngineLimits) -> None:
        self._pool = pool
        self._block = limits.block_size
        self._caching = limits.enable_prefix_caching

    def find(self, request: RequestState) -> tuple[int, int]:
        """Blocks in the cache: of the group's prefix, and its own after it was preempted."""
        if not self._caching:
            return 0, 0
        most = (request.tokens - 1) // self._block
        if request.prefix is None:
            shared = 0
        else:
            reachable = request.reach if request.own is not None else request.shared
            shared = min(reachable, request.prefix.available, most)
        if request.own is None or shared < min(request.reach, most):
            return shared, 0
        return shared, min(request.own.available, most - shared)

    def hold(self, request: RequestState, shared: int, own: int) -> None:
        request.held = shared
        if request.prefix is not None:
            self._pool.share(request.prefix, shared)
        if request.own is not None:
            self._pool.share(request.own, own)
            for run in request.own.idle:
                run.prefix = None
            request.own = None

    def register(self, request: RequestState) -> None:
        """The group finds the blocks that this request computed of their prefix."""
        if request.prefix is not None and request.held < request.reach:
            full = min(request.reach, request.computed // self._block)
            request.held = self._pool.extend(request.prefix, request.held, full)

    def free(self, request: RequestState, *, keep: bool) -> None:
        """Free its blocks, the last first. `keep`: it may find its own again."""
        pool, full, common = self._pool, request.computed // self._block, request.held
        if keep and self._caching:
            start = max(common, request.reach)
            own = max(0, full - start)
            pool.put(request.blocks - max(full, start) if own else request.blocks - common)
            request.own = Prefix(available=own)
            if own:
                pool.put(own, request.own)
                pool.put(start - common)
        else:
            pool.put(request.blocks - common)
        if request.prefix is not None:
            pool.release(request.prefix, common)
        request.blocks = request.held = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRun:
    """What happened to each request of a trace, in its order."""

    requests: tuple[RequestState, ...]
    seconds: float
    steps: int
    preemptions: int
    peak_kv_share: float
    largest_step: LargestStep
    gaps: TokenGaps


class ReplayedScheduler:
    """Make one for each run."""

    def __init__(self, trace: Trace, law: StepLaw, limits: EngineLimits) -> None:
        self._law = law
        self._limits = limits
        self._pool = BlockPool(limits.kv_blocks, caching=limits.enable_prefix_caching)
        self._cache = RequestCache(self._pool, limits)
        self._batch = DecodeBatch(limits.block_size)
        self._requests = initial_states(trace, limits)
        self._coming = 0  # index of the next arrival
        self._waiting: deque[RequestState] = deque()
        self._running: dict[RequestState, None] = {}  # in order of admission
        self._prefills: list[RequestState] = []  # the running requests outside the batch, in this order
        self._now = 0.0
        self._planned_s = 0.0  # when the coming step is planned: requests that arrived until then are in it
        self._stuck = False  # the front of the queue cannot be admitted until a request ends
        self._admissions = 0
        self._steps = 0
        self._preemptions = 0
        self._unanswered = 0  # prompt tokens of accepted requests without an output token
        self._gaps = TokenGaps()
        self._most_tokens = 0  # of a step
        self._most_sequences = 0

    def run(self) -> EngineRun:
        while self._advance():
            pass
        return EngineRun(
            requests=self._requests,
            seconds=self._now,
            steps=self._steps,
            preemptions=self._preemptions,
            peak_kv_share=self._pool.peak_share,
            largest_step=LargestStep(tokens=self._most_tokens, sequences=self._most_sequences),
            gaps=self._gaps,
        )

    def ended_within(self, events: int) -> int:
        """How many requests end or are rejected within this many computed events: all, if these suffice."""
        for _ in range(events):
            if not self._advance():
                return len(self._requests)
        return self._coming - len(self._running) - len(self._waiting)

    def _advance(self) -> bool:
        """Compute the next event: a step, or a stretch of equal ones. Return False after the last."""
        self._arrive()
        if not self._running and not self._waiting:
            if self._coming == len(self._requests):
                return False
            self._now = self._planned_s = max(self._now, self._requests[self._coming].arrival_s)
        elif not self._skip():
            self._step()
        return True

    def _arrive(self) -> None:
        requests, limits = self._requests, self._limits
        while self._coming < len(requests) and requests[self._coming].arrival_s <= self._planned_s:
            request = requests[self._coming]
            self._coming += 1
            present = len(self._running) + len(self._waiting)
            full = limits.max_num_queued_reqs is not None and present + 1 > limits.max_num_queued_reqs
            late = (
                limits.max_num_queued_tokens is not None and self._unanswered >= limits.max_num_queued_tokens
            )
            if full or late or request.prompt + request.wanted > limits.kv_tokens or request.wanted < 1:
                request.rejected = True
                continue
            self._unanswered += request.prompt
            self._waiting.append(request)

    def _skip(self) -> bool:
        """Compute the coming steps at once while nothing but decoding can happen in them."""
        batch = self._batch
        if self._prefills or not batch.size or (self._waiting and not self._stuck):
            return False
        if batch.size > self._limits.budget:
            return False
        steps = min(batch.steps_to_end(), batch.steps_within(self._pool.free))
        first, growth = self._decode_seconds()
        if not self._waiting and self._coming < len(self._requests):
            steps = min(steps, self._steps_until_arrival(first, growth))
        if steps < 1:
            return False
        self._note_size(batch.size, batch.size)
        self._gaps.add_stretch(first, growth, steps, batch.size)
        self._pool.take(batch.blocks_for(steps))
        self._pass(steps * first + growth * steps * (steps - 1) / 2, first + growth * (steps - 1))
        self._steps += steps
        self._end_step(steps)
        return True

    def _steps_until_arrival(self, first: float, growth: float) -> int:
        """How many steps are computed before the next request is in one."""
        wait = self._requests[self._coming].arrival_s - self._now
        if not self._limits.async_scheduling:
            return _steps_until(wait, first, growth)
        return 1 + _steps_until(wait, first, growth) if wait > 0 else 1

    def _pass(self, seconds: float, last_s: float) -> None:
        """Let the time of one or more steps pass; `last_s`: of the last one."""
        self._now += seconds
        self._planned_s = self._now - last_s if self._limits.async_scheduling else self._now

    def _decode_seconds(self) -> tuple[float, float]:
        """Of the next step if only the batch computes, and what each further one takes more."""
        size = self._batch.size
        return self._law.seconds(size, size, self._batch.context + size), 1e-6 * self._law.kv_read_us * size

    def _end_step(self, steps: int) -> None:
        self._arrive()
        for request in self._batch.advance(steps):
            self._end(request)
            self._stuck = False

    def _step(self) -> None:
        """One step, planned as vLLM does: running requests first, then the queue."""
        longest = self._limits.longest_chunk(len(self._running) + len(self._waiting))
        chunks, left, preempted = self._plan_together(longest) or self._plan_one_by_one(longest)
        if not preempted:
            self._admit(chunks, left, longest)
        batch = self._batch
        if not chunks and not batch.size:
            self._reject_front()
            return
        tokens, kv_read, attention = batch.size, batch.context + batch.size, 0.0
        for request, count in chunks:
            tokens += count
            if request.is_decoding:
                kv_read += request.computed + 1
            else:
                attention += count * (request.computed + count / 2)
        self._note_size(tokens, batch.size + len(chunks))
        took = self._law.seconds(tokens, batch.size + len(chunks), kv_read, attention)
        self._pass(took, took)
        self._steps += 1
        self._stuck = bool(self._waiting) and not chunks and not preempted
        if batch.size:
            self._gaps.add(took, batch.size)
        self._end_step(1)
        self._finish(chunks, took)

    def _note_size(self, tokens: int, sequences: int) -> None:
        self._most_tokens = max(self._most_tokens, tokens)
        self._most_sequences = max(self._most_sequences, sequences)

    def _reject_front(self) -> None:
        """Nothing can run, as with a prompt above the budget without chunked prefill."""
        self._unanswered -= self._waiting[0].prompt
        self._waiting.popleft().rejected = True

    def _plan_together(self, longest: int) -> tuple[list[tuple[RequestState, int]], int, bool] | None:
        """Chunks of the prompts in progress; None if the batch must share blocks or budget with them."""
        batch, block = self._batch, self._limits.block_size
        left, blocks = self._limits.budget - batch.size, batch.new_blocks()
        chunks = []
        for request in self._prefills:
            wanted = min(request.tokens - request.computed, longest)
            if wanted > left and self._prefills[0].admission < batch.newest:
                return None
            count = min(wanted, left)
            if count < 1:
                break
            blocks += max(0, -(-(request.computed + count) // block) - request.blocks)
            chunks.append((request, count))
            left -= count
        if left < 0 or blocks > self._pool.free:
            return None
        for request, count in chunks:
            request.blocks = max(request.blocks, -(-(request.computed + count) // block))
        self._pool.take(blocks)
        return chunks, left, False

    def _plan_one_by_one(self, longest: int) -> tuple[list[tuple[RequestState, int]], int, bool]:
        """Serve running requests in order of admission; preempt the latest for blocks."""
        loose = list(self._batch.dissolve())
        order = list(self._running)
        chunks: list[tuple[RequestState, int]] = []
        left, preempted, block = self._limits.budget, False, self._limits.block_size
        self._prefills = order[:]
        while len(chunks) < len(order) and left > 0:
            request = order[len(chunks)]
            count = request.tokens - request.computed
            if count > 1:
                count = min(count, longest, left)
            need = -(-(request.computed + count) // block) - request.blocks
            while need > 0 and need > self._pool.free:
                preempted = True
                self._preempt(order.pop(), loose)
                if len(order) == len(chunks):
                    return chunks, left, True
            if need > 0:
                self._pool.take(need)
                request.blocks += need
            chunks.append((request, count))
            left -= count
        return chunks, left, preempted

    def _preempt(self, victim: RequestState, decoding: list[RequestState]) -> None:
        """Move the last admitted request, without its blocks, to the front of the queue."""
        if victim in decoding:
            victim.last_s = self._now
        self._cache.free(victim, keep=True)
        del self._running[victim]
        self._prefills.remove(victim)
        victim.computed = 0
        victim.preemptions += 1
        self._preemptions += 1
        self._waiting.appendleft(victim)

    def _admit(self, chunks: list[tuple[RequestState, int]], left: int, longest: int) -> None:
        """Admit from the front of the queue; the first request that does not fit blocks the rest."""
        limits, pool, cache, block = self._limits, self._pool, self._cache, self._limits.block_size
        while self._waiting and left > 0 and len(self._running) < limits.sequences:
            request = self._waiting[0]
            shared, own = cache.find(request)
            computed = (shared + own) * block
            count = min(request.tokens - computed, longest)
            if count > left and not limits.enable_chunked_prefill:
                break
            count = min(count, left)
            whole = request.tokens if limits.scheduler_reserve_full_isl else computed + count
            idle = own + (pool.idle(request.prefix, shared) if request.prefix else 0)
            reserve = int(limits.watermark * pool.blocks) if self._running else 0
            if -(-whole // block) - shared - own > pool.free - idle - reserve:
                break
            self._waiting.popleft()
            cache.hold(request, shared, own)
            request.computed = computed
            request.blocks = -(-(computed + count) // block)
            pool.take(request.blocks - shared - own)
            self._admissions += 1
            request.admission = self._admissions
            self._running[request] = None
            self._prefills.append(request)
            chunks.append((request, count))
            left -= count

    def _finish(self, chunks: list[tuple[RequestState, int]], took: float) -> None:
        """Account for the computed chunks and return whoever decodes to the batch."""
        for request, count in chunks:
            was_decoding = request.is_decoding
            request.computed += count
            self._cache.register(request)
            if request.computed < request.tokens:
                continue
            request.produced += 1
            if request.first_s is None:
                request.first_s = self._now
                self._unanswered -= request.prompt
            elif was_decoding:
                self._gaps.add(took, 1)
            elif request.last_s is not None:
                self._gaps.add(self._now - request.last_s, 1)
            if request.produced >= request.wanted:
                self._end(request)
                self._prefills.remove(request)
        if not self._prefills:
            return
        still = []
        for request in self._prefills:
            if request.is_decoding:
                self._batch.join(request)
            else:
                still.append(request)
        self._prefills = still

    def _end(self, request: RequestState) -> None:
        request.last_s = self._now
        self._cache.register(request)
        self._cache.free(request, keep=False)
        del self._running[request]


def _steps_until(wait_s: float, first: float, growth: float) -> int:
    """The least number of steps that take at least `wait_s`: n * first + growth * n * (n - 1) / 2."""
    if growth <= 0:
        count = wait_s / first
    else:
        slope = first - growth / 2
        count = (sqrt(slope * slope + 2 * growth * wait_s) - slope) / growth
    whole = max(1, int(count))
    while whole * first + growth * whole * (whole - 1) / 2 < wait_s:
        whole += 1
    return whole
