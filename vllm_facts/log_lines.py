"""Lines of vLLM's log about compilation of kernels and graphs, which delays requests."""

import re
from collections import Counter
from collections.abc import Iterable

# vLLM 0.26 to 0.33: utils/jit_monitor.py, compilation/, v1/worker; Triton's and FlashInfer's own tuners.
_COMPILES = re.compile(
    r" during inference: "  # the JIT monitor: "Triton kernel JIT compilation during inference: NAME."
    r"|Triton autotuning for function|Autotuning (?:kernel|FlashInfer)"
    r"|\[Auto[Tt]uner\]"
    r"|Starting torch\.compile|torch\.compile took|Dynamo bytecode transform time"
    r"|Compiling a graph for compile range"
    r"|Capturing CUDA graphs|Graph capturing finished"
)


def compile_lines(log: Iterable[str]) -> Counter[str]:
    """The lines that report compilation, each with its count."""
    return Counter(line for line in log if _COMPILES.search(line))
