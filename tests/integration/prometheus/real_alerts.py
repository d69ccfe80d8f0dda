"""A real Prometheus with the shipped alert rules and short durations that scrapes a site's daemon."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.prometheus_server import RealPrometheus
from tests.support.rig import Rig

RULES = Path(__file__).parents[3] / "deploy" / "prometheus" / "flettner.rules.yml"
SOONER = {
    "suggestion_waiting_seconds > 1800": "suggestion_waiting_seconds > 1",
    'le="5.0"}[5m]) > 2': 'le="5.0"}[5m]) > 0',
    "held_seconds > 300": "held_seconds > 2",
    'sample="EngineSample"} > 60': 'sample="EngineSample"} > 5',
    "failures_total[15m]) > 5": "failures_total[1m]) > 1",
}
"""Shortened durations; `for` is removed as well."""


@dataclass
class Alerting(RealPrometheus):
    rig: Rig = field(kw_only=True)

    def start(self) -> None:
        rules = re.sub(r"for: \w+", "for: 0s", RULES.read_text())
        for patient, soon in SOONER.items():
            assert patient in rules, patient
            rules = rules.replace(patient, soon)
        (self.folder / "rules.yml").write_text(rules)
        super().start()

    def config(self) -> str:
        scraped = {
            "job_name": "flettner",
            "static_configs": [{"targets": [f"127.0.0.1:{self.rig.api}"]}],
            "authorization": {"credentials": self.rig.token},
        }
        often = ("scrape_interval", "scrape_timeout", "evaluation_interval")
        return json.dumps(
            {
                "global": dict.fromkeys(often, "250ms"),
                "rule_files": ["rules.yml"],
                "scrape_configs": [scraped],
            }
        )

    def fires(self, alert: str) -> None:
        """Wait until the alert fires."""
        self.until(firing(alert), bool)

    def ends(self, alert: str) -> None:
        """Wait until the alert does not fire, while Prometheus answers."""
        self.until(f"{firing(alert)} or vector(0)", lambda values: values == [0.0])


def firing(alert: str) -> str:
    return f'max(ALERTS{{alertname="{alert}",alertstate="firing"}})'


@contextmanager
def alerting(folder: Path, rig: Rig) -> Iterator[Alerting]:
    """Started, with a first scrape of the daemon."""
    prometheus = Alerting(folder, (), rig=rig)
    try:
        prometheus.start()
        prometheus.until("flettner_ready", lambda values: values == [1.0])
        yield prometheus
    finally:
        prometheus.kill()
