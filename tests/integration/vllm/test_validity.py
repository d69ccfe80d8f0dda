"""The checks of a start agree with the installed vLLM: facts, messages, and the real parser."""

import json
import re

import pytest

from flettner.lint.fixes import find_errors, find_fixes
from flettner.lint.rules import all_lints
from flettner.vllm_facts.flag_parser import edit_flags
from flettner.vllm_facts.models.config_json import read_config
from flettner.vllm_facts.serve_config import Model
from flettner.vllm_facts.shell_command.serve_command import edit_command
from flettner.vllm_facts.sizing.dtypes import WITHOUT_FLOAT16
from flettner.vllm_facts.validity.adapters import RANKS
from flettner.vllm_facts.validity.engine import find_problems
from flettner.vllm_facts.validity.quantization import METHODS
from flettner.vllm_facts.validity.split import can_refine
from tests.support.lint_cases import case
from tests.support.random_commands import random_cases
from tests.support.real_vllm import real_vllm
from tests.support.vllm_interpreter import Ask

pytestmark = pytest.mark.timeout(900)

SEED, PRINTED = 20261123, 200
SIXTEEN = {"float16", "bfloat16", "float32"}

DUMP_FACTS = """
from typing import get_args
from vllm.config.lora import MaxLoRARanks
from vllm.config.model import _FLOAT16_NOT_SUPPORTED_MODELS
from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS, get_quantization_config
methods = {}
for name in QUANTIZATION_METHODS:
    config = get_quantization_config(name)
    dtypes = object.__new__(config).get_supported_act_dtypes()
    methods[name] = [config.get_min_capability(), [str(dtype).removeprefix("torch.") for dtype in dtypes]]
print(json.dumps([sorted(_FLOAT16_NOT_SUPPORTED_MODELS), get_args(MaxLoRARanks), methods]))
"""


