"""Samples, which sensors emit, and readings over a window, which policies get."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal

RequestOutcome = Literal["ok", "failed", "truncated", "aborted", "gave_up", "stalled", "refused"]
"""`failed`: no connection, reset before the answer, or status >= 500. `truncated`: a stream cut short.
`aborted`: answered 200 with finish_reason "abort". `gave_up`: the client disconnected first.
`stalled`: no first byte within the sensor's `stalled_after`, which is longer than any promised latency;
reported once, while the request still waits. Its end is reported too, as any other.
`refused`: answered 400 to 499: a client's mistake, or a server that accepts less than it should."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """A histogram's increase over an interval. `counts[i]` lies in (edges[i-1], edges[i]]; one more count
    than edges: the last is +Inf. Not cumulative."""

    edges: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float
    total: float = field(init=False, repr=False, compare=False)  # of the counts, which a window adds up often

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", sum(self.counts))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineShare:
    """One data-parallel engine in one scrape. Counters are increases."""

    running: float
    waiting: float
    tokens: float  # of prompts and answers
    ended: float  # requests


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSample:
    """One scrape of one server. Counters are increases since the previous scrape of the same process."""

    at: datetime
    server: str
    interval_s: float  # 0.0: first scrape of this process, the increases are all 0
    running: float
    waiting: float
    kv_usage: float | None = None  # 0..1, the highest of the engines
    preemptions: float = 0.0
    prompt_tokens: float = 0.0
    generation_tokens: float = 0.0
    cached_tokens: float = 0.0  # of the prompt tokens
    prefix_queries: float = 0.0
    prefix_hits: float = 0.0
    drafts: float = 0.0  # of speculative decoding, each for one sequence and step
    drafted: float = 0.0  # tokens of the drafts
    accepted: float = 0.0  # of the drafted tokens
    finished: Mapping[str, float] = field(default_factory=dict)  # by finished_reason
    answered: Mapping[str, float] = field(default_factory=dict)  # POST requests by class of status: "5xx"
    rejected: Mapping[str, float] = field(default_factory=dict)  # by admission limit
    deferred: float | None = None  # waiting requests that wait for something other than capacity
    engines: Mapping[str, EngineShare] = field(default_factory=dict)  # by label; empty with one engine
    restarted: bool = False  # another process than at the previous scrape
    ttft: Buckets | None = None
    itl: Buckets | None = None  # of each token
    gaps: Buckets | None = None  # mean of each request
    e2e: Buckets | None = None
    queue: Buckets | None = None  # this and the next five: recorded when a request ends, by vLLM
    prefill: Buckets | None = None
    decode: Buckets | None = None
    inference: Buckets | None = None  # prefill and decode
    prompts: Buckets | None = None  # tokens of a request
    answers: Buckets | None = None  # tokens of a request
    steps: Buckets | None = None  # tokens of a step; a prompt counts in the step that completes it
    facts: Mapping[str, str] = field(default_factory=dict)  # "version", and cache_config_info's labels
    missing: frozenset[str] = frozenset()  # metrics that this server does not export


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLiveness:
    """The latest engine metrics of a server. Increases are of the scrapes since the last second: each scrape
    counts once, and without a new one `tokens` stays and the other increases are 0."""

    age_s: float  # of the latest scrape
    running: float
    waiting: float
    tokens: float | None  # of prompts and answers; None: a process's first scrape, or not exported
    generated: float = 0.0  # of the tokens, those of answers
    prefix_queries: float = 0.0
    prefix_hits: float = 0.0
    restarted: bool = False  # another process than at the previous scrape
    lost: bool = False  # a source of this server alone has failed since its latest scrape
    paused: bool = False  # its container was paused since its latest scrape
    missing: frozenset[str] = frozenset()  # metrics that its latest page lacks, of those that are read
    unusable: str = ""  # why its present pages cannot be used, though it answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One attempt of one request at one server, as the proxy saw it."""

    server: str
    outcome: RequestOutcome
    status: int  # 0: no answer
    duration_s: float
    ttft_s: float | None = None  # to the first byte of the body
    tokens: int | None = None  # streamed chunks, where the proxy counted them
    request_bytes: int | None = None  # of its body, where the proxy counted them
    began_s: float | None = None  # when it arrived, Unix time by the proxy's clock
    stalled: bool = False  # ended, and was reported as stalled before
    unknown_model: str = ""
    """The name that the server does not serve, as its 404 says; empty where that is unknown."""
    client: int | None = None  # the number of its bucket of clients; None: unknown, or one client sends all
    pinned: bool = False  # it has a session, which the proxy keeps at one server


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSample:
    """The attempts that ended or stalled since the last sample, of all servers of the target.

    `lost`: the server of the last attempt of each request that its client did not get whole.
    """

    at: datetime
    requests: tuple[Request, ...]
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU at one tick. None: not reported by the driver (`[N/A]`), never 0."""

    index: int
    uuid: str
    name: str = ""
    utilization: float | None = None  # 0..1, share of the last tick with a kernel running
    memory_used_mib: float | None = None
    memory_total_mib: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttle_reasons: int | None = None  # bit mask of clocks_event_reasons.active
    mig: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    at: datetime
    gpus: tuple[Gpu, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesSample:
    """Named PromQL results. None: no fresh sample."""

    at: datetime
    values: Mapping[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """A source was lost or is available again. Emitted once per change, not per attempt."""

    at: datetime
    source: str  # "vllm_metrics chat-r0", "nvidia_smi"
    server: str = ""  # that does not answer while the source is lost; empty: it says nothing of a server
    available: bool
    why: str = ""
    answers: bool = False  # it is not available, although it answers: what it says cannot be used


IncidentKind = Literal["oom", "died", "restarted", "paused", "unhealthy", "renamed", "disconnected"]
"""`oom`: the kernel killed a process in the container; the server may survive. `unhealthy`: by its own health
check, after it was healthy. `disconnected`: removed from a network while it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """An event of a server's container, whatever caused it: flettner stops servers too."""

    at: datetime
    server: str
    what: IncidentKind
    why: str
    container: str = ""  # its name


