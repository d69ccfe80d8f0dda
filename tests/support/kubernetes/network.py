"""The network of a cluster: a bridge of this host, and a network namespace with an address for each pod."""

import json
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, ip_network
from pathlib import Path

_POOL = "10.208.0.0/12"  # away from the networks that Docker (172.16/12, 192.168/16) and clouds prefer
_PREFIX = 24
_NF_CALL = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")


class Network:
    """`address`: of this host on the bridge. `close` removes all of it."""

    def __init__(self) -> None:
        self.bridge = f"fl{secrets.token_hex(4)}"
        taken = [ip_network(route["dst"], strict=False) for route in _routes() if route["dst"] != "default"]
        free = [net for net in IPv4Network(_POOL).subnets(new_prefix=_PREFIX) if not _overlaps(net, taken)]
        self._subnet = secrets.choice(free)
        self.address = str(self._subnet[1])
        self._next = 2
        self._members: dict[str, IPv4Address] = {}
        _ip(
            f"link add {self.bridge} type bridge",
            f"address add {self.address}/{_PREFIX} dev {self.bridge}",
            f"link set {self.bridge} up",
        )
        self._forward("--insert")

    def join(self, search: str) -> tuple[str, str]:
        """Make a network namespace; return its name and its address. `search`: of its resolv.conf."""
        address = self._free_address()
        name = f"{self.bridge}-{int(address) & 0xFF}"
        self._members[name] = address
        veth = f"{self.bridge}v{int(address) & 0xFF}"
        _ip(
            f"netns add {name}",
            f"link add {veth} type veth peer name eth0 netns {name}",
            f"link set {veth} master {self.bridge} up",
        )
        _ip(
            f"address add {address}/{_PREFIX} dev eth0",
            "link set eth0 up",
            "link set lo up",
            f"route add default via {self.address}",
            namespace=name,
        )
        settings = Path("/etc/netns", name)
        settings.mkdir(parents=True)
        lines = (f"nameserver {self.address}", f"search {search}", "options ndots:5")  # as the kubelet writes
        (settings / "resolv.conf").write_text("\n".join(lines) + "\n")
        return name, str(address)

    def leave(self, name: str) -> None:
        """Kill what runs in the namespace and remove it."""
        if self._members.pop(name, None) is not None:
            pids = subprocess.run(["ip", "netns", "pids", name], check=True, capture_output=True, text=True)
            if pids.stdout.split():
                subprocess.run(["kill", "-KILL", *pids.stdout.split()], check=False, capture_output=True)
            _ip(f"netns delete {name}")
            shutil.rmtree(Path("/etc/netns", name))

    def close(self) -> None:
        for name in list(self._members):
            self.leave(name)
        self._forward("--delete")
        _ip(f"link delete {self.bridge}")

    def _free_address(self) -> IPv4Address:
        """The addresses in turn, so that the one of a deleted pod is not in use again at once."""
        used = set(self._members.values())
        for offset in range(self._subnet.num_addresses):
            number = 2 + (self._next - 2 + offset) % (self._subnet.num_addresses - 3)
            if self._subnet[number] not in used:
                self._next = number + 1
                return self._subnet[number]
        raise AssertionError(f"no free address in {self._subnet}")

    def _forward(self, how: str) -> None:
        """Let pods reach each other where Docker drops what a bridge forwards."""
        if shutil.which("iptables") and _NF_CALL.exists() and _NF_CALL.read_text().strip() == "1":
            rule = [
                "FORWARD",
                "--in-interface",
                self.bridge,
                "--out-interface",
                self.bridge,
                "--jump",
                "ACCEPT",
            ]
            subprocess.run(["iptables", "--wait", how, *rule], check=True)


def _overlaps(net: IPv4Network, taken: Sequence[object]) -> bool:
    return any(isinstance(other, IPv4Network) and net.overlaps(other) for other in taken)


def _routes() -> list[dict[str, str]]:
    shown = subprocess.run(["ip", "-json", "-4", "route"], check=True, capture_output=True, text=True)
    routes: list[dict[str, str]] = json.loads(shown.stdout)
    return routes


def _ip(*commands: str, namespace: str = "") -> None:
    where = ["-netns", namespace] if namespace else []
    done = subprocess.run(
        ["ip", *where, "-batch", "-"], input="\n".join(commands), check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, f"ip {commands}: {done.stderr}(the tests of Kubernetes need root)"
