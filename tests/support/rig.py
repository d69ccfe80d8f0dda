"""A complete site for system tests: the daemon as a process, real Envoy, simulated servers and clients."""

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from json import dumps
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

import aiohttp

from flettner.actuators.envoy.admin import Admin
from flettner.actuators.envoy.process import EnvoyProcess
from flettner.actuators.envoy.reported_config import ReportedConfig
from flettner.actuators.envoy.split import carried_by
from flettner.actuators.host import procfs
from flettner.actuators.host.procfs import Process
from flettner.agent.audit import chain, records
from flettner.agent.config.listen import Role
from flettner.simulator.tally import RequestRecord
from flettner.simulator.traffic import Load, TrafficGenerator
from flettner.simulator.workload import Shape, lengths
from tests.support.api_tokens import store_roles
from tests.support.config_builder import TARGET, SiteConfig
from tests.support.ports import free_port

FLETTNER = (sys.executable, "-m", "flettner")
SHAPE = Shape(prompt=lengths("uniform:8:64"), output=lengths("uniform:8:40"))  # 0.1 to 0.4 s
PATIENCE_S = 60.0  # for any condition: the machine may be busy

Document = dict[str, Any]
Answer = TypeVar("Answer")


class Probe(NamedTuple):
    at: float  # seconds of the loop
    status: str  # of HTTP, or the error
    retry_after: str = ""


async def until(
    ask: Callable[[], Awaitable[Answer]],
    holds: Callable[[Answer], object],
    what: str,
    patience_s: float = PATIENCE_S,
) -> Answer:
    """Poll until the answer is as expected; AssertionError with the last answer at the deadline."""
    clock = asyncio.get_running_loop().time
    end_s = clock() + patience_s
    while True:
        answer = await ask()
        if holds(answer):
            return answer
        assert clock() < end_s, f"waited {patience_s:g} s for {what}; last: {answer}"
        await asyncio.sleep(0.02)


