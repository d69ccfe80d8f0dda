"""Whether a scrape can be true of an engine: a torn page or a counter that jumped is no measurement.

The limits are far above what any engine reaches: they find nonsense, not surprises.
"""

from math import isfinite

from flettner.agent.domain.model import Server
from flettner.agent.domain.reading import Buckets, EngineSample, count_replicas
from flettner.vllm_facts.defaults import positive_int
from flettner.vllm_facts.values import Setting

MARGIN = 2.0  # times the engine's own cap
SEQUENCES = 4096  # of an engine whose cap is not set; vLLM's defaults are at most 1024
WAITING = 1e6
STEPS_PER_S = 1e4  # of an engine: a step of the smallest model takes longer than 0.1 ms
GENERATED_PER_S = 1e6  # tokens, of an engine
PROMPTED_PER_S = 1e8  # tokens, of an engine, with those found in the prefix cache
REQUESTS_PER_S = 1e5  # of an engine
MOST_DRAFTED = 128.0  # tokens for one sequence in a step


def highest_setting(server: Server) -> Setting:
    """The server's setting, each knob that changes while it runs at its highest value.

    A knob may be raised before the setting says so, in a trial or by another program.
    """
    limits = server.hot.limits if server.hot else {}
    return {**server.setting, **{knob: highest for knob, (_, highest) in limits.items()}}


def find_nonsense(sample: EngineSample, setting: Setting) -> str:
    """What cannot be true of a server with this setting, with the limit; empty: nothing."""
    engines = (positive_int(setting, "data_parallel_size") or 1) * count_replicas(sample.facts)
    cap = positive_int(setting, "max_num_seqs")
    running = engines * (MARGIN * cap if cap else SEQUENCES)
    for name, value, limit in (
        ("requests run", sample.running, running),
        ("requests wait", sample.waiting, WAITING * engines),
    ):
        if value > limit:
            return f"{value:g} {name}, at most {limit:g} can"
    seconds = max(sample.interval_s, 1.0)
    generated = min(GENERATED_PER_S * engines, STEPS_PER_S * running)
    requests = REQUESTS_PER_S * engines
    for name, increase, per_s in (
        ("generated tokens", sample.generation_tokens, generated),
        ("tokens of prompts", sample.prompt_tokens, PROMPTED_PER_S * engines),
        ("cached tokens", sample.cached_tokens, PROMPTED_PER_S * engines),
        ("prefix cache queries", sample.prefix_queries, PROMPTED_PER_S * engines),
        ("prefix cache hits", sample.prefix_hits, PROMPTED_PER_S * engines),
        ("drafted tokens", sample.drafted, STEPS_PER_S * running * MOST_DRAFTED),
        ("accepted tokens", sample.accepted, MARGIN * sample.drafted / seconds),
        ("preemptions", sample.preemptions, STEPS_PER_S * running),
        ("finished requests", sum(sample.finished.values()), requests),
        ("first tokens", _count(sample.ttft), requests),
        ("ended requests", _count(sample.e2e), requests),
        ("gaps between tokens", _count(sample.itl), generated),
        ("steps", _count(sample.steps), STEPS_PER_S * engines),
    ):
        if increase > per_s * seconds:
            return (
                f"{increase:g} {name} in {sample.interval_s:.3g} s, at most {per_s:g} a second are possible"
            )
    return ""


def is_finite(sample: EngineSample) -> bool:
    gauges = (sample.interval_s, sample.running, sample.waiting, sample.kv_usage or 0.0)
    counters = (sample.preemptions, sample.prompt_tokens, sample.generation_tokens)
    prefix = (sample.cached_tokens, sample.prefix_queries, sample.prefix_hits)
    drafts = (sample.drafts, sample.drafted, sample.accepted)
    latencies = (sample.ttft, sample.itl, sample.gaps, sample.e2e)
    parts = (sample.queue, sample.prefill, sample.decode, sample.inference)
    sizes = (sample.prompts, sample.answers, sample.steps)
    finite = all(isfinite(number) for number in (*gauges, *counters, *prefix, *drafts))
    return finite and all(_is_valid(buckets) for buckets in (*latencies, *parts, *sizes))


def _is_valid(buckets: Buckets | None) -> bool:
    if buckets is None:
        return True
    return len(buckets.counts) == len(buckets.edges) + 1 and isfinite(sum(buckets.counts))


def _count(histogram: Buckets | None) -> float:
    return 0.0 if histogram is None else histogram.total
