"""Step times, compared with manual calculations from the measured coefficients."""

import pytest

from flettner.simulator.hardware import PRESETS, split
from flettner.simulator.kv_cache import KvCache
from flettner.simulator.replay import replay
from flettner.simulator.scheduler import Scheduler, SchedulerLimits, SimulatedRequest
from flettner.simulator.step_time import StepTime, StepWork, capture_sizes

RTX_4090 = PRESETS["4090-8b"]


@pytest.mark.parametrize(("batch", "context"), [(1, 500), (32, 1000), (100, 300)])
def test_time_per_token_of_a_4090_equals_the_manual_calculation(batch: int, context: int) -> None:
    made = [SimulatedRequest(name=str(n), prompt=context, wanted=101) for n in range(batch)]
    scheduler = Scheduler(SchedulerLimits(max_num_batched_tokens=100_000), KvCache(20_000, caching=False))
    served = replay(made, scheduler, StepTime(hardware=RTX_4090).seconds)
    tpot_ms = (served.seconds - (made[0].first_at or 0)) * 1000 / 100
    # weights 15.7 + head 1.19 + attention 0.37 + host 0.8 + 0.04 a sequence + 0.1415 us a token of context
    by_hand_ms = 15.7 + 1.19 + 0.37 + 0.8 + 0.04 * batch + 0.1415e-3 * batch * (context + 50)

    assert tpot_ms == pytest.approx(by_hand_ms, rel=0.15)


def test_below_the_ridge_prompt_tokens_are_free() -> None:
    law = StepTime(hardware=RTX_4090)
    few, some = (
        law.seconds(StepWork(tokens=1, sequences=1)),
        law.seconds(StepWork(tokens=100, sequences=1, prefills=1)),
    )
    many = law.seconds(StepWork(tokens=2048, sequences=1, prefills=1))

    assert some == few
    assert many == pytest.approx((5940 + 87.6 * 2048 + 1556 + 840) / 1e6)


def test_eager_mode_adds_only_launch_time_that_the_gpu_does_not_hide() -> None:
    step = StepWork(tokens=1, sequences=1)
    h100, t4 = PRESETS["h100-8b"], PRESETS["t4-8b-awq"]

    assert StepTime(hardware=h100, eager=True).seconds(step) > StepTime(hardware=h100).seconds(step)
    assert StepTime(hardware=t4, eager=True).seconds(step) == StepTime(hardware=t4).seconds(step)


def test_a_batch_beyond_the_largest_graph_is_launched_kernel_by_kernel() -> None:
    law = StepTime(hardware=PRESETS["h100-8b"], largest_graph=16)

    assert law.graph_size(StepWork(tokens=9, sequences=9)) == 16
    assert law.graph_size(StepWork(tokens=17, sequences=17)) is None
    assert (
        law.seconds(StepWork(tokens=17, sequences=17)) > law.seconds(StepWork(tokens=16, sequences=16)) * 1.1
    )


def test_graphs_are_captured_at_the_sizes_of_vllm() -> None:
    assert capture_sizes(32) == (1, 2, 4, 8, 16, 24, 32)
    assert capture_sizes(512)[-3:] == (480, 496, 512)
    assert len(capture_sizes(512)) == 51


def test_a_t4_serves_at_the_measured_speed() -> None:
    law = StepTime(hardware=PRESETS["t4-8b-awq"])
    tokens_per_s = {n: n / law.seconds(StepWork(tokens=n, sequences=n, kv_read=n * 100)) for n in (1, 4, 16)}

    assert tokens_per_s == pytest.approx({1: 42, 4: 158, 16: 476}, rel=0.05)


@pytest.mark.parametrize(("link", "each_us", "gb_per_s"), [("nvlink", 12.0, 250.0), ("pcie", 40.0, 15.0)])
def test_four_gpus_share_a_layer_and_pay_for_two_reductions_of_it(
    link: str, each_us: float, gb_per_s: float
) -> None:
    alone, batch = PRESETS["l40s-2b"], StepWork(tokens=32, sequences=32, kv_read=32_000)

    shared = StepTime(hardware=split(alone, 4, link)).seconds(batch)

    sent_us = 2 * 28 * 32 * 2 * 2048 * 1.5 / (gb_per_s * 1e3)  # of 32 tokens, by a ring of four
    computed_us = max(4_690 / 4, 32 * 18.8 / 4 + sent_us)
    by_hand_us = computed_us + 2 * 28 * each_us + 0.156 / 4 * 32_000 + 400 + 9 * 32
    assert shared == pytest.approx(by_hand_us / 1e6)
    assert split(alone, 1, link) == alone
