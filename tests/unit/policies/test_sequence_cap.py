"""The cap on running sequences: given or inferred, per engine, and its limits."""

from dataclasses import replace

import pytest

from flettner.agent.domain.model import Bound, Proposal
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading, Trend
from flettner.policies.admission import Admission
from flettner.policies.conformance.readings import a_context, a_reading
from flettner.vllm_facts.values import Value
from tests.support.proposals import changes

QUEUE = a_reading(running=4, waiting=9)


def proposed(reading: Reading, context: Context) -> list[Proposal]:
    return list(Admission().propose(reading, context))


def changes_of(reading: Reading, context: Context) -> list[tuple[str, dict[str, Value]]]:
    return changes(proposed(reading, context))


HUNDREDS = a_reading(running=2, waiting=300, kv=0.001)


@pytest.mark.parametrize(
    ("bounds", "to"),
    [
        pytest.param({}, 16, id="three octaves"),
        pytest.param({"max_num_seqs": Bound(max=1024, octaves=3)}, 16, id="the default bounds"),
        pytest.param({"max_num_seqs": Bound(max=1024)}, 4, id="a bound without a step limit"),
        pytest.param({"max_num_seqs": Bound(max=1024, octaves=10)}, 512, id="or as far as allowed"),
    ],
)
def test_step_ends_at_the_limit_of_the_guard(bounds: dict[str, Bound], to: int) -> None:
    """Decision 3: 300 wait behind a cap of 2."""
    (proposal,) = proposed(HUNDREDS, a_context({"max_num_seqs": 2}, bounds=bounds))

    assert dict(proposal.to) == {"max_num_seqs": to}
    assert ("the queue empties" in proposal.expects) is (to >= 302)


@pytest.mark.parametrize(
    ("running", "setting", "to"),
    [
        pytest.param(8, {"max_num_seqs": 4}, {"max_num_seqs": 16}, id="each engine has a cap of its own"),
        pytest.param(4, {"max_num_seqs": 4}, None, id="half of each is free"),
        pytest.param(8, {}, {"max_num_seqs": 16}, id="inferred for each"),
        pytest.param(
            4,
            {"max_num_seqs": 4, "data_parallel_external_lb": True},
            {"max_num_seqs": 32},
            id="a page for each",
        ),
    ],
)
def test_engines_of_one_page_share_its_queue(
    running: int, setting: dict[str, Value], to: dict[str, Value] | None
) -> None:
    reading = a_reading(running=running, waiting=18, kv=0.05)

    assert changes_of(reading, a_context({"data_parallel_size": 2, **setting})) == (
        [("Q1", to)] if to else []
    )


@pytest.mark.parametrize(("running", "asks"), [(8, True), (4, False)])
def test_replicas_behind_one_name_have_a_cap_each(running: int, asks: bool) -> None:
    reading = a_reading(running=running, waiting=18, kv=0.05)
    of_two = replace(reading, facts={**reading.facts, "replicas": "2"})

    assert bool(changes_of(of_two, a_context({"max_num_seqs": 4}))) == asks


def test_lowers_each_engine_to_its_running_sequences() -> None:
    reading = a_reading(running=64, waiting=20, kv=0.97, preemptions=1)
    setting: dict[str, Value] = {"data_parallel_size": 2, "max_num_seqs": 64, "watermark": 0.05}
    (fewer, _) = proposed(reading, a_context(setting))

    assert (dict(fewer.to), fewer.assumed) == ({"max_num_active_seqs": 24}, {"max_num_active_seqs": 32})


def test_marks_an_inferred_cap() -> None:
    (proposal,) = proposed(QUEUE, a_context())

    assert "max_num_seqs is not given, a cap of 4 is inferred" in proposal.why


@pytest.mark.parametrize(
    ("running", "setting", "inferred"),
    [
        pytest.param(4, {"model": "m"}, False, id="vLLM's own cap is 128 or more"),
        pytest.param(128, {"model": "m"}, True, id="as many as that"),
        pytest.param(4, {"model": "m", "config": "/etc/vllm.yaml"}, True, id="a config file sets the rest"),
        pytest.param(4, {}, True, id="no command is known"),
    ],
)
def test_level_below_the_default_cap_is_no_cap_of_a_known_command(
    running: int, setting: dict[str, Value], inferred: bool
) -> None:
    """Raising an assumed cap of 4 would lower the actual 256."""
    queue = a_reading(running=running, waiting=90, kv=0.01)

    assert bool(proposed(queue, a_context(setting))) is inferred


@pytest.mark.parametrize(("at_high", "inferred"), [(0.07, False), (0.8, True)])
def test_infers_a_cap_from_a_ceiling_that_running_touches(at_high: float, inferred: bool) -> None:
    """Recorded on a GPU: 8 ran in most scrapes, 5 to 7 in those between two steps, and hundreds waited."""
    swinging = Trend(mean=7.6, low=5, high=8, early=7.5, late=7.7, at_high=at_high)

    assert bool(proposed(a_reading(running=swinging, waiting=9), a_context())) is inferred
