"""Public issues about vLLM as cases: their command, GPU and log lines, and the rule that comes first.

Facts only: the flags as given, single log lines, the address of the issue. Further cases are in issues.toml.
"""

import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from dataclasses import field as with_default
from pathlib import Path
from typing import Any

import pytest

from flettner.lint.fixes import Fixes, find_fixes
from flettner.lint.rules import all_lints
from flettner.vllm_facts.models.estimate import estimate_model
from flettner.vllm_facts.models.lookup import find_model
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.shell_command.serve_command import parse_command
from flettner.vllm_facts.sizing.gpus import find_gpu

LINTS = all_lints()
SWAP = "WARNING scheduler.py: Sequence group 127 is preempted by PreemptionMode.RECOMPUTE mode because"


@dataclass(frozen=True, slots=True, kw_only=True)
class Issue:
    """`first`: the rule that comes first. `to`: changes among those made. `never`: knobs that stay."""

    url: str
    command: str
    first: str
    gpu: str = ""
    gpus: int | None = None
    version: str = ""
    log: tuple[str, ...] = ()
    to: Mapping[str, object] = with_default(default_factory=dict)
    never: tuple[str, ...] = ()

    def fixes(self) -> Fixes:
        return find_fixes(self.deployment(), LINTS)

    def deployment(self) -> ServeConfig:
        parsed = parse_command(shlex.split(self.command))
        name = str(parsed.setting.get("model", ""))
        model = find_model(name)
        return ServeConfig(
            setting=parsed.setting,
            env=parsed.server_env,
            card=find_gpu(self.gpu) if self.gpu else None,
            gpus=self.gpus,
            model=model,
            estimate=None if model else estimate_model(name),
            version=self.version,
            log=self.log,
        )


def read_issues() -> Iterator[Issue]:
    """The cases of issues.toml, where `without` lists flags that are removed."""
    table: dict[str, list[dict[str, Any]]] = tomllib.loads(
        Path(__file__).with_name("issues.toml").read_text(encoding="utf-8")
    )
    for row in table["issue"]:
        removed = dict.fromkeys(row.pop("without", ()))
        to = {**row.pop("to", {}), **removed}
        log, never = tuple(row.pop("log", ())), tuple(row.pop("never", ()))
        yield Issue(first=row.pop("first", ""), to=to, log=log, never=never, **row)


VLLM = "vllm-project/vllm#"
HEADS = "ValueError: Total number of attention heads ({}) must be divisible by tensor parallel size ({})."
LONG = (
    "ValueError: The model's max seq len ({}) is larger than the maximum number of tokens that can be stored "
    "in KV cache ({})."
)
BF16 = (
    "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your {} GPU has "
    "compute capability {}."
)
RANK = "ValueError: LoRA rank {} is greater than max_lora_rank {}."
BLOCKS = (
    "ValueError: The output_size of gate's and up's weight = {} is not divisible by weight quantization "
    "block_n = 128."
)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} GiB."

