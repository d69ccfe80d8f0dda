"""Hand-made readings and contexts for tests of policies, and hypothesis strategies for both."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from flettner.agent.domain.model import Bound, Objective, Outcome, Slo
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import (
    Drafting,
    EngineWindow,
    Gpu,
    Health,
    Incident,
    Latency,
    Queue,
    Reading,
    TimeShares,
    Trend,
    Workload,
)
from flettner.vllm_facts.knobs import KNOBS as FACTS
from flettner.vllm_facts.values import Value

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
PROMISE = Slo(ttft=Objective(under_s=0.5, share=0.95), itl=Objective(under_s=0.05, share=0.95))


def steady(value: float) -> Trend:
    """The same value over the full window."""
    return Trend(mean=value, low=value, high=value, early=value, late=value)


def rising(early: float, late: float) -> Trend:
    """One value in the first half of the window, another in the second."""
    return Trend(mean=(early + late) / 2, low=min(early, late), high=max(early, late), early=early, late=late)


def late(over: float, *, p50: float = 0.1, p99: float = 0.3, count: float = 200) -> Latency:
    """A latency in seconds; `over`: share of requests above the objective."""
    return Latency(count=count, p50=p50, p95=(p50 + p99) / 2, p99=p99, over_slo=over)


def a_reading(
    *,
    running: Trend | float = 4.0,
    waiting: Trend | float = 0.0,
    kv: Trend | float | None = 0.2,
    preemptions: Trend | float | None = 0.0,
    prompt_tokens: Trend | float | None = 500.0,
    answer_tokens: Trend | float | None = None,
    version: str | None = "0.32.0",
    **fields: Any,  # noqa: ANN401 - of Reading
) -> Reading:
    """A server with 4 running requests and a cache that is 20 % full, unless given otherwise.

    A number is steady over the window. `fields` are further fields of the reading.
    """
    return Reading(
        at=NOON,
        server="chat-r0",
        span_s=30.0,
        coverage=fields.pop("coverage", 1.0),
        running=_trend(running),
        waiting=_trend(waiting),
        kv_usage=None if kv is None else _trend(kv),
        preemptions_per_s=None if preemptions is None else _trend(preemptions),
        prompt_tokens_per_s=None if prompt_tokens is None else _trend(prompt_tokens),
        generation_tokens_per_s=None if answer_tokens is None else _trend(answer_tokens),
        facts={"version": version} if version else {},
        **fields,
    )


def _trend(value: Trend | float) -> Trend:
    return value if isinstance(value, Trend) else steady(value)


def a_context(
    setting: Mapping[str, Value] | None = None,
    *,
    slo: Slo = PROMISE,
    bounds: Mapping[str, Bound] | None = None,
    outcomes: tuple[Outcome, ...] = (),
) -> Context:
    return Context(setting=setting or {}, slo=slo, bounds=bounds or {}, outcomes=outcomes)


def promoted(knob: str, before: Value, after: Value, *, ago_s: float) -> Outcome:
    at = NOON - timedelta(seconds=ago_s)
    return Outcome(at=at, result="promoted", to={knob: after}, before={knob: before})


@st.composite
def trends(draw: st.DrawFn, *, top: float) -> Trend:
    early, late_, low, high = (draw(st.floats(0, top)) for _ in range(4))
    low, *_, high = sorted((early, late_, low, high))
    return Trend(mean=(early + late_) / 2, low=low, high=high, early=early, late=late_)


@st.composite
def latencies(draw: st.DrawFn) -> Latency:
    p50, p95, p99 = sorted(draw(st.floats(0, 100)) for _ in range(3))
    return Latency(
        count=draw(st.floats(1, 10_000)),
        p50=p50,
        p95=p95,
        p99=p99,
        over_slo=draw(st.none() | st.floats(0, 1)),
        overdue=draw(st.just(0.0) | st.floats(0, 1_000)),
        clumping=draw(st.just(1.0) | st.floats(1, 100)),
    )


@st.composite
def time_shares(draw: st.DrawFn) -> TimeShares:
    parts = [draw(st.floats(0.01, 1)) for _ in range(4)]
    queue, prefill, decode, outside = (part / sum(parts) for part in parts)
    return TimeShares(queue=queue, prefill=prefill, decode=decode, outside=outside)


@st.composite
def queues(draw: st.DrawFn) -> Queue:
    return Queue(
        running=draw(st.floats(0, 600)),
        kv_usage=draw(st.none() | st.floats(0, 1)),
        wait_s=draw(st.floats(0, 1_000)),
    )


DRAFTINGS = st.builds(
    Drafting, drafts=st.floats(1, 1e5), drafted=st.floats(1, 1e6), accepted_ratio=st.floats(0, 1)
)


def _some(least: float, most: float) -> st.SearchStrategy[float | None]:
    return st.none() | st.floats(least, most)


WORKLOADS = st.builds(
    Workload,
    arrivals_per_s=_some(0, 100),
    lasting_arrivals_per_s=_some(0, 100),
    begun_arrivals_per_s=_some(0, 100),
    prompt_tokens=_some(1, 30_000),
    answer_tokens=_some(1, 5_000),
    prefill_s=_some(0, 100),
    service_s=_some(0, 1_000),
    step_tokens=_some(1, 20_000),
    decode_step_s=_some(0.001, 10),
    token_s=_some(1e-6, 0.01),
)


GPUS = st.builds(
    Gpu,
    index=st.just(0),
    uuid=st.just("GPU-1"),
    name=st.sampled_from(["", "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"]),
    utilization=st.none() | st.floats(0, 1),
    memory_used_mib=st.none() | st.floats(0, 15_000),
    memory_total_mib=st.none() | st.sampled_from([15_360.0, 81_559.0, 183_359.0]),
    temperature_c=st.none() | st.floats(20, 100),
    throttle_reasons=st.none() | st.sampled_from([0, 0x8, 0x20, 0x40]),
)

INCIDENTS = st.builds(
    Incident,
    at=st.just(NOON),
    server=st.just("chat-r0"),
    what=st.sampled_from(["oom", "died", "restarted", "unhealthy"]),
    why=st.just("exit code 137"),
)

COUNTS = st.floats(0, 10_000)
ENGINES = st.builds(
    EngineWindow,
    running=st.floats(0, 600).map(steady),
    waiting=st.floats(0, 600).map(steady),
    tokens=COUNTS,
    ended=COUNTS,
)
HEALTH = st.builds(
    Health,
    ended=st.dictionaries(st.sampled_from(["stop", "length", "abort", "error"]), COUNTS),
    answered=st.dictionaries(st.sampled_from(["2xx", "4xx", "5xx"]), COUNTS),
    rejected=st.dictionaries(st.sampled_from(["max_num_queued_reqs", "max_num_queued_tokens"]), COUNTS),
    deferred=st.none() | st.floats(0, 600).map(steady),
    engines=st.just({}) | st.fixed_dictionaries({"0": ENGINES, "1": ENGINES}),
    restarts=st.integers(0, 2),
)

READINGS = st.builds(
    Reading,
    at=st.just(NOON),
    server=st.just("chat-r0"),
    span_s=st.just(30.0),
    coverage=st.floats(0, 1) | st.just(1.0),
    running=trends(top=600) | st.integers(0, 600).map(float).map(steady),
    waiting=trends(top=600) | st.integers(0, 600).map(float).map(steady),
    kv_usage=st.none() | trends(top=1) | st.floats(0, 1).map(steady),
    preemptions_per_s=st.none() | trends(top=5) | st.just(steady(0.0)),
    prompt_tokens_per_s=st.none() | trends(top=10_000) | st.just(steady(0.0)),
    generation_tokens_per_s=st.none() | trends(top=10_000) | st.just(steady(0.0)),
    prefix_hit_ratio=st.none() | st.floats(0, 1),
    drafting=st.none() | DRAFTINGS,
    ttft=st.none() | latencies(),
    itl=st.none() | latencies(),
    e2e=st.none() | latencies(),
    ttft_shares=st.none() | time_shares(),
    itl_shares=st.none() | time_shares(),
    e2e_shares=st.none() | time_shares(),
    queue=st.none() | queues(),
    work=WORKLOADS | st.just(Workload()),
    health=st.just(Health()) | HEALTH,
    gpus=st.lists(GPUS, max_size=2).map(tuple),
    facts=st.sampled_from([{}, {"version": "0.17.1"}, {"version": "0.28.0"}, {"version": "0.32.0"}]),
    incidents=st.lists(INCIDENTS, max_size=1).map(tuple),
)

KNOBS = (
    "max_num_seqs",
    "max_num_active_seqs",
    "max_num_batched_tokens",
    "max_num_scheduled_tokens",
    "watermark",
)
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "max_num_seqs": st.integers(1, 4096),
        "max_num_active_seqs": st.integers(1, 4096),
        "max_num_batched_tokens": st.integers(1, 32_768),
        "max_num_scheduled_tokens": st.integers(1, 32_768),
        "watermark": st.floats(0, 0.99),
        "gpu_memory_utilization": st.floats(0.1, 0.98),
        "max_model_len": st.integers(64, 131_072),
        "enable_prefix_caching": st.booleans(),
        "enforce_eager": st.booleans(),
        "async_scheduling": st.booleans(),
        "long_prefill_token_threshold": st.integers(0, 8192),
    },
)


@st.composite
def bounds(draw: st.DrawFn) -> Bound:
    low = draw(st.none() | st.integers(1, 512))
    high = draw(st.none() | st.integers(low or 1, 16_384))
    allowed = draw(st.just(()) | st.lists(st.integers(1, 1024), min_size=1, max_size=4).map(tuple))
    return Bound(min=low, max=high, allowed=allowed)


OBJECTIVES = st.none() | st.builds(Objective, under_s=st.floats(0.001, 10), share=st.floats(0.5, 0.999))
CONTEXTS = st.builds(
    Context,
    setting=SETTINGS,
    slo=st.builds(Slo, ttft=OBJECTIVES, itl=OBJECTIVES, e2e=OBJECTIVES),
    bounds=st.dictionaries(st.sampled_from(KNOBS), bounds(), max_size=5),
    outcomes=st.lists(
        st.builds(
            promoted,
            st.sampled_from(KNOBS),
            st.none() | st.integers(1, 100),
            st.integers(1, 100),
            ago_s=st.floats(0, 2_000),
        ),
        max_size=3,
    ),
)


def _possible_case(reading: Reading, context: Context) -> tuple[Reading, Context]:
    """Reduce a case to what is possible: flags that the version has, and no incidents.

    Precedence, not each policy, handles faults of the server.
    """
    version = reading.facts.get("version")
    setting = {k: v for k, v in context.setting.items() if FACTS[k].in_version(version) is not False}
    return replace(reading, incidents=()), replace(context, setting=setting)


CASES = st.builds(_possible_case, READINGS, CONTEXTS)
