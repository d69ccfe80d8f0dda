"""A new release must be as fast as the old one, token by token."""

from collections.abc import Sequence

import pytest

from flettner.agent.domain.reading import Request
from flettner.agent.domain.request_counts import NO_REQUESTS, RequestCounts, count_requests
from flettner.agent.domain.verdict import Verdict
from flettner.agent.judge.canary.token_pace import LEAST, compare_pace, require_pace
from flettner.simulator.text import draws

PASS, WAIT, FAIL = (Verdict(kind=kind, why="") for kind in ("pass", "wait", "fail"))


def counts(number: int, times: float, *, sigma: float = 0.12, seed: int = 1) -> RequestCounts:
    random, arm = draws(seed, "gaps"), NO_REQUESTS
    gaps = [0.07 * times * random.lognormvariate(0.0, sigma) for _ in range(number)]
    for second in range(0, number, 10):
        arm += count_requests([answered(gap) for gap in gaps[second : second + 10]])
    return arm


def answered(gap_s: float, tokens: int = 21) -> Request:
    return Request(
        server="r", outcome="ok", status=200, duration_s=0.3 + 20 * gap_s, ttft_s=0.3, tokens=tokens
    )


def verdicts(greens: Sequence[RequestCounts], blue: RequestCounts) -> list[str]:
    return [require_pace(PASS, green, blue, 1.0).kind for green in greens]


def test_a_release_that_is_a_tenth_slower_fails_and_an_equal_one_passes() -> None:
    blue = counts(1500, 1.0, seed=9)

    assert verdicts([counts(1500, times) for times in (0.9, 1.0, 1.1)], blue) == ["pass", "pass", "fail"]
    assert "tokens take 1.1" in require_pace(WAIT, counts(1500, 1.1), blue, 1.0).why


def test_a_slower_release_does_not_pass_before_it_is_proved() -> None:
    blue, green = counts(LEAST, 1.0, seed=9), counts(LEAST, 1.1)

    verdict = require_pace(PASS, green, blue, 1.0)

    assert verdict.kind == "wait"
    assert "at most 1.06 times as long" in verdict.waits
    assert require_pace(FAIL, green, blue, 1.0) == FAIL


def test_where_requests_are_late_in_clumps_more_of_them_are_needed() -> None:
    blue, green = counts(1500, 1.0, seed=9), counts(1500, 1.1)

    assert require_pace(WAIT, green, blue, 20.0).kind == "wait"


@pytest.mark.parametrize("few", [RequestCounts(total=900), counts(LEAST - 1, 1.2)])
def test_nothing_is_said_of_few_requests_or_of_uncounted_tokens(few: RequestCounts) -> None:
    assert compare_pace(few, counts(1500, 1.0), 1.0) is None
    assert require_pace(PASS, few, counts(1500, 1.0), 1.0) == PASS


def test_equal_releases_are_not_rolled_back_by_looking_every_second() -> None:
    failed = 0
    for seed in range(40):
        green, blue = NO_REQUESTS, NO_REQUESTS
        for second in range(150):
            green += counts(10, 1.0, seed=2 * seed + 1000 * second)
            blue += counts(10, 1.0, seed=2 * seed + 1 + 1000 * second)
            failed += require_pace(WAIT, green, blue, 1.0).kind == "fail"

    assert failed == 0


def paused(arm: RequestCounts, number: int) -> RequestCounts:
    """The same with requests in which the server stood still for seconds."""
    return arm + count_requests([answered(0.4)] * number)


def test_pauses_are_no_slower_pace_and_do_not_hide_one() -> None:
    blue = paused(counts(2700, 1.0, seed=9), 60)

    equal, slower = paused(counts(2700, 1.0), 110), paused(counts(2700, 1.1), 60)

    assert require_pace(PASS, equal, blue, 18.0) == PASS
    assert "tokens take 1.1" in require_pace(PASS, slower, blue, 18.0).why
    assert require_pace(PASS, counts(2700, 2.5), blue, 18.0).kind == "fail"  # all of them look paused


def test_at_the_limit_of_a_step_less_shows_that_it_is_slower() -> None:
    blue, green = counts(1500, 1.0, seed=9), counts(1500, 1.1)

    assert require_pace(WAIT, green, blue, 20.0, at_limit=True).kind == "fail"
    assert require_pace(WAIT, counts(1500, 1.0), blue, 20.0, at_limit=True) == WAIT


def test_what_runs_together_bounds_how_much_unpaused_requests_have_in_common() -> None:
    blue, green = paused(counts(2700, 1.0, seed=9), 60), paused(counts(2700, 1.0), 60)

    assert require_pace(PASS, green, blue, 300.0).kind == "wait"  # as late requests clump
    assert require_pace(PASS, green, blue, 300.0, seconds=2700.0) == PASS  # two at a time
    assert require_pace(PASS, green, blue, 300.0, seconds=90.0).kind == "wait"  # sixty at a time
