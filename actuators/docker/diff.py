"""Compare two containers field by field, as inspect shows them."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from flettner.actuators.docker.clone import mount_options
from flettner.actuators.docker.obstacles import foreign_label
from flettner.actuators.docker.spec import ContainerSpec, Json
from flettner.redaction import MASK, masked
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.flag_parser import edit_flags, find_secrets, parse_address, parse_setting
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


def differences(blue: ContainerSpec, green: ContainerSpec) -> tuple[str, ...]:
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


def _command(blue: ContainerSpec, green: ContainerSpec) -> Iterator[str]:
    before, after = _words(blue), _words(green)
    if before == after:
        return
    try:
        old, new = blue.serve.argv, green.serve.argv
        changes = dict(_flags(old, new))
        explained = edit_flags(old, {knob: value for knob, (_, value) in changes.items()})
        complete = sorted([*before[: -len(old)], *explained]) == sorted(after)
    except FlagError:
        changes, complete = {}, False
    for knob, values in changes.items():
        yield _line(f"Config.Cmd {knob}", *values)
    if not complete:
        yield _line("Config.Cmd", _shown(before), _shown(after))


def _words(spec: ContainerSpec) -> list[str]:
    return [*spec.serve.entrypoint, *spec.serve.command]


def _flags(blue: Sequence[str], green: Sequence[str]) -> Iterator[tuple[str, tuple[Value, Value]]]:
    before, after = _setting(blue), _setting(green)
    for knob in sorted(before.keys() | after.keys()):
        if not is_same(before.get(knob), after.get(knob)):
            yield knob, (before.get(knob), after.get(knob))


def _setting(argv: Sequence[str]) -> dict[str, Value]:
    address = parse_address(argv)
    return {**parse_setting(argv), "host": address.host or None, "port": address.port}


def _shown(words: Sequence[str]) -> list[str]:
    secrets = find_secrets(words)
    return [MASK if word in secrets else word for word in words]


def _labels(spec: ContainerSpec) -> Json:
    return {key: value for key, value in spec.labels.items() if not foreign_label(key)}


def _config(spec: ContainerSpec) -> Json:
    return _rest(spec.document["Config"], _NOT_CONFIG)


def _host(spec: ContainerSpec) -> Json:
    """HostConfig, with names that mean the same on both sides."""
    rest = _rest(spec.document["HostConfig"], _NOT_HOST)
    return {
        **rest,
        **{key: sorted(rest[key]) for key in _UNORDERED & rest.keys() if rest[key]},
        "NetworkMode": spec.network_mode,
        "Links": [":".join(link) for link in spec.links],
    }


def _restarts(blue: ContainerSpec, green: ContainerSpec) -> Iterator[str]:
    if green.restarts:
        yield from _field("HostConfig.RestartPolicy", blue.restart_policy, green.restart_policy)


def _mounts(spec: ContainerSpec) -> dict[str, Json]:
    return {
        one.destination: {
            "Type": one.type,
            "Source": one.name or one.source,
            "RW": one.writable,
            "Propagation": one.propagation,
        }
        for one in spec.mounts
    }


def _mount_options(spec: ContainerSpec) -> list[Json]:
    return sorted(mount_options(spec), key=lambda one: str(one["Target"]))


def _endpoints(spec: ContainerSpec) -> Json:
    return {
        name: {"joined": True, **{key: one.options.get(key) for key in ("DriverOpts", "Links")}}
        for name, one in spec.networks.items()
    }


def _lost_ports(blue: ContainerSpec, green: ContainerSpec) -> Iterator[str]:
    """Ports that only blue publishes; green may publish one more to be reachable."""
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
    """Absent, null, empty and 0 mean the same to the Engine."""
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
