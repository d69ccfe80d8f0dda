"""What one client can do to the verdict."""

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from pydantic import TypeAdapter

from flettner.agent.domain.canary_evidence import GREEN, CanaryEvidence, EvidenceStream
from flettner.agent.domain.model import Step
from flettner.agent.domain.request_counts import CLIENT_BUCKETS, ClientBucket, RequestCounts
from flettner.agent.domain.verdict import Verdict
from flettner.agent.judge.canary.clients import GROUPS, chosen_by_clients, divide_buckets, log_worse
from flettner.agent.judge.wording import describe_counts
from tests.unit.judge.test_judge import HOLD, PARITY, Canary, served

MANY = 900  # seconds
BEFORE_GROUPS = ("name", "usual", "margin", "tolerance", "requests", "ticks", "pending", "wide", "counted")
KINDS = ("refused", "errors", "gave_up", "slow")


def bad(kind: str, count: int) -> RequestCounts:
    return served(count if kind in ("errors", "slow") else 0, **{kind: count})  # type: ignore[arg-type]


def run(
    canary: Canary,
    green: RequestCounts,
    blue: RequestCounts,
    clients: Mapping[str, Mapping[int, RequestCounts]],
    *,
    pinned: bool = True,
    seconds: int = MANY,
) -> Verdict:
    """Repeat a second in which `clients`, by server and group, send in addition to the others."""
    alone = canary.step.weight == 100
    sent = [
        (server, {ClientBucket(group, pinned): counts for group, counts in groups.items()})
        for server, groups in clients.items()
    ]
    left_out = chosen_by_clients(sent, range(CLIENT_BUCKETS), alone=alone)
    arms = {GREEN: green, "b": blue}
    for server, groups in clients.items():
        arms[server] = sum(groups.values(), arms[server])
    for _ in range(seconds):
        beside = None if alone else arms["b"]
        if canary.update(arms[GREEN], beside, clients=left_out).kind in {"pass", "fail", "futile"}:
            break
    return canary.verdict


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 10])
def test_one_client_of_green_with_bad_requests_only_cannot_roll_it_back(kind: str, count: int) -> None:
    canary = Canary(PARITY)

    verdict = run(canary, served(5), served(5), {GREEN: {3: bad(kind, count)}})

    assert verdict.kind == "pass" or count == 10  # a client with two thirds of green's load: not comparable
    assert verdict.kind != "fail"


@pytest.mark.parametrize("kind", KINDS)
def test_the_requests_of_a_client_whose_server_chance_chose_count(kind: str) -> None:
    canary = Canary(PARITY)

    verdict = run(canary, served(5), served(5), {GREEN: {3: bad(kind, 2)}}, pinned=False)

    assert verdict.kind == "fail"


@pytest.mark.parametrize("kind", ["refused", "errors", "gave_up", "slow"])
def test_one_client_that_turns_bad_under_full_load_cannot_roll_green_back(kind: str) -> None:
    canary = Canary(HOLD, baseline_s=60.0)

    verdict = run(canary, served(9), RequestCounts(), {GREEN: {3: bad(kind, 1)}}, pinned=False)

    assert verdict.kind == "pass"


def test_a_bad_green_does_not_pass_because_one_client_pins_bad_requests_to_blue() -> None:
    def second(blue: Mapping[int, RequestCounts]) -> Verdict:
        return run(Canary(PARITY), served(25, errors=1), served(25), {"b": blue}, seconds=300)

    assert second({3: bad("errors", 2)}).kind != "pass"
    assert second({}).kind == "fail"


def test_good_requests_that_one_client_pins_to_blue_do_not_make_green_look_worse() -> None:
    green, blue = served(25, errors=1), served(25, errors=1)

    verdict = run(Canary(PARITY, baseline=served(600, errors=24)), green, blue, {"b": {3: served(25)}})

    assert verdict.kind != "fail"


