"""Data-parallel engines behind one API server, each with its own queue, KV cache and GPUs.

Of a dense model: the engines of a mixture of experts would wait for each other in every step.
"""

import asyncio
from collections.abc import Sequence

from flettner.simulator.engine import SimulatedEngine, TokenStream
from flettner.simulator.metrics import join_pages
from flettner.simulator.scheduler import Scheduler
from flettner.simulator.text import Transcript

WAITING_COUNTS = 4  # times a running request, as in DPLBAsyncMPClient of vllm/v1/engine/core_client.py


def choose_engine(schedulers: Sequence[Scheduler], first: int = 0) -> int:
    """Return the index of the engine with the least load, among equal ones from `first` on.

    vLLM decides by counts that are up to 100 ms old; these are of the present.
    """
    count = len(schedulers)
    return min(((first + at) % count for at in range(count)), key=lambda index: _load(schedulers[index]))


def _load(scheduler: Scheduler) -> int:
    return WAITING_COUNTS * len(scheduler.waiting) + len(scheduler.running)


class DataParallelEngine(SimulatedEngine):
    """The first engine, which the API server knows, with the `others`."""

    others: Sequence[SimulatedEngine] = ()

    @property
    def requests(self) -> int:
        return super().requests + sum(other.requests for other in self.others)

    @property
    def prefill_backlog(self) -> int:
        return super().prefill_backlog + sum(other.prefill_backlog for other in self.others)

    def page(self, *, log_stats: bool = True) -> str:
        pages = (
            super().page(log_stats=log_stats),
            *(other.page(log_stats=log_stats) for other in self.others),
        )
        return join_pages(pages)

    def submit(self, text: Transcript, wanted: int, *, ignore_eos: bool) -> TokenStream:
        chosen = choose_engine([self.scheduler, *(other.scheduler for other in self.others)])
        if not chosen:
            return super().submit(text, wanted, ignore_eos=ignore_eos)
        other = self.others[chosen - 1]
        other.used_at = self.used_at
        return other.submit(text, wanted, ignore_eos=ignore_eos)

    def abort(self, stream: TokenStream) -> None:
        super().abort(stream)
        for other in self.others:
            other.abort(stream)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(super().run(), name="engine 0")
            for other in self.others:
                tasks.create_task(other.run(), name=f"engine {other.rank}")

    def _apply_limits(self) -> None:
        if (values := self.new_limits()) is not None:
            for engine in (self, *self.others):
                engine.scheduler.set_limits(values)
