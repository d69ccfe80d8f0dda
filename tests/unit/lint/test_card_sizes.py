"""GPUs of unknown memory: each size that the name leaves is judged, and an option gives the rest."""

import argparse
from pathlib import Path

import pytest

from flettner.agent.domain.errors import ConfigError
from flettner.tools.advisor.fact_options import add_options
from flettner.tools.advisor.lint_report import LintReport, lint_command
from flettner.vllm_facts.shell_command.serve_command import parse_command

CAPACITY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of "
    "79.14 GiB of which 0.50 GiB is free."
)


def lint(options: str, command: str, *more: str) -> LintReport:
    parser = argparse.ArgumentParser()
    add_options(parser)
    parser.set_defaults(only=None, upgrade_to=None, fail_on="warning")
    args = parser.parse_args([*options.split(), *more])
    return lint_command(parse_command(["vllm", "serve", *command.split()]), args)


def test_what_all_sizes_have_in_common_is_the_answer() -> None:
    report = lint("--gpu A100 --gpus 1 --vllm-version 0.32.0", "Qwen/Qwen3-8B --max-model-len 8192")

    assert not report.fixes.findings
    assert "L1" in report.judged.checked
    assert report.judged.is_complete


def test_a_model_that_fits_no_size_is_an_error() -> None:
    report = lint("--gpu A100 --gpus 4", "meta-llama/Llama-3.1-405B-Instruct -tp 4")

    (finding,) = (finding for finding in report.fixes.findings if finding.severity == "error")
    assert finding.rule == "D2"
    assert finding.why.endswith("; the same on A100 80GB")


def test_where_sizes_differ_the_report_asks() -> None:
    report = lint("--gpu A100 --gpus 1", "Qwen/Qwen3-32B --max-model-len 8192 --enforce-eager")

    rules = {finding.rule: finding for finding in report.fixes.findings}
    assert rules["D2"].why.startswith("on A100 40GB: ")
    assert rules["D2"].expects.endswith("--gpu 'A100 40GB' or 'A100 80GB'")
    assert not rules["D2"].to
    assert report.fixes.to == {"enforce_eager": False}  # on both
    assert any("--gpu-memory" in text for text in report.describe_missing())


def test_a_log_tells_the_size(tmp_path_factory: pytest.TempPathFactory) -> None:
    log = tmp_path_factory.mktemp("log") / "start.log"
    log.write_text(CAPACITY)

    report = lint("--gpu A100", "Qwen/Qwen3-8B --max-model-len 8192", "--log", str(log))

    assert report.config.card is not None
    assert report.config.card.name == "A100 80GB"


@pytest.mark.parametrize(
    ("size", "fits"), [("24GiB", True), ("24 GB", True), ("24576 MiB", True), ("8G", False)]
)
def test_the_memory_of_a_gpu_without_a_row_is_an_option(size: str, *, fits: bool) -> None:
    flags = "Qwen/Qwen3-4B --max-model-len 8192 --max-num-batched-tokens 2048 --max-num-seqs 64"
    report = lint("--gpu Frobnicator9000 --gpus 1", flags, "--gpu-memory", size)

    assert bool(report.fixes.findings) is not fits
    assert "L1" in report.judged.checked


def test_an_unknown_gpu_is_a_fact_that_is_missing() -> None:
    report = lint("--gpu Frobnicator9000", "Qwen/Qwen3-4B")

    assert any("Frobnicator9000, which the table does not have" in text for text in report.describe_missing())


@pytest.mark.parametrize("size", ["", "x", "0", "-1GiB", "24Gbit", "99999TiB"])
def test_an_invalid_size_is_refused(size: str) -> None:
    with pytest.raises(ConfigError, match="--gpu-memory"):
        lint("", "Qwen/Qwen3-4B", f"--gpu-memory={size or ' '}")


def test_the_gpus_of_the_host_are_those_that_the_command_may_see() -> None:
    words = ["CUDA_VISIBLE_DEVICES=4,5,6,7", "vllm", "serve", "Qwen/Qwen2.5-72B-Instruct-AWQ", "-tp", "8"]
    parser = argparse.ArgumentParser()
    add_options(parser)
    parser.set_defaults(only=None, upgrade_to=None, fail_on="warning")

    report = lint_command(parse_command(words), parser.parse_args(["--gpu", "L40S", "--gpus", "8"]))

    assert report.fixes.findings[0].rule == "D3"
    assert "8 GPUs of 4" in report.fixes.findings[0].why


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        ("INFO worker.py:1636 -- Connecting to existing Ray cluster at address: 10.4.0.2:6379...", []),
        ("INFO worker.py:1642 -- Started a local Ray instance.", ["D3"]),
    ],
)
def test_gpus_of_other_hosts_count_for_a_server_that_joined_a_ray_cluster(
    line: str, rules: list[str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.write_text(f"{line}\n")

    report = lint(f"--gpu L4 --gpus 1 --vllm-version 0.9.2 --log {log}", "Qwen/Qwen3-8B -tp 2")

    assert [finding.rule for finding in report.fixes.findings if finding.severity == "error"] == rules
