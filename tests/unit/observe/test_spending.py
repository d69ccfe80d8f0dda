"""What a target spent over the last minutes."""

import pytest

from flettner.agent.domain.cost import GpuRates
from flettner.agent.domain.model import Server
from flettner.agent.observe.minute_rows import MinuteRow
from flettner.agent.observe.spending import count_gpus, gpu_rates, recent_cost, recent_rows

SPLIT = Server(name="r0", setting={"tensor_parallel_size": 2, "data_parallel_size": 2})
ALONE = Server(name="r1", setting={}, replicas=3)


@pytest.mark.parametrize(("seen", "gpus"), [(0, 7), (8, 7), (4, 4)])
def test_servers_take_the_gpus_of_their_flags_or_those_seen(seen: int, gpus: int) -> None:
    assert count_gpus((SPLIT, ALONE), seen) == gpus


def minute(number: int, **numbers: float) -> MinuteRow:
    return MinuteRow(at=60 * number, **numbers)


def test_the_cost_is_of_the_means_of_five_minutes() -> None:
    minutes = [minute(number, generated_per_s=1000.0, goodput_rps=4.0, power_w=900.0) for number in range(4)]
    minutes += [minute(4, generated_per_s=2000.0, goodput_rps=4.0, power_w=1400.0), minute(5, running=1.0)]

    rows = recent_rows(minutes, 360.0)
    rates = gpu_rates(rows, 3.6, gpus=2, seen=2)
    cost = recent_cost(rows, rates, 2)

    assert [row.at for row in rows] == [0, 60, 120, 180, 240, 300]
    assert rates == GpuRates(per_hour=3.6, power_w=500.0)
    assert cost is not None
    assert cost.per_million_tokens == pytest.approx(1e6 * 7.2 / 3600 / 1200)
    assert cost.per_thousand_good_requests == pytest.approx(0.5)
    assert cost.tokens_per_joule == pytest.approx(1.2)


def test_old_minutes_do_not_count() -> None:
    assert recent_rows([minute(0), minute(7)], 480.0) == [minute(7)]


def test_the_power_of_a_host_with_other_gpus_is_nobodys() -> None:
    rows = [minute(0, power_w=900.0)]

    assert gpu_rates(rows, None, gpus=2, seen=8) == GpuRates()
    assert gpu_rates(rows, None, gpus=0, seen=0) == GpuRates()
    assert recent_cost(rows, GpuRates(), 2) is None
