"""The pace of a server by the counts of its log, and the weights and drafts that its log shows to be slow."""

from dataclasses import replace

import pytest

from flettner.lint.rules import log_pace, speculation, start
from flettner.vllm_facts.models.estimate import estimate_model
from flettner.vllm_facts.serve_config import Finding, ServeConfig
from tests.support.lint_cases import GB10, H100, L40S, LLAMA_8B, LLAMA_70B, MIXTRAL, case, dense, findings


def count(prompts: float, answers: float, running: int, waiting: int = 0) -> str:
    return (
        f"INFO [loggers.py:9] Engine 000: Avg prompt throughput: {prompts} tokens/s, "
        f"Avg generation throughput: {answers} tokens/s, Running: {running} reqs, "
        f"Waiting: {waiting} reqs, GPU KV cache usage: 9.0%, Prefix cache hit rate: 0.0%"
    )


def served(flags: str, *log: str, model: object = LLAMA_8B, card: object = GB10) -> ServeConfig:
    return case(f"vllm serve m {flags}", log=log, model=model, card=card)


def rules(module: object, config: ServeConfig) -> list[Finding]:
    return [each for each in findings(module.LINTS, config) if each.rule in {"F11", "P4", "SD1", "F6"}]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("config", "named"),
    [
        pytest.param(served("", count(0, 14.2, 1)), True, id="16 GB at 273 GB/s"),
        pytest.param(served("", count(0, 4.0, 1)), False, id="far below"),
        pytest.param(served("", count(0, 14.2, 2)), False, id="two requests"),
        pytest.param(served("", count(0, 14.2, 1, 3)), False, id="others wait"),
        pytest.param(served("--spec-method ngram", count(0, 14.2, 1)), False, id="drafts"),
        pytest.param(served("", count(0, 150.0, 1), card=H100), True, id="another memory"),
        pytest.param(served("", count(0, 9.0, 1), model=MIXTRAL), True, id="the active experts only"),
        pytest.param(served("", count(0, 14.2, 1), model=None), False, id="an unknown model"),
        pytest.param(served("-tp 2", count(0, 3.0, 1), model=LLAMA_70B), True, id="a half on each GPU"),
    ],
)
def test_a_single_request_at_the_pace_of_the_memory_is_named(config: ServeConfig, *, named: bool) -> None:
    reported = rules(log_pace, config)

    assert [finding.rule for finding in reported] == ["F11"] * named
    assert all("no flag" in finding.expects for finding in reported)


@pytest.mark.parametrize(
    ("name", "log", "share"),
    [
        pytest.param("acme/Nova-34B", (), "79 %", id="by its name"),
        pytest.param(
            "acme/Nova-34B", ("Model loading took 24.5 GiB and 9.9 seconds",), "61 %", id="by its log"
        ),
        pytest.param("acme/Nova-34B", ("Model loading took 9.31 GiB and 3.9 seconds",), "", id="of few bits"),
        pytest.param("acme/Nova-34B-A3B", (), "", id="few active parameters"),
        pytest.param("acme/Nova", (), "", id="a name without a size"),
    ],
)
def test_an_unknown_model_is_compared_by_its_name_and_the_size_in_the_log(
    name: str, log: tuple[str, ...], share: str
) -> None:
    config = replace(
        served("-tp 2", *log, count(0, 20.0, 1), model=None, card=L40S), estimate=estimate_model(name)
    )

    reported = rules(log_pace, config)

    assert [finding.rule for finding in reported] == ["F11"] * bool(share)
    assert all(share in each.why and "by the model's name" in each.why for each in reported)


TINY = dense("m", 0.6)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        pytest.param(
            served("--spec-method mtp", count(0, 90, 1), model=TINY, card=H100), ["gated"], id="tiny"
        ),
        pytest.param(
            served("--spec-method mtp", count(0, 240, 1), model=TINY, card=H100), [], id="fast enough"
        ),
        pytest.param(served("", count(0, 90, 1), model=TINY, card=H100), [], id="no drafts"),
        pytest.param(
            served("--spec-method mtp", count(0, 90, 4), model=TINY, card=H100), [], id="four at once"
        ),
        pytest.param(served("--spec-method mtp", count(0, 4, 1)), ["note"], id="a model of 16 GB"),
        pytest.param(served("--spec-method mtp", count(0, 4, 1), model=MIXTRAL), [], id="experts"),
    ],
)
def test_drafts_that_slow_a_single_request_down_are_named(config: ServeConfig, expected: list[str]) -> None:
    reported = rules(log_pace, config)

    assert [finding.klass for finding in reported] == expected
    assert [dict(finding.to) for finding in reported] == [
        {"spec_method": None} if klass == "gated" else {} for klass in expected
    ]


PROMPTS = (count(1200, 0, 1), count(1150, 0, 1), count(1100, 0, 2))
SPREAD = "-tp 4 --max-num-batched-tokens 8192"


