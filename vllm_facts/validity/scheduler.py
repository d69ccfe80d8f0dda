"""Token budget, sequences, context length, CUDA graph sizes and asynchronous scheduling."""

from collections.abc import Iterator

from flettner.vllm_facts.defaults import positive_int
from flettner.vllm_facts.models.context_limit import (
    ALLOWED,
    allows_longer_context,
    find_exceeded_context,
)
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.effective_flags import (
    draft_tokens,
    effective_batched_tokens,
    speculation_method,
)
from flettner.vllm_facts.validity.refusal import ENGINE, MODEL, SCHEDULER, VLLM, InvalidSetting

NOT_ASYNC = frozenset({"ngram", "suffix", "medusa", "mlp_speculator"})


def check_sequences(config: ServeConfig) -> Iterator[InvalidSetting]:
    """The token budget holds one token for each sequence."""
    tokens, seqs = effective_batched_tokens(config), positive_int(config.setting, "max_num_seqs")
    if tokens is not None and seqs is not None and tokens < seqs:
        yield InvalidSetting(
            why=f"max_num_batched_tokens {tokens} is below max_num_seqs {seqs}",
            source=f"{SCHEDULER}: 'max_num_batched_tokens must be greater than or equal to max_num_seqs'",
            to={"max_num_batched_tokens": seqs},
        )


def check_whole_prompts(config: ServeConfig) -> Iterator[InvalidSetting]:
    """Without chunked prefill the given token budget holds a prompt of full length."""
    given = positive_int(config.setting, "max_num_batched_tokens")
    length = positive_int(config.setting, "max_model_len")
    if "max_model_len" not in config.setting and config.model:
        length = config.model.max_len
    if config.setting.get("enable_chunked_prefill") is not False or given is None or length is None:
        return
    if given < length:
        yield InvalidSetting(
            why=f"without chunked prefill max_num_batched_tokens {given} is below max_model_len {length}",
            source=f"{SCHEDULER}: 'max_num_batched_tokens is smaller than max_model_len'",
            to={"enable_chunked_prefill": None},
        )


def check_adapter_drafts(config: ServeConfig) -> Iterator[InvalidSetting]:
    """With LoRA and speculation the token budget holds the drafts of each sequence."""
    tokens, seqs = effective_batched_tokens(config), positive_int(config.setting, "max_num_seqs")
    drafts = draft_tokens(config)
    if config.setting.get("enable_lora") is not True or tokens is None or seqs is None:
        return
    if drafts and tokens < seqs * (drafts + 1):
        yield InvalidSetting(
            why=(
                f"with LoRA and {drafts} speculative tokens max_num_batched_tokens {tokens} is below "
                f"{seqs} sequences of {drafts + 1} tokens"
            ),
            source=f"{ENGINE}: 'Consider increasing max_num_batched_tokens or decreasing num_spec…'",
            to={"max_num_batched_tokens": seqs * (drafts + 1)},
        )


def check_graph_sizes(config: ServeConfig) -> Iterator[InvalidSetting]:
    largest = positive_int(config.setting, "max_cudagraph_capture_size")
    sizes = str(config.setting.get("cudagraph_capture_sizes") or "").split()
    if largest is None or not sizes or not all(map(str.isdecimal, sizes)):
        return
    if max(map(int, sizes)) != largest:
        yield InvalidSetting(
            why=f"max_cudagraph_capture_size {largest} is not the largest of cudagraph_capture_sizes",
            source=(
                f"{VLLM}: 'customized max_cudagraph_capture_size … should be consistent with the max "
                "value of cudagraph_capture_sizes'"
            ),
            to={"max_cudagraph_capture_size": None},
        )


def check_async(config: ServeConfig) -> Iterator[InvalidSetting]:
    """Explicit async_scheduling is refused with these methods; by default vLLM disables it."""
    method = speculation_method(config)
    if config.setting.get("async_scheduling") is True and method in NOT_ASYNC:
        yield InvalidSetting(
            why=f"async_scheduling is refused together with speculation by {method}",
            source=f"{VLLM}: 'async scheduling is only supported with EAGLE/MTP/Draft Model/…'",
            to={"async_scheduling": None},
        )


def check_length(config: ServeConfig) -> Iterator[InvalidSetting]:
    """A longer context than the model's, which vLLM accepts only with VLLM_ALLOW_LONG_MAX_MODEL_LEN."""
    excess = find_exceeded_context(config)
    if excess is None or allows_longer_context(config):
        return
    model = config.model.name if config.model else "the model"
    why = (
        f"max_model_len {excess.requested} is above the {excess.supported} tokens that {model} has "
        f"(max_position_embeddings), and {ALLOWED}=1 is not set"
    )
    if excess.yarn:
        why += ": YaRN alone does not raise it, max_position_embeddings is required, too"
    yield InvalidSetting(
        why=why,
        source=f"{MODEL}: _get_and_verify_max_len: 'is greater than the derived max_model_len'",
        to=excess.to,
    )


CHECKS = (
    check_sequences,
    check_whole_prompts,
    check_adapter_drafts,
    check_graph_sizes,
    check_async,
    check_length,
)
