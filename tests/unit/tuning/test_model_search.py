"""Which predicted setting is tried next."""

from flettner.performance_model.engine_limits import EngineLimits
from flettner.tools.tuning.model_search import ModelSearch, PointForecast
from flettner.tools.tuning.searches import Point, Tried
from flettner.tools.tuning.space import Space

START, SMALL, SAME, OTHER = ({"max_num_seqs": seqs} for seqs in (256, 128, 64, 8))


def forecast(point: Point, gain: float, noise: float = 0.01) -> PointForecast:
    return PointForecast(point=point, goodput=0.5 + gain, gain=gain, noise=noise)


SEARCH = ModelSearch(
    space=Space(points=(START, SMALL, SAME, OTHER), limits=(EngineLimits(kv_blocks=100),) * 4, refused={}),
    forecasts=(forecast(START, 0.0), forecast(SMALL, 0.2), forecast(SAME, 0.2), forecast(OTHER, 0.1)),
)
STARTED = Tried(point=START, goodput=0.5)


def test_a_setting_that_serves_all_requests_alike_is_not_tried() -> None:
    assert SEARCH.propose([]) == START
    assert SEARCH.propose([STARTED]) == SMALL
    assert SEARCH.propose([STARTED, Tried(point=SMALL, goodput=0.5)]) == OTHER


def test_it_is_tried_where_the_first_did_not_start() -> None:
    assert SEARCH.propose([STARTED, Tried(point=SMALL, goodput=None)]) == SAME


def test_ends_where_a_trial_was_as_good_as_predicted() -> None:
    assert SEARCH.propose([STARTED, Tried(point=SMALL, goodput=0.65)]) is None
