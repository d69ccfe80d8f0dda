"""The metrics of the daemon and of each target, for Prometheus."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from itertools import accumulate

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from flettner.agent.api.daemon_view import DaemonView, TargetView
from flettner.agent.api.metric_names import METRICS
from flettner.agent.domain.errors import JournalError
from flettner.agent.domain.rollout import Canary, Rollout
from flettner.agent.domain.state import Phase, State
from flettner.agent.telemetry.self_metrics import DurationHistogram, SelfMetrics

FAMILIES = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
PIN_EVERY = 100  # entries
COST_METRICS = {
    "gpus": "target_gpus",
    "power_w": "target_power_watts",
    "per_million_tokens": "target_cost_per_million_tokens",
    "per_thousand_good_requests": "target_cost_per_thousand_good_requests",
    "tokens_per_joule": "target_tokens_per_joule",
}
"""Metric by field of Cost."""
OUTCOMES = ("promoted", "rolled_back")

MetricFamily = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
MetricValue = float | DurationHistogram
MetricSample = tuple[str, tuple[str, ...], MetricValue]
"""Metric name, label values in their order, number."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """A collector of prometheus_client: every metric of METRICS at one moment, with or without samples."""

    families: Collection[Metric]

    def collect(self) -> Collection[Metric]:
        return self.families


def read_metrics(daemon: DaemonView) -> Scrape:
    families = {
        metric.name: FAMILIES[metric.type](f"flettner_{metric.name}", metric.help, labels=metric.labels)
        for metric in METRICS
    }
    for name, labels, value in _samples(daemon):
        add_sample(families[name], labels, value)
    return Scrape(families.values())


def add_sample(family: MetricFamily, labels: tuple[str, ...], value: MetricValue) -> None:
    match family, value:
        case HistogramMetricFamily(), DurationHistogram():
            edges = (*map(str, value.edges), "+Inf")
            family.add_metric(labels, list(zip(edges, accumulate(value.counts), strict=True)), value.sum)
        case CounterMetricFamily() | GaugeMetricFamily(), int() | float():
            family.add_metric(labels, value)
        case _:
            raise TypeError(f"{family.name} is a {family.type}, and its value is {value!r}")


def _samples(daemon: DaemonView) -> Iterator[MetricSample]:
    at = daemon.now()
    yield "build_info", (version("flettner"),), 1
    yield "ready", (), daemon.ready()
    for name, value in daemon.counters().items():
        yield name, (), value
    yield from _sample_pin(daemon)
    targets = dict(sorted(daemon.targets().items()))
    for name, target in targets.items():
        yield from _sample_target(name, target.state, at)
        rollout = target.state.rollout
        if rollout is not None and rollout.outcome == "running":
            yield from _sample_rollout(name, target.state, rollout, at)
        for burn in target.state.budget.burns(target.slo, at):
            yield "error_budget_burn", (name, burn.window), burn.rate
            yield "slo_attainment_ratio", (name, burn.window), 1 - burn.bad / burn.of
        yield from _sample_measurements(name, target)
        yield from _sample_loop(name, target.self_metrics, target.state, daemon.clock())
    yield from _count_rollouts(daemon, targets)
    yield from _sample_notifiers(daemon)


def _sample_target(name: str, state: State, at: datetime) -> Iterator[MetricSample]:
    for phase in Phase:
        yield "target_phase", (name, phase.value), state.phase is phase
    yield "target_paused", (name,), state.paused
    yield "target_servers", (name,), len(state.fleet.running)
    yield (
        "target_servers_lost",
        (name,),
        sum(server.name in state.fleet.exited for server in state.fleet.servers),
    )
    waiting = [suggestion for suggestion in state.suggestions.open if suggestion.needs_decision]
    yield "target_suggestion_open", (name,), bool(waiting)
    yield "target_suggestions_open", (name,), len(waiting)
    if waiting:
        oldest = min(suggestion.made_at for suggestion in waiting)
        soonest = min(suggestion.expires_at for suggestion in waiting)
        yield "suggestion_waiting_seconds", (name,), (at - oldest).total_seconds()
        yield "suggestion_expiry_seconds", (name,), (soonest - at).total_seconds()
    for server, weight in state.split.weights.items():
        yield "server_weight_ratio", (name, server), weight / 100


def _sample_rollout(name: str, state: State, rollout: Rollout, at: datetime) -> Iterator[MetricSample]:
    canary = rollout if isinstance(rollout, Canary) else None
    newest = canary.newest.name if canary and canary.newest else canary.server if canary else ""
    yield "rollout_age_seconds", (name,), (at - rollout.started_at).total_seconds()
    yield "rollout_step", (name,), canary.step if canary else 0
    yield "rollout_weight_ratio", (name,), state.split.weights.get(newest, 0) / 100
    yield "rollout_exposed_requests", (name,), rollout.exposed.asked
    yield "rollout_bad_requests", (name,), rollout.bad_exposed
    yield "rollout_failed_requests", (name,), rollout.exposed.errors
    yield "rollout_stalled_requests", (name,), rollout.exposed.stalled
    yield "rollout_held_seconds", (name,), canary.evidence.held_s if canary else 0.0
    yield "rollout_parked", (name,), bool(canary and canary.parked)


def _sample_measurements(name: str, target: TargetView) -> Iterator[MetricSample]:
    reading = target.reading
    if reading is not None and reading.goodput_rps is not None:
        yield "target_goodput_rps", (name,), reading.goodput_rps
    if reading is not None and reading.ttft is not None:
        yield "target_ttft_p95_seconds", (name,), reading.ttft.p95
    if (cost := target.spending.cost) is not None:
        for number, metric in COST_METRICS.items():
            if (value := getattr(cost, number)) is not None:
                yield metric, (name,), value
    for source, status in sorted(target.sources.items()):
        yield "source_up", (name, source), status.available


def _count_rollouts(daemon: DaemonView, targets: Iterable[str]) -> Iterator[MetricSample]:
    ended = {(name, outcome): 0 for name in targets for outcome in OUTCOMES}
    for name, rollout in daemon.rollouts():
        if rollout.outcome in OUTCOMES:
            ended[name, rollout.outcome] = ended.get((name, rollout.outcome), 0) + 1
    for labels, count in ended.items():
        yield "rollouts_total", labels, count


def _sample_loop(name: str, self_metrics: SelfMetrics, state: State, clock: float) -> Iterator[MetricSample]:
    """`clock`: the event loop's time, s."""
    yield "loop_lag_seconds", (name,), self_metrics.lag
    if self_metrics.stepped_at is not None:
        yield "loop_step_age_seconds", (name,), clock - self_metrics.stepped_at
    yield "tick_duration_seconds", (name,), self_metrics.tick
    yield "step_duration_seconds", (name,), self_metrics.step
    yield "audit_append_seconds", (name,), self_metrics.append
    for kind, seconds in sorted(self_metrics.effects.items()):
        yield "effect_duration_seconds", (name, kind), seconds
        yield "effect_failures_total", (name, kind), self_metrics.failures[kind]
    yield "lease_renewals_total", (name,), self_metrics.renewals
    yield "lease_failures_total", (name,), self_metrics.unrenewed
    if state.split.route is not None and state.split.route.leased and self_metrics.renewed_at is not None:
        yield "lease_age_seconds", (name,), clock - self_metrics.renewed_at
        yield "lease_seconds", (name,), state.split.route.lease_s
    for source, losses in sorted(self_metrics.lost.items()):
        yield "source_losses_total", (name, source), losses
    for (sample, server), received_at in sorted(self_metrics.received_at.items()):
        yield "sample_age_seconds", (name, sample, server), clock - received_at


def _sample_notifiers(daemon: DaemonView) -> Iterator[MetricSample]:
    for name, tally in sorted(daemon.delivery_counts().items()):
        yield "notifier_up", (name,), tally.up
        yield "notifier_reachable", (name,), tally.works
        yield "notifications_total", (name, "sent"), tally.sent
        yield "notifications_total", (name, "failed"), tally.failed
        yield "notifications_total", (name, "dropped"), tally.dropped
        yield "notification_retries_total", (name,), tally.retries


def _sample_pin(daemon: DaemonView) -> Iterator[MetricSample]:
    """The argument of `audit verify --pin`. Not of the head: each entry would start another series."""
    seq = int(daemon.counters().get("audit_head_seq", 0)) // PIN_EVERY * PIN_EVERY
    records: tuple[Mapping[str, object], ...] = ()
    if seq:
        try:
            records = tuple(daemon.records(seq - 1, 1))
        except JournalError:  # other metrics report it; this page must stay available
            return
    for record in records:
        if "hash" in record:
            yield "audit_pin_info", (str(seq), str(record["hash"])), 1
