"""Admission of proposals, and the reasons of refusals."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flettner.actuators.vllm.outage import predict_outage
from flettner.actuators.vllm.sleep import SleepVerdict
from flettner.actuators.vllm.start_times import StartTimes
from flettner.agent.domain.error_budget import Budget
from flettner.agent.domain.fleet import Fleet
from flettner.agent.domain.model import (
    Bound,
    Forecast,
    Hold,
    Objective,
    Outcome,
    Plan,
    PreflightResult,
    Proposal,
    Slo,
    Strategy,
)
from flettner.agent.domain.reading import Latency, Reading
from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.domain.state import State
from flettner.agent.domain.suggestion import Suggestion
from flettner.agent.machine.default_plan import plan_for
from flettner.agent.machine.guard import Guard, ProposalRefusal
from flettner.vllm_facts.knobs import KNOBS
from flettner.vllm_facts.values import Value
from tests.support.machine_stories import BLUE, NOON, PLAN, reading

GUARD = Guard(
    bounds={"max_num_seqs": Bound(min=2, max=64, octaves=1)},
    cooldown_s=600,
    changes_per_day=2,
)
STATE = State(target="chat", fleet=Fleet(servers=(BLUE,)))
SEEN = reading(NOON)


def proposal(value: Value = 8, knob: str = "max_num_seqs") -> Proposal:
    return Proposal(rule="Q1", to={knob: value}, why="12 wait", expects="less", risks="KV", source="test")


def admit(
    to: Proposal, state: State = STATE, guard: Guard = GUARD, seen: Reading | None = SEEN
) -> Suggestion | ProposalRefusal:
    return guard.admit(state, to, policy="admission", at=NOON, reading=seen)


def test_a_step_inside_the_bounds_is_unchanged() -> None:
    suggestion = admit(proposal(8))

    assert isinstance(suggestion, Suggestion)
    assert suggestion.proposal.to == {"max_num_seqs": 8}
    assert suggestion.before == {"max_num_seqs": 4}


@pytest.mark.parametrize(
    ("wanted", "bound", "value", "note"),
    [
        (32, Bound(min=2, max=64, octaves=1), 8, "one change is at most a factor of 2 from 4"),
        (32, Bound(min=2, max=64, octaves=3), 32, ""),
        (32, Bound(min=2, max=12, octaves=3), 12, "the bounds are 2 to 12"),
        (1, Bound(min=2, max=64, octaves=3), 2, "the bounds are 2 to 64"),
        (1, Bound(min=1, max=64, octaves=1), 2, "one change is at most a factor of 2 from 4"),
    ],
)
def test_a_clamped_value_is_reported(wanted: int, bound: Bound, value: int, note: str) -> None:
    suggestion = admit(proposal(wanted), guard=replace(GUARD, bounds={"max_num_seqs": bound}))

    assert isinstance(suggestion, Suggestion)
    assert suggestion.proposal.to == {"max_num_seqs": value}
    assert note in " ".join(suggestion.notes)


NGRAM = '{"method": "ngram", "num_speculative_tokens": 4}'


@pytest.mark.parametrize(
    ("wanted", "bounds", "admitted"),
    [
        (NGRAM.replace("4", "2"), {}, True),
        (None, {}, True),
        (NGRAM.replace("ngram", "suffix"), {}, False),
        (NGRAM.replace("4", "2"), {"speculative_config": Bound(allowed=(NGRAM,))}, False),
    ],
    ids=["fewer drafts", "none", "another method", "a bound of the operator"],
)
def test_drafts_may_become_fewer_or_none_without_a_bound(
    wanted: Value, bounds: dict[str, Bound], admitted: bool
) -> None:
    speculating = replace(BLUE, setting={**BLUE.setting, "speculative_config": NGRAM})
    state = State(target="chat", fleet=Fleet(servers=(speculating,)))

    answer = admit(proposal(wanted, "speculative_config"), state, replace(GUARD, bounds=bounds))

    assert isinstance(answer, Suggestion) is admitted


def test_a_bound_on_the_other_side_never_turns_a_raise_into_a_cut() -> None:
    refusal = admit(proposal(8), guard=replace(GUARD, bounds={"max_num_seqs": Bound(min=1, max=2)}))

    assert isinstance(refusal, ProposalRefusal)
    assert "out of reach" in refusal.why


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (5000, "max_num_seqs=5000 was requested, at most 64 is allowed; request such a value, or widen"),
        (1, "max_num_seqs=1 was requested, at least 2 is allowed"),
    ],
)
def test_an_operators_value_outside_the_bounds_is_refused_and_never_changed(wanted: int, why: str) -> None:
    guard = replace(GUARD, bounds={"max_num_seqs": Bound(min=2, max=64)})

    refusal = guard.admit_asked(STATE, proposal(wanted), actor="alice", at=NOON)

    assert isinstance(refusal, ProposalRefusal)
    assert why in refusal.why


@pytest.mark.parametrize(
    ("wanted", "most"), [(128, ""), (129, "at most 128 is allowed in one change from 4")]
)
def test_a_persons_step_is_bounded_where_the_operator_set_no_range(wanted: int, most: str) -> None:
    guard = replace(GUARD, bounds={})
    wide = replace(GUARD, bounds={"max_num_seqs": Bound(max=1000)})

    admitted = guard.admit_asked(STATE, proposal(wanted), actor="alice", at=NOON)

    assert (most in admitted.why) if isinstance(admitted, ProposalRefusal) else not most
    assert isinstance(wide.admit_asked(STATE, proposal(wanted), actor="alice", at=NOON), Suggestion)


@pytest.mark.parametrize(
    ("knob", "value", "limit"),
    [
        ("tensor_parallel_size", 64, "at most 16"),
        ("max_model_len", 10**9, "at most 10,485,760"),
        ("stream_interval", 10**9, "at most 512"),
        ("cpu_offload_gb", 1e6, "at most 1,024"),
        ("num_gpu_blocks_override", 1, "at least 16"),
        ("max_num_queued_reqs", 0, "at least 1"),
    ],
)
def test_a_number_that_no_host_can_use_is_refused_unless_the_operators_bounds_say_so(
    knob: str, value: Value, limit: str
) -> None:
    wide = replace(GUARD, bounds={knob: Bound(min=0, max=1e10)})

    refusal = GUARD.admit_asked(STATE, proposal(value, knob), actor="alice", at=NOON)
    allowed = wide.admit_asked(STATE, proposal(value, knob), actor="alice", at=NOON)

    assert isinstance(refusal, ProposalRefusal)
    assert limit in refusal.why
    assert isinstance(allowed, Suggestion)


def test_every_tunable_number_has_a_range() -> None:
    numbers = [facts for facts in KNOBS.values() if facts.tunable and facts.type in ("int", "float")]

    assert [facts.name for facts in numbers if facts.most is None and facts.max is None] == []
    assert [facts.name for facts in numbers if facts.least is None and facts.min is None] == []


SLO = Slo(ttft=Objective(under_s=0.5, share=0.95))


def burning(*, late: int = 30) -> State:
    """Twenty minutes with thirty requests each."""
    budget = Budget()
    for minute in range(20, 0, -1):
        budget = budget.add(NOON - timedelta(minutes=minute), [RequestCounts(total=30, over_ttft=late)])
    return replace(STATE, budget=budget)


def test_while_the_error_budget_burns_only_a_mitigation_is_suggested() -> None:
    state, relief = burning(), replace(proposal(8), mitigation=True)

    refused = GUARD.admit(state, proposal(8), policy="graphs", at=NOON, reading=SEEN, slo=SLO)
    admitted = GUARD.admit(state, relief, policy="admission", at=NOON, reading=SEEN, slo=SLO)

    assert isinstance(refused, ProposalRefusal)
    assert refused.why.startswith("the error budget burns at least 14.4 times too fast: at least 72 %")
    assert isinstance(admitted, Suggestion)
    assert admitted.notes == ()


def test_an_operators_request_notes_that_the_error_budget_burns() -> None:
    suggestion = GUARD.admit_asked(burning(), proposal(8), actor="alice", at=NOON, slo=SLO)

    assert isinstance(suggestion, Suggestion)
    assert "the error budget burns at least 14.4 times too fast" in " ".join(suggestion.notes)


def test_a_budget_spent_at_the_planned_rate_blocks_nothing() -> None:
    state = burning(late=1)
    missed = replace(SEEN, ttft=Latency(count=100, p50=1.0, p95=2.0, p99=3.0, over_slo=0.9))

    admitted = GUARD.admit(state, proposal(8), policy="graphs", at=NOON, reading=missed, slo=SLO)
    suggestion = GUARD.admit_asked(state, proposal(8), actor="alice", at=NOON, slo=SLO)

    assert isinstance(admitted, Suggestion)
    assert isinstance(suggestion, Suggestion)
    assert suggestion.notes == ()


def test_an_optimisation_needs_a_missed_objective() -> None:
    met = replace(SEEN, ttft=Latency(count=100, p50=0.1, p95=0.2, p99=0.3, over_slo=0.04))

    refused = GUARD.admit(STATE, proposal(8), policy="graphs", at=NOON, reading=met, slo=SLO)
    few = replace(SEEN, ttft=Latency(count=8, p50=9.0, p95=9.0, p99=9.0, over_slo=1.0))
    untold = GUARD.admit(STATE, proposal(8), policy="graphs", at=NOON, reading=few, slo=SLO)
    unset = GUARD.admit(STATE, proposal(8), policy="graphs", at=NOON, reading=met)
    relief = replace(proposal(8), mitigation=True)

    assert isinstance(refused, ProposalRefusal)
    assert refused.why == "no objective is missed: an optimisation has nothing to gain"
    assert isinstance(untold, ProposalRefusal)
    assert untold.why == "fewer than 20 requests show whether an objective is missed"
    assert isinstance(unset, Suggestion)
    assert isinstance(GUARD.admit(STATE, relief, policy="graphs", at=NOON, reading=met, slo=SLO), Suggestion)


def test_a_window_over_a_change_of_load_is_no_evidence() -> None:
    shifted = replace(SEEN, shift="the load began 12 s ago")

    refused = GUARD.admit(STATE, proposal(8), policy="graphs", at=NOON, reading=shifted)

    assert isinstance(refused, ProposalRefusal)
    assert refused.why.startswith("the load began 12 s ago")


def test_a_value_that_is_not_allowed_is_refused() -> None:
    guard = replace(GUARD, bounds={"kv_cache_dtype": Bound(allowed=("auto", "fp8"))})

    refusal = admit(proposal("bfloat16", knob="kv_cache_dtype"), guard=guard)

    assert isinstance(refusal, ProposalRefusal)
    assert "not one of the allowed" in refusal.why


@pytest.mark.parametrize(
    ("wanted", "value"),
    [(24, 16), (16, 16), (200, 32), (5, None)],
    ids=["between", "on", "beyond", "none near"],
)
def test_a_step_is_clamped_to_the_nearest_allowed_value_on_its_way(wanted: int, value: int | None) -> None:
    guard = replace(GUARD, bounds={"max_num_seqs": Bound(allowed=(8, 16, 32), octaves=3)})

    suggestion = admit(proposal(wanted), guard=guard)

    assert (suggestion.proposal.to if isinstance(suggestion, Suggestion) else None) == (
        {"max_num_seqs": value} if value else None
    )


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (None, "no fresh metrics"),
        (reading(NOON, coverage=0.5), "no fresh metrics"),
        (reading(NOON, waiting=0, running=0), "idle"),
    ],
    ids=["none", "stale", "idle"],
)
def test_nothing_is_suggested_on_stale_missing_or_idle_metrics(seen: Reading | None, why: str) -> None:
    refusal = admit(proposal(), seen=seen)

    assert isinstance(refusal, ProposalRefusal)
    assert why in refusal.why


@pytest.mark.parametrize(
    ("result", "hours_ago", "why"),
    [
        ("promoted", 0.1, "cooling down until 12:04:00"),
        ("rolled_back", 200, "was tried and rolled back: worse"),
        ("failed", 200, "was tried and failed: worse"),
        ("refused", 200, "vLLM does not accept max_num_seqs=8: worse"),
        ("denied", 1, "was denied: worse"),
        ("denied", 25, ""),
        ("promoted", 1, ""),
    ],
)
def test_recent_outcomes_refuse_a_proposal(result: str, hours_ago: float, why: str) -> None:
    at = NOON - timedelta(hours=hours_ago)
    past = Outcome(at=at, result=result, to={"max_num_seqs": 8}, why="worse")  # type: ignore[arg-type]

    admission = admit(proposal(8), replace(STATE, outcomes=(past,)))

    assert (
        isinstance(admission, Suggestion)
        if not why
        else isinstance(admission, ProposalRefusal) and why in admission.why
    )


def test_an_obstacle_of_the_preflight_starts_no_cooldown_and_is_no_change_of_the_day() -> None:
    obstacle = Outcome(
        at=NOON - timedelta(seconds=10),
        result="undecided",
        to={"max_num_seqs": 8},
        why='strategy = "hot", but max_num_seqs cannot be changed while it runs',
        started=False,
    )
    state = replace(STATE, outcomes=(obstacle,) * 3)

    again = admit(proposal(6), state)

    assert isinstance(again, ProposalRefusal)
    assert "waits until" in again.why
    assert isinstance(admit(proposal(True, "async_scheduling"), state), Suggestion)


@pytest.mark.parametrize(
    ("result", "admitted"),
    [
        ("rolled_back", True),
        ("no_gain", True),
        ("undecided", True),
        ("failed", False),
        ("refused", False),
        ("denied", False),
    ],
)
def test_a_change_that_did_no_good_alone_is_admitted_with_another(result: str, admitted: bool) -> None:
    alone = {"max_num_seqs": 8}
    past = Outcome(at=NOON - timedelta(hours=1), result=result, to=alone, why="worse")  # type: ignore[arg-type]
    both = replace(
        proposal(8),
        to={"max_num_seqs": 8, "max_num_batched_tokens": 512},
        assumed={"max_num_batched_tokens": 256},
    )

    assert isinstance(admit(both, replace(STATE, outcomes=(past,))), Suggestion) is admitted


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("9999", 'max_num_seqs="9999" was requested: max_num_seqs is a whole number'),
        ("1k", 'max_num_seqs="1k" was requested: max_num_seqs is a whole number'),
        (True, "max_num_seqs=true was requested: max_num_seqs is a whole number"),
        (8.5, "max_num_seqs=8.5 was requested: max_num_seqs is a whole number"),
        (-5, "max_num_seqs=-5 was requested: max_num_seqs is at least 1"),
        (None, "is not a number within its bounds"),
    ],
)
def test_a_non_number_is_refused_by_numeric_bounds(value: Value, why: str) -> None:
    refusal = GUARD.admit_asked(STATE, proposal(value), actor="alice", at=NOON)

    assert isinstance(refusal, ProposalRefusal)
    assert why in refusal.why


def test_a_step_from_an_unknown_value_is_refused_and_from_an_assumed_value_bounded() -> None:
    unset = replace(STATE, fleet=replace(STATE.fleet, servers=(replace(BLUE, setting={"model": "m"}),)))

    blind, measured = (
        admit(proposal(64), unset),
        admit(replace(proposal(64), assumed={"max_num_seqs": 16}), unset),
    )

    assert isinstance(blind, ProposalRefusal)
    assert "its default is unknown" in blind.why
    assert isinstance(measured, Suggestion)
    assert measured.proposal.to == {"max_num_seqs": 32}


def test_a_clamp_does_not_restore_a_failed_value() -> None:
    past = Outcome(at=NOON - timedelta(days=9), result="failed", to={"max_num_seqs": 8}, why="OOM")

    refusal = admit(proposal(16), replace(STATE, outcomes=(past,)))

    assert isinstance(refusal, ProposalRefusal)
    assert "was tried and failed: OOM" in refusal.why


def test_a_value_promoted_after_its_failure_is_admitted() -> None:
    past = [
        Outcome(at=NOON - timedelta(days=days), result=result, to={"max_num_seqs": 8})  # type: ignore[arg-type]
        for days, result in ((9, "failed"), (2, "promoted"))
    ]

    assert isinstance(admit(proposal(8), replace(STATE, outcomes=tuple(past))), Suggestion)


def test_changes_per_day_are_limited() -> None:
    past = [Outcome(at=NOON - timedelta(hours=h), result="promoted", to={"x": h}) for h in (5, 3)]

    refusal = admit(proposal(8), replace(STATE, outcomes=tuple(past)))

    assert isinstance(refusal, ProposalRefusal)
    assert refusal.why == "2 changes in the last 24 h, at most 2 are allowed"


def test_the_digest_covers_everything_that_is_shown() -> None:
    first, other = admit(proposal(8)), admit(replace(proposal(8), why="13 wait"))
    assert isinstance(first, Suggestion)
    assert isinstance(other, Suggestion)
    quick, slow = PreflightResult(why="room"), PreflightResult(why="room", start_s=300)

    digests = {seal(s, preflight).digest for s in (first, other) for preflight in (quick, slow)}

    assert len(digests) == 4


def seal(
    suggestion: Suggestion, preflight: PreflightResult, plan: Plan = PLAN, forecast: Forecast | None = None
) -> Suggestion:
    return GUARD.seal(suggestion, preflight, expires_at=NOON, plan=plan, forecast=forecast)


@pytest.mark.parametrize(
    ("servers", "held"), [(1, "all traffic for"), (3, "75 % of the traffic, one old server the rest, for")]
)
def test_the_forecast_of_the_hold_step_follows_the_plan(servers: int, held: str) -> None:
    suggestion, preflight = admit(proposal(8)), PreflightResult(why="room")
    assert isinstance(suggestion, Suggestion)
    forecast = Forecast(rate_rps=8.0, usual_s=100.0, likely_s=200.0, hold_s=60.0)

    sealed = seal(suggestion, preflight, plan_for(PLAN, preflight, servers), forecast)

    assert f"if green is not worse; green then holds {held} 60 s" in " ".join(sealed.notes)


def test_a_planned_outage_is_reported_and_never_auto_approved() -> None:
    suggestion = admit(proposal(8))
    assert isinstance(suggestion, Suggestion)

    sealed = seal(suggestion, PreflightResult(strategy="swap", why="one GPU", outage_s=90))

    assert sealed.proposal.klass == "gated"
    assert "a planned outage of about 90 s" in " ".join(sealed.notes)


@pytest.mark.parametrize("strategy", ["surge", "replace", "swap", "save"])
def test_the_time_of_a_start_is_told_once(tmp_path: Path, strategy: Strategy) -> None:
    suggestion, times = admit(proposal(8)), StartTimes(tmp_path / "starts.json")
    assert isinstance(suggestion, Suggestion)
    times.record("image", 47.0, warm=None)
    start_s, note = times.predict("image", None, None)
    outage_s, parts = 0.0, ("", "")
    if strategy == "swap":
        verdict = SleepVerdict(fits=False, why="the weights do not fit")
        outage_s, parts = predict_outage(times, "image", "chat-r1", verdict, start_s)
    preflight = PreflightResult(
        strategy=strategy, why="room", start_s=start_s, outage_s=outage_s, notes=(*parts, note)
    )

    notes = " ".join(seal(suggestion, preflight).notes)

    assert notes.count("47 s") == 1
    assert "its time is as measured for the last ones" in notes


@pytest.mark.parametrize(
    ("hold", "outage_s", "seen"),
    [
        (None, 90, "clients get 503 with Retry-After meanwhile"),
        (Hold(wait_s=30, requests=512), 20, "at most 30 s each and 512 in that time; more get 503"),
        (Hold(wait_s=30, requests=512, each="pod"), 20, "and 512 in that time in each pod; more get 503"),
        (Hold(wait_s=30, requests=512), 90, "those of about the first 60 s get 503 with Retry-After"),
    ],
    ids=["no hold", "shorter than the hold", "of each pod", "longer"],
)
def test_a_planned_outage_is_compared_with_the_hold(hold: Hold | None, outage_s: float, seen: str) -> None:
    suggestion, swap = admit(proposal(8)), PreflightResult(strategy="swap", why="one GPU", outage_s=outage_s)
    assert isinstance(suggestion, Suggestion)

    sealed = replace(GUARD, hold=hold).seal(suggestion, swap, expires_at=NOON, plan=PLAN, forecast=None)

    assert seen in " ".join(sealed.notes)


@given(
    wanted=st.integers(min_value=-100, max_value=10_000),
    now=st.integers(min_value=1, max_value=4096),
    low=st.integers(min_value=1, max_value=64),
    high=st.integers(min_value=64, max_value=4096),
    octaves=st.sampled_from([0.5, 1.0, 2.0, 3.0]),
)
def test_an_admitted_value_is_inside_the_bounds_or_nearer_to_them(
    wanted: int, now: int, low: int, high: int, octaves: float
) -> None:
    blue = replace(BLUE, setting={"max_num_seqs": now})
    guard = replace(GUARD, bounds={"max_num_seqs": Bound(min=low, max=high, octaves=octaves)})

    admission = admit(proposal(wanted), replace(STATE, fleet=replace(STATE.fleet, servers=(blue,))), guard)

    if isinstance(admission, Suggestion):
        value = admission.proposal.to["max_num_seqs"]
        assert isinstance(value, int)
        assert now / 2**octaves - 1 <= value <= now * 2**octaves
        if low <= now <= high:
            assert low <= value <= high
