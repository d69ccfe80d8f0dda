"""The judge of a time-split trial: which block a request counts for, and what the blocks show."""

from collections.abc import Callable
from dataclasses import replace
from math import exp, log
from statistics import median

import pytest
from pydantic import TypeAdapter

from flettner.agent.domain.blocks import Arm, Block, BlockEvidence, BlockMeasure, BlockSecond, BlockTrial
from flettner.agent.domain.canary_evidence import GainNeeded
from flettner.agent.domain.model import Objective, Slo
from flettner.agent.domain.reading import EngineLiveness
from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.domain.verdict import Verdict
from flettner.agent.judge.blocks.counting import MOST_IN_A_ROW, draw_block
from flettner.agent.judge.blocks.evidence import add_block, log_evidence
from flettner.agent.judge.blocks.verdict import SURE_BETTER, begin_blocks, log_better, update_blocks

SLO = Slo(ttft=Objective(under_s=1.0, share=0.95))
GOOD, BAD = RequestCounts(total=4), RequestCounts(total=4, late=3)
Serving = Callable[[Arm], RequestCounts]


def liveness(running: float = 8, waiting: float = 0, tokens: float = 100) -> EngineLiveness:
    return EngineLiveness(age_s=0.5, running=running, waiting=waiting, tokens=tokens)


class TimeSplit:
    """A server that answers as its arm does, `lag` requests behind the switch."""

    def __init__(
        self, baseline: RequestCounts, gain_needed: GainNeeded = "always", lag: int = 8, seed: str = "r-1"
    ) -> None:
        self.trial = begin_blocks(seed, slo=SLO, baseline=baseline, baseline_s=0.0, gain_needed=gain_needed)
        self.lag = lag
        self.arms: list[Arm] = []
        self._began: list[Arm] = ["present"] * lag

    def second(self, serving: Serving, **changes: object) -> Verdict:
        arm = self.trial.arm
        self.arms.append(arm)
        counts = serving(self._began[0]) if self.lag else serving(arm)
        self._began = [*self._began, *([arm] * counts.total)][-self.lag :] if self.lag else []
        second = BlockSecond(counts=counts, engines=(liveness(running=self.lag),), in_force=arm)
        self.trial, verdict = update_blocks(self.trial, replace(second, **changes), slo=SLO)  # type: ignore[arg-type]
        return verdict

    def run(self, serving: Serving, seconds: int) -> Verdict:
        verdict = Verdict(kind="wait", why="nothing yet")
        for _ in range(seconds):
            verdict = self.second(serving)
            if verdict.kind != "wait":
                break
        return verdict


def test_the_schedule_is_fair_varied_and_never_stays_with_one_arm_for_long() -> None:
    last, run, arms, drawn = "present", 0, [], 0
    for number in range(1, 2001):
        arm, by_lot, length_s = draw_block("r-1", number, last, run)  # type: ignore[arg-type]
        assert (arm, by_lot, length_s) == draw_block("r-1", number, last, run)  # type: ignore[arg-type]
        assert 10 <= length_s <= 60
        run = run + 1 if arm == last else 1
        assert run <= MOST_IN_A_ROW
        last, drawn = arm, drawn + by_lot
        arms.append(arm)

    assert 900 < arms.count("candidate") < 1100
    assert 1600 < drawn < 1800


@pytest.mark.parametrize("bad", range(0, 41, 4))
@pytest.mark.parametrize("before", [(0.0, 0.0), (40.0, 3.0), (40.0, 37.0)])
def test_whatever_a_block_brings_its_bets_have_a_mean_of_one_over_the_lot(
    bad: int, before: tuple[float, float]
) -> None:
    measure = BlockMeasure(name="goodput", levels={"present": before, "candidate": (20.0, 10.0)})
    arms: tuple[Arm, ...] = ("present", "candidate")
    ends = [
        add_block(measure, Block(arm=arm, by_lot=True), (40, bad), tolerance=0.01, gain=0.1) for arm in arms
    ]

    for way in ("worse", "better"):
        assert sum(exp(log_evidence(getattr(end.evidence, way))) for end in ends) / 2 == pytest.approx(
            1, abs=1e-4
        )


def test_a_block_that_was_not_drawn_is_no_evidence_but_shows_the_arm_s_share() -> None:
    measure = BlockMeasure(name="goodput", levels={"present": (40.0, 30.0)})
    end = add_block(measure, Block(arm="candidate", by_lot=False), (40, 0), tolerance=0.01, gain=0.1)

    assert end.evidence == measure.evidence
    assert end.levels["candidate"] == (40, 0)


