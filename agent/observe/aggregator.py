"""Aggregates streams of samples into the machine's input of each second: a reading, and request counts."""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import chain
from math import ceil, isfinite
from typing import Final

from flettner.agent.domain.calibration import STREAMS, Calibration, CalibrationWindow
from flettner.agent.domain.model import Slo
from flettner.agent.domain.reading import (
    EngineLiveness,
    EngineSample,
    EngineWindow,
    Gpu,
    GpuSample,
    Health,
    Incident,
    Reading,
    Request,
    RequestOutcome,
    RequestSample,
    Sample,
    SeriesSample,
    SourceState,
    Trend,
)
from flettner.agent.domain.request_counts import (
    NO_REQUESTS,
    ClientBucket,
    RequestCounts,
    RequestSource,
    count_requests,
)
from flettner.agent.observe.arrivals import begun_rate, choose_span, count_arrivals, find_shift, lasting_rate
from flettner.agent.observe.attribution import summarize_queue, summarize_work
from flettner.agent.observe.drafting import ChunkSize, summarize_drafts
from flettner.agent.observe.engine_counts import EngineCounter
from flettner.agent.observe.latencies import Record, add_latencies, record_request
from flettner.agent.observe.plausibility import is_finite
from flettner.agent.observe.refused import summarize_refused
from flettner.agent.observe.window import SampleWindow, average_gauge, average_rate, select_window

SPAN: Final = timedelta(seconds=30)
LEAST: Final = 5  # missing requests
SHARE: Final = 0.2
"""Of vLLM's requests. A record comes up to 2 s after the count of vLLM: if the load doubles then, 2 of 34
are missing in the span. A smaller loss is not noticed."""


@dataclass(slots=True)
class RecordGap:
    """Whether the access logs of a gateway have all requests that one server answered. Times: of samples.

    A gateway drops a record that it could not send, without a message. vLLM counts its requests itself: where
    the records are fewer, some were lost, or requests went to the server by another way.
    """

    _answered: deque[tuple[datetime, float]] = field(default_factory=deque)  # by vLLM's own count
    _recorded: deque[tuple[datetime, float]] = field(default_factory=deque)

    def add_scrape(self, sample: EngineSample) -> None:
        """Counts requests over HTTP; where vLLM does not, those that the engine has finished."""
        counted = sample.answered or sample.finished
        _add(self._answered, sample.at, sum(counted.values()))

    def add_records(self, at: datetime, count: int) -> None:
        _add(self._recorded, at, count)

    def describe(self) -> str:
        """As in "12 of 40 requests in 30 s"; empty: nothing of note is missing."""
        answered = sum(count for _, count in self._answered)
        recorded = sum(count for _, count in self._recorded)
        if answered - recorded <= max(LEAST, SHARE * answered):
            return ""
        return f"{recorded:.0f} of {answered:.0f} requests in {SPAN.total_seconds():.0f} s"


def _add(counts: deque[tuple[datetime, float]], at: datetime, count: float) -> None:
    counts.append((at, count))
    while counts[0][0] <= at - SPAN:
        counts.popleft()


UNKNOWN_MODELS = 1_000  # names of a server counted until `take_unknown_models`: clients choose them
PENDING = 2_000  # requests of a server kept until `take_request_counts`; more are counted at once
SOURCES = 1_000  # sources whose state is kept
INCIDENTS = 1_000  # latest incidents kept, of all servers
MAX_NEW_SAMPLES = 100  # latest scrapes of a server kept until `take_liveness`
PROGRESS_S = 5.0  # a server that computed no token for this time makes no progress
TOKENS = frozenset({"prompt_tokens", "generation_tokens"})
REQUESTS = "proxy_requests"  # the source of request records
TRAFFIC = "traffic"  # the source that says whether the split is in force
CALIBRATION_S = 60 / len(STREAMS)
FORGET_SPANS = 20  # spans without samples after which a server is forgotten


