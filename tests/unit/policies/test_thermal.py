"""Rule T1: when it fires, does not fire, and outranks every other rule."""

from dataclasses import replace

import pytest

from flettner.agent.domain.reading import Gpu, Reading
from flettner.policies.admission import Admission
from flettner.policies.conformance.readings import a_context, a_reading
from flettner.policies.graphs import Graphs
from flettner.policies.thermal import Thermal
from tests.support.proposals import precedence

COOL = Gpu(index=0, uuid="GPU-1", temperature_c=65.0, throttle_reasons=0)
HOT = replace(COOL, temperature_c=84.0)
SLOWED = replace(COOL, throttle_reasons=0x40 | 0x4)


def reading(*gpus: Gpu) -> Reading:
    return a_reading(running=16, waiting=4, gpus=gpus)


def test_hot_or_throttled_gpu_blocks_every_change() -> None:
    (note,) = Thermal().propose(reading(COOL, HOT, SLOWED), a_context())

    assert (note.rule, note.klass, dict(note.to)) == ("T1", "note", {})
    assert note.why == (
        "thermal throttling: GPU 0 at 84 °C (from 80 °C); GPU 0 at 65 °C, reports hardware thermal slowdown"
    )
    assert [e.value for e in note.evidence if e.metric == "temperature"] == [84.0]


@pytest.mark.parametrize(
    "reading",
    [
        pytest.param(reading(COOL), id="cool"),
        pytest.param(reading(replace(COOL, temperature_c=79.9)), id="just below"),
        pytest.param(reading(replace(COOL, throttle_reasons=0x4)), id="at its power cap, as when busy"),
        pytest.param(reading(replace(COOL, throttle_reasons=0x1)), id="idle clocks"),
        pytest.param(reading(replace(COOL, temperature_c=None, throttle_reasons=None)), id="not known"),
        pytest.param(reading(), id="no GPU"),
        pytest.param(replace(reading(HOT), coverage=0.7), id="scrapes are missing"),
    ],
)
def test_t1_reports_nothing(reading: Reading) -> None:
    assert not Thermal().propose(reading, a_context())


def test_power_cap_counts_if_configured() -> None:
    capped = reading(replace(COOL, throttle_reasons=0x4))

    assert Thermal(power_cap_counts=True).propose(capped, a_context())


def test_blocks_all_other_proposals_while_throttled() -> None:
    context = a_context({"max_num_seqs": 16, "enforce_eager": True})

    winners, outranked = precedence(reading(HOT), context, Admission(), Graphs(), Thermal())

    assert (winners, outranked) == (["T1"], {"Q1": "T1", "G1": "T1"})
