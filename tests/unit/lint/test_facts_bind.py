"""Random commands with a log or neighbours: no printed value is above what these facts allow."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from flettner.lint.fixes import Fixes, find_fixes_in_rounds
from flettner.lint.rules import all_lints
from flettner.vllm_facts.serve_config import GpuModel, Neighbour, ServeConfig, SharedCard
from flettner.vllm_facts.sizing.effective_flags import memory_share
from flettner.vllm_facts.sizing.kv_cache import estimate_fit
from flettner.vllm_facts.values import Knob, as_number
from tests.support.lint_cases import A10, H100, LLAMA_8B, MAMBA_9B, QWEN_14B, case
from tests.support.random_commands import describe, random_cases
from tests.support.sampling import FULL

SEED, COUNT = 20261127, 10_000 if FULL else 200
SHARE, LENGTH, SEQS = "gpu_memory_utilization", "max_model_len", "max_num_seqs"


@dataclass(slots=True)
class Facts:
    """Lines of a log, and the highest values that they leave."""

    lines: list[str] = field(default_factory=list)
    most: dict[Knob, float] = field(default_factory=dict)
    shared_card: SharedCard | None = None

    def allow(self, knob: Knob, value: float) -> None:
        self.most[knob] = min(value, self.most.get(knob, value))


def free_memory(draw: Random, facts: Facts, config: ServeConfig) -> None:
    total = round((config.card.memory_gib if config.card and config.card.memory_gib else 80.0) * 0.99, 2)
    free = round(total * draw.uniform(0.1, 0.99), 2)
    share = memory_share(config)
    facts.lines.append(
        f"ValueError: Free memory on device cuda:0 ({free}/{total} GiB) on startup is less than desired GPU "
        f"memory utilization ({share}, {share * total:.2f} GiB). Decrease GPU memory utilization"
    )
    facts.allow(SHARE, free / total)


def other_process(draw: Random, facts: Facts, config: ServeConfig) -> None:
    total = (config.card.memory_gib if config.card and config.card.memory_gib else 80.0) * 0.99
    others = total * draw.uniform(0.05, 0.6)
    left = total * 0.01
    facts.lines.append(
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {draw.uniform(0.1, 4):.2f} GiB. GPU "
        f"0 has a total capacity of {total:.2f} GiB of which {left:.2f} GiB is free. Including non-PyTorch "
        f"memory, this process has {total - left - others:.2f} GiB memory in use."
    )
    facts.allow(SHARE, min(1 - others / total, memory_share(config)))


def warm_up(draw: Random, facts: Facts, config: ServeConfig) -> None:
    dummies = draw.choice((16, 64, 256, 1024))
    facts.lines.append(
        f"RuntimeError: CUDA out of memory occurred when warming up sampler with {dummies} dummy requests."
    )
    facts.allow(SEQS, dummies - 1)
    facts.allow(SHARE, memory_share(config))


def longest(draw: Random, facts: Facts, _: ServeConfig) -> None:
    fits, wanted = draw.randint(600, 60_000), draw.choice((65_536, 131_072))
    facts.lines.append(
        f"ValueError: To serve at least one request with the model's max seq len ({wanted}), (16.00 GiB KV "
        f"cache is needed, which is larger than the available KV cache memory ({16 * fits / wanted:.2f} GiB)."
        f" Based on the available memory, the estimated maximum model length is {fits}. Try increasing"
    )
    facts.allow(LENGTH, fits)


def state_blocks(draw: Random, facts: Facts, _: ServeConfig) -> None:
    blocks = draw.randint(4, 900)
    facts.lines.append(f"ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks ({blocks}).")
    facts.allow(SEQS, blocks)


def capped_graphs(draw: Random, facts: Facts, _: ServeConfig) -> None:
    blocks = draw.randint(4, 900)
    facts.lines.append(
        f"WARNING Capping cudagraph capture sizes from max 1024 to {blocks // 2} to fit Mamba cache blocks "
        f"({blocks} blocks available)."
    )
    facts.allow(SEQS, blocks)


def uncounted_graphs(draw: Random, facts: Facts, config: ServeConfig) -> None:
    share = memory_share(config)
    facts.lines.append(
        f"WARNING CUDA graph memory profiling is disabled (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0), "
        f"increasing --gpu-memory-utilization from {share:.4f} to {share + draw.uniform(0, 0.1):.4f}."
    )
    facts.lines.append("CUDA error: out of memory")
    facts.allow(SHARE, share)


def rejected_drafts(draw: Random, facts: Facts, _: ServeConfig) -> None:
    drafted = draw.randint(100, 90_000)
    facts.lines.append(
        f"INFO SpecDecoding metrics: Mean acceptance length: 1.00, Accepted: 1 tokens, Drafted: {drafted} "
        f"tokens, Avg Draft acceptance rate: {100 / drafted:.1f}%"
    )


def no_cache(draw: Random, facts: Facts, _: ServeConfig) -> None:
    facts.lines.append(f"INFO Available KV cache memory: {draw.uniform(-9, 0.2):.2f} GiB")
    facts.lines.append("ValueError: No available memory for the cache blocks. Try increasing")


def driver_memory(_: Random, facts: Facts, config: ServeConfig) -> None:
    facts.lines.append("NVRM: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)")
    facts.allow(SHARE, memory_share(config))


def neighbours(draw: Random, facts: Facts, config: ServeConfig) -> None:
    shares = [round(draw.uniform(0.05, 0.6), 2) for _ in range(draw.choice((1, 2)))]
    others = tuple(Neighbour(name=f"s{at}", share=share) for at, share in enumerate(shares))
    own = memory_share(config)
    facts.shared_card = SharedCard(own=own, others=others)
    facts.allow(SHARE, max(own, 1 - sum(shares)))


KINDS: tuple[Callable[[Random, Facts, ServeConfig], None], ...] = (
    *(free_memory, other_process, warm_up, longest, state_blocks, no_cache, neighbours),
    *(capped_graphs, uncounted_graphs, rejected_drafts, driver_memory),
)


FREE = (
    "ValueError: Free memory on device cuda:0 (59.3/79.2 GiB) on startup is less than desired GPU memory "
    "utilization (0.9, 71.28 GiB). Decrease GPU memory utilization"
)
WARM_UP = "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests."
LONGEST = (
    "ValueError: To serve at least one request with the model's max seq len (131072), (16.00 GiB KV cache is "
    "needed, which is larger than the available KV cache memory (2.97 GiB). Based on the available memory, "
    "the estimated maximum model length is 24320."
)


def test_a_share_that_the_log_asks_for_stays_in_later_rounds() -> None:
    config = case("vllm serve m --gpu-memory-utilization 0.9", model=LLAMA_8B, card=H100, log=(FREE,))

    assert find_fixes_in_rounds(config, all_lints()).to == {SHARE: 0.73}


def test_memory_is_not_raised_where_the_warm_up_ran_out() -> None:
    flags = "--gpu-memory-utilization 0.78 --max-num-seqs 256 --max-model-len 8192"
    config = case(f"vllm serve m {flags}", model=LLAMA_8B, card=A10, log=(WARM_UP,))

    fixes = find_fixes_in_rounds(config, all_lints())

    assert fixes.to[SEQS] == 64
    assert (as_number(fixes.to.get(SHARE)) or 0.0) <= 0.78
    assert ("M5", "F5") in [(lost.what.rule, lost.by) for lost in fixes.outranked]


def test_a_context_is_never_longer_than_the_log_says_that_it_fits() -> None:
    """By the formula more fits: the model's estimate is corrected by what the log measured."""
    config = case("vllm serve m", model=LLAMA_8B, card=A10, log=(LONGEST,))

    assert find_fixes_in_rounds(config, all_lints()).to[LENGTH] == 24320 // 1024 * 1024


