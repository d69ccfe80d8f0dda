"""The catalogue is consistent and agrees with vLLM's flag list and vLLM itself."""

from dataclasses import fields

import pytest

from flettner.vllm_facts import flag_table
from flettner.vllm_facts.deprecated_flags import RENAMED
from flettner.vllm_facts.flag_parser import edit_flags, parse_setting
from flettner.vllm_facts.knobs import KNOBS, KnobFacts, alters_outputs, release_of
from flettner.vllm_facts.releases import FLAGS, RELEASE, TABLE
from flettner.vllm_facts.values import Value

NOW = f"{RELEASE[0]}.{RELEASE[1]}.0"
EXAMPLES: dict[str, Value] = {
    "attention_backend": "FLASH_ATTN",
    "spec_method": "ngram",
    "distributed_executor_backend": "mp",
    "collect_detailed_traces": "model",
}
PERFORMANCE_GROUPS = (
    "SchedulerConfig",
    "CacheConfig",
    "OffloadConfig",
    "CompilationConfig",
    "KernelConfig",
    "ParallelConfig",
    "LoRAConfig",
    "MultiModalConfig",
    "MambaConfig",
)
WITHOUT_FACTS = frozenset(
    """
    cpu_distributed_timeout_seconds data_parallel_address data_parallel_rank
    data_parallel_rpc_port data_parallel_start_rank dcp_kv_cache_interleave_size device_ids
    distributed_timeout_seconds enable_hc_sp fault_tolerance_config master_addr master_port node_rank
    ray_workers_use_nsight worker_cls worker_extension_cls default_mm_loras enable_mixed_moe_lora_format
    enable_moe_shared_loras enable_tower_connector_lora max_lora_cls_labels enable_mm_embeds
    interleave_mm_strings media_io_kwargs mm_encoder_fp8_scale_path mm_encoder_fp8_scale_save_margin
    mm_encoder_fp8_scale_save_path mm_processor_kwargs mamba_cache_philox_rounds
    """.split()  # noqa: SIM905 - one a line would be a page
)
"""Other names, addresses, paths, and what decides about one model's correctness rather than about speed."""
NOT_TUNABLE = frozenset(
    """
    data_parallel_external_lb data_parallel_hybrid_lb data_parallel_multi_port_external_lb
    data_parallel_size_local disable_cascade_attn disable_log_stats disable_sliding_window dtype
    elastic_ep_max_dp_size enable_cumem_allocator enable_elastic_ep enable_fault_tolerance enable_log_outputs
    enable_log_requests enable_logging_iteration_details enable_lora enable_per_request_metrics
    enable_server_load_tracking enable_sleep_mode jit_monitor_mode kv_offloading_backend language_model_only
    lora_dtype max_logprobs mm_encoder_only nnodes prefix_caching_hash_algo
    safetensors_load_strategy shutdown_timeout trust_remote_code video_pruning_method video_pruning_rate
    """.split()  # noqa: SIM905 - one a line would be a page
)
SIZES = frozenset({"cudagraph_capture_sizes", "numa_bind_nodes"})
EXAMPLES_BY_TYPE: dict[str, Value] = {"int": 8, "float": 0.5, "bool": True, "text": "auto", "json": "{}"}


def example(facts: KnobFacts) -> Value:
    """Return a value that the parser of vLLM accepts."""
    if facts.name in EXAMPLES:
        return EXAMPLES[facts.name]
    if facts.type == "choice":
        return facts.choices[0]
    if facts.type == "list":
        return "1 2" if facts.name in SIZES else "0 1"
    return 1 if facts.max == 3 else EXAMPLES_BY_TYPE[facts.type]


