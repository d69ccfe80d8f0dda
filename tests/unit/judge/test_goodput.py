"""Superiority, futility and full load: what decides besides harm."""

from dataclasses import replace

import pytest

from flettner.agent.domain.model import Step
from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.judge.attainment import allowed_share, count_missed, fails_badly, misses_slo
from tests.unit.judge.test_judge import CALM, HOLD, INDEPENDENT, PARITY, SLO, SMOKE, Canary, served

LATE = served(300, slow=300, slow_s=12.0)  # the baseline of an overloaded blue
FULL = Step(weight=100, requests=200, at_least_s=600, at_most_s=7200)


def late(requests: int) -> RequestCounts:
    return served(requests, slow=requests, slow_s=12.0)


def overloaded(step: Step, needed: str = "always") -> Canary:
    return Canary(step, baseline=LATE, gain_needed=needed, calibration={}, baseline_s=60.0)


def test_every_way_to_miss_the_promise_counts_once() -> None:
    counts = served(10, errors=1, slow=2, gave_up=3)
    assert count_missed(counts) == (13, 6)
    assert allowed_share(SLO) == pytest.approx(0.101)


def test_a_green_whose_goodput_is_better_passes_at_once_without_a_proof_for_each_stream() -> None:
    canary = overloaded(PARITY)
    verdict = canary.run(served(3), late(3), seconds=300)
    assert verdict.kind == "pass"
    assert "green is better" in verdict.why
    assert canary.evidence.valid_s < PARITY.at_least_s
    assert any(stream.requests.most_below < 3 for stream in canary.evidence.streams)


def test_a_better_green_passes_below_parity_too() -> None:
    verdict = overloaded(SMOKE).run(served(1), late(10), seconds=300)
    assert verdict.kind == "pass"
    assert "green is better" in verdict.why


def test_a_gain_beside_a_relieved_blue_is_not_a_gain_under_full_load() -> None:
    """Blue still drains the queue of its full load, green never had one."""
    canary = overloaded(PARITY)
    canary.run(served(3), late(3), seconds=300)
    assert canary.evidence.better == ""


def test_a_better_green_beside_a_healthy_blue_needs_no_other_proof_in_the_hold_step() -> None:
    canary = Canary(PARITY, baseline=served(600, slow=50), gain_needed="always")
    beside = served(20, slow=2), served(20, slow=8)
    canary.evidence = replace(canary.evidence, calibration=dict.fromkeys(CALM, INDEPENDENT))
    assert canary.run(*beside, seconds=600).kind == "pass"
    assert canary.evidence.better.startswith("better: green failed or missed the SLO with")


def test_equal_beside_a_relieved_blue_leads_to_full_load_if_the_baseline_was_worse() -> None:
    verdict = overloaded(PARITY).run(served(3), served(3), seconds=600)
    assert verdict.kind == "pass"
    assert "full load is compared next" in verdict.why


def test_as_bad_as_an_overloaded_blue_is_no_gain() -> None:
    canary = overloaded(PARITY, "if_missed")
    canary.run(late(3), late(3), seconds=600)
    assert canary.verdict.kind == "futile"
    assert "a gain of 10 points is ruled out" in canary.verdict.why


def on_shared_card(step: Step) -> Canary:
    canary = overloaded(step)
    canary.evidence = replace(canary.evidence, shares_card=True)
    return canary


def test_as_bad_as_an_overloaded_blue_on_its_card_leads_to_full_load() -> None:
    """Beside each other both are late, whatever the change is worth."""
    canary = on_shared_card(PARITY)
    verdict = canary.run(late(3), late(3), seconds=600)
    assert verdict.kind == "pass"
    assert "full load is compared next" in verdict.why
    assert canary.evidence.valid_s < PARITY.at_least_s + 10


def test_a_green_that_is_later_than_a_failing_blue_on_its_card_is_not_worse() -> None:
    """It has no queue, so larger batches."""
    assert on_shared_card(PARITY).run(late(3), served(3), seconds=600).kind == "pass"


