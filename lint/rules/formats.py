"""Weight formats that this vLLM does not read, or not for this model: rule V1."""

import re
from collections.abc import Iterable

from flettner.lint.rules.flag_values import was_accepted
from flettner.vllm_facts.model_parsers import TOOLS
from flettner.vllm_facts.placeholders import is_placeholder
from flettner.vllm_facts.references import QUANTIZATION
from flettner.vllm_facts.releases.history import describe_range, values_in
from flettner.vllm_facts.serve_config import Finding, Needs, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import (
    DeploymentCheck,
    has_any,
    invalid_flags_finding,
    is_at_least,
    is_older_than,
    text_of,
)
from flettner.vllm_facts.start_facts import find_last
from flettner.vllm_facts.validity.quantization import method_in_force
from flettner.vllm_facts.weight_formats import SIXTEEN_BIT

OTHER_HARDWARE = frozenset({"ascend"})
"""Methods of vLLM's plugins for other accelerators (vllm-ascend)."""

PLUGINS = {
    "gguf": ((0, 24), "vllm-gguf-plugin", "vllm-project/vllm#39612"),
    "bitsandbytes": ((0, 28), "vllm-bnb-plugin", "vllm-project/vllm#43529"),
}
"""Formats removed from vLLM: release, present location, source."""

FAMILIES = ({"awq", "auto_awq", "awq_marlin"}, {"gptq", "auto_gptq", "gptq_marlin"}, {"fp8"})
_CHECKPOINTS = FAMILIES[0] | FAMILIES[1]
_OF_MISTRAL = re.compile(
    r"mistralai/(?:Pixtral|Magistral|Devstral|Voxtral|Ministral|Mistral-Small-3\.[12]|Mistral-Large-3)"
)
_AUTO_ROUND = frozenset({"auto-round", "auto_round"})
"""Names of one method. `auto_round` is in no table, yet releases of 2026 serve such checkpoints with it."""
_FORMAT_FLAGS = ("tokenizer_mode", "config_format", "load_format")
_FINDS_MISTRAL_FILES = (0, 11)  # not earlier: 0.10 reads them with the flags only
_NOT_OPTIMIZED = re.compile(rf"\b(?P<method>{'|'.join(PLUGINS)}) quantization is not fully optimized yet")
_GGUF, _BNB = re.compile(r"\.gguf$|gguf(:[\w.-]+)?$"), re.compile(r"\bbnb\b")


def _find_format(config: ServeConfig) -> str:
    """`gguf` or `bitsandbytes`, if a flag or the model's name shows it."""
    for knob in ("quantization", "load_format"):
        if text_of(config, knob).lower() in PLUGINS:
            return text_of(config, knob).lower()
    name = text_of(config, "model").lower()
    return "gguf" if _GGUF.search(name) else "bitsandbytes" if _BNB.search(name) else ""


def _check_plugins(config: ServeConfig) -> Iterable[Finding]:
    weights = _find_format(config)
    if not weights or not is_at_least(config, PLUGINS[weights][0]):
        return
    (_, minor), package, source = PLUGINS[weights]
    yield invalid_flags_finding(
        f"vLLM 0.{minor} and later read {weights} with the package {package} only: "
        "without it the server does not start",
        {},
        source=source,
        severity="warning",
        expects=f"it starts where {package} is installed beside vLLM; AWQ, GPTQ and FP8 need no package",
    )


def _check_slow_format(config: ServeConfig) -> Iterable[Finding]:
    told = find_last(_NOT_OPTIMIZED, config.log)
    weights = told["method"] if told else _find_format(config)
    if not weights or is_at_least(config, PLUGINS[weights][0]):
        return
    yield Finding(
        rule="E2",
        severity="warning" if told else "info",
        why=(
            f"{weights} weights: vLLM calls this format under-optimised"
            f"{', as the log says' if told else ''}, and later reads it by a plugin only"
        ),
        expects="AWQ, GPTQ (Marlin kernels) or FP8 checkpoints of the same model are faster",
        risks="another quantisation answers differently: check the answers",
        source=f"{QUANTIZATION}; {PLUGINS[weights][2]}",
    )


def _check_unknown_format(config: ServeConfig) -> Iterable[Finding]:
    given, methods = text_of(config, "quantization"), values_in("quantization", config.version)
    if not given or not methods or given in methods or given in OTHER_HARDWARE or is_placeholder(given):
        return
    if was_accepted(config, "quantization") or _reads_auto_round(config, given):
        return
    if given.lower() in PLUGINS and is_at_least(config, PLUGINS[given.lower()][0]):
        return
    yield invalid_flags_finding(
        f"--quantization {given} is no method of vLLM {config.version or describe_range()}",
        {"quantization": None},
        expects="vLLM reads the method in the model's own config; fp8 quantizes while it loads",
    )


def _reads_auto_round(config: ServeConfig, given: str) -> bool:
    """Whether the flag names the checkpoint's own method: then it is not sure to be refused."""
    return given.lower() in _AUTO_ROUND and method_in_force(config) == "inc"


