"""Rules C1, C2 and A1: when each fires, does not fire, and is outranked."""

from dataclasses import replace

import pytest

from flettner.agent.domain.model import Bound
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Gpu, Reading
from flettner.policies.admission import Admission
from flettner.policies.conformance.readings import a_context, a_reading, steady
from flettner.policies.host_bound import HostBound
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.values import Value
from tests.support.proposals import changes, precedence

SERVERS, TOKENIZER, ASYNC = "api_server_count", "tokenizer_mode", "async_scheduling"
HALF = (Gpu(index=0, uuid="a", utilization=0.4), Gpu(index=1, uuid="b", utilization=0.3))
HOST = a_reading(running=4, waiting=6, gpus=HALF, series={"cpu_utilization": 0.95})
QUIET = a_reading(running=4, gpus=HALF)
OFF: dict[str, Value] = {ASYNC: False}


def proposed(reading: Reading, context: Context) -> list[tuple[str, dict[str, Value]]]:
    return changes(HostBound().propose(reading, context))


def test_busy_host_with_an_idle_gpu_gets_more_api_servers() -> None:
    (proposal,) = HostBound().propose(HOST, a_context())

    assert (proposal.rule, dict(proposal.to), dict(proposal.assumed)) == ("C1", {SERVERS: 2}, {SERVERS: 1})
    assert proposal.why == (
        "over 30 s 6.0 requests waited, the GPU was 40% busy and the CPU 95%: the host is the bottleneck: "
        "raise api_server_count from 1 to 2"
    )


def test_slow_tokenizer_ranks_first_and_requires_approval() -> None:
    (proposal,) = HostBound().propose(HOST, a_context({TOKENIZER: "slow"}))

    assert (dict(proposal.to), proposal.klass) == ({TOKENIZER: None}, "note")


@pytest.mark.parametrize(
    ("reading", "context"),
    [
        pytest.param(replace(HOST, series={}), a_context(), id="the CPU is not known"),
        pytest.param(replace(HOST, series={"cpu_utilization": None}), a_context(), id="it is stale"),
        pytest.param(replace(HOST, series={"cpu_utilization": 0.5}), a_context(), id="the CPU has room"),
        pytest.param(replace(HOST, gpus=()), a_context(), id="the GPU is not known"),
        pytest.param(
            replace(HOST, gpus=(Gpu(index=0, uuid="a", utilization=0.9),)), a_context(), id="the GPU is busy"
        ),
        pytest.param(replace(HOST, kv_usage=steady(0.99)), a_context(), id="the cache is full"),
        pytest.param(replace(HOST, coverage=0.7), a_context(), id="scrapes are missing"),
        pytest.param(HOST, a_context({SERVERS: 4}), id="as many as make sense"),
        pytest.param(HOST, a_context({"headless": True}), id="it has no API server"),
        pytest.param(HOST, a_context(bounds={SERVERS: Bound(max=1)}), id="at the bound"),
        pytest.param(
            HOST,
            replace(
                a_context(), config=ServeConfig(setting={}, env={"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"})
            ),
            id="adapters are loaded at run time",
        ),
    ],
)
def test_c1_proposes_nothing(reading: Reading, context: Context) -> None:
    assert not proposed(reading, context)


def test_reports_an_idle_gpu_without_a_queue_without_a_change() -> None:
    (note,) = HostBound().propose(QUIET, a_context())

    assert (note.rule, note.klass) == ("C2", "note")
    assert "the GPU was 40% busy" in note.why


@pytest.mark.parametrize(
    "reading",
    [
        pytest.param(replace(QUIET, gpus=(Gpu(index=0, uuid="a", utilization=0.6),)), id="busy enough"),
        pytest.param(replace(QUIET, gpus=()), id="not known"),
        pytest.param(replace(QUIET, waiting=steady(1)), id="something waits"),
        pytest.param(replace(QUIET, running=steady(0)), id="idle"),
        pytest.param(replace(QUIET, coverage=0.7), id="scrapes are missing"),
    ],
)
def test_c2_proposes_nothing(reading: Reading) -> None:
    assert not proposed(reading, a_context())


def test_restores_the_default_async_scheduling() -> None:
    assert proposed(a_reading(), a_context(OFF)) == [("A1", {ASYNC: None})]


@pytest.mark.parametrize(
    ("reading", "setting"),
    [
        pytest.param(a_reading(), {}, id="vLLM chooses"),
        pytest.param(a_reading(), {ASYNC: True}, id="it is on"),
        pytest.param(a_reading(version="0.13.0"), OFF, id="too old"),
        pytest.param(a_reading(version=None), OFF, id="the version is not known"),
        pytest.param(a_reading(), {**OFF, "pipeline_parallel_size": 2}, id="pipeline parallel"),
        pytest.param(a_reading(), {**OFF, "enable_dbo": True}, id="dual batch overlap"),
        pytest.param(a_reading(), {**OFF, "distributed_executor_backend": "ray"}, id="another executor"),
        pytest.param(
            a_reading(), {**OFF, "speculative_config": '{"method": "ngram"}'}, id="a method without it"
        ),
        pytest.param(a_reading(coverage=0.7), OFF, id="scrapes are missing"),
    ],
)
def test_a1_proposes_nothing(reading: Reading, setting: dict[str, Value]) -> None:
    assert not proposed(reading, a_context(setting))


def test_async_scheduling_is_compatible_with_eagle() -> None:
    setting = {**OFF, "speculative_config": '{"method": "eagle3"}'}

    assert proposed(a_reading(), a_context(setting)) == [("A1", {ASYNC: None})]


def test_sequence_cap_outranks_the_host_and_k3_outranks_c2() -> None:
    capped = a_context({"max_num_seqs": 4, ASYNC: False})
    spare = replace(QUIET, running=steady(1), gpus=(Gpu(index=0, uuid="a", utilization=0.1),))

    assert precedence(HOST, capped, HostBound(), Admission())[0] == ["Q1", "A1"]
    assert precedence(spare, a_context({"max_num_seqs": 64}), HostBound(), Admission())[0] == ["K3"]
