"""CUDA out of memory in a startup log: while weights load, in the warm-up, later (rules F5 and M2)."""

import re

from flettner.lint.recogniser import LONGEST_LINE, recogniser
from flettner.vllm_facts.references import CONSERVING_MEMORY
from flettner.vllm_facts.serve_config import Finding, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import memory_share
from flettner.vllm_facts.values import Knob, Value

_UTILIZATION, _SEQS = "gpu_memory_utilization", "max_num_seqs"
_LOWER = (0.85, 0.8)  # M2: where to go after an OOM
_TRACEBACK = 60  # lines: that of a worker has about 30
_IMAGES = (
    "; the start profiles the largest images and videos: --limit-mm-per-prompt "
    """'{"image":1,"video":0}' and --mm-processor-kwargs '{"max_pixels":…}' make that smaller"""
)
_LOADS = re.compile(r"\bin (?:load_model|load_weights|initialize_model|create_weights)\b")
_OOM = r"(?:torch\.|CUDA)\w*\.?OutOfMemoryError.*|CUDA (?:out of memory\. Tried|error: out of memory).*"


def _warm_up_failure(match: re.Match[str], config: ServeConfig) -> Finding | None:
    dummies, seqs = int(match["dummies"]), config.setting.get(_SEQS)
    if isinstance(seqs, int) and seqs < dummies:
        return None  # lowered since: the log is of another start
    to: dict[Knob, Value] = {_SEQS: 1 << max(0, (dummies // 4).bit_length() - 1)}
    if memory_share(config) > _LOWER[0]:
        to[_UTILIZATION] = _LOWER[0]
    return Finding(
        rule="F5",
        klass="auto",
        severity="error",
        why=f"it did not start: out of GPU memory while it warmed up with {dummies} dummy requests",
        to=to,
        expects="it starts; if not, try a shorter context (max_model_len, an operator's decision)",
        risks="fewer requests run at once; less KV cache",
        evidence={"dummy_requests": dummies},
    )


def _out_of_memory(match: re.Match[str], config: ServeConfig) -> Finding | None:
    if any("dummy requests" in line for line in config.log):
        return None  # F5 knows more
    if _is_loading(config):
        return _weights_too_large(match)
    lower = next((step for step in _LOWER if step < memory_share(config)), None)
    seqs = config.setting.get(_SEQS)
    to: dict[Knob, Value] = {}
    if lower is not None:
        to = {_UTILIZATION: lower}
    elif isinstance(seqs, int) and seqs > 1:
        to = {_SEQS: seqs // 2}
    return Finding(
        rule="M2",
        klass="auto" if to else "note",
        severity="error",
        why="the log shows a CUDA out of memory: allocations outside vLLM's accounting need more memory",
        to=to,
        expects="no further OOM; otherwise lower max_num_seqs, then max_model_len"
        + (_IMAGES if _reads_images(config) else ""),
        risks="less KV cache",
        evidence={"line": match[0][:160]},
    )


def _weights_too_large(match: re.Match[str]) -> Finding:
    return Finding(
        rule="M2",
        severity="error",
        why="the log shows a CUDA out of memory while the weights were loaded: they do not fit the "
        "GPU in the format in which they are read",
        expects=(
            f"a quantised checkpoint, or more GPUs for an engine; a lower {_UTILIZATION} "
            "does not help. If the checkpoint is quantised, check that its own config is read "
            "(--hf-config-path, --quantization)"
        ),
        source=f"{CONSERVING_MEMORY}; vllm-project/vllm#16128",
        evidence={"line": match[0][:160]},
    )


def _is_loading(config: ServeConfig) -> bool:
    """Whether the traceback of the last out-of-memory error names code that loads weights."""
    last = max(place for place, line in enumerate(config.log) if re.search(_OOM, line[:LONGEST_LINE]))
    trace = config.log[max(0, last - _TRACEBACK) : last]
    return any(_LOADS.search(line[:LONGEST_LINE]) for line in trace)


def _reads_images(config: ServeConfig) -> bool:
    return config.model is not None and config.model.architecture.endswith("ForConditionalGeneration")


LINTS = (
    recogniser(
        "F5",
        r"CUDA out of memory.*?(?P<dummies>\d+) dummy requests",
        _warm_up_failure,
        reports="out of memory in the warm-up, which runs as many requests as max_num_seqs",
        source="vllm/v1/worker/gpu_model_runner.py: 'CUDA out of memory occurred when warming up'",
        evidence_for="vLLM names the two flags; no public measurement of the values",
    ),
    recogniser(
        "M2",
        _OOM,
        _out_of_memory,
        reports="CUDA ran out of memory",
        source=CONSERVING_MEMORY,
        evidence_for="no public measurement of the steps 0.85 and 0.8",
    ),
)
