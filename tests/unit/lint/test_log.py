"""Lines of a server's log, however they reach lint. The tables of cases have a line of each kind."""

from dataclasses import replace

import pytest

from flettner.lint.fixes import find_fixes
from flettner.lint.rules import all_lints, flags, formats, hardware, log, out_of_memory, start, unknown_error
from flettner.vllm_facts.serve_config import Finding, Neighbour, ServeConfig, SharedCard
from flettner.vllm_facts.sizing.gpus import find_gpu
from flettner.vllm_facts.validity.engine import find_problems
from tests.support.lint_cases import H100, LLAMA_8B, LLAMA_8B_AWQ, QWEN_14B, case, findings

LINTS = (*log.LINTS, *out_of_memory.LINTS, *start.LINTS)
WAITING = (
    "INFO [loggers.py:1] Engine 000: Avg prompt throughput: 12.0 tokens/s, Avg generation throughput: "
    "80.1 tokens/s, Running: 2 reqs, Waiting: 14 reqs, GPU KV cache usage: 0.4%, Prefix cache hit rate: 0.0%"
)
CAPACITY = "INFO GPU KV cache size: 27,056 tokens, Maximum concurrency for 16,384 tokens per request: 1.65x"
LINES = {
    "F1": "(EngineCore pid=812) WARNING 11-21 12:00:00 [x.py:1] Using default MoE config. Performance might "
    "be sub-optimal! Config file not found at /x/E=64,N=1408,device_name=NVIDIA_H100.json",
    "F2": "INFO 11-21 12:00:00 [vllm.py:1] Cudagraph is disabled under eager mode",
    "F3": "WARNING [custom_all_reduce.py:272] Custom allreduce is disabled because it's not supported on "
    "more than two PCIe-only GPUs.",
    "F4": "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
    "F5": "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests. Please",
    "M2": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has 11.6 GiB",
    "L1": CAPACITY,
    "F8": WAITING,
}
TRACEBACK = (
    "EngineCore failed to start.",
    "Traceback (most recent call last):",
    '  File "/x.py", line 1',
)
ODD = "ValueError: some text that no row of this tool has"


def findings_of(*lines: str, flags: str = "") -> tuple[Finding, ...]:
    return findings(LINTS, case(f"vllm serve m {flags}", log=lines))


@pytest.mark.parametrize(
    "dressed",
    [
        pytest.param("2026-11-21T12:00:00.123456789Z {}", id="docker logs -t"),
        pytest.param("2026-11-21T12:00:00.123456789Z stderr F {}", id="kubectl logs --timestamps"),
        pytest.param("Nov 21 12:00:00 gpu1 vllm[812]: {}", id="journalctl"),
        pytest.param("\x1b[0;36m(EngineCore pid=812)\x1b[0;0m {}", id="colours"),
        pytest.param("(EngineCore pid=812) ERROR 11-21 12:00:00 [core.py:936] {}", id="a traceback"),
        pytest.param('{{"log":"{}\\n","stream":"stderr","time":"2026-11-21T12:00:00Z"}}', id="json-file"),
        pytest.param("vllm-1  | {}\r", id="docker compose logs"),
    ],
)
@pytest.mark.parametrize("rule", LINES)
def test_recognises_lines_behind_log_prefixes(dressed: str, rule: str) -> None:
    lines = (*TRACEBACK, LINES[rule], "RuntimeError: see above")

    (finding,) = findings_of(*(dressed.format(line) for line in lines))

    assert finding.rule == rule


def test_numbers_in_the_log_become_evidence() -> None:
    times = findings_of(
        "INFO [monitor.py:53] torch.compile took 42.10 s in total",
        "INFO [gpu_model_runner.py:1] Graph capturing finished in 21 secs, took 0.62 GiB",
        "INFO [core.py:1] init engine (profile, create kv cache, warmup model) took 80.55 s",
    )[0]
    capacity, periodic = findings_of(CAPACITY)[0], findings_of(WAITING, flags="--max-num-seqs 2")[0]

    assert dict(times.evidence) == {"compilation_s": 42.1, "graph_capture_s": 21.0, "engine_start_s": 80.55}
    assert capacity.evidence["kv_cache_tokens"] == 27056
    assert (periodic.evidence["waiting"], periodic.severity) == (14.0, "warning")


def test_parses_a_very_long_line_quickly() -> None:
    log = ("CUDA out of memory " + "9 " * 200_000, "KV cache size: " + "9," * 200_000)
    assert not findings(LINTS, ServeConfig(setting={"model": "m"}, log=log))


def test_the_error_that_a_worker_hands_on_is_evidence() -> None:
    error = (
        "Can't determine cudagraph shapes that are both a multiple of 3 (num_speculative_tokens + 1) "
        "required by spec-decode and 4 (tensor_parallel_size) required by sequence parallelism please adjust "
        "num_speculative_tokens or disable sequence parallelism"
    )
    line = f"RuntimeError: Worker failed with error '{error}', please check the stack trace above"

    (finding,) = findings(unknown_error.LINTS, case("vllm serve m", log=(line,), version="0.14.1"))

    assert finding.evidence["line"] == error[:240]


@pytest.mark.parametrize(("version", "gone"), [("0.13.0", True), ("0.32.0", False)])
def test_a_newer_release_is_named_where_it_lacks_the_message(version: str, *, gone: bool) -> None:
    line = (
        "NotImplementedError: Speculative decoding with draft model is not supported yet. Please consider "
        "using other speculative decoding methods such as ngram, medusa, eagle, or mtp."
    )

    (finding,) = findings(unknown_error.LINTS, case("vllm serve m", log=(line,), version=version))

    assert ("newer release" in finding.expects) is gone


