"""The load of each quarter of an hour is kept, and the model asked once a day where two kinds take turns."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

from flettner.agent.domain.fleet import Fleet
from flettner.agent.domain.model import HotKnobs, Objective, Server, Slo
from flettner.agent.domain.state import State
from flettner.agent.prediction.learned import LearnedModel
from flettner.agent.prediction.load_history import LoadHistory, decode, encode
from flettner.agent.prediction.regime_search import RegimeRequest, search_regimes
from flettner.agent.runtime.model_search import ModelSearch
from flettner.agent.runtime.regime_search import STARTED, RegimeSearch, common_limits
from flettner.performance_model.load_mixes import ROW_S
from flettner.performance_model.trace import TraceRequest
from flettner.policies.regimes import Regimes
from tests.support.fast_time import NOON, in_no_time, loop_now
from tests.support.learned import learned_model
from tests.support.machine_stories import rules
from tests.unit.runtime.test_model_search import Target

P = ParamSpec("P")
R = TypeVar("R")
DAY_S = 86_400
BUDGET = "max_num_batched_tokens"
LEARNED = learned_model(1.0, max_num_seqs=8)
HOT = HotKnobs(limits={BUDGET: (64, 2048), "watermark": (0, 0.5)})
BLUE = Server(name="chat-r0", setting=LEARNED.config.setting, hot=HOT)
ON = rules(strategy="hot", policies=(("regimes", Regimes()),))


@dataclass
class Asked:
    """Notes when it is asked for two settings, and advises none."""

    requests: list[tuple[float, RegimeRequest]] = field(default_factory=list)

    async def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        (request,) = args
        assert isinstance(request, RegimeRequest)
        assert function is search_regimes
        self.requests.append((asyncio.get_running_loop().time(), request))
        return function(*(replace(request, slo=Slo()),), **kwargs)  # type: ignore[arg-type]

    async def close(self) -> None:
        return


def load(prompt: int) -> tuple[TraceRequest, ...]:
    return tuple(
        TraceRequest(arrival_s=2.0 * number, prompt_tokens=prompt, output_tokens=100) for number in range(60)
    )


def three_days() -> LoadHistory:
    """Up to NOON, with long prompts each night."""
    history, noon = LoadHistory(), int(NOON.timestamp())
    for at in range(noon - 3 * DAY_S, noon + 1, ROW_S):
        history = history.add(at, load(6000 if (at - 1) % DAY_S >= DAY_S * 2 // 3 else 400))
    return history


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "loads.json"
    path.write_bytes(encode(three_days()))
    return path


def model_search(worker: Asked, learned: Callable[[], LearnedModel | None]) -> ModelSearch:
    slo = Slo(ttft=Objective(under_s=1.0, share=0.95))
    return ModelSearch(worker=worker, learned=learned, slo=slo, bounds={}, now=loop_now)


def play(search: RegimeSearch, seconds: float, blue: Server = BLUE) -> None:
    async def live() -> None:
        task = asyncio.create_task(search.run(Target(State(target="chat", fleet=Fleet(servers=(blue,))))))
        await asyncio.sleep(seconds)
        task.cancel()

    in_no_time(live())


def test_it_asks_once_a_day_with_the_load_of_each_kind_and_the_limits_that_change(file: Path) -> None:
    worker = Asked()
    search = RegimeSearch(search=model_search(worker, lambda: LEARNED), file=file)
    search.use(ON)

    play(search, 2.5 * DAY_S)

    assert [at_s for at_s, _ in worker.requests] == [0, DAY_S, 2 * DAY_S]
    request = worker.requests[0][1]
    assert (request.below[0].prompt_tokens, request.above[0].prompt_tokens) == (400, 6000)
    assert request.hot == HOT.limits
    assert request.mixes.metric == "prompt_tokens"
    assert search.advice is None


@pytest.mark.parametrize("off", [rules(strategy="hot"), rules(strategy="surge", policies=ON.policies)])
def test_without_the_policy_or_hot_changes_nothing_is_asked_or_kept(off: object, file: Path) -> None:
    worker, before = Asked(), file.read_bytes()
    search = RegimeSearch(search=model_search(worker, lambda: LEARNED), file=file)
    search.use(off)  # type: ignore[arg-type]

    play(search, DAY_S)

    assert not worker.requests
    assert file.read_bytes() == before


def test_servers_without_changeable_limits_are_not_asked_about(file: Path) -> None:
    worker = Asked()
    search = RegimeSearch(search=model_search(worker, lambda: LEARNED), file=file)
    search.use(ON)

    play(search, 3600, replace(BLUE, hot=None))

    assert not worker.requests
    assert common_limits((BLUE, replace(BLUE, hot=HotKnobs(limits={BUDGET: (128, 1024)})))) == {
        BUDGET: (128, 1024)
    }


def test_where_servers_may_start_those_without_changeable_limits_are_asked_about(file: Path) -> None:
    worker = Asked()
    search = RegimeSearch(search=model_search(worker, lambda: LEARNED), file=file)
    search.use(rules(strategy="auto", policies=ON.policies))

    play(search, 3600, replace(BLUE, hot=None))

    ((_, request),) = worker.requests
    assert request.cold
    assert request.hot == STARTED


def test_each_quarter_of_an_hour_is_kept_over_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "loads.json"
    search = RegimeSearch(
        search=model_search(
            Asked(), lambda: replace(LEARNED, fitted_at=loop_now() - timedelta(seconds=20), trace=load(400))
        ),
        file=file,
    )
    search.use(ON)

    play(search, 3 * ROW_S + 100)

    assert len(search.history.rows) == 4
    assert decode(file.read_bytes()) == search.history


def test_a_file_of_another_format_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "loads.json"
    file.write_text("{", encoding="utf-8")
    search = RegimeSearch(search=model_search(Asked(), lambda: None), file=file)

    play(search, 100)

    assert search.history == LoadHistory()
