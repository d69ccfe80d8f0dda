"""The /metrics page: vLLM 0.32's names, labels, help texts and buckets, in Prometheus text format."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flettner.simulator.scheduler import Scheduler, SimulatedRequest

LATENCY_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0),
    *(960.0, 1920.0, 7680.0),
)
TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0),
    *(80.0, 160.0, 640.0, 2560.0),
)
ITL_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0),
    80.0,
)
ITERATION_TOKENS = (1.0, *(float(1 << power) for power in range(3, 15)))
PREEMPTIONS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
FINISHED = ("stop", "length", "abort", "error", "repetition")
REJECTED = ("max_num_queued_reqs", "max_num_queued_tokens")

_HISTOGRAMS = {
    "request_prompt_tokens": "Number of prefill tokens processed.",
    "request_generation_tokens": "Number of generation tokens processed.",
    "iteration_tokens_total": "Histogram of number of tokens per engine_step.",
    "time_to_first_token_seconds": "Histogram of time to first token in seconds.",
    "inter_token_latency_seconds": "Histogram of inter-token latency in seconds.",
    "request_time_per_output_token_seconds": "Histogram of time_per_output_token_seconds per request.",
    "e2e_request_latency_seconds": "Histogram of e2e request latency in seconds.",
    "request_queue_time_seconds": "Histogram of time spent in WAITING phase for request.",
    "request_inference_time_seconds": "Histogram of time spent in RUNNING phase for request.",
    "request_prefill_time_seconds": "Histogram of time spent in PREFILL phase for request.",
    "request_decode_time_seconds": "Histogram of time spent in DECODE phase for request.",
    "request_num_preemptions": "Histogram of the number of times a request was preempted.",
    "request_prefill_kv_computed_tokens": (
        "Histogram of new KV tokens computed during prefill (excluding cached tokens)."
    ),
}


class PageHistogram:
    """Counts by upper edge, rendered cumulatively."""

    def __init__(self, edges: Sequence[float]) -> None:
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.edges, value)] += times
        self.sum += value * times

    def lines(self, name: str, labels: str) -> Iterable[str]:
        total = 0
        for edge, count in zip((*self.edges, float("inf")), self.counts, strict=True):
            total += count
            le = "+Inf" if edge == float("inf") else str(edge)
            yield f'{name}_bucket{{{labels},le="{le}"}} {float(total)}'
        yield f"{name}_count{{{labels}}} {float(total)}"
        yield f"{name}_sum{{{labels}}} {self.sum}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFacts:
    """The engine's memory in cache_config_info."""

    blocks: int
    block_size: int
    max_model_len: int
    gpu_memory_utilization: float
    cache_dtype: str
    prefix_caching: bool
    blocks_override: int | None
    memory_bytes: int | None
    rank: int = 0  # of the data-parallel engine
    engines: int = 1  # of the server, whose blocks vLLM adds up

    def labels(self) -> Mapping[str, object]:
        tokens = self.blocks * self.block_size
        return {
            "block_size": self.block_size,
            "cache_dtype": self.cache_dtype,
            "enable_prefix_caching": self.prefix_caching,
            "engine": self.rank,
            "gpu_memory_utilization": self.gpu_memory_utilization,
            "kv_cache_max_concurrency": tokens / self.max_model_len,
            "kv_cache_memory_bytes": self.memory_bytes,
            "kv_cache_size_tokens": tokens,
            "kv_offloading_size": None,
            "num_cpu_blocks": None,
            "num_gpu_blocks": self.engines * self.blocks,
            "num_gpu_blocks_override": self.blocks_override,
            "prefix_caching_hash_algo": "sha256",
            "sliding_window": None,
        }


