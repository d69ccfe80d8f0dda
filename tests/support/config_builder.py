"""The config of a system test's site: short durations by default, overridden per test."""

import sys
from dataclasses import dataclass
from json import dumps

from tests.support.ports import port_block

TARGET = "chat"
SERVER = (sys.executable, "-m", "flettner.simulator.server", "--model", "tiny", "--host", "127.0.0.1")
QUICK = ("--sim-start-s", "0.2", "--sim-speed", "3", "--max-num-seqs", "8")


SERVERS = port_block()


@dataclass(frozen=True, kw_only=True)
class SiteConfig:
    """`faults`: of the simulator, such as "max_num_seqs=7:errors=0.5". `steps`: weight, requests, seconds."""

    mode: str = "approve"
    approval: str = "any"
    faults: tuple[str, ...] = ()
    serving: str = ""  # a server to adopt, instead of a command
    steps: tuple[tuple[int, int, float], ...] = ((50, 5, 0.5),)
    at_most_s: float = 60.0  # of each step
    hold_s: float = 0.5
    hold_at_most_s: float = 3600.0
    start_s: float = 30.0
    warm_up_requests: int = 4
    warm_up_s: float = 20.0
    drain_s: float = 5.0
    stalled_after_s: float = 2.0
    lost_after: int = 2  # health probes
    waits_s: float = 0.0  # requests, in the proxy, while no server serves
    ttft: str = "500ms"
    octaves: float = 1.0  # of max_num_seqs, in one step
    allowed: tuple[tuple[str, str], ...] = ()  # values of knobs that flettner does not tune
    margin: float = 0.5  # so wide that twenty good answers suffice
    policies: bool = False  # a test that proposes changes needs no policy
    prometheus: str = ""  # its URL; empty for no Prometheus
    tables: str = ""  # further ones, as [[notify]]

    def text(self, *, api: int, listen: int) -> str:
        """Return the TOML of a site with its own state, tokens and ports."""
        on = str(self.policies).lower()
        bounds = "\n".join(
            f"[targets.bounds.{knob}]\nallowed = [{dumps(value)}]" for knob, value in self.allowed
        )
        steps = ", ".join(
            f'{{weight={weight}, requests={requests}, at_least="{at_least_s}s", at_most="{self.at_most_s}s"}}'
            for weight, requests, at_least_s in self.steps
        )
        return f"""
            [agent]
            state_dir = "s"
            mode = "{self.mode}"
            approval = "{self.approval}"
            [api]
            listen = "127.0.0.1:{api}"
            tokens_file = "tokens"
            [policies]
            admission = {on}
            prefill_budget = {on}
            [[targets]]
            name = "{TARGET}"
            [targets.slo]
            ttft = {{ under = "{self.ttft}", share = 0.95 }}
            [targets.engine]
            {self.engine()}
            [targets.traffic]
            {self.traffic(listen)}
            report_every_s = 0.5
            hold_s = {self.waits_s}
            [targets.sensors]
            proxy_requests = {{ stalled_after_s = {self.stalled_after_s} }}
            {
            f'prometheus = {{ url = "{self.prometheus}", queries = {{ up = "sum(up)" }}, every_s = 1.0 }}'
            if self.prometheus
            else ""
        }
            [targets.bounds.max_num_seqs]
            octaves = {self.octaves}
            {bounds}
            [targets.rollout]
            steps = [{steps}]
            hold = "{self.hold_s}s"
            hold_at_most = "{self.hold_at_most_s}s"
            hold_requests = 5
            start = "{self.start_s}s"
            warm_up_requests = {self.warm_up_requests}
            warm_up = "{self.warm_up_s}s"
            drain = "{self.drain_s}s"
            cooldown = "0s"
            lease = "5s"
            margin = {self.margin}
            {self.tables}
        """

    def traffic(self, listen: int) -> str:
        """Lines of `[targets.traffic]`."""
        return f'listen = "127.0.0.1:{listen}"'

    def engine(self) -> str:
        """The lines of `[targets.engine]`."""
        faults = [word for fault in self.faults for word in ("--sim-fault", fault)]
        command = dumps([*SERVER, *QUICK, *faults])
        return f"""
            kind = "process"
            {f'serving = "{self.serving}"' if self.serving else f"command = {command}"}
            ports = [{SERVERS[0]}, {SERVERS[-1]}]
            health_every_s = 0.5
            lost_after = {self.lost_after}
            health_timeout_s = 1.0
            stop_s = 2.0
        """
