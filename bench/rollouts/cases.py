"""Conditions of a rollout: request rate, incidents of all servers, faults of green."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random

from bench.rollouts.servers import Pauses, draw_pauses
from flettner.agent.domain.model import Objective, Slo
from flettner.simulator.faults import Faults
from flettner.vllm_facts.values import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Servers with spare capacity for a rate, and their objectives.

    `crowd`: more sequences at once than a server has with half of the traffic, fewer than with all of it.
    """

    hardware: str
    slowly: float
    slo: Slo
    crowd: int
    seqs: int = 64  # cap of blue's running sequences


def _slo(ttft_s: float, e2e_s: float) -> Slo:
    return Slo(
        ttft=Objective(under_s=ttft_s, share=0.95),
        e2e=Objective(under_s=e2e_s, share=0.95),
        errors=0.99,
    )


SERVICES: Mapping[float, Service] = {
    0.5: Service(hardware="t4-8b-awq", slowly=4.0, slo=_slo(1.5, 8.0), crowd=5),
    2.0: Service(hardware="t4-8b-awq", slowly=2.5, slo=_slo(1.0, 5.0), crowd=7),
    8.0: Service(hardware="4090-8b", slowly=3.5, slo=_slo(0.5, 4.0), crowd=14),
    30.0: Service(hardware="h100-8b", slowly=4.0, slo=_slo(0.3, 3.0), crowd=26),
}
"""By requests per second."""

_TOO_FEW: Mapping[float, int] = {0.5: 1, 2.0: 1, 8.0: 4, 30.0: 8}
STARVED: Mapping[float, Service] = {
    rate: replace(service, seqs=_TOO_FEW[rate]) for rate, service in SERVICES.items()
}
"""The same with a cap that makes nearly every request late: blue completes fewer than it gets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Conditions on both sides. `incident_s`: start and end in seconds after the start of the canary."""

    name: str
    stalls: bool = False  # 3 to 8 s per minute, independent per server
    drift: float = 0.0  # relative change of the rate in an hour
    incident_s: tuple[float, float] = (0.0, 0.0)
    incident_errors: float = 0.0

    def pauses(self, random: Random) -> Pauses:
        return draw_pauses(random, every_s=60.0, least_s=3.0, most_s=8.0) if self.stalls else iter(())


CALM = Profile(name="calm")
PROFILES = (
    CALM,
    Profile(name="stalls", stalls=True),
    Profile(name="drift", drift=0.5),
    Profile(name="incident", incident_s=(180.0, 780.0), incident_errors=0.06),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Green:
    """One kind of green. `turns_in_hold_s`: green slows down this long after it got all traffic. `crowded`:
    green is slow while it has more sequences than the crowd of the service. The setting has no effect on
    the simulated scheduler; only faults change green."""

    name: str
    to: Setting = field(default_factory=lambda: {"watermark": 0.02})
    faults: Faults = field(default_factory=Faults)
    turns_in_hold_s: float | None = None
    crowded: bool = False
    seqs: int | None = None  # None: the cap of blue

    def faults_at(self, service: Service) -> Faults:
        return replace(self.faults, slow_above=service.crowd) if self.crowded else self.faults


EQUAL = Green(name="equal")
CURED = Green(name="cured", to={"max_num_seqs": 128}, seqs=64)
USELESS = Green(name="useless", to={"max_num_seqs": 128})
BAD = (
    Green(name="slow prefill", faults=Faults(slow_prefill=4.0)),
    Green(name="slow decode", faults=Faults(slow_decode=2.5)),
    Green(name="2 % errors", faults=Faults(errors=0.022)),
    Green(name="5 % truncated", faults=Faults(truncate=0.05)),
    Green(name="stalls of 15 s", faults=Faults(stall=15.0)),
    Green(name="wedge", faults=Faults(hang_after=90.0)),
    Green(name="abort with 200", faults=Faults(abort=0.05)),
    Green(name="slow under load", crowded=True),
    Green(name="slow after ten minutes", turns_in_hold_s=600.0),
    Green(name="wrong outputs", to={"kv_cache_dtype": "fp8_e5m2"}, faults=Faults(wrong=1.0)),
)
