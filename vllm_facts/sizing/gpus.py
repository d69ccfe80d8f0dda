"""The GPUs that vLLM is run on: compute capability, memory, speed, and what links those of one host.

Memory is what the driver reports (`nvidia-smi`, memory.total), in GiB: less than the number in the name.
Sources: NVIDIA's table of CUDA GPUs (capability); what `nvidia-smi` says of each card (memory); the vendors'
data sheets (memory bandwidth, dense 16-bit tensor throughput).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from flettner.vllm_facts.serve_config import GpuLink, GpuModel

_LINKS: dict[str, GpuLink] = {
    "sxm": "nvlink",
    "hgx": "nvlink",
    "nvlink": "nvlink",
    "pcie": "pcie",
    "pci": "pcie",
}
"""Words of a name that determine the link of any GPU."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """One row. `pattern`: of the name's words. `gib`: by the GB in the name; "" when it has none."""

    pattern: str
    name: str
    capability: tuple[int, int] | None
    gib: Mapping[str, float | None] = field(default_factory=dict)
    link: GpuLink | None = None  # if no word of the name states it; None: both kinds exist


_KINDS = (
    # Pascal, which vLLM does not support; Volta; Turing
    _Kind("p100", "P100", (6, 0), {"12": 12.0, "16": 16.0}),
    _Kind("p40", "P40", (6, 1), {}, "pcie"),
    _Kind("v100s?", "V100", (7, 0), {"16": 16.0, "32": 32.0}),
    _Kind("titan v", "TITAN V", (7, 0), {"": 12.0}, "pcie"),
    _Kind("t4g?", "T4", (7, 5), {"": 15.0}, "pcie"),
    _Kind("titan rtx", "TITAN RTX", (7, 5), {"": 24.0}, "pcie"),
    _Kind("quadro rtx 5000", "Quadro RTX 5000", (7, 5), {"": 16.0}, "pcie"),
    _Kind("quadro rtx 6000", "Quadro RTX 6000", (7, 5), {"": 24.0}, "pcie"),
    _Kind("(quadro )?rtx 8000", "Quadro RTX 8000", (7, 5), {"": 48.0}, "pcie"),
    _Kind("(rtx )?2080 ti", "RTX 2080 Ti", (7, 5), {"": 11.0}, "pcie"),
    # Ampere
    _Kind("a100x?", "A100", (8, 0), {"40": 40.0, "80": 80.0}),
    _Kind("a800", "A800", (8, 0), {"40": 40.0, "80": 80.0}),
    _Kind("a30", "A30", (8, 0), {"": 24.0}, "pcie"),
    _Kind("a10g", "A10G", (8, 6), {"": 22.49}, "pcie"),
    _Kind("a10", "A10", (8, 6), {"": 22.49}, "pcie"),
    _Kind("a40", "A40", (8, 6), {"": 44.99}, "pcie"),
    _Kind("(rtx )?a4000", "RTX A4000", (8, 6), {"": 15.99}, "pcie"),
    _Kind("(rtx )?a5000", "RTX A5000", (8, 6), {"": 23.99}, "pcie"),
    _Kind("(rtx )?a6000", "RTX A6000", (8, 6), {"": 47.99}, "pcie"),
    _Kind("(rtx )?3060", "RTX 3060", (8, 6), {"": 12.0, "8": 8.0}, "pcie"),
    _Kind("(rtx )?3080", "RTX 3080", (8, 6), {"10": 10.0, "12": 12.0}, "pcie"),
    _Kind("(rtx )?3090( ti)?", "RTX 3090", (8, 6), {"": 24.0}, "pcie"),
    _Kind("(agx )?orin", "Jetson Orin", (8, 7)),
    # Ada Lovelace
    _Kind("l4", "L4", (8, 9), {"": 22.49}, "pcie"),
    _Kind("l20", "L20", (8, 9), {"": 44.99}, "pcie"),
    _Kind("l40s", "L40S", (8, 9), {"": 44.99}, "pcie"),
    _Kind("l40", "L40", (8, 9), {"": 44.99}, "pcie"),
    _Kind("rtx 6000 ada", "RTX 6000 Ada", (8, 9), {"": 47.99}, "pcie"),
    _Kind("(rtx )?4060 ti", "RTX 4060 Ti", (8, 9), {"8": 8.0, "16": 15.99}, "pcie"),
    _Kind("(rtx )?4060", "RTX 4060", (8, 9), {"": 8.0}, "pcie"),
    _Kind("(rtx )?4070 ti super", "RTX 4070 Ti SUPER", (8, 9), {"": 15.99}, "pcie"),
    _Kind("(rtx )?4070( ti| super)?", "RTX 4070", (8, 9), {"": 11.99}, "pcie"),
    _Kind("(rtx )?4080( super)?", "RTX 4080", (8, 9), {"": 15.99}, "pcie"),
    _Kind("(rtx )?4090 d", "RTX 4090 D", (8, 9), {"": 23.99, "48": 47.99}, "pcie"),
    _Kind("(rtx )?4090", "RTX 4090", (8, 9), {"": 23.99, "48": 47.99}, "pcie"),
    # Hopper
    _Kind("gh200", "GH200", (9, 0), {"": 95.58, "96": 95.58, "144": 140.4}),
    _Kind("h100 nvl", "H100 NVL", (9, 0), {"": 93.58}),
    _Kind("h100", "H100", (9, 0), {"": 79.65, "64": 63.62}),
    _Kind("h800", "H800", (9, 0), {"": 79.65}),
    _Kind("h20", "H20", (9, 0), {"": 95.58, "141": 140.4}, "nvlink"),
    _Kind("h200", "H200", (9, 0), {"": 140.4}, "nvlink"),  # the PCIe form has bridges: H200 NVL
    # Blackwell
    _Kind("gb200", "GB200", (10, 0), {"": 185.03}, "nvlink"),
    _Kind("b200", "B200", (10, 0), {"": 179.06}, "nvlink"),
    _Kind("gb300", "GB300", (10, 3), {}, "nvlink"),
    _Kind("b300", "B300", (10, 3), {}, "nvlink"),
    _Kind("(agx )?thor", "Jetson Thor", None),
    _Kind("(rtx )?5060 ti", "RTX 5060 Ti", (12, 0), {"8": 7.96, "16": 15.93}, "pcie"),
    _Kind("(rtx )?5070 ti", "RTX 5070 Ti", (12, 0), {"": 15.92}, "pcie"),
    _Kind("(rtx )?5070", "RTX 5070", (12, 0), {"": 11.94}, "pcie"),
    _Kind("(rtx )?5080", "RTX 5080", (12, 0), {"": 15.92}, "pcie"),
    _Kind("(rtx )?5090", "RTX 5090", (12, 0), {"": 31.84}, "pcie"),
    _Kind("rtx pro 6000", "RTX PRO 6000 Blackwell", (12, 0), {"": 95.59}, "pcie"),
    _Kind("gb10|dgx spark", "GB10", (12, 1)),
    # any other of a series: the architecture is known
    _Kind(r"(gtx )?16\d0( ti| super)?", "GTX 16", (7, 5), {}, "pcie"),
    _Kind(r"rtx 20\d0( super)?", "RTX 20", (7, 5), {}, "pcie"),
    _Kind(r"rtx 30\d0( ti)?", "RTX 30", (8, 6), {}, "pcie"),
    _Kind(r"rtx 40\d0( ti| super)?", "RTX 40", (8, 9), {}, "pcie"),
    _Kind(r"rtx \d000 ada", "RTX Ada", (8, 9), {}, "pcie"),
    _Kind(r"rtx 50\d0( ti)?", "RTX 50", (12, 0), {}, "pcie"),
    _Kind(r"rtx pro \d\d00", "RTX PRO Blackwell", (12, 0), {}, "pcie"),
    # AMD: no CUDA capability; linked by Infinity Fabric, which is neither
    _Kind("mi250x?", "MI250X", None, {"": 63.98}),
    _Kind("mi300x", "MI300X", None, {"": 191.98}),
    _Kind("mi325x", "MI325X", None, {"": 255.98}),
    _Kind("mi350x", "MI350X", None, {"": 287.98}),
    _Kind("mi355x", "MI355X", None, {"": 287.98}),
)

