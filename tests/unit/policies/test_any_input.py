"""Ten thousand random command lines and metrics pages: no crash, no harmful change, no lost word."""

from pathlib import Path
from random import Random

import pytest

from flettner.agent.domain.model import Bound
from flettner.agent.domain.ports import Context
from flettner.lint.fixes import find_fixes
from flettner.lint.rules import all_lints
from flettner.policies.conformance.readings import PROMISE
from flettner.policies.conformance.safety_checks import takes
from flettner.vllm_facts import flag_table
from flettner.vllm_facts.errors import FlagError, MetricsPageError
from flettner.vllm_facts.flag_parser import VALUED, edit_flags, parse_setting
from flettner.vllm_facts.knobs import KNOBS
from flettner.vllm_facts.metrics.totals import totals
from flettner.vllm_facts.models.lookup import find_model
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.gpus import find_gpu
from tests.support.sampling import examples
from tests.unit.policies.live import advise, reading_of

EACH = examples(2_500)
PARTS = range(4)  # which keep each test short
PAGE = (Path(__file__).parents[2] / "support" / "scrapes" / "vllm-0.32.txt").read_text()
MODELS = (
    *("Qwen/Qwen2.5-1.5B-Instruct", "meta-llama/Llama-3.1-70B-Instruct", "deepseek-ai/DeepSeek-R1"),
    *("mistralai/Mixtral-8x7B-Instruct-v0.1", "org/unknown", "state-spaces/mamba-130m"),
)
CARDS = ("T4", "A100-80GB", "H100", "H200", "RTX 5070", "L4", "")
VERSIONS = ("0.11.0", "0.18.0", "0.28.0", "0.32.0", "0.33.0", "", "nightly")
NAMES = tuple(
    sorted({*KNOBS, *flag_table.SWITCHES, *flag_table.SEVERAL, *flag_table.SIZES, "swap_space", "x"})
)
WORDS = (
    "1",
    "0",
    "8k",
    "8K",
    "0.92",
    "-1",
    "auto",
    "bfloat16",
    "fp8",
    "true",
    '{"a": 1}',
    "",
    "a b",
    "é",
    "1e400",
)
ODD = ("NaN", "+Inf", "-1", "1e308", "", "abc", "0", "1.0", "0.999", "37")


def command_line(random: Random) -> list[str]:
    argv = ["vllm", "serve", random.choice(MODELS)]
    for _ in range(random.randrange(9)):
        name = random.choice(NAMES)
        dashed = name if random.random() < 0.2 else name.replace("_", "-")
        flag = f"--{'no-' * (random.random() < 0.1)}{dashed}"
        value = str(random.choice((random.choice(WORDS), random.randrange(1 << random.randrange(1, 20)))))
        if name in flag_table.SWITCHES or name.startswith(("enable_", "disable_")) or name == "enforce_eager":
            argv.append(flag)
        elif random.random() < 0.4:
            argv.append(f"{flag}={value}")
        else:
            argv += [flag, value]
    return argv


def a_case(random: Random, argv: list[str]) -> ServeConfig:
    setting = parse_setting(argv)
    return ServeConfig(
        setting=setting,
        card=find_gpu(random.choice(CARDS)),
        gpus=random.choice((None, 1, 2, 8)),
        model=find_model(str(setting.get("model", ""))),
        version=random.choice(VERSIONS),
        profile=random.choice(("", "chat", "batch", "rag")),
    )


@pytest.mark.parametrize("part", PARTS)
def test_any_command_line_round_trips(part: int) -> None:
    random, read = Random(f"print {part}"), 0  # noqa: S311 - the same every time
    for _ in range(EACH):
        argv = command_line(random)
        try:
            setting = parse_setting(argv)
        except FlagError:
            continue
        read += 1
        assert edit_flags(argv, {}) == argv
        assert edit_flags(argv, setting) == argv
        try:
            printed = edit_flags(["vllm", "serve", str(setting["model"])], setting)
        except FlagError:
            continue  # a value that no flag can express, like an empty list
        written = {  # a switch with a value is written as vLLM takes it
            knob: value
            for knob, value in setting.items()
            if value is not False and not knob.startswith(f"{VALUED}.")
        }
        assert {k: v for k, v in parse_setting(printed).items() if v is not False} == written, argv
    assert read > EACH / 2


@pytest.mark.parametrize("part", PARTS)
def test_any_command_line_is_linted_within_the_bounds(part: int) -> None:
    random, with_findings = Random(f"lint {part}"), 0  # noqa: S311 - as above
    lints = all_lints()
    for _ in range(EACH):
        argv = command_line(random)
        try:
            case = a_case(random, argv)
        except FlagError:
            continue
        fixes = find_fixes(case, lints)
        with_findings += bool(fixes.findings)
        for finding in fixes.findings:
            for knob, value in finding.to.items():
                assert takes(knob, value), (argv, finding)
                assert value is None or "." in knob or knob in KNOBS, (argv, finding)
        better = parse_setting(edit_flags(argv, fixes.to))
        for knob, value in fixes.to.items():
            assert better.get(knob) == value or not value or "." in knob, (argv, knob, value)
    assert with_findings > EACH / 4


@pytest.mark.parametrize("part", PARTS)
def test_any_metrics_page_is_parsed_or_refused_without_a_harmful_proposal(part: int) -> None:
    random, read = Random(f"page {part}"), 0  # noqa: S311 - as above
    context = Context(
        setting={"max_num_seqs": 4}, slo=PROMISE, bounds={"gpu_memory_utilization": Bound(max=0.92)}
    )
    lines = [line for line in PAGE.splitlines() if not line.startswith("#") and "vllm:" in line]
    lines = [line for line in lines if "_created" not in line]
    load = [
        n for n, line in enumerate(lines) if line.startswith(("vllm:num_requests", "vllm:kv_cache_usage"))
    ]
    for _ in range(EACH):
        page = lines.copy()
        for place in (*load, *(random.randrange(len(page)) for _ in range(random.randrange(12)))):
            value = random.choice((random.choice(ODD), str(random.random()), str(random.randrange(400))))
            page[place] = f"{page[place].rpartition(' ')[0]} {value}"
        if random.random() < 0.1:
            page = page[: random.randrange(len(page))]
        body = ("# TYPE vllm:a gauge\n" + "\n".join(page) + "\n").encode()
        try:
            totals(body)
            reading = reading_of([body, body, body], every_s=5.0, slo=PROMISE, version="0.32.0")
        except MetricsPageError:
            continue
        read += 1
        advised = advise(reading, context)
        assert not advised.harm, advised.describe()
    assert read > EACH / 10
