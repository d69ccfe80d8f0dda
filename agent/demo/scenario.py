"""The demo's acts: a good change is found and promoted, a harmful one is approved and taken back."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.demo.processes import DemoProcesses, DemoTraffic, Json
from agent.domain.errors import TrimtabError

COMPARABLE = 16  # answered requests: a busy machine gives none in the time that a free one gives hundreds
POLL_S = 0.5


class StoryError(TrimtabError):
    """Something that the story needs did not happen."""


@dataclass(slots=True, kw_only=True)
class DemoReport:
    """One rollout as the demo reports it."""

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
class DemoPrinter:
    stage: DemoProcesses
    measure_s: float
    say: Callable[[str], None]
    _note: str = ""

    def opening(self) -> DemoTraffic:
        """The server runs with its bad setting, clients come."""
        scene = self.stage.scene
        self.say(f"starting one {scene.engine} server with {_words(scene.start)} behind Envoy")
        self._until("the server answers through the proxy", self.stage.serving)
        self.say(f"{scene.streams} streams at once")
        return DemoTraffic.start(self.stage.url, scene)

    def improvement(self, traffic: DemoTraffic) -> DemoReport:
        """The daemon sees the queue and suggests, a person approves."""
        since = time.monotonic()
        self._until("a suggestion", lambda: self._target()["suggestion"])
        self._until(
            "enough to compare",
            lambda: time.monotonic() - since > self.measure_s and traffic.answered(since) >= COMPARABLE,
        )
        suggestion = self._suggestion(self._target()["suggestion"])
        self.say(f"suggested by {suggestion['policy']}: {suggestion['why']}")
        return self._rollout(traffic, suggestion, since)

    def harm(self, traffic: DemoTraffic) -> DemoReport:
        """A person insists on a value that does not fit."""
        wanted = self.stage.scene.harm
        since = time.monotonic()
        self._until(
            "enough to compare",
            lambda: time.monotonic() - since > self.measure_s and traffic.answered(since) >= COMPARABLE,
        )
        self.say(f"a person asks for {_words(wanted)} and approves it")
        asked = {"to": dict(wanted), "reason": "demo: a harmful change"}
        made = self.stage.link.post("/v1/targets/chat/suggestions", asked)
        self._until("the answer of the check", lambda: self._suggestion(made["id"])["status"] != "checking")
        suggestion = self._suggestion(made["id"])
        if suggestion["status"] != "open":
            raise StoryError(f"the change is {suggestion['status']}: {'; '.join(suggestion['notes'])}")
        return self._rollout(traffic, suggestion, since)

    def _rollout(self, traffic: DemoTraffic, suggestion: Json, since: float) -> DemoReport:
        ttft_s = self.stage.scene.ttft_s
        before = traffic.measure(since, ttft_s)
        path = f"/v1/suggestions/{suggestion['id']}/approve"
        self.stage.link.post(path, {"digest": suggestion["digest"], "comment": "demo"})
        started = time.monotonic()
        self._until("the rollout's end", lambda: self._rollout_of(suggestion)["ended_at"])
        seconds, ended = time.monotonic() - started, time.monotonic()
        self._until(
            "enough to compare",
            lambda: time.monotonic() - ended > self.measure_s and traffic.answered(ended) >= COMPARABLE,
        )
        rollout = self._rollout_of(suggestion)
        return DemoReport(
            id=rollout["id"],
            knobs={k: (suggestion["from"].get(k), v) for k, v in suggestion["to"].items()},
            outcome=rollout["outcome"],
            exposed=rollout["exposed"]["total"],
            bad_exposed=rollout["bad_exposed"],
            seconds=round(seconds, 1),
            why=rollout["why"],
            before=before,
            after=traffic.measure(ended, ttft_s),
        )

    def _rollout_of(self, suggestion: Json) -> Json:
        found = self.stage.link.get("/v1/rollouts")["rollouts"]
        return next((r for r in found if r["suggestion"] == suggestion["id"]), {"ended_at": None})

    def _suggestion(self, name: str) -> Json:
        return self.stage.link.get(f"/v1/suggestions/{name}")

    def _target(self) -> Json:
        return self.stage.link.get("/v1/targets/chat")

    def _until(self, what: str, happened: Callable[[], object]) -> None:
        """Poll, and tell what the target's note says meanwhile."""
        deadline = time.monotonic() + self.stage.scene.patience_s
        while not happened():
            if self.stage.daemon.poll() is not None:
                raise StoryError(f"the daemon ended: see {self.stage.home / 'daemon.log'}")
            if time.monotonic() > deadline:
                raise StoryError(f"waited for {what}, in vain: see {self.stage.home / 'daemon.log'}")
            self._tell_note()
            time.sleep(POLL_S)
        self._tell_note()

    def _tell_note(self) -> None:
        try:
            target = self._target()
        except TrimtabError:
            return  # not up yet
        note = f"{target['phase']:<12} {target['note']}"
        if target["phase"] not in {"observing", "proposed"} and note != self._note:
            self.say(f"  {note}")
            self._note = note


def _words(setting: Mapping[str, int]) -> str:
    return ", ".join(f"{knob} {value}" for knob, value in setting.items())
