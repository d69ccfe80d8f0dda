"""Check the bodies of create and update in full. Pure, apart from the look at host paths."""

from flettner.tools.docker_proxy.endpoints import NETWORKING, alias_of_ours
from flettner.tools.docker_proxy.fields import (
    FieldContext,
    FieldTable,
    Reasons,
    fields,
    find_refusals,
    flag,
    nothing,
    number,
    text,
    text_or_texts,
    texts,
    values,
)
from flettner.tools.docker_proxy.host_config import HOST_CONFIG, RESTART
from flettner.tools.docker_proxy.strict_json import Json

_HEALTH = fields(
    {
        "Test": texts,
        **dict.fromkeys(("Interval", "Timeout", "StartPeriod", "StartInterval", "Retries"), number),
    }
)
# Engines also take HostConfig's fields from here when HostConfig itself is missing: not from us.
BODY: FieldTable = {
    **dict.fromkeys(("Domainname", "User", "Image", "WorkingDir", "StopSignal"), text),
    **dict.fromkeys(("AttachStdin", "AttachStdout", "AttachStderr", "Tty", "OpenStdin", "StdinOnce"), flag),
    **dict.fromkeys(("ArgsEscaped", "NetworkDisabled"), flag),
    **dict.fromkeys(("Env", "OnBuild", "Shell"), texts),
    **dict.fromkeys(("Cmd", "Entrypoint"), text_or_texts),
    "Hostname": alias_of_ours,
    "MacAddress": text,
    "StopTimeout": number,
    "ExposedPorts": values(nothing, r"[0-9]{1,5}(-[0-9]{1,5})?(/(tcp|udp|sctp))?"),
    "Volumes": values(nothing, r"/[^:\x00-\x1f]{0,512}"),
    "Labels": values(text),
    "Healthcheck": _HEALTH,
    "HostConfig": fields(HOST_CONFIG),
    "NetworkingConfig": fields(NETWORKING),
}


def create_reasons(body: Json, context: FieldContext) -> Reasons:
    """Return the reasons against creating the container; image, networks and volumes are looked up later."""
    yield from find_refusals("", body, BODY, context)
    if not isinstance(body.get("Image"), str) or not body["Image"]:
        yield "Image: none is named"
    label = context.policy.containers.label
    labels = body.get("Labels")
    if not isinstance(labels, dict) or not labels.get(label):
        yield f"Labels: flettner's label {label} is missing"


def update_reasons(body: Json, context: FieldContext) -> Reasons:
    """Return the reasons against an update of anything but the restart policy."""
    yield from find_refusals("", body, {"RestartPolicy": RESTART}, context)
    if not body.get("RestartPolicy"):
        yield "RestartPolicy: is missing"
