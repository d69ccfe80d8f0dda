"""Number formats against the model and the GPU: the dtype, the KV cache, the attention backend."""

from collections.abc import Iterator
from dataclasses import replace

from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.capacity import fits_in_memory
from flettner.vllm_facts.sizing.dtypes import AMPERE, dtype_in_force, type_without_float16
from flettner.vllm_facts.sizing.effective_flags import is_at_least, is_older_than, text_of
from flettner.vllm_facts.sizing.kv_cache import estimate_fit
from flettner.vllm_facts.validity.attention import FLASHINFER_HEADS, READ, forced_backend
from flettner.vllm_facts.validity.quantization import refuses_dtype
from flettner.vllm_facts.validity.refusal import MODEL, VLLM, FlagMapping, InvalidSetting, capability_text

ADA, HOPPER = (8, 9), (9, 0)
FP4_ELSEWHERE, FP4_READ = (12, 0), (0, 29)  # consumer Blackwell; up to 0.28 vLLM lacks its kernels

_BFLOAT16 = "vllm/platforms/cuda.py: check_if_supports_dtype: 'Bfloat16 is only supported on GPUs …'"
_TRITON = "vllm/v1/attention/backends/triton_attn.py"
_NONE_VALID = "vllm/platforms/cuda.py: 'No valid attention backend found'"
_OVERFLOWS = "float16 has a smaller range: a model trained in bfloat16 may overflow, so check its answers"
_TEXT_ONLY = ("limit_mm_per_prompt", "language_model_only")


def check_bfloat16(config: ServeConfig) -> Iterator[InvalidSetting]:
    card = config.card
    if card is None or card.capability is None or card.capability >= AMPERE:
        return
    if dtype_in_force(config) != "bfloat16":
        return
    why = (
        f"--dtype bfloat16 on {card.name} (compute capability {capability_text(card.capability)}): "
        "bfloat16 needs 8.0, the server does not start"
    )
    if type_without_float16(config.model):
        yield _only_float32(config, why, _BFLOAT16)
        return
    if config.model is None:
        yield InvalidSetting(
            rule="H2",
            why=why,
            source=_BFLOAT16,
            to={"dtype": None},
            expects="it starts, in float16, or in float32 if vLLM refuses the model in float16",
            risks=_OVERFLOWS,
        )
        return
    half = not refuses_dtype(config, "float16")
    yield InvalidSetting(
        rule="H2",
        why=why,
        source=_BFLOAT16,
        to={"dtype": "half"} if half else {},
        expects="it starts, in float16" if half else "another quantization of the model, or a GPU from 8.0",
        risks=_OVERFLOWS if half else "none",
    )


def check_float16(config: ServeConfig) -> Iterator[InvalidSetting]:
    """Models that are unstable in float16, which vLLM refuses."""
    kind = type_without_float16(config.model)
    if not kind or config.model is None or dtype_in_force(config) != "float16":
        return
    why = f"--dtype {text_of(config, 'dtype')}: vLLM refuses {config.model.name} ({kind}) in float16"
    source = (
        f"{MODEL}: _check_valid_dtype: 'The model type {kind!r} does not support float16. Reason: "
        "Numerical instability. Please use bfloat16 or float32 instead.'"
    )
    capability = config.card.capability if config.card else None
    if capability is not None and capability < AMPERE:
        yield _only_float32(config, why, source)
        return
    yield InvalidSetting(
        rule="H2",
        why=why,
        source=source,
        to={"dtype": "bfloat16" if capability else None},
        expects="it starts, in bfloat16",
        risks="none known",
    )


def _only_float32(config: ServeConfig, why: str, source: str) -> InvalidSetting:
    """A model without float16 on a GPU without bfloat16."""
    to: FlagMapping = {"dtype": "float32"}
    after = replace(config, setting={**config.setting, **to})
    if refuses_dtype(config, "float32"):
        lacks, to = "float32, which its quantization refuses", {}
    elif fits_in_memory(after) is False:
        took = estimate_fit(after)
        lacks, to = f"float32, which does not fit: {took.why if took else ''}", {}
    else:
        lacks = "float32 only"
    kind, card = type_without_float16(config.model), config.card.name if config.card else "this GPU"
    neither = (
        "it has no bfloat16" if dtype_in_force(config) == "float16" else f"vLLM refuses {kind} in float16"
    )
    return InvalidSetting(
        rule="H2",
        why=(f"{why}; {card} cannot run this model in 16 bit, because {neither}: that leaves {lacks}"),
        source=f"{source}; {MODEL}: _FLOAT16_NOT_SUPPORTED_MODELS",
        to=to,
        expects=(
            "it starts, in float32: twice the memory and a fraction of the speed; a GPU with compute "
            "capability 8.0 or another model is better"
            if to
            else "a GPU with compute capability 8.0 or later (A10, L4, A100), or another model"
        ),
        risks="the memory is estimated" if to else "none",
    )