@dataclass(slots=True)
class _Server:
    """Samples of one server: the window, and the samples since the last `take_...` calls."""

    first: datetime
    last: datetime
    samples: deque[EngineSample]
    requests: deque[Record]
    facts: dict[str, str] = field(default_factory=dict)  # latest value by name
    pending: list[Request] = field(default_factory=list)
    counted: RequestCounts = NO_REQUESTS
    clients: dict[ClientBucket, RequestCounts] = field(default_factory=dict)  # of `counted`, where known
    unknown_models: Counter[str] = field(default_factory=Counter)
    engine: EngineCounter = field(default_factory=EngineCounter)
    gap: RecordGap = field(default_factory=RecordGap)
    chunk: ChunkSize = field(default_factory=ChunkSize)
    new_samples: list[EngineSample] = field(default_factory=list)  # since the last `take_liveness`
    restarted: bool = False  # since the last `take_liveness`
    tokens: float | None = None  # in the scrapes of the last `take_liveness` that had any

    def take_counts(self, slo: Slo, at: datetime) -> RequestCounts:
        self.count_pending(slo, at)
        counts, self.counted = self.counted, NO_REQUESTS
        return counts

    def count_pending(self, slo: Slo, at: datetime) -> None:
        waiting, pending = self.waiting_in_turn(at), self.pending
        self.counted, self.pending = self.counted + count_requests(pending, slo, waiting=waiting), []
        buckets = defaultdict[ClientBucket, list[Request]](list)
        for request in pending:
            if request.client is not None:
                buckets[ClientBucket(request.client, request.pinned)].append(request)
        for client, requests in buckets.items():
            new = count_requests(requests, slo, waiting=waiting)
            self.clients[client] = self.clients.get(client, NO_REQUESTS) + new

    def take_clients(self) -> dict[ClientBucket, RequestCounts]:
        clients, self.clients = self.clients, {}
        return clients

    def waiting_in_turn(self, at: datetime) -> int:
        """The most requests that waited in the last PROGRESS_S; 0 if the engine computed no token meanwhile.

        A request that stalls at a server without progress does not wait in turn.
        """
        waiting, tokens = 0.0, 0.0
        for sample in reversed(self.samples):
            if at - sample.at >= timedelta(seconds=PROGRESS_S):
                break
            waiting = max(waiting, sample.waiting)
            tokens += sample.prompt_tokens + sample.generation_tokens
        return ceil(waiting) if tokens > 0 else 0

    def add_scrape(self, sample: EngineSample) -> None:
        self.restarted |= sample.restarted
        self.samples.append(sample)
        self.chunk.add_scrape(sample)
        self.new_samples.append(sample)
        del self.new_samples[:-MAX_NEW_SAMPLES]

    def take_liveness(self, at: datetime) -> EngineLiveness | None:
        """Return the engine's state and its activity since the last call; None before the first scrape."""
        if not self.samples:
            return None
        last, new = self.samples[-1], self.new_samples
        if new:
            counted = [s for s in new if s.interval_s > 0 and s.missing.isdisjoint(TOKENS)]
            is_complete = counted and counted[-1] is last
            self.tokens = sum(s.prompt_tokens + s.generation_tokens for s in counted) if is_complete else None
        engine = EngineLiveness(
            age_s=(at - last.at).total_seconds(),
            running=last.running,
            waiting=last.waiting,
            tokens=self.tokens,
            generated=sum(s.generation_tokens for s in new),
            prefix_queries=sum(s.prefix_queries for s in new),
            prefix_hits=sum(s.prefix_hits for s in new),
            restarted=self.restarted,
            missing=last.missing,
        )
        self.new_samples, self.restarted = [], False
        return engine


