"""The metrics on /metrics and their exposition format."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from flettner.agent.api.metric_names import METRICS, Metric, document
from flettner.agent.api.metrics import format_metric, format_page
from flettner.agent.domain.effects import Route
from flettner.agent.domain.error_budget import Budget
from flettner.agent.domain.errors import JournalError
from flettner.agent.domain.model import Server
from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.domain.state import Phase, Rollout
from flettner.agent.telemetry.self_metrics import DurationHistogram
from tests.support.fake_daemon_view import PLAN, FakeDaemonView
from tests.unit.api.conftest import Client

DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"

LINE = re.compile(
    r'(flettner_[a-z0-9_]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\[\\"n])*",?)+)\})? (NaN|[+-]Inf|-?[0-9.e+-]+)'
)


def samples(text: str) -> Mapping[str, float]:
    """Parse samples by name and labels; every line must be a comment or a sample."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith(("# HELP ", "# TYPE ")):
            continue
        match = LINE.fullmatch(line)
        assert match is not None, line
        name = f"{match[1]}{{{match[2]}}}" if match[2] else match[1]
        assert name not in found
        found[name] = float(match[3])
    return found


def test_exports_target_metrics_in_base_units() -> None:
    daemon = FakeDaemonView()
    server = Server(name="chat-r0", setting={})
    route = Route(number=1, servers=(server,), weights={"chat-r0": 100}, fallback="chat-r0")
    budget = Budget().add(daemon.at, [RequestCounts(total=100, over_ttft=30)])
    daemon.set(replace(daemon.targets()["chat"].state, route=route, budget=budget))

    found = samples(format_page(daemon))

    assert found['flettner_target_phase{target="chat",phase="observing"}'] == 1
    assert found['flettner_target_phase{target="chat",phase="canary"}'] == 0
    assert found['flettner_target_goodput_rps{target="chat"}'] == 7.5
    assert found['flettner_target_ttft_p95_seconds{target="chat"}'] == 0.42
    assert found['flettner_error_budget_burn{target="chat",window="5m"}'] == 6
    assert found['flettner_error_budget_burn{target="chat",window="6h"}'] == 6
    assert found['flettner_server_weight_ratio{target="chat",server="chat-r0"}'] == 1
    assert found['flettner_source_up{target="chat",source="nvidia_smi"}'] == 0
    assert found['flettner_source_up{target="chat",source="vllm_metrics chat-r0"}'] == 1
    assert found['flettner_rollouts_total{target="chat",outcome="promoted"}'] == 0
    assert found["flettner_audit_head_seq"] == 0
    assert found["flettner_events_total"] == 7
    assert found['flettner_loop_lag_seconds_count{target="chat"}'] == 0
    assert found["flettner_ready"] == 1


async def test_counts_ended_rollouts_by_outcome(client: Client, daemon: FakeDaemonView) -> None:
    for promoted in (True, False, False):
        made = daemon.suggest({"max_num_seqs": 128})
        async with client.post(
            f"/v1/suggestions/{made.id}/approve", json={"digest": made.digest}
        ) as response:
            assert response.status == 200
        daemon.settle(promoted=promoted)

    async with client.get("/metrics") as response:
        found = samples(await response.text())

    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert found['flettner_rollouts_total{target="chat",outcome="promoted"}'] == 1
    assert found['flettner_rollouts_total{target="chat",outcome="rolled_back"}'] == 2


def test_labels_are_escaped() -> None:
    metric = Metric("ready", "gauge", "a\nb \\", ("target",))

    assert list(format_metric(metric, [(('a"b\\c\nd',), float("nan"))])) == [
        "# HELP flettner_ready a\\nb \\\\",
        "# TYPE flettner_ready gauge",
        'flettner_ready{target="a\\"b\\\\c\\nd"} NaN',
    ]