def test_a_green_that_fails_beside_a_failing_blue_on_its_card_is_rolled_back() -> None:
    assert on_shared_card(PARITY).run(served(3, errors=1), late(3), seconds=600).kind == "fail"


@pytest.mark.parametrize("needed", ["always", "never"])
def test_a_blue_that_fails_only_beside_green_on_its_card_leads_to_full_load_soon(needed: str) -> None:
    canary = Canary(PARITY, shares_card=True, gain_needed=needed)
    verdict = canary.run(served(5, slow=5), served(5, slow=3), seconds=600)
    assert verdict.kind == "pass"
    assert canary.evidence.valid_s < PARITY.at_least_s + 10


def test_a_green_that_is_later_than_a_healthy_blue_on_its_card_is_worse() -> None:
    canary = Canary(PARITY, shares_card=True, gain_needed="never")
    assert canary.run(served(5, slow=4), served(5), seconds=600).kind == "fail"


def test_full_load_on_a_shared_card_can_still_show_that_there_is_no_gain() -> None:
    assert on_shared_card(FULL).run(late(5), seconds=1500).kind == "futile"


def test_full_load_shows_the_gain_and_says_at_which_load() -> None:
    canary = overloaded(FULL)
    verdict = canary.run(served(5), seconds=900)
    assert verdict.kind == "pass"
    assert "at 5 requests/s, blue's baseline with 300 of 300 at 5 requests/s" in canary.evidence.better


def test_a_queue_that_grows_again_under_full_load_is_no_gain() -> None:
    canary = overloaded(FULL)
    for second in range(1500):
        if canary.update(served(5) if second < 60 else late(5)).kind != "wait":
            break
    assert canary.verdict.kind == "futile"


def test_a_lower_load_than_the_baseline_compares_nothing() -> None:
    canary = overloaded(FULL)
    verdict = canary.run(served(2), seconds=1500)
    assert verdict.kind == "wait"
    assert "green gets 2 requests/s, blue's baseline with 300 of 300 at 5 requests/s" in verdict.waits


def test_an_equal_green_beside_a_healthy_blue_ends_without_a_gain_within_fifteen_minutes() -> None:
    canary = Canary(PARITY, baseline=served(600), gain_needed="always")
    canary.run(served(1), served(1), seconds=900)
    assert canary.verdict.kind == "futile"
    assert 300 <= canary.evidence.valid_s <= 900


def test_a_change_that_needs_no_gain_passes_when_not_worse() -> None:
    assert Canary(PARITY, gain_needed="if_missed").run(served(5), served(5), seconds=900).kind == "pass"


def test_a_waiting_step_says_what_it_waits_for() -> None:
    verdict = Canary(PARITY).run(served(1), served(1), seconds=120)
    assert "ttft: evidence" in verdict.waits
    assert "of 20 that green is not worse" in verdict.waits
    verdict = overloaded(PARITY).run(served(1, slow=1), served(1), seconds=5)
    assert "full load not compared yet" in verdict.waits


def test_harm_beside_an_overloaded_blue_still_fails_green() -> None:
    assert overloaded(PARITY).run(served(5, errors=2), late(5), seconds=300).kind == "fail"
    assert overloaded(HOLD).run(served(5, errors=2), seconds=300).kind == "fail"


def test_only_a_clear_miss_of_the_baseline_counts() -> None:
    calibration = Canary(PARITY).evidence.calibration
    assert not misses_slo(calibration, SLO, served(100, slow=10))
    assert misses_slo(calibration, SLO, served(100, slow=30))
    assert not misses_slo(calibration, SLO, served(10, slow=10))
    assert fails_badly(served(40, slow=20))
    assert not fails_badly(served(40, slow=19))


def test_equality_leads_no_further_in_the_hold_step_of_several_servers() -> None:
    """The last old server is the control there: green must be better than it."""
    canary = overloaded(replace(FULL, weight=67, parity=67))
    canary.evidence = canary.evidence.next_step(holding=True)
    assert canary.run(served(4), served(2), seconds=700).kind == "wait"
    assert canary.run(served(4), late(2), seconds=700).kind == "pass"
    assert canary.evidence.better
