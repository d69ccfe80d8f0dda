"""Requests that wait while kernels are compiled for them: rule F8."""

import re
from collections.abc import Iterable

from flettner.lint.recogniser import LOG
from flettner.vllm_facts.serve_config import Finding, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import DeploymentCheck
from flettner.vllm_facts.start_facts import LONGEST_LINE

_COMPILED = re.compile(
    r"\b[A-Za-z]{1,20}(?: kernel)? JIT compilation during inference: (?P<kernel>[\w.]{1,120}\w)"
)
_FEW = 3  # kernels: each takes a second or so


def _check_compilation(config: ServeConfig) -> Iterable[Finding]:
    """The warm-up of vLLM leaves out the shapes that only real requests have."""
    lines = [match for line in config.log if (match := _COMPILED.search(line[:LONGEST_LINE]))]
    kernels = {match["kernel"] for match in lines}
    if len(kernels) < _FEW:
        return
    yield Finding(
        rule="F8",
        why=(
            f"{len(kernels)} kernels were compiled while requests waited for them: the first request of each "
            "kind (alone, several at once, a long prompt, with drafts) is seconds slower than the next"
        ),
        expects="after each start send such requests before clients do, and judge the speed by later ones; a "
        "kept TRITON_CACHE_DIR (~/.triton/cache) saves most of the compilation at the next start",
        risks="none: the answers are the same",
        evidence={"line": lines[-1][0]},
    )


LINTS = (
    DeploymentCheck(
        rules=("F8",),
        find=_check_compilation,
        reports="kernels that are compiled when requests need them, as the log of 0.20 and later says",
        source="vllm/utils/jit_monitor.py: 'JIT compilation during inference'; syv-ai/qwen38-27b-rtx3090#155",
        evidence_for="25 s for a request after the start and 11 s for the same again "
        "(syv-ai/qwen38-27b-rtx3090#155)",
        needs=LOG,
    ),
)