Sample = EngineSample | RequestSample | GpuSample | SeriesSample | SourceState | Incident


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A signal over the window: time-weighted means of the full window and of its two halves.

    `at_high`: the share of the window in which the signal had its highest value.
    """

    mean: float
    low: float
    high: float
    early: float
    late: float
    at_high: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Seconds. From the proxy's records if there are any, else interpolated in vLLM's buckets."""

    count: float
    p50: float
    p95: float
    p99: float
    over_slo: float | None = None  # share of requests above the objective's `under_s`
    overdue: float = 0.0  # further requests that still wait and are above it already
    clumping: float = 1.0  # design effect, at least 1: late requests come together, not one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShares:
    """Where the time of the requests above one objective went; the shares add up to 1.

    Of the gap between tokens, `prefill` is the time above the objective of steps that computed prompts too.
    """

    queue: float = 0.0  # waiting in the engine
    prefill: float = 0.0
    decode: float = 0.0
    outside: float = 0.0  # of the engine: API server, proxy, network


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """The state of the engine while requests waited: means, weighted by their number."""

    running: float
    kv_usage: float | None
    wait_s: float  # of a request that arrives now: waiting requests over the requests that start in a second


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The work of the window's requests, and the time that the engine needs for it. None: not measured."""

    arrivals_per_s: float | None = None
    lasting_arrivals_per_s: float | None = None  # of the last minutes, since the server last had no request
    begun_arrivals_per_s: float | None = None  # since then, also if that was just now; None: too few
    prompt_tokens: float | None = None  # of a request, mean, without those found in the prefix cache
    answer_tokens: float | None = None  # of a request, mean
    prefill_s: float | None = None  # of a request, mean, from its admission to its first token
    service_s: float | None = None  # of a request, mean, in the engine without its time in the queue
    step_tokens: float | None = None  # mean of the steps
    decode_step_s: float | None = None  # duration of a step that computes no prompt
    token_s: float | None = None  # that one more prompt token adds to a step


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRequests:
    """Requests that were answered 400, beside the accepted ones. Sizes in bytes; None: not recorded."""

    count: int
    accepted: int
    longer: float | None = None  # share of the refused that are longer than nearly all accepted ones
    longest_bytes: int | None = None
    accepted_bytes: float | None = None  # mean of the accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """Speculative decoding over the window. Each draft is for one sequence and one step; all above 0."""

    drafts: float
    drafted: float  # tokens
    accepted_ratio: float  # of the drafted tokens, 0..1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineWindow:
    """One data-parallel engine over the window."""

    running: Trend
    waiting: Trend
    tokens: float  # of prompts and answers
    ended: float  # requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What the server counts over the window besides load and latency. Empty: not exported."""

    ended: Mapping[str, float] = field(default_factory=dict)  # requests by vLLM's finished_reason
    answered: Mapping[str, float] = field(default_factory=dict)  # POST requests by class of status: "5xx"
    rejected: Mapping[str, float] = field(default_factory=dict)  # requests by admission limit
    deferred: Trend | None = None  # waiting requests that wait for something other than capacity
    engines: Mapping[str, EngineWindow] = field(default_factory=dict)  # by label; empty with one engine
    restarts: int = 0


