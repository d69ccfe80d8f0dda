"""Rules G1, G2 and G3: when each fires, does not fire, and is outranked."""

from dataclasses import replace
from datetime import timedelta

import pytest

from flettner.agent.domain.model import Bound, Outcome
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.policies.admission import Admission
from flettner.policies.conformance.readings import NOON, a_context, a_reading, late, steady
from flettner.policies.graphs import Graphs
from flettner.rules.precedence import ranked
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.values import Value
from tests.support.proposals import changes, precedence, rules

EAGER, LEVEL, CONFIG = "enforce_eager", "optimization_level", "compilation_config"
LARGEST, SIZES = "max_cudagraph_capture_size", "cudagraph_capture_sizes"
DOTTED = f"{CONFIG}.cudagraph_mode"
SPIKES = a_reading(running=100, itl=late(0.0, p50=0.01, p99=0.2))
WIDE = replace(SPIKES, running=steady(700))
OOM = Outcome(at=NOON - timedelta(days=1), result="failed", to={"x": 1}, why="CUDA out of memory")


def proposed(reading: Reading, context: Context) -> list[tuple[str, dict[str, Value]]]:
    return changes(Graphs().propose(reading, context))


def test_removes_eager_mode_and_quotes_the_gain() -> None:
    (proposal,) = Graphs().propose(a_reading(), a_context({EAGER: True}))

    assert (proposal.rule, dict(proposal.to), proposal.klass) == ("G1", {EAGER: False}, "auto")
    assert not proposal.mitigation
    assert "not promised" in proposal.expects
    assert "start takes minutes longer" in proposal.risks


@pytest.mark.parametrize(
    ("reading", "context"),
    [
        pytest.param(a_reading(), a_context({EAGER: False}), id="graphs are on"),
        pytest.param(a_reading(), a_context({}), id="vLLM's default"),
        pytest.param(a_reading(running=0), a_context({EAGER: True}), id="nothing runs"),
        pytest.param(a_reading(coverage=0.7), a_context({EAGER: True}), id="scrapes are missing"),
        pytest.param(a_reading(), a_context({EAGER: True}, outcomes=(OOM,)), id="memory ran out once"),
        pytest.param(
            a_reading(), a_context({EAGER: True}, bounds={EAGER: Bound(allowed=(True,))}), id="forbidden"
        ),
        pytest.param(
            a_reading(),
            replace(
                a_context({EAGER: True}), config=ServeConfig(setting={}, env={"CUDA_LAUNCH_BLOCKING": "1"})
            ),
            id="debugging",
        ),
        pytest.param(
            a_reading(),
            replace(a_context({EAGER: True}), config=ServeConfig(setting={}, version="0.32.0+cpu")),
            id="a build for CPUs",
        ),
    ],
)
def test_g1_proposes_nothing(reading: Reading, context: Context) -> None:
    assert not proposed(reading, context)


def test_keeps_eager_mode_if_the_debugging_option_is_set() -> None:
    assert not Graphs(debugging=True).propose(a_reading(), a_context({EAGER: True}))


@pytest.mark.parametrize(
    ("setting", "to"),
    [
        ({LARGEST: 32, "max_num_seqs": 128}, {LARGEST: None}),
        ({SIZES: "1 2 4 8", "max_num_seqs": 128}, {SIZES: None}),
    ],
)
def test_resets_capture_sizes_too_small_for_the_running_batch(
    setting: dict[str, Value], to: dict[str, Value]
) -> None:
    assert proposed(SPIKES, a_context(setting)) == [("G2", to)]


def test_g2_is_a_mitigation_if_an_slo_is_missed() -> None:
    context = a_context({LARGEST: 32, "max_num_seqs": 128})

    for share, missed in ((0.0, False), (0.3, True)):
        (proposal,) = Graphs().propose(replace(SPIKES, itl=late(share, p50=0.01, p99=0.2)), context)
        assert proposal.mitigation is missed


def test_proposes_more_capture_sizes_than_the_default() -> None:
    assert proposed(WIDE, a_context({"max_num_seqs": 1024})) == [("G2", {LARGEST: 1024})]


@pytest.mark.parametrize(
    ("reading", "setting"),
    [
        pytest.param(SPIKES, {LARGEST: 128, "max_num_seqs": 128}, id="they cover the running batch"),
        pytest.param(SPIKES, {"max_num_seqs": 128}, id="the default does"),
        pytest.param(replace(SPIKES, itl=late(0.0, p50=0.01, p99=0.02)), {LARGEST: 32}, id="no spikes"),
        pytest.param(replace(SPIKES, itl=None), {LARGEST: 32}, id="ITL is not known"),
        pytest.param(replace(SPIKES, facts={"version": "0.11.0"}), {LARGEST: 32}, id="too old"),
        pytest.param(replace(SPIKES, coverage=0.7), {LARGEST: 32}, id="scrapes are missing"),
    ],
)
def test_g2_proposes_nothing(reading: Reading, setting: dict[str, Value]) -> None:
    assert not proposed(reading, a_context(setting))


@pytest.mark.parametrize(
    ("setting", "to"),
    [
        ({LEVEL: 0}, {LEVEL: None}),
        ({LEVEL: "1"}, {LEVEL: None}),
        ({DOTTED: "PIECEWISE"}, {DOTTED: None}),
        ({CONFIG: '{"cudagraph_mode": "NONE"}'}, {CONFIG: None}),
        ({CONFIG: '{"cudagraph_mode": "NONE", "mode": 3}'}, {CONFIG: '{"mode": 3}'}),
    ],
)
def test_restores_the_default_graph_mode(setting: dict[str, Value], to: dict[str, Value]) -> None:
    assert proposed(a_reading(), a_context(setting)) == [("G3", to)]


@pytest.mark.parametrize(
    "setting",
    [
        pytest.param({LEVEL: 2}, id="the default"),
        pytest.param({LEVEL: 3}, id="the same today"),
        pytest.param({DOTTED: "FULL_AND_PIECEWISE"}, id="the default mode"),
        pytest.param({CONFIG: "{no json"}, id="not readable"),
        pytest.param({CONFIG: '["x"]'}, id="no table"),
        pytest.param({}, id="not given"),
    ],
)
def test_g3_proposes_nothing(setting: dict[str, Value]) -> None:
    assert not proposed(a_reading(), a_context(setting))


def test_kv_pressure_and_a_queue_outrank_graphs() -> None:
    context = a_context({EAGER: True, "max_num_seqs": 16})
    queue = a_reading(running=16, waiting=4)
    thrash = replace(queue, kv_usage=steady(0.99), preemptions_per_s=steady(1.0))

    assert precedence(queue, context, Graphs(), Admission())[0] == ["Q1", "G1"]
    assert "G1" not in precedence(thrash, context, Graphs(), Admission())[0]


def test_g1_outranks_the_capture_sizes() -> None:
    reported = [
        *Graphs().propose(SPIKES, a_context({LARGEST: 32})),
        *Graphs().propose(a_reading(), a_context({LEVEL: 0})),
        *Graphs().propose(a_reading(), a_context({EAGER: True})),
    ]

    assert rules(reported) == ["G2", "G3", "G1"]
    assert rules(ranked(reported).winners) == ["G1"]
