"""Whether tensor parallelism can divide the sizes of a model.

As vllm/config/model.py (verify_with_parallel_config), vllm/model_executor/layers/linear.py,
vocab_parallel_embedding.py and quantization/utils/fp8_utils.py (validate_fp8_block_shape).
"""

from flettner.vllm_facts.serve_config import Model

VOCABULARY_STEP = 64  # vLLM pads the vocabulary to a multiple of it


def why_indivisible(model: Model | None, tp: int) -> str:
    """Why the model cannot be split over `tp` GPUs; "" if it can, or if that is unknown."""
    if model is None:
        return ""
    vocab = model.vocab and -(-model.vocab // VOCABULARY_STEP) * VOCABULARY_STEP
    dense = None if model.experts else model.intermediate
    for size, what in (
        (model.heads, "attention heads"),
        (model.hidden_size, "hidden units"),
        (vocab, "rows of the padded vocabulary"),
        (dense, "units of the MLP"),
    ):
        if size and size % tp:
            return f"{size} {what} cannot be shared out to {tp} GPUs"
    kv = model.kv_heads
    if kv and not model.mla and kv % tp and tp % kv:
        return f"{kv} KV heads can neither be shared out nor copied to {tp} GPUs"
    for size, what in (
        (dense, "the MLP"),
        (model.experts and model.shared_intermediate, "the shared expert"),
    ):
        if size and model.weight_block and tp > 1 and size // tp % model.weight_block[1]:
            return (
                f"{size // tp} of {size} units of {what} on each of {tp} GPUs are no multiple of the FP8 "
                f"block, {model.weight_block[1]}"
            )
    return ""
