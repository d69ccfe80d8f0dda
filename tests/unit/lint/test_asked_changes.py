"""What a message of vLLM asks for in words, as changes of flags."""

import pytest

from flettner.lint.asked_changes import read_asked_changes
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.values import Setting


@pytest.mark.parametrize(
    ("message", "setting", "changes"),
    [
        ("It needs SM89+. Use --kv-cache-dtype bfloat16 (or float16).", {}, {"kv_cache_dtype": "bfloat16"}),
        ("Please set `--disable-hybrid-kv-cache-manager`.", {}, {"disable_hybrid_kv_cache_manager": True}),
        ("Disable it with --no-enable-prefix-caching.", {}, {"enable_prefix_caching": False}),
        ("No graphs yet. Set -cc.cudagraph_mode=NONE.", {}, {"compilation_config.cudagraph_mode": "NONE"}),
        ("Set max_logprobs (--max-logprobs) to at least 37.", {}, {"max_logprobs": 37}),
        ("A fix is to set disable_sliding_window=True", {}, {"disable_sliding_window": True}),
        ("Reduce --block-size to 16 or set another.", {"block_size": 48}, {"block_size": 16}),
        (
            "It needs statistics; remove --disable-log-stats.",
            {"disable_log_stats": True},
            {"disable_log_stats": None},
        ),
        ("Set --mm-encoder-attn-backend FLASH_ATTN.", {}, {"mm_encoder_attn_backend": "FLASH_ATTN"}),
        ("Add --max-num-seqs=3 and set --block-size 32.", {}, {"max_num_seqs": 3, "block_size": 32}),
        (
            "For a bucket, 'load_format' must be 'runai_streamer' or 'sharded', but got 'dummy'.",
            {"load_format": "dummy"},
            {},
        ),
        (
            "To read it, 'load_format' must be 'runai_streamer' or 'sharded', but got 'dummy'.",
            {"load_format": "dummy"},
            {"load_format": "runai_streamer"},
        ),
        ("kv_cache_dtype must be 'fp8' here.", {"kv_cache_dtype": "nvfp4"}, {"kv_cache_dtype": "fp8"}),
        ("`kv_cache_dtype` must be `odd`.", {"kv_cache_dtype": "fp8"}, {}),
        ("kv_cache_dtype must be 'fp8' here.", {}, {}),
        ("model must be 'other'.", {"model": "m"}, {}),
    ],
)
def test_an_instruction_with_its_value_is_a_change(message: str, setting: Setting, changes: Setting) -> None:
    assert read_asked_changes(message, ServeConfig(setting=setting)) == changes


@pytest.mark.parametrize(
    ("message", "setting"),
    [
        ("It cannot be used with --enforce-eager.", {}),
        ("It fails when using --enable-lora.", {}),
        ("Set --max-num-seqs to a lower value.", {}),
        ("Try a different one by setting --attention-backend or another.", {}),
        ("To bypass, set `--allow-deprecated-quantization`.", {}),
        ("You must set `--enable-prompt-embeds` to input them.", {}),
        ("Use the other back end or set `--nnodes 1`.", {}),
        ("For plain experts, set moe_backend='triton'.", {}),
        ("Pass device_id=torch.device(x) to it.", {}),
        ("Please set --profiler-config to enable it.", {}),
        ("Use --kv-cache-dtype odd_format.", {}),
        ("Reduce --block-size to 16.", {"block_size": 16}),
        ("Increase --max-num-seqs to at least 8.", {"max_num_seqs": 9}),
        ("Remove --enable-lora.", {}),
    ],
)
def test_words_without_a_sound_value_change_nothing(message: str, setting: Setting) -> None:
    assert read_asked_changes(message, ServeConfig(setting=setting)) == {}


def test_a_flag_that_the_release_lacks_is_not_set() -> None:
    message = "Use `--runner pooling` for it."

    assert read_asked_changes(message, ServeConfig(setting={}, version="0.9.0")) == {}
    assert read_asked_changes(message, ServeConfig(setting={}, version="0.12.0")) == {"runner": "pooling"}
