"""Where the time of late requests went, and what a request costs, from scrapes of the simulator."""

from datetime import UTC, datetime

import pytest

from flettner.agent.domain.model import Objective, Slo
from flettner.agent.domain.reading import EngineSample, Reading, Workload
from flettner.agent.observe.attribution import LateRequests, clumping, share_itl
from tests.unit.policies.live import Load, Situation, serve

SLO = Slo(
    ttft=Objective(under_s=0.5, share=0.95),
    itl=Objective(under_s=0.05, share=0.95),
    e2e=Objective(under_s=8.0, share=0.95),
)
CHAT = Load(prompt=200, output=100, rate=4.0)


def served(flags: str, *loads: Load, hardware: str = "4090-8b") -> Reading:
    return serve(Situation(flags=flags, loads=loads, slo=SLO, hardware=hardware))


def test_a_low_cap_makes_a_queue() -> None:
    reading = served("--max-num-seqs 2", CHAT)

    assert reading.ttft is not None
    assert reading.ttft_shares is not None
    assert reading.e2e_shares is not None
    assert reading.queue is not None
    assert reading.ttft_shares.queue > 0.95
    assert reading.e2e_shares.queue > 0.9
    assert reading.queue.running == pytest.approx(2, abs=0.1)
    assert reading.ttft.overdue > 20
    assert reading.queue.wait_s > 10


def test_a_small_budget_delays_long_prompts() -> None:
    reading = served("--max-num-batched-tokens 64", Load(prompt=3000, output=20, rate=0.4))

    assert reading.ttft_shares is not None
    assert reading.ttft_shares.prefill > 0.6


def test_prompts_in_the_steps_of_answers_delay_the_tokens() -> None:
    mixed = served("--max-num-batched-tokens 8192", Load(prompt=4000, output=30, rate=1.2))
    decoding = served("", Load(prompt=50, output=400, streams=48), hardware="t4-8b-awq")

    assert mixed.itl_shares is not None
    assert decoding.itl_shares is not None
    assert mixed.itl_shares.prefill > 0.9
    assert decoding.itl_shares.decode > 0.6


def test_the_batches_of_bursts_delay_their_tokens() -> None:
    work = Workload(decode_step_s=0.04, token_s=2e-4)
    late = LateRequests(count=50, mean_s=0.08, duration_s=None)
    steady, bursts = ([sampled(running) for running in counts] for counts in ((40,) * 4, (10, 10, 10, 130)))

    shares = [share_itl(samples, late, work, SLO.itl) for samples in (steady, bursts) if SLO.itl]

    assert [share.decode > 0.5 for share in shares if share] == [False, True]


def sampled(running: float) -> EngineSample:
    return EngineSample(
        at=datetime(2026, 1, 1, tzinfo=UTC), server="r1", interval_s=1, running=running, waiting=0
    )


def test_the_cost_of_a_request_is_measured() -> None:
    work = served("", Load(prompt=400, output=100, rate=3.0)).work

    assert work.arrivals_per_s == pytest.approx(3.0, rel=0.4)
    assert work.prompt_tokens == pytest.approx(400, rel=0.1)
    assert work.answer_tokens == pytest.approx(100, rel=0.2)
    assert work.token_s == pytest.approx(88e-6, rel=0.5)
    assert work.decode_step_s == pytest.approx(0.0185, rel=0.2)
    assert work.service_s == pytest.approx(100 * 0.0185, rel=0.4)


def test_late_requests_that_come_together_are_less_evidence() -> None:
    apart = [(second, second % 5 == 0) for second in range(30)]
    together = [(second, second < 6) for second in range(30)]

    assert clumping([(float(at_s), bad) for at_s, bad in apart], 30) == 1.0
    assert clumping([(float(at_s), bad) for at_s, bad in together], 30) > 2
    assert clumping([], 30) == 1.0
