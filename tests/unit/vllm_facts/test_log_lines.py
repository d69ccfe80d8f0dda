"""Compilation lines of vLLM, Triton and FlashInfer, and all other lines."""

import pytest

from flettner.vllm_facts.log_lines import compile_lines

JIT = (
    "during inference: {}. This causes a latency spike; consider extending warmup to cover this shape/config."
)
COMPILES = (
    f"(EngineCore pid=7) WARNING [jit_monitor.py:137] Triton kernel JIT compilation {JIT.format('_topk')}",
    f"WARNING 11-21 08:00:00 [jit_monitor.py:137] TileLang JIT compilation {JIT.format('mla')}",
    "Triton autotuning for function fused_moe_kernel,",
    "Autotuning kernel fused_moe_kernel with config BLOCK_SIZE_M: 64, num_warps: 4",
    "[AutoTuner]: Autotuning process starts",
    "INFO 11-21 08:00:00 [monitor.py:40] Starting torch.compile",
    "INFO 11-21 08:00:00 [monitor.py:62] torch.compile took 14.03 s in total",
    "INFO 11-21 08:00:00 [backends.py:900] Dynamo bytecode transform time: 4.21 s",
    "INFO 11-21 08:00:00 [backends.py:300] Compiling a graph for compile range (1, 8192) takes 12.30 s",
    "Capturing CUDA graphs (decode, FULL):  50%|#####     | 17/35 [00:01<00:01, 12.00it/s]",
    "INFO 11-21 08:00:00 [gpu_model_runner.py:1] Graph capturing finished in 3 secs, took 0.51 GiB",
)
ACTIVE = "Kernel JIT monitor activated; monitored JIT compilations during inference will use mode=warn."
ELSE = (
    f"INFO 11-21 08:00:00 [jit_monitor.py:80] {ACTIVE}",
    'INFO:     127.0.0.1:5000 - "POST /v1/completions HTTP/1.1" 200 OK',
    "INFO 11-21 08:00:00 [loggers.py:1] Engine 000: Avg prompt throughput: 9.0 tokens/s, Running: 2 reqs",
    "INFO 11-21 08:00:00 [backends.py:1] Directly load the compiled graph(s) for compile range (1, 8192)",
)


@pytest.mark.parametrize("line", COMPILES)
def test_recognises_a_compilation_line(line: str) -> None:
    assert compile_lines([line]) == {line: 1}


@pytest.mark.parametrize("line", ELSE)
def test_ignores_any_other_line(line: str) -> None:
    assert not compile_lines([line])


def test_counts_each_line() -> None:
    assert compile_lines([*COMPILES, *ELSE, COMPILES[0]])[COMPILES[0]] == 2
