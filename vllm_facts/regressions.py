"""Known performance regressions of vLLM: the affected releases, the symptom and the remedy.

Each row names its source thread. Open issues may have been fixed without a note in the thread.
"""

import re
from dataclasses import dataclass

from flettner.vllm_facts.values import Knob, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """A reported regression. `first` and `last` are the first and last release in the reports.

    `model` and `card` are patterns that are searched in lower-case names; empty matches any. `value` is a
    pattern for the full value of `knob` or of the variable `env`; without both it applies to any flags.
    """

    issue: str
    first: tuple[int, int]
    last: tuple[int, int]
    symptom: str
    remedy: str
    model: str = ""
    card: str = ""
    knob: Knob = ""
    env: str = ""
    value: str = ".+"
    fixed: str = ""  # in which release; empty: no fix is on record
    until: tuple[int, int, int] | None = None  # the first patch release without it, if known

    def seen_in(self, release: tuple[int, int], patch: tuple[int, int, int] | None) -> bool:
        fixed = self.until is not None and patch is not None and patch >= self.until
        return self.first <= release <= self.last and not fixed

    def shows(self, value: Value) -> bool:
        """Whether it occurs with this value of its knob or variable."""
        given = value is not None and re.fullmatch(self.value, str(value).lower()) is not None
        return given or not (self.knob or self.env)

    def fits(self, model: str, card: str) -> bool:
        """Whether it affects this model and GPU; an unknown name ("") matches no pattern."""
        patterns = ((self.model, model), (self.card, card))
        return all(not pattern or re.search(pattern, name.lower()) for pattern, name in patterns)


_CACHE_FP8 = r"fp8.*"

