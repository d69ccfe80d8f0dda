"""Cost by hand: of what is served now, of predictions, and of the recordings of an H100 in docs/cost.md."""

import json
from pathlib import Path
from typing import Any

import pytest

from flettner.agent.domain.cost import Cost, GpuRates, add_cost, cost_of_change, measure_cost
from flettner.agent.domain.model_search import Capacity, ModelSearchResult, PredictedChange
from flettner.performance_model.band import Band
from tests.support.fast_time import NOON

ROOT = Path(__file__).parents[3]
RATES = GpuRates(per_hour=3.6, power_w=500.0)


def test_two_gpus_for_an_hour() -> None:
    """7.2 an hour are 0.002 a second, for 1,000 tokens and 4 good requests; 1,000 W."""
    assert measure_cost(RATES, 2, tokens_per_s=1000.0, good_per_s=4.0) == Cost(
        gpus=2,
        power_w=1000.0,
        per_hour=7.2,
        per_million_tokens=2.0,
        per_thousand_good_requests=0.5,
        tokens_per_joule=1.0,
    )


@pytest.mark.parametrize(
    ("rates", "tokens", "expected"),
    [
        (GpuRates(), 1000.0, None),
        (GpuRates(per_hour=3.6), 0.0, Cost(gpus=1, per_hour=3.6)),
        (GpuRates(per_hour=3.6), None, Cost(gpus=1, per_hour=3.6)),
        (GpuRates(power_w=500.0), 1000.0, Cost(gpus=1, power_w=500.0, tokens_per_joule=2.0)),
    ],
)
def test_what_is_unknown_is_left_out(rates: GpuRates, tokens: float | None, expected: Cost | None) -> None:
    assert measure_cost(rates, 1, tokens_per_s=tokens, good_per_s=None) == expected


def test_the_band_of_a_cost_is_that_of_the_rate_turned_round() -> None:
    numbers = {
        "tokens_per_s": Band(value=1000.0, low=500.0, high=2000.0),
        "goodput_per_s": Band(value=1.0, low=0.0, high=2.0),
    }

    priced = add_cost(numbers, RATES, 2)

    assert priced["cost_per_million_tokens"] == Band(value=2.0, low=1.0, high=4.0)
    assert priced["tokens_per_joule"] == Band(value=1.0, low=0.5, high=2.0)
    assert "cost_per_thousand_good_requests" not in priced  # the band holds none
    assert add_cost(numbers, GpuRates(), 2) == numbers


def test_a_change_has_the_cost_that_was_predicted_for_it() -> None:
    now, then, rule = ({"tokens_per_joule": Band(value=x, low=x, high=x)} for x in (1.0, 2.0, 3.0))
    gain = Band(value=0.1, low=0.0, high=0.2)
    result = ModelSearchResult(
        made_at=NOON,
        setting={},
        rate_rps=1.0,
        requests=100,
        law_source="iteration log",
        itl_error=0.0,
        ttft_error=0.0,
        wanted=0.95,
        present=now,
        best=PredictedChange(to={"max_num_seqs": 64}, gain=gain),
        then=then,
        rules=(PredictedChange(to={"max_num_seqs": 32}, gain=gain, rule="Q1", then=rule),),
        capacity=Capacity(rate_rps=1.0, servers=1),
    )

    costs = [cost_of_change(result, {"max_num_seqs": seqs}) for seqs in (64, 32, 16)]

    assert [cost.then if cost else None for cost in costs] == [then, rule, None]
    assert costs[0] is not None
    assert costs[0].now == now


def recorded() -> list[dict[str, Any]]:
    document = json.loads((ROOT / "tests/data/gpu/h100-power.json").read_text())
    settings: list[dict[str, Any]] = document["settings"]
    return settings


def test_the_recordings_have_the_cost_that_the_docs_calculate() -> None:
    rows = []
    for row in recorded():
        power_w = sum(row["power_w"]) / len(row["power_w"])
        tokens_per_s = row["tokens"] / row["seconds"]
        cost = measure_cost(
            GpuRates(per_hour=2.5, power_w=power_w),
            1,
            tokens_per_s=tokens_per_s,
            good_per_s=row["goodput_rps"],
        )
        assert cost is not None
        rows.append(
            f"| {row['max_num_seqs']} | {row['max_num_batched_tokens']:,} | {tokens_per_s:,.0f} | "
            f"{row['goodput_rps']:.2f} | {power_w:.0f} | {cost.per_million_tokens:.3f} | "
            f"{cost.per_thousand_good_requests:.4f} | {cost.tokens_per_joule:.2f} |"
        )

    page = (ROOT / "docs/cost.md").read_text().splitlines()

    assert [row for row in rows if row not in page] == []
