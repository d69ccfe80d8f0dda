"""Linting a proposal again settles in two rounds, never oscillates and uses every GPU."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import pytest

from flettner.lint.fixes import Fixes, find_fixes
from flettner.lint.rules import all_lints
from flettner.vllm_facts.models.lookup import find_model
from flettner.vllm_facts.serve_config import Finding, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import layout
from flettner.vllm_facts.sizing.gpus import find_gpu
from tests.support.lint_cases import case

MODELS = (
    "Qwen/Qwen3-0.6B",
    "Qwen/Qwen3-VL-2B-Instruct",
    "meta-llama/Llama-2-7b-chat-hf",
    "Qwen/Qwen2.5-7B-Instruct",
    "Qwen/Qwen2.5-7B-Instruct-AWQ",
    "meta-llama/Llama-3.1-8B-Instruct",
    "Qwen/Qwen3-8B",
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2",
    "Qwen/Qwen2.5-14B-Instruct",
    "deepseek-ai/DeepSeek-V2-Lite",
    "google/gemma-3-27b-it",
    "Qwen/Qwen3-30B-A3B",
    "Qwen/Qwen3-32B",
    "mistralai/Mixtral-8x7B-Instruct-v0.1",
    "meta-llama/Llama-3.3-70B-Instruct",
    "openai/gpt-oss-120b",
    "Qwen/Qwen3-235B-A22B-FP8",
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8",
    "meta-llama/Llama-3.1-405B-Instruct",
    "deepseek-ai/DeepSeek-R1",
    "deepseek-ai/DeepSeek-V3.2",
)
CARDS = (
    *("T4", "RTX 5070", "RTX 4090", "L4", "L40S", "RTX A6000", "A100 SXM 40GB", "A100 PCIe 80GB", "H100"),
    *("H200", "B200", "MI300X", ""),
)
HOSTS = (1, 2, 4, 8, None)
LAYOUTS = (
    *(
        "",
        "-tp 2",
        "-tp 3",
        "-tp 4",
        "-tp 8",
        "-tp 16",
        "-dp 2",
        "-dp 4",
        "-dp 8",
        "-tp 2 -dp 2",
        "-tp 4 -dp 2",
    ),
    *("-tp 4 -dp 4", "-tp 2 -pp 2", "-pp 4", "-tp 8 -ep", "-dp 8 -ep", "-tp 4 -ep"),
)
FLAGS = (
    *("", "--max-model-len 8192", "--max-num-seqs 16", "--max-num-batched-tokens 512", "--enforce-eager"),
    *("--gpu-memory-utilization 0.6", "--gpu-memory-utilization 0.95"),
)
PROFILES = ("chat", "api", "batch", "rag", "wide-ep")


def of(name: str) -> Iterator[ServeConfig]:
    """Return cases for each GPU and host with rotating layouts, flags and profiles."""
    model = find_model(name)
    start = MODELS.index(name)
    for turn, (card, gpus) in enumerate(product(CARDS, HOSTS), start):
        flags = f"{LAYOUTS[turn * 5 % len(LAYOUTS)]} {FLAGS[turn % len(FLAGS)]}"
        gpu = find_gpu(card) if card else None
        config = case(f"vllm serve {name} {flags}", model=model, gpus=gpus, card=gpu)
        yield config
        if turn % 2:
            yield replace(config, profile=PROFILES[turn % len(PROFILES)])


Rounds = tuple[ServeConfig, Fixes, ServeConfig, Fixes, Fixes]


@pytest.fixture(scope="module", params=MODELS)
def rounds(request: pytest.FixtureRequest) -> Sequence[Rounds]:
    """Per case of a model: the fixes, the changed case, its fixes, and the fixes after that.

    All tests of a model follow one another, so that these are computed once.
    """
    made = []
    for config in of(request.param):
        first = advised(config)
        after = first.after(config)
        second = advised(after)
        made.append((config, first, after, second, advised(second.after(after))))
    return made


def advised(config: ServeConfig) -> Fixes:
    return find_fixes(config, all_lints())


def graver(fixes: Fixes) -> list[Finding]:
    """Return the findings above info that have a change."""
    return [
        finding for finding in fixes.findings if finding.severity != "info" and (finding.to or finding.env)
    ]


def test_proposals_settle_in_two_rounds_and_are_never_reverted(rounds: Sequence[Rounds]) -> None:
    for config, first, _, second, third in rounds:
        assert not first.to.keys() & second.to.keys(), (config, first.to, second.to)
        assert not graver(third), (config, first.to, second.to)


def test_proposals_settle_in_one_round_with_known_facts(rounds: Sequence[Rounds]) -> None:
    """A hybrid needs a second round: the fit can depend on the small values of the first."""
    for config, first, _, second, _ in rounds:
        if config.gpus is not None and not config.profile and config.model and not config.model.hybrid:
            assert not graver(second), (config, first.to, second.to)


def test_proposals_use_exactly_the_available_gpus(rounds: Sequence[Rounds]) -> None:
    for config, first, after, _, _ in rounds:
        then = layout(after)
        if config.gpus is None or layout(config) == then:
            continue
        assert then.gpus <= config.gpus, (config, then)
        reported = any("stay free" in finding.expects for finding in first.findings)
        assert reported == (then.gpus < config.gpus), (config, then)


def test_change_that_makes_the_server_start_ranks_before_findings_without_one(
    rounds: Sequence[Rounds],
) -> None:
    for config, first, *_ in rounds:
        changes = [
            bool(finding.to or finding.env) for finding in first.findings if finding.severity == "error"
        ]
        assert changes == sorted(changes, reverse=True), (config, first.findings)


def test_finding_is_outranked_only_by_a_rule_that_is_shown(rounds: Sequence[Rounds]) -> None:
    for config, *advices in rounds:
        for fixes in (finding for finding in advices if isinstance(finding, Fixes)):
            shown = {finding.rule for finding in fixes.findings}
            assert {lost.by for lost in fixes.outranked} <= shown, config
