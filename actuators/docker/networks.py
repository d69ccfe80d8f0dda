"""Which networks a container is in, and how a like one joins them under a name of its own."""

from actuators.docker.command import Json
from agent.domain.errors import ActError

_BUILT_IN = frozenset({"bridge", "host", "none", "default"})
_KEPT = ("DriverOpts", "GwPriority", "Links")  # the rest is identity (names, addresses) or made by the engine


def mode_of(inspect: Json) -> str:
    """The network mode, a network's id told by its name."""
    mode = str(inspect["HostConfig"].get("NetworkMode") or "default")
    for name, endpoint in networks_in(inspect).items():
        if (endpoint.get("NetworkID") or "-").startswith(mode):
            return name
    return mode


def networks_in(inspect: Json) -> dict[str, Json]:
    return dict((inspect.get("NetworkSettings") or {}).get("Networks") or {})


def own_network(inspect: Json) -> bool:
    """Whether it has ports of its own that can be published."""
    mode = mode_of(inspect)
    return mode not in {"host", "none"} and not mode.startswith("container:")


def at_create(inspect: Json, alias: str) -> dict[str, Json]:
    """The network that goes into the create body; older engines take one only, built-in ones are not named.

    Raises ActError for a network that the container was started in and has left.
    """
    mode = mode_of(inspect)
    if not own_network(inspect) or mode in _BUILT_IN:
        return {}
    if mode not in networks_in(inspect):
        raise ActError(
            f"the container was started in the network {mode} and is not in it now: "
            f"`docker network connect {mode} {inspect['Name'].lstrip('/')}`, or start it anew without"
        )
    return {mode: _like(networks_in(inspect)[mode], alias)}


def before_start(inspect: Json, alias: str) -> tuple[tuple[str, Json], ...]:
    """The other networks, to be connected between create and start."""
    found = networks_in(inspect)
    others = sorted(found.keys() - _BUILT_IN - {mode_of(inspect)})
    return tuple((name, _like(found[name], alias)) for name in others)


def fixed_addresses(inspect: Json) -> dict[str, str]:
    """Network -> the address in it that the container was given by hand."""
    found: dict[str, str] = {}
    for name, endpoint in networks_in(inspect).items():
        config = endpoint.get("IPAMConfig") or {}
        if fixed := config.get("IPv4Address") or config.get("IPv6Address"):
            found[name] = str(fixed)
    return found


def names_in(inspect: Json) -> dict[str, tuple[str, ...]]:
    """Network -> the names that the container answers to in it, without what the engine makes of its id."""
    made = {inspect["Id"][:12], inspect["Name"].lstrip("/")}
    return {
        name: tuple(alias for alias in endpoint.get("Aliases") or () if alias not in made)
        for name, endpoint in networks_in(inspect).items()
        if name not in _BUILT_IN
    }


def given_hostname(inspect: Json) -> str:
    """The host name that somebody chose; empty when the engine took the id, or there can be none."""
    hostname = str(inspect["Config"].get("Hostname") or "")
    shared = mode_of(inspect).startswith("container:") or inspect["HostConfig"].get("UTSMode") == "host"
    return "" if shared or hostname == inspect["Id"][:12] else hostname


def links_in(inspect: Json) -> list[tuple[str, str]]:
    """`--link`s of old: the other container, and the name it has here."""
    pairs = (link.split(":") for link in inspect["HostConfig"].get("Links") or ())
    return [(other.lstrip("/"), alias.rpartition("/")[2]) for other, alias in pairs]


def published(inspect: Json, listens: int) -> list[str]:
    """The container's ports to publish: those that are, and the one it listens on: `8000/tcp`."""
    host = inspect["HostConfig"]
    exposed = (inspect["Config"].get("ExposedPorts") or {}) if host.get("PublishAllPorts") else {}
    return sorted({*(host.get("PortBindings") or {}), *exposed, f"{listens}/tcp"})


def _like(endpoint: Json, alias: str) -> Json:
    """It answers to `alias` only: under a name of blue's it would be given blue's traffic at once.

    Fixed addresses are left out: blue has them.
    """
    return {**{key: endpoint[key] for key in _KEPT if endpoint.get(key)}, "Aliases": [alias]}
