"""Rules Q3, Q4 and N1: when each fires, does not fire, and is outranked."""

from dataclasses import replace

import pytest

from flettner.agent.domain.model import Bound, Proposal
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Queue, Reading, TimeShares
from flettner.policies.admission import Admission
from flettner.policies.conformance.readings import a_context, a_reading, late, promoted, rising, steady
from flettner.policies.queue_notes import QueueNotes
from flettner.vllm_facts.values import Value
from tests.support.proposals import precedence

SEQS, BUDGET = "max_num_seqs", "max_num_batched_tokens"
BACKLOG = a_reading(waiting=120)
STALL = a_reading(running=4, waiting=5)
SETTING: dict[str, Value] = {SEQS: 16, "speculative_config": '{"method": "ngram"}', "async_scheduling": False}
FULL_HOUSE = a_reading(running=16, waiting=20, ttft=late(0.4))
BOUNDS = {SEQS: Bound(max=16), BUDGET: Bound(max=2048)}
AT_BOUNDS = a_context({SEQS: 16, BUDGET: 2048}, bounds=BOUNDS)


def proposed(reading: Reading, context: Context) -> dict[str, Proposal]:
    return {proposal.rule: proposal for proposal in QueueNotes().propose(reading, context)}


def test_more_than_a_hundred_waiting_requests_are_a_critical_backlog() -> None:
    note = proposed(BACKLOG, a_context())["Q3"]

    assert (note.klass, dict(note.to)) == ("note", {})
    assert "120 requests waited (more than 100)" in note.why


@pytest.mark.parametrize(
    "reading",
    [
        pytest.param(a_reading(waiting=100), id="a hundred"),
        pytest.param(a_reading(waiting=rising(0, 300)), id="in one half only"),
        pytest.param(replace(BACKLOG, coverage=0.7), id="scrapes are missing"),
    ],
)
def test_q3_proposes_nothing(reading: Reading) -> None:
    assert not proposed(reading, a_context())


def test_queue_below_the_cap_with_a_free_cache_names_possible_blockers() -> None:
    note = proposed(STALL, a_context(SETTING))["Q4"]

    assert note.klass == "note"
    assert "5.0 requests waited while at most 4 ran (max_num_seqs is 16)" in note.why
    assert "speculative decoding" in note.expects
    assert "async_scheduling (it is off)" in note.expects


@pytest.mark.parametrize(
    ("reading", "context"),
    [
        pytest.param(replace(STALL, running=steady(16)), a_context(SETTING), id="the cap explains it (Q1)"),
        pytest.param(replace(STALL, kv_usage=steady(0.9)), a_context(SETTING), id="the cache does"),
        pytest.param(replace(STALL, kv_usage=None), a_context(SETTING), id="the cache is not known"),
        pytest.param(replace(STALL, preemptions_per_s=steady(0.1)), a_context(SETTING), id="it preempts"),
        pytest.param(STALL, a_context({}), id="no cap is known, and it may be the level that it keeps"),
        pytest.param(replace(STALL, waiting=rising(0, 5)), a_context(SETTING), id="not all the time"),
        pytest.param(replace(STALL, coverage=0.7), a_context(SETTING), id="scrapes are missing"),
    ],
)
def test_q4_proposes_nothing(reading: Reading, context: Context) -> None:
    assert "Q4" not in proposed(reading, context)


def test_queue_far_below_the_default_cap_is_caused_by_prefill() -> None:
    """No flag is given and no plateau exists: 8,000-token prompts arrive faster than they finish."""
    prefills = replace(
        STALL,
        running=rising(4, 8),
        waiting=steady(60),
        prompt_tokens_per_s=steady(16_000),
        generation_tokens_per_s=steady(80),
    )
    note = proposed(prefills, a_context({}))["Q4"]

    assert "max_num_seqs is not given, vLLM's own is 128 or more" in note.why
    assert "16000 tokens/s of prompts, 80 of answers: prefill is the limit" in note.expects


def test_recommends_replicas_if_every_knob_is_at_its_bound() -> None:
    note = proposed(FULL_HOUSE, AT_BOUNDS)["N1"]

    assert note.klass == "note"
    assert "40.0% of the requests missed their TTFT" in note.why
    assert note.why.endswith("20.0 waiting / 16.0 running on one server make 2 more")
    assert note.expects == "capacity: 2 more replica(s) like this one"


def test_full_cache_on_a_full_gpu_recommends_replicas() -> None:
    thrash = replace(FULL_HOUSE, kv_usage=steady(0.99))

    assert "N1" in proposed(thrash, a_context({"gpu_memory_utilization": 0.92}))
    assert "N1" not in proposed(thrash, a_context({"gpu_memory_utilization": 0.8}))


@pytest.mark.parametrize(
    ("reading", "setting", "is_noted"),
    [
        pytest.param(FULL_HOUSE, {SEQS: 16}, False, id="the cap may rise"),
        pytest.param(
            replace(FULL_HOUSE, kv_usage=steady(0.85)),
            {SEQS: 16, "gpu_memory_utilization": 0.8},
            False,
            id="the share may rise",
        ),
        pytest.param(
            replace(FULL_HOUSE, kv_usage=steady(0.85)),
            {SEQS: 16, "gpu_memory_utilization": 0.92},
            True,
            id="no more cache for more sequences",
        ),
    ],
)
def test_token_budget_is_no_remedy_for_decode_load(
    reading: Reading, setting: dict[str, Value], is_noted: bool
) -> None:
    decoding = replace(reading, generation_tokens_per_s=steady(900))

    assert ("N1" in proposed(decoding, a_context(setting))) is is_noted


@pytest.mark.parametrize(
    ("reading", "context"),
    [
        pytest.param(replace(FULL_HOUSE, ttft=late(0.01)), AT_BOUNDS, id="the promise is kept"),
        pytest.param(replace(FULL_HOUSE, ttft=late(0.4, count=5)), AT_BOUNDS, id="too few requests"),
        pytest.param(replace(FULL_HOUSE, waiting=steady(0)), AT_BOUNDS, id="nothing waits"),
        pytest.param(replace(FULL_HOUSE, waiting=rising(38, 2)), AT_BOUNDS, id="it empties by itself"),
        pytest.param(FULL_HOUSE, replace(AT_BOUNDS, bounds={}), id="the cap may rise"),
        pytest.param(FULL_HOUSE, replace(AT_BOUNDS, bounds={SEQS: Bound(max=16)}), id="the budget may rise"),
        pytest.param(
            FULL_HOUSE,
            replace(AT_BOUNDS, outcomes=(promoted(SEQS, 8, 16, ago_s=60),)),
            id="the last change has not shown yet",
        ),
        pytest.param(replace(FULL_HOUSE, coverage=0.7), AT_BOUNDS, id="scrapes are missing"),
    ],
)
def test_n1_proposes_nothing(reading: Reading, context: Context) -> None:
    assert "N1" not in proposed(reading, context)


def test_raisable_cap_outranks_every_queue_note() -> None:
    busy = a_reading(
        running=16,
        waiting=120,
        ttft=late(0.4),
        ttft_shares=TimeShares(queue=1.0),
        queue=Queue(running=16.0, kv_usage=0.2, wait_s=9.0),
    )

    assert precedence(busy, a_context({SEQS: 16}), QueueNotes(), Admission())[0] == ["Q1", "Q3"]
