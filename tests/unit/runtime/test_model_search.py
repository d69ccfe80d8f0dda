"""When the performance model is asked: now and then, and soon after flags or suggestions changed."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ParamSpec, TypeVar

import pytest

from flettner.agent.domain.cost import GpuRates, cost_of_change
from flettner.agent.domain.errors import WorkerError, WorkerTimeoutError
from flettner.agent.domain.events import Event
from flettner.agent.domain.fleet import Fleet
from flettner.agent.domain.headroom import HourPeak
from flettner.agent.domain.model import Objective, Server, Slo
from flettner.agent.domain.reading import Reading
from flettner.agent.domain.state import Phase, State
from flettner.agent.observe.spending import Spending
from flettner.agent.prediction.learned import LearnedModel
from flettner.agent.prediction.model_search import ModelSearchRequest
from flettner.agent.runtime.model_search import ModelSearch
from flettner.performance_model.errors import PredictionInputError
from tests.support.fast_time import in_no_time, loop_now
from tests.support.learned import learned_model, without_law

P = ParamSpec("P")
R = TypeVar("R")
LEARNED = learned_model(1.0, max_num_seqs=8)
BLUE = Server(name="chat-r0", setting=LEARNED.config.setting)


@dataclass
class CountingWorker:
    """Notes when it is asked; `broken`: the process ends each time."""

    broken: bool = False
    requests: list[tuple[float, ModelSearchRequest]] = field(default_factory=list)

    async def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        (request,) = args
        assert isinstance(request, ModelSearchRequest)
        self.requests.append((asyncio.get_running_loop().time(), request))
        if self.broken:
            raise WorkerError("the worker process ended")
        return function(*args, **kwargs)

    async def close(self) -> None:
        return


@dataclass
class Target:
    state: State
    reading: Reading | None = None
    spending: Spending = field(default_factory=Spending)
    peaks: Sequence[HourPeak] = ()
    emitted: list[Event] = field(default_factory=list)

    def emit(self, event: Event) -> None:
        self.emitted.append(event)


def model_search(worker: CountingWorker, learned: LearnedModel | None = LEARNED) -> ModelSearch:
    slo = Slo(ttft=Objective(under_s=1.0, share=0.95))
    return ModelSearch(worker=worker, learned=lambda: learned, slo=slo, bounds={}, now=loop_now)


async def play(search: ModelSearch, target: Target, *moves: tuple[float, State]) -> None:
    """Run for 20 minutes; put each state in force at its second."""
    task = asyncio.create_task(search.run(target))
    for at_s, state in (*moves, (1200.0, target.state)):
        await asyncio.sleep(at_s - asyncio.get_running_loop().time())
        target.state = state
    task.cancel()


def test_it_asks_every_five_minutes_and_keeps_the_advice() -> None:
    worker, target = CountingWorker(), Target(State(target="chat", fleet=Fleet(servers=(BLUE,))))
    search = model_search(worker)

    in_no_time(play(search, target))

    assert [at_s for at_s, _ in worker.requests] == [0, 300, 600, 900]
    assert search.result is not None
    assert search.result.setting == BLUE.setting


def test_it_asks_a_minute_later_at_the_earliest_for_flags_that_changed() -> None:
    other = replace(BLUE, setting={**BLUE.setting, "max_num_seqs": 16})
    worker, target = CountingWorker(), Target(State(target="chat", fleet=Fleet(servers=(BLUE,))))

    in_no_time(
        play(
            model_search(worker),
            target,
            (20.0, replace(target.state, fleet=replace(target.state.fleet, servers=(other,)))),
        )
    )

    assert [at_s for at_s, _ in worker.requests][:2] == [0, 60]
    assert worker.requests[1][1].learned.config.setting["max_num_seqs"] == 16


def test_it_does_not_ask_during_a_rollout() -> None:
    worker, target = (
        CountingWorker(),
        Target(State(target="chat", fleet=Fleet(servers=(BLUE,)), phase=Phase.CANARY)),
    )

    in_no_time(play(model_search(worker), target))

    assert not worker.requests


def test_without_a_law_there_is_no_advice() -> None:
    worker, target = CountingWorker(), Target(State(target="chat", fleet=Fleet(servers=(BLUE,))))
    search = model_search(worker, without_law(LEARNED))
    search.result = None

    in_no_time(play(search, target))

    assert not worker.requests
    assert search.result is None


def test_a_worker_that_ends_costs_only_the_advice() -> None:
    worker, target = CountingWorker(broken=True), Target(State(target="chat", fleet=Fleet(servers=(BLUE,))))
    search = model_search(worker)

    in_no_time(play(search, target))

    assert len(worker.requests) == 20  # a minute apart
    assert search.result is None


def test_the_advice_has_the_cost_of_now_and_of_the_change() -> None:
    rates = GpuRates(per_hour=3.6, power_w=400.0)
    target = Target(State(target="chat", fleet=Fleet(servers=(BLUE,))), spending=Spending(rates=rates))
    search = model_search(CountingWorker())

    in_no_time(play(search, target))

    assert search.result is not None
    assert search.result.best is not None
    cost = cost_of_change(search.result, search.result.best.to)
    assert cost is not None
    tokens_per_s = search.result.present["tokens_per_s"].value
    assert cost.now["cost_per_million_tokens"].value == pytest.approx(1e6 * 0.001 / tokens_per_s)
    name = "cost_per_thousand_good_requests"
    assert cost.then[name].value < cost.now[name].value
    assert cost.then["tokens_per_joule"].value > 0


class EndlessWorker(CountingWorker):
    async def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        del args, kwargs
        raise WorkerTimeoutError(f"{function.__name__} takes more than 60 s")


def test_a_prediction_that_takes_too_long_is_not_to_be_tried_again() -> None:
    """Another try would occupy the worker, which all targets share, for as long."""
    with pytest.raises(PredictionInputError, match="nearer to the present ones"):
        in_no_time(model_search(EndlessWorker()).predict({"max_num_batched_tokens": 1}, 1.0, 1.0, GpuRates()))
