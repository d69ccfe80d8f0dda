"""A vLLM server in virtual time with faults, pauses and noise of its own."""

from collections.abc import Iterator
from datetime import datetime
from math import inf
from random import Random

from flettner.agent.domain.reading import EngineSample
from flettner.simulator.faults import Faults
from flettner.simulator.flags import parse
from flettner.simulator.scheduler import ScheduledStep, SimulatedRequest
from flettner.simulator.step_time import StepTime, StepWork
from tests.support.virtual_server import VirtualServer

BLOCKS = 4000  # of 16 tokens
JITTER = 0.05  # sigma of the lognormal noise on step times
ERRORS = 0.002  # share of failed requests at any server

Pauses = Iterator[tuple[float, float]]
"""(start, end) in seconds without a completed step."""


def draw_pauses(random: Random, *, every_s: float, least_s: float, most_s: float) -> Pauses:
    """Draw random stalls of random length, as by garbage collection or a noisy neighbour."""
    at_s = 0.0
    while True:
        at_s += random.expovariate(1 / every_s)
        ends_s = at_s + random.uniform(least_s, most_s)
        yield at_s, ends_s
        at_s = ends_s


class FaultyServer(VirtualServer):
    """`slowly`: factor on all step times. `harmed_s`: time of the first request that a fault affected."""

    patience_s = 60.0

    def __init__(
        self,
        name: str,
        hardware: str,
        seqs: int,
        *,
        now_s: float,
        random: Random,
        slowly: float = 1.0,
        faults: Faults | None = None,
        pauses: Pauses | None = None,
    ) -> None:
        words = ("--model", "tiny", "--sim-hardware", hardware, "--max-num-seqs", f"{seqs}")
        memory = ("--num-gpu-blocks-override", f"{BLOCKS}", "--max-model-len", f"{16 * BLOCKS}")
        leak = ("--sim-fault", f"*:leak={faults.leak:g}") if faults else ()
        flags = parse((*words, *memory, *leak))
        super().__init__(name, flags, now_s=now_s, unix_s=0.0)
        self.faults = faults or Faults()
        self.harmed_s: float | None = None
        self._law = StepTime(hardware=flags.simulation.hardware)
        self._random, self._slowly, self._pauses = random, slowly, pauses or iter(())
        self._pause = (0.0, 0.0)
        self._scraped: tuple[int, ...] | None = None

    @property
    def used_s(self) -> float | None:
        """The time of the first request."""
        return self._used_s

    def ask(self, request: SimulatedRequest, *, probe: bool = False, errors: float = 0.0) -> None:
        """`errors`: the current share of failed requests at all servers."""
        self.advance(request.arrived_at)
        self._used_s = request.arrived_at if self._used_s is None else self._used_s
        broken, aborted, cut = (
            self._random.random() < share
            for share in (self.faults.errors, self.faults.abort, self.faults.truncate)
        )
        if broken or aborted or cut:
            self._harm(request.arrived_at)
        if broken or self._random.random() < max(ERRORS, errors):
            self._end(request, "failed", at_s=request.arrived_at + 0.01, status=500)
        elif aborted:
            self._end(request, "aborted", at_s=request.arrived_at + 0.01)
        else:
            super().ask(request, probe=probe)
            if cut:
                self._open[request].cut_after = request.wanted // 2

    def scrape(self, at: datetime, at_s: float) -> EngineSample:
        """Counters and gauges alone: the requests are those of the proxy's records."""
        del at_s
        scheduler, metrics = self.scheduler, self.metrics
        counts = (
            metrics.prompt_tokens,
            metrics.generation_tokens,
            scheduler.prefix_queries,
            scheduler.prefix_hits,
            metrics.finished["length"],
        )
        before, self._scraped = self._scraped, counts
        prompts, answers, queries, hits, finished = (
            now - then for now, then in zip(counts, before or counts, strict=True)
        )
        return EngineSample(
            at=at,
            server=self.name,
            interval_s=0.0 if before is None else 1.0,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            kv_usage=scheduler.cache.used_share,
            prompt_tokens=prompts,
            generation_tokens=answers,
            prefix_queries=queries,
            prefix_hits=hits,
            finished={"length": finished},
        )

    def forget_scrapes(self) -> None:
        self._scraped = None

    def _count_repeats(self, step: ScheduledStep) -> int:
        return 0 if self.faults.truncate else super()._count_repeats(step)

    def _find_end(self, work: StepWork) -> float:
        now_s, began_s = self._now_s, self._now_s if self._used_s is None else self._used_s
        noise = self._random.lognormvariate(0.0, JITTER)
        pace = self.faults.pace(work, now_s - began_s)
        ends_s = now_s + self._law.seconds(work) * pace * noise * self._slowly
        while self._pause[1] <= now_s:
            self._pause = next(self._pauses, (inf, inf))
        if self._pause[0] < ends_s:
            ends_s += self._pause[1] - max(self._pause[0], now_s)
        late_s = began_s + self.faults.ends_s(ends_s - began_s)
        if pace > 1 or late_s > ends_s + 1e-6:
            self._harm(now_s)
        return late_s

    def _harm(self, at_s: float) -> None:
        self.harmed_s = at_s if self.harmed_s is None else self.harmed_s
