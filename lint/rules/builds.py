"""Builds and kernels that do not suit the GPU: rules E1 and E2."""

import re
from collections.abc import Iterable

from flettner.lint.recogniser import recogniser
from flettner.lint.rules.formats import PLUGINS
from flettner.vllm_facts.serve_config import Finding, Needs, ServeConfig
from flettner.vllm_facts.sizing.dtypes import AMPERE
from flettner.vllm_facts.sizing.effective_flags import (
    DeploymentCheck,
    has_any,
    is_at_least,
    is_older_than,
    is_split,
    layout,
    release_number,
    runs_on_cpus,
    text_of,
)
from flettner.vllm_facts.start_facts import LONGEST_LINE

OLD = (0, 14)
IMAGE = "vllm/vllm-openai:v0.14.1"
TURING = (7, 5)
_FAULT = re.compile(
    r"\b(?:ERROR|CRITICAL)\b|\bTraceback\b|\w(?:Error|Exception):|CUDA error|\bKilled\b|core dumped"
    r"|[Ss]egmentation fault|exit(?:ed with)? code:? ?1(?:3\d)?\b"
)
FOUR_BITS = 0.9  # bytes of a parameter, below which most of the weights have 4 bits
_MARLIN_FORMATS = frozenset({"awq", "awq_marlin", "gptq", "gptq_marlin", "compressed-tensors", "auto-round"})
CUDA_13_SINCE, OLDEST_BUILT = (0, 20), (7, 5)
DATACENTER_BLACKWELL = frozenset({(10, 0), (10, 3)})
NVFP4 = "modelopt_fp4"
AWQ_MARLIN = (0, 6)  # 0.5.4 brought awq_marlin
AWQ_FORCED_UP_TO = (0, 20)  # by 0.32 awq, awq_marlin and auto_awq are one; 0.11 to 0.19 obey the name


def _is_before_turing(config: ServeConfig) -> bool:
    return bool(config.card and config.card.capability and config.card.capability < OLDEST_BUILT)


def _check_volta(config: ServeConfig) -> Iterable[Finding]:
    card = config.card
    if card is None or card.capability is None:
        return
    if not _is_before_turing(config) or not is_at_least(config, CUDA_13_SINCE):
        return
    yield Finding(
        rule="E1",
        severity="warning",
        why=(
            f"{card.name} has compute capability {card.capability[0]}.{card.capability[1]}: vLLM's own "
            f"wheels and images since 0.20 are built for {OLDEST_BUILT[0]}.{OLDEST_BUILT[1]} and later"
        ),
        expects="it runs with a custom build for CUDA 12, or with a release before 0.20",
        risks="flags were renamed and removed since: lint the command line again for that version",
        evidence={"version": config.version},
    )


def _check_engine_version(config: ServeConfig) -> Iterable[Finding]:
    vendor = next((name for name in sorted(config.env) if name.startswith("NIM_")), "")
    nim = vendor or any("nvcr.io/nim" in line or "nvcr.io/nvidia/nim" in line for line in config.log)
    release = release_number(config)
    before_ampere = bool(config.card and config.card.capability and config.card.capability < AMPERE)
    if release is not None and release < OLD and (weights := _lacking_kernel(config)):
        yield _lost_kernels(config, weights)
        return
    if nim and (release is None or release < OLD):
        mark = f"{vendor} is set" if vendor else "its log names an image of nvcr.io"
        why = f"this is NVIDIA's NIM build of vLLM {config.version or 'of unknown version'} ({mark})"
    elif release is not None and release < OLD:
        why = f"vLLM {config.version} is older than 0.14"
    else:
        return
    if runs_on_cpus(config):
        return  # what it says is of GPUs
    last = _is_before_turing(config)
    costly = nim or (before_ampere and not last)
    if not costly and any(_FAULT.search(line[:LONGEST_LINE]) for line in config.log):
        return  # speed is no help to a server that fails
    yield Finding(
        rule="E1",
        severity="warning" if costly else "info",
        why=f"{why}: it lacks {'' if last else 'the Marlin kernels for older GPUs and '}async scheduling by "
        "default (since 0.14)",
        expects="0.14 to 0.19 have it; vLLM's own wheels and images since 0.20 do not run on this GPU"
        if last
        else "a current community release has both: measure it",
        risks="flags were renamed and removed since: lint the command line again for the new version",
        evidence={"version": config.version},
    )