def test_equal_arms_seldom_reach_a_proof_where_each_block_is_bad_or_good_as_a_whole() -> None:
    proofs = 0
    for run in range(400):
        measure, last, row = BlockMeasure(name="goodput"), "present", 0
        most = 0.0
        for number in range(1, 61):
            arm, by_lot, length_s = draw_block(f"{run}", number, last, row)  # type: ignore[arg-type]
            row, last = (row + 1 if arm == last else 1), arm
            bad = 40 if int(length_s * 10) % 3 == 0 else 0  # a burst of its own, as likely under either arm
            measure = add_block(measure, Block(arm=arm, by_lot=by_lot), (40, bad), tolerance=0.01, gain=0.1)
            most = max(most, log_evidence(measure.evidence.better))
        proofs += most >= SURE_BETTER

    assert proofs <= 0.05 * 400 + 9  # two standard errors above the bound


def test_a_candidate_that_cures_an_overload_passes_within_minutes() -> None:
    split = TimeSplit(BAD)
    verdict = split.run(lambda arm: GOOD if arm == "candidate" else BAD, 300)

    assert verdict.kind == "pass"
    assert "the candidate is better: 0 of" in verdict.why


def test_a_queue_that_gets_shorter_is_waited_for() -> None:
    """What one arm has left behind must not count for the other while it drains."""
    split = TimeSplit(BAD, lag=400)
    split.second(lambda _: BAD, engines=(liveness(running=2, waiting=100),))
    for second in range(40):
        split.second(lambda _: BAD, engines=(liveness(running=2, waiting=99 - second),))

    assert split.trial.number == 1
    assert split.trial.counted_s == 0


def test_evidence_from_blocks_of_one_arm_alone_calls_no_candidate_better() -> None:
    """A burst that begins with the trial, while the lot is the present arm five times."""
    levels = {"present": (40.0, 2.0), "present, busy": (40.0, 36.0), "candidate, busy": (40.0, 40.0)}
    trial = begin_blocks("r-1", slo=SLO, baseline=GOOD, gain_needed="never")
    for seen, kind in ((levels, "wait"), ({**levels, "candidate": (20.0, 0.0)}, "pass")):
        sure = BlockEvidence(better=(5.0, 5.0, 5.0))
        first = replace(trial.measures[0], levels=seen, evidence=sure)
        one_sided = replace(trial, measures=(first, *trial.measures[1:]))
        second = BlockSecond(engines=(liveness(),), in_force="present")
        assert update_blocks(one_sided, second, slo=SLO)[1].kind == kind


def test_a_gain_of_nearly_all_requests_takes_less_than_two_minutes() -> None:
    took = []
    for run in range(20):
        split = TimeSplit(BAD, seed=f"{run}")
        assert split.run(lambda arm: GOOD if arm == "candidate" else BAD, 600).kind == "pass"
        took.append(len(split.arms))

    assert median(took) < 120


def test_a_queue_that_gets_longer_is_waited_for_no_longer_than_a_few_seconds() -> None:
    split = TimeSplit(BAD, lag=400)
    for second in range(60):
        split.second(lambda _: BAD, engines=(liveness(running=2, waiting=100 + second),))

    assert split.trial.results >= 2


def test_a_candidate_that_is_far_worse_fails_within_minutes_and_ends_its_blocks_early() -> None:
    split = TimeSplit(GOOD, gain_needed="never")
    verdict = split.run(lambda arm: BAD if arm == "candidate" else GOOD, 600)

    assert verdict.kind == "fail"
    assert "the candidate is worse" in verdict.why
    assert split.arms.count("candidate") < split.arms.count("present")


@pytest.mark.parametrize("worse", ["present", "candidate"])
def test_after_a_block_that_is_far_worse_the_present_values_are_on_until_the_queue_is_gone(
    worse: Arm,
) -> None:
    split = TimeSplit(GOOD, gain_needed="never", lag=0)
    while not any(block.rest for block in split.trial.blocks):
        split.second(lambda arm: BAD if arm == worse else GOOD)
    for _ in range(30):
        split.second(lambda _: GOOD, engines=(liveness(waiting=3),))
        assert split.trial.arm == "present"

    for _ in range(2):
        split.second(lambda _: GOOD)
    assert not split.trial.blocks[-1].rest


