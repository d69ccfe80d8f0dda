"""The commands of vllm-project/recipes (commit 8959cf6, of 2026-08-21), as facts: model, GPU, GPUs, flags.

Their authors run them, so a finding above `info` is a false alarm unless RIGHT gives the reason.
"""

import shlex
from pathlib import Path

from flettner.lint.fixes import find_fixes
from flettner.lint.rules import all_lints
from flettner.vllm_facts.models.estimate import estimate_model
from flettner.vllm_facts.models.lookup import find_model
from flettner.vllm_facts.serve_config import Finding, ServeConfig
from flettner.vllm_facts.shell_command.serve_command import parse_command
from flettner.vllm_facts.sizing.gpus import find_gpu
from tests.support.sampling import sampled

RECIPES = Path(__file__).with_name("recipes.tsv")
LINTS = all_lints()

RIGHT = {
    ("V1", "--disable-log-requests"): "removed in 0.17",
    ("V1", "--swap-space"): "removed in 0.18",
    ("V1", "--guided-decoding-backend"): "removed in 0.12",
    ("V1", "--tool-call-parser-plugin"): "misspelled: --tool-parser-plugin",
    ("V1", "--attention-config has no key use_fp4_indexer_cache"): "not in 0.32",
    ("V1", "--compilation-config has no key use_inductor"): "not in 0.32",
    ("V1", "--speculative-config is not JSON"): "quoted twice, or with a placeholder",
    ("G1", "--enforce-eager"): "it starts faster and answers slower",
    ("B1", "max_num_seqs 1 "): "one request at a time, as an example",
    ("V1", "--generation-config is not followed by a value"): "its value is missing",
    ("L1", "the model's own length"): "the full context does not fit; the recipe gives no length",
    ("D2", "1 x B200 with one request"): "the full context does not fit; the recipe gives no length",
    ("D2", "ERNIE-4.5-VL-424B-A47B-PT does not fit 8 x H100"): "847 GB in 16 bit",
    ("D2", "Kimi-K2-Instruct does not fit 1 x H800"): "16 GPUs hold it at more than 0.85",
    ("D3", "tensor 2 x pipeline 1 x data 8"): "16 GPUs on a host of 8",
    (
        "D3",
        "64 of 512 units of the shared expert",
    ): "as vllm-project/vllm#52997; recipes are put together by a "
    "script, which chose such a split for another model, too (vllm-project/vllm#42384)",
    ("B2", "max_num_seqs 1024 (the default)"): "as vllm-project/recipes#551 found for another such model",
    ("B3", "max_num_batched_tokens 256"): "an early port of the model to this GPU",
}
"""Findings that are right, by rule and the beginning of a part of the sentence."""


def read_recipes() -> list[tuple[str, ServeConfig]]:
    """The source of each recipe and its deployment, with vLLM 0.32."""
    rows = [line.split("\t") for line in RECIPES.read_text().splitlines()[1:]]
    return [(source, build(gpu, gpus, command)) for source, gpu, gpus, command in rows]


def build(gpu: str, gpus: str, command: str) -> ServeConfig:
    parsed = parse_command(shlex.split(command))
    name = str(parsed.setting.get("model", ""))
    model = find_model(name)
    return ServeConfig(
        setting=parsed.setting,
        env=parsed.server_env,
        card=find_gpu(gpu) if gpu else None,
        gpus=int(gpus) if gpus else None,
        model=model,
        estimate=None if model else estimate_model(name),
        version="0.32.0",
    )


def is_right(finding: Finding) -> bool:
    return any(finding.rule == rule and part in finding.why for rule, part in RIGHT)


def test_no_recipe_gets_a_false_alarm() -> None:
    alarms = [
        f"{source}: {finding.rule} {finding.why} | {dict(deployment.setting)}"
        for source, deployment in sampled(read_recipes(), 3)
        for finding in find_fixes(deployment, LINTS).findings
        if finding.severity != "info" and not is_right(finding)
    ]

    assert not alarms, "\n".join(alarms)


def test_recipes_are_facts_with_known_gpus() -> None:
    rows = [line.split("\t") for line in RECIPES.read_text().splitlines()[1:]]

    assert len(rows) > 500
    assert all(find_gpu(gpu) for _, gpu, _, _ in rows if gpu)