def _lacking_kernel(config: ServeConfig) -> str:
    """The format of 4-bit weights that releases before 0.14 run without Marlin on this GPU; else ""."""
    model = config.model or config.estimate
    size = model.weight_bytes if model else None
    method = (model.quantization if model else "") or text_of(config, "quantization").lower()
    if config.card is None or config.card.capability != TURING or (size is not None and size > FOUR_BITS):
        return ""
    return method if method in _MARLIN_FORMATS else "4-bit" if size is not None and not method else ""


def _lost_kernels(config: ServeConfig, weights: str) -> Finding:
    card = config.card.name if config.card else "the GPU"
    return Finding(
        rule="E1",
        severity="warning",
        why=(
            f"vLLM {config.version} has no Marlin kernel for {weights} weights on {card} (compute capability "
            "7.5): it uses a slow fallback, which no flag changes"
        ),
        expects=(
            f"the image {IMAGE} or a later one has the kernel: 42 instead of 4.4 tokens/s for one user are "
            "reported for an 8B model in 4 bit on a T4, not promised"
        ),
        risks="flags were renamed and removed since: lint the command line again for the new version",
        source="vllm-project/vllm#29901 (Marlin on Turing)",
        evidence={"version": config.version, "quantization": weights},
    )


_NO_ACT_ORDER = (0, 30)  # at the latest: it refuses such checkpoints
_FEW_ROWS = 8  # vllm-project/vllm#40925: up to there smaller tiles are faster
_EXLLAMA = re.compile(r"Using (Exllama\w*)\b")
_NOT_OPTIMIZED = re.compile(r"\b(\w+) quantization is not fully optimized yet|so forcing (awq|gptq)\b")


def _is_slow_format(line: str) -> bool:
    slow = _NOT_OPTIMIZED.search(line)
    return slow is not None and slow[1] in PLUGINS


def _check_kernel(config: ServeConfig) -> Iterable[Finding]:
    line = next((line for line in config.log if _EXLLAMA.search(line) or _NOT_OPTIMIZED.search(line)), "")
    given = text_of(config, "quantization").lower()
    by_name = given == "awq" and is_at_least(config, AWQ_MARLIN) and is_older_than(config, AWQ_FORCED_UP_TO)
    if by_name:
        why = (
            f"--quantization awq with vLLM {config.version}: this forces the slow awq kernel; "
            "without the flag vLLM chooses Marlin" + (", as the log says" if line else "")
        )
    elif line and not _is_slow_format(line):  # formats.py reports that
        fallback = _EXLLAMA.search(line)
        kernel = fallback[1] if fallback else "a kernel that vLLM reports as not fully optimized"
        why = f"according to the log the quantized weights run on {kernel}, a slow fallback"
    else:
        return
    yield Finding(
        rule="E2",
        klass="gated",
        severity="warning",
        why=why,
        to={"quantization": None} if given in {"awq", "gptq"} else {},
        expects=(
            "MarlinLinearKernel, or a compressed-tensors checkpoint that gets it; reported with 0.9.2: "
            "123 tokens/s instead of 23 (Llama-3.1-8B-AWQ), not promised here"
        ),
        risks="another kernel rounds differently: check answers once",
        evidence={"quantization": given or "not given"},
    )


def _check_experts_kernel(config: ServeConfig) -> Iterable[Finding]:
    """E2: Marlin computes in 16 bit with 4-bit weights, on a GPU that computes in 4 bit."""
    model, capability = config.model or config.estimate, config.card.capability if config.card else None
    four_bits = "nvfp4" in text_of(config, "model").lower() or (model and model.quantization == NVFP4)
    if text_of(config, "moe_backend") != "marlin" or capability not in DATACENTER_BLACKWELL or not four_bits:
        return
    yield Finding(
        rule="E2",
        klass="gated",
        why=(
            "--moe-backend marlin computes NVFP4 experts in 16 bit: "
            f"{config.card.name if config.card else 'the GPU'} has kernels in FP4, which vLLM chooses itself"
        ),
        to={"moe_backend": None},
        expects="more throughput in large batches; measure both",
        risks="activations are then in FP4, too: check answers once",
        evidence={"moe_backend": "marlin"},
    )


def _check_act_order(config: ServeConfig) -> Iterable[Finding]:
    """GPTQ without Marlin: the fast kernel does not take a part of the rows that the act order mixed."""
    model, card, tp = config.model or config.estimate, config.card, layout(config).tp
    method = (model.quantization if model else "") or text_of(config, "quantization").lower()
    marlin = card is None or (card.capability is not None and card.capability >= TURING)
    if "gptq" not in f"{method} {text_of(config, 'model').lower()}" or tp == 1 or marlin:
        return
    if is_at_least(config, _NO_ACT_ORDER):
        return
    yield Finding(
        rule="E2",
        severity="warning",
        why=(
            f"GPTQ weights over {tp} GPUs without Marlin ({card.name if card else ''} has none): if "
            "quantization_config of the model's config.json has desc_act true, a slow kernel computes them"
        ),
        expects="a checkpoint with desc_act false, or --pipeline-parallel-size instead of "
        "--tensor-parallel-size: 13 tokens/s of a 32B model were reported on four MI50",
        risks="a pipeline gives one request the speed of one GPU",
        evidence={"tensor_parallel_size": tp},
    )


