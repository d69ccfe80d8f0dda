"""What the name of an unknown model tells."""

import pytest

from flettner.vllm_facts.models.estimate import describe_estimate, estimate_model


@pytest.mark.parametrize(
    ("name", "description"),
    [
        ("acme/novel-7B-Instruct", "about 7 billion parameters in 16 bit"),
        ("acme/Novel-1.5B-AWQ", "about 1.5 billion parameters in awq"),
        ("acme/novel_2_72b_fp8", "about 72 billion parameters in fp8"),
        ("acme/novel-30B-A3B-FP8", "about 30 billion parameters in fp8"),
        ("acme/novel-8x7B", "about 56 billion parameters in 16 bit"),
        ("acme/novel-1T-Int4-AutoRound", "about 1,000 billion parameters in auto-round"),
        ("acme/novel-13B-GPTQ-4b-128g", "about 13 billion parameters in gptq"),
        ("/models/novel-3b-gguf", "about 3 billion parameters in gguf"),
        ("poolside/Laguna-M.1", "about 225 billion parameters in 16 bit"),
    ],
)
def test_size_and_format_are_read_from_the_name(name: str, description: str) -> None:
    model = estimate_model(name)
    assert model is not None
    assert describe_estimate(model) == description
    assert (model.layers, model.heads, model.experts, model.max_len) == (None, None, None, None)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "acme/novel",
        "acme/novel-128k",
        "acme/novel-1M",
        "acme/novel-4bit",
        "a/b-v2",
        "a/b-7B-$Q",
        "a/b-7B-<q>",
    ],
)
def test_a_name_without_a_size_tells_nothing(name: str) -> None:
    assert estimate_model(name) is None


def test_the_parameters_for_one_token_are_read_too() -> None:
    model = estimate_model("acme/novel-30B-A3.5B")
    assert model is not None
    assert model.active_parameters == 3.5e9
