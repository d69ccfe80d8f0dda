"""Check whether the policy admits a twin of a running container, before the daemon asks for one."""

from flettner.tools.docker_proxy.create import create_reasons
from flettner.tools.docker_proxy.engine import EngineSocket
from flettner.tools.docker_proxy.errors import Absent, EngineSilent, Refused
from flettner.tools.docker_proxy.fields import FieldContext
from flettner.tools.docker_proxy.request_filter import RequestFilter
from flettner.tools.docker_proxy.strict_json import Json

# Left out by flettner when it makes a twin: identity, and what the engine fills in.
_NOT_COPIED = ("AttachStdin", "AttachStdout", "AttachStderr", "MacAddress", "OnBuild")


async def objections(name: str, context: FieldContext, engine: EngineSocket) -> list[str]:
    """All reasons against a twin of the container `name`, and against changing the container itself."""
    request_filter = RequestFilter(context=context, engine=engine)
    try:
        seen = await engine.container(name)
        inspected = await engine.described(seen.id)
    except (Absent, EngineSilent) as error:
        return [str(error)]
    reasons = [] if request_filter.is_own(seen) else [f"{seen.name} is not in the policy's containers.adopt"]
    body = twin(inspected, context)
    reasons += create_reasons(body, context)
    if not reasons:
        try:
            await request_filter.check_named_resources(body)
        except (Refused, Absent, EngineSilent) as error:
            reasons.append(str(error))
    return reasons


def twin(inspected: Json, context: FieldContext) -> Json:
    """A create body like flettner's, with unchanged flags."""
    config = {key: value for key, value in inspected["Config"].items() if key not in _NOT_COPIED}
    if config.get("Hostname") == inspected["Id"][:12]:
        del config["Hostname"]
    address = next(iter(context.policy.networks.publish), "")
    ports = inspected["HostConfig"].get("PortBindings") or {}
    free = {port: [{"HostIp": address, "HostPort": ""}] for port in ports}
    networks = (inspected.get("NetworkSettings") or {}).get("Networks") or {}
    ends = {name: {"Aliases": (end or {}).get("Aliases")} for name, end in networks.items()}
    return {
        **config,
        "Image": inspected["Image"],
        "Labels": {**(config.get("Labels") or {}), context.policy.containers.label: "check"},
        "HostConfig": {**inspected["HostConfig"], "PortBindings": free, "ContainerIDFile": ""},
        "NetworkingConfig": {"EndpointsConfig": ends},
    }
