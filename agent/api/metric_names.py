"""Every metric of /metrics: name, type, labels, meaning. docs/metrics.md is made of it:

python -m agent.api.metric_names > docs/metrics.md
"""

import sys
from dataclasses import dataclass
from typing import Literal

Type = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """`name` without `trimtab_`."""

    name: str
    type: Type
    help: str
    labels: tuple[str, ...] = ()


T = ("target",)
METRICS: tuple[Metric, ...] = (
    Metric("build_info", "gauge", "Always 1; the label says which version runs.", ("version",)),
    Metric("ready", "gauge", "1 while the daemon holds its lock and its loop makes progress."),
    Metric("events_total", "counter", "Events that all targets' machines have taken."),
    Metric(
        "loop_step_age_seconds",
        "gauge",
        "Since the target's machine last took an event; one comes each second.",
        T,
    ),
    Metric("loop_lag_seconds", "histogram", "How late the target's ticks were, one a second.", T),
    Metric("tick_duration_seconds", "histogram", "Folding a second's samples into one event.", T),
    Metric("step_duration_seconds", "histogram", "Deciding on an event and writing it down.", T),
    Metric("audit_append_seconds", "histogram", "Writing one audit entry, until it is on disk.", T),
    Metric("audit_head_seq", "gauge", "Number of the latest audit entry."),
    Metric("audit_writable", "gauge", "0 while the audit cannot be written: nothing new starts."),
    Metric(
        "audit_pin_info",
        "gauge",
        "Always 1; the labels are the latest audit entry whose number is a multiple of 100, and its hash.",
        ("seq", "hash"),
    ),
    Metric("effect_duration_seconds", "histogram", "Carrying out an effect, by its kind.", (*T, "effect")),
    Metric("effect_failures_total", "counter", "Effects that failed, by kind.", (*T, "effect")),
    Metric(
        "lease_renewals_total", "counter", "Renewals of the lease on green's share that the proxy has.", T
    ),
    Metric("lease_failures_total", "counter", "Renewals of a lease that failed.", T),
    Metric(
        "lease_age_seconds", "gauge", "Since green's lease was last renewed; absent while there is none.", T
    ),
    Metric("lease_seconds", "gauge", "How long that lease lasts unless it is renewed.", T),
    Metric("source_up", "gauge", "1 while the source answers, 0 while it is lost.", (*T, "source")),
    Metric("source_losses_total", "counter", "How often the source was lost.", (*T, "source")),
    Metric(
        "sample_age_seconds",
        "gauge",
        "Since the latest sample of a kind; those of engines by server.",
        (*T, "sample", "server"),
    ),
    Metric(
        "target_phase", "gauge", "1 for the phase that the target is in, 0 for the others.", (*T, "phase")
    ),
    Metric("target_paused", "gauge", "1 while a person has paused the target.", T),
    Metric("target_servers", "gauge", "Servers of the setting in force that can carry traffic.", T),
    Metric("target_servers_lost", "gauge", "Servers of the setting in force that have ended.", T),
    Metric(
        "target_goodput_rps", "gauge", "Requests per second that met every latency objective, of blue.", T
    ),
    Metric("target_ttft_p95_seconds", "gauge", "95th percentile of the time to the first token, of blue.", T),
    Metric(
        "slo_attainment_ratio",
        "gauge",
        "Share of the requests that met the objective that suffers most, of all servers.",
        (*T, "window"),
    ),
    Metric(
        "error_budget_burn",
        "gauge",
        "How many times faster than it may the error budget of the SLO's worst objective is used up.",
        (*T, "window"),
    ),
    Metric(
        "server_weight_ratio",
        "gauge",
        "Share of the target's traffic that the proxy was asked to give the server, 0 to 1.",
        (*T, "server"),
    ),
    Metric("target_suggestion_open", "gauge", "1 while a suggestion waits for a person.", T),
    Metric("suggestion_waiting_seconds", "gauge", "How long it has waited; absent while none does.", T),
    Metric("suggestion_expiry_seconds", "gauge", "How long it will still be open; absent while none is.", T),
    Metric(
        "rollouts_total",
        "counter",
        "Rollouts that ended, by outcome, as far back as the daemon remembers.",
        (*T, "outcome"),
    ),
    Metric(
        "rollout_age_seconds",
        "gauge",
        "Since the rollout began; this and the rest absent while none runs.",
        T,
    ),
    Metric("rollout_step", "gauge", "Number of its step, from 0.", T),
    Metric("rollout_weight_ratio", "gauge", "Share of the traffic that its newest server has, 0 to 1.", T),
    Metric("rollout_exposed_requests", "gauge", "Requests that green was asked so far.", T),
    Metric("rollout_bad_requests", "gauge", "Those of them that failed or were late.", T),
    Metric("rollout_held_seconds", "gauge", "For how long nothing could be seen of green; 0: it can.", T),
    Metric(
        "rollout_parked",
        "gauge",
        "1 while green waits without traffic, because nothing can be seen of it.",
        T,
    ),
    Metric(
        "notifier_up",
        "gauge",
        "0 when a receiver of notices is served no more, until a restart.",
        ("notifier",),
    ),
    Metric("notifier_reachable", "gauge", "0 while the last try to tell the receiver failed.", ("notifier",)),
    Metric(
        "notifications_total",
        "counter",
        "Notices by outcome: sent, failed (refused by the receiver), dropped (an hour old).",
        ("notifier", "outcome"),
    ),
    Metric(
        "notification_retries_total",
        "counter",
        "Tries that were not the last for their notice.",
        ("notifier",),
    ),
)
BY_NAME = {metric.name: metric for metric in METRICS}

HEAD = """\
# Metrics

What `GET /metrics` tells Prometheus, over TCP with a viewer's token (security.md).
This page is made from the code: `python -m agent.api.metric_names`.

```yaml
scrape_configs:
  - job_name: trimtab
    static_configs: [{targets: ["127.0.0.1:8090"]}]
    authorization: {credentials_file: /etc/prometheus/trimtab.token}   # trimtab token new --role viewer
```

A token that sees some targets only gets theirs, and what is the daemon's own. Histograms have `_bucket`,
`_sum` and `_count`. Alert rules are in `deploy/prometheus/trimtab.rules.yml` (runbook.md), a dashboard for
Grafana is in `deploy/grafana/trimtab.json`.

| metric | type | labels | |
|---|---|---|---|
"""


def document() -> str:
    return HEAD + "".join(
        f"| `trimtab_{one.name}` | {one.type} | {' '.join(f'`{label}`' for label in one.labels)} "
        f"| {one.help} |\n"
        for one in METRICS
    )


if __name__ == "__main__":
    sys.stdout.write(document())
