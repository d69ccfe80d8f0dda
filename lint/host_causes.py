"""What rows of known errors ask or change where the host, or another host, is the cause. Pure."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace

from flettner.vllm_facts.log_counts import LEAST, read_counts
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.effective_flags import json_entries, layout, text_of
from flettner.vllm_facts.sizing.kv_cache import estimate_fit
from flettner.vllm_facts.start_facts import LONGEST_LINE
from flettner.vllm_facts.values import Knob, Value

_DENIED = re.compile(r"Permission denied: '/\.(?P<folder>\w{1,20})\b")
_OPEN = "/tmp"  # noqa: S108 - every user may write there
_OF_FOLDER = {
    "triton": ("TRITON_CACHE_DIR", f"{_OPEN}/.triton"),
    "config": ("VLLM_CONFIG_ROOT", f"{_OPEN}/.config/vllm"),
}
_REMOTE = re.compile(r"'remote_url': '[^']|Centralized cache sharing detected")
_FOUND = re.compile(r"LMCache hit tokens: [1-9]")
_TRANSFER, _LEASE = "kv_transfer_config", "kv_lease_duration"
_TRANSFERS = frozenset({"NixlConnector", "MooncakeConnector"})
_FEW_ANSWERS = 50  # tokens of prompts for one of an answer: above, the server may only compute prompts
_ERROR = re.compile(r"\w(?:Error|Exception)\b|\[Errno ")
_OF_PEERS = re.compile(
    r"gloo/transport|Connection (?:reset|closed)|Engine core|EngineDead|WorkerProc|ActorDied"
)
_LEASE_S, _LONG_LEASE_S = 30, 300  # vLLM's default, and what was chosen where it was too short


def move_from_root(_: re.Match[str], config: ServeConfig) -> Mapping[str, str | None]:
    """Variables for the folders below / that the log names; HOME where one of them has none of its own."""
    lines = (line[:LONGEST_LINE] for line in config.log)
    denied = {match["folder"] for line in lines for match in _DENIED.finditer(line)}
    if denied - _OF_FOLDER.keys():
        return {"HOME": _OPEN}
    return dict(_OF_FOLDER[folder] for folder in sorted(denied))


def extend_lease(_: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    """A longer lease in the settings of NIXL's connector, if it is the only one."""
    given = json_entries(config, _TRANSFER)
    extra = given.get("kv_connector_extra_config", {})
    if given.get("kv_connector") != "NixlConnector" or not isinstance(extra, dict):
        return {}
    present = extra.get(_LEASE, _LEASE_S)
    if not isinstance(present, int | float) or present >= _LONG_LEASE_S:
        return {}
    longer = {**given, "kv_connector_extra_config": {**extra, _LEASE: _LONG_LEASE_S}}
    return {_TRANSFER: json.dumps(longer, separators=(",", ":"))}


def gets_no_blocks(config: ServeConfig) -> bool:
    """Whether a server that answers computes its prompts, although another may send their blocks."""
    given = json_entries(config, _TRANSFER)
    busy = [count for count in read_counts(config.log) if count.prompts]
    prompts, answers = sum(count.prompts for count in busy), sum(count.answers for count in busy)
    answered = given.get("kv_role") == "kv_consumer" or _FEW_ANSWERS * answers > prompts
    receives = given.get("kv_connector") in _TRANSFERS and given.get("kv_role") != "kv_producer"
    return receives and answered and len(busy) > LEAST and not any(count.host_hits for count in busy)


def spread_by_ray(_: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    """The back end for several hosts, if the log shows a cluster and no flag chooses one."""
    chosen = config.setting.get("distributed_executor_backend") or config.setting.get("nnodes")
    joined = any("existing Ray cluster" in line[:LONGEST_LINE] for line in config.log)
    return {"distributed_executor_backend": "ray"} if joined and not chosen else {}


def starts_copies_locally(config: ServeConfig) -> bool:
    """Whether one host starts all copies, although Ray may place their workers on others."""
    by_ray = text_of(config, "distributed_executor_backend") == "ray"
    return layout(config).dp > 1 and by_ray and text_of(config, "data_parallel_backend") != "ray"


def starts_copies_in_place(config: ServeConfig) -> bool:
    return not starts_copies_locally(config)


def asks_for_no_gpu(config: ServeConfig) -> bool:
    """Whether Kubernetes gives the pod none, as its manifest does not ask for any."""
    container = config.container
    return container is not None and container.launcher == "Kubernetes" and not container.asks_gpus


def lacks_runtime(config: ServeConfig) -> bool:
    """Whether a pod with GPUs runs under the runtime that its node happens to have."""
    container = config.container
    return container is not None and container.asks_gpus and container.runtime == ""


def may_lack_gpus(config: ServeConfig) -> bool:
    return not (asks_for_no_gpu(config) or lacks_runtime(config))


def starts_beside_old(config: ServeConfig) -> bool:
    return config.container is not None and config.container.surges


def waits_for_a_node(config: ServeConfig) -> bool:
    return not starts_beside_old(config)


def hashes_in_processes(config: ServeConfig) -> bool:
    """Whether several processes look up what one of them stored, and none has found anything yet."""
    lines = [line[:LONGEST_LINE] for line in config.log]
    several = layout(config).gpus > 1 or any(map(_REMOTE.search, lines))
    seeded = config.env.get("PYTHONHASHSEED", "random") != "random"  # the log is of another start
    return several and not seeded and not any(map(_FOUND.search, lines))


def is_narrowed_by_ray(config: ServeConfig) -> bool:
    """Whether a worker of Ray asked for an AMD GPU of a number that it does not have."""
    return any("HIP error: invalid device ordinal" in line for line in config.log) and _has_ray_workers(
        config
    )


def sees_what_it_has(config: ServeConfig) -> bool:
    return not is_narrowed_by_ray(config)


def names_network_here(config: ServeConfig) -> bool:
    """Whether the command names a network that workers on other hosts did not take from it."""
    return "GLOO_SOCKET_IFNAME" in config.env and _has_ray_workers(config)


def names_no_network_here(config: ServeConfig) -> bool:
    return not names_network_here(config)


def _has_ray_workers(config: ServeConfig) -> bool:
    return any("RayWorker" in line[:LONGEST_LINE] for line in config.log)


def tensor_of_visible_gpus(match: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    """The largest power of two of the GPUs that a message counts, if the model is known to fit them."""
    now, present = layout(config), int(match["has"] or match["own"])
    if now.tp <= present or now.pp * now.dp > 1 or not present:
        return {}
    fewer = 1 << (present.bit_length() - 1)
    fit = estimate_fit(replace(config, setting={**config.setting, "tensor_parallel_size": fewer}))
    return {"tensor_parallel_size": fewer} if fit is not None and fit.fits else {}


def lost_its_peers(config: ServeConfig) -> bool:
    """Whether the log has no error but those of connections to other ranks."""
    errors = (line[:LONGEST_LINE] for line in config.log if _ERROR.search(line[:LONGEST_LINE]))
    return all(_OF_PEERS.search(line) for line in errors)


FUNCTIONS = (
    lost_its_peers,
    tensor_of_visible_gpus,
    gets_no_blocks,
    move_from_root,
    extend_lease,
    spread_by_ray,
    starts_copies_locally,
    starts_copies_in_place,
    asks_for_no_gpu,
    lacks_runtime,
    may_lack_gpus,
    starts_beside_old,
    waits_for_a_node,
    hashes_in_processes,
    is_narrowed_by_ray,
    sees_what_it_has,
    names_network_here,
    names_no_network_here,
)
"""Those that a row may name."""
