"""Every metric of /metrics: name, type, labels, meaning. docs/metrics.md is generated from it:

python -m flettner.agent.api.metric_names > docs/metrics.md
"""

import sys
from dataclasses import dataclass
from typing import Literal

Type = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """`name` without `flettner_`."""

    name: str
    type: Type
    help: str
    labels: tuple[str, ...] = ()


T = ("target",)
METRICS: tuple[Metric, ...] = (
    Metric("build_info", "gauge", "Always 1; the label is the running version.", ("version",)),
    Metric("ready", "gauge", "1 while the daemon holds its lock and its loop makes progress."),
    Metric("events_total", "counter", "Events processed by the machines of all targets."),
    Metric(
        "loop_step_age_seconds",
        "gauge",
        "Since the target's machine last processed an event; it does so every second.",
        T,
    ),
    Metric("loop_lag_seconds", "histogram", "Delay of the target's ticks, one per second.", T),
    Metric("tick_duration_seconds", "histogram", "Aggregating the samples of one second into an event.", T),
    Metric("step_duration_seconds", "histogram", "Deciding on an event and journalling it.", T),
    Metric("audit_append_seconds", "histogram", "Writing one audit entry to disk.", T),
    Metric("audit_head_seq", "gauge", "Number of the latest audit entry."),
    Metric(
        "audit_writable", "gauge", "0 while the audit journal cannot be written; nothing new starts then."
    ),
    Metric("audit_anchor_seq", "gauge", "Number of the latest audit entry that was pushed out as an anchor."),
    Metric("audit_bytes", "gauge", "Size of all files of the audit journal."),
    Metric("audit_keep_bytes", "gauge", "Size at which the audit journal is full, keep_mb."),
    Metric(
        "audit_full",
        "gauge",
        "1 while the audit journal is full, so that operators' proposals are refused; no entry is removed.",
    ),
    Metric(
        "config_last_reload_successful",
        "gauge",
        "0 while the config in force is an earlier one, as the last reload of the file was refused.",
    ),
    Metric(
        "audit_pin_info",
        "gauge",
        "Always 1; the labels are the latest audit entry whose number is a multiple of 100, and its hash.",
        ("seq", "hash"),
    ),
    Metric("effect_duration_seconds", "histogram", "Carrying out an effect, by its kind.", (*T, "effect")),
    Metric("effect_failures_total", "counter", "Effects that failed, by kind.", (*T, "effect")),
    Metric("lease_renewals_total", "counter", "Renewals of the lease on green's traffic share.", T),
    Metric("lease_failures_total", "counter", "Renewals of a lease that failed.", T),
    Metric(
        "lease_age_seconds", "gauge", "Since green's lease was last renewed; absent while there is none.", T
    ),
    Metric("lease_seconds", "gauge", "How long that lease lasts unless it is renewed.", T),
    Metric("source_up", "gauge", "1 while the source answers, 0 while it is lost.", (*T, "source")),
    Metric("source_losses_total", "counter", "Losses of the source.", (*T, "source")),
    Metric(
        "sample_age_seconds",
        "gauge",
        "Since the latest sample of a kind; those of engines by server.",
        (*T, "sample", "server"),
    ),
    Metric(
        "target_phase",
        "gauge",
        "1 for the current phase of the target, 0 for all other phases.",
        (*T, "phase"),
    ),
    Metric("target_paused", "gauge", "1 while the target is paused.", T),
    Metric("target_servers", "gauge", "Servers of the setting in force that can carry traffic.", T),
    Metric("target_servers_lost", "gauge", "Servers of the setting in force that have ended.", T),
    Metric(
        "target_goodput_rps", "gauge", "Requests per second that met every latency objective, of blue.", T
    ),
    Metric(
        "target_gpus",
        "gauge",
        "GPUs of the servers that run; this and the next four with a price or a power.",
        T,
    ),
    Metric("target_power_watts", "gauge", "Power of these GPUs, mean of five minutes.", T),
    Metric(
        "target_cost_per_million_tokens",
        "gauge",
        "Price of a million generated tokens, mean of five minutes.",
        T,
    ),
    Metric(
        "target_cost_per_thousand_good_requests",
        "gauge",
        "Price of a thousand requests that met every objective, mean of five minutes.",
        T,
    ),
    Metric(
        "target_tokens_per_joule",
        "gauge",
        "Generated tokens for the energy of the GPUs, mean of five minutes.",
        T,
    ),
    Metric("target_ttft_p95_seconds", "gauge", "95th percentile of the time to the first token, of blue.", T),
    Metric(
        "slo_attainment_ratio",
        "gauge",
        "Share of the requests of all servers that met the worst objective.",
        (*T, "window"),
    ),
    Metric(
        "error_budget_burn",
        "gauge",
        "Consumption of the error budget of the worst objective, relative to the allowed rate.",
        (*T, "window"),
    ),
    Metric(
        "server_weight_ratio",
        "gauge",
        "Configured share of the target's traffic for the server, 0 to 1.",
        (*T, "server"),
    ),
    Metric("target_suggestion_open", "gauge", "1 while a suggestion needs approval.", T),
    Metric("target_suggestions_open", "gauge", "Suggestions that need approval.", T),
    Metric(
        "suggestion_waiting_seconds",
        "gauge",
        "Age of the oldest suggestion that needs approval; absent without one.",
        T,
    ),
    Metric(
        "suggestion_expiry_seconds",
        "gauge",
        "Time until the first open suggestion expires; absent without one.",
        T,
    ),
    Metric(
        "rollouts_total",
        "counter",
        "Ended rollouts in the daemon's history, by outcome.",
        (*T, "outcome"),
    ),
    Metric(
        "rollout_age_seconds",
        "gauge",
        "Age of the running rollout; the rollout metrics are absent without one.",
        T,
    ),
    Metric("rollout_step", "gauge", "Number of the rollout's step, from 0.", T),
    Metric("rollout_weight_ratio", "gauge", "Traffic share of the newest server, 0 to 1.", T),
    Metric("rollout_exposed_requests", "gauge", "Requests to green so far.", T),
    Metric("rollout_bad_requests", "gauge", "Requests to green that failed, stalled or were late.", T),
    Metric("rollout_failed_requests", "gauge", "Requests to green that failed, without slow ones.", T),
    Metric(
        "rollout_stalled_requests",
        "gauge",
        "Requests to green without a first token for far longer than promised.",
        T,
    ),
    Metric("rollout_held_seconds", "gauge", "Time without observations of green; 0 while it is observed.", T),
    Metric(
        "rollout_parked",
        "gauge",
        "1 while green is suspended without traffic for lack of observations.",
        T,
    ),
    Metric(
        "notifier_up",
        "gauge",
        "0 if delivery to the receiver has stopped until a restart.",
        ("notifier",),
    ),
    Metric(
        "notifier_reachable", "gauge", "0 after a failed delivery attempt, until one succeeds.", ("notifier",)
    ),
    Metric(
        "notifications_total",
        "counter",
        "Notifications by outcome: sent, failed (refused by the receiver), dropped (an hour old).",
        ("notifier", "outcome"),
    ),
    Metric(
        "notification_retries_total",
        "counter",
        "Repeated delivery attempts.",
        ("notifier",),
    ),
)

HEAD = """\
# Metrics

The metrics of `GET /metrics`, over TCP with a viewer's token (security.md).
This page is generated from the code: `python -m flettner.agent.api.metric_names`.

```yaml
scrape_configs:
  - job_name: flettner
    static_configs: [{targets: ["127.0.0.1:8090"]}]
    authorization: {credentials_file: /etc/prometheus/flettner.token}   # the token of a viewer
```

[Use Prometheus](how-to/prometheus.md) says how to create the token. One for some targets receives their
metrics and those of the daemon. Histograms have `_bucket`, `_sum` and `_count`. Alert rules are in
`deploy/prometheus/flettner.rules.yml` (runbook.md), a dashboard for Grafana is in
`deploy/grafana/flettner.json`.

| metric | type | labels | |
|---|---|---|---|
"""


def document() -> str:
    return HEAD + "".join(
        f"| `flettner_{metric.name}` | {metric.type} | {' '.join(f'`{label}`' for label in metric.labels)} "
        f"| {metric.help} |\n"
        for metric in METRICS
    )


if __name__ == "__main__":
    sys.stdout.write(document())