def test_a_histogram_is_cumulative() -> None:
    seconds = DurationHistogram(edges=(0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7):
        seconds.observe(value)

    assert list(
        format_metric(Metric("tick_duration_seconds", "histogram", "h", ("target",)), [(("chat",), seconds)])
    )[2:] == [
        'flettner_tick_duration_seconds_bucket{target="chat",le="0.1"} 2',
        'flettner_tick_duration_seconds_bucket{target="chat",le="1"} 3',
        'flettner_tick_duration_seconds_bucket{target="chat",le="+Inf"} 4',
        'flettner_tick_duration_seconds_sum{target="chat"} 7.65',
        'flettner_tick_duration_seconds_count{target="chat"} 4',
    ]


def busy() -> FakeDaemonView:
    """A daemon in which every metric has a sample."""
    daemon = FakeDaemonView()
    made = daemon.suggest({"max_num_seqs": 128})
    state = daemon.targets()["chat"].state
    green = Server(name="chat-r1", setting={})
    route = Route(
        number=1,
        servers=(green,),
        weights={"chat-r0": 95, "chat-r1": 5},
        fallback="chat-r0",
        leased="chat-r1",
        lease_s=15,
    )
    rollout = Rollout(
        id="chat-o1",
        suggestion=made.id,
        server="chat-r1",
        plan=PLAN,
        started_at=daemon.at,
        phase_since=daemon.at,
        exposed=RequestCounts(total=40, errors=2),
    )
    budget = Budget().add(daemon.at, [RequestCounts(total=100, over_ttft=30)])
    daemon.set(replace(state, phase=Phase.CANARY, green=green, route=route, rollout=rollout, budget=budget))
    for seq in range(1, 101):
        daemon._records.append({"seq": seq, "hash": f"{seq:064x}"})
    self_metrics = daemon.targets()["chat"].self_metrics
    self_metrics.tick.observe(0.01)
    self_metrics.count_effect("route", 0.4, failed=True)
    self_metrics.count_renewal(98.0, failed=False)
    self_metrics.lost["nvidia_smi"] = 2
    self_metrics.received_at["EngineSample", "chat-r0"] = 99.0
    return daemon


def test_exports_every_documented_metric() -> None:
    body = {
        re.sub("_(bucket|sum|count)$", "", re.split("[{ ]", name)[0]) for name in samples(format_page(busy()))
    }

    assert body == {f"flettner_{metric.name}" for metric in METRICS}


def test_exports_the_rollout_and_its_lease() -> None:
    found = samples(format_page(busy()))

    assert found['flettner_rollout_exposed_requests{target="chat"}'] == 40
    assert found['flettner_rollout_bad_requests{target="chat"}'] == 2
    assert found['flettner_rollout_weight_ratio{target="chat"}'] == 0.05
    assert found['flettner_lease_age_seconds{target="chat"}'] == 2
    assert found['flettner_effect_failures_total{target="chat",effect="route"}'] == 1
    assert found['flettner_slo_attainment_ratio{target="chat",window="5m"}'] == 0.7
    assert found['flettner_sample_age_seconds{target="chat",sample="EngineSample",server="chat-r0"}'] == 1
    assert found['flettner_suggestion_expiry_seconds{target="chat"}'] == 3600
    assert found['flettner_notifications_total{notifier="ops",outcome="sent"}'] == 3


def test_metrics_documentation_matches_the_generated_text() -> None:
    assert DOCS.read_text() == document(), "python -m flettner.agent.api.metric_names > docs/metrics.md"


def test_exports_an_audit_pin_that_changes_every_hundred_entries() -> None:
    daemon = FakeDaemonView()
    for seq in range(1, 251):
        daemon._records.append({"seq": seq, "hash": f"{seq:064x}"})

    found = samples(format_page(daemon))

    assert found["flettner_audit_head_seq"] == 250
    assert found[f'flettner_audit_pin_info{{seq="200",hash="{200:064x}"}}'] == 1


def test_exports_the_remaining_metrics_if_the_journal_is_unreadable() -> None:
    daemon = FakeDaemonView()
    for seq in range(1, 251):
        daemon._records.append({"seq": seq, "hash": f"{seq:064x}"})
    daemon.next_error = JournalError("audit.jsonl: Input/output error")

    text = format_page(daemon)

    assert "flettner_audit_pin_info{" not in text
    assert samples(text)["flettner_ready"] == 1
