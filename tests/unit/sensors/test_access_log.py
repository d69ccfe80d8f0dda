from collections import Counter
from contextlib import suppress
from dataclasses import replace
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flettner.agent.domain.errors import SensorError
from flettner.sensors.proxy_requests.access_log import AccessRecord, OpenRequests, parse_record

BASE: dict[str, object] = {
    "id": "1",
    "server": "blue",
    "path": "/v1/completions?a=b",
    "code": 200,
    "flags": "-",
    "duration_ms": 1500,
    "ttft_us": 250_000,
}


def attempt(number: int = 1, **changed: object) -> AccessRecord:
    return parse_record("us", {**BASE, "attempt": str(number), **changed})


def end(attempts: int = 1, **changed: object) -> AccessRecord:
    fields = {"attempts": attempts, "type": "DownstreamEnd", "events": True, "done": True, "tokens": 7}
    fields["request_bytes"] = 120
    return parse_record("ds", {**BASE, **fields, **changed})


def running(age_ms: float, **changed: object) -> AccessRecord:
    fields = {"attempts": 1, "type": "DownstreamPeriodic", "duration_ms": age_ms, "ttft_us": None, "code": 0}
    return parse_record("ds", {**BASE, **fields, "stream": True, **changed})


@pytest.fixture
def ledger() -> OpenRequests:
    return OpenRequests(stalled_after_s=10.0, unstreamed_stalled_after_s=120.0)


def counts(ledger: OpenRequests, now_s: float = 0.0) -> Counter[tuple[str, str]]:
    return Counter((request.server, request.outcome) for request in ledger.take_decided(now_s))


def test_attempt_records_give_times_and_request_records_give_tokens(ledger: OpenRequests) -> None:
    ledger.add(attempt(), 0.0)
    ledger.add(end(duration_ms=1600), 0.1)

    (request,) = ledger.take_decided(0.2)

    assert (request.server, request.outcome, request.status) == ("blue", "ok", 200)
    assert (request.ttft_s, request.duration_s, request.tokens, request.request_bytes) == (0.25, 1.5, 7, 120)
    assert ledger.take_decided(9.0) == ()


def test_a_model_that_is_unknown_at_the_server_is_named(ledger: OpenRequests) -> None:
    ledger.add(attempt(code=404), 0.0)
    ledger.add(end(code=404, unknown_model="legal"), 0.1)

    (request,) = ledger.take_decided(0.2)

    assert (request.outcome, request.unknown_model) == ("refused", "legal")


def test_the_wait_in_the_proxy_is_not_of_the_server(ledger: OpenRequests) -> None:
    ledger.add(running(15_000, waited_ms=14_000), 0.0)
    held = end(duration_ms=16_000, waited_ms=14_000)

    ledger.add(held, 1.0)

    assert held.duration_s == 2.0
    assert counts(ledger, 9.0) == {("blue", "ok"): 1}


@pytest.mark.parametrize(
    ("identity", "began_s"), [("7-1700000000.250000000", 1_700_000_000.25), ("7-inf", None), ("other", None)]
)
def test_the_id_of_a_request_holds_the_time_of_its_arrival(identity: str, began_s: float | None) -> None:
    assert attempt(id=identity).began_s == began_s


def test_a_failure_is_reported_before_its_retry_ends(ledger: OpenRequests) -> None:
    ledger.add(attempt(1, server="green", code=503), 0.0)

    assert counts(ledger) == {("green", "failed"): 1}


