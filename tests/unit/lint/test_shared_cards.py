"""Servers of one file, project or host that run on the same GPU: their shares add up."""

import argparse
from collections.abc import Mapping

import pytest

from flettner.tools.advisor.fact_options import add_options
from flettner.tools.advisor.launch_reports import lint_text
from flettner.vllm_facts.serve_config import Neighbour, SharedCard
from flettner.vllm_facts.sizing.limits import fair_share

COMPOSE = """services:
  llm:
    image: vllm/vllm-openai:v0.20.0
    command: --model Qwen/Qwen3-8B --max-model-len 16384 {llm}
    deploy: {{resources: {{reservations: {{devices: [{{count: 1, capabilities: [gpu]}}]}}}}}}
  embed:
    image: vllm/vllm-openai:v0.20.0
    command: --model BAAI/bge-m3 {embed}
    deploy: {{resources: {{reservations: {{devices: [{{device_ids: ["{device}"], capabilities: [gpu]}}]}}}}}}
"""
UNIT = "[Service]\nExecStart=/usr/bin/vllm serve {model} --max-model-len 8192 {flags}\n"
SERVE = "vllm serve Qwen/Qwen3-8B --max-model-len 8192 --port"


def shares(file: str, text: str, beside: Mapping[str, str] = {}, gpu: str = "L40S") -> dict[str, object]:
    """The proposed share of each server; "" without one, None for the note that it fits nowhere here."""
    parser = argparse.ArgumentParser()
    add_options(parser)
    parser.set_defaults(only=None, upgrade_to=None, fail_on="warning")
    reports = lint_text(file, text, parser.parse_args(["--gpu", gpu]), beside=beside)
    proposed: dict[str, object] = {}
    for number, each in enumerate(reports):
        assert each.report is not None, each.problem
        fixes = each.report.fixes
        noted = any(finding.rule == "M4" and not finding.to for finding in fixes.findings)
        proposed[each.launch.name or str(number)] = fixes.to.get(
            "gpu_memory_utilization", None if noted else ""
        )
    return proposed


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("", "--gpu-memory-utilization 0.15", "0"), {"llm": 0.81, "embed": ""}),
        (("", "", "0"), {"llm": 0.48, "embed": 0.48}),
        (("", "", "1"), {"llm": "", "embed": ""}),  # another GPU
        # what is left over belongs to nobody: no share is raised beside another server
        (
            ("--gpu-memory-utilization 0.6", "--gpu-memory-utilization 0.15", "0"),
            {"llm": "", "embed": ""},
        ),
    ],
)
def test_services_of_a_project_share_a_gpu(
    flags: tuple[str, str, str], expected: Mapping[str, object]
) -> None:
    text = COMPOSE.format(llm=flags[0], embed=flags[1], device=flags[2])

    assert shares("compose.yaml", text) == expected


@pytest.mark.parametrize(
    ("script", "shared"),
    [
        ("if test -e x; then exec vllm serve m -tp 1; else exec vllm serve m -dp 1; fi", False),
        ("vllm serve m --port 1 & vllm serve m --port 2", True),
    ],
)
def test_one_container_runs_the_servers_of_its_script_in_turn(script: str, shared: bool) -> None:
    text = COMPOSE.format(llm="", embed="", device="0").partition("  embed:")[0]
    text = text.replace(
        "command: --model Qwen/Qwen3-8B --max-model-len 16384", f"entrypoint: [bash, -c, '{script}']"
    )

    assert (shares("compose.yaml", text) == {"llm": 0.48}) == shared


