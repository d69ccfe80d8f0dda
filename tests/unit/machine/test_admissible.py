"""Only tunable knobs with values of the right type pass the guard, for policies and operators."""

from dataclasses import replace

import pytest

from flettner.agent.config.convert import BOUNDS
from flettner.agent.domain.fleet import Fleet
from flettner.agent.domain.model import Bound, Objective, Proposal, Slo
from flettner.agent.domain.reading import Latency
from flettner.agent.domain.state import State
from flettner.agent.domain.suggestion import Suggestion
from flettner.agent.machine.guard import Guard, ProposalRefusal
from flettner.agent.machine.starting import gain_needed
from flettner.vllm_facts.values import Knob, Value
from tests.support.machine_stories import BLUE, NOON, PLAN, reading

GUARD = Guard(bounds=BOUNDS)
STATE = State(target="chat", fleet=Fleet(servers=(BLUE,)))
SEEN = reading(NOON)

HOSTILE: tuple[tuple[Knob, Value], ...] = (
    ("served_model_name", "gpt-4"),
    ("hf_config_path", "/tmp/evil"),  # noqa: S108 - never opened
    ("hf_overrides", '{"architectures": ["Evil"]}'),
    ("model_impl", "transformers"),
    ("trust_remote_code", True),
    ("scheduler_cls", "evil.Scheduler"),
    ("worker_cls", "evil.Worker"),
    ("worker_extension_cls", "evil.Worker"),
    ("middleware", "evil.Middleware"),
    ("logits_processors", "evil.Processor"),
    ("tool_parser_plugin", "/tmp/evil.py"),  # noqa: S108 - as above
    ("reasoning_parser_plugin", "/tmp/evil.py"),  # noqa: S108 - as above
    ("io_processor_plugin", "evil"),
    ("distributed_executor_backend", "evil.Executor"),
    ("speculative_config", '{"model": "evil/draft"}'),
    ("spec_model", "evil/draft"),
    ("speculative_config.model", "evil/draft"),
    ("compilation_config", '{"backend": "evil.backend"}'),
    ("compilation_config.backend", "evil.backend"),
    ("compilation_config.mode", 3),
    ("kv_transfer_config", '{"kv_connector_module_path": "evil"}'),
    ("model_loader_extra_config", "{}"),
    ("load_format", "dummy"),
    ("tokenizer_mode", "slow"),
    ("quantization", "fp8"),
    ("dtype", "half"),
    ("lora_modules", "evil=/tmp/evil"),
    ("enable_lora", True),
    ("chat_template", "/etc/passwd"),
    ("config", "/etc/evil.yaml"),
    ("allowed_local_media_path", "/"),
    ("download_dir", "/etc"),
    ("ssl_keyfile", "/etc/key"),
    ("host", "0.0.0.0"),  # noqa: S104 - never bound
    ("port", 22),
    ("api_key", "mine"),
    ("hf_token", "mine"),
    ("allowed_origins", "*"),
    ("otlp_traces_endpoint", "http://evil:4317"),
    ("enable_log_requests", True),
    ("enable_log_outputs", True),
    ("disable_log_stats", True),
    ("enable_sleep_mode", True),
    ("prefix_caching_hash_algo", "xxhash"),
    ("nnodes", 2),
    ("attention_backend", "CUSTOM"),
    ("swap_space", 4.0),
    ("unheard_of_flag", 1),
    ("--host", "evil"),
)
MISTYPED: tuple[tuple[Knob, Value, str], ...] = (
    ("max_num_seqs", 8.5, "max_num_seqs is a whole number"),
    ("max_num_seqs", -5, "max_num_seqs is at least 1"),
    ("max_num_seqs", True, "max_num_seqs is a whole number"),
    ("max_num_seqs", "8", "max_num_seqs is a whole number"),
    ("max_num_seqs", "8 --trust-remote-code", "max_num_seqs is a whole number"),
    ("gpu_memory_utilization", "0.9", "gpu_memory_utilization is a number"),
    ("gpu_memory_utilization", float("nan"), "gpu_memory_utilization is a finite number"),
    ("kv_offloading_size", float("inf"), "kv_offloading_size is a finite number"),
    ("enforce_eager", 1, "enforce_eager is on or off"),
    ("enforce_eager", "false", "enforce_eager is on or off"),
    ("scheduling_policy", "evil.Policy", "scheduling_policy is one of fcfs, priority"),
    ("max_lora_rank", True, "max_lora_rank is one of 1, 8"),
    ("cudagraph_capture_sizes", "1 2 --trust-remote-code", "cudagraph_capture_sizes is whole numbers"),
    ("cudagraph_capture_sizes", "1 0 2", "cudagraph_capture_sizes is whole numbers of at least 1"),
    ("cudagraph_capture_sizes", "1 2\n", "cudagraph_capture_sizes is whole numbers"),
    ("cudagraph_capture_sizes", "[1, 2]", "cudagraph_capture_sizes is whole numbers"),
    ("cudagraph_capture_sizes", "", "cudagraph_capture_sizes is whole numbers"),
    ("cudagraph_capture_sizes", True, "cudagraph_capture_sizes is whole numbers"),
    ("cudagraph_capture_sizes", -1, "cudagraph_capture_sizes is whole numbers"),
)


def admit_both(to: dict[Knob, Value], guard: Guard = GUARD) -> list[Suggestion | ProposalRefusal]:
    """Return the results for a proposal of a policy and for a request of an operator."""
    proposal = Proposal(rule="X1", to=to, why="1 waits", expects="less", risks="none", source="test")
    return [
        guard.admit(STATE, proposal, policy="stranger", at=NOON, reading=SEEN),
        guard.admit_asked(STATE, proposal, actor="mallory", at=NOON),
    ]