STORIES = {
    "retried": ([attempt(1, server="green", code=0, flags="UC"), attempt(2), end(2)], {"failed", "ok"}),
    "cut": ([attempt(flags="UPE"), end(flags="UPE", done=False)], {"truncated"}),
    "no DONE": ([attempt(), end(done=False)], {"truncated"}),
    "no DONE where there is none": ([attempt(), end(done=False, path="/v1/responses")], {"ok"}),
    "not a stream": ([attempt(), end(done=False, events=False)], {"ok"}),
    "aborted": ([attempt(), end(aborted=True)], {"aborted"}),
    "an error in the stream": ([attempt(), end(error=True)], {"truncated"}),
    "left before the answer": ([attempt(code=0), end(code=0, flags="DC")], {"gave_up"}),
    "left in the middle": ([attempt(), end(done=False, flags="DC")], {"gave_up"}),
    "left at DONE": ([attempt(), end(flags="DC")], {"ok"}),
    "reset by an HTTP/2 client": ([attempt(), end(done=False, flags="DR")], {"gave_up"}),
    "refused": ([attempt(code=400), end(code=400, done=False, events=False)], {"refused"}),
    "refused at a limit": ([attempt(code=429), end(code=429, done=False, events=False)], {"refused"}),
    "refused, then left": ([attempt(code=404), end(code=404, done=False, flags="DC")], {"refused"}),
    "refused, then tried again": ([attempt(1, code=409), attempt(2), end(2)], {"refused", "ok"}),
    "cut while it refused": ([attempt(code=400, flags="UC"), end(code=400, flags="UC")], {"truncated"}),
    "left, as the server says": ([attempt(code=499), end(code=499, done=False, flags="DC")], {"gave_up"}),
    "too slow, then left": ([attempt(code=408), end(code=408, done=False, flags="DR")], {"gave_up"}),
    "too slow for the server": ([attempt(code=408), end(code=408, done=False)], {"refused"}),
    "no answer at all": ([attempt(code=0), end(code=0)], {"failed"}),
    "stalled, then cut": (
        [running(11_000), attempt(code=0, flags="UC"), end(code=503)],
        {"stalled", "failed"},
    ),
    "stalled, then left": (
        [running(11_000), running(13_000), attempt(code=0), end(flags="DC")],
        {"stalled", "gave_up"},
    ),
    "stalled, then answered": ([running(11_000), attempt(), end()], {"stalled", "ok"}),
    "slow": ([running(9_000), running(11_000, ttft_us=10_500_000), attempt(), end()], {"ok"}),
    "slow, not streamed": ([running(11_000, stream=None), attempt(), end()], {"ok"}),
    "silent, not streamed": ([running(121_000, stream=None)], {"stalled"}),
}


@pytest.mark.parametrize(("records", "outcomes"), list(STORIES.values()), ids=list(STORIES))
def test_each_way_a_request_can_end_has_an_outcome(
    ledger: OpenRequests, records: list[AccessRecord], outcomes: set[str]
) -> None:
    for record in records:
        ledger.add(record, 0.0)

    assert {outcome for _, outcome in counts(ledger)} == outcomes


@pytest.mark.parametrize("story", ["stalled, then cut", "stalled, then left", "stalled, then answered"])
def test_a_stalled_request_is_reported_once_and_its_end_says_that_it_stalled(
    ledger: OpenRequests, story: str
) -> None:
    for record in STORIES[story][0]:
        ledger.add(record, 0.0)
    first, last = ledger.take_decided(0.0)

    assert (first.outcome, first.stalled) == ("stalled", False)
    assert last.stalled
    assert ledger.take_decided(0.0) == ()


@given(seed=st.integers(), picked=st.lists(st.sampled_from(sorted(STORIES)), max_size=8))
def test_the_order_in_which_the_two_logs_arrive_does_not_matter(seed: int, picked: list[str]) -> None:
    kinds = [name for name in picked if "stalled" not in name and "silent" not in name]
    stories = [
        [replace(record, id=str(number)) for record in STORIES[kind][0]] for number, kind in enumerate(kinds)
    ]
    ordered, shuffled = (
        OpenRequests(stalled_after_s=10.0, unstreamed_stalled_after_s=120.0) for _ in range(2)
    )
    records = [record for story in stories for record in story]
    for record in records:
        ordered.add(record, 0.0)
    Random(seed).shuffle(records)  # noqa: S311  not a secret
    for record in records:
        shuffled.add(record, 0.0)

    assert counts(shuffled) == counts(ordered)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
