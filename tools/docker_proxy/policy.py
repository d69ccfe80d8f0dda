"""The policy file: allowed requests to the engine, and their containers. All other requests are refused."""

import re
import tomllib
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from flettner.tools.docker_proxy.errors import PolicyError

NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}")
# A listed directory may not lie inside these, nor be one of them or hold one of them.
SEALED = ("/proc", "/sys", "/dev", "/run", "/var/run", "/boot", "/var/lib/docker", "/var/lib/containerd")
# ... and may lie inside these, but not be or hold them.
WHOLE = ("/etc", "/root", "/home", "/var/lib", "/var/log", "/var/spool/cron")


def like(pattern: str, text: str) -> bool:
    """True if all of `text` matches; `*` matches anything but slashes and blanks. Case-sensitive."""
    return re.fullmatch(r"[^/\s]*".join(map(re.escape, pattern.split("*"))), text) is not None


def like_any(patterns: tuple[str, ...], text: str) -> bool:
    return any(like(pattern, text) for pattern in patterns)


def inside(path: str, root: str) -> bool:
    return PurePosixPath(path).is_relative_to(root)


def _check_host_path(text: str) -> str:
    path = PurePosixPath(text)
    if not path.is_absolute() or ".." in path.parts or str(path) != text:
        raise ValueError(f"{text!r} is not a plain absolute path")
    for sealed in SEALED:
        if inside(text, sealed):
            raise ValueError(f"{text} lies inside {sealed}, which no container may see")
    for whole in (*SEALED, *WHOLE):
        if inside(whole, text):
            raise ValueError(f"{text} contains {whole}: name the directories below it instead")
    return text


def _check_absolute(text: str) -> str:
    if not text.startswith("/") or ".." in text.split("/"):
        raise ValueError(f"{text!r} is not an absolute path")
    return text


def _check_name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise ValueError(f"{text!r} is not the name of a container (write names in full, without `*`)")
    return text


def _check_capability(text: str) -> str:
    return text.upper().removeprefix("CAP_")


LABELS = ("flettner.*", "org.opencontainers.*", "com.nvidia.*", "maintainer")
"""Of flettner, and of images: no tool acts on these."""

HostPath = Annotated[str, AfterValidator(_check_host_path)]
Absolute = Annotated[str, AfterValidator(_check_absolute)]
ContainerName = Annotated[str, AfterValidator(_check_name)]
Capability = Annotated[str, AfterValidator(_check_capability)]
NonEmptyText = Annotated[str, Field(min_length=1)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Sockets(_Table):
    path: Absolute = "/run/flettner-docker-proxy/docker.sock"
    engine: Absolute = "/run/docker.sock"


class Containers(_Table):
    """flettner's containers: those with its label, and those adopted by name."""

    adopt: tuple[ContainerName, ...] = ()
    label: NonEmptyText = "flettner.target"
    names: tuple[NonEmptyText, ...] = ("flettner-*",)  # of what it creates, and may rename to
    read: Literal["ours", "all"] = "ours"  # whose list entries, inspects, logs and stats it may see
    files: tuple[Absolute, ...] = ()  # inside a container of its own, for `--config FILE`

    @model_validator(mode="after")
    def _require_name_prefixes(self) -> Self:
        if bare := [name for name in self.names if not NAME.match(name)]:
            raise ValueError(f"names: {bare[0]!r} would allow any name: let it begin with letters")
        return self


class Create(_Table):
    images: tuple[NonEmptyText, ...] = ()  # tags or digests the image must have, or its id
    as_adopted: bool = True  # images, volumes and labels that an adopted container has are allowed as well
    labels: tuple[NonEmptyText, ...] = LABELS  # names; other tools on the host act on theirs
    gpus: tuple[NonEmptyText, ...] = ("*",)  # device ids; `*` also allows a count or all
    runtimes: tuple[NonEmptyText, ...] = ()
    devices: tuple[NonEmptyText, ...] = ()
    cap_add: tuple[Capability, ...] = ()
    security_opt: tuple[NonEmptyText, ...] = ()
    ipc_host: bool = False
    log_drivers: tuple[NonEmptyText, ...] = ("json-file", "local", "journald")
    sysctls: tuple[NonEmptyText, ...] = ()
    ignore_empty: tuple[NonEmptyText, ...] = ()  # fields of a newer Engine, tolerated while they are empty


class Mounts(_Table):
    """Host directories: `read` with all subdirectories and read-only, `write` exactly these."""

    read: tuple[HostPath, ...] = ()
    write: tuple[HostPath, ...] = ()
    volumes: tuple[NonEmptyText, ...] = ()
    relabel: bool = False  # `:z` and `:Z`, which write SELinux labels on the host's files

    @model_validator(mode="after")
    def _refuse_writable_below_read(self) -> Self:
        for path in self.write:
            for root in self.read:
                if inside(path, root):
                    raise ValueError(
                        f"write path {path} lies in read path {root}: a container could put links there"
                        " and mount what they point to; list the adjacent directories"
                    )
        return self


class Networks(_Table):
    names: tuple[NonEmptyText, ...] = ("bridge",)
    host: bool = False
    aliases: tuple[NonEmptyText, ...] = ()  # in addition to the names of [containers]
    publish: tuple[NonEmptyText, ...] = ("127.0.0.1",)  # host addresses; 0.0.0.0 is every one
    links: tuple[ContainerName, ...] = ()


class ProxyPolicy(_Table):
    socket: Sockets = Sockets()
    containers: Containers = Containers()
    create: Create = Create()
    mounts: Mounts = Mounts()
    networks: Networks = Networks()

    def is_own_name(self, name: str) -> bool:
        """True if a container of flettner may have this name."""
        return name in self.containers.adopt or like_any(self.containers.names, name)

    def allows_alias(self, alias: str) -> bool:
        return self.is_own_name(alias) or like_any(self.networks.aliases, alias)


def load_policy(path: Path) -> ProxyPolicy:
    """Raises PolicyError with all faults of the file, one a line."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PolicyError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PolicyError(f"{path}: not TOML: {error}") from error
    return parse_policy(tables, str(path))


def parse_policy(tables: object, source: str = "policy") -> ProxyPolicy:
    """`tables` as TOML gives them (lists instead of the policy's tuples). Raises PolicyError."""
    try:
        return ProxyPolicy.model_validate(_lists_to_tuples(tables))
    except ValidationError as error:
        raise PolicyError(
            "\n".join(f"{source}: {_describe_fault(fault)}" for fault in error.errors())
        ) from error


def _lists_to_tuples(value: object) -> object:
    match value:
        case list():
            return tuple(_lists_to_tuples(inner) for inner in value)
        case dict():
            return {name: _lists_to_tuples(inner) for name, inner in value.items()}
        case _:
            return value


def _describe_fault(fault: object) -> str:
    assert isinstance(fault, dict)
    where = ".".join(map(str, fault["loc"])) or "policy"
    if fault["type"] == "extra_forbidden":
        return f"{where}: no such key"
    return f"{where}: {fault['msg'].removeprefix('Value error, ')}"