_ISSUES = (
    # weights and one request against the GPU
    Issue(
        url=f"{VLLM}188",
        command="vllm serve mistralai/Mistral-7B-v0.1 --dtype half --gpu-memory-utilization 0.8 "
        "--max-model-len 4096",
        gpu="RTX 2080 Ti",
        gpus=1,
        first="D2",
    ),
    Issue(
        url="OpenBMB/MiniCPM-V#640",
        command="vllm serve openbmb/MiniCPM-V-2_6 --max-model-len 2048 --gpu-memory-utilization "
        "1 --trust-remote-code",
        gpu="A10",
        gpus=1,
        log=(OOM.format("4.00"),),
        first="M2",
        to={"gpu_memory_utilization": 0.85},
    ),
    Issue(
        url=f"{VLLM}15105",
        command="vllm serve Qwen/Qwen2.5-32B-Instruct-AWQ --enable-prefix-caching -tp 2 "
        "--max-model-len 15000 "
        "--gpu-memory-utilization 0.78 --enable-chunked-prefill --swap-space 4",
        version="0.8.1",
        log=(
            (
                "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. "
                "Please try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
            ),
        ),
        first="F5",
        to={"max_num_seqs": 256},
    ),
    *(
        Issue(
            url=url,
            command=f"vllm serve {model}",
            log=(LONG.format(wanted, fits),),
            first="F4",
            to={"max_model_len": fits // 1024 * 1024},
        )
        for url, model, wanted, fits in (
            (f"{VLLM}2418", "/models/alpaca-2", 4096, 3664),
            (f"{VLLM}5976", "microsoft/Phi-3-vision-128k-instruct", 131072, 50944),
            (f"{VLLM}11391", "org/model", 56000, 43328),
            (f"{VLLM}14452", "org/model", 60000, 58384),
            ("QwenLM/Qwen3#295", "Qwen/Qwen1.5-7B-Chat", 32768, 7344),
            ("deepseek-ai/DeepSeek-V2#83", "deepseek-ai/DeepSeek-V2-Lite-Chat", 163840, 13360),
            ("OpenRLHF/OpenRLHF#336", "org/model", 8192, 6048),
            ("xusenlinzy/api-for-open-llm#225", "org/model", 8192, 4512),
        )
    ),
    # attention heads against tensor parallelism: by the model, or by the log alone
    *(
        Issue(url=url, command=f"vllm serve {model} -tp {tp}", gpus=gpus, log=log, first="D3")
        for url, model, tp, gpus, log in (
            (f"{VLLM}11797", "Qwen/Qwen2-7B-Instruct", 8, 8, ()),
            (f"{VLLM}2652", "Qwen/Qwen2-57B-A14B-Instruct", 8, 8, ()),
            (f"{VLLM}4232", "Qwen/Qwen1.5-32B-Chat", 6, 6, ()),
            (f"{VLLM}5003", "meta-llama/Meta-Llama-3-70B-Instruct", 3, 3, ()),
            (f"{VLLM}596", "meta-llama/Llama-2-13b-hf", 3, 3, ()),
            ("THU-KEG/AdaptThink#1", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", 8, 8, ()),
            ("gpustack/gpustack#2259", "google/gemma-3-27b-it", 3, 3, ()),
            (f"{VLLM}2652", "org/finetune", 8, 8, (HEADS.format(52, 8),)),
            (f"{VLLM}414", "org/finetune", 3, 3, (HEADS.format(52, 3),)),
            ("MIV-XJTU/FSDrive#21", "org/finetune", 8, 8, (HEADS.format(12, 8),)),
        )
    ),
    # bfloat16 on Turing and Volta
    *(
        Issue(url=url, command=f"vllm serve {model} {flags}", gpu=gpu, log=log, version=version, first="H2")
        for url, model, flags, gpu, version, log in (
            (f"{VLLM}946", "meta-llama/Llama-2-7b-hf", "--dtype bfloat16", "V100-SXM2-32GB", "0.9.0", ()),
            (f"{VLLM}1157", "org/model", "", "", "", (BF16.format("Tesla T4", "7.5"),)),
            ("substratusai/vllm-docker#37", "org/model", "", "", "", (BF16.format("Tesla T4", "7.5"),)),
            ("hiyouga/LlamaFactory#4960", "org/model", "", "", "", (BF16.format("Tesla V100", "7.0"),)),
        )
    ),
    # blocks of FP8 weights of experts against tensor parallelism
    *(
        Issue(
            url=url,
            command=f"vllm serve {model} -tp {tp} {flags}",
            gpus=8,
            version=version,
            log=log,
            first="V1",
        )
        for url, model, tp, flags, version, log in (
            (f"{VLLM}25292", "Qwen/Qwen3-30B-A3B-FP8", 4, "", "0.11.0", ()),
            (f"{VLLM}17569", "Qwen/Qwen3-235B-A22B-FP8", 8, "--max-model-len 32768", "0.11.0", ()),
            (f"{VLLM}48173", "MiniMaxAI/MiniMax-M2.7", 8, "--trust-remote-code", "0.24.0", ()),
            (f"{VLLM}54178", "org/finetune-moe", 8, "", "", (BLOCKS.format(80),)),
            (f"{VLLM}28910", "org/finetune-moe", 8, "", "", (BLOCKS.format(192),)),
        )
    ),
    # ranks of adapters
    *(
        Issue(
            url=url,
            command=f"vllm serve org/model --enable-lora --lora-modules a=/a {flags}",
            log=(RANK.format(rank, most),),
            first="V1",
            to={"max_lora_rank": to},
        )
        for url, flags, rank, most, to in (
            (f"{VLLM}2847", "", 64, 16, 64),
            ("gpustack/gpustack#5438", "", 64, 16, 64),
            ("modelscope/ms-swift#4221", "", 32, 16, 32),
            ("hiyouga/LlamaFactory#9512", "--max-lora-rank 16", 32, 16, 32),
            ("PrimeIntellect-ai/prime-rl#1408", "--max-lora-rank 16", 300, 16, 320),
        )
    ),
    # flags that this version does not know
    *(
        Issue(url=url, command=f"vllm serve {rest}", version=version, log=log, first="V1", to=to)
        for url, rest, version, log, to in (
            (
                f"{VLLM}18538",
                "Qwen/Qwen3-8B --enable-reasoning --reasoning-parser deepseek_r1",
                "0.10.0",
                (),
                {"enable_reasoning": None},
            ),
            (
                "datawhalechina/self-llm#459",
                "Qwen/Qwen3-8B --max-model-len 8192 --enable-reasoning --reasoning-parser deepseek_r1",
                "",
                ("vllm: error: unrecognized arguments: --enable-reasoning",),
                {"enable_reasoning": None},
            ),
            (
                f"{VLLM}13267",
                (
                    "cognitivecomputations/DeepSeek-R1-AWQ --max-model-len 65536 --trust-remote-code -tp 8 "
                    "--quantization moe_wna16 --gpu-memory-utilization 0.97 --kv-cache-dtype fp8_e5m2 "
                    "--calculate-kv-scales"
                ),
                "0.32.0",
                (),
                {"calculate_kv_scales": None},
            ),
            (f"{VLLM}18115", "org/model --preemption-mode swap", "0.12.0", (), {"preemption_mode": None}),
            (
                f"{VLLM}14766",
                "gemma-3-27b-it-Q6_K.gguf --gpu-memory-utilization 0.95 --swap-space 1 --max-model-len 44592",
                "0.24.0",
                (),
                {"swap_space": None},
            ),
            (f"{VLLM}9967", "llava-hf/llava-1.5-7b-hf --device cuda", "0.13.0", (), {"device": None}),
        )
    ),
    # GGUF
    *(
        Issue(
            url=url,
            command=f"vllm serve {model}",
            version=version,
            log=(f"ValueError: GGUF model with architecture {name} is not supported yet.",),
            first="V1",
        )
        for url, model, name, version in (
            (f"{VLLM}30691", "Olmo-3-32B-Think-Q8_0.gguf", "olmo2", "0.12.0"),
            (f"{VLLM}33229", "MiniMax-M2.5-Q4_K_M.gguf", "minimax-m2", "0.15.1"),
            (f"{VLLM}15277", "DeepSeek-R1-Q4_K_M.gguf", "deepseek2", "0.8.1"),
            (f"{VLLM}28691", "Qwen3VL-30B-A3B-Instruct-Q4_K_M.gguf", "qwen3vlmoe", "0.11.0"),
        )
    ),
    # formats on their way out, and slow kernels
    Issue(
        url=f"{VLLM}5569",
        command="vllm serve /data/llama3-8b-bnb8 --quantization bitsandbytes --load-format "
        "bitsandbytes --dtype half",
        version="0.32.0",
        first="V1",
    ),
    Issue(
        url=f"{VLLM}21376",
        command="vllm serve hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4 --max-model-len "
        "8192 --quantization awq",
        version="0.9.2",
        gpu="RTX 4090",
        first="E2",
        to={"quantization": None},
    ),
    Issue(
        url=f"{VLLM}20112",
        command="vllm serve Qwen/Qwen3-14B-AWQ -tp 1 --gpu-memory-utilization 0.80 --max-num-seqs 32 "
        "--enable-chunked-prefill --max-num-batched-tokens 20480 --quantization awq "
        "--dtype half --enforce-eager",
        version="0.9.1",
        log=("Detected that the model can run with awq_marlin, so forcing awq.",),
        first="G1",
        to={"quantization": None, "enforce_eager": False},
    ),
    Issue(
        url=f"{VLLM}4359",
        command="vllm serve org/model-GPTQ",
        log=("WARNING config.py:169] gptq quantization is not fully optimized yet.",),
        first="E2",
    ),
    # shared memory of a container
    *(
        Issue(url=url, command="vllm serve org/model -tp 2", gpus=2, log=(line,), first="U2")
        for url, line in (
            (f"{VLLM}1710", "RuntimeError: NCCL error: ncclShmOpen failed"),
            (
                "MiniMax-AI/MiniMax-01#42",
                "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-xxxxxx (size 7340384)",
            ),
        )
    ),
    # preemptions
    Issue(
        url=f"{VLLM}15763",
        command="vllm serve org/model --max-num-seqs 256",
        log=(SWAP,),
        first="K1",
        to={"max_num_seqs": 192},
    ),
    Issue(
        url="GAIR-NLP/LIMO#29",
        command="vllm serve org/model --gpu-memory-utilization 0.7",
        log=(SWAP,),
        first="K1",
        to={"gpu_memory_utilization": 0.9},
    ),
    # images and videos
    Issue(
        url=f"{VLLM}16570",
        command="vllm serve Qwen/Qwen2.5-VL-72B-Instruct --dtype bfloat16 -tp 4 "
        "--gpu-memory-utilization 0.95 "
        "--max-num-seqs 2 --max-model-len 4096",
        gpu="A100-40GB",
        gpus=4,
        log=(OOM.format("1.50"),),
        first="M2",
        never=("max_num_seqs",),
    ),
    # a KV cache in FP8 on Ampere
    Issue(
        url=f"{VLLM}26431",
        command="vllm serve org/model -tp 2 --kv-cache-dtype fp8",
        log=("ValueError: type fp8e4nv not supported in this architecture.",),
        first="H2",
        to={"kv_cache_dtype": None},
    ),
    # a longer context than the model's
    Issue(
        url=f"{VLLM}8793",
        command="vllm serve Qwen/Qwen2.5-72B-Instruct -tp 4 --max-model-len 131072 "
        "--max-num-batched-tokens 131072",
        gpu="H100",
        gpus=4,
        version="0.20.0",
        first="V1",
        to={"max_model_len": 32768},
    ),
    Issue(
        url=f"{VLLM}2565",
        command="vllm serve org/yi-chat -tp 4 --max-model-len 204800",
        log=(
            (
                "ValueError: User-specified max_model_len (204800) is greater than the derived max_model_len "
                "(max_position_embeddings=4096 or model_max_length=None in model's config.json)."
            ),
        ),
        first="V1",
        to={"max_model_len": 4096},
    ),
    Issue(
        url="vllm-project/vllm-ascend#760",
        command="vllm serve Qwen/Qwen3-14B --max-model-len 131072 --rope-scaling "
        """'{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":32768}'""",
        gpu="A100-80GB",
        gpus=1,
        version="0.13.0",
        first="V1",
        to={"rope_scaling": None},
    ),
    # the layout is left alone where the load is unknown
    Issue(
        url=f"{VLLM}13074",
        command="vllm serve deepseek-ai/DeepSeek-R1-0528 -tp 8 --max-model-len 16384 "
        "--max-num-batched-tokens 2048 --gpu-memory-utilization 0.95 --dtype bfloat16",
        gpu="H20 141GB",
        gpus=8,
        version="0.9.2",
        log=(OOM.format("1.00"),),
        first="M2",
        never=("tensor_parallel_size", "data_parallel_size"),
    ),
    Issue(
        url=f"{VLLM}732",
        command="vllm serve Qwen/Qwen2.5-7B-Instruct -tp 2",
        gpu="RTX 4090",
        gpus=2,
        version="0.20.0",
        first="D1",
        to={"tensor_parallel_size": 1, "data_parallel_size": 2},
    ),
    # weights in the host's memory
    Issue(
        url=f"{VLLM}22692",
        command="vllm serve /GLM-4.5-FP8 -tp 8 --tool-call-parser glm45 --reasoning-parser glm45 "
        "--enable-auto-tool-choice --cpu-offload-gb 16",
        version="0.10.0",
        first="O1",
        never=("cpu_offload_gb",),
    ),
    Issue(
        url=f"{VLLM}6496",
        command="vllm serve meta-llama/Meta-Llama-3-70B-Instruct --cpu-offload-gb 70 "
        "--gpu-memory-utilization 0.95",
        gpu="GH200",
        gpus=1,
        first="O1",
        never=("cpu_offload_gb",),
    ),
    # slow by its flags
    Issue(
        url=f"{VLLM}13412",
        command="vllm serve meta-llama/Llama-3.3-70B-Instruct --tensor-parallel-size 8 --max-num-seqs 256 "
        "--num-scheduler-steps 10 --max-seq-len-to-capture 8192 --no-enable-chunked-prefill",
        gpu="H200",
        gpus=8,
        version="0.13.0",
        first="V1",
        to={"num_scheduler_steps": None, "max_seq_len_to_capture": None},
    ),
    Issue(
        url=f"{VLLM}4252",
        command="vllm serve meta-llama/Meta-Llama-3-8B-Instruct --max-num-seqs 1",
        gpu="A100-80GB",
        gpus=1,
        first="B1",
    ),
    Issue(
        url=f"{VLLM}1873",
        command="vllm serve codellama/CodeLlama-13b-hf --dtype bfloat16 --max-model-len 7000 "
        "--max-num-batched-tokens 30000 --block-size 16 -tp 4 --max-num-seqs 1024",
        gpu="A100-80GB",
        gpus=4,
        first="D1",
    ),
    # tuned expert kernels
    Issue(
        url=f"{VLLM}44688",
        command="vllm serve Qwen/Qwen3-30B-A3B",
        log=("WARNING [fused_moe.py:1118] Using default MoE config. Performance might be sub-optimal!",),
        first="F1",
    ),
)
ISSUES = (*_ISSUES, *(issue for issue in read_issues() if issue.first))
QUIET = tuple(issue for issue in read_issues() if not issue.first)
"""Bugs of vLLM, and commands without a fault."""


@pytest.mark.parametrize("issue", ISSUES, ids=lambda issue: issue.url)
def test_rule_that_an_issue_needs_comes_first(issue: Issue) -> None:
    fixes = issue.fixes()
    shown = [(found.rule, found.why) for found in fixes.findings]

    assert shown
    assert shown[0][0] == issue.first, shown
    assert {knob: fixes.to.get(knob, "unchanged") for knob in issue.to} == issue.to
    assert not set(issue.never) & fixes.to.keys()


@pytest.mark.parametrize("issue", ISSUES, ids=lambda issue: issue.url)
def test_advice_on_an_issue_brings_no_new_error(issue: Issue) -> None:
    before = issue.deployment()
    after = issue.fixes().after(before)

    def errors(case: ServeConfig) -> set[str]:
        said = find_fixes(ServeConfig(setting=case.setting, card=case.card, model=case.model), LINTS)
        return {found.why for found in said.findings if found.severity == "error"}

    assert not errors(after) - errors(before)


@pytest.mark.parametrize("issue", QUIET, ids=lambda issue: issue.url)
def test_nothing_changes_where_no_flag_is_at_fault(issue: Issue) -> None:
    fixes = issue.fixes()

    assert not fixes.to
    assert not fixes.env


def test_a_hundred_issues_are_cases() -> None:
    assert len({issue.url for issue in (*ISSUES, *QUIET)}) >= 95