NAMES = (
    *("id", "server", "path", "code", "flags", "attempt", "attempts", "duration_ms", "ttft_us", "tokens"),
    *("request_bytes", "type", "stream", "done", "error"),
)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["us", "ds"]) | st.text(max_size=3),
            st.fixed_dictionaries({name: st.sampled_from(["7", 200, 0, None]) | VALUES for name in NAMES}),
        ),
        max_size=5,
    )
)
def test_any_field_values_are_counted_or_rejected(records: list[tuple[str, dict[str, object]]]) -> None:
    ledger = OpenRequests(stalled_after_s=10.0, unstreamed_stalled_after_s=120.0)
    for tag, fields in records:
        with suppress(SensorError):
            ledger.add(parse_record(tag, fields), 0.0)

    for request in ledger.take_decided(1000.0):
        assert 0 <= request.duration_s < inf
        assert 0 <= (request.ttft_s or 0.0) < inf


def test_a_lost_request_record_loses_only_the_tokens_and_a_late_one_is_not_counted(
    ledger: OpenRequests,
) -> None:
    ledger.add(attempt(), 0.0)
    early, late = counts(ledger, 5.0), counts(ledger, 20.0)
    ledger.add(end(), 30.0)

    assert (early, late) == (Counter(), {("blue", "ok"): 1})
    assert counts(ledger, 40.0) == Counter()


def test_a_request_record_replaces_a_lost_attempt_record(ledger: OpenRequests) -> None:
    ledger.add(end(2, server="blue", code=503, done=False), 0.0)
    early, late = counts(ledger, 1.0), counts(ledger, 5.0)
    ledger.add(attempt(2, code=503), 6.0)

    assert (early, late) == (Counter(), {("blue", "failed"): 1})
    assert counts(ledger, 20.0) == Counter()


def test_a_request_without_a_server_counts_for_no_server(ledger: OpenRequests) -> None:
    ledger.add(end(0, server=None, code=404, flags="NR", done=False), 0.0)

    assert counts(ledger, 60.0) == Counter()


def test_pending_records_expire(ledger: OpenRequests) -> None:
    for number in range(100):
        ledger.add(attempt(id=str(number)), 0.0)
    ledger.take_decided(20.0)
    ledger.take_decided(1000.0)

    assert not ledger._open


@pytest.mark.parametrize(
    ("tag", "changed"),
    [
        ("xx", {}),
        ("us", {"code": "many"}),
        ("us", {"duration_ms": [1]}),
        ("us", {"duration_ms": float("nan")}),
        ("us", {"attempt": float("inf")}),
        ("ds", {}),
    ],
    ids=str,
)
def test_a_record_of_another_format_is_an_error_of_the_source(tag: str, changed: dict[str, object]) -> None:
    with pytest.raises(SensorError, match="of another format"):
        parse_record(tag, {**BASE, "attempt": 1, **changed})


@pytest.mark.parametrize(
    ("records", "lost"),
    [
        ([attempt(code=503, flags="UF"), attempt(2, server="green"), end(2, server="green")], ()),
        ([attempt(code=503, flags="UF"), end(code=503, flags="URX")], ("blue",)),
        ([attempt(code=200, flags="UC"), end(flags="UC", done=False)], ("blue",)),
        ([attempt(code=0, flags="DC"), end(code=0, flags="DC", done=False)], ()),
        ([attempt(code=404), end(code=404)], ()),
    ],
    ids=["answered by another server", "no server answered", "cut", "the client left", "refused"],
)
def test_a_request_is_lost_if_its_client_got_no_whole_answer_from_any_server(
    ledger: OpenRequests, records: list[AccessRecord], lost: tuple[str, ...]
) -> None:
    for record in records:
        ledger.add(record, 0.0)
    ledger.take_decided(20.0)

    assert ledger.take_lost() == lost
    assert ledger.take_lost() == ()