def test_the_facts_about_dtypes_ranks_and_quantizations_are_those_of_vllm(ask: Ask) -> None:
    without_float16, ranks, methods = ask(DUMP_FACTS, [])

    assert set(without_float16) == set(WITHOUT_FLOAT16.values())
    assert tuple(ranks) == RANKS
    assert {name: (least // 10, least % 10) for name, (least, _) in methods.items()} == {
        name: method.least for name, method in METHODS.items()
    }
    assert {name: set(dtypes) & SIXTEEN for name, (_, dtypes) in methods.items()} == {
        name: frozenset(method.dtypes) for name, method in METHODS.items()
    }


START = """
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import validate_parsed_serve_args
from vllm.usage.usage_lib import UsageContext

def start(argv):
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed):
            args = parser.parse_args(argv)
            validate_parsed_serve_args(args)
            AsyncEngineArgs.from_cli_args(args).create_engine_config(UsageContext.OPENAI_API_SERVER)
    except BaseException as error:
        return f"{error} {printed.getvalue()}"
    return ""

print(json.dumps([start(argv) for argv in question]))
"""
REFUSED = (
    "--max-num-seqs 8 --max-num-active-seqs 16",
    "--max-num-batched-tokens 64 --max-num-seqs 128",
    "--no-enable-chunked-prefill --max-num-batched-tokens 1024",
    "--max-model-len 2048 --long-prefill-token-threshold 4096",
    "--max-model-len 8192",
    "--tensor-parallel-size 7",
    "--tensor-parallel-size 4 --decode-context-parallel-size 3",
    "--tensor-parallel-size 4 --decode-context-parallel-size 4",
    "--enable-expert-parallel",
    "--data-parallel-size 2 --data-parallel-external-lb",
    "--data-parallel-size 2 --data-parallel-hybrid-lb --data-parallel-external-lb",
    "--tensor-parallel-size 2 --pipeline-parallel-size 2 --nnodes 3",
    "--numa-bind-nodes 0 1",
    "--enable-lora --max-loras 8 --max-cpu-loras 4",
    "--offload-group-size 4 --offload-num-in-group 8",
    "--offload-group-size 8 --offload-prefetch-step 0",
    "--offload-backend prefetch",
    "--enable-log-outputs",
    "--enable-auto-tool-choice",
    "--enable-per-request-metrics --disable-log-stats",
    '--async-scheduling --speculative-config {"method":"ngram","num_speculative_tokens":3}',
    "--attention-backend FLASH_ATTN --attention-config.backend TRITON_ATTN",
)


def test_vllm_refuses_with_the_message_that_the_source_quotes_and_accepts_the_fix(ask: Ask) -> None:
    model, begin = _tiny_model(), ["--model", str(real_vllm().model)]
    cases = []
    for flags in REFUSED:
        command = case("vllm serve m " + flags.replace("{", "'{").replace("}", "}'"), model=model)
        problems = list(find_problems(command))
        to = {knob: value for problem in problems for knob, value in problem.to.items()}
        fixed = edit_flags(["vllm", "serve", *flags.split()], to)[2:] if to else None
        cases.append((flags, problems[0], fixed))

    messages = ask(START, [[*begin, *flags.split()] for flags in REFUSED])
    after = ask(START, [[*begin, *fixed] for _, _, fixed in cases if fixed is not None])

    for (flags, problem, _), message in zip(cases, messages, strict=True):
        assert message, flags
        for quoted in re.findall(r"'([^']+)'", problem.source):
            for part in filter(None, quoted.split("…")):
                assert _plain(part) in _plain(message), (flags, quoted, message)
    assert after == [""] * len(after)


GPU_MESSAGES = """
import sys, types
import torch
sys.modules.setdefault("vllm._C_stable_libtorch", types.ModuleType("compiled for CUDA only"))
from vllm.config.model import _check_valid_dtype
from vllm.model_executor.layers.fused_moe.oracle.fp8 import refine_fp8_moe_block_shape
from vllm.model_executor.layers.quantization.utils import fp8_utils
from vllm.platforms.cuda import CudaPlatformBase
from vllm.platforms.interface import DeviceCapability
import vllm.distributed

class Turing(CudaPlatformBase):
    get_device_capability = classmethod(lambda cls, device_id=0: DeviceCapability(7, 5))
    get_device_name = classmethod(lambda cls, device_id=0: "T4")

def message(check, *asked):
    try:
        check(*asked)
    except ValueError as error:
        return str(error)
    return ""

def refine(share):
    config = types.SimpleNamespace(intermediate_size_per_partition=share, tp_size=8, hidden_dim=4096)
    return refine_fp8_moe_block_shape(config, [128, 128]) is not None

size = vllm.distributed.get_tensor_model_parallel_world_size
vllm.distributed.get_tensor_model_parallel_world_size = lambda: 8
linear = types.SimpleNamespace(tp_size=8)
messages = [
    message(Turing.check_if_supports_dtype, torch.bfloat16),
    message(_check_valid_dtype, "gemma3", torch.float16),
    message(fp8_utils.validate_fp8_block_shape_moe, 192, [128, 128]),
    message(fp8_utils.validate_fp8_block_shape, linear, 9728, 2560, 1216, [2560], [128, 128]),
    message(fp8_utils.validate_fp8_block_shape_moe, 256, [128, 128]),
]
vllm.distributed.get_tensor_model_parallel_world_size = size
print(json.dumps([messages, [refine(share) for share in question]]))
"""


def test_vllm_refuses_dtypes_and_fp8_blocks_on_a_gpu_as_the_sources_quote(ask: Ask) -> None:
    shares = [16, 32, 64, 88, 96, 176, 192, 320, 352]

    (bfloat16, float16, experts, linear, whole), refined = ask(GPU_MESSAGES, shares)

    assert bfloat16.startswith("Bfloat16 is only supported on GPUs")
    assert float16.startswith(
        "The model type 'gemma3' does not support float16. Reason: Numerical instability."
    )
    assert (
        "The output_size of gate's and up's weight = 192 is not divisible by weight quantization" in experts
    )
    assert "1216 is not divisible by weight quantization block_k = 128" in linear
    assert not whole
    assert refined == [can_refine((128, 128), share, 4096) for share in shares]


PARSE = """
from vllm.entrypoints.launchers.cli_args import validate_parsed_serve_args

def parse(argv):
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed):
            validate_parsed_serve_args(parser.parse_args(argv))
    except BaseException as error:
        return f"{error!r} {printed.getvalue()[-300:]}"
    return ""

print(json.dumps([parse(argv) for argv in question]))
"""


def test_the_real_parser_accepts_the_commands_that_lint_prints(ask: Ask) -> None:
    lints, printed = all_lints(), list[list[str]]()
    for command, config in random_cases(SEED, 4 * PRINTED):
        if config.version != "0.32.0" or len(printed) == PRINTED:
            continue
        fixes = find_fixes(config, lints)
        if not find_errors(fixes.after(config), lints):
            printed.append(edit_command(command, fixes.to, fixes.env).words[2:])

    errors = ask(PARSE, printed)

    assert len(printed) == PRINTED
    assert [(argv, error) for argv, error in zip(printed, errors, strict=True) if error] == []


def _plain(text: str) -> str:
    """A message without the numbers in it."""
    return " ".join(re.sub(r"\(\d[^)]*\)|=\d+|`", "", text).split())


def _tiny_model() -> Model:
    return read_config(json.loads((real_vllm().model / "config.json").read_text()), "tiny")
