"""The processes of the demo: the daemon, started as an operator starts it, and the traffic generator."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from flettner.agent.api.client import ApiClient
from flettner.agent.config.loader import load_config
from flettner.agent.domain.errors import ActError
from flettner.agent.runtime.wiring import bind_actuators
from flettner.primitives.sockets import find_free_port
from flettner.tools.demo.setups import DemoSetup
from flettner.vllm_facts.values import spell_flag

Json = dict[str, Any]
LAST_EPOCH = 2**31  # of the final cleanup: no daemon acts after it


@dataclass(slots=True)
class DemoTraffic:
    """`python -m flettner.simulator.traffic` as a subprocess, which reports each request when it ends."""

    process: "subprocess.Popen[str]"
    records: list[Json] = field(default_factory=list)
    summary: Json = field(default_factory=dict)
    _reader: threading.Thread | None = None

    @classmethod
    def start(cls, url: str, setup: DemoSetup) -> "DemoTraffic":
        command = [
            sys.executable,
            "-P",
            "-m",
            "flettner.simulator.traffic",
            url,
            "--model",
            "tiny",
            "--follow",
            "--json",
        ]
        command += [*setup.load, "--for", "86400", "--timeout", "600"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own command
        traffic = cls(process)
        traffic._reader = threading.Thread(target=traffic._read, daemon=True)
        traffic._reader.start()
        return traffic

    def _read(self) -> None:
        for line in self.process.stdout or ():
            report: Json = json.loads(line)
            if "requests" in report:
                self.summary = report
            else:
                self.records.append(report)

    def stop(self) -> Json:
        """Stop sending, wait for requests in flight, and return the counts of all requests."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        if self._reader is not None:
            self._reader.join()
        counts: Json = self.summary["requests"]
        return counts

    def count_answered(self, since: float) -> int:
        """Return the number of requests sent since then (monotonic seconds) that were answered."""
        return len(self._ttfts(since))

    def _ttfts(self, since: float) -> list[float]:
        sent = [r for r in list(self.records) if r["at"] >= since]
        return sorted(r["ttft_s"] for r in sent if r["outcome"] == "ok" and r["ttft_s"] is not None)

    def measure(self, since: float, ttft_s: float) -> Json:
        """Return TTFT p95 and goodput (per second) of the requests sent since then (monotonic seconds)."""
        ttfts = self._ttfts(since)
        good = sum(1 for value in ttfts if value <= ttft_s)
        p95 = ttfts[min(len(ttfts) - 1, int(0.95 * len(ttfts)))] if ttfts else None
        return {
            "ttft_p95_ms": None if p95 is None else round(p95 * 1000, 1),
            "goodput_rps": round(good / max(time.monotonic() - since, 1e-9), 2),
        }


@dataclass(slots=True, kw_only=True)
class DemoProcesses:
    home: Path
    setup: DemoSetup
    api: ApiClient
    url: str  # of the proxy
    daemon: "subprocess.Popen[bytes]"

    @property
    def config(self) -> Path:
        return self.home / "flettner.toml"

    def is_serving(self) -> bool:
        try:
            with urlopen(f"{self.url}/v1/models", timeout=2) as response:  # noqa: S310 - our own address
                return bool(response.status == 200)  # noqa: PLR2004
        except OSError:
            return False

    def stop_daemon(self) -> None:
        if self.daemon.poll() is None:
            self.daemon.terminate()
            self.daemon.wait()


@contextmanager
def start_daemon(home: Path, setup: DemoSetup) -> Iterator[DemoProcesses]:
    """Run a daemon in approve mode on this setup; at the end stop its servers and its proxy too."""
    api_port, listen_port = (find_free_port(host="127.0.0.1") for _ in range(2))
    token = _write_files(home, setup, api_port, listen_port)
    with (home / "daemon.log").open("wb") as log:
        daemon = subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-P", "-m", "flettner", "run", "-c", str(home / "flettner.toml")],
            stdout=log,
            stderr=log,
        )
    processes = DemoProcesses(
        home=home,
        setup=setup,
        api=ApiClient(f"http://127.0.0.1:{api_port}", token),
        url=f"http://127.0.0.1:{listen_port}",
        daemon=daemon,
    )
    try:
        yield processes
    finally:
        processes.stop_daemon()
        asyncio.run(_stop_servers(processes.config))


def _write_files(home: Path, setup: DemoSetup, api_port: int, listen_port: int) -> str:
    """Write the config and a tokens file; return the token."""
    flags = [part for knob, value in setup.start.items() for part in (spell_flag(knob), str(value))]
    env = "".join(f"{key} = {json.dumps(value)}\n" for key, value in setup.env.items())
    (home / "flettner.toml").write_text(
        f"""# The config of `flettner demo`: a server whose flags do not fit its load.
[agent]
state_dir = "state"
mode = "approve"
[api]
listen = "127.0.0.1:{api_port}"
tokens_file = "tokens"
[[targets]]
name = "chat"
[targets.slo]
ttft = {{ under = "{setup.ttft}", share = 0.95 }}
[targets.engine]
kind = "process"
command = {json.dumps([*setup.command, *flags])}
[targets.engine.env]
{env}[targets.traffic]
listen = "127.0.0.1:{listen_port}"
[targets.rollout]
hold = "{setup.hold}"
""",
        encoding="utf-8",
    )
    new_token = [
        "token",
        "new",
        "--tokens-file",
        str(home / "tokens"),
        "--role",
        "operator",
        "--name",
        "demo",
    ]
    made = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-P", "-m", "flettner", *new_token], check=True, capture_output=True, text=True
    )
    return made.stdout.strip().splitlines()[0]


async def _stop_servers(config_file: Path) -> None:
    """Stop the servers and the proxy, which outlive the daemon by design."""
    config = load_config(config_file)
    for target in config.targets:
        engine, traffic = bind_actuators(config, target, epoch=LAST_EPOCH)
        for server in await engine.observe():
            try:
                await engine.retire(server)
            except ActError as error:
                print(f"{server.name}: {error}", file=sys.stderr)  # noqa: T201
        await traffic.stop()
