"""The shipped rules and dashboard are valid, use existing metrics and are documented."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from flettner.agent.api.metric_names import METRICS

pytestmark = pytest.mark.smoke

ROOT = Path(__file__).parents[3]
RULES = ROOT / "deploy" / "prometheus" / "flettner.rules.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "flettner.json"
VLLM_RULES = RULES.with_name("vllm.rules.yml")
VLLM_DASHBOARD = DASHBOARD.with_name("vllm.json")
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
EXPORTED = {
    f"flettner_{metric.name}{suffix}"
    for metric in METRICS
    for suffix in (("_bucket", "_sum", "_count") if metric.type == "histogram" else ("",))
}


def rules(file: Path = RULES) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = yaml.safe_load(file.read_text())["groups"][0]["rules"]
    return entries


def panels(dashboard: Path = DASHBOARD) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(dashboard.read_text())["panels"]
    return entries


def expressions(dashboard: Path = DASHBOARD) -> Iterator[str]:
    for panel in panels(dashboard):
        for target in panel.get("targets", ()):
            yield target["expr"]


def promtool(*words: str) -> tuple[int, str]:
    ran = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False, cwd=RULES.parent)
    return ran.returncode, ran.stdout + ran.stderr


@pytest.mark.parametrize("file", [RULES, VLLM_RULES])
def test_promtool_accepts_the_rules(file: Path) -> None:
    code, output = promtool("check", "rules", "--lint=all", "--lint-fatal", file.name)

    assert code == 0, output


@pytest.mark.parametrize("file", [RULES, VLLM_RULES])
def test_each_rule_fires_only_on_its_condition(file: Path) -> None:
    tests = file.with_name(file.name.replace(".rules.", ".test."))
    code, output = promtool("test", "rules", tests.name)

    assert code == 0, output
    alerts = {rule["alert"] for rule in rules(file) if "alert" in rule}
    assert {alert for alert in alerts if alert not in tests.read_text()} == set()


def test_each_rule_queries_existing_metrics() -> None:
    for rule in rules():
        assert set(re.findall(r"flettner_\w+", rule["expr"])) <= EXPORTED, rule["alert"]


def test_each_alert_has_its_section_in_the_runbook() -> None:
    headings = {heading.lower() for heading in re.findall(r"^## (\w+)$", RUNBOOK, re.MULTILINE)}

    wanted = {rule["annotations"]["runbook_url"] for rule in rules()}

    assert wanted == {f"docs/runbook.md#{heading}" for heading in headings}
    assert all(rule["annotations"]["runbook_url"].endswith(f"#{rule['alert'].lower()}") for rule in rules())


def test_each_alert_of_vllm_has_its_section_in_the_guide() -> None:
    guide = ROOT / "docs" / "how-to" / "grafana-and-alerts.md"
    headings = set(re.findall(r"^### (\w+)$", guide.read_text(), re.MULTILINE))
    alerts = {
        rule["alert"]: rule["annotations"]["runbook_url"] for rule in rules(VLLM_RULES) if "alert" in rule
    }

    assert set(alerts) == headings
    assert all(url == f"docs/how-to/grafana-and-alerts.md#{alert.lower()}" for alert, url in alerts.items())


@pytest.mark.parametrize("file", [RULES, VLLM_RULES])
def test_each_alert_has_a_severity_and_a_description(file: Path) -> None:
    for rule in (rule for rule in rules(file) if "alert" in rule):
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]


def test_the_dashboard_queries_existing_metrics() -> None:
    names = {name for expression in expressions() for name in re.findall(r"flettner_\w+", expression)}

    assert names
    assert names <= EXPORTED


def test_prometheus_parses_each_query_of_the_dashboard(tmp_path: Path) -> None:
    queries = [expression.replace("$target", "chat") for expression in expressions()]
    recorded = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries)]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}))

    code, output = promtool("check", "rules", str(path))

    assert code == 0, output


@pytest.mark.parametrize("dashboard", [DASHBOARD, VLLM_DASHBOARD])
def test_the_panels_do_not_overlap(dashboard: Path) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels(dashboard):
        place = panel["gridPos"]
        cells = {
            (place["x"] + right, place["y"] + down)
            for right in range(place["w"])
            for down in range(place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels(dashboard)}) == len(panels(dashboard))
