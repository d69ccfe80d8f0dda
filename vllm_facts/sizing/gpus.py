"""The GPUs that vLLM is run on: compute capability, memory, speed, and the link within a host."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from flettner.vllm_facts.catalogue.facts import release_of
from flettner.vllm_facts.fact_tables import FOLDER, read_tables
from flettner.vllm_facts.serve_config import GpuLink, GpuModel

_LINKS: dict[str, GpuLink] = {
    "sxm": "nvlink",
    "hgx": "nvlink",
    "nvlink": "nvlink",
    "pcie": "pcie",
    "pci": "pcie",
}
"""Words of a name that determine the link of any GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """One kind of GPU. `pattern`: of the name's words. `gib`: by the GB in the name; "" when it has none."""

    pattern: str
    capability: str = ""  # of CUDA; empty: it has none, or it is not known
    gib: Mapping[str, float] = field(default_factory=dict)
    link: GpuLink | None = None  # if no word of the name states it; None: both kinds exist


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpeed:
    """Peak numbers: kernels reach 70 to 95 % of the bandwidth and 65 to 110 % of the throughput."""

    gb_per_s: float
    tflops: float  # 16-bit input, 32-bit sum, without sparsity


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bandwidth:
    gb_per_s: float


_FILE = FOLDER / "sizing/gpus.toml"


@cache
def _read_kinds() -> list[tuple[re.Pattern[str], str, _Kind]]:
    kinds = read_tables(_FILE, _Kind, "kind")
    return [(re.compile(rf"\b({kind.pattern})\b"), name, kind) for name, kind in kinds.items()]


@cache
def _read_speeds(section: str) -> Mapping[str, GpuSpeed]:
    return read_tables(_FILE, GpuSpeed, section)


_PART = re.compile(r"\b(mig|laptop|mobile|max q|vgpu|grid)\b|\b\dg \d+gb\b")
"""A slice or a smaller sibling: of the same architecture, with another memory."""


NO_GPU = "cpu"  # in place of a name: the server runs on CPUs


def find_gpu(name: str) -> GpuModel | None:
    """The card of a name as `nvidia-smi`, a cloud or a person writes it; None for an unknown name.

    "NVIDIA H100 80GB HBM3", "Tesla T4", "a100-80gb" and "rtx5070" are all understood. What the name leaves
    open (an A100 has NVLink or not) stays None; `sizes` lists the GPUs that it may be (40 or 80 GB).
    """
    words = _words(name)
    kinds = [
        (match.end() - match.start(), own_name, kind, words[: match.start()] + words[match.end() :])
        for pattern, own_name, kind in _read_kinds()
        if (match := pattern.search(words))
    ]
    if not kinds:
        return None
    # "rtx 4070 ti super" is also an "rtx 4070": the longest says most
    _, own_name, kind, rest = max(kinds, key=lambda hit: hit[0])
    capability = release_of(kind.capability)
    if _PART.search(rest):
        return GpuModel(name=own_name, capability=capability)
    size = re.search(r"\b(\d{1,3}) ?gi?b\b", words)
    stated = size[1] if size else ""
    gib = kind.gib.get(stated, kind.gib.get(""))
    card = GpuModel(
        name=f"{own_name} {stated}GB" if stated and stated in kind.gib else own_name,
        capability=capability,
        memory_gib=gib,
        link=_link(words, own_name, kind),
    )
    sizes = [] if stated or gib is not None else list(kind.gib.items())
    return replace(
        card,
        sizes=tuple(replace(card, name=f"{own_name} {size}GB", memory_gib=each) for size, each in sizes),
    )


def _words(name: str) -> str:
    """Lower case, one blank between words; "rtx4090" and "sxm4" are two words, "8x" is none."""
    plain = re.sub(r"[^a-z0-9]+", " ", name.lower())
    plain = re.sub(r"\b\d{1,2}x(?=[a-z0-9])|\b\d{1,2} ?x ", " ", plain)  # "8xH100", "8 x H100"
    plain = re.sub(r"\b(rtx|gtx|sxm)(?=\d)", r"\1 ", plain)
    plain = re.sub(r"\b(rx)(?=\d)", r"\1 ", plain)
    plain = re.sub(r"(?<=\d)(ti|super|xtx?)\b|(?<=\d0)(d)\b", r" \1\2", plain)
    return f" {plain.strip()} "


def _link(words: str, name: str, kind: _Kind) -> GpuLink | None:
    for word in words.split():
        if word in _LINKS:
            return _LINKS[word]
    if name == "H100" and " hbm3 " in words:  # the name of the SXM card; the other says PCIe
        return "nvlink"
    return kind.link


def find_speed(card: GpuModel) -> GpuSpeed | None:
    """The speed of a GPU; None if the table lacks it."""
    sections = ("pcie_speed", "speed") if card.link == "pcie" else ("speed",)
    tables = [_read_speeds(section) for section in sections]
    return next((table[name] for name in _names(card) for table in tables if name in table), None)


def _names(card: GpuModel) -> tuple[str, ...]:
    """Return the card's names: with its memory, and without."""
    return card.name, card.name.rpartition(" ")[0] if card.name.endswith("GB") else ""


def find_bandwidth(card: GpuModel) -> float | None:
    """Of the GPU's memory, in GB/s; None if no table has it."""
    if speed := find_speed(card):
        return speed.gb_per_s
    others = read_tables(_FILE, _Bandwidth, "bandwidth")
    return next((others[name].gb_per_s for name in _names(card) if name in others), None)


def gpus_with_speed() -> list[str]:
    return sorted(_read_speeds("speed"))
