"""The recognisers of log lines, on real vLLM lines."""

from collections.abc import Mapping

import pytest

from flettner.lint.rules import log as lint_log
from flettner.lint.rules import out_of_memory, start
from flettner.vllm_facts.serve_config import Finding, Model, ServeConfig
from flettner.vllm_facts.values import Value

LINTS = (*lint_log.LINTS, *out_of_memory.LINTS, *start.LINTS)
CORE = "(EngineCore pid=812) "
MOE = CORE + (
    "WARNING 11-21 12:00:00 [fused_moe.py:1118] Using default MoE config. Performance might be sub-optimal! "
    "Config file not found at /x/E=64,N=1408,device_name=NVIDIA_H100.json"
)
EAGER = "INFO 11-21 12:00:00 [vllm.py:1] Cudagraph is disabled under eager mode"
PCIE = (
    "WARNING [custom_all_reduce.py:272] Custom allreduce is disabled because it's not supported on more than "
    "two PCIe-only GPUs. To silence this warning, specify disable_custom_all_reduce=True explicitly."
)
NO_BLOCKS = (
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
    "initializing the engine."
)
TOO_LONG = (
    "ValueError: To serve at least one request with the models's max seq len (32768), (4.0 GiB KV cache is "
    "needed, which is larger than the available KV cache memory (2.5 GiB). Based on the available memory, "
    "the estimated maximum model length is 20,500. Try increasing `gpu_memory_utilization`"
)
NOT_FREE = (
    "ValueError: Free memory on device cuda:0 (60.0/80.0 GiB) on startup is less than desired GPU memory "
    "utilization (0.92, 73.6 GiB). Decrease GPU memory utilization or reduce GPU memory used by others."
)
WARM_UP = (
    "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests. Please try "
    "lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has 11.6 GiB"
TIMES = (
    CORE + "INFO [monitor.py:53] torch.compile took 42.10 s in total",
    CORE + "INFO [gpu_model_runner.py:1] Graph capturing finished in 21 secs, took 0.62 GiB",
    CORE + "INFO [core.py:1] init engine (profile, create kv cache, warmup model) took 80.55 s",
)
CAPACITY = "INFO GPU KV cache size: 27,056 tokens, Maximum concurrency for 16,384 tokens per request: 1.65x"
TWO_LINES = (
    "INFO [kv_cache_utils.py:1087] GPU KV cache size: 66,912 tokens",
    "INFO [kv_cache_utils.py:1091] Maximum concurrency for 8,192 tokens per request: 8.17x",
)
MAMBA = "ValueError: max_num_seqs (256) exceeds available Mamba cache blocks (72). Each decode request needs"
MAX_TOKENS = (
    "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can be "
    "stored in KV cache (20000). Try increasing `gpu_memory_utilization` or decreasing `max_model_len`"
)
WAITING = (
    "INFO [loggers.py:1] Engine 000: Avg prompt throughput: 12.0 tokens/s, Avg generation throughput: "
    "80.1 tokens/s, Running: 2 reqs, Waiting: 14 reqs, GPU KV cache usage: 0.4%, Prefix cache hit rate: 0.0%"
)


def found(*log: str, **setting: Value) -> list[Finding]:
    return recognised(ServeConfig(setting={"model": "m", **setting}, log=log))


def recognised(case: ServeConfig) -> list[Finding]:
    return [finding for lint in LINTS for finding in lint.check(case)]


@pytest.mark.parametrize(
    ("log", "setting", "rule", "to"),
    [
        pytest.param((MOE,), {}, "F1", {}, id="default MoE config"),
        pytest.param((EAGER,), {"enforce_eager": True}, "F2", {"enforce_eager": False}, id="eager"),
        pytest.param((EAGER,), {"optimization_level": 0}, "F2", {"optimization_level": None}, id="-O0"),
        pytest.param((PCIE,), {"tensor_parallel_size": 4}, "F3", {}, id="PCIe all-reduce"),
        pytest.param(
            (NO_BLOCKS,),
            {"gpu_memory_utilization": 0.5},
            "F4",
            {"gpu_memory_utilization": 0.92},
            id="no blocks: raise, not lower",
        ),
        pytest.param((NO_BLOCKS,), {"gpu_memory_utilization": 0.92}, "F4", {}, id="no blocks at the top"),
        pytest.param((TOO_LONG,), {}, "F4", {"max_model_len": 20480}, id="one request does not fit"),
        pytest.param((NOT_FREE,), {}, "F4", {"gpu_memory_utilization": 0.74}, id="GPU is not free"),
        pytest.param(
            (WARM_UP,),
            {"gpu_memory_utilization": 0.9},
            "F5",
            {"max_num_seqs": 64, "gpu_memory_utilization": 0.85},
            id="warm-up",
        ),
        pytest.param((MAMBA,), {"max_num_seqs": 256}, "F5", {"max_num_seqs": 64}, id="Mamba blocks"),
        pytest.param(
            (MAX_TOKENS,), {}, "F4", {"max_model_len": 19456}, id="one request, wording of vLLM 0.8"
        ),
        pytest.param((OOM,), {}, "M2", {"gpu_memory_utilization": 0.85}, id="OOM"),
        pytest.param(
            (OOM,), {"gpu_memory_utilization": 0.85}, "M2", {"gpu_memory_utilization": 0.8}, id="2nd"
        ),
        pytest.param(
            (OOM,),
            {"gpu_memory_utilization": 0.8, "max_num_seqs": 64},
            "M2",
            {"max_num_seqs": 32},
            id="OOM at 0.8",
        ),
        pytest.param(("  File x, in load_model", OOM), {}, "M2", {}, id="OOM of the weights"),
        pytest.param(TIMES, {}, "F6", {}, id="times of a start"),
        pytest.param((CAPACITY,), {"max_num_seqs": 64}, "F7", {}, id="capacity"),
        pytest.param(TWO_LINES, {"max_num_seqs": 64}, "F7", {}, id="capacity, wording of vLLM 0.11"),
        pytest.param((WAITING,), {"max_num_seqs": 2}, "F8", {}, id="periodic line"),
    ],
)
def test_recognises_a_log_line(
    log: tuple[str, ...], setting: Mapping[str, Value], rule: str, to: Mapping[str, Value]
) -> None:
    (finding,) = found("INFO something else", *log, "INFO the last line", **setting)

    assert (finding.rule, dict(finding.to)) == (rule, to)


@pytest.mark.parametrize(
    ("log", "setting"),
    [
        pytest.param((), {}, id="no log"),
        pytest.param(("INFO Application startup complete.",), {}, id="a healthy line"),
        pytest.param((TOO_LONG,), {"max_model_len": 16384}, id="shortened since"),
        pytest.param((NOT_FREE,), {"gpu_memory_utilization": 0.7}, id="lowered since"),
        pytest.param((WARM_UP,), {"max_num_seqs": 64}, id="fewer sequences since"),
        pytest.param((MAMBA,), {"max_num_seqs": 64}, id="as many as there are blocks, since"),
        pytest.param(TWO_LINES[:1], {}, id="half of the capacity"),
        pytest.param((PCIE.replace("more than two", "ten"),), {"tensor_parallel_size": 1}, id="one GPU"),
        pytest.param((WAITING.replace("14", "0"),), {"max_num_seqs": 2}, id="nothing waits"),
    ],
)
def test_ignores_harmless_log_lines(log: tuple[str, ...], setting: Mapping[str, Value]) -> None:
    assert found(*log, **setting) == []


@pytest.mark.parametrize(
    "dressed",
    [
        pytest.param("2026-11-21T12:00:00.123456789Z {}", id="docker logs -t"),
        pytest.param("2026-11-21T12:00:00.123456789Z stderr F {}", id="kubectl logs --timestamps"),
        pytest.param("Nov 21 12:00:00 gpu1 vllm[812]: {}", id="journalctl"),
        pytest.param("\x1b[0;36m(EngineCore pid=812)\x1b[0;0m {}", id="colours"),
        pytest.param(
            "(EngineCore pid=812) ERROR 11-21 12:00:00 [core.py:936] {}", id="a line of a traceback"
        ),
        pytest.param('{{"log":"{}\\n","stream":"stderr","time":"2026-11-21T12:00:00Z"}}', id="json-file"),
        pytest.param("vllm-1  | {}\r", id="docker compose logs"),
    ],
)
@pytest.mark.parametrize(
    ("line", "rule"),
    [
        (MOE, "F1"),
        (EAGER, "F2"),
        (PCIE, "F3"),
        (NO_BLOCKS, "F4"),
        (WARM_UP, "F5"),
        (OOM, "M2"),
        (CAPACITY, "F7"),
        (WAITING, "F8"),
    ],
)
def test_recognises_lines_behind_log_prefixes(dressed: str, line: str, rule: str) -> None:
    traceback = (
        "EngineCore failed to start.",
        "Traceback (most recent call last):",
        '  File "/x.py", line 1',
    )

    (finding,) = found(*(dressed.format(one) for one in (*traceback, line, "RuntimeError: see above")))

    assert finding.rule == rule


def test_out_of_memory_in_warm_up_outranks_the_generic_one() -> None:
    rules = [finding.rule for finding in found(OOM, WARM_UP)]

    assert rules == ["F5"]


def test_numbers_in_the_log_become_evidence() -> None:
    times, capacity, periodic = found(*TIMES)[0], found(CAPACITY)[0], found(WAITING, max_num_seqs=2)[0]

    assert dict(times.evidence) == {"compilation_s": 42.1, "graph_capture_s": 21.0, "engine_start_s": 80.55}
    assert capacity.evidence["kv_cache_tokens"] == 27056
    assert (periodic.evidence["waiting"], periodic.severity) == (14.0, "warning")


@pytest.mark.parametrize(
    ("line", "fixes"),
    [
        pytest.param(WAITING, "max_num_seqs 2 is the limit they wait for", id="a cap"),
        pytest.param(
            WAITING.replace("Running: 2", "Running: 9"), "`flettner advise`", id="more than the cap"
        ),
        pytest.param(
            WAITING.replace("12.0 tokens", "0.0 tokens").replace("80.1 tokens", "0.0 tokens"),
            "no token was generated",
            id="it hangs",
        ),
    ],
)
def test_periodic_line_reports_the_cap_only_if_it_is_reached(line: str, fixes: str) -> None:
    (finding,) = found(line, max_num_seqs=2)

    assert finding.expects.startswith(fixes)


def test_moe_model_gets_the_lower_memory_ceiling() -> None:
    setting = {"gpu_memory_utilization": 0.7}

    (finding,) = recognised(ServeConfig(setting=setting, log=(NO_BLOCKS,), model=Model(name="m", experts=64)))

    assert finding.to == {"gpu_memory_utilization": 0.85}


def test_parses_a_very_long_line_quickly() -> None:
    assert found("CUDA out of memory " + "9 " * 200_000, "KV cache size: " + "9," * 200_000) == []


def test_every_finding_has_a_source_and_a_known_rule() -> None:
    everything = found(
        MOE, EAGER, PCIE, NO_BLOCKS, TOO_LONG, NOT_FREE, WARM_UP, OOM, *TIMES, CAPACITY, WAITING
    )

    assert {finding.rule for finding in everything} <= {rule for lint in LINTS for rule in lint.rules}
    assert all(finding.source and finding.why and finding.expects for finding in everything)
