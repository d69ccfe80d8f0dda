"""Rules and dashboard of vLLM have series in a real Prometheus, which asks flettner for the servers."""

import asyncio
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from flettner.agent.api.tokens import Tokens
from flettner.simulator.traffic import Load, TrafficGenerator
from tests.integration.prometheus.test_deploy import VLLM_DASHBOARD, VLLM_RULES, expressions, rules
from tests.support.api_tokens import store_roles
from tests.support.fake_daemon_view import FakeDaemonView
from tests.support.prometheus_server import RealPrometheus
from tests.support.rig import SHAPE
from tests.support.served_api import served
from tests.unit.simulator.running import running

pytestmark = pytest.mark.timeout(120)


@dataclass
class Discovering(RealPrometheus):
    """It scrapes the servers that flettner names, with the rules of vLLM."""

    api: int = 0
    token: Path = field(default_factory=Path)

    def config(self) -> str:
        discovery = {
            "url": f"http://127.0.0.1:{self.api}/v1/scrape-targets",
            "refresh_interval": "1s",
            "authorization": {"type": "Bearer", "credentials_file": str(self.token)},
        }
        every = {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms"}
        job = {"job_name": "vllm", "http_sd_configs": [discovery]}
        return json.dumps({"global": every, "rule_files": [str(VLLM_RULES)], "scrape_configs": [job]})


async def test_every_rule_and_panel_has_series_of_the_target(tmp_path: Path) -> None:
    daemon = FakeDaemonView()
    token = tmp_path / "viewer"
    token.write_text(store_roles(tmp_path / "tokens", principal="prometheus")["viewer"])
    recorded = [rule["record"] for rule in rules(VLLM_RULES) if "record" in rule]
    queries = [query.replace("$target", ".*") for query in expressions(VLLM_DASHBOARD)]

    async with running("--max-num-seqs", "4") as server:
        state = daemon.targets()["chat"].state
        blue = replace(state.fleet.servers[0], address=urlsplit(server.url).netloc)
        daemon.set(replace(state, fleet=replace(state.fleet, servers=(blue,))))
        traffic = TrafficGenerator(server.url, "tiny", Load(rate=20.0), shape=SHAPE, seed=1)
        with served(daemon, Tokens(tmp_path / "tokens", daemon.now)) as port:
            prometheus = Discovering(tmp_path, (), api=port, token=token)
            try:
                await asyncio.to_thread(prometheus.start)
                await traffic.start()
                await asyncio.to_thread(
                    prometheus.until,
                    'target:vllm_goodput:rate5m{target="chat"}',
                    lambda values: bool(values and values[0] > 0),
                )
                found = {
                    query: await asyncio.to_thread(prometheus.values, query)
                    for query in (*recorded, *queries)
                }
                labelled = await asyncio.to_thread(
                    prometheus.values, 'up{target="chat",server="chat-r0",color="blue",job="vllm"}'
                )
            finally:
                prometheus.kill()
                await traffic.stop()

    assert labelled == [1.0]
    assert [query for query, values in found.items() if not values] == []
