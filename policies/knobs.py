"""The catalogue of knobs: what each vLLM flag means, where it may go, since when, and what a change costs.

Facts of vLLM 0.32 (config/scheduler.py, config/cache.py, engine/arg_utils.py) and of the releases before it.
A knob whose value is not part of the compile-cache key starts warm; a cold one compiles once per new value.
"""

import re
from dataclasses import dataclass
from typing import Literal

from agent.model import ChangeClass, Knob, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobFacts:
    """One flag of `vllm serve`. `since` and `removed`: first release with, first without it; None: always."""

    name: Knob
    type: Literal["int", "float", "bool", "choice"]
    meaning: str
    default: str  # in words: most defaults depend on the GPU and the model
    start: Literal["warm", "cold"]
    klass: ChangeClass
    unit: str = ""
    min: float | None = None  # what vLLM accepts, not what is wise
    max: float | None = None
    choices: tuple[Value, ...] = ()
    octaves: bool = False  # moves in doublings, so that compiled values are met again
    since: str | None = None
    removed: str | None = None
    source: str = "vLLM 0.32 config/scheduler.py"

    def in_version(self, version: str | None) -> bool | None:
        """Whether that vLLM has the flag; None when the version says nothing that can be read."""
        release = release_of(version)
        if release is None:
            return None
        since, removed = release_of(self.since), release_of(self.removed)
        return (since is None or release >= since) and (removed is None or release < removed)


def release_of(version: str | None) -> tuple[int, int] | None:
    """(0, 32) of "0.32.0", "v0.32.1rc2+cpu"; None of anything else."""
    found = re.match(r"v?(\d{1,4})\.(\d{1,4})", version or "")
    return (int(found[1]), int(found[2])) if found else None


_ALL = (
    KnobFacts(
        name="max_num_seqs",
        type="int",
        unit="sequences",
        min=1,
        meaning="How many sequences the engine runs at once; also sizes its buffers and CUDA graphs.",
        default="1024 on GPUs of 70 GiB and more except A100, else 256; 128 on CPU",
        start="cold",  # part of the compile-cache key since 0.29
        klass="auto",
        octaves=True,
    ),
    KnobFacts(
        name="max_num_active_seqs",
        type="int",
        unit="sequences",
        min=1,
        meaning="Caps the running sequences below max_num_seqs without touching buffers or graphs.",
        default="max_num_seqs",
        start="warm",
        klass="auto",
        octaves=True,
        since="0.31",
    ),
    KnobFacts(
        name="max_num_batched_tokens",
        type="int",
        unit="tokens per step",
        min=1,
        meaning="Token budget of one engine step: more favours TTFT and throughput, less favours ITL.",
        default="16384 on GPUs of 160 GiB and more (since 0.28), 8192 from 70 GiB except A100, else 2048",
        start="cold",
        klass="auto",
        octaves=True,
    ),
    KnobFacts(
        name="max_num_scheduled_tokens",
        type="int",
        unit="tokens per step",
        min=1,
        meaning="Caps what one step schedules below max_num_batched_tokens, without compiling again.",
        default="max_num_batched_tokens",
        start="warm",
        klass="auto",
        octaves=True,
        since="0.26",
    ),
    KnobFacts(
        name="long_prefill_token_threshold",
        type="int",
        unit="tokens",
        min=0,
        meaning="Longest chunk of one prompt per step when it is not alone: short prompts pass long ones.",
        default="0: off",
        start="warm",
        klass="auto",
        octaves=True,
    ),
    KnobFacts(
        name="watermark",
        type="float",
        unit="share of the KV cache",
        min=0.0,
        max=0.99,
        meaning="KV cache kept free when a request is admitted: fewer preemptions, later starts.",
        default="0.0",
        start="warm",
        klass="auto",
        since="0.26",
    ),
    KnobFacts(
        name="max_num_queued_reqs",
        type="int",
        unit="requests",
        min=0,
        meaning="Answers 503 when so many requests run and wait: bounds the wait of those admitted.",
        default="no limit",
        start="warm",
        klass="gated",
        since="0.29",
    ),
    KnobFacts(
        name="max_num_queued_tokens",
        type="int",
        unit="prompt tokens",
        min=0,
        meaning="Answers 503 when so many prompt tokens wait for their prefill.",
        default="no limit",
        start="warm",
        klass="gated",
        since="0.29",
    ),
    KnobFacts(
        name="gpu_memory_utilization",
        type="float",
        unit="share of the GPU's memory",
        min=0.01,
        max=1.0,
        meaning="How much of the GPU vLLM takes: what weights and activations leave becomes KV cache.",
        default="0.92 (0.90 before 0.20)",
        start="warm",
        klass="auto",
        source="vLLM 0.32 config/cache.py",
    ),
    KnobFacts(
        name="kv_cache_dtype",
        type="choice",
        choices=("auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2"),
        meaning="Precision of the KV cache: fp8 holds about twice the tokens and may change the answers.",
        default="auto: the model's own",
        start="cold",
        klass="gated",
        source="vLLM 0.32 config/cache.py",
    ),
    KnobFacts(
        name="max_model_len",
        type="int",
        unit="tokens",
        min=1,
        meaning="Longest prompt and answer together; longer requests are refused.",
        default="the model's own",
        start="cold",
        klass="gated",
        source="vLLM 0.32 config/model.py",
    ),
    KnobFacts(
        name="enable_prefix_caching",
        type="bool",
        choices=(True, False),
        meaning="Reuses the KV cache of a prompt's beginning that was seen before.",
        default="on for all generative models",
        start="warm",
        klass="auto",
        source="vLLM 0.32 config/cache.py",
    ),
    KnobFacts(
        name="enable_chunked_prefill",
        type="bool",
        choices=(True, False),
        meaning="Splits long prompts over several steps; off may give wrong answers on generative models.",
        default="on where the model supports it",
        start="warm",
        klass="gated",
    ),
    KnobFacts(
        name="async_scheduling",
        type="bool",
        choices=(True, False),
        meaning="Schedules the next step while the GPU still works on this one.",
        default="on where the executor and the speculation method support it (since 0.14)",
        start="cold",
        klass="auto",
    ),
    KnobFacts(
        name="enforce_eager",
        type="bool",
        choices=(True, False),
        meaning="Runs without compilation and CUDA graphs: starts fast, decodes slowly.",
        default="false",
        start="cold",
        klass="auto",
        source="vLLM 0.32 config/model.py",
    ),
    KnobFacts(
        name="scheduling_policy",
        type="choice",
        choices=("fcfs", "priority"),
        meaning="Order of the queue; priority needs clients that send one.",
        default="fcfs",
        start="warm",
        klass="gated",
    ),
    KnobFacts(
        name="swap_space",
        type="float",
        unit="GiB",
        min=0.0,
        meaning="Host memory for preempted requests of the old engine; today's recomputes them.",
        default="4",
        start="warm",
        klass="note",
        removed="0.18",
        source="vLLM 0.17 config/cache.py",
    ),
)

KNOBS: dict[Knob, KnobFacts] = {facts.name: facts for facts in _ALL}