def _check_checkpoint_format(config: ServeConfig) -> Iterable[Finding]:
    """VLLM refuses a method that differs from the checkpoint's."""
    given, model = text_of(config, "quantization"), config.model
    family = next((methods for methods in FAMILIES if given in methods), None)
    if family is None or model is None or model.quantization not in {"awq", "gptq"}:
        return
    if model.quantization in family:
        return
    yield invalid_flags_finding(
        f"--quantization {given}, yet {model.name} is quantized with {model.quantization}: vLLM refuses that",
        {"quantization": None},
        expects="vLLM reads the method in the model's own config",
    )


def _check_unquantized(config: ServeConfig) -> Iterable[Finding]:
    """A 16-bit checkpoint, judged by its name, contains no quantization parameters."""
    given, model = text_of(config, "quantization"), config.model
    if model is None or model.quantization or model.weight_bytes != SIXTEEN_BIT or given not in _CHECKPOINTS:
        return
    if text_of(config, "model").startswith(("/", ".")):
        return
    yield invalid_flags_finding(
        f"--quantization {given} reads weights in that format; {model.name} has 16 bits, judging by its name",
        {"quantization": None},
        severity="warning",
        expects="it starts in 16 bit; or name a checkpoint in that format, "
        "or let fp8 quantize while it loads",
    )


def is_from_mistral(config: ServeConfig) -> bool:
    """Whether the model is one whose repository holds Mistral's own files."""
    return bool(_OF_MISTRAL.match(text_of(config, "model")))


def is_not_from_mistral(config: ServeConfig) -> bool:
    return not is_from_mistral(config)


def reads_calls_of_mistral_by_hf(config: ServeConfig) -> bool:
    return text_of(config, TOOLS) == "mistral" and text_of(config, "tokenizer_mode") in {"hf", "slow"}


def reads_calls_by_own_tokenizer(config: ServeConfig) -> bool:
    return not reads_calls_of_mistral_by_hf(config)


MISTRALS = (
    is_from_mistral,
    is_not_from_mistral,
    reads_calls_of_mistral_by_hf,
    reads_calls_by_own_tokenizer,
)
"""What rows of known errors ask about files and tokenizers of Mistral."""


def _check_mistral_format(config: ServeConfig) -> Iterable[Finding]:
    """VLLM finds Mistral's own files by itself in later releases."""
    name = text_of(config, "model")
    given = [knob for knob in _FORMAT_FLAGS if config.setting.get(knob) not in (None, "auto")]
    if not is_from_mistral(config) or given or not is_older_than(config, _FINDS_MISTRAL_FILES):
        return
    yield invalid_flags_finding(
        f"{name} is in Mistral's own format, which vLLM {config.version} reads only where flags say so",
        dict.fromkeys(_FORMAT_FLAGS, "mistral"),
        source="https://docs.mistral.ai/deployment/self-deployment/vllm/; vllm-project/vllm#15027",
        severity="warning",
        expects="the files of its model card are read (params.json, tekken.json): prompts and tool calls "
        "are encoded as it was trained",
    )


_HAS_METHOD = has_any("quantization")

_VERIFIED = "vllm/config/model.py: _verify_quantization"

LINTS = (
    DeploymentCheck(
        rules=("V1",),
        find=_check_plugins,
        reports="weight formats that later releases read by a plugin only (GGUF, bitsandbytes)",
        source="; ".join(source for _, _, source in PLUGINS.values()),
        needs=Needs(facts=("version",), applies=lambda config: bool(_find_format(config))),
    ),
    DeploymentCheck(
        rules=("E2",),
        find=_check_slow_format,
        reports="GGUF and bitsandbytes weights, which vLLM calls under-optimised",
        source=QUANTIZATION,
        evidence_for=(
            "45 s in 16 bit and 71 in bitsandbytes for the same texts (Llama-3.2-1B, A100, 0.6.3, "
            "vllm-project/vllm#9535)"
        ),
    ),
    DeploymentCheck(
        rules=("V1",),
        find=_check_mistral_format,
        reports="models in Mistral's own format that an early release reads only with flags",
        source="https://docs.mistral.ai/deployment/self-deployment/vllm/",
        needs=Needs(facts=("version",), applies=is_from_mistral),
    ),
    DeploymentCheck(
        rules=("V1",),
        find=_check_unknown_format,
        reports="a `--quantization` that this release does not have",
        source=_VERIFIED,
        needs=Needs(facts=("version", "flags"), applies=_HAS_METHOD),
    ),
    DeploymentCheck(
        rules=("V1",),
        find=_check_checkpoint_format,
        reports="a `--quantization` other than the checkpoint's",
        source=_VERIFIED,
        needs=Needs(facts=("model",), applies=_HAS_METHOD),
    ),
    DeploymentCheck(
        rules=("V1",),
        find=_check_unquantized,
        reports="a `--quantization` that a checkpoint of 16 bits does not have",
        source="vllm/model_executor/model_loader/weight_utils.py: get_quant_config",
        needs=Needs(facts=("model",), applies=_HAS_METHOD),
    ),
)