@pytest.mark.parametrize("facts", KNOBS.values(), ids=list(KNOBS))
def test_every_knob_has_all_facts(facts: KnobFacts) -> None:
    assert all(getattr(facts, text) for text in ("name", "meaning", "default", "source"))
    assert facts.meaning.endswith(".")
    assert facts.choices or facts.type != "choice"
    assert facts.unit or facts.type in {"bool", "choice"}
    assert facts.name.isidentifier()
    assert facts.name == facts.name.lower()
    assert {field.name for field in fields(facts)} >= {"since", "removed", "start", "klass", "effects"}
    assert (facts.klass == "note") is (facts.removed is not None or facts.name == "disable_cascade_attn")


@pytest.mark.parametrize("facts", KNOBS.values(), ids=list(KNOBS))
def test_every_default_is_a_valid_value(facts: KnobFacts) -> None:
    assert [facts.misfit(default.value) for default in facts.defaults] == [""] * len(facts.defaults)


@pytest.mark.parametrize("facts", KNOBS.values(), ids=list(KNOBS))
def test_the_catalogue_and_vllm_know_the_same_flags(facts: KnobFacts) -> None:
    assert facts.in_version(NOW) is (facts.name in FLAGS)


@pytest.mark.parametrize("facts", KNOBS.values(), ids=list(KNOBS))
def test_the_flags_are_read_and_written_as_the_catalogue_types_them(facts: KnobFacts) -> None:
    argv = ["vllm", "serve", "org/model"]
    value = example(facts)

    written = edit_flags(argv, {facts.name: value})

    assert parse_setting(written) == {"model": "org/model", facts.name: value}
    assert facts.misfit(value) == ""
    if facts.removed is None and facts.in_version(NOW):
        assert (facts.type == "list") is (facts.name in flag_table.SEVERAL)


def test_every_removed_knob_has_a_replacement() -> None:
    gone = {name: facts.removed for name, facts in KNOBS.items() if facts.removed}

    assert gone == {name: RENAMED[name].since for name in gone}


@pytest.mark.parametrize("group", PERFORMANCE_GROUPS)
def test_every_flag_for_speed_and_memory_is_in_the_catalogue(group: str) -> None:
    flags = {name for name, flag in TABLE.items() if flag.group == group}

    assert flags
    assert flags - KNOBS.keys() == WITHOUT_FACTS & flags


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("0.32.0", (0, 32)),
        ("v0.31.1rc2.dev3+cpu", (0, 31)),
        ("1.0", (1, 0)),
        ("dev", None),
        ("", None),
        (None, None),
    ],
)
def test_a_version_is_parsed_or_unknown(version: str | None, release: tuple[int, int] | None) -> None:
    assert release_of(version) == release


@pytest.mark.parametrize(
    ("knob", "version", "there"),
    [
        ("max_num_active_seqs", "0.31.0", True),
        ("max_num_active_seqs", "0.30.9", False),
        ("max_num_active_seqs", None, None),
        ("swap_space", "0.17.1", True),
        ("swap_space", "0.18.0", False),
        ("max_num_seqs", "0.6.0", True),
    ],
)
def test_a_knob_knows_its_versions(knob: str, version: str | None, *, there: bool | None) -> None:
    assert KNOBS[knob].in_version(version) is there


@pytest.mark.parametrize(
    ("knob", "version", "memory_gib", "card", "default"),
    [
        ("gpu_memory_utilization", "0.19.1", None, "", 0.9),
        ("gpu_memory_utilization", "0.20.0", None, "", 0.92),
        ("max_num_batched_tokens", "0.32.0", 192.0, "NVIDIA B200", 16384),
        ("max_num_batched_tokens", "0.27.0", 192.0, "NVIDIA B200", 8192),
        ("max_num_batched_tokens", None, 192.0, "NVIDIA B200", 16384),
        ("gpu_memory_utilization", "", None, "", 0.92),
        ("max_num_batched_tokens", "0.32.0", 80.0, "NVIDIA H100", 8192),
        ("max_num_batched_tokens", "0.32.0", 80.0, "NVIDIA A100-SXM4-80GB", 2048),
        ("max_num_batched_tokens", "0.32.0", None, "", 2048),
        ("max_num_seqs", "0.32.0", 24.0, "NVIDIA L4", 256),
        ("max_num_seqs", "0.32.0", 80.0, "NVIDIA H100", 1024),
        ("max_num_seqs", "0.32.0", None, "", None),
        ("max_num_queued_reqs", "0.32.0", None, "", None),
    ],
)
def test_default_depends_on_version_and_gpu(
    knob: str, version: str | None, memory_gib: float | None, card: str, default: Value
) -> None:
    assert KNOBS[knob].default_in(version, memory_gib=memory_gib, card=card) == default