@pytest.mark.parametrize(
    "more",
    [
        "runtime: habana",
        "environment: {HABANA_VISIBLE_DEVICES: all}",
        "devices: ['/dev/kfd:/dev/kfd', '/dev/dri']",
        "ports: ['8000:80']",  # of the host, which the other has, too: one is started instead of the other
        "ports: [{published: 8000, target: 80}]",
        "environment: {A: b}",  # without a GPU
    ],
)
def test_services_of_other_devices_or_in_place_of_each_other_do_not_share(more: str) -> None:
    first, second = COMPOSE.format(llm="", embed="", device="0").split("  embed:")
    second = "\n".join(line for line in second.splitlines() if "deploy" not in line)
    text = f"{first}    ports: ['${{PORT:-8000}}:80']\n  embed:{second}\n    {more}\n"
    if "8000" in more:
        text += "    gpus: all\n"

    assert shares("compose.yaml", text) == {"llm": "", "embed": ""}


def test_a_server_that_does_not_fit_its_part_is_sent_to_another_gpu() -> None:
    text = COMPOSE.format(llm="", embed="--gpu-memory-utilization 0.15", device="0")

    assert shares("compose.yaml", text.replace("Qwen3-8B", "Qwen3-32B"))["llm"] is None


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((f"{SERVE} 1 > a.log 2>&1 &", f"{SERVE} 2 &"), {"0": 0.48, "1": 0.48}),
        ((f"{SERVE} 1", f"{SERVE} 2"), {"0": "", "1": ""}),  # one after the other
        ((f"{SERVE} 1 &", "wait", f"{SERVE} 2 &"), {"0": "", "1": ""}),
        ((f"CUDA_VISIBLE_DEVICES=0 {SERVE} 1 &", f"CUDA_VISIBLE_DEVICES=1 {SERVE} 2 &"), {"0": "", "1": ""}),
        ((f"CUDA_VISIBLE_DEVICES=1 {SERVE} 1 &", f"{SERVE} 2 -tp 2"), {"0": 0.48, "1": 0.48}),
        (("if test -e x; then", f"{SERVE} 1 &", "else", f"{SERVE} 2 &", "fi"), {"0": "", "1": ""}),
        (
            (
                "docker run -d --gpus device=1 vllm/vllm-openai:v0.20.0 --model Qwen/Qwen3-8B",
                f"CUDA_VISIBLE_DEVICES=1 {SERVE} 2",
            ),
            {"0": 0.48, "1": 0.48},
        ),
    ],
)
def test_servers_in_the_background_of_a_script_share_a_gpu(
    lines: tuple[str, ...], expected: Mapping[str, object]
) -> None:
    found = shares("start.sh", "#!/bin/sh\n" + "\n".join(lines) + "\n", gpu="A100 80GB")

    assert found == expected


def test_units_of_one_host_share_a_gpu() -> None:
    llm, small = (UNIT.format(model=f"Qwen/Qwen3-{size}", flags="") for size in ("8B", "4B"))

    assert shares("/etc/a.service", llm, {"/etc/b.service": small}) == {"ExecStart": 0.48}
    assert shares("/etc/a.service", llm) == {"ExecStart": ""}


def test_a_small_share_stays_and_the_others_divide_the_rest() -> None:
    others = (Neighbour(name="a", share=0.9), Neighbour(name="b", share=0.1))

    assert fair_share(SharedCard(own=0.9, others=others)) == 0.42
    assert fair_share(SharedCard(own=0.1, others=(others[0], others[0]))) == 0.1


INTEL = """services:
  a:
    image: intel/llm-scaler-vllm
    entrypoint: bash -lc "vllm serve Qwen/Qwen3-8B --max-model-len 8192 --port 1"
    devices: ["/dev/dri:/dev/dri"]
    environment: {{ZE_AFFINITY_MASK: "0"}}
  b:
    image: intel/llm-scaler-vllm
    entrypoint: bash -lc "vllm serve Qwen/Qwen3-8B --max-model-len 8192 --port 2"
    devices: ["/dev/dri:/dev/dri"]
    environment: {{ZE_AFFINITY_MASK: "{mask}"}}
"""


@pytest.mark.parametrize(("mask", "shared"), [("0", True), ("1", False)])
def test_intel_gpus_are_told_by_their_mask(mask: str, shared: bool) -> None:
    found = shares("compose.yaml", INTEL.format(mask=mask))
    assert (found != {"a": "", "b": ""}) == shared
