"""The context length against the model's own."""

from collections.abc import Iterator

from flettner.vllm_facts.models.context_limit import (
    ALLOWED,
    allows_longer_context,
    find_exceeded_context,
)
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.validity.refusal import MODEL, InvalidSetting


def check_length(config: ServeConfig) -> Iterator[InvalidSetting]:
    """A longer context than the model's, which vLLM accepts only with VLLM_ALLOW_LONG_MAX_MODEL_LEN."""
    found = find_exceeded_context(config)
    if found is None or allows_longer_context(config):
        return
    model = config.model.name if config.model else "the model"
    why = (
        f"max_model_len {found.asked} is above the {found.own} tokens that {model} has "
        f"(max_position_embeddings), and {ALLOWED}=1 is not set"
    )
    if found.yarn:
        why += ": YaRN alone does not raise it, max_position_embeddings is required, too"
    yield InvalidSetting(
        why=why,
        source=f"{MODEL}: _get_and_verify_max_len: 'is greater than the derived max_model_len'",
        to=found.to,
    )


CHECKS = (check_length,)
