"""The one-time steps by which the clients of running containers come to the proxy."""

from pathlib import Path

from agent.config.loader import Target
from agent.config.types import is_loopback, split_address

_RULE = "-m addrtype --dst-type LOCAL --dport PORT -j REDIRECT --to-ports"
_STEPS = """\
{target}: how the clients of {every} come to the proxy, once. No request needs to be lost.
1. trimtab run -c {config}     with [agent] mode = "approve" (in "advise" there is no proxy)
   Envoy listens on {listen} and sends everything to {every}; nothing else changes.{only_here}
2. curl -fsS http://{here}:{port}/v1/models
   answers as the container itself does.
3. Bring the clients there. `docker port {first}` shows the PORT that they use now. One of:
   a) Tell them: base URL, load balancer, DNS. Nothing is lost: both addresses answer meanwhile.
   b) Keep the address by a rule of the firewall. Nothing is lost: open connections stay where they are.
      iptables -t nat -I PREROUTING -p tcp {rule} {port}
      iptables -t nat -I OUTPUT -p tcp ! -d 127.0.0.0/8 {rule} {port}
      A reboot forgets the rules unless you make them permanent; 127.0.0.1:PORT is not redirected.
   c) Start the container anew on another port and let Envoy listen on the old one: connections are
      refused until the model is loaded again.
4. When `docker logs --since 10m {first}` shows requests of the proxy only, changes may be approved.
   Whoever still asks the container itself is cut off when the first change replaces it.
More: docs/docker.md"""
_ONLY_HERE = """
   Only this host reaches {host}: for clients elsewhere, and for 3b, write [targets.traffic]
   listen = "0.0.0.0:{port}" first."""


def steps(target: Target, config: Path) -> str:
    """Text to be printed; empty where no container is adopted."""
    names = target.engine.options.get("containers")
    if target.engine.name != "docker" or not names:
        return ""
    host, port = split_address(target.listen)
    any_host = host in {"0.0.0.0", "::"}  # noqa: S104 - recognised, not bound
    return _STEPS.format(
        target=target.name,
        first=names[0],
        every=", ".join(names),
        config=config,
        listen=target.listen,
        here="127.0.0.1" if any_host else target.listen.rpartition(":")[0],
        port=port,
        only_here=_ONLY_HERE.format(host=host, port=port) if is_loopback(target.listen) else "",
        rule=_RULE,
    )