class Metrics:
    """Counters and histograms; times are in seconds from the client's view."""

    def __init__(
        self, model: str, facts: CacheFacts, started_at: float, *, without: tuple[str, ...] = ()
    ) -> None:
        """`without`: how the names of metrics begin that the page lacks."""
        self._without = without
        self._model = f'model_name="{_escape(model)}"'
        self._labels = f'engine="{facts.rank}",{self._model}'
        self._facts = facts
        self._started_at = started_at  # unix seconds
        self.prompt_tokens = self.cached_tokens = self.generation_tokens = 0
        self.finished: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self.responses: Counter[tuple[str, str, str]] = Counter()  # handler, method, status class
        tokens = tuple(_one_two_five(facts.max_model_len))
        edges: dict[str, Sequence[float]] = {
            "request_prompt_tokens": tokens,
            "request_generation_tokens": tokens,
            "request_prefill_kv_computed_tokens": tokens,
            "iteration_tokens_total": ITERATION_TOKENS,
            "time_to_first_token_seconds": TTFT_S,
            "inter_token_latency_seconds": ITL_S,
            "request_time_per_output_token_seconds": ITL_S,
            "request_num_preemptions": PREEMPTIONS,
        }
        self._histograms = {name: PageHistogram(edges.get(name, LATENCY_S)) for name in _HISTOGRAMS}

    def observe(self, name: str, value: float, times: int = 1) -> None:
        """Add to the histogram `vllm:<name>`."""
        self._histograms[name].observe(value, times)

    def prefilled(self, request: SimulatedRequest, at: float) -> None:
        """Count the first token: vLLM counts the full prompt at this moment."""
        self.prompt_tokens += request.prompt
        self.cached_tokens += request.cached
        self.observe("time_to_first_token_seconds", at - request.arrived_at)

    def ended(self, request: SimulatedRequest, reason: str) -> None:
        """Count a finished request. As in vLLM, a request whose client disconnected is not counted."""
        self.finished[reason] += 1
        queued, first, last = request.scheduled_at, request.first_at, request.last_at
        if queued is None or first is None or last is None:
            return
        gaps = max(1, request.produced - 1)
        for name, value in (
            ("request_prompt_tokens", request.prompt),
            ("request_generation_tokens", request.produced),
            ("request_prefill_kv_computed_tokens", request.prompt - request.cached),
            ("request_num_preemptions", request.preemptions),
            ("e2e_request_latency_seconds", last - request.arrived_at),
            ("request_queue_time_seconds", queued - request.arrived_at),
            ("request_prefill_time_seconds", first - queued),
            ("request_decode_time_seconds", last - first),
            ("request_inference_time_seconds", last - queued),
            ("request_time_per_output_token_seconds", (last - first) / gaps),
        ):
            self.observe(name, value)

    def text(self, scheduler: Scheduler, *, log_stats: bool = True) -> str:
        """Return the page of one scrape. Without log_stats, only the metrics of the process itself."""
        lines = [*_family("process_start_time_seconds", "gauge", _STARTED, {"": self._started_at})]
        if log_stats:
            lines += self._gauges(scheduler)
            lines += self._counters(scheduler)
            for name, histogram in self._histograms.items():
                lines += _head(f"vllm:{name}", "histogram", _HISTOGRAMS[name])
                lines += histogram.lines(f"vllm:{name}", self._labels)
            info = ",".join(f'{key}="{value}"' for key, value in self._facts.labels().items())
            about = "Information of the LLMEngine CacheConfig"
            lines += _family("vllm:cache_config_info", "gauge", about, {info: 1.0})
        http = {
            f'handler="{handler}",method="{method}",status="{status}"': float(count)
            for (handler, method, status), count in sorted(self.responses.items())
        }
        about = "Total number of requests by method, status and handler."
        lines += _family("http_requests_total", "counter", about, http)
        return "\n".join(line for line in lines if not self._lacks(line)) + "\n"

    def _lacks(self, line: str) -> bool:
        name = line.removeprefix("# HELP ").removeprefix("# TYPE ")
        return bool(self._without) and name.startswith(self._without)

    def _gauges(self, scheduler: Scheduler) -> Iterable[str]:
        waiting = len(scheduler.waiting)
        for name, about, values in (
            (
                "num_requests_running",
                "Number of requests in model execution batches.",
                len(scheduler.running),
            ),
            ("num_requests_waiting", "Number of requests waiting to be processed.", waiting),
            ("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", scheduler.cache.used_share),
        ):
            yield from _family(f"vllm:{name}", "gauge", about, {self._labels: float(values)})
        yield from _family(
            "vllm:num_requests_waiting_by_reason",
            "gauge",
            "Number of waiting requests by reason.",
            {f'{self._labels},reason="capacity"': waiting, f'{self._labels},reason="deferred"': 0.0},
        )

    def _counters(self, scheduler: Scheduler) -> Iterable[str]:
        computed = self.prompt_tokens - self.cached_tokens
        for name, about, value in (
            ("num_preemptions", "Cumulative number of preemption from the engine.", scheduler.preemptions),
            ("prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.",
             scheduler.prefix_queries),
            ("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.",
             scheduler.prefix_hits),
            ("prompt_tokens", "Number of prefill tokens processed.", self.prompt_tokens),
            ("prompt_tokens_cached", "Number of cached prompt tokens (local + external).",
             self.cached_tokens),
            ("generation_tokens", "Number of generation tokens processed.", self.generation_tokens),
        ):  # fmt: skip
            yield from _family(f"vllm:{name}_total", "counter", about, {self._labels: value})
        if (drafts := scheduler.drafts) is not None:
            for name, about, value in (
                ("num_drafts", "Number of spec decoding drafts.", drafts.drafts),
                ("num_draft_tokens", "Number of draft tokens.", drafts.drafted),
                ("num_accepted_tokens", "Number of accepted tokens.", drafts.accepted_tokens),
            ):
                yield from _family(f"vllm:spec_decode_{name}_total", "counter", about, {self._labels: value})
        for name, about, values in (
            ("prompt_tokens_by_source", "Number of prompt tokens by source.",
             {f'{self._labels},source="local_compute"': computed,
              f'{self._labels},source="local_cache_hit"': self.cached_tokens,
              f'{self._labels},source="external_kv_transfer"': 0}),
            ("request_success", "Count of successfully processed requests.",
             {f'engine="{self._facts.rank}",finished_reason="{reason}",{self._model}': self.finished[reason]
              for reason in FINISHED}),
            ("admission_rejections", "Number of admission attempts rejected by a queue limit, by reason.",
             {f'{self._model},reason="{reason}"': self.rejected[reason] for reason in REJECTED}),
        ):  # fmt: skip
            yield from _family(f"vllm:{name}_total", "counter", about, values)


