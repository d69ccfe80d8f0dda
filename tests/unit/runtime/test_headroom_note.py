"""When the headroom is said: once a day, with enough history, of the servers in force."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from flettner.agent.domain.cost import GpuRates
from flettner.agent.domain.errors import WorkerError
from flettner.agent.domain.events import Event
from flettner.agent.domain.fleet import Fleet
from flettner.agent.domain.headroom import HOUR_S, HourPeak
from flettner.agent.domain.model import Server, Slo
from flettner.agent.domain.reading import Reading
from flettner.agent.domain.state import Phase, State
from flettner.agent.observe.spending import Spending
from flettner.agent.prediction.capacity import CapacityAnswer, CapacityForecast
from flettner.agent.prediction.worker import InlineWorker
from flettner.agent.runtime.headroom_note import HeadroomNote
from flettner.agent.runtime.model_search import ModelSearch, Suggested
from flettner.performance_model.band import Band
from flettner.performance_model.errors import PredictionInputError
from tests.support.fast_time import NOON, in_no_time, loop_now

DAY_S = 86_400.0
TWO = tuple(Server(name=f"chat-r{number}", setting={"max_num_seqs": 64}) for number in range(2))
ANSWER = CapacityAnswer(
    rate_rps=1.0,
    servers=2,
    gpus=1,
    share=0.95,
    law_source="iteration log",
    now=CapacityForecast(rate_rps=Band(value=4.0, low=3.5, high=4.5), certain_rps=4.0),
    suggestions=(),
)


def uncertain(rate_rps: float) -> CapacityAnswer:
    forecast = replace(ANSWER.now, extrapolation="the rate is 3 times the recorded one")
    return replace(ANSWER, now=forecast, rate_rps=rate_rps)


class Search(ModelSearch):
    """Answers with `answer`, or that of the 20 minutes, and notes when."""

    answer: CapacityAnswer | Exception = ANSWER
    by_20_minutes: Mapping[int, CapacityAnswer] = {}
    asked: list[float]
    on_card: Band | Exception = PredictionInputError("does not fit")

    async def predict_on_card(self, card: str) -> Band | None:
        del card
        if isinstance(self.on_card, Exception):
            raise self.on_card
        return self.on_card

    async def predict_capacity(self, suggested: Suggested, rates: GpuRates) -> CapacityAnswer:
        del suggested, rates
        self.asked.append(asyncio.get_running_loop().time())
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.by_20_minutes.get(int(self.asked[-1] // 1200.0), self.answer)


@dataclass
class Target:
    state: State
    peaks: Sequence[HourPeak]
    reading: Reading | None = None
    spending: Spending = field(default_factory=lambda: Spending(rates=GpuRates(per_hour=2.5)))

    def emit(self, event: Event) -> None: ...


def search(answer: CapacityAnswer | Exception = ANSWER) -> Search:
    made = Search(worker=InlineWorker(), learned=lambda: None, slo=Slo(), bounds={}, now=loop_now)
    made.answer, made.asked = answer, []
    return made


def target(hours: int = 48, phase: Phase = Phase.OBSERVING) -> Target:
    now = int(NOON.timestamp())
    peaks = [HourPeak(at=now - age * HOUR_S, rps=2.0) for age in range(hours)]
    return Target(State(target="chat", fleet=Fleet(servers=TWO), phase=phase), peaks)


def play(note: HeadroomNote, watched: Target, seconds: float) -> None:
    async def live() -> None:
        task = asyncio.create_task(note.run(watched))
        await asyncio.sleep(seconds)
        task.cancel()

    in_no_time(live())


def test_it_is_said_once_a_day() -> None:
    asked = search()
    note = HeadroomNote(search=asked)

    play(note, target(), 2.5 * DAY_S)

    assert asked.asked == [0.0, DAY_S, 2 * DAY_S]
    assert note.headroom is not None
    assert note.headroom.text.endswith("1 of 2 servers is enough at 95%, which would save 2.5 an hour")


def test_a_card_that_would_be_cheaper_is_named_with_its_price() -> None:
    asked, watched = search(), target()
    asked.cards = {"L4": 0.7}
    asked.on_card = Band(value=1.2, low=1.0, high=1.3)
    note = HeadroomNote(search=asked)

    play(note, watched, 1.0)

    assert note.headroom is not None
    assert note.headroom.text.endswith(
        "by the data sheet 2 on L4 would carry it for 1.4 an hour instead of 2.5"
    )


def test_a_card_that_the_model_does_not_fit_is_left_out() -> None:
    asked, watched = search(), target()
    asked.cards = {"T4": 0.1}
    note = HeadroomNote(search=asked)

    play(note, watched, 1.0)

    assert note.headroom is not None
    assert note.headroom.cheaper is None


def test_an_uncertain_one_is_asked_for_each_20_minutes_and_that_of_the_most_load_stays() -> None:
    asked = search(uncertain(rate_rps=0.4))
    asked.by_20_minutes = {1: uncertain(rate_rps=1.5)}
    note = HeadroomNote(search=asked)

    play(note, target(), 2 * 1200.0 + 1.0)

    assert asked.asked == [0.0, 1200.0, 2400.0]
    assert note.headroom is not None
    assert note.headroom.recorded_rps == 2 * 1.5


def test_without_a_day_of_history_the_model_is_not_asked() -> None:
    asked = search()

    play(HeadroomNote(search=asked), target(hours=23), DAY_S)

    assert asked.asked == []


def test_nothing_is_said_while_a_rollout_runs() -> None:
    asked = search()

    play(HeadroomNote(search=asked), target(phase=Phase.CANARY), DAY_S)

    assert asked.asked == []


def test_what_is_missing_costs_nothing_and_what_fails_is_tried_in_20_minutes() -> None:
    missing, failing = search(PredictionInputError("no law")), search(WorkerError("ended"))

    for each in (missing, failing):
        play(HeadroomNote(search=each), target(), 1201.0)

    assert len(missing.asked) == 5
    assert failing.asked == [0.0, 1200.0]


def test_other_servers_need_another_note() -> None:
    asked, watched = search(), target()
    note = HeadroomNote(search=asked)
    play(note, watched, 1.0)
    watched.state = State(target="chat", phase=Phase.CANARY, fleet=Fleet(servers=TWO[:1]))

    play(note, watched, 1.0)

    assert note.headroom is None
