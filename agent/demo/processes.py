"""The demo's processes: the daemon as an operator starts it, and its traffic. Nothing of them is left."""

import asyncio
import json
import signal
import socket
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

from agent.api.client import ApiClient
from agent.config.loader import load
from agent.demo.setups import DemoSetup
from agent.domain.errors import ActError
from agent.runtime.wiring import bind_actuators

Json = dict[str, Any]
LAST_EPOCH = 2**31  # of whoever clears the stage: nobody acts after it


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(slots=True)
class DemoTraffic:
    """`python -m simulator.traffic` beside us; each request is heard of when it ends."""

    process: "subprocess.Popen[str]"
    records: list[Json] = field(default_factory=list)
    summary: Json = field(default_factory=dict)
    _reader: threading.Thread | None = None

    @classmethod
    def start(cls, url: str, scene: DemoSetup) -> "DemoTraffic":
        command = [sys.executable, "-m", "simulator.traffic", url, "--model", "tiny", "--follow", "--json"]
        command += ["--streams", str(scene.streams), "--for", "86400"]
        command += ["--prompt", scene.prompt, "--output", scene.output, "--timeout", "600"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own command
        traffic = cls(process)
        traffic._reader = threading.Thread(target=traffic._read, daemon=True)
        traffic._reader.start()
        return traffic

    def _read(self) -> None:
        for line in self.process.stdout or ():
            said: Json = json.loads(line)
            if "requests" in said:
                self.summary = said
            else:
                self.records.append(said)

    def stop(self) -> Json:
        """No new requests; those in flight are awaited. Returns the counts of all."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        if self._reader is not None:
            self._reader.join()
        counts: Json = self.summary["requests"]
        return counts

    def answered(self, since: float) -> int:
        """How many of the requests sent since then (monotonic seconds) have been."""
        return len(self._first(since))

    def _first(self, since: float) -> list[float]:
        asked = [r for r in list(self.records) if r["at"] >= since]
        return sorted(r["ttft_s"] for r in asked if r["outcome"] == "ok" and r["ttft_s"] is not None)

    def measure(self, since: float, ttft_s: float) -> Json:
        """Of the requests sent since then (monotonic seconds): TTFT p95, and how many a second met it."""
        first = self._first(since)
        good = sum(1 for value in first if value <= ttft_s)
        p95 = first[min(len(first) - 1, int(0.95 * len(first)))] if first else None
        return {
            "ttft_p95_ms": None if p95 is None else round(p95 * 1000, 1),
            "goodput_rps": round(good / max(time.monotonic() - since, 1e-9), 2),
        }


@dataclass(slots=True, kw_only=True)
class DemoProcesses:
    home: Path
    scene: DemoSetup
    link: ApiClient
    url: str  # where clients ask
    daemon: "subprocess.Popen[bytes]"

    @property
    def config(self) -> Path:
        return self.home / "trimtab.toml"

    def serving(self) -> bool:
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
def stage(home: Path, scene: DemoSetup) -> Iterator[DemoProcesses]:
    """A daemon in approve mode over `scene`; at the end its servers and its proxy are stopped too."""
    api, listen = free_port(), free_port()
    token = _files(home, scene, api, listen)
    with (home / "daemon.log").open("wb") as log:
        daemon = subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", "agent.main", "run", "-c", str(home / "trimtab.toml")],
            stdout=log,
            stderr=log,
        )
    link = ApiClient(f"http://127.0.0.1:{api}", token)
    staged = DemoProcesses(home=home, scene=scene, link=link, url=f"http://127.0.0.1:{listen}", daemon=daemon)
    try:
        yield staged
    finally:
        staged.stop_daemon()
        asyncio.run(_strike(staged.config))


def _files(home: Path, scene: DemoSetup, api: int, listen: int) -> str:
    """The config and a token; returns the token."""
    flags = [part for knob, value in scene.start.items() for part in (_flag(knob), str(value))]
    env = "".join(f"{key} = {json.dumps(value)}\n" for key, value in scene.env.items())
    (home / "trimtab.toml").write_text(
        f"""# What `trimtab demo` runs: a server whose flags do not fit its load.
[agent]
state_dir = "state"
mode = "approve"
[api]
listen = "127.0.0.1:{api}"
tokens_file = "tokens"
[[targets]]
name = "chat"
[targets.slo]
ttft = {{ under = "{scene.ttft}", share = 0.95 }}
[targets.engine]
kind = "process"
command = {json.dumps([*scene.command, *flags])}
[targets.engine.env]
{env}[targets.traffic]
listen = "127.0.0.1:{listen}"
[targets.rollout]
steps = {scene.steps}
hold = "{scene.hold}"
hold_requests = 20
warm_up_requests = 8
lease = "{scene.lease}"
cooldown = "2s"
drain = "5m"  # a green of one sequence has a queue of minutes where the machine is busy
margin = 0.5  # so wide that twenty requests are proof enough; 0.01 is the default
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
        [sys.executable, "-m", "agent.main", *new_token], check=True, capture_output=True, text=True
    )
    return made.stdout.strip().splitlines()[0]


def _flag(knob: str) -> str:
    return "--" + knob.replace("_", "-")


async def _strike(config_file: Path) -> None:
    """Stop what outlives the daemon on purpose."""
    config = load(config_file)
    for target in config.targets:
        engine, traffic = bind_actuators(config, target, epoch=LAST_EPOCH)
        for server in await engine.observe():
            try:
                await engine.retire(server)
            except ActError as error:
                print(f"{server.name}: {error}", file=sys.stderr)  # noqa: T201
        await traffic.stop()