def join_pages(pages: Sequence[str]) -> str:
    """Return the page of a process with several engines: each family has the series of all of them."""
    families: list[list[str]] = []
    for line in pages[0].splitlines():
        if line.startswith("# HELP "):
            families.append([])
        families[-1].append(line)
    by_head = {family[0]: family for family in families}
    for page in pages[1:]:
        family: list[str] = []
        for line in page.splitlines():
            family = by_head.get(line, family) if line.startswith("# HELP ") else family
            if not line.startswith("# ") and 'engine="' in line:
                family.append(line)
    return "\n".join(line for family in families for line in family) + "\n"


_STARTED = "Start time of the process since unix epoch in seconds."


def _head(name: str, kind: str, about: str) -> tuple[str, str]:
    return f"# HELP {name} {about}", f"# TYPE {name} {kind}"


def _family(name: str, kind: str, about: str, samples: Mapping[str, float]) -> Iterable[str]:
    yield from _head(name, kind, about)
    for labels, value in samples.items():
        yield f"{name}{{{labels}}} {float(value)}" if labels else f"{name} {float(value)}"


def _one_two_five(largest: int) -> Iterable[float]:
    decade = 1
    while True:
        for mantissa in (1, 2, 5):
            if mantissa * decade > largest:
                return
            yield float(mantissa * decade)
        decade *= 10


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
