"""Rules HC1 to HC7: what makes a server unfit to be tuned, what does not, and that every change waits."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from flettner.agent.domain.model import Slo
from flettner.agent.domain.reading import EngineWindow, Health, Incident, Reading, RequestOutcome, Trend
from flettner.policies import health as policy
from flettner.policies.admission import Admission
from flettner.policies.conformance.readings import NOON, a_context, a_reading, rising, steady
from flettner.policies.graphs import Graphs
from flettner.policies.queue_notes import QueueNotes
from tests.support.proposals import precedence

BUSY = a_reading(running=16, waiting=4, answer_tokens=300.0)


def rules(reading: Reading, slo: Slo | None = None) -> list[str]:
    context = a_context(slo=slo) if slo else a_context()
    return [note.rule for note in policy.Health().propose(reading, context)]


def with_health(health: Health) -> Reading:
    return replace(BUSY, health=health)


def ended(**counts: float) -> Reading:
    return with_health(Health(ended=counts))


def seen(counts: Mapping[RequestOutcome, int], **rejected: float) -> Reading:
    return replace(BUSY, requests=counts, health=Health(rejected=rejected))


def engine(
    running: float, waiting: float = 0.0, *, tokens: float = 5_000.0, ends: float = 50.0
) -> EngineWindow:
    return EngineWindow(running=steady(running), waiting=steady(waiting), tokens=tokens, ended=ends)


def engines(*windows: EngineWindow) -> Reading:
    return with_health(Health(engines={str(number): window for number, window in enumerate(windows)}))


def test_a_server_that_fails_half_of_its_requests_is_not_healthy() -> None:
    (note,) = policy.Health().propose(ended(stop=50.0, error=50.0), a_context())

    assert (note.rule, note.klass, dict(note.to)) == ("HC3", "note", {})
    assert note.why == (
        "50 of 100 requests (50.0%) failed in 30 s: 50 ended with an error, 0 were answered 5xx; "
        "the SLO allows 0.10%"
    )


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        pytest.param(ended(stop=33.0, error=2.0), [], id="2 of 35 prove nothing"),
        pytest.param(ended(stop=4.0, error=4.0), [], id="four failures are few"),
        pytest.param(ended(stop=5.0, error=5.0), ["HC3"], id="half of ten"),
        pytest.param(ended(stop=995.0, error=5.0), [], id="5 of 1000 are within the burn rate"),
        pytest.param(ended(stop=960.0, error=40.0), ["HC3"], id="4 % of many"),
        pytest.param(
            with_health(Health(ended={"stop": 60.0}, answered={"2xx": 60.0, "5xx": 40.0})), ["HC3"], id="5xx"
        ),
        pytest.param(
            with_health(Health(ended={"stop": 60.0}, answered={"2xx": 60.0, "4xx": 40.0})),
            [],
            id="requests with a mistake of the client",
        ),
        pytest.param(seen({"ok": 60, "failed": 20, "truncated": 20}), ["HC3"], id="as the proxy saw it"),
        pytest.param(seen({"ok": 60, "gave_up": 40, "refused": 20}), [], id="clients that gave up"),
        pytest.param(
            seen({"ok": 60, "failed": 40}, max_num_queued_reqs=40.0), ["HC4"], id="rejected, not failed"
        ),
        pytest.param(
            with_health(
                Health(
                    ended={"stop": 60.0},
                    answered={"2xx": 60.0, "5xx": 40.0},
                    rejected={"max_num_queued_reqs": 40.0},
                )
            ),
            ["HC4"],
            id="503 by admission",
        ),
        pytest.param(ended(stop=97.0, abort=3.0), [], id="few aborts"),
        pytest.param(ended(stop=70.0, abort=30.0), ["HC5"], id="many aborts"),
        pytest.param(seen({"ok": 70, "aborted": 30}), ["HC5"], id="aborts that the proxy saw"),
        pytest.param(with_health(Health(restarts=1)), ["HC2"], id="a restart"),
        pytest.param(
            replace(with_health(Health(restarts=1)), coverage=0.2), ["HC2"], id="with few scrapes since"
        ),
        pytest.param(BUSY, [], id="nothing is reported"),
    ],
)
def test_shares_of_requests_are_tested_not_compared(reading: Reading, expected: list[str]) -> None:
    assert rules(reading) == expected


def test_an_slo_that_allows_more_errors_is_burnt_later() -> None:
    failing = ended(stop=90.0, error=10.0)

    assert rules(failing) == ["HC3"]
    assert rules(failing, Slo(errors=0.99)) == []


HANGING = a_reading(running=8, waiting=3, prompt_tokens=0.0, answer_tokens=0.0)


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        pytest.param(HANGING, ["HC1"], id="requests run, no token advances"),
        pytest.param(replace(HANGING, kv_usage=None), ["HC1"], id="cache usage is unknown"),
        pytest.param(replace(HANGING, kv_usage=rising(0.2, 0.3)), [], id="a long prompt fills the cache"),
        pytest.param(replace(HANGING, span_s=5.0), [], id="a window of 5 s"),
        pytest.param(replace(HANGING, coverage=0.5), [], id="scrapes are missing"),
        pytest.param(engines(engine(8), engine(8, tokens=0.0, ends=0.0)), ["HC1"], id="one of two engines"),
        pytest.param(engines(engine(8), engine(8)), [], id="two engines alike"),
        pytest.param(engines(engine(30, 20), engine(2)), ["HC6"], id="one queues, the other is nearly free"),
        pytest.param(engines(engine(30, 20), engine(28)), [], id="one queues, the other is full"),
        pytest.param(
            engines(engine(8, ends=40), engine(0, tokens=0.0, ends=0)), ["HC6"], id="one gets nothing"
        ),
        pytest.param(
            engines(engine(3, ends=3), engine(0, tokens=0.0, ends=0)), [], id="three may all go to one"
        ),
    ],
)
def test_hangs_and_imbalance_are_found_engine_by_engine(reading: Reading, expected: list[str]) -> None:
    assert rules(reading) == expected


@pytest.mark.parametrize(
    ("deferred", "expected"),
    [
        pytest.param(steady(3.0), ["HC7"], id="most of the queue, all the time"),
        pytest.param(steady(1.5), [], id="less than half of the queue"),
        pytest.param(Trend(mean=3, low=0, high=6, early=3, late=3), [], id="not all the time"),
        pytest.param(None, [], id="an older vLLM"),
    ],
)
def test_deferred_requests_wait_for_no_flag(deferred: Trend | None, expected: list[str]) -> None:
    assert rules(with_health(Health(deferred=deferred))) == expected


def test_a_few_deferred_requests_beside_many_that_run_are_a_kv_transfer_at_work() -> None:
    busy = a_reading(running=200, waiting=4)

    assert rules(replace(busy, health=Health(deferred=steady(4.0)))) == []


def test_an_oom_is_left_to_its_own_rule() -> None:
    oom = Incident(at=NOON, server="chat-r0", what="oom", why="killed")

    assert rules(replace(ended(stop=50.0, error=50.0), incidents=(oom,))) == []


def test_every_change_waits_while_the_server_is_not_healthy() -> None:
    context = a_context({"max_num_seqs": 16, "enforce_eager": True})
    policies = (Admission(), Graphs(), QueueNotes(), policy.Health())

    winners, outranked = precedence(ended(stop=50.0, error=50.0), context, *policies)

    assert (winners, outranked) == (["HC3"], {"Q1": "HC3", "G1": "HC3"})
