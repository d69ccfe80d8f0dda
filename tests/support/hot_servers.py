"""Servers in memory whose limits change while they run, with values and leases of flettner's scheduler."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from flettner.actuators.vllm.control import describe, request_body
from flettner.agent.domain.errors import ActError, DriftError
from flettner.agent.domain.model import Server
from flettner.flettner_vllm.scheduler import Knobs, Limit, Refused, Value
from flettner.vllm_facts.values import Setting

CONFLICT = 409
VERSION = "0.32.0"
SLOTS, BUDGET = 64, 8192


def knobs_of(setting: Mapping[str, object], now: Callable[[], float], slots: int = 0) -> Knobs:
    """What the scheduler finds in a server that was started with these flags. `slots`: more than the cap."""

    def number(knob: str, default: int) -> int:
        value = setting.get(knob)
        return value if isinstance(value, int) else default

    cap = number("max_num_seqs", SLOTS)
    slots = max(slots, cap)
    budget = number("max_num_batched_tokens", BUDGET)
    start: dict[str, Value] = {
        "max_num_seqs": number("max_num_active_seqs", cap),
        "max_num_scheduled_tokens": budget,
    }
    return Knobs(start, {"max_num_seqs": Limit(1, slots), "max_num_scheduled_tokens": Limit(1, budget)}, now)


@dataclass(slots=True)
class HotServers:
    """By server name: one that is not here has no control endpoint."""

    knobs: dict[str, Knobs] = field(default_factory=dict)
    version: str = VERSION

    def describe(self, server: Server) -> Server:
        knobs = self.knobs.get(server.name)
        return describe(server, self._document(knobs)) if knobs else server

    def set(self, server: Server, values: Setting, number: tuple[int, int], lease_s: float | None) -> None:
        """Raises ActError, DriftError as an engine does."""
        knobs = self.knobs.get(server.name)
        if knobs is None:
            raise ActError(f"{server.name} has no control endpoint")
        try:
            knobs.set(request_body(server, self._document(knobs), values, number, lease_s))
        except Refused as refused:
            raise (DriftError if refused.status == CONFLICT else ActError)(str(refused)) from refused

    def _document(self, knobs: Knobs) -> dict[str, object]:
        return {"vllm": self.version, **knobs.show()}
