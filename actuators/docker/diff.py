"""Compare two containers field by field, as inspect shows them."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from actuators.docker.command import Json, argv_of, env_of, same
from actuators.docker.mounts import options_of, seen_in
from actuators.docker.networks import links_in, mode_of, networks_in, own_network
from actuators.docker.obstacles import foreign_label
from vllm_facts.errors import FlagError
from vllm_facts.flags import place_of, secrets_of, setting_of, with_setting
from vllm_facts.masking import MASK, masked
from vllm_facts.values import Value

# Told apart from the rest below, or of one container only: names, ids, what the engine makes.
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


def differs(blue: Json, green: Json) -> tuple[str, ...]:
    """What green has other than blue, one line for each field or flag: `Config.Cmd max_num_seqs: 64 → 128`.

    Secrets are masked. Left out is what differs because there are two of them: ids, names, times, state,
    addresses and aliases, the host's side of ports, labels that say whose it is, --rm, and the restart
    policy while green has none.
    """
    return (
        *_field("Image", blue.get("Image"), green.get("Image")),
        *_command(blue, green),
        *_tables("Config.Env", env_of(blue), env_of(green)),
        *_tables("Config.Labels", _labels(blue), _labels(green)),
        *_tables("Config", _rest(blue["Config"], _NOT_CONFIG), _rest(green["Config"], _NOT_CONFIG)),
        *_tables("HostConfig", _host(blue), _host(green)),
        *_restarts(blue, green),
        *_tables("Mounts", seen_in(blue), seen_in(green)),
        *_field("HostConfig.Mounts", options_of(blue), options_of(green)),
        *_tables("NetworkSettings.Networks", _endpoints(blue), _endpoints(green)),
        *_lost_ports(blue, green),
    )


def _command(blue: Json, green: Json) -> Iterator[str]:
    before, after = _words(blue), _words(green)
    if before == after:
        return
    try:
        old, new = argv_of(blue), argv_of(green)
        changes = dict(_flags(old, new))
        told = with_setting(old, {knob: value for knob, (_, value) in changes.items()})
        complete = sorted([*before[: -len(old)], *told]) == sorted(after)
    except FlagError:
        changes, complete = {}, False
    for knob, values in changes.items():
        yield _line(f"Config.Cmd {knob}", *values)
    if not complete:
        yield _line("Config.Cmd", _shown(before), _shown(after))


def _words(inspect: Json) -> list[str]:
    config = inspect["Config"]
    return [*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ())]


def _flags(blue: Sequence[str], green: Sequence[str]) -> Iterator[tuple[str, tuple[Value, Value]]]:
    before, after = _setting(blue), _setting(green)
    for knob in sorted(before.keys() | after.keys()):
        if not same(before.get(knob), after.get(knob)):
            yield knob, (before.get(knob), after.get(knob))


def _setting(argv: Sequence[str]) -> dict[str, Value]:
    host, port = place_of(argv)
    return {**setting_of(argv), "host": host or None, "port": port}


def _shown(words: Sequence[str]) -> list[str]:
    secrets = secrets_of(words)
    return [MASK if word in secrets else word for word in words]


def _labels(inspect: Json) -> Json:
    labels = inspect["Config"].get("Labels") or {}
    return {key: value for key, value in labels.items() if not foreign_label(key)}


def _host(inspect: Json) -> Json:
    """HostConfig, with names that mean the same on both sides."""
    host = inspect["HostConfig"]
    rest = _rest(host, _NOT_HOST)
    return {
        **rest,
        **{key: sorted(rest[key]) for key in _UNORDERED & rest.keys() if rest[key]},
        "NetworkMode": mode_of(inspect),
        "Links": [":".join(link) for link in links_in(inspect)],
    }


def _restarts(blue: Json, green: Json) -> Iterator[str]:
    old, new = (one["HostConfig"].get("RestartPolicy") or {} for one in (blue, green))
    if new.get("Name") not in {None, "", "no"}:
        yield from _field("HostConfig.RestartPolicy", old, new)


def _endpoints(inspect: Json) -> Json:
    return {
        name: {"joined": True, "DriverOpts": endpoint.get("DriverOpts"), "Links": endpoint.get("Links")}
        for name, endpoint in networks_in(inspect).items()
    }


def _lost_ports(blue: Json, green: Json) -> Iterator[str]:
    """Published by blue only; green may publish one more, to be reached."""
    if not own_network(blue):
        return
    kept = green["HostConfig"].get("PortBindings") or {}
    for port in sorted(blue["HostConfig"].get("PortBindings") or {}):
        if port not in kept:
            yield _line(f"HostConfig.PortBindings.{port}", "published", None)


def _rest(table: Json, told_elsewhere: frozenset[str]) -> Json:
    return {key: value for key, value in table.items() if key not in told_elsewhere}


def _tables(name: str, blue: Json, green: Json) -> Iterator[str]:
    for key in sorted(blue.keys() | green.keys()):
        yield from _field(f"{name}.{key}", blue.get(key), green.get(key))


def _field(name: str, old: Any, new: Any) -> Iterator[str]:  # noqa: ANN401 - any JSON value
    """Absent, null, empty and 0 are the same to the engine."""
    if isinstance(old, dict) and isinstance(new, dict):
        yield from _tables(name, old, new)
    elif (old or None) != (new or None):
        yield _line(name, old, new)


def _line(name: str, old: Any, new: Any) -> str:  # noqa: ANN401 - any JSON value
    """`name: old → new`, without secrets. A secret that differs is told, not shown."""
    key = name.rpartition(".")[2]
    return f"{name}: {_told(old, key)} → {_told(new, key)}"


def _told(value: Any, key: str) -> str:  # noqa: ANN401 - any JSON value
    if value is None:
        return _ABSENT
    clean = masked(value, name=key)
    text = clean if isinstance(clean, str) else json.dumps(clean, ensure_ascii=False)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
