"""The demo's scenario: a good change is suggested and promoted, a harmful one approved and rolled back."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flettner.agent.domain.errors import FlettnerError
from flettner.tools.demo.processes import DemoProcesses, DemoTraffic, Json

MIN_ANSWERED = 16  # requests to compare; a busy machine answers few in the time an idle one answers hundreds
POLL_S = 0.5


class DemoError(FlettnerError):
    """A step of the scenario did not happen."""


@dataclass(slots=True, kw_only=True)
class DemoReport:
    """One rollout in the demo's report."""

    id: str
    knobs: Mapping[str, tuple[Any, Any]]
    outcome: str
    exposed: int
    bad_exposed: int
    seconds: float
    why: str
    before: Json = field(default_factory=dict)
    after: Json = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class DemoScenario:
    processes: DemoProcesses
    measure_s: float
    log: Callable[[str], None]
    _note: str = ""

    def start_traffic(self) -> DemoTraffic:
        """Start the clients as soon as the server answers with its unsuitable flags."""
        setup = self.processes.setup
        self.log(f"starting one {setup.engine} server with {_format_flags(setup.start)} behind Envoy")
        self._until("the server answers through the proxy", self.processes.is_serving)
        self.log(f"load: {' '.join(setup.load)}")
        return DemoTraffic.start(self.processes.url, setup)

    def improve(self, traffic: DemoTraffic) -> DemoReport:
        """Approve the change that the daemon suggests for the queue."""
        since = time.monotonic()
        self._until("a suggestion", lambda: self._target()["suggestion"])
        self._until(
            "enough requests to compare",
            lambda: (
                time.monotonic() - since > self.measure_s and traffic.count_answered(since) >= MIN_ANSWERED
            ),
        )
        suggestion = self._suggestion(self._target()["suggestion"])
        self.log(f"suggested by {suggestion['policy']}: {suggestion['why']}")
        return self._rollout(traffic, suggestion, since)

    def harm(self, traffic: DemoTraffic) -> DemoReport:
        """Propose and approve an unsuitable value."""
        wanted = self.processes.setup.harm
        since = time.monotonic()
        self._until(
            "enough requests to compare",
            lambda: (
                time.monotonic() - since > self.measure_s and traffic.count_answered(since) >= MIN_ANSWERED
            ),
        )
        self.log(f"an operator proposes and approves {_format_flags(wanted)}")
        body = {"to": dict(wanted), "reason": "demo: a harmful change"}
        made = self.processes.api.post("/v1/targets/chat/suggestions", body)
        self._until("the preflight check", lambda: self._suggestion(made["id"])["status"] != "checking")
        suggestion = self._suggestion(made["id"])
        if suggestion["status"] != "open":
            raise DemoError(f"the change is {suggestion['status']}: {'; '.join(suggestion['notes'])}")
        return self._rollout(traffic, suggestion, since)

    def _rollout(self, traffic: DemoTraffic, suggestion: Json, since: float) -> DemoReport:
        ttft_s = self.processes.setup.ttft_s
        before = traffic.measure(since, ttft_s)
        path = f"/v1/suggestions/{suggestion['id']}/approve"
        self.processes.api.post(path, {"digest": suggestion["digest"], "comment": "demo"})
        started = time.monotonic()
        self._until("the end of the rollout", lambda: self._rollout_of(suggestion)["ended_at"])
        seconds, ended = time.monotonic() - started, time.monotonic()
        self._until(
            "enough requests to compare",
            lambda: (
                time.monotonic() - ended > self.measure_s and traffic.count_answered(ended) >= MIN_ANSWERED
            ),
        )
        rollout = self._rollout_of(suggestion)
        return DemoReport(
            id=rollout["id"],
            knobs={k: (suggestion["from"].get(k), v) for k, v in suggestion["to"].items()},
            outcome=rollout["outcome"],
            exposed=rollout["exposed"]["asked"],
            bad_exposed=rollout["bad_exposed"],
            seconds=round(seconds, 1),
            why=rollout["why"],
            before=before,
            after=traffic.measure(ended, ttft_s),
        )

    def _rollout_of(self, suggestion: Json) -> Json:
        rollouts = self.processes.api.get("/v1/rollouts")["rollouts"]
        return next((r for r in rollouts if r["suggestion"] == suggestion["id"]), {"ended_at": None})

    def _suggestion(self, name: str) -> Json:
        return self.processes.api.get(f"/v1/suggestions/{name}")

    def _target(self) -> Json:
        return self.processes.api.get("/v1/targets/chat")

    def _until(self, what: str, has_happened: Callable[[], object]) -> None:
        """Poll, and log changes of the target's note meanwhile."""
        deadline = time.monotonic() + self.processes.setup.timeout_s
        while not has_happened():
            if self.processes.daemon.poll() is not None:
                raise DemoError(f"the daemon ended: see {self.processes.home / 'daemon.log'}")
            if time.monotonic() > deadline:
                raise DemoError(f"timed out waiting for {what}: see {self.processes.home / 'daemon.log'}")
            self._log_note()
            time.sleep(POLL_S)
        self._log_note()

    def _log_note(self) -> None:
        try:
            target = self._target()
        except FlettnerError:
            return  # the daemon is still starting
        note = f"{target['phase']:<12} {target['note']}"
        if target["phase"] not in {"observing", "proposed"} and note != self._note:
            self.log(f"  {note}")
            self._note = note


def _format_flags(setting: Mapping[str, int]) -> str:
    return ", ".join(f"{knob} {value}" for knob, value in setting.items())