@dataclass(slots=True, kw_only=True)
class Aggregator:
    """The last seconds of one target, in bounded memory.

    Deterministic: the same samples and calls give the same results. Samples with a number that is not finite
    are skipped. Of more than `most` scrapes or requests in a span the latest are kept.
    """

    slo: Slo = field(default_factory=Slo)
    counted_by: RequestSource = "proxy"
    span_s: float = 30.0
    longest_s: float = 240.0  # the longest span, where `span_s` has few requests
    fresh_s: float = 5.0  # seconds before it that a scrape covers at most
    most: int = 20_000
    _servers: dict[str, _Server] = field(default_factory=dict, init=False)
    _sources: dict[str, SourceState] = field(default_factory=dict, init=False)
    _gpus: GpuSample | None = field(default=None, init=False)
    _series: SeriesSample | None = field(default=None, init=False)
    _steadiness: CalibrationWindow = field(default_factory=CalibrationWindow, init=False)
    _lost: Counter[str] = field(default_factory=Counter, init=False)
    _calibration_slot: int = field(default=0, init=False)  # time slot of the last calibration
    _incidents: deque[Incident] = field(default_factory=lambda: deque(maxlen=INCIDENTS), init=False)

    def __post_init__(self) -> None:
        if not (self.span_s > 0 and self.fresh_s > 0 and self.most > 0):
            raise ValueError(
                f"span_s, fresh_s and most must be above 0, not {self.span_s}, {self.fresh_s}, {self.most}"
            )

    def add(self, sample: Sample) -> None:
        match sample:
            case EngineSample():
                self._add_scrape(sample)
            case RequestSample():
                self._add_requests(sample)
            case GpuSample():
                self._gpus = sample
            case SeriesSample():
                self._series = sample
            case Incident():
                self._incidents.append(sample)
            case SourceState():
                self._sources.pop(sample.source, None)
                self._sources[sample.source] = sample
                while len(self._sources) > SOURCES:
                    del self._sources[next(iter(self._sources))]

    def sources(self) -> dict[str, SourceState]:
        """Return the latest state of each source, by name; the latest change is last."""
        return dict(self._sources)

    def forget(self, server: str) -> None:
        """Drop a retired server and its own sources."""
        self._servers.pop(server, None)
        for source in self._own_sources(server):
            del self._sources[source.source]

    def _own_sources(self, server: str) -> list[SourceState]:
        return [source for source in self._sources.values() if source.server == server]

    def take_request_counts(self, at: datetime) -> dict[str, RequestCounts]:
        """Return each server's request counts since the last call, without servers that had no requests."""
        silent_s = timedelta(seconds=FORGET_SPANS * self.span_s)
        for name in [name for name, server in self._servers.items() if at - server.last > silent_s]:
            del self._servers[name]
        active = [
            name for name, server in self._servers.items() if server.pending or server.counted != NO_REQUESTS
        ]
        return {name: self._servers[name].take_counts(self.slo, at) for name in active}

    def take_clients(self) -> dict[str, dict[ClientBucket, RequestCounts]]:
        """Return those of the counts of `take_request_counts` whose client is known, by server."""
        return {name: server.take_clients() for name, server in self._servers.items() if server.clients}

    def take_unknown_models(self) -> dict[str, dict[str, int]]:
        """Return how many requests each server answered with 404 since the last call, by the model's name."""
        taken = {
            name: dict(server.unknown_models)
            for name, server in self._servers.items()
            if server.unknown_models
        }
        for name in taken:
            self._servers[name].unknown_models.clear()
        return taken

    def take_lost(self) -> dict[str, int] | None:
        """Return how many requests clients lost since the last call, by server; None: not counted."""
        lost, self._lost = self._lost, Counter()
        return None if self.counted_by == "engine" else dict(lost)

    def take_liveness(self, at: datetime) -> dict[str, EngineLiveness]:
        """Return the state of each server's engine and its activity since the last call."""
        engines = {
            source.server: EngineLiveness(
                age_s=(at - source.at).total_seconds(),
                running=0,
                waiting=0,
                tokens=None,
                lost=not source.answers,
                unusable=source.why if source.answers else "",
            )
            for source in self._sources.values()
            if source.server and not source.available
        }
        for name, server in self._servers.items():
            if (engine := server.take_liveness(at)) is not None:
                engines[name] = self._with_loss(name, engine, server.samples[-1].at)
        return engines

    def _with_loss(self, server: str, engine: EngineLiveness, scraped_at: datetime) -> EngineLiveness:
        failed = [source for source in self._own_sources(server) if not source.available]
        return replace(
            engine,
            lost=any(not source.answers for source in failed),
            unusable=next((source.why for source in failed if source.answers), ""),
            paused=any(
                incident.server == server and incident.what == "paused" and incident.at >= scraped_at
                for incident in self._incidents
            ),
        )

    @property
    def blind(self) -> str:
        """Why requests cannot be counted; empty unless their source is lost."""
        sources: list[SourceState | None] = []
        if self.counted_by != "engine":
            sources.append(self._sources.get(REQUESTS))
        if self.counted_by != "proxy":
            sources += [source for server in self._servers for source in self._own_sources(server)]
            sources.append(self._sources.get(TRAFFIC))
        why = [
            f"{source.source}: {source.why}"
            for source in sources
            if source is not None and not source.available
        ]
        if self.counted_by == "access_log":
            gaps = {name: server.gap.describe() for name, server in self._servers.items()}
            why += [f"the gateway recorded only {gap} at {name}" for name, gap in gaps.items() if gap]
        return "; ".join(why)

    def calibrate(self, at: datetime, counts: Mapping[str, RequestCounts]) -> dict[str, Calibration]:
        """Add one second's counts of servers with the same setting; calibrate one stream at a time.

        Each stream is calibrated once a minute; a latency without an objective has no edge and is skipped.
        """
        self._steadiness.add(at, counts)
        last_slot, self._calibration_slot = self._calibration_slot, int(at.timestamp() // CALIBRATION_S)
        stream = tuple(STREAMS)[self._calibration_slot % len(STREAMS)]
        if self._calibration_slot == last_slot or getattr(self.slo, stream, self.slo) is None:
            return {}
        calibration = self._steadiness.calibration(stream, at)
        return {} if calibration is None else {stream: calibration}

    def reading(self, server: str, at: datetime) -> Reading | None:
        """Summarize the server over the window that ends at `at`; None without a scrape in the window."""
        measured = self._servers.get(server)
        if measured is None:
            return None
        span_s = choose_span(measured.samples, at=at, least_s=self.span_s, most_s=self.longest_s)
        window = select_window(measured.samples, at=at, span_s=span_s, fresh_s=self.fresh_s)
        samples = window.samples
        if not samples:
            return None
        since = at - timedelta(seconds=span_s)
        lately = at - timedelta(seconds=self.span_s)
        since_s, at_s = since.timestamp(), at.timestamp()
        records = [record for record in measured.requests if since_s < record.at_s <= at_s]
        queries = sum(sample.prefix_queries for sample in samples)
        usages = [sample.kv_usage for sample in samples]
        kv_known = [usage for usage in usages if usage is not None]
        missing = samples[-1].missing
        arrivals = count_arrivals(samples, span_s=span_s)
        reading = Reading(
            at=at,
            server=server,
            span_s=span_s,
            coverage=min(1.0, window.covered_s / span_s),
            running=average_gauge(window, [sample.running for sample in samples]),
            waiting=average_gauge(window, [sample.waiting for sample in samples]),
            kv_usage=average_gauge(window, kv_known) if len(kv_known) == len(usages) else None,
            preemptions_per_s=None
            if "num_preemptions" in missing
            else average_rate(window, [sample.preemptions for sample in samples]),
            prompt_tokens_per_s=_token_rate(window, "prompt_tokens", [s.prompt_tokens for s in samples]),
            generation_tokens_per_s=_token_rate(
                window, "generation_tokens", [s.generation_tokens for s in samples]
            ),
            prefix_hit_ratio=sum(sample.prefix_hits for sample in samples) / queries if queries else None,
            drafting=summarize_drafts(samples),
            requests=_count_outcomes(records),
            refused=summarize_refused([record.request for record in records]),
            goodput_rps=self._goodput(measured, records, at, span_s),
            queue=summarize_queue(samples),
            work=replace(
                summarize_work(samples, arrivals),
                lasting_arrivals_per_s=lasting_rate(measured.samples, least_s=span_s),
                begun_arrivals_per_s=begun_rate(measured.samples),
            ),
            health=summarize_health(window),
            shift=find_shift(samples, arrivals, span_s=span_s),
            gpus=self._fresh_gpus(lately, at),
            series=dict(self._series.values) if self._series and lately < self._series.at <= at else {},
            facts=dict(measured.facts),
            missing=missing,
            incidents=tuple(i for i in self._incidents if i.server == server and lately < i.at <= at),
        )
        return add_latencies(reading, samples, records, self.slo)

    def _server(self, name: str, at: datetime) -> _Server:
        server = self._servers.get(name)
        if server is None:
            server = _Server(
                first=at, last=at, samples=deque(maxlen=self.most), requests=deque(maxlen=self.most)
            )
            self._servers[name] = server
        server.last = at
        return server

    def _add_scrape(self, sample: EngineSample) -> None:
        if not is_finite(sample):
            return
        server = self._server(sample.server, sample.at)
        server.add_scrape(sample)
        if self.counted_by != "proxy" and sample.interval_s > 0:
            server.gap.add_scrape(sample)
            server.counted += server.engine.count(sample, self.slo, gaps_only=self.counted_by == "access_log")
        server.facts.update(sample.facts)
        old = sample.at - timedelta(seconds=max(2 * self.span_s, self.longest_s))
        while server.samples[0].at < old:
            server.samples.popleft()

    def _add_requests(self, sample: RequestSample) -> None:
        old = sample.at - timedelta(seconds=max(2 * self.span_s, self.longest_s))
        self._lost.update(sample.lost)
        for recorded in sample.requests:
            if not isfinite(recorded.duration_s) or not isfinite(recorded.ttft_s or 0.0):
                continue
            server = self._server(recorded.server, sample.at)
            request = server.chunk.count_tokens(recorded)
            server.gap.add_records(sample.at, not request.stalled)
            server.requests.append(record_request(sample.at, request, self.slo))
            server.pending.append(request)
            if request.unknown_model and len(server.unknown_models) < UNKNOWN_MODELS:
                server.unknown_models[request.unknown_model] += 1
            if len(server.pending) >= PENDING:
                server.count_pending(self.slo, sample.at)
            while server.requests[0].at_s < old.timestamp():
                server.requests.popleft()

    def _goodput(
        self, server: _Server, records: Sequence[Record], at: datetime, span_s: float
    ) -> float | None:
        """None without request records: vLLM's histograms do not show which request met all objectives."""
        if not records:
            return None
        full = len(server.requests) == self.most
        since_s = server.requests[0].at_s if full else server.first.timestamp()
        seconds = max(1.0, min(span_s, at.timestamp() - since_s))
        return sum(record.met for record in records) / seconds

    def _fresh_gpus(self, since: datetime, at: datetime) -> tuple[Gpu, ...]:
        return self._gpus.gpus if self._gpus and since < self._gpus.at <= at else ()


def _token_rate(window: SampleWindow, metric: str, increases: Sequence[float]) -> Trend | None:
    return None if metric in window.samples[-1].missing else average_rate(window, increases)


def _count_outcomes(records: Iterable[Record]) -> dict[RequestOutcome, int]:
    return dict(Counter([record.request.outcome for record in records]))


def summarize_health(window: SampleWindow) -> Health:
    samples = window.samples
    deferred = [sample.deferred for sample in samples if sample.deferred is not None]
    return Health(
        ended=_sum_by_key([sample.finished for sample in samples]),
        answered=_sum_by_key([sample.answered for sample in samples]),
        rejected=_sum_by_key([sample.rejected for sample in samples]),
        deferred=average_gauge(window, deferred) if len(deferred) == len(samples) else None,
        engines=_summarize_engines(window),
        restarts=sum(sample.restarted for sample in samples),
    )


def _sum_by_key(counts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The keys in the order of their first occurrence."""
    keys = dict.fromkeys(chain.from_iterable(counts))
    return {key: sum([by_key.get(key, 0.0) for by_key in counts], 0.0) for key in keys}


def _summarize_engines(window: SampleWindow) -> dict[str, EngineWindow]:
    """Empty if the engines changed inside the window."""
    names = window.samples[0].engines.keys()
    if not names or any(sample.engines.keys() != names for sample in window.samples):
        return {}
    windows = {}
    for name in names:
        shares = [sample.engines[name] for sample in window.samples]
        windows[name] = EngineWindow(
            running=average_gauge(window, [share.running for share in shares]),
            waiting=average_gauge(window, [share.waiting for share in shares]),
            tokens=sum(share.tokens for share in shares),
            ended=sum(share.ended for share in shares),
        )
    return windows