@pytest.mark.parametrize(("knob", "value"), HOSTILE, ids=[knob for knob, _ in HOSTILE])
def test_a_knob_that_is_not_tunable_is_refused_with_advice(knob: Knob, value: Value) -> None:
    for refusal in (
        *admit_both({knob: value}),
        *admit_both({knob: None}),
        *admit_both({"max_num_seqs": 8, knob: value}),
    ):
        assert isinstance(refusal, ProposalRefusal)
        assert f"a change of {knob} was requested" in refusal.why
        assert "[targets.bounds." in refusal.why
        assert "under `allowed`" in refusal.why


@pytest.mark.parametrize(("knob", "value", "why"), MISTYPED)
def test_a_value_of_the_wrong_type_is_refused_and_not_clamped(knob: Knob, value: Value, why: str) -> None:
    for refusal in (*admit_both({knob: value}), *admit_both({"stream_interval": 2, knob: value})):
        assert isinstance(refusal, ProposalRefusal)
        assert f"{knob}=" in refusal.why
        assert why in refusal.why


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ("enforce_eager", True),
        ("scheduling_policy", "priority"),
        ("cudagraph_capture_sizes", "1 2 4"),
        ("cudagraph_capture_sizes", 8),
        ("max_model_len", "auto"),
        ("stream_interval", 4),
    ],
)
def test_an_operator_may_request_a_performance_knob(knob: Knob, value: Value) -> None:
    _, suggestion = admit_both({knob: value})

    assert isinstance(suggestion, Suggestion)
    assert suggestion.proposal.to == {knob: value}


def test_a_tunable_flag_may_be_removed() -> None:
    given = replace(
        STATE,
        fleet=replace(STATE.fleet, servers=(replace(BLUE, setting={**BLUE.setting, "enforce_eager": True}),)),
    )
    out = Proposal(rule="X1", to={"enforce_eager": None}, why="1", expects="", risks="", source="")

    suggestion = GUARD.admit_asked(given, out, actor="alice", at=NOON)

    assert isinstance(suggestion, Suggestion)
    assert suggestion.proposal.to == {"enforce_eager": None}


@pytest.mark.parametrize(
    ("knob", "bound", "admitted", "refused"),
    [
        ("load_format", Bound(allowed=("auto", "dummy")), "dummy", "gguf"),
        ("compilation_config.mode", Bound(allowed=(0, 3)), 3, 2),
        ("enable_log_requests", Bound(allowed=(True,)), True, 1),
        ("nnodes", Bound(min=1, max=2), 2, 3),
        ("nnodes", Bound(min=1, max=2), 2, "2"),
        ("nnodes", Bound(min=1, max=9, allowed=(2, 4)), 4, 3),
        ("quantization", Bound(allowed=("fp8",)), "fp8", None),
    ],
)
def test_the_operators_table_admits_exactly_the_listed_values(
    knob: Knob, bound: Bound, admitted: Value, refused: Value
) -> None:
    guard = replace(GUARD, bounds={knob: bound})

    _, taken = admit_both({knob: admitted}, guard)
    not_taken = admit_both({knob: refused}, guard)

    assert isinstance(taken, Suggestion)
    assert taken.proposal.to == {knob: admitted}
    for refusal in not_taken:
        assert isinstance(refusal, ProposalRefusal)
        assert "does not allow the value" in refusal.why


def test_a_table_without_limits_admits_nothing() -> None:
    for refusal in admit_both(
        {"load_format": "dummy"}, replace(GUARD, bounds={"load_format": Bound(octaves=2)})
    ):
        assert isinstance(refusal, ProposalRefusal)


def test_the_refusal_does_not_repeat_a_secret() -> None:
    for refusal in admit_both({"api_key": "s3cret"}):
        assert isinstance(refusal, ProposalRefusal)
        assert "s3cret" not in refusal.why


def test_a_layout_is_no_step_and_the_gpus_are_the_engines_to_choose() -> None:
    wide = replace(STATE, fleet=Fleet(servers=(replace(BLUE, setting={"tensor_parallel_size": 8}),)))
    narrow = Proposal(
        rule="X1",
        to={"tensor_parallel_size": 1, "data_parallel_size": 8},
        assumed={"data_parallel_size": 1},
        why="1 waits",
        expects="less",
        risks="none",
        source="test",
        mitigation=True,
    )

    made = GUARD.admit(wide, narrow, policy="layout", at=NOON, reading=SEEN)

    assert isinstance(made, Suggestion)
    assert made.proposal.to == narrow.to
    for refusal in admit_both({"gpus": "4"}):
        assert isinstance(refusal, ProposalRefusal)
        assert "a server gets free GPUs where a change needs other ones" in refusal.why


def test_what_takes_less_hardware_needs_no_missed_objective() -> None:
    slo = Slo(ttft=Objective(under_s=1.0, share=0.9))
    met = replace(SEEN, ttft=Latency(count=100, p50=0.1, p95=0.2, p99=0.3, over_slo=0.0))
    change = Proposal(
        rule="X1", to={"max_num_seqs": 8}, why="idle", expects="less", risks="none", source="test"
    )

    made = [
        GUARD.admit(STATE, proposal, policy="layout", at=NOON, reading=met, slo=slo)
        for proposal in (change, replace(change, cheaper=True))
    ]

    assert isinstance(made[0], ProposalRefusal)
    assert "nothing to gain" in made[0].why
    assert isinstance(made[1], Suggestion)
    assert gain_needed(made[1].proposal, PLAN) == "if_missed"