REGRESSIONS = (
    Regression(
        issue="vllm-project/vllm#35048",
        first=(0, 15),
        last=(0, 19),
        model=r"minimax-m2",
        symptom="lower throughput than 0.14.0 under high load with large requests (4 and 8 H100/H200)",
        remedy="compare with 0.14.0 or with a current release on your own load before staying",
    ),
    Regression(
        issue="vllm-project/vllm#31475",
        first=(0, 13),
        last=(0, 19),
        model=r"(glm-4\.7|minimax-m2).*",
        card=r"mi300x",
        symptom="FP8 decodes slower than BF16 in steady state",
        remedy="serve the BF16 checkpoint if it fits, or measure a current release",
    ),
    Regression(
        issue="vllm-project/vllm#43444",
        first=(0, 20),
        last=(0, 21),
        model=r"bge-reranker",
        symptom="reranking under concurrent requests is slower than with 0.19.1",
        remedy="upgrade past 0.21, or stay on 0.19.1",
        fixed="after 0.21",
    ),
    Regression(
        issue="verl-project/verl#5964",
        first=(0, 18),
        last=(0, 18),
        card=r"gb200",
        symptom="about 10 % less throughput than 0.17 (aarch64)",
        remedy="stay on 0.17 or measure a current release",
    ),
    Regression(
        issue="vllm-project/vllm#40838",
        first=(0, 17),
        last=(0, 19),
        model=r"gpt-oss-120b",
        symptom="lower throughput than 0.16.0: 8 % with 50 requests at once, 16 % with 300 (H200, TP 4)",
        remedy="compare a current release with 0.16.0 on your own load",
        fixed="after 0.19 (the thread is closed)",
    ),
    Regression(
        issue="vllm-project/vllm#44808",
        first=(0, 22),
        last=(0, 22),
        model=r"gpt-oss",
        card=r"gb300",
        symptom="slower serving than 0.21.0, since FlashInfer 0.6.11",
        remedy="stay on 0.21.0, or go past 0.22",
        fixed="after 0.22 (the thread is closed)",
    ),
    Regression(
        issue="vllm-project/vllm#31030",
        first=(0, 12),
        last=(0, 12),
        model=r"qwen3-235b",
        card=r"h200",
        symptom="28 tokens/s where 0.10.2 gave 60 (FP8, TP 4)",
        remedy="measure a current release",
    ),
    Regression(
        issue="vllm-project/vllm#51663",
        first=(0, 24),
        last=(0, 26),
        model=r"qwen3\.6-35b-a3b",
        symptom="below 1000 output tokens/s where 0.23.0 gave about 5000 (FP8, 40 requests at once)",
        remedy="measure a current release; the same thread saw 0.23.0 hang after hours",
    ),
    Regression(
        issue="vllm-project/vllm#52630",
        first=(0, 20),
        last=(0, 27),
        model=r"embed|\bbge-|\be5-|\bgte-|minilm",
        symptom="embedding throughput 13 to 18 % lower than with 0.19, since torch 2.11 (H100 PCIe)",
        remedy="stay on 0.19 for a server of embeddings only, or measure a current release",
    ),
    Regression(
        issue="vllm-project/vllm#30064",
        first=(0, 12),
        last=(0, 12),
        model=r"deepseek-(v3|r1)",
        card=r"\bmi\d{3}",
        symptom="longer TTFT than with 0.11.1 (ROCm, TP 8 with expert parallelism)",
        remedy="compare a current release with 0.11.1",
    ),
    Regression(
        issue="vllm-project/vllm#27878",
        first=(0, 11),
        last=(0, 11),
        knob="async_scheduling",
        value="true",
        symptom="with --async-scheduling penalties do not count; structured output may be garbled (#26292)",
        remedy="upgrade, or leave --async-scheduling out with 0.11.0",
        fixed="in 0.11.1 (#27910)",
        until=(0, 11, 1),
    ),
    Regression(
        issue="vllm-project/vllm#48945",
        first=(0, 25),
        last=(0, 25),
        model=r"ministral",
        knob="kv_cache_dtype",
        value=_CACHE_FP8,
        symptom="with an fp8 KV cache the answers are rubbish ('####'), which 0.24.0 did not show",
        remedy="leave --kv-cache-dtype out, or try another release and read its answers",
    ),
    Regression(
        issue="vllm-project/vllm#33638",
        first=(0, 15),
        last=(0, 15),
        model=r"deepseek-v3\.1",
        knob="kv_cache_dtype",
        value=_CACHE_FP8,
        symptom="with an fp8 KV cache the answers are garbled, which 0.12.0 did not show",
        remedy="leave --kv-cache-dtype out, or try another release and read its answers",
    ),
    Regression(
        issue="vllm-project/vllm#41343",
        first=(0, 19),
        last=(0, 19),
        model=r"qwen2(\.5)?-vl",
        knob="kv_cache_dtype",
        value="fp8_e5m2",
        symptom="fp8_e5m2 in the KV cache spoils the answers without a word",
        remedy="leave --kv-cache-dtype out, or take fp8 (e4m3) and read the answers",
    ),
    Regression(
        issue="vllm-project/vllm#54300",
        first=(0, 28),
        last=(0, 29),
        model=r"glm-5",
        knob="decode_context_parallel_size",
        value=r"(?!1$)\d+",
        symptom="with decode context parallelism 0.28.0 crashes and 0.29.0 answers random tokens",
        remedy="leave --decode-context-parallel-size out, or go past 0.29",
        fixed="after 0.29 (#52377)",
    ),
    Regression(
        issue="vllm-project/vllm#45388",
        first=(0, 22),
        last=(0, 22),
        knob="kv_offloading_size",
        symptom="with KV offloading the scheduler may stand still for good once the KV cache is full",
        remedy="upgrade past 0.22, and restart a server that answers /health but no request",
        fixed="after 0.22 (#44560)",
    ),
    Regression(
        issue="vllm-project/vllm#58192",
        first=(0, 29),
        last=(0, 33),
        model=r"-vl\b|vision|omni|pixtral|llava|internvl|gemma-3-(4|12|27)b",
        knob="max_num_queued_reqs",
        symptom="a burst of requests with images passes --max-num-queued-reqs, or is refused seconds late",
        remedy="bound bursts in front of the server as well",
    ),
    Regression(
        issue="gpustack/gpustack#5109",
        first=(0, 17),
        last=(0, 17),
        card=r"\bgb10\b",
        knob="tensor_parallel_size",
        value=r"(?!1$)\d+",
        symptom="about one in three starts hangs while the shards load (two nodes, torch 2.10)",
        remedy="start it again, or take 0.16, which has torch 2.9",
    ),
    Regression(
        issue="vllm/v1/worker/startup_plan.py: startup_plan (its key lacks the share)",
        first=(0, 26),
        last=(0, 33),
        env="VLLM_ENABLE_STARTUP_PLAN",
        value="1|true",
        symptom="a plan of one gpu_memory_utilization is applied with another: a change does nothing",
        remedy="empty $VLLM_CACHE_ROOT/startup_plan after such a change",
    ),
)