def test_busy_blocks_are_compared_with_busy_ones() -> None:
    """Each load has levels of its own, so a burst under one arm is not taken for its effect."""
    measure = BlockMeasure(name="goodput", levels={"present": (40.0, 0.0), "present, busy": (40.0, 40.0)})
    burst = Block(arm="candidate", by_lot=True, busy=True)
    alike = add_block(measure, burst, (40, 40), tolerance=0.01, gain=0.1)

    assert log_evidence(alike.evidence.worse) == pytest.approx(0, abs=1e-3)
    assert alike.levels["candidate, busy"] == (40, 40)


def test_an_equal_candidate_ends_without_a_gain() -> None:
    verdict = TimeSplit(GOOD).run(lambda _: GOOD, 1200)
    assert (verdict.kind, verdict.lacks_gain) == ("futile", True)


def test_an_equal_candidate_that_needs_no_gain_passes_as_not_worse() -> None:
    verdict = TimeSplit(GOOD, gain_needed="never").run(lambda _: GOOD, 3600)
    assert verdict.kind == "pass"
    assert "not worse" in verdict.why


def test_requests_in_flight_at_a_switch_count_for_the_block_in_which_they_began() -> None:
    """A server whose answers come late would else credit each arm with the other's requests."""
    split = TimeSplit(BAD, lag=40)
    verdict = split.run(lambda arm: GOOD if arm == "candidate" else BAD, 600)
    (of, bad), (was_of, was_bad) = split.trial.candidate, split.trial.present

    assert verdict.kind == "pass"
    assert bad <= 0.1 * of
    assert was_bad >= 0.65 * was_of  # of 75 %


def test_nothing_counts_while_another_arm_is_in_force() -> None:
    split = TimeSplit(GOOD)
    split.second(lambda _: GOOD)
    for _ in range(100):
        split.second(lambda _: BAD, in_force=None)

    assert split.trial.number == 1
    assert split.trial.on_s == 0


@pytest.mark.parametrize(
    "missing",
    [{"blind": "the proxy's log is lost"}, {"engines": ()}, {"engines": (replace(liveness(), age_s=60.0),)}],
)
def test_without_data_the_present_values_return_and_the_open_blocks_are_dropped(missing: object) -> None:
    split = TimeSplit(BAD)
    split.run(lambda _: BAD, 100)
    before = split.trial
    verdict = split.second(lambda _: BAD, **missing)  # type: ignore[arg-type]

    assert verdict.kind == "inadmissible"
    assert split.trial.arm == "present"
    assert (split.trial.blocks, split.trial.held_s) == ((), 1.0)
    assert log_better(split.trial) == log_better(before)
    split.second(lambda _: BAD)
    assert split.trial.number == before.number + 1


def test_a_server_that_ends_in_the_trial_fails_the_candidate() -> None:
    split = TimeSplit(GOOD)
    split.run(lambda _: GOOD, 50)
    verdict = split.second(lambda _: GOOD, engines=(replace(liveness(), restarted=True),))
    assert verdict.kind == "fail"


def test_a_candidate_under_which_the_server_stands_still_fails_after_a_minute() -> None:
    split = TimeSplit(GOOD)
    verdict = Verdict(kind="wait", why="")
    for _ in range(600):
        still = split.trial.arm == "candidate"
        verdict = split.second(
            lambda _: RequestCounts() if split.trial.arm == "candidate" else GOOD,
            engines=(liveness(tokens=0 if still else 100),),
        )
        if verdict.kind == "fail":
            break
    assert "without producing a token" in verdict.why


def test_a_candidate_that_fails_requests_fails_within_seconds() -> None:
    failing = RequestCounts(total=4, errors=4)
    split = TimeSplit(GOOD, lag=0)
    while split.trial.arm == "present":
        split.second(lambda _: GOOD)
    begun = len(split.arms)
    verdict = split.run(lambda arm: failing if arm == "candidate" else GOOD, 60)

    assert verdict.kind == "fail"
    assert len(split.arms) - begun <= 12


def test_the_trial_survives_the_journal() -> None:
    split = TimeSplit(BAD)
    split.run(lambda arm: GOOD if arm == "candidate" else BAD, 90)
    adapter = TypeAdapter(BlockTrial)

    assert adapter.validate_json(adapter.dump_json(split.trial)) == split.trial


def test_the_least_number_of_blocks_is_known() -> None:
    """Evidence doubles at most with each block that was drawn."""
    split = TimeSplit(BAD)
    split.run(lambda arm: GOOD if arm == "candidate" else BAD, 600)
    assert log_better(split.trial) <= split.trial.results * log(2)
