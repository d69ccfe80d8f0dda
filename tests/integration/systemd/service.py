"""A complete site whose daemon is the service of a booted machine: its unit, package and users."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from flettner.actuators.host.procfs import Process
from flettner.agent.config.listen import SOCKET
from tests.integration.systemd.machine import Machine
from tests.support.config_builder import SERVER, TARGET, SiteConfig
from tests.support.rig import Rig

HOME = Path("/var/lib/flettner")
PYTHON = "/opt/flettner/bin/python3"


@dataclass(kw_only=True)
class Service(Rig):
    """`daemon` is the machine's own process: while it runs, the daemon may be down.

    `bare_metal`: with the part of the unit that servers of its own need; else the unit as it is shipped.
    """

    machine: Machine
    bare_metal: bool = True
    patience_s: float = 150.0  # a canary with an upgrade takes longer

    @property
    def config(self) -> Path:
        return self.machine.root / "etc/flettner/flettner.toml"

    @property
    def tokens(self) -> Path:
        return self.config.with_name("tokens")

    @property
    def state_dir(self) -> Path:
        return self.machine.root / str(HOME)[1:]

    @property
    def marked(self) -> Path:
        return HOME / TARGET

    def prepare(self) -> None:
        self.daemon = cast("asyncio.subprocess.Process", self.machine.process)
        super().prepare()
        text = self.config.read_text().replace('state_dir = "s"', "").replace(SERVER[0], PYTHON)
        address = f'"127.0.0.1:{self.api}"'
        self.config.write_text(text.replace(f"listen = {address}", f'listen = ["{SOCKET}", {address}]'))
        self.tokens.write_bytes((self.home / "tokens").read_bytes())
        part = self.machine.root / "etc/systemd/system/flettner.service.d/bare-metal.conf"
        part.unlink(missing_ok=True)
        if self.bare_metal:
            part.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes((self.machine.root / "usr/share/doc/flettner/bare-metal.conf").read_bytes())
        self.machine.run("systemctl", "daemon-reload")

    def log(self) -> str:
        return self.machine.run("journalctl", "-u", "flettner", "-o", "cat", "--no-pager", check=False)

    @property
    def main(self) -> int:
        """The daemon's process id, in the machine."""
        return int(self.machine.shown("flettner", "MainPID"))

    @property
    def restarts(self) -> int:
        return int(self.machine.shown("flettner", "NRestarts"))

    def envoy_pid(self) -> int:
        """In the machine."""
        return int((self.state_dir / "envoy" / "envoy.pid").read_text())

    def log_of_systemd(self) -> str:
        """The log lines of systemd about the current and the previous daemon."""
        return self.machine.run("journalctl", "-b", "_PID=1", "-o", "cat", "--no-pager", "-n", "40")

    def processes(self) -> dict[str, list[Process]]:
        """The daemons of all machines use the same state directory."""
        inside = {
            name: [process for process in family if self.machine.is_inside(process.pid)]
            for name, family in super().processes().items()
        }
        return {name: family for name, family in inside.items() if family}

    async def tear_down(self) -> None:
        """Kill the processes of the unit and remove its state."""
        run = self.machine.run
        await asyncio.to_thread(run, "systemctl", "stop", "flettner", "flettner-docker-proxy")
        run("systemctl", "kill", "--kill-whom=all", "--signal=SIGKILL", "flettner", check=False)
        run("systemctl", "reset-failed", check=False)
        run("find", str(HOME), "-mindepth", "1", "-delete")
        run("rm", "/etc/flettner/flettner.toml")


class Start(Protocol):
    async def __call__(self, site_config: SiteConfig, /, *, bare_metal: bool = True) -> Service: ...
