"""Parses the page of NVIDIA's DCGM exporter, versions 2 to 4: GPUs, MIG instances and their pods.

Names and units: `etc/default-counters.csv` and `etc/1.x-compatibility-metrics.csv` of NVIDIA/dcgm-exporter on
GitHub. The exporter leaves out what a GPU does not report; some versions print a blank value of DCGM instead.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from flettner.agent.domain.reading import Gpu
from flettner.vllm_facts.errors import MetricsPageError
from flettner.vllm_facts.metrics.exposition import decode_page, parse_labels, pick_samples

UTILIZATION = "DCGM_FI_DEV_GPU_UTIL"  # percent; 0 or absent for a MIG instance (dcgm-exporter issue 216)
ENGINE_ACTIVE = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"  # 0..1, also of a MIG instance; data-centre GPUs since Volta
MEMORY_USED = "DCGM_FI_DEV_FB_USED"  # MiB, without the reserve
MEMORY_FREE = "DCGM_FI_DEV_FB_FREE"  # MiB
MEMORY_RESERVED = "DCGM_FI_DEV_FB_RESERVED"  # MiB; a default counter since 4.4.0, absent for a MIG instance
MEMORY_TOTAL = "DCGM_FI_DEV_FB_TOTAL"  # MiB; not a default counter
TEMPERATURE = "DCGM_FI_DEV_GPU_TEMP"  # °C
POWER = "DCGM_FI_DEV_POWER_USAGE"  # W
CLOCK_EVENTS = "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"  # bit mask, NVML's bits; not a default counter

METRICS: Mapping[str, str] = {
    name: name
    for name in (
        UTILIZATION,
        ENGINE_ACTIVE,
        MEMORY_USED,
        MEMORY_FREE,
        MEMORY_RESERVED,
        MEMORY_TOTAL,
        TEMPERATURE,
        POWER,
        CLOCK_EVENTS,
    )
} | {
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": CLOCK_EVENTS,  # the older name
    "dcgm_gpu_utilization": UTILIZATION,
    "dcgm_fi_prof_gr_engine_active": ENGINE_ACTIVE,
    "dcgm_fb_used": MEMORY_USED,
    "dcgm_fb_free": MEMORY_FREE,
    "dcgm_gpu_temp": TEMPERATURE,
    "dcgm_power_usage": POWER,
}
"""The metrics that are read, by the name on the page: DCGM's own, or that of the exporter 1.x."""

_AT_MOST = {UTILIZATION: 100.0, ENGINE_ACTIVE: 1.0}
_LARGEST = 1e9  # MiB, W, °C, mask: the smallest blank value of DCGM is 2147483632 (dcgm_structs.h)
_MOST_GPUS = 256  # and MIG instances of one node
_UUID = ("UUID", "uuid")
_POD = ("exported_pod", "pod", "pod_name")  # Prometheus renames `pod`, and puts the exporter's own there
_NAMESPACE = ("exported_namespace", "namespace", "pod_namespace")


@dataclass(frozen=True, slots=True)
class AssignedGpu:
    """A GPU or MIG instance and the pods that have it, as (namespace, name): several with time slicing."""

    gpu: Gpu
    pods: frozenset[tuple[str, str]]


@dataclass(slots=True)
class _Rows:
    """The rows of one GPU or MIG instance."""

    labels: Mapping[str, str]
    values: dict[str, float | None] = field(default_factory=dict)
    pods: set[tuple[str, str]] = field(default_factory=set)


def parse_page(body: bytes) -> tuple[AssignedGpu, ...]:
    """Parse a page; an impossible number becomes None. Raises MetricsPageError if it is cut or has no GPU."""
    if not body.strip():
        raise MetricsPageError("the page is empty: the exporter reads no GPU, its log says why")
    picked = pick_samples(decode_page(body), METRICS)
    if not picked:
        raise MetricsPageError(
            f"no metric of NVIDIA's DCGM exporter, such as {MEMORY_USED}: check `url`, and the exporter's"
            " list of counters"
        )
    gpus: dict[tuple[str, str], _Rows] = {}
    for name, rows in picked.items():
        for inside, value in rows:
            _add(gpus, METRICS[name], parse_labels(inside), value)
    sliced = {uuid for uuid, instance in gpus if instance}
    return tuple(
        AssignedGpu(_to_gpu(uuid, instance, rows), frozenset(rows.pods))
        for (uuid, instance), rows in gpus.items()
        if instance or uuid not in sliced  # else it would count twice
    )


def _add(gpus: dict[tuple[str, str], _Rows], metric: str, labels: Mapping[str, str], value: float) -> None:
    uuid = _first(labels, _UUID)
    if not uuid:
        raise MetricsPageError(f"{metric} has no label `UUID`: not a page of NVIDIA's DCGM exporter")
    rows = gpus.setdefault((uuid, labels.get("GPU_I_ID", "")), _Rows(labels))
    if len(gpus) > _MOST_GPUS:
        raise MetricsPageError(f"more than {_MOST_GPUS} GPUs: not the page of one node's exporter")
    rows.values[metric] = value if 0 <= value <= _AT_MOST.get(metric, _LARGEST) else None
    if pod := _first(labels, _POD):
        rows.pods.add((_first(labels, _NAMESPACE), pod))


def _first(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")


def _to_gpu(uuid: str, instance: str, rows: _Rows) -> Gpu:
    utilization, active = rows.values.get(UTILIZATION), rows.values.get(ENGINE_ACTIVE)
    used, free, total = (rows.values.get(name) for name in (MEMORY_USED, MEMORY_FREE, MEMORY_TOTAL))
    reserved = rows.values.get(MEMORY_RESERVED) or 0.0
    if total is None and used is not None and free is not None:
        total = used + reserved + free
    events = rows.values.get(CLOCK_EVENTS)
    return Gpu(
        index=_index(rows.labels),
        uuid=f"{uuid}/{instance}" if instance else uuid,
        name=rows.labels.get("modelName", ""),
        utilization=active if instance or utilization is None else utilization / 100,
        memory_used_mib=None if used is None else used + reserved,
        memory_total_mib=total,
        power_w=rows.values.get(POWER),
        temperature_c=rows.values.get(TEMPERATURE),
        throttle_reasons=None if events is None or not events.is_integer() else int(events),
        mig=bool(instance),
    )


def _index(labels: Mapping[str, str]) -> int:
    cell = labels.get("gpu", "")
    readable = cell.isascii() and cell.isdecimal() and len(cell) <= len(str(_MOST_GPUS))
    if not readable or int(cell) >= _MOST_GPUS:
        raise MetricsPageError(f"the label `gpu` is {cell[:80]!r}, not a GPU's index below {_MOST_GPUS}")
    return int(cell)