def check_kv_cache(config: ServeConfig) -> Iterator[InvalidSetting]:
    """The dtype of the KV cache that no attention backend of this GPU reads.

    FLASH_ATTN reads fp8 on Hopper and later, TRITON_ATTN from 8.9 on; FLASHINFER from 8.0 on.
    """
    capability, kind = config.card.capability if config.card else None, text_of(config, "kv_cache_dtype")
    if config.card is None or capability is None or not is_at_least(config, READ):
        return
    forced, reason, source = forced_backend(config), "", ""
    fp8 = kind.startswith("fp8")
    mla = config.model is not None and config.model.mla
    needs = ADA if fp8 else AMPERE if kind == "bfloat16" else None
    if needs is not None and capability < needs and not mla and (why := _why_triton(config, forced)):
        reason = f"{why}, and TRITON_ATTN wants {capability_text(needs)} for it"
        says = "FP8 KV cache is not supported by the Triton attention backend" if fp8 else "requires SM80+"
        source = f"{_TRITON}: '{says}'"
    elif fp8 and forced == "FLASH_ATTN" and capability < HOPPER:
        reason = "FLASH_ATTN reads it from 9.0 on"
        source = "vllm/v1/attention/backends/fa_utils.py: flash_attn_supports_kv_cache_dtype"
    elif kind.startswith("nvfp4") and not mla and capability < AMPERE:
        reason, source = "only FLASHINFER reads it, which wants 8.0", _NONE_VALID
    if reason:
        yield InvalidSetting(
            rule="H2",
            why=(
                f"--kv-cache-dtype {kind} on {config.card.name} (compute capability "
                f"{capability_text(capability)}): {reason}: the server does not start"
            ),
            source=source,
            to={"kv_cache_dtype": None},
            expects="it starts, with a KV cache in the model's dtype",
            risks="the KV cache holds fewer tokens" if needs != AMPERE else "none known",
        )


def check_fp4_cache(config: ServeConfig) -> Iterator[InvalidSetting]:
    """An NVFP4 KV cache beside B200 and B300: its kernels were theirs alone."""
    card, kind = config.card, text_of(config, "kv_cache_dtype")
    capability = card.capability if card else None
    if card is None or capability is None or not kind.startswith("nvfp4"):
        return
    if capability < FP4_ELSEWHERE or not is_older_than(config, FP4_READ):
        return
    yield InvalidSetting(
        rule="H2",
        why=f"--kv-cache-dtype {kind} on {card.name} with vLLM {config.version}: only the attention kernels "
        "of B200 and B300 read it, so it ends at the start or with the first request",
        source="vllm-project/vllm#43562; vllm-project/vllm#49011",
        to={"kv_cache_dtype": "fp8"},
        expects="it runs, with half the tokens in the KV cache",
        risks="the KV cache holds half as many tokens",
    )


def _why_triton(config: ServeConfig, forced: str) -> str:
    """Why TRITON_ATTN is the only backend below compute capability 8.9; "" if FLASHINFER may run."""
    card, model = config.card, config.model
    if forced == "TRITON_ATTN":
        return "TRITON_ATTN is forced"
    if card is None or card.capability is None or forced:
        return ""
    if card.capability < AMPERE:
        return "no other backend runs on this GPU"
    if text_of(config, "kv_cache_dtype") == "fp8_per_token_head":
        return "no other backend reads it"
    if dtype_in_force(config) == "float32":
        return "no other backend computes in float32"
    if model is None:
        return ""
    if model.architecture.startswith("GptOss"):
        return "no other backend has attention sinks there"
    if model.architecture == "Gemma3ForConditionalGeneration" and not any(
        knob in config.setting for knob in _TEXT_ONLY
    ):
        return "no other backend attends to whole images there"
    if model.head_dim and model.head_dim not in FLASHINFER_HEADS:
        return f"FLASHINFER has no heads of {model.head_dim}"
    return ""


def check_kv_checkpoint(config: ServeConfig) -> Iterator[InvalidSetting]:
    """Formats of the KV cache that the checkpoint or the attention of the model excludes."""
    kind, model = text_of(config, "kv_cache_dtype"), config.model
    if model is None:
        return
    if kind == "fp8_e5m2" and model.quantization == "fp8":
        yield InvalidSetting(
            why=f"--kv-cache-dtype fp8_e5m2 is refused: {model.name} is an FP8 checkpoint",
            source=(
                "vllm/model_executor/layers/attention/attention.py: "
                "'fp8_e5m2 kv-cache is not supported with fp8 checkpoints.'"
            ),
            to={"kv_cache_dtype": "fp8"},
        )
    if kind.endswith("_ds_mla") and model.heads and not model.mla:
        yield InvalidSetting(
            why=f"--kv-cache-dtype {kind} is refused: it is a layout of latent attention, "
            f"{model.name} has none",
            source=f"{_NONE_VALID}; vllm-project/vllm#42587",
            to={"kv_cache_dtype": None},
        )
    if kind in {"nvfp4", "nvfp4_4over6"} and model.mla:
        yield InvalidSetting(
            why=f"--kv-cache-dtype {kind} is refused: {model.name} has latent attention",
            source=f"{VLLM}: 'nvfp4 KV cache is not supported with MLA … backends'",
            to={"kv_cache_dtype": None},
        )


CHECKS = (check_bfloat16, check_float16, check_kv_cache, check_fp4_cache, check_kv_checkpoint)
