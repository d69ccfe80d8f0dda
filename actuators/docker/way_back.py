"""How an operator serves without flettner after its containers: steps, or the container made again."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from flettner.actuators.docker.clone import CreateRequest, clone
from flettner.actuators.docker.container import Container, Endpoint, Json
from flettner.redaction import mask, masked
from flettner.vllm_facts.flag_parser import edit_flags


def describe_way_back(containers: Sequence[Container], adopted: str) -> list[str]:
    """The steps, if a container of flettner serves. `adopted`: the operator's own. Raises FlagError."""
    ours = sorted((each for each in containers if each.ours and each.active), key=lambda each: each.server)
    if not ours:
        return []
    setting = masked(ours[0].serve.setting)
    model = str(setting.pop("model", ""))
    command = mask(shlex.join(edit_flags(["vllm", "serve", *([model] if model else [])], setting)))
    former = next((each for each in containers if each.server == ours[0].like), None)
    ports = former.published if former and former.published else ()
    at = f", publishing {', '.join(ports)} again" if ports else ""
    return [
        f"start your container {adopted} of {ours[0].image_tag} with the flags in force{at}: {command}",
        "when it serves, point the clients at it, or delete the firewall rules of `flettner check`",
        *(f"then remove {each.server}: docker rm -f {each.name}" for each in ours),
    ]


def restore(container: Container, former: Container) -> CreateRequest:
    """Return the container with image, flags and environment of `container`, and all else of `former`.

    That is its name, labels, published ports, restart policy, host name, and names and addresses in its
    networks. Raises FlagError, ActError.
    """
    port = None if container.has_own_ports else former.serve.port
    request = clone(container, name=former.name, labels={}, setting={}, port=port)
    config, host = former.document.get("Config") or {}, former.document.get("HostConfig") or {}
    body = {
        **request.body,
        "Labels": dict(former.labels),
        "ExposedPorts": dict(config.get("ExposedPorts") or {}),
        "HostConfig": {
            **request.body["HostConfig"],
            "PortBindings": dict(host.get("PortBindings") or {}),
            "PublishAllPorts": former.publish_all,
            "RestartPolicy": dict(former.policy),
        },
    }
    if former.hostname:
        body["Hostname"] = former.hostname
    networking = body.get("NetworkingConfig", {}).get("EndpointsConfig", {})
    if networking:
        body["NetworkingConfig"] = {"EndpointsConfig": _as_in(former.networks, networking)}
    others = tuple(_as_in(former.networks, dict(request.networks)).items())
    return replace(request, body=body, networks=others)


def _as_in(former: Mapping[str, Endpoint], made: Mapping[str, Json]) -> dict[str, Json]:
    """Give the connections to networks the names and fixed addresses that the operator's container had."""
    known = {name: former.get(name, Endpoint()) for name in made}
    return {
        name: {
            **connection,
            "Aliases": list(known[name].aliases),
            **({"IPAMConfig": {"IPv4Address": fixed}} if (fixed := known[name].fixed_address) else {}),
        }
        for name, connection in made.items()
    }