def test_the_estimate_is_that_of_the_log_where_the_log_has_one() -> None:
    log = (
        "INFO Model loading took 17.25 GiB memory and 3.2 seconds",
        "INFO Available KV cache memory: 1.50 GiB",
        "INFO GPU KV cache size: 12,288 tokens",
        "INFO Free memory on device (22.0/22.1 GiB) on startup. Desired",
    )
    flags = "--gpu-memory-utilization 0.9 --max-model-len 8192"
    config = case(f"vllm serve m {flags}", model=LLAMA_8B, card=A10, log=log)

    now, more = estimate_fit(replace(config, log=())), estimate_fit(config, share=0.95)

    assert now is not None
    assert now.weights_gib == pytest.approx(17.25)
    assert now.kv_tokens == pytest.approx(12_288, abs=2)
    assert "measured by the log: the weights" in now.why
    assert more is not None
    assert more.kv_tokens == pytest.approx(12_288 * (1.5 + 0.05 * 22.1) / 1.5, rel=1e-3)


def test_weights_that_left_a_cache_are_no_larger_than_the_log_allows() -> None:
    """By its name the checkpoint has 16 bit; the log has a KV cache of 9 GiB on the card of 22."""
    config = case("vllm serve m", model=QWEN_14B, card=A10, log=(LONGEST.replace("2.97", "9.00"),))

    fixes = find_fixes_in_rounds(config, all_lints())

    assert [finding.rule for finding in fixes.findings if finding.severity == "error"] == ["F4"]
    assert fixes.to[LENGTH] == 23552


