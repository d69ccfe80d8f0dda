"""A full run in virtual time: requests in, timestamps out, without waiting."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from flettner.simulator.scheduler import Scheduler, SimulatedRequest
from flettner.simulator.step_time import StepWork


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The requests of a run, with their times."""

    requests: tuple[SimulatedRequest, ...]
    seconds: float
    steps: int
    peak_kv_share: float
    peak_running: int


def replay(
    requests: Iterable[SimulatedRequest],
    scheduler: Scheduler,
    seconds: Callable[[StepWork], float],
    *,
    async_scheduling: bool = False,
) -> Run:
    """Add the requests at their `arrived_at` and step until all ended. `seconds` is the law of step time.

    With `async_scheduling` a step is planned when the one before it begins.

    Raises RuntimeError if the queue can never move: chunked prefill off and a prompt above the budget.
    """
    served = tuple(sorted(requests, key=lambda request: request.arrived_at))
    coming = deque(served)
    now = planned = 0.0
    steps = peak_running = 0
    peak_kv = 0.0
    while coming or scheduler.waiting or scheduler.running:
        while coming and coming[0].arrived_at <= planned:
            scheduler.add(coming.popleft())
        step = scheduler.plan()
        if step is None:
            if not coming:
                raise RuntimeError(f"{len(scheduler.waiting)} requests wait and none can ever be admitted")
            now = planned = max(now, coming[0].arrived_at)
            continue
        for request in step.admitted:
            request.scheduled_at = now if request.scheduled_at is None else request.scheduled_at
        peak_kv = max(peak_kv, scheduler.cache.used_share)
        peak_running = max(peak_running, len(scheduler.running))
        began, now = now, now + seconds(step.work)
        planned = began if async_scheduling else now
        steps += 1
        for request in scheduler.finish(step):
            request.first_at = now if request.first_at is None else request.first_at
            request.last_at = now
    return Run(requests=served, seconds=now, steps=steps, peak_kv_share=peak_kv, peak_running=peak_running)