def test_other_changes_wait_for_an_error_that_no_change_ends() -> None:
    fixes = find_fixes(case("vllm serve m --enforce-eager", log=(ODD,)), all_lints())

    assert fixes.findings[0].rule == "F10"
    assert "enforce_eager" not in fixes.to
    reason = "first end the error in the log (F10 unexplained-error-in-log)"
    assert any(reason in text for text in fixes.later)


def test_flags_that_do_not_start_are_corrected_beside_an_error_in_the_log() -> None:
    config = case("vllm serve m --swap-space 4", log=("NCCL error: unhandled system error",))

    assert find_fixes(config, all_lints()).to["swap_space"] is None


@pytest.mark.parametrize("engine", ["Engine 000: ", ""])
def test_requests_that_wait_for_a_full_cache_are_told_what_holds_more(engine: str) -> None:
    line = WAITING.replace("Engine 000: ", engine).replace("usage: 0.4%", "usage: 99.8%")

    (finding,) = findings_of(line, flags="--max-num-seqs 20")

    assert (finding.rule, finding.severity, dict(finding.to)) == ("F8", "warning", {})
    assert "more sequences would make it worse" in finding.expects


def test_weights_in_four_bits_leave_more_for_a_full_cache() -> None:
    line = WAITING.replace("usage: 0.4%", "usage: 98.0%")
    heavy = case("vllm serve x -tp 2", model=QWEN_14B, log=(line,))
    light = case("vllm serve x -tp 2", model=LLAMA_8B_AWQ, log=(line,))

    (wide,), (narrow,) = findings(LINTS, heavy), findings(LINTS, light)

    assert "weights in 4 bits (about 10 GiB less on each GPU" in wide.expects
    assert "4 bits" not in narrow.expects


def test_memory_that_the_model_does_not_need_is_held_by_another_process() -> None:
    """A share of 0.3 of an H100 holds the model with room for requests: the log says that nothing is left."""
    log = ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",)
    config = case(
        "vllm serve m --gpu-memory-utilization 0.3 --max-model-len 4096", model=LLAMA_8B, card=H100, log=log
    )

    (finding,) = findings(LINTS, config)

    assert (finding.rule, finding.severity, dict(finding.to)) == ("F4", "error", {})
    assert "another process held it" in finding.why


def test_a_log_that_gets_past_the_weights_refutes_that_they_cannot_be_read() -> None:
    config = case("vllm serve m --quantization awq", card=find_gpu("V100"))
    loaded = replace(config, log=("ValueError: failed to convert the KV cache specs to one unified type.",))

    assert [each.rule for each in findings(hardware.LINTS, config)] == ["H2"]
    assert not findings(hardware.LINTS, loaded)


def test_a_log_that_gets_past_the_flags_refutes_that_a_value_is_unknown() -> None:
    config = case("vllm serve m --quantization own_format --kv-cache-dtype own_format", version="0.30.0")
    started = replace(config, log=("INFO [gpu_worker.py:9] Available KV cache memory: 4.2 GiB",))

    assert {each.rule for each in findings((*flags.LINTS, *formats.LINTS), config)} == {"V1"}
    assert not findings((*flags.LINTS, *formats.LINTS), started)


def test_a_log_refutes_only_the_problems_of_the_flags_that_it_started_with() -> None:
    loaded = ("INFO [gpu_worker.py:9] Available KV cache memory: 4.2 GiB",)
    started = replace(case("vllm serve m --max-num-batched-tokens 64 --max-num-seqs 128"), log=loaded)
    changed = replace(started, setting={**started.setting, "max_num_seqs": 256}, log=())

    assert list(find_problems(started)) == []
    assert [each.to for each in find_problems(changed)] == [{"max_num_batched_tokens": 256}]


@pytest.mark.parametrize(("running", "severity"), [(0, "warning"), (1, "info")])
def test_a_queue_of_which_nothing_runs_is_a_warning(running: int, severity: str) -> None:
    queue = (
        "Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s, "
        f"Running: {running} reqs, Waiting: 2 reqs, GPU KV cache usage: 1.0%"
    )
    (finding,) = findings(log.LINTS, replace(case("vllm serve m"), log=(queue,)))

    assert (finding.rule, finding.severity) == ("F8", severity)
    assert ("never starts" in finding.why) is (running == 0)


@pytest.mark.parametrize(
    ("version", "v1", "counted"),
    [("0.8.5", "", True), ("0.9.1", "1", True), ("0.8.5", "0", False), ("0.9.2", "", False), ("", "", False)],
)
def test_memory_of_a_neighbour_is_counted_up_to_0_9_1(version: str, v1: str, counted: bool) -> None:
    """The later of two servers needs the sum of both shares; the log does not say which it is of."""
    log = ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",)
    card = SharedCard(own=0.35, others=(Neighbour(name="embedder", share=0.25),))
    config = case("vllm serve m --gpu-memory-utilization 0.35", card=H100, log=log, version=version)
    config = replace(config, shared_card=card, env={"VLLM_USE_V1": v1} if v1 else {})

    (finding,) = (found for found in findings(LINTS, config) if found.rule == "F4")

    assert ("embedder (0.25) may run there" in finding.why) is counted
    assert ("--gpu-memory-utilization 0.6 for the one that starts last" in finding.expects) is counted
    assert not (counted and finding.to)


def test_shares_that_add_up_to_a_full_card_leave_the_newer_release() -> None:
    log = ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",)
    card = SharedCard(own=0.5, others=(Neighbour(name="embedder", share=0.48),))
    config = replace(case("vllm serve m", card=H100, log=log, version="0.8.4"), shared_card=card)

    (finding,) = (found for found in findings(LINTS, config) if found.rule == "F4")

    assert finding.expects.startswith("vLLM 0.9.2 or newer")
