"""The floating-point type that a server computes in, by `--dtype`, the model and the GPU."""

from flettner.vllm_facts.serve_config import Model, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import text_of

AMPERE = (8, 0)  # bfloat16 since this compute capability

WITHOUT_FLOAT16 = {
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
    "Gemma3ForConditionalGeneration": "gemma3",
    "Glm4ForCausalLM": "glm4",
}
"""Model types that vLLM refuses in float16 (vllm/config/model.py: _FLOAT16_NOT_SUPPORTED_MODELS)."""

_NAMES = {"half": "float16", "float": "float32"}


def type_without_float16(model: Model | None) -> str:
    """The model_type, if vLLM refuses it in float16; else ""."""
    if model is None:
        return ""
    if model.model_type:
        return model.model_type if model.model_type in WITHOUT_FLOAT16.values() else ""
    return WITHOUT_FLOAT16.get(model.architecture, "")


def dtype_in_force(config: ServeConfig) -> str:
    """`float16`, `bfloat16` or `float32`; "" if unknown.

    A GPU without bfloat16 runs `auto` in float16, and in float32 a model that vLLM refuses in float16.
    """
    given = text_of(config, "dtype").lower()
    if given and given != "auto":
        return _NAMES.get(given, given)
    if config.model is None or config.card is None or config.card.capability is None:
        return ""
    if config.card.capability >= AMPERE:
        return ""  # as the checkpoint has it
    return "float32" if type_without_float16(config.model) else "float16"