REPLICAS: Final = "replicas"
"""The fact that holds the number of servers behind one name, of which a sample is the sum; absent: one."""


def count_replicas(facts: Mapping[str, str]) -> int:
    """Number of servers that a sample or a reading with these facts adds up."""
    return int(facts.get(REPLICAS, "1"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One server over the last `span_s` seconds."""

    at: datetime
    server: str
    span_s: float
    coverage: float  # share of the seconds of the span with a fresh scrape; policies want >= 0.8
    running: Trend
    waiting: Trend
    kv_usage: Trend | None = None
    preemptions_per_s: Trend | None = None
    prompt_tokens_per_s: Trend | None = None
    generation_tokens_per_s: Trend | None = None
    prefix_hit_ratio: float | None = None
    drafting: Drafting | None = None  # None: nothing was drafted
    ttft: Latency | None = None
    itl: Latency | None = None
    e2e: Latency | None = None
    requests: Mapping[RequestOutcome, int] = field(default_factory=dict)
    refused: RefusedRequests | None = None  # None: no request, or not recorded
    goodput_rps: float | None = None  # requests that met every latency objective, per second
    ttft_shares: TimeShares | None = None  # of the late requests; None: none is late, or not measured
    itl_shares: TimeShares | None = None
    e2e_shares: TimeShares | None = None
    queue: Queue | None = None  # None: nothing waited
    work: Workload = field(default_factory=Workload)
    health: Health = field(default_factory=Health)
    shift: str = ""  # why the window is no evidence: the load changed inside it; "": it is stationary
    gpus: tuple[Gpu, ...] = ()
    series: Mapping[str, float | None] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()
    incidents: tuple[Incident, ...] = ()  # of its container, oldest first

    @property
    def kv_cache_tokens(self) -> float | None:
        """Tokens that the KV cache of an engine holds, as the server reports it."""
        try:
            if "kv_cache_size_tokens" in self.facts:
                return float(self.facts["kv_cache_size_tokens"])
            return float(self.facts["num_gpu_blocks"]) * float(self.facts["block_size"])
        except (KeyError, ValueError):
            return None

    @property
    def stands_still(self) -> bool:
        """Whether requests run or wait during the full window while no prompt or answer advances."""
        prompts, answers = self.prompt_tokens_per_s, self.generation_tokens_per_s
        if prompts is None or answers is None or max(self.running.low, self.waiting.low) <= 0:
            return False
        return prompts.high <= 0 and answers.high <= 0