def test_blocks_of_state_in_the_log_replace_the_estimate() -> None:
    line = (
        "WARNING Capping cudagraph capture sizes from max 256 to 96 to fit Mamba cache blocks (101 blocks "
        "available)."
    )
    config = case("vllm serve m --max-num-seqs 256", model=MAMBA_9B, card=A10, log=(line,))

    fixes = find_fixes_in_rounds(config, all_lints())

    assert "101 blocks of state" in fixes.findings[0].why
    assert SEQS not in fixes.to
    assert config.start is not None
    assert config.start.state_blocks == 101


def test_a_small_share_is_lowered_to_what_is_free() -> None:
    line = FREE.replace("59.3", "20.3").replace("(0.9, 71.28", "(0.3, 23.76")
    config = case("vllm serve m --gpu-memory-utilization 0.3", card=H100, log=(line,))

    assert find_fixes_in_rounds(config, all_lints()).to == {SHARE: 0.24}


def test_the_memory_that_a_log_measured_leaves_no_doubt_of_an_estimate() -> None:
    """Without the log's size the estimate is too close to tell; 0.4 GiB hold no request of 8,192 tokens."""
    flags = "--max-model-len 8192 --gpu-memory-utilization 0.9"
    card = GpuModel(name="a card", memory_gib=19.2, capability=(8, 6))
    bare = case(f"vllm serve m {flags}", card=card, gpus=1, model=LLAMA_8B)
    measured = replace(bare, log=("INFO Available KV cache memory: 0.4 GiB",))

    assert not {"L1", "D2"} & {finding.rule for finding in find_fixes_in_rounds(bare, all_lints()).findings}
    assert LENGTH in find_fixes_in_rounds(measured, all_lints()).to


@pytest.mark.timeout(900)
def test_no_printed_value_is_above_what_a_fact_allows() -> None:
    draw, lints, seen = Random(SEED), all_lints(), Counter[str]()  # noqa: S311 - a sample of tests
    for command, bare in random_cases(SEED, COUNT):
        facts = Facts()
        for kind in draw.sample(KINDS, draw.choice((1, 1, 2, 3))):
            kind(draw, facts, bare)
        config = replace(bare, log=tuple(facts.lines), shared_card=facts.shared_card)

        fixes = find_fixes_in_rounds(config, lints)

        for knob, most in facts.most.items():
            value = as_number(fixes.to.get(knob))
            told = (describe(command, config), facts, fixes.to)
            assert value is None or value <= most + 1e-9, told
            seen[knob] += value is not None
        assert not _followed_though_outranked(fixes), (describe(command, config), facts, fixes.to)
    assert min(seen[knob] for knob in (SHARE, LENGTH, SEQS)) > 0


def _followed_though_outranked(fixes: Fixes) -> list[str]:
    shown = {finding.rule for finding in fixes.findings if finding.to or finding.env}
    command = {**fixes.to, **{f"env:{name}": value for name, value in fixes.env.items()}}
    return [
        lost.what.rule
        for lost in fixes.outranked
        if lost.what.changes and lost.what.rule not in shown and lost.what.changes.items() <= command.items()
    ]
