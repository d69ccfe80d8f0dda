"""The judge second by second: what fails green, what passes it, and what is no evidence."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from flettner.agent.domain.calibration import Calibration
from flettner.agent.domain.canary_evidence import CanaryEvidence, Observation
from flettner.agent.domain.model import Objective, Slo, Step
from flettner.agent.domain.reading import EngineLiveness, Request, RequestOutcome
from flettner.agent.domain.request_counts import RequestCounts, count_requests
from flettner.agent.domain.verdict import Verdict
from flettner.agent.judge.canary.admissibility import UNEVEN, UNEVEN_UNSEEN
from flettner.agent.judge.canary.verdict import AnytimeJudge
from flettner.agent.judge.failure_modes import open_streams
from tests.support.sampling import sampled

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
SLO = Slo(ttft=Objective(under_s=0.5, share=0.95), e2e=Objective(under_s=5.0, share=0.95))
SMOKE = Step(weight=5, requests=20, at_least_s=30, at_most_s=600)
PARITY = Step(weight=50, requests=50, at_least_s=60, at_most_s=2700)
HOLD = Step(weight=100, requests=50, at_least_s=60, at_most_s=7200)
INDEPENDENT = Calibration(
    phi=1.0, tick_edge=0.1, tick_share=0.05, tick_phi=1.0, tick_requests=30.0, ticks=960
)
CALM = dict.fromkeys(("errors", "stalled", "gave_up", "refused", "ttft", "itl", "e2e"), INDEPENDENT)


def served(
    total: int = 0,
    *,
    errors: int = 0,
    gave_up: int = 0,
    refused: int = 0,
    slow: int = 0,
    unreached: int = 0,
    stalled: int = 0,
    waiting: int = 0,
    ttft_s: float = 0.1,
    slow_s: float = 1.0,
    slo: Slo = SLO,
) -> RequestCounts:
    """Count `total` answered or failed requests, some of them bad."""

    def of(outcome: RequestOutcome, first_s: float | None, status: int = 200) -> Request:
        duration_s = (first_s or 0) + 1.0
        return Request(
            server="any", outcome=outcome, status=status, duration_s=duration_s, ttft_s=first_s, tokens=51
        )

    others = [
        *[of("failed", None, 500)] * errors,
        *[of("failed", None, 0)] * unreached,
        *[of("stalled", 9.0)] * stalled,
        *[of("gave_up", None)] * gave_up,
        *[of("refused", 0.002, 400)] * refused,
    ]
    fine = total - errors - slow - unreached - stalled
    answered = [*[of("ok", ttft_s)] * fine, *[of("ok", slow_s)] * slow]
    return count_requests([*answered, *others], slo, waiting=waiting)


class Canary:
    """One step, second by second."""

    def __init__(
        self,
        step: Step,
        *,
        baseline: RequestCounts | None = None,
        slo: Slo = SLO,
        judge: AnytimeJudge | None = None,
        **evidence: object,
    ) -> None:
        self.step, self.slo, self.judge = step, slo, judge or AnytimeJudge()
        self.baseline = served(600, errors=2) if baseline is None else baseline
        self.evidence = replace(CanaryEvidence(calibration=CALM), **evidence)  # type: ignore[arg-type]
        self.green, self.blue, self.at = RequestCounts(), RequestCounts(), NOON
        self.verdict = Verdict(kind="wait", why="")

    def update(
        self,
        green: RequestCounts,
        blue: RequestCounts | Mapping[str, RequestCounts] | None = None,
        **more: object,
    ) -> Verdict:
        self.at += timedelta(seconds=1)
        beside = {"b": blue} if isinstance(blue, RequestCounts) else dict(blue or {})
        second = Observation(at=self.at, green=green, blue=beside, **more)  # type: ignore[arg-type]
        self.green, self.blue = self.green + green, sum(beside.values(), self.blue)
        self.evidence, self.verdict = self.judge.update(
            self.evidence,
            step=self.step,
            slo=self.slo,
            observation=second,
            green=self.green,
            blue=self.blue,
            baseline=self.baseline,
        )
        return self.verdict

    def run(self, green: RequestCounts, blue: RequestCounts | None = None, *, seconds: int) -> Verdict:
        """Repeat the counts every second until a verdict."""
        for _ in range(seconds):
            if self.update(green, blue).kind in {"pass", "fail", "futile"}:
                break
        return self.verdict


def test_an_equal_green_passes_when_proven_not_worse() -> None:
    canary = Canary(PARITY)
    verdict = canary.run(served(5), served(5), seconds=900)
    assert verdict.kind == "pass"
    assert "not worse" in verdict.why
    assert canary.evidence.valid_s >= PARITY.at_least_s


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param({"errors": 1}, id="errors"),
        pytest.param({"gave_up": 1}, id="clients leave"),
        pytest.param({"refused": 1}, id="refusals"),
        pytest.param({"slow": 1}, id="late first tokens"),
    ],
)
def test_a_green_with_a_fifth_of_bad_requests_fails(bad: dict[str, int]) -> None:
    verdict = Canary(PARITY).run(served(5, **bad), served(5), seconds=300)  # type: ignore[arg-type]
    assert verdict.kind == "fail"
    assert "green is worse" in verdict.why


def test_the_verdict_states_the_counts_and_the_probability() -> None:
    verdict = Canary(PARITY).run(served(5, slow=1), served(5), seconds=300)
    assert "requests with a first token after 500 ms, blue: 0 of" in verdict.why
    assert "chance of this if green were worse by at most" in verdict.why
    assert "under 1 in" in verdict.why


def test_an_incident_on_both_sides_does_not_fail_green() -> None:
    canary = Canary(PARITY)
    canary.run(served(5), served(5), seconds=30)
    kinds = {canary.update(served(5, errors=2), served(5, errors=2)).kind for _ in range(600)}
    assert "fail" not in kinds
    assert "pass" not in kinds


def test_nothing_passes_while_blue_breaches_its_own_baseline() -> None:
    canary = Canary(PARITY)
    canary.run(served(20), served(20), seconds=30)
    ill = [canary.update(served(20, errors=1), served(20, errors=1)) for _ in range(600)]
    assert {verdict.kind for verdict in ill} == {"wait"}
    assert "blue is worse than its baseline" in ill[-1].why

    assert canary.run(served(20), served(20), seconds=300).kind == "pass"


def test_below_parity_latency_is_not_compared() -> None:
    verdict = Canary(SMOKE).run(served(1, slow=1), served(19), seconds=120)
    assert verdict.kind == "pass"


def test_below_parity_ten_bad_of_twenty_requests_fail() -> None:
    verdict = Canary(SMOKE).update(served(20, errors=10), served(190))
    assert verdict.kind == "fail"
    assert "at least 50%" in verdict.why


def test_a_step_of_two_requests_is_not_passed_by_a_green_that_failed_both() -> None:
    canary = Canary(replace(SMOKE, requests=2))
    canary.run(served(0), served(1), seconds=40)

    verdict = canary.update(served(2, errors=2), served(1))

    assert (verdict.kind, verdict.waits) == ("wait", "errors looks worse, which is not proved yet")


def test_an_incident_on_both_sides_at_the_step_start_does_not_fail_green() -> None:
    verdict = Canary(PARITY).update(served(25, errors=14), served(26, errors=5))
    assert verdict.kind != "fail"
    assert Canary(PARITY).update(served(25, errors=14), served(26, errors=1)).kind == "fail"


def test_a_step_without_requests_never_passes() -> None:
    assert Canary(PARITY).run(RequestCounts(), served(5), seconds=900).kind == "wait"
    assert Canary(PARITY).run(served(5), RequestCounts(), seconds=900).kind == "wait"
    assert Canary(HOLD).run(RequestCounts(), None, seconds=900).kind == "wait"


def test_a_blind_period_holds_the_step_and_does_not_count() -> None:
    canary = Canary(PARITY)
    canary.run(served(5), served(5), seconds=10)
    before = canary.evidence
    for _ in range(100):
        canary.update(served(5), served(5), blind="Envoy has closed its connection")
    assert canary.verdict.kind == "inadmissible"
    assert "Envoy has closed" in canary.verdict.why
    assert canary.evidence.held_s == 100
    assert canary.evidence.valid_s == before.valid_s
    assert canary.evidence.streams == before.streams


def test_evidence_survives_a_restart() -> None:
    canary = Canary(PARITY)
    canary.run(served(20, slow=2), served(20), seconds=10)
    evidence = canary.evidence.resumed()
    assert [s.requests for s in evidence.streams] == [s.requests for s in canary.evidence.streams]


def test_a_new_share_needs_its_own_proof_but_keeps_evidence_of_harm() -> None:
    canary = Canary(PARITY)
    canary.run(served(20, slow=1), served(20), seconds=20)
    after = canary.evidence.next_step()
    for old, new in zip(canary.evidence.streams, after.streams, strict=True):
        assert new.requests.above == old.requests.above
        assert new.requests.most_below == 0.0


def test_the_hold_step_compares_green_with_the_baseline() -> None:
    baseline = served(600, errors=2)
    assert Canary(HOLD, baseline=baseline).run(served(10), seconds=600).kind == "pass"
    assert Canary(HOLD, baseline=baseline).run(served(10, slow=2), seconds=600).kind == "fail"


def test_in_a_hold_step_busier_than_the_baseline_latency_cannot_fail_green() -> None:
    """The baseline has 600 requests in 60 s, ten per second."""
    busier = Canary(HOLD, baseline_s=60.0)
    for _ in range(600):
        assert busier.update(served(14, slow=8)).kind == "wait"
    assert "green gets 14 requests/s, blue's baseline is of 10" in busier.verdict.why
    assert Canary(HOLD, baseline_s=60.0).run(served(14), seconds=600).kind == "pass"
    assert Canary(HOLD, baseline_s=60.0).run(served(14, errors=1), seconds=600).kind == "fail"
    assert Canary(HOLD, baseline_s=60.0).run(served(11, slow=2), seconds=600).kind == "fail"
    assert Canary(HOLD, baseline_s=60.0).run(served(11), seconds=600).kind == "pass"


PACE = Slo(itl=Objective(under_s=0.09, share=0.95))  # promises no first token
QUEUE = served(300, slow=240, slow_s=12.0)  # an overloaded blue: late, before anything stalls


@pytest.mark.parametrize("needed", ["never", "if_missed", "always"])
def test_full_load_in_a_queue_that_advances_is_late_not_failed(needed: str) -> None:
    """The baseline of a minute ended before its queue had grown to stalls."""
    canary = Canary(HOLD, baseline=QUEUE, baseline_s=60.0, gain_needed=needed)
    assert canary.run(served(5, stalled=1, waiting=20), seconds=900).kind == "pass"


def test_a_green_that_stalls_without_a_queue_that_advances_fails_as_ever() -> None:
    stuck = Canary(HOLD, baseline=QUEUE, baseline_s=60.0)
    assert stuck.run(served(5, stalled=5), seconds=10).kind == "fail"
    assert "stalled" in stuck.verdict.why
    partly = Canary(HOLD, baseline=QUEUE, baseline_s=60.0)
    assert partly.run(served(5, stalled=2, waiting=1), seconds=60).kind == "fail"
    assert "stalled before the first token" in partly.verdict.why


DRAINS = EngineLiveness(age_s=0.5, running=8, waiting=400, tokens=900.0)
DRAINED = replace(DRAINS, running=0, waiting=0, tokens=0.0)


def test_late_requests_while_blue_drains_on_the_same_gpu_do_not_count_against_green() -> None:
    """Recorded on a GPU: blue drained for 72 s, in some seconds without an answer, then green was fast."""
    canary = Canary(HOLD, baseline=QUEUE, baseline_s=30.0, gain_needed="always")
    for second in range(72):
        blue = served(4 * (second % 3 > 0), slow=4 * (second % 3 > 0), slow_s=60.0)
        assert canary.update(served(10, slow=10), blue, blue_engine=DRAINS).kind == "wait"
    for _ in range(120):
        if canary.update(served(10), {}, blue_engine=DRAINED).kind != "wait":
            break
    assert canary.verdict.kind == "pass"
    assert "better" in canary.verdict.why


def test_a_green_that_stays_late_after_blue_has_drained_does_not_pass() -> None:
    canary = Canary(HOLD, baseline=QUEUE, baseline_s=30.0, gain_needed="always")
    for _ in range(72):
        assert canary.update(served(10, slow=10), served(4, slow=4), blue_engine=DRAINS).kind == "wait"
    for _ in range(600):
        if canary.update(served(10, slow=10), {}, blue_engine=DRAINED).kind != "wait":
            break
    assert canary.verdict.kind == "futile"


@pytest.mark.parametrize("needed", ["never", "always"])
def test_a_blue_that_drains_does_not_delay_a_green_that_is_on_time(needed: str) -> None:
    drains = Canary(HOLD, baseline=QUEUE, baseline_s=30.0, gain_needed=needed)
    drained = Canary(HOLD, baseline=QUEUE, baseline_s=30.0, gain_needed=needed)
    for _ in range(600):
        drains.update(served(10), served(4, slow=4), blue_engine=DRAINS)
        drained.update(served(10), {}, blue_engine=DRAINED)
        assert drains.verdict.kind == drained.verdict.kind
        if drains.verdict.kind != "wait":
            break
    assert drains.verdict.kind == "pass"


def test_failures_beside_a_blue_that_drains_count() -> None:
    canary = Canary(HOLD, baseline=QUEUE, baseline_s=30.0)
    for _ in range(60):
        if canary.update(served(10, errors=2), served(4, slow=4), blue_engine=DRAINS).kind != "wait":
            break
    assert canary.verdict.kind == "fail"
    assert "failed or cut" in canary.verdict.why


def test_failures_beside_a_queue_that_advances_count() -> None:
    """As many as the baseline had stalled requests: those were late, these are lost."""
    baseline = served(300, stalled=120, waiting=200)
    canary = Canary(HOLD, baseline=baseline, baseline_s=60.0)
    assert canary.run(served(5, errors=1, stalled=1, waiting=20), seconds=120).kind == "fail"
    assert "failed or cut" in canary.verdict.why


def test_the_evidence_beside_a_blue_that_stalls_continues_under_full_load() -> None:
    canary = Canary(PARITY, baseline=served(300, stalled=150, waiting=200), baseline_s=60.0)
    canary.run(served(5, stalled=1, waiting=20), served(5, stalled=1, waiting=20), seconds=60)
    canary.step, canary.evidence = HOLD, canary.evidence.next_step(holding=True)
    canary.green, canary.blue = RequestCounts(), RequestCounts()
    assert canary.run(served(5, errors=2, waiting=20), seconds=120).kind == "fail"


def test_beside_blue_stalls_count_whatever_the_queue() -> None:
    green, blue = served(5, stalled=1, waiting=20, ttft_s=5.0), served(5, ttft_s=5.0)
    verdict = Canary(PARITY, baseline=served(300, ttft_s=5.0), slo=Slo()).run(green, blue, seconds=300)
    assert verdict.kind == "fail"
    assert "stalled before the first token" in verdict.why


@pytest.mark.parametrize(
    ("baseline", "slo"),
    [
        pytest.param(served(300, slow=180, slow_s=12.0), SLO, id="most of the baseline is late"),
        pytest.param(served(300, ttft_s=5.0, slo=PACE), PACE, id="no first token is promised"),
    ],
)
def test_a_green_whose_goodput_is_worse_than_the_baseline_fails(baseline: RequestCounts, slo: Slo) -> None:
    canary = Canary(HOLD, baseline=baseline, baseline_s=60.0, slo=slo)
    assert canary.run(served(5, stalled=5, waiting=40, slo=slo), seconds=300).kind == "fail"
    assert "missed the SLO with" in canary.verdict.why
    busier = Canary(HOLD, baseline=baseline, baseline_s=60.0, slo=slo)
    assert busier.run(served(9, stalled=9, waiting=90, slo=slo), seconds=300).kind == "wait"


def test_a_pause_in_the_first_seconds_of_a_share_does_not_fail_green() -> None:
    canary = Canary(PARITY, calibration=dict.fromkeys(CALM, replace(INDEPENDENT, phi=30.0, tick_phi=4.0)))
    for _ in range(6):
        assert canary.update(served(15, slow=12), served(15)).kind == "wait"


def test_clustered_late_requests_need_more_evidence_to_fail_green() -> None:
    canary = Canary(PARITY, calibration=dict.fromkeys(CALM, replace(INDEPENDENT, phi=14.0, tick_phi=4.0)))
    for second in range(45):
        assert canary.update(served(1, slow=int(second % 3 > 0)), served(1)).kind == "wait"
    assert canary.run(served(1, slow=1), served(1), seconds=300).kind == "fail"


def test_a_green_with_most_requests_late_fails_within_half_a_minute() -> None:
    canary = Canary(HOLD)
    verdict = canary.run(served(15, slow=12), seconds=60)
    assert verdict.kind == "fail"
    assert canary.evidence.valid_s <= 30.0


@pytest.mark.parametrize("edge", [0.01, 0.02, 0.025])
def test_calibrated_ticks_at_the_margin_cause_no_numeric_error(edge: float) -> None:
    full = dict.fromkeys(CALM, replace(INDEPENDENT, tick_edge=edge, tick_requests=600.0))
    verdict = Canary(PARITY, calibration=full, margin=0.02).run(served(20), served(20), seconds=900)
    assert verdict.kind == "pass"


def test_the_hold_step_continues_with_the_evidence_of_the_canary() -> None:
    canary = Canary(PARITY)
    assert canary.run(served(5), served(5), seconds=900).kind == "pass"
    before = {stream.name: len(stream.requests.above) for stream in canary.evidence.streams}

    canary.step, canary.evidence = HOLD, canary.evidence.next_step()

    assert canary.run(served(10), seconds=900).kind == "pass"
    assert {stream.name: len(stream.requests.above) for stream in canary.evidence.streams} == before


def test_a_met_objective_is_no_breach_in_the_hold_step() -> None:
    baseline = served(600)
    verdict = Canary(HOLD, baseline=baseline).run(served(25, slow=1), seconds=600)
    assert verdict.kind == "pass"


def test_a_green_without_a_token_for_a_minute_fails() -> None:
    canary = Canary(PARITY)
    stuck = EngineLiveness(age_s=0.5, running=3, waiting=0, tokens=0.0)
    for _ in range(59):
        assert canary.update(RequestCounts(), served(5), green_engine=stuck).kind == "wait"
    assert canary.update(RequestCounts(), served(5), green_engine=stuck).kind == "fail"
    assert "without producing a token" in canary.verdict.why


def test_a_green_whose_process_was_replaced_fails() -> None:
    engine = EngineLiveness(age_s=0.5, running=0, waiting=0, tokens=None, restarted=True)
    assert Canary(SMOKE).update(served(1), served(9), green_engine=engine).kind == "fail"


def test_an_unreachable_green_fails_at_once() -> None:
    canary = Canary(SMOKE)
    canary.update(served(5, unreached=5), served(50))
    assert canary.verdict.kind == "fail"
    assert "could not reach it" in canary.verdict.why


def test_a_cold_prefix_cache_is_no_evidence_of_latency() -> None:
    canary = Canary(PARITY)
    warm = EngineLiveness(
        age_s=0.5, running=1, waiting=0, tokens=100.0, prefix_queries=900.0, prefix_hits=800.0
    )
    cold = replace(warm, prefix_hits=90.0)
    for _ in range(120):
        canary.update(served(5, slow=2), served(5), green_engine=cold, blue_engine=warm)
    assert "cold" in canary.verdict.why
    for _ in range(200):
        canary.update(served(5), served(5), green_engine=warm, blue_engine=warm)
    assert canary.verdict.kind == "pass"


def test_a_small_share_of_the_load_is_no_evidence_of_latency() -> None:
    canary = Canary(PARITY)
    for _ in range(300):
        canary.update(served(1), served(20, slow=1))
    assert canary.verdict.kind == "wait"
    assert "green gets 5% of the requests, not 50%" in canary.verdict.why


@pytest.mark.parametrize(("uneven", "kind"), [(UNEVEN, "pass"), (UNEVEN_UNSEEN, "wait")])
def test_a_green_that_half_of_its_requests_do_not_reach_passes_only_where_they_are_seen(
    uneven: float, kind: str
) -> None:
    canary = Canary(PARITY, judge=AnytimeJudge(uneven=uneven))
    for _ in range(300):
        canary.update(served(5), served(10))
    assert canary.verdict.kind == kind
    assert ("green gets 33% of the requests, not 50%" in canary.verdict.why) == (kind == "wait")


@pytest.mark.parametrize("phi", sampled([4.0, 1.0], 2))
def test_equal_greens_do_not_fail(phi: float) -> None:
    random = Random(20300101)  # noqa: S311
    spread = dict.fromkeys(CALM, replace(INDEPENDENT, phi=phi))
    fails = 0
    for _ in range(20):
        canary = Canary(replace(PARITY, at_least_s=10_000), calibration=spread)
        for _ in range(300):
            green, blue = (
                served(4, errors=random.random() < 0.04, slow=random.random() < 0.1) for _ in range(2)
            )
            if canary.update(green, blue).kind == "fail":
                fails += 1
                break
    assert fails == 0


@pytest.mark.parametrize("option", [{"alpha": 0.0}, {"beta": 1.0}, {"alpha": float("nan")}])
def test_an_invalid_option_is_refused(option: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must lie between 0 and 1"):
        AnytimeJudge(**option)


@pytest.mark.parametrize(
    ("slo", "judged"),
    [
        (Slo(ttft=Objective(under_s=0.5, share=0.95)), {"ttft"}),
        (SLO, {"ttft", "e2e"}),
    ],
)
def test_of_less_hardware_only_promised_latencies_are_judged(slo: Slo, judged: set[str]) -> None:
    def opened(evidence: CanaryEvidence) -> set[str]:
        control = served(200, slo=slo)
        streams = open_streams(evidence, step=PARITY, slo=slo, control=control, margin=0.01)
        return {stream.name for stream in streams} & {"ttft", "itl", "e2e"}

    assert opened(CanaryEvidence(promised_only=True)) == judged
    assert opened(CanaryEvidence()) == {"ttft", "e2e"}