def _untuned_blocks(match: re.Match[str], config: ServeConfig) -> Finding:
    """The Triton kernel computes 64 rows at least: nearly all in vain where few requests run."""
    most = config.start.most_at_once if config.start else None
    few = most is not None and most <= _FEW_ROWS
    return Finding(
        rule="E2",
        severity="warning" if few else "info",
        why=(
            "according to the log weights in FP8 blocks run on a Triton kernel without a configuration for "
            "this GPU: it is made for large batches, and slow with few requests"
            + (f" (at most {most} at once in the log)" if few else "")
        ),
        expects=(
            "the checkpoint in 16 bit with --quantization fp8, or one in FP8 without blocks, gets another "
            "kernel (reported for one request on an RTX 4090: 40 % faster); or "
            "benchmarks/kernels/benchmark_w8a8_block_fp8.py writes a configuration"
        ),
        risks="another quantisation answers differently; 16 bits need twice the memory while they load",
        evidence={"line": match[0][:160]},
    )


LINTS = (
    DeploymentCheck(
        rules=("E1",),
        find=_check_volta,
        reports="a GPU older than those that vLLM's own wheels are built for",
        source="vllm-project/vllm#39878 (CUDA 13); vllm-project/vllm#42381 (what 0.20.1 is built for)",
        needs=Needs(facts=("gpu", "version")),
    ),
    DeploymentCheck(
        rules=("E1",),
        find=_check_engine_version,
        reports="a release before 0.14, also in NVIDIA's NIM build",
        source=(
            "vllm-project/vllm#27614 (async scheduling by default); "
            "vllm-project/vllm#29901 (Marlin on Turing)"
        ),
        evidence_for="no public measurement of the two builds side by side",
        needs=Needs(facts=("version",)),
    ),
    DeploymentCheck(
        rules=("E2",),
        find=_check_kernel,
        reports="quantized weights on a slow kernel: `--quantization awq` before 0.20, or a line of the log",
        source=(
            "vLLM 0.19 vllm/model_executor/layers/quantization/awq_marlin.py: 'so forcing awq'; "
            "vllm-project/vllm#6612"
        ),
        evidence_for="23 instead of 123 tokens/s with --quantization awq and 0.9.2 (vllm-project/vllm#21376)",
        needs=Needs(facts=("version",), applies=has_any("quantization")),
    ),
    DeploymentCheck(
        rules=("E2",),
        find=_check_act_order,
        reports="GPTQ over several GPUs without Marlin, where an act order is slow",
        source=(
            "vLLM 0.19 vllm/model_executor/layers/quantization/gptq.py: 'For act-order models, we cannot use "
            "Exllama'; vllm-project/vllm#7374"
        ),
        evidence_for="13 tokens/s of Qwen3-32B-GPTQ-Int4 on four MI50 (nlzy/vllm-gfx906#3)",
        needs=Needs(facts=("gpu",), applies=is_split),
    ),
    recogniser(
        "E2",
        r"Using default W8A8 Block FP8 kernel config\b.*",
        _untuned_blocks,
        reports="weights in FP8 blocks on a Triton kernel without a configuration for this GPU",
        source=(
            "vllm/model_executor/layers/quantization/utils/fp8_utils.py: 'Using default W8A8 Block FP8'; "
            "vllm-project/vllm#48035"
        ),
        evidence_for=(
            "80 tokens/s in FP8 blocks and 98 in 16 bit for one request (Qwen3-4B, RTX 4090, "
            "vllm-project/vllm#48035); 23 % more on a GB10 with smaller tiles (vllm-project/vllm#40925)"
        ),
    ),
    DeploymentCheck(
        rules=("E2",),
        find=_check_experts_kernel,
        reports="Marlin for NVFP4 experts on a GPU with kernels in FP4",
        source="vllm-project/recipes#854 (flags of a GB10 that recipes gave to B200 and B300)",
        evidence_for="no public measurement of the two kernels side by side",
        evidence_against="for MXFP8 experts Marlin is the choice there (SemiAnalysisAI/InferenceX#1809)",
        needs=Needs(facts=("gpu",), applies=has_any("moe_backend")),
    ),
)