@pytest.mark.parametrize(
    ("knob", "value", "why"),
    [
        ("max_num_seqs", 128, ""),
        ("max_num_seqs", None, ""),
        ("max_num_seqs", 0, "is at least 1"),
        ("max_num_seqs", "8k", "is a whole number"),
        ("max_num_seqs", True, "is a whole number"),
        ("max_model_len", "auto", ""),
        ("gpu_memory_utilization", 1, ""),
        ("gpu_memory_utilization", 1.2, "is at most 1"),
        ("gpu_memory_utilization", "all", "is a number"),
        ("scheduling_policy", "lifo", "is one of fcfs, priority"),
        ("enforce_eager", 1, "is on or off"),
        ("attention_backend", "ANY", ""),
        ("max_lora_rank", True, "is one of 1, 8, 16, 32, 64, 128, 256, 320, 512"),
        ("kv_offloading_size", float("inf"), "is a finite number"),
        ("cudagraph_capture_sizes", "1 2 4", ""),
        ("cudagraph_capture_sizes", 4, ""),
        ("cudagraph_capture_sizes", "1 -2", "is whole numbers with a space between two"),
        ("cudagraph_capture_sizes", 1.5, "is whole numbers with a space between two"),
        ("cudagraph_capture_sizes", "0 1", "is whole numbers of at least 1"),
    ],
)
def test_a_value_that_vllm_refuses_is_explained(knob: str, value: Value, why: str) -> None:
    assert KNOBS[knob].misfit(value) == why


def test_effects_are_formatted_without_empty_ones() -> None:
    assert str(KNOBS["watermark"].effects) == "ttft +, itl -, throughput ±, kv -"
    assert str(KNOBS["load_format"].effects) == ""


@pytest.mark.parametrize(
    ("knob", "alters"),
    [
        ("kv_cache_dtype", True),
        ("quantization", True),
        ("dtype", True),
        ("speculative_config", True),
        ("spec_tokens", True),
        ("attention_backend", True),
        ("attention_config", True),
        ("unheard_of_flag", True),
        ("max_num_seqs", False),
        ("max_num_batched_tokens", False),
        ("gpu_memory_utilization", False),
        ("enable_prefix_caching", False),
    ],
)
def test_knobs_that_may_alter_the_answers_are_marked(knob: str, alters: bool) -> None:
    assert alters_outputs(knob) is alters


def test_only_numbers_switches_choices_and_lists_of_numbers_are_tunable() -> None:
    tunable = [facts for facts in KNOBS.values() if facts.tunable]

    assert len(tunable) > 100
    for facts in tunable:
        assert facts.type in {"int", "float", "bool", "choice", "list"}
        assert facts.items == "int" or facts.type != "list"
        assert facts.klass != "note"
        assert facts.removed is None


def test_numbers_switches_and_choices_that_decide_about_more_than_speed_are_not_tunable() -> None:
    plain = [facts for facts in KNOBS.values() if facts.type in {"int", "float", "bool", "choice"}]

    assert {facts.name for facts in plain if not facts.tunable and facts.removed is None} == NOT_TUNABLE


def test_a_new_entry_of_the_catalogue_is_not_tunable() -> None:
    entry = KnobFacts(name="x", type="int", meaning="X.", default="1", start="warm", klass="auto")

    assert entry.tunable is False
