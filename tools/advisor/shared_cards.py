"""The servers that run at the same time on one GPU: of a compose project, of units, or of a script. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice

from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.launch_files.launch import Launch
from flettner.vllm_facts.serve_config import Neighbour, ServeConfig, SharedCard
from flettner.vllm_facts.shell_command.serve_command import ServeCommand
from flettner.vllm_facts.sizing.effective_flags import layout, memory_share

CUDA, NVIDIA = "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"
INTEL = "ZE_AFFINITY_MASK"
PINNED = "kv_cache_memory_bytes"  # then the share says nothing
_REDIRECTION = re.compile(r"\d{0,3}[<>]{1,2}\s{0,8}&?\s{0,8}[^\s&|;]+")
_ENDS = re.compile(r"^[ \t]*(?:wait|kill|pkill|killall|docker (?:stop|kill|rm))\b", re.MULTILINE)
_BRANCH = re.compile(r"(?:^|;)[ \t]*(?:else|elif)\b|;;", re.MULTILINE)
_DETACHED = frozenset({"-d", "--detach", "-itd", "-dit", "-td", "-id"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedServer:
    """A server of a file: its text, and its command if that can be read."""

    text: str
    launch: Launch
    command: ServeCommand | None
    name: str


def find_shared_card(server: PlacedServer, servers: Sequence[PlacedServer]) -> SharedCard | None:
    """The fullest GPU of `server`, if other `servers` run there at the same time; else None."""
    own, devices = _share_of(server), _devices_of(server)
    if own is None:
        return None
    others: dict[str, list[Neighbour]] = {}
    for other in servers:
        share = None if other is server or not _run_together(server, other) else _share_of(other)
        for device in devices & _devices_of(other) if share is not None else ():
            others.setdefault(device, []).append(Neighbour(name=other.name, share=share or 0.0))
    fullest = max(others.values(), key=lambda each: sum(other.share for other in each), default=None)
    return SharedCard(own=own, others=tuple(fullest)) if fullest else None


def _share_of(server: PlacedServer) -> float | None:
    """Its gpu_memory_utilization; None if it has none or that cannot be read."""
    if server.command is None or server.launch.unread:
        return None
    try:
        setting = server.command.setting
    except FlagError:
        return None
    env = _environment(server)
    if setting.get(PINNED) is not None or any(name.startswith("VLLM_CPU_") for name in env):
        return None
    return memory_share(ServeConfig(setting=setting, version=server.launch.version or server.command.version))


def _devices_of(server: PlacedServer) -> frozenset[str]:
    """The GPUs that it takes: the first of those that it sees. Empty if a variable decides that."""
    if server.command is None:
        return frozenset()
    env = _environment(server)
    seen: Iterator[str] = iter(_host_devices(server, env) or map(str, count()))
    if visible := env.get(CUDA):
        at_host = list(islice(seen, 64))
        chosen = [device.strip() for device in visible.split(",")]
        if any("$" in device or not device for device in chosen):
            return frozenset()
        seen = iter(
            at_host[int(device)] if device.isdecimal() and int(device) < len(at_host) else device
            for device in chosen
        )
    try:
        needed = layout(ServeConfig(setting=server.command.setting)).gpus
    except FlagError:
        return frozenset()
    return frozenset(islice(seen, needed))


def _host_devices(server: PlacedServer, env: Mapping[str, str]) -> Sequence[str]:
    """The GPUs that a container gets; empty: all of them."""
    if server.launch.devices:
        return server.launch.devices
    before = " ".join(server.command.before) if server.command else ""
    if ids := re.search(r"--gpus[= ]\W*device=([\w,-]+)", before):
        return ids[1].split(",")
    listed = env.get(NVIDIA, "") or env.get(INTEL, "")
    return listed.split(",") if listed and listed not in {"all", "void", "none"} and "$" not in listed else ()


def _environment(server: PlacedServer) -> Mapping[str, str]:
    outer = {name: variable.value for name, variable in server.launch.env.items()}
    return {**outer, **(server.command.server_env if server.command else {})}


def _run_together(server: PlacedServer, other: PlacedServer) -> bool:
    """Whether both run at once: services and units do; in a script the earlier stays in the background."""
    same = (
        server.text is other.text and server.launch.name == other.launch.name
    )  # the script of one container
    if server.launch.together and other.launch.together and not same:
        return server.launch.together == other.launch.together
    if server.text is not other.text or server.launch.start == other.launch.start:
        return False
    first, last = sorted((server, other), key=lambda each: each.launch.start)
    end = max((word.end for word in first.launch.words), default=0)
    between = server.text[end : last.launch.start]
    return _is_background(first, end) and not (_ENDS.search(between) or _BRANCH.search(between))


def _is_background(server: PlacedServer, end: int) -> bool:
    before = server.command.before if server.command else ()
    if before:
        return bool(_DETACHED & set(before))
    rest = server.text[end:].partition("\n")[0]
    return re.match(r"\s*&(?!&)", _REDIRECTION.sub("", rest)) is not None
