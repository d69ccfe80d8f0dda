"""The metrics on /metrics and their exposition format."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from prometheus_client.exposition import generate_latest

from flettner.agent.api.daemon_view import DaemonView
from flettner.agent.api.metric_names import METRICS, document
from flettner.agent.api.metrics import read_metrics
from flettner.agent.domain.cost import Cost
from flettner.agent.domain.effects import Route
from flettner.agent.domain.error_budget import Budget
from flettner.agent.domain.errors import JournalError
from flettner.agent.domain.model import Server
from flettner.agent.domain.reading import SourceState
from flettner.agent.domain.request_counts import RequestCounts
from flettner.agent.domain.rollout import Canary
from flettner.agent.domain.state import Phase
from flettner.agent.observe.spending import Spending
from flettner.agent.telemetry.self_metrics import DurationHistogram
from tests.support.fake_daemon_view import PLAN, FakeDaemonView
from tests.unit.api.conftest import Client

DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"

LINE = re.compile(
    r'(flettner_[a-z0-9_]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\[\\"n])*",?)+)\})? (NaN|[+-]Inf|-?[0-9.e+-]+)'
)


COST = Cost(
    gpus=2,
    power_w=1000.0,
    per_hour=7.2,
    per_million_tokens=2.0,
    per_thousand_good_requests=0.5,
    tokens_per_joule=1.0,
)


def page(daemon: DaemonView) -> bytes:
    return generate_latest(read_metrics(daemon))


def samples(text: bytes) -> Mapping[str, float]:
    """Parse samples by name and labels; every line must be a comment or a sample."""
    values: dict[str, float] = {}
    for line in text.decode().splitlines():
        if line.startswith(("# HELP ", "# TYPE ")):
            continue
        match = LINE.fullmatch(line)
        assert match is not None, line
        name = f"{match[1]}{{{match[2]}}}" if match[2] else match[1]
        assert name not in values
        values[name] = float(match[3])
    return values


def test_exports_target_metrics_in_base_units() -> None:
    daemon = FakeDaemonView()
    server = Server(name="chat-r0", setting={})
    route = Route(number=1, servers=(server,), weights={"chat-r0": 100}, fallback="chat-r0")
    budget = Budget().add(daemon.at, [RequestCounts(total=100, over_ttft=30)])
    daemon.set(
        replace(
            daemon.targets()["chat"].state,
            split=replace(daemon.targets()["chat"].state.split, route=route),
            budget=budget,
        )
    )

    values = samples(page(daemon))

    assert values['flettner_target_phase{phase="observing",target="chat"}'] == 1
    assert values['flettner_target_phase{phase="canary",target="chat"}'] == 0
    assert values['flettner_target_goodput_rps{target="chat"}'] == 7.5
    assert values['flettner_target_ttft_p95_seconds{target="chat"}'] == 0.42
    assert values['flettner_error_budget_burn{target="chat",window="5m"}'] == 6
    assert values['flettner_error_budget_burn{target="chat",window="6h"}'] == 6
    assert values['flettner_server_weight_ratio{server="chat-r0",target="chat"}'] == 1
    assert values['flettner_source_up{source="nvidia_smi",target="chat"}'] == 0
    assert values['flettner_source_up{source="vllm_metrics chat-r0",target="chat"}'] == 1
    assert values['flettner_rollouts_total{outcome="promoted",target="chat"}'] == 0
    assert values["flettner_audit_head_seq"] == 0
    assert values["flettner_events_total"] == 7
    assert values['flettner_loop_lag_seconds_count{target="chat"}'] == 0
    assert values["flettner_ready"] == 1


async def test_counts_ended_rollouts_by_outcome(client: Client, daemon: FakeDaemonView) -> None:
    for promoted in (True, False, False):
        made = daemon.suggest({"max_num_seqs": 128})
        async with client.post(
            f"/v1/suggestions/{made.id}/approve", json={"digest": made.digest}
        ) as response:
            assert response.status == 200
        daemon.settle(promoted=promoted)

    async with client.get("/metrics") as response:
        values = samples(await response.read())

    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert values['flettner_rollouts_total{outcome="promoted",target="chat"}'] == 1
    assert values['flettner_rollouts_total{outcome="rolled_back",target="chat"}'] == 2


def test_label_values_and_histograms_are_as_the_format_asks() -> None:
    daemon = FakeDaemonView()
    target = daemon.targets()["chat"]
    target.sources = {'a"b\\c\nd': SourceState(at=daemon.at, source="", available=True)}
    target.self_metrics.tick = DurationHistogram(edges=(0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7):
        target.self_metrics.tick.observe(value)

    lines = page(daemon).decode().splitlines()

    assert r'flettner_source_up{source="a\"b\\c\nd",target="chat"} 1.0' in lines
    start = lines.index("# TYPE flettner_tick_duration_seconds histogram")
    assert lines[start + 1 : start + 6] == [
        'flettner_tick_duration_seconds_bucket{le="0.1",target="chat"} 2.0',
        'flettner_tick_duration_seconds_bucket{le="1.0",target="chat"} 3.0',
        'flettner_tick_duration_seconds_bucket{le="+Inf",target="chat"} 4.0',
        'flettner_tick_duration_seconds_count{target="chat"} 4.0',
        'flettner_tick_duration_seconds_sum{target="chat"} 7.65',
    ]


def busy() -> FakeDaemonView:
    """Return a daemon in which every metric has a sample."""
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
    rollout = Canary(
        id="chat-o1",
        suggestion=made,
        server="chat-r1",
        greens=(green,),
        replicas={"chat-r0": 1},
        plan=PLAN,
        started_at=daemon.at,
        phase_since=daemon.at,
        exposed=RequestCounts(total=40, errors=2),
    )
    budget = Budget().add(daemon.at, [RequestCounts(total=100, over_ttft=30)])
    daemon.set(
        replace(
            state,
            phase=Phase.CANARY,
            split=replace(state.split, route=route),
            rollout=rollout,
            budget=budget,
        )
    )
    for seq in range(1, 101):
        daemon._records.append({"seq": seq, "hash": f"{seq:064x}"})
    daemon.targets()["chat"].spending = Spending(cost=COST)
    self_metrics = daemon.targets()["chat"].self_metrics
    self_metrics.tick.observe(0.01)
    self_metrics.count_effect("route", 0.4, failed=True)
    self_metrics.count_renewal(98.0, failed=False)
    self_metrics.lost["nvidia_smi"] = 2
    self_metrics.received_at["EngineSample", "chat-r0"] = 99.0
    return daemon


def test_exports_every_documented_metric() -> None:
    body = {re.sub("_(bucket|sum|count)$", "", re.split("[{ ]", name)[0]) for name in samples(page(busy()))}

    assert body == {f"flettner_{metric.name}" for metric in METRICS}


def test_an_approved_suggestion_that_waits_for_the_windows_needs_no_approval() -> None:
    daemon = FakeDaemonView()
    made = daemon.suggest({"max_num_seqs": 128})
    before = samples(page(daemon))
    state = daemon.targets()["chat"].state
    approved = replace(made, approved_by="alice")
    daemon.set(replace(state, suggestions=replace(state.suggestions, open=(approved,))))

    after = samples(page(daemon))

    open_ = 'flettner_target_suggestion_open{target="chat"}'
    assert (before[open_], after[open_]) == (1, 0)
    assert 'flettner_suggestion_waiting_seconds{target="chat"}' in before.keys() - after.keys()


def test_exports_the_cost() -> None:
    values = samples(page(busy()))

    assert values['flettner_target_cost_per_million_tokens{target="chat"}'] == 2
    assert values['flettner_target_cost_per_thousand_good_requests{target="chat"}'] == 0.5
    assert values['flettner_target_tokens_per_joule{target="chat"}'] == 1
    assert values['flettner_target_power_watts{target="chat"}'] == 1000


def test_exports_the_rollout_and_its_lease() -> None:
    values = samples(page(busy()))

    assert values['flettner_rollout_exposed_requests{target="chat"}'] == 40
    assert values['flettner_rollout_bad_requests{target="chat"}'] == 2
    assert values['flettner_rollout_weight_ratio{target="chat"}'] == 0.05
    assert values['flettner_lease_age_seconds{target="chat"}'] == 2
    assert values['flettner_effect_failures_total{effect="route",target="chat"}'] == 1
    assert values['flettner_slo_attainment_ratio{target="chat",window="5m"}'] == 0.7
    assert values['flettner_sample_age_seconds{sample="EngineSample",server="chat-r0",target="chat"}'] == 1
    assert values['flettner_suggestion_expiry_seconds{target="chat"}'] == 3600
    assert values['flettner_notifications_total{notifier="ops",outcome="sent"}'] == 3


def test_metrics_documentation_matches_the_generated_text() -> None:
    assert DOCS.read_text() == document(), "python -m flettner.agent.api.metric_names > docs/metrics.md"


def test_exports_an_audit_pin_that_changes_every_hundred_entries() -> None:
    daemon = FakeDaemonView()
    for seq in range(1, 251):
        daemon._records.append({"seq": seq, "hash": f"{seq:064x}"})

    values = samples(page(daemon))

    assert values["flettner_audit_head_seq"] == 250
    assert values[f'flettner_audit_pin_info{{hash="{200:064x}",seq="200"}}'] == 1


def test_exports_the_remaining_metrics_if_the_journal_is_unreadable() -> None:
    daemon = FakeDaemonView()
    for seq in range(1, 251):
        daemon._records.append({"seq": seq, "hash": f"{seq:064x}"})
    daemon.next_error = JournalError("audit.jsonl: Input/output error")

    values = samples(page(daemon))

    assert not [name for name in values if name.startswith("flettner_audit_pin_info")]
    assert values["flettner_ready"] == 1
