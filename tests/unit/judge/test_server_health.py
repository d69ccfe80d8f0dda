"""When a server fails, and when it is back."""

from datetime import timedelta

import pytest

from flettner.agent.domain.reading import EngineLiveness
from flettner.agent.domain.request_counts import ClientBucket, RequestCounts
from flettner.agent.domain.server_health import Failure, FailureKind, ServerHealth
from flettner.agent.judge.server_health import (
    begin_failure,
    end_failure,
    find_failure,
    is_back,
    is_well,
    update_health,
)
from tests.support.machine_stories import NOON

WELL = EngineLiveness(age_s=0.5, running=6, waiting=0, tokens=40.0)
STUCK = EngineLiveness(age_s=0.5, running=6, waiting=0, tokens=0.0)
LOST = EngineLiveness(age_s=5.0, running=6, waiting=0, tokens=40.0, lost=True)
PAUSED = EngineLiveness(age_s=1.0, running=6, waiting=0, tokens=40.0, paused=True)
NOTHING = RequestCounts()


def after(
    seconds: int, engine: EngineLiveness, counts: RequestCounts = NOTHING, health: ServerHealth | None = None
) -> ServerHealth:
    updated = health or ServerHealth()
    for _ in range(seconds):
        updated = update_health(updated, engine, counts)
    return updated


def kind(health: ServerHealth, *others: ServerHealth) -> str:
    failure = find_failure(health, others)
    return failure[0] if failure else ""


GOOD = after(30, WELL, RequestCounts(total=5))


@pytest.mark.parametrize(("seconds", "failure"), [(4, ""), (5, "silent")])
def test_a_server_that_answers_neither_scrapes_nor_requests_is_silent(seconds: int, failure: str) -> None:
    assert kind(after(seconds, LOST)) == failure


def test_a_server_that_answers_requests_is_not_silent() -> None:
    assert kind(after(60, LOST, RequestCounts(total=1))) == ""


def test_a_paused_container_fails_at_once() -> None:
    assert kind(after(1, PAUSED)) == "paused"


def test_a_server_without_tokens_is_wedged_at_once_only_beside_one_that_computes() -> None:
    assert kind(after(10, STUCK), GOOD) == "wedged"
    assert kind(after(10, STUCK)) == ""
    assert kind(after(10, STUCK), after(10, STUCK)) == ""
    assert kind(after(60, STUCK)) == "wedged"


def test_a_long_prompt_alone_is_no_failure() -> None:
    prefill = EngineLiveness(age_s=0.5, running=1, waiting=0, tokens=0.0)
    assert kind(after(59, prefill), GOOD) == ""


def test_a_slow_server_does_not_fail() -> None:
    late = RequestCounts(total=1, late=1, stalled=5, queued=5)
    assert kind(after(300, WELL, late), GOOD) == ""


@pytest.mark.parametrize(("errors", "failure"), [(2, ""), (5, "errors"), (10, "errors")])
def test_half_of_the_requests_fail_while_those_of_another_server_do_not(errors: int, failure: str) -> None:
    assert kind(after(30, WELL, RequestCounts(total=10, errors=errors)), GOOD) == failure


def test_errors_count_only_beside_a_server_without_them_at_the_same_time() -> None:
    bad = RequestCounts(total=10, errors=8)
    failing = after(30, WELL, bad)
    assert kind(failing, after(30, WELL, bad)) == ""
    assert kind(failing) == ""
    assert kind(after(1, WELL, health=failing), GOOD) == ""


def test_a_server_that_refuses_connections_fails_after_five_of_them() -> None:
    refused = RequestCounts(total=1, errors=1, unreached=1)
    assert kind(after(4, WELL, refused)) == ""
    assert kind(after(5, WELL, refused)) == "unreached"
    assert kind(after(5, WELL, refused), after(30, WELL, refused)) == ""


def test_a_silent_server_is_back_after_five_answered_scrapes() -> None:
    silent = after(5, LOST)
    failure = begin_failure(silent, "silent", "is frozen", NOON)
    assert not is_back(after(4, WELL, health=silent), failure, NOON)
    assert is_back(after(5, WELL, health=silent), failure, NOON)


def test_a_wedged_server_is_back_when_it_computes_tokens() -> None:
    failure = begin_failure(ServerHealth(), "wedged", "stands still", NOON)
    assert not is_back(after(5, STUCK), failure, NOON + timedelta(hours=1))
    assert is_back(after(1, WELL), failure, NOON)


def test_a_server_that_failed_again_soon_waits_twice_as_long() -> None:
    health, at, waits = ServerHealth(), NOON, list[float]()
    for _ in range(7):
        failure = begin_failure(health, "errors", "fails", at)
        waited = 0
        while not is_back(after(1, WELL, health=health), failure, at + timedelta(seconds=waited)):
            waited += 1
        at += timedelta(seconds=waited)
        waits.append(waited)
        health = end_failure(health, failure, at)
    assert waits == [60, 120, 240, 480, 960, 960, 960]
    later = begin_failure(health, "errors", "fails", at + timedelta(minutes=11))
    assert later.times == 1


@pytest.mark.parametrize("how", ["errors", "unreached", "silent", "paused"])
def test_answered_scrapes_end_the_wait_of_a_needed_server(how: FailureKind) -> None:
    failure = Failure(kind=how, why="fails", since=NOON, times=5)

    assert is_back(after(5, WELL), failure, NOON, "hang")
    assert not is_back(after(4, WELL), failure, NOON, "hang")
    assert is_back(after(80, WELL), failure, NOON, "fail")
    assert not is_back(after(79, WELL), failure, NOON, "fail")
    assert not is_back(after(5, WELL), failure, NOON)


def test_a_needed_server_that_stands_still_is_not_back() -> None:
    failure = Failure(kind="wedged", why="stands still", since=NOON)

    assert not is_back(after(60, STUCK), failure, NOON, "hang")


def test_a_clock_that_was_set_back_delays_no_trial() -> None:
    failure = begin_failure(ServerHealth(), "errors", "fails", NOON)

    assert is_back(after(1, WELL), failure, NOON - timedelta(hours=1))
    assert not is_back(after(1, WELL), failure, NOON + timedelta(seconds=30))


def test_only_a_server_whose_scrapes_are_answered_is_well() -> None:
    assert is_well(after(1, WELL))
    assert not is_well(after(1, LOST))
    assert not is_well(after(1, PAUSED))
    assert not is_well(None)


def test_another_process_begins_with_a_clean_record() -> None:
    failed = after(30, STUCK, RequestCounts(total=10, errors=8))
    restarted = EngineLiveness(age_s=0.5, running=0, waiting=0, tokens=None, restarted=True)
    fresh = update_health(failed, restarted, NOTHING)
    assert (fresh.of, fresh.bad, fresh.still_s) == (0, 0, 0)


def test_one_client_that_fails_at_the_server_of_its_session_is_no_failure() -> None:
    mine, others = RequestCounts(total=1, errors=1), RequestCounts(total=1)
    pinned, by_chance = {ClientBucket(3, pinned=True): mine}, {ClientBucket(3, pinned=False): mine}
    well = ServerHealth(of=20.0)

    def health(clients: dict[ClientBucket, RequestCounts], other: RequestCounts) -> ServerHealth:
        now = ServerHealth()
        for _ in range(60):
            now = update_health(now, WELL, mine + other, clients)
        return now

    assert find_failure(health(by_chance, others), [well]) is not None
    assert find_failure(health(pinned, others), [well]) is None
    assert find_failure(health(pinned, mine), [well]) is not None