@pytest.mark.parametrize(
    ("config", "named"),
    [
        pytest.param(served(SPREAD, *PROMPTS), True, id="four hosts"),
        pytest.param(served(SPREAD, *PROMPTS, card=H100), False, id="nvlink"),
        pytest.param(served("--max-num-batched-tokens 8192", *PROMPTS), False, id="one GPU"),
        pytest.param(served("-tp 4 --max-num-batched-tokens 16384", *PROMPTS), False, id="large steps"),
        pytest.param(served(SPREAD, *PROMPTS[:2]), False, id="short prompts"),
        pytest.param(served(SPREAD, *[count(1200, 90, 3)] * 3), False, id="answers as well"),
    ],
)
def test_long_prompts_over_slow_links_get_larger_steps(config: ServeConfig, *, named: bool) -> None:
    reported = [each for each in findings(log_pace.LINTS, config) if each.rule == "B3"]

    assert [dict(each.to) for each in reported] == [{"max_num_batched_tokens": 16384}] * named


BEFORE, HELD, AFTER = count(0, 60, 3), count(0, 1.5, 3), count(9000, 20, 3)


@pytest.mark.parametrize(
    ("flags", "log", "to"),
    [
        pytest.param("--max-num-batched-tokens 4096", (BEFORE, HELD, HELD, AFTER), 2048, id="a long prompt"),
        pytest.param(
            "--max-num-batched-tokens 4096", (BEFORE, HELD, AFTER), None, id="one count is too short"
        ),
        pytest.param(
            "--max-num-batched-tokens 4096", (BEFORE, HELD, HELD, BEFORE), None, id="no prompt behind it"
        ),
        pytest.param(
            "--max-num-batched-tokens 4096 --long-prefill-token-threshold 512",
            (BEFORE, HELD, HELD, AFTER),
            None,
            id="already split",
        ),
        pytest.param(
            "--max-num-batched-tokens 65536", (BEFORE, HELD, HELD, AFTER), None, id="one or two steps"
        ),
        pytest.param("", (BEFORE, HELD, HELD, AFTER), None, id="an unknown budget"),
    ],
)
def test_answers_that_a_long_prompt_holds_back_are_named(
    flags: str, log: tuple[str, ...], to: int | None
) -> None:
    reported = rules(log_pace, served(flags, *log, card=None))

    expected = [] if to is None else [("P4", {"long_prefill_token_threshold": to})]
    assert [(finding.rule, dict(finding.to)) for finding in reported] == expected


LOADED = "INFO [default_loader.py:9] Loading weights took {} seconds"


@pytest.mark.parametrize(
    ("flags", "seconds", "version", "value"),
    [
        pytest.param("", 400.0, "0.12.0", "eager", id="before prefetching"),
        pytest.param("", 400.0, "0.30.0", "prefetch", id="since prefetching"),
        pytest.param("", 400.0, "0.9.2", "", id="before the flag"),
        pytest.param("", 200.0, "0.30.0", None, id="fast enough"),
        pytest.param("--safetensors-load-strategy lazy", 400.0, "0.30.0", None, id="chosen"),
        pytest.param("--load-format runai_streamer", 400.0, "0.30.0", None, id="another loader"),
    ],
)
def test_weights_from_a_slow_disk_are_read_in_one_piece(
    flags: str, seconds: float, version: str, value: str | None
) -> None:
    log = (LOADED.format(seconds),)
    config = case(f"vllm serve m {flags}", log=log, model=LLAMA_8B, version=version)

    slow = [finding for finding in rules(start, config) if finding.severity == "warning"]

    assert [finding.to.get("safetensors_load_strategy", "") for finding in slow] == [value] * (
        value is not None
    )


def test_large_weights_take_long_from_a_fast_disk() -> None:
    config = case("vllm serve m", log=(LOADED.format(200 * 2),), model=LLAMA_70B)
    quick = case("vllm serve m", log=(LOADED.format(100 * 2 + 50),), model=LLAMA_70B)

    assert [finding.severity for finding in rules(start, config)] == ["info", "warning"]
    assert [finding.severity for finding in rules(start, quick)] == ["info"]


ACCEPTED = (
    "INFO [metrics.py:9] SpecDecoding metrics: Mean acceptance length: 2.50, "
    "Accepted throughput: 10.00 tokens/s, Drafted throughput: 30.00 tokens/s, "
    "Accepted: 500 tokens, Drafted: {drafted} tokens, Per-position acceptance rate: {rates}, "
    "Avg Draft acceptance rate: 45.0%"
)
DRAFTS = '--speculative-config \'{"method":"mtp","num_speculative_tokens":3}\''


@pytest.mark.parametrize(
    ("flags", "drafted", "rates", "kept"),
    [
        (DRAFTS, 1000, "0.800, 0.350, 0.200", 1),
        (DRAFTS, 1000, "0.800, 0.600, 0.100", 2),
        (DRAFTS, 1000, "0.800, 0.700, 0.600", 0),
        (DRAFTS, 1000, "0.300, 0.200, 0.100", 0),
        (DRAFTS, 50, "0.800, 0.350, 0.200", 0),
        ("", 1000, "0.800, 0.350, 0.200", 0),
    ],
    ids=["the first pays", "two pay", "all pay", "none pays much", "too few", "without the flag"],
)
def test_drafts_at_the_end_that_are_rarely_accepted_are_named(
    flags: str, drafted: int, rates: str, kept: int
) -> None:
    line = ACCEPTED.format(drafted=drafted, rates=rates)

    reported = rules(speculation, case(f"vllm serve m {flags}", log=(line,)))

    assert [finding.rule for finding in reported] == ["SD1"] * bool(kept)
    assert all(f"num_speculative_tokens {kept} under" in finding.expects for finding in reported)