async def flettner(*words: str) -> tuple[int, str]:
    """Run a command; return its exit status and its output."""
    process = await asyncio.create_subprocess_exec(
        *FLETTNER, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, output.decode(errors="replace")


@dataclass(kw_only=True)
class Rig:
    """One site: its files, its ports, and the daemon while it runs."""

    home: Path
    site_config: SiteConfig
    api: int = field(default_factory=free_port)
    listen: int = field(default_factory=free_port)
    role: Role = "operator"  # of `token`
    token: str = ""
    daemon: asyncio.subprocess.Process | None = None
    patience_s: float = PATIENCE_S  # for a rollout
    restarted: bool = False  # whenever it ends

    @property
    def config(self) -> Path:
        return self.home / "flettner.toml"

    @property
    def state_dir(self) -> Path:
        return self.home / "s"  # short: the path of a unix socket has 107 bytes

    @property
    def marked(self) -> Path:
        """The target's state directory, as in the ownership marks of its servers."""
        return self.state_dir / TARGET

    @property
    def journal(self) -> Path:
        return self.state_dir / "audit.jsonl"

    @property
    def url(self) -> str:
        """The URL for clients: Envoy."""
        return f"http://127.0.0.1:{self.listen}"

    @property
    def envoy(self) -> EnvoyProcess:
        return EnvoyProcess(self.state_dir / "envoy")

    @property
    def reported(self) -> ReportedConfig:
        return ReportedConfig(Admin(self.envoy.home / "admin.sock"), TARGET)

    def log(self) -> str:
        file = self.home / "daemon.log"
        return file.read_text(errors="replace") if file.exists() else ""

    async def says(self, text: str) -> None:
        """Wait until the daemon's log has this text."""

        async def log() -> str:
            return self.log()

        await until(log, lambda lines: text in lines, f"the log to say {text!r}")

    def prepare(self) -> None:
        """Make the folder, write the config and make a token."""
        self.home.mkdir(exist_ok=True)
        self.config.write_text(self.site_config.text(api=self.api, listen=self.listen))
        self.token = store_roles(self.home / "tokens", principal="alice")[self.role]

    # The daemon.

    async def start(self, *words: str) -> asyncio.subprocess.Process:
        """Start the daemon; all starts append to one log."""
        with (self.home / "daemon.log").open("ab") as log:
            self.daemon = await asyncio.create_subprocess_exec(
                *(*FLETTNER, "run", "-c", str(self.config), *words),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self.daemon

    async def kill(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Signal the daemon and wait for its exit; its servers and Envoy keep running."""
        assert self.daemon is not None
        self.daemon.send_signal(number)
        async with asyncio.timeout(PATIENCE_S):
            return await self.daemon.wait()

    async def restart(self, after_s: float = 0.0) -> None:
        """Kill the daemon, and start it again after this time."""
        await self.kill()
        await asyncio.sleep(after_s)
        await self.start()

    @asynccontextmanager
    async def restarting(self, after_s: float = 2.0) -> AsyncIterator[None]:
        """Start the daemon again whenever it ends, as systemd and the kubelet do."""

        async def keep() -> None:
            while self.daemon is not None:
                await self.daemon.wait()
                await asyncio.sleep(after_s)
                await self.start()

        self.restarted = True
        keeping = asyncio.create_task(keep())
        try:
            yield
        finally:
            keeping.cancel()
            await asyncio.wait({keeping})
            self.restarted = False

    async def serving(self) -> Document:
        """Wait until the target has one server and no rollout, and Envoy sends it all traffic."""
        target = await until(self.target, at_rest, "one server at rest")
        (server,) = target["servers"]
        await until(self.weights, {server["name"]: 100}.__eq__, f"all traffic on {server['name']}")
        return target

    # Its API.

    async def ask(
        self, method: str, path: str, body: object = None, data: bytes | None = None
    ) -> tuple[int, Document]:
        """Return status and document; status 0 if the connection fails."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        headers["Idempotency-Key"] = uuid4().hex
        sent = data if data is not None else None if body is None else dumps(body).encode()
        timeout = aiohttp.ClientTimeout(total=10)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.request(
                    method, f"http://127.0.0.1:{self.api}{path}", data=sent, headers=headers
                ) as got,
            ):
                return got.status, await got.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError):
            assert self.daemon is not None
            ended = self.daemon.returncode
            assert self.restarted or ended in {None, -signal.SIGKILL}, self.log()[-2000:]
            return 0, {}

    async def target(self) -> Document:
        """Empty while the daemon does not answer."""
        status, document = await self.ask("GET", f"/v1/targets/{TARGET}")
        return document if status == 200 else {}

    async def load_adapter(self, address: str, name: str, folder: Path) -> None:
        """Load it as an operator does, at a server itself; wait until the daemon knows it of every server."""
        folder.mkdir(exist_ok=True)
        body = {"lora_name": name, "lora_path": str(folder)}
        url = f"http://{address}/v1/load_lora_adapter"
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
            assert answer.status == 200, await answer.text()

        def has_it(target: Document) -> bool:
            return bool(target) and all(name in server["adapters"] for server in target["servers"])

        await until(self.target, has_it, f"{name} at every server")

    async def rollout(self) -> Document:
        """Return the latest rollout; empty if there is none or the daemon does not answer."""
        status, document = await self.ask("GET", "/v1/rollouts")
        return document["rollouts"][0] if status == 200 and document["rollouts"] else {}

    async def propose(self, **to: object) -> Document:
        """Propose a change; return its suggestion once the preflight is done."""
        body = {"to": to, "reason": "a test"}
        status, made = await self.ask("POST", f"/v1/targets/{TARGET}/suggestions", body)
        assert status < 300, made
        return await until(
            partial(self.suggestion, made["id"]), is_checked, "the engine's answer", self.patience_s
        )

    async def suggestion(self, suggestion: str) -> Document:
        """Empty while the daemon does not answer."""
        status, document = await self.ask("GET", f"/v1/suggestions/{suggestion}")
        return document if status == 200 else {}

    async def approve(self, made: Mapping[str, object]) -> tuple[int, Document]:
        return await self.ask("POST", f"/v1/suggestions/{made['id']}/approve", {"digest": made["digest"]})

    async def change(self, **to: object) -> str:
        """Propose a change and approve it; return the id of the suggestion."""
        made = await self.propose(**to)
        assert made["status"] == "open", made
        status, answer = await self.approve(made)
        assert status == 200, answer
        return str(made["id"])

    async def ended(self, suggestion: str) -> Document:
        """Return the suggestion's rollout once it has ended and the target is idle."""

        def over(rollout: Document) -> bool:
            return rollout.get("suggestion") == suggestion and rollout["ended_at"] is not None

        await until(self.rollout, over, f"the end of the rollout of {suggestion}", self.patience_s)
        await self.serving()
        return await self.rollout()

    async def switch(self, **to: object) -> Document:
        return await self.ended(await self.change(**to))

    async def in_phase(self, phase: str, step: int = 0) -> Document:
        """Wait until the rollout is in this phase (and, in a canary, at this step, its split in force)."""

        def there(rollout: Document) -> bool:
            in_force = phase != "canary" or rollout.get("step_since") is not None
            return bool(rollout) and rollout["phase"] == phase and rollout["step"] >= step and in_force

        return await until(self.rollout, there, f"phase {phase}, step {step}")

    # Processes and proxy.

    def processes(self) -> dict[str, list[Process]]:
        """Return every process with the ownership mark of the site, by server name."""
        by_server: dict[str, list[Process]] = {}
        for process in procfs.processes():
            environment = procfs.environment(process.pid)
            if environment.get("FLETTNER_STATE") == str(self.marked.resolve()):
                name = environment["FLETTNER_SERVER"].rpartition("/")[2]
                by_server.setdefault(name, []).append(process)
        return by_server

    def pid(self, server: str) -> int:
        return min(process.pid for process in self.processes()[server])

    async def weights(self) -> dict[str, int]:
        """Return the weights in force in Envoy, without the lease."""
        routes = await self.reported.resources("rds")
        carried = carried_by(routes) if routes else None
        return dict(carried.weights) if carried else {}

    async def answered(self, server: str) -> int:
        """Return the number of chat completions that Envoy has routed to this server, including open ones."""
        name = f"cluster.{TARGET}/{server}.upstream_rq_total"
        stats = await self.reported.admin.stats(f"^{name}$".replace(".", r"\."))
        return int((stats or {}).get(name, 0))

    def audit(self) -> list[records.JournalRecord]:
        return [records.parse_record(line) for line in self.journal.read_bytes().splitlines(keepends=True)]

    def named_in_audit(self, text: str) -> bool:
        return any(text in f"{entry['why']} {entry['error']}" for entry in self.audit())

    def named_in_journal(self, text: str) -> bool:
        return text in self.journal.read_text()

    async def consistent_server(self) -> str:
        """Return the only server; assert that it has all traffic and that the journal is valid."""
        document = await self.serving()
        (server,) = document["servers"]
        await until(self._names, {server["name"]}.__eq__, "the other processes to exit")
        verified = chain.verify(self.journal)
        assert verified.ok, verified
        return str(server["name"])

    async def _names(self) -> set[str]:
        return set(self.processes())

    # Clients.

    @asynccontextmanager
    async def clients(
        self, rate: float = 20.0, *, load: Load | None = None, timeout_s: float = 40.0
    ) -> AsyncIterator[TrafficGenerator]:
        """Streaming clients with requests open at all times; all requests have ended at the exit."""
        load = load or Load(rate=rate)
        traffic = TrafficGenerator(self.url, "tiny", load, shape=SHAPE, seed=1, timeout_s=timeout_s)
        await traffic.start()
        try:
            yield traffic
        finally:
            await traffic.stop()

    @asynccontextmanager
    async def observer(self) -> AsyncIterator[Counter[str]]:
        """Send requests as `probing` does; count the responses at the exit."""
        counts: Counter[str] = Counter()
        async with self.probing() as answers:
            yield counts
        counts.update(answer.status for answer in answers)

    @asynccontextmanager
    async def probing(self) -> AsyncIterator[list[Probe]]:
        """Send requests continuously, each over a new connection; record each response and its time."""
        answers: list[Probe] = []
        asking = asyncio.create_task(self._probe(answers))
        try:
            yield answers
        finally:
            asking.cancel()
            await asyncio.wait({asking})

    async def _probe(self, answers: list[Probe]) -> None:
        timeout = aiohttp.ClientTimeout(total=60)
        while True:
            at = asyncio.get_running_loop().time()
            try:
                async with (
                    aiohttp.ClientSession(timeout=timeout) as session,
                    session.get(f"{self.url}/v1/models") as got,
                ):
                    await got.read()
                    answers.append(Probe(at, str(got.status), got.headers.get("Retry-After", "")))
            except (aiohttp.ClientError, TimeoutError) as error:
                answers.append(Probe(at, repr(error)))
            await asyncio.sleep(0.05)

    # Teardown.

    async def tear_down(self) -> None:
        """Kill the daemon, every server and Envoy in any state."""
        if self.daemon is not None and self.daemon.returncode is None:
            os.killpg(self.daemon.pid, signal.SIGKILL)
            await self.daemon.wait()
        while left := [process for family in self.processes().values() for process in family]:
            for process in left:
                with suppress(
                    ProcessLookupError
                ):  # the engine core of vLLM has no mark but is in the process group
                    os.killpg(os.getpgid(process.pid), signal.SIGKILL)
            await asyncio.sleep(0.05)
        await self.envoy.kill()


def at_rest(target: Document) -> bool:
    """Return whether one server has all traffic and no rollout runs."""
    if not target or target["phase"] not in {"observing", "proposed", "cooldown"}:
        return False
    return [server["weight"] for server in target["servers"]] == [100]


def is_checked(suggestion: Document) -> bool:
    return bool(suggestion) and suggestion["status"] != "checking"


def lost(traffic: TrafficGenerator) -> list[RequestRecord]:
    """Return the requests that failed; assert that every sent request is recorded."""
    assert traffic.tally.sent == len(traffic.tally.records), traffic.tally.counts()
    assert traffic.tally.outcomes["ok"] > 0, "no request succeeded"
    return [record for record in traffic.tally.records if record.outcome != "ok"]
