"""Pages in the form of the DCGM exporter's template: a family for each metric, a row for each GPU."""

from collections.abc import Mapping

H100 = {
    "DCGM_FI_DEV_SM_CLOCK": "1980",
    "DCGM_FI_DEV_GPU_TEMP": "52",
    "DCGM_FI_DEV_POWER_USAGE": "627.400000",
    "DCGM_FI_DEV_GPU_UTIL": "97",
    "DCGM_FI_DEV_XID_ERRORS": "0",
    "DCGM_FI_DEV_FB_FREE": "7000",
    "DCGM_FI_DEV_FB_USED": "74000",
    "DCGM_FI_DEV_FB_RESERVED": "559",
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": "0.913000",
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": "4",
}
"""The values of a busy GPU, as the exporter 4.5 prints them."""


def labels(index: int = 0, pod: str = "", namespace: str = "chat", node: str = "gpu-1", **more: str) -> str:
    """The labels of a GPU; without a pod, those of one that no pod has."""
    of_pod = {"container": "vllm", "namespace": namespace, "pod": pod} if pod else {}
    every = {
        "gpu": str(index),
        "UUID": f"GPU-{node}-{index}",
        "pci_bus_id": "00000000:1B:00.0",
        "device": f"nvidia{index}",
        "modelName": "NVIDIA H100 80GB HBM3",
        **more,
        "Hostname": node,
        "DCGM_FI_DRIVER_VERSION": "570.86.15",
        **of_pod,
    }
    return ",".join(f'{name}="{value}"' for name, value in every.items())


def page(*gpus: tuple[str, Mapping[str, object]]) -> bytes:
    """A page of GPUs, each as (labels, values by metric)."""
    lines = []
    for metric in dict.fromkeys(name for _, values in gpus for name in values):
        lines += [f"# HELP {metric} What it is (in its unit).", f"# TYPE {metric} gauge"]
        lines += [f"{metric}{{{inside}}} {values[metric]}" for inside, values in gpus if metric in values]
    return "\n".join([*lines, ""]).encode()
