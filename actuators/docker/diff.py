"""Compare two containers field by field, as inspect shows them."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from flettner.actuators.docker.clone import foreign_label, mount_options
from flettner.actuators.docker.container import Container, Json
from flettner.actuators.vllm.serve_command import ChangedCommand, ContainerCommand
from flettner.redaction import MASK, masked
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.flag_parser import find_secrets
from flettner.vllm_facts.values import Value, is_same

# Compared on their own below, or specific to one container: names, ids, what the Engine generates.
_NOT_CONFIG = frozenset(
    {
        "ArgsEscaped",
        "AttachStderr",
        "AttachStdin",
        "AttachStdout",
        "Cmd",
        "Entrypoint",
        "Env",
        "ExposedPorts",
        "Hostname",
        "Image",
        "Labels",
        "MacAddress",
        "OnBuild",
        "Volumes",
    }
)
_NOT_HOST = frozenset(
    {
        "AutoRemove",
        "Binds",
        "ConsoleSize",
        "ContainerIDFile",
        "Links",
        "Mounts",
        "NetworkMode",
        "PortBindings",
        "PublishAllPorts",
        "RestartPolicy",
        "VolumesFrom",
    }
)
_UNORDERED = frozenset({"CapAdd", "CapDrop", "GroupAdd", "SecurityOpt"})
_ABSENT = "not given"
_LONGEST = 300  # characters of a value; a seccomp profile has thousands


def differences(blue: Container, green: Container) -> tuple[str, ...]:
    """Return what differs in green, one line for each field or flag: `Config.Cmd max_num_seqs: 64 → 128`.

    Secrets are masked. Fields that must differ are left out: ids, names, times, state, addresses and aliases,
    host ports, labels of the owner, --rm, and the restart policy while green has none.
    """
    return (
        *_field("Image", blue.image, green.image),
        *_command(blue, green),
        *_tables("Config.Env", blue.env, green.env),
        *_tables("Config.Labels", _labels(blue), _labels(green)),
        *_tables("Config", _config(blue), _config(green)),
        *_tables("HostConfig", _host(blue), _host(green)),
        *_restarts(blue, green),
        *_tables("Mounts", _mounts(blue), _mounts(green)),
        *_field("HostConfig.Mounts", _mount_options(blue), _mount_options(green)),
        *_tables("NetworkSettings.Networks", _endpoints(blue), _endpoints(green)),
        *_lost_ports(blue, green),
    )


def _command(blue: Container, green: Container) -> Iterator[str]:
    """Yield the flags that differ; both command lines whole if flags do not explain the difference."""
    before, after = _words(blue.serve), _words(green.serve)
    if before == after:
        return
    port = green.serve.port if green.serve.port != blue.serve.port else None
    try:
        expected = blue.serve.with_setting(green.serve.setting, port=port)
        changes, complete = _flags(blue.serve, green.serve), sorted(_words(expected)) == sorted(after)
    except FlagError:
        changes, complete = {}, False
    for knob, (old, new) in changes.items():
        yield _line(f"Config.Cmd {knob}", old, new)
    if not complete:
        yield _line("Config.Cmd", _shown(before), _shown(after))


def _words(command: ContainerCommand | ChangedCommand) -> list[str]:
    return [word for word in (*command.entrypoint, *command.command) if word]


def _flags(blue: ContainerCommand, green: ContainerCommand) -> dict[str, tuple[Value, Value]]:
    before: dict[str, Value] = {**blue.setting, "host": blue.host or None, "port": blue.port}
    after: dict[str, Value] = {**green.setting, "host": green.host or None, "port": green.port}
    return {
        knob: (before.get(knob), after.get(knob))
        for knob in sorted(before.keys() | after.keys())
        if not is_same(before.get(knob), after.get(knob))
    }


def _shown(words: Sequence[str]) -> list[str]:
    secrets = find_secrets(words)
    return [MASK if word in secrets else word for word in words]


def _labels(container: Container) -> Json:
    return {key: value for key, value in container.labels.items() if not foreign_label(key)}


def _config(container: Container) -> Json:
    return _rest(container.document["Config"], _NOT_CONFIG)


def _host(container: Container) -> Json:
    """Return HostConfig with names that mean the same on both sides."""
    rest = _rest(container.document["HostConfig"], _NOT_HOST)
    return {
        **rest,
        **{key: sorted(rest[key]) for key in _UNORDERED & rest.keys() if rest[key]},
        "NetworkMode": container.network_mode,
        "Links": [":".join(link) for link in container.links],
    }


def _restarts(blue: Container, green: Container) -> Iterator[str]:
    if green.restarts:
        yield from _field("HostConfig.RestartPolicy", blue.restart_policy, green.restart_policy)


def _mounts(container: Container) -> dict[str, Json]:
    return {
        mount.destination: {
            "Type": mount.type,
            "Source": mount.name or mount.source,
            "RW": mount.writable,
            "Propagation": mount.propagation,
        }
        for mount in container.mounts
    }


def _mount_options(container: Container) -> list[Json]:
    return sorted(mount_options(container), key=lambda mount: str(mount["Target"]))


def _endpoints(container: Container) -> Json:
    return {
        name: {"joined": True, **{key: endpoint.options.get(key) for key in ("DriverOpts", "Links")}}
        for name, endpoint in container.networks.items()
    }


def _lost_ports(blue: Container, green: Container) -> Iterator[str]:
    """Return the ports that only blue publishes; green may publish one more to be reachable."""
    if not blue.has_own_ports:
        return
    for port in sorted(blue.bound_ports):
        if port not in green.bound_ports:
            yield _line(f"HostConfig.PortBindings.{port}", "published", None)


def _rest(table: Json, compared_elsewhere: frozenset[str]) -> Json:
    return {key: value for key, value in table.items() if key not in compared_elsewhere}


def _tables(name: str, blue: Json, green: Json) -> Iterator[str]:
    for key in sorted(blue.keys() | green.keys()):
        yield from _field(f"{name}.{key}", blue.get(key), green.get(key))


def _field(name: str, old: Any, new: Any) -> Iterator[str]:  # noqa: ANN401 - any JSON value
    """Whether the values mean the same to the Engine, as absent, null, empty and 0 do."""
    if isinstance(old, dict) and isinstance(new, dict):
        yield from _tables(name, old, new)
    elif (old or None) != (new or None):
        yield _line(name, old, new)


def _line(name: str, old: Any, new: Any) -> str:  # noqa: ANN401 - any JSON value
    """Return `name: old → new`; a secret is masked."""
    key = name.rpartition(".")[2]
    return f"{name}: {_shown_value(old, key)} → {_shown_value(new, key)}"


def _shown_value(value: Any, key: str) -> str:  # noqa: ANN401 - any JSON value
    if value is None:
        return _ABSENT
    clean = masked(value, name=key)
    text = clean if isinstance(clean, str) else json.dumps(clean, ensure_ascii=False)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