@pytest.mark.parametrize(("late", "passes"), [(1, False), (0, True)])
def test_good_requests_that_one_client_pins_to_green_are_no_gain_over_a_late_baseline(
    late: int, *, passes: bool
) -> None:
    """A fifth of the baseline is late. With the client only a tenth of green's requests are."""
    canary = Canary(PARITY, baseline=served(600, slow=120), gain_needed="if_missed")

    verdict = run(canary, served(5, slow=late), served(5, slow=late), {GREEN: {3: served(5)}})

    assert (verdict.kind == "pass") is passes, verdict.why


def test_bad_requests_of_many_clients_roll_green_back() -> None:
    spread = {group: served(2, errors=int(group % 2)) for group in range(8)}

    verdict = run(Canary(PARITY), served(), served(), {GREEN: spread, "b": {g: served(2) for g in range(8)}})

    assert verdict.kind == "fail"


def test_the_clients_that_send_most_have_a_group_each_and_the_others_share_groups_of_one_size() -> None:
    requests = {"7": 900, "23": 400, "39": 200, **{str(bucket): 20 for bucket in range(40, 64)}}

    groups = divide_buckets(requests)

    heavy = [groups[7], groups[23], groups[39]]
    assert all(groups.count(group) == 1 for group in heavy)
    sizes = [
        sum(requests.get(str(b), 0) for b in range(64) if groups[b] == g) for g in set(groups) - {*heavy}
    ]
    assert max(sizes) - min(sizes) <= 20
    assert {*divide_buckets({})} == {*range(GROUPS)}


def test_the_group_that_alone_speaks_against_green_is_set_aside_and_named() -> None:
    canary = Canary(replace(PARITY, requests=10_000))

    run(canary, served(5), served(5), {GREEN: {3: bad("refused", 2)}}, seconds=120)

    refused = stream_of(canary, "refused")
    assert refused.set_aside == "3"
    assert log_worse(refused) < 1
    assert stream_of(canary, "errors").set_aside == ""
    assert "one client, with 240 of green's 240, is not judged" in describe_counts(refused)


def test_where_clients_differ_widely_by_themselves_the_evidence_is_weak() -> None:
    blue = {group: served(4, errors=2 if group in (2, 5) else 0) for group in range(16)}
    green = {group: served(4, errors=2 if group in (1, 2, 4, 5, 7) else 0) for group in range(16)}
    canary, alike = Canary(PARITY), Canary(PARITY)

    run(canary, served(), served(), {GREEN: green, "b": blue}, seconds=30)
    run(alike, served(64, errors=10), served(64, errors=4), {}, seconds=30)

    assert stream_of(canary, "errors").effect > 3
    assert log_worse(stream_of(canary, "errors")) < log_worse(stream_of(alike, "errors")) / 3


def test_a_restart_drops_the_open_ticks_of_each_group() -> None:
    canary = Canary(PARITY)
    run(canary, served(5), served(5), {GREEN: {3: served(1)}}, seconds=7)

    resumed = canary.evidence.resumed()

    assert all(not any(s.without["3"].pending) and not s.without["3"].wide for s in resumed.streams)
    assert not any(resumed.goodput.without["3"].pending)


def test_evidence_that_is_written_is_read_as_it_was_and_older_evidence_has_no_groups() -> None:
    canary = Canary(PARITY)
    run(canary, served(5), served(5), {GREEN: {3: bad("refused", 2)}}, seconds=60)
    written = TypeAdapter(CanaryEvidence).dump_json(canary.evidence)

    assert TypeAdapter(CanaryEvidence).validate_json(written) == canary.evidence
    older = {key: value for key, value in json.loads(written)["streams"][0].items() if key in BEFORE_GROUPS}
    assert TypeAdapter(EvidenceStream).validate_python(older).without == {}


def test_below_parity_one_client_cannot_roll_green_back_by_half_of_its_requests() -> None:
    smoke = Step(weight=5, requests=20, at_least_s=30, at_most_s=600)

    verdict = run(Canary(smoke), served(1), served(19), {GREEN: {3: bad("refused", 2)}}, seconds=100)

    assert verdict.kind != "fail"


def stream_of(canary: Canary, name: str) -> EvidenceStream:
    return next(stream for stream in canary.evidence.streams if stream.name == name)