_MADE = [(re.compile(rf"\b({kind.pattern})\b"), kind) for kind in _KINDS]

_PART = re.compile(r"\b(mig|laptop|mobile|max q|vgpu|grid)\b|\b\dg \d+gb\b")
"""A slice or a smaller sibling: of the same architecture, with another memory."""


def find_gpu(name: str) -> GpuModel | None:
    """The card of a name as `nvidia-smi`, a cloud or a person writes it; None for one that is not known.

    "NVIDIA H100 80GB HBM3", "Tesla T4", "a100-80gb" and "rtx5070" are all understood. What the name leaves
    open (an A100 has 40 or 80 GB, with NVLink or without) stays None.
    """
    words = _words(name)
    found = [(match.span(), kind) for pattern, kind in _MADE if (match := pattern.search(words))]
    if not found:
        return None
    # "rtx 4070 ti super" is also an "rtx 4070": the longest says most
    _, kind = max(found, key=lambda hit: hit[0][1] - hit[0][0])
    if _PART.search(words):
        return GpuModel(name=kind.name, capability=kind.capability)
    size = re.search(r"\b(\d{1,3}) ?gi?b\b", words)
    stated = size[1] if size else ""
    gib = kind.gib.get(stated, kind.gib.get(""))
    return GpuModel(
        name=f"{kind.name} {stated}GB" if stated and stated in kind.gib else kind.name,
        capability=kind.capability,
        memory_gib=gib,
        link=_link(words, kind),
    )


def _words(name: str) -> str:
    """Lower case, one blank between words; "rtx4090" and "sxm4" are two words, "8x" is none."""
    plain = re.sub(r"[^a-z0-9]+", " ", name.lower())
    plain = re.sub(r"\b\d{1,2}x(?=[a-z0-9])|\b\d{1,2} ?x ", " ", plain)  # "8xH100", "8 x H100"
    plain = re.sub(r"\b(rtx|gtx|sxm)(?=\d)", r"\1 ", plain)
    plain = re.sub(r"(?<=\d)(ti|super)\b", r" \1", plain)
    return f" {plain.strip()} "


def _link(words: str, kind: _Kind) -> GpuLink | None:
    for word in words.split():
        if word in _LINKS:
            return _LINKS[word]
    if kind.name == "H100" and " hbm3 " in words:  # the name of the SXM card; the other says PCIe
        return "nvlink"
    return kind.link


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
