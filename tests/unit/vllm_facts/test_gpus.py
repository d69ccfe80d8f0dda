"""GPU names as written by drivers, cloud providers and operators."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flettner.vllm_facts.sizing.gpus import find_bandwidth, find_gpu


@pytest.mark.parametrize(
    ("name", "capability", "gib", "link"),
    [
        ("Tesla T4", (7, 5), 15.0, "pcie"),
        ("NVIDIA T4", (7, 5), 15.0, "pcie"),
        ("Tesla V100-SXM2-32GB", (7, 0), 32.0, "nvlink"),
        ("Tesla V100-PCIE-16GB", (7, 0), 16.0, "pcie"),
        ("Quadro RTX 6000", (7, 5), 24.0, "pcie"),
        ("NVIDIA RTX 6000 Ada Generation", (8, 9), 47.99, "pcie"),
        ("NVIDIA A10", (8, 6), 22.49, "pcie"),
        ("NVIDIA A10G", (8, 6), 22.49, "pcie"),
        ("NVIDIA A100-SXM4-40GB", (8, 0), 40.0, "nvlink"),
        ("NVIDIA A100 80GB PCIe", (8, 0), 80.0, "pcie"),
        ("a100-80gb", (8, 0), 80.0, None),
        ("A100", (8, 0), None, None),
        ("NVIDIA L4", (8, 9), 22.49, "pcie"),
        ("NVIDIA L40S", (8, 9), 44.99, "pcie"),
        ("NVIDIA GeForce RTX 3090", (8, 6), 24.0, "pcie"),
        ("rtx4090", (8, 9), 23.99, "pcie"),
        ("4090", (8, 9), 23.99, "pcie"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", (8, 9), 15.99, "pcie"),
        ("NVIDIA GeForce RTX 5070", (12, 0), 11.94, "pcie"),
        ("RTX5070Ti", (12, 0), 15.92, "pcie"),
        ("NVIDIA GeForce RTX 5090", (12, 0), 31.84, "pcie"),
        ("NVIDIA H100 80GB HBM3", (9, 0), 79.65, "nvlink"),
        ("NVIDIA H100 PCIe", (9, 0), 79.65, "pcie"),
        ("h100", (9, 0), 79.65, None),
        ("NVIDIA H100 NVL", (9, 0), 93.58, None),
        ("NVIDIA H200", (9, 0), 140.4, "nvlink"),
        ("NVIDIA GH200 480GB", (9, 0), 95.58, None),
        ("NVIDIA B200", (10, 0), 179.06, "nvlink"),
        ("NVIDIA GB200", (10, 0), 185.03, "nvlink"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", (12, 0), 95.59, "pcie"),
        ("AMD Instinct MI300X", None, 191.98, None),
        ("NVIDIA GB10", (12, 1), 119.7, None),
        ("DGX Spark", (12, 1), 119.7, None),
        ("NVIDIA Thor", None, 122.8, None),
        ("NVIDIA B300 SXM6 AC", (10, 3), 268.6, "nvlink"),
        ("NVIDIA GB300", (10, 3), 277.5, "nvlink"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", (12, 0), 95.59, "pcie"),
        ("NVIDIA GeForce RTX 5060 Ti 16GB", (12, 0), 15.93, "pcie"),
        ("AMD Radeon RX 7900 XTX", None, 23.98, "pcie"),
        ("AMD Radeon AI PRO R9700", None, 31.86, "pcie"),
        ("Intel Arc Pro B60 Graphics", None, 23.9, "pcie"),
        ("Intel Gaudi 3", None, 128.0, None),
        ("HL-225B", None, 96.0, None),
        ("8xH100-SXM", (9, 0), 79.65, "nvlink"),
        ("4 x A100 40GB", (8, 0), 40.0, None),
        ("Tesla P40", (6, 1), None, "pcie"),
        ("NVIDIA GeForce GTX 1660 Ti", (7, 5), None, "pcie"),
        ("NVIDIA GeForce RTX 4050", (8, 9), None, "pcie"),
        ("NVIDIA RTX 4000 Ada Generation", (8, 9), None, "pcie"),
        ("Quadro RTX 4000", (7, 5), 8.0, "pcie"),
        ("Quadro RTX 3000", (7, 5), None, "pcie"),
        ("NVIDIA RTX 4000 SFF Ada Generation", (8, 9), None, "pcie"),
        ("RTX A6000 Ada", (8, 9), 47.99, "pcie"),
        ("RTX 6000 Pro Blackwell", (12, 0), 95.59, "pcie"),
        ("NVIDIA H20-3e", (9, 0), 140.4, "nvlink"),
        ("RTX5090D", (12, 0), 31.84, "pcie"),
        ("4090D", (8, 9), 23.99, "pcie"),
        ("RTX2080Ti 22GB", (7, 5), 22.0, "pcie"),
        ("7900XTX", None, 23.98, "pcie"),
        ("NVIDIA GeForce GTX 1080 Ti", (6, 1), None, "pcie"),
        ("MI355", None, 287.98, None),
        ("NVIDIA A2", (8, 6), 15.0, "pcie"),
    ],
)
def test_recognises_a_gpu_by_its_name(
    name: str, capability: tuple[int, int] | None, gib: float | None, link: str | None
) -> None:
    card = find_gpu(name)
    assert card is not None
    assert (card.capability, card.memory_gib, card.link) == (capability, gib, link)


@pytest.mark.parametrize(
    "name",
    [
        *("", "GPU", "NVIDIA", "Quadro T400", "Xeon", "A1000", "H1000", "Radeon", "🐈"),
        *("RTX 4000", "RTX 5000", "RTX 6000"),  # of two architectures, or of three
    ],
)
def test_does_not_guess_an_unknown_gpu(name: str) -> None:
    assert find_gpu(name) is None


@pytest.mark.parametrize(
    "name",
    ["NVIDIA A100-SXM4-80GB MIG 3g.40gb", "NVIDIA GeForce RTX 4090 Laptop GPU", "GRID T4-8Q"],
)
def test_only_the_capability_of_a_mig_slice_or_laptop_gpu_is_known(name: str) -> None:
    card = find_gpu(name)
    assert card is not None
    assert card.capability is not None
    assert card.memory_gib is None
    assert card.link is None


def test_usable_memory_is_below_the_nominal_size() -> None:
    card = find_gpu("NVIDIA GeForce RTX 5070")
    assert card is not None
    assert card.memory_gib is not None
    assert round(card.memory_gib * 1024) in range(12_220, 12_235)  # "12,227 MB" in a log of this card


def test_name_includes_the_memory_size_if_two_exist() -> None:
    names = {
        (card.name if (card := find_gpu(name)) else "") for name in ("A100 40GB", "A100-80GB", "T4", "H100")
    }
    assert names == {"A100 40GB", "A100 80GB", "T4", "H100"}


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("A100", [40.0, 80.0]),
        ("V100-SXM2", [16.0, 32.0]),
        ("RTX 5060 Ti", [7.96, 15.93]),
        ("A100 80GB", []),
        ("L4", []),
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", []),
    ],
)
def test_a_name_that_leaves_the_memory_open_lists_its_sizes(name: str, sizes: list[float]) -> None:
    card = find_gpu(name)
    assert card is not None
    assert [size.memory_gib for size in card.sizes] == sizes


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=40))
def test_handles_any_name(name: str) -> None:
    card = find_gpu(name)
    assert card is None or card.name
    assert find_gpu(f"NVIDIA GeForce RTX 5090 {name}") is not None


@pytest.mark.parametrize(
    ("name", "gb_per_s"),
    [
        ("Tesla T4", 320),
        ("A100 80GB PCIe", 1935),
        ("GB10", 273),
        ("NVIDIA GeForce RTX 2080 Ti 22GB", 616),
        ("NVIDIA RTX A4000", 448),
        ("RTX 5060 Ti 16GB", 448),
        ("AMD Instinct MI300X", 5300),
        ("Radeon PRO W7800 48GB", 864),
        ("Radeon PRO W7800", 576),
        ("Arc Pro B60", 456),
        ("P40", None),
    ],
)
def test_the_bandwidth_of_a_gpus_memory_is_known_beyond_the_cards_with_a_speed(
    name: str, gb_per_s: float | None
) -> None:
    card = find_gpu(name)
    assert card is not None
    assert find_bandwidth(card) == gb_per_s
