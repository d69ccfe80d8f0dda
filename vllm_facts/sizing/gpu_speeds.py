"""Memory bandwidth and dense 16-bit tensor throughput of GPUs, from their vendors' data sheets."""

from dataclasses import dataclass

from flettner.vllm_facts.serve_config import GpuModel


@dataclass(frozen=True, slots=True)
class GpuSpeed:
    """Peak numbers: kernels reach 70 to 95 % of the bandwidth and 65 to 110 % of the throughput."""

    gb_per_s: float
    tflops: float  # 16-bit input, 32-bit sum, without sparsity


_SPEEDS = {
    "V100": GpuSpeed(900, 112),
    "T4": GpuSpeed(320, 65),
    "A100": GpuSpeed(1555, 312),
    "A100 40GB": GpuSpeed(1555, 312),
    "A100 80GB": GpuSpeed(2039, 312),
    "A30": GpuSpeed(933, 165),
    "A10G": GpuSpeed(600, 70),
    "A10": GpuSpeed(600, 125),
    "A40": GpuSpeed(696, 150),
    "RTX A6000": GpuSpeed(768, 155),
    "RTX 3090": GpuSpeed(936, 71),
    "L4": GpuSpeed(300, 121),
    "L40": GpuSpeed(864, 181),
    "L40S": GpuSpeed(864, 362),
    "RTX 6000 Ada": GpuSpeed(960, 364),
    "RTX 4090": GpuSpeed(1008, 165),
    "GH200": GpuSpeed(4000, 990),
    "H100": GpuSpeed(3350, 990),
    "H100 NVL": GpuSpeed(3938, 835),
    "H800": GpuSpeed(3350, 990),
    "H20": GpuSpeed(4000, 148),
    "H200": GpuSpeed(4800, 990),
    "B200": GpuSpeed(8000, 2250),
    "GB200": GpuSpeed(8000, 2500),
    "RTX 5090": GpuSpeed(1792, 210),
    "RTX PRO 6000 Blackwell": GpuSpeed(1792, 504),
}
_PCIE = {"H100": GpuSpeed(2039, 756), "A100 80GB": GpuSpeed(1935, 312)}


def find_speed(card: GpuModel) -> GpuSpeed | None:
    """None for a GPU that the table lacks."""
    names = (card.name, card.name.rpartition(" ")[0] if card.name.endswith("GB") else "")
    tables = (_PCIE, _SPEEDS) if card.link == "pcie" else (_SPEEDS,)
    return next((table[name] for name in names for table in tables if name in table), None)


GPUS_WITH_SPEED = tuple(sorted(_SPEEDS))
