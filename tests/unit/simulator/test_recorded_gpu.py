"""The simulated H100 serves recorded requests as the real one did."""

import pytest

from flettner.performance_model.outside import OUTSIDE
from flettner.primitives.quantiles import quantile
from flettner.simulator.hardware import PRESETS
from flettner.simulator.kv_cache import KvCache
from flettner.simulator.replay import replay
from flettner.simulator.scheduler import Scheduler, SchedulerLimits, SimulatedRequest
from flettner.simulator.step_time import StepTime
from tests.unit.performance_model.recorded_gpu import RecordedSetting, read_sweep

H100 = read_sweep("h100-qwen3-8b-20rps").settings
KV_TOKENS = 384_464
SECONDS, GRACE_S = 12.0, 1.0  # of a setting; what had not ended then was cut off
LIGHT_MS = 100.0  # a measured TTFT without a queue


def requests(setting: RecordedSetting) -> list[SimulatedRequest]:
    return [
        SimulatedRequest(
            name=str(number),
            prompt=prompt,
            wanted=wanted,
            hashes=[1_000 * number + block for block in range(prompt // 16)],
            arrived_at=at_s,
        )
        for number, (at_s, prompt, wanted, _, _) in enumerate(setting.row["requests"])
    ]


@pytest.mark.parametrize("setting", [H100[0], *H100[2:]], ids=lambda setting: setting.name)
def test_time_between_tokens_throughput_and_ttft_are_as_recorded(setting: RecordedSetting) -> None:
    """Where the prompts were cached, they came before. The second setting had some of them."""
    cache = KvCache(KV_TOKENS // 16)
    limits = SchedulerLimits(
        max_num_seqs=setting.row["max_num_seqs"],
        max_num_batched_tokens=setting.row["max_num_batched_tokens"],
    )
    law = StepTime(hardware=PRESETS["h100-qwen3-8b"])
    *_, run = (
        replay(requests(setting), Scheduler(limits, cache), law.seconds, async_scheduling=True)
        for _ in range(2 if setting.cached_share else 1)
    )

    ended = [request for request in run.requests if request.last_at and request.last_at < SECONDS + GRACE_S]
    begun = [request for request in run.requests if request.first_at and request.first_at < SECONDS + GRACE_S]
    gaps_s = [
        ((request.last_at or 0.0) - (request.first_at or 0.0)) / (request.wanted - 1) for request in ended
    ]
    waits_s = sorted((request.first_at or 0.0) - request.arrived_at + OUTSIDE.value for request in begun)
    measured = setting.measured
    assert 1000 * sum(gaps_s) / len(gaps_s) == pytest.approx(measured["itl_mean_ms"], rel=0.1)
    assert sum(request.wanted for request in ended) / SECONDS == pytest.approx(
        measured["tokens_per_s"], rel=0.1
    )
    if measured["ttft_p50_ms"] < LIGHT_MS:
        assert 1000 * quantile(waits_s, 0.5) == pytest.approx(measured["ttft_p50_ms"], rel=0.25)
