"""Memory is arithmetic with the log's own terms: what a change frees, and what it leaves for the KV cache."""

from dataclasses import replace

import pytest

from flettner.lint.fixes import Fixes, find_fixes_in_rounds
from flettner.lint.rules import all_lints
from flettner.lint.rules.out_of_memory import COUNTS_GRAPHS
from flettner.vllm_facts.serve_config import GpuModel, Model
from flettner.vllm_facts.values import Value, as_number
from tests.support.lint_cases import A10, LLAMA_8B, LLAMA_70B, case

KV = "INFO Available KV cache memory: 2.97 GiB"
TURING_22 = GpuModel(name="RTX 2080 Ti 22GB", memory_gib=22, capability=(7, 5))
LOADED = "INFO [gpu_model_runner.py:9] Model loading took 3.25 GiB and 4.1 seconds"
NEED = "INFO Maximum concurrency for 8,192 tokens per request: 1.22x"  # 2.44 GiB for a request
ROOMY = NEED.replace("1.22x", "4.00x")
WARM_UP = "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests."


def failed(tried: str, free: str, own: str = "21.00 GiB") -> str:
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {tried}. GPU 0 has a total capacity "
        f"of 22.40 GiB of which {free} is free. Including non-PyTorch memory, this process has {own} memory "
        "in use."
    )


def fixes_of(*log: str, flags: str = "", card: GpuModel | None = None, model: Model | None = None) -> Fixes:
    config = case(f"vllm serve m --gpu-memory-utilization 0.9 {flags}", log=log, card=card, model=model)
    return find_fixes_in_rounds(config, all_lints())


@pytest.mark.parametrize(
    ("log", "flags", "to"),
    [
        # 0.5 GiB and a margin are missing: 0.9 - 0.75 / 22.4
        ((KV, ROOMY, failed("0.75 GiB", "0.25 GiB")), "", {"gpu_memory_utilization": 0.86}),
        # CUDA graphs take many small allocations: 0.9 - 1.5 / 22.4
        (
            (KV, ROOMY, 'File "x.py", line 1, in capture_model', failed("0.01 GiB", "0.00 GiB")),
            "",
            {"gpu_memory_utilization": 0.83},
        ),
        # without numbers: one step down, if the cache has the room
        ((KV, ROOMY, "CUDA error: out of memory"), "", {"gpu_memory_utilization": 0.85}),
        # other makers' words for it
        *(
            ((KV, ROOMY, line), "", {"gpu_memory_utilization": 0.85})
            for line in (
                "HIP error: out of memory",
                "[Rank:0] FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::40939249664",
                "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm.",
                "RuntimeError: level_zero backend failed with error: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)",
            )
        ),
        # at 0.85 no request of full length would be left: fewer sequences
        ((KV, NEED, "CUDA error: out of memory"), "--max-num-seqs 64", {"max_num_seqs": 32}),
        # the lower share is known and leaves less than a request: a shorter one with it
        (
            (KV, NEED, failed("0.75 GiB", "0.25 GiB")),
            "--max-model-len 8192",
            {"gpu_memory_utilization": 0.86, "max_model_len": 6144},
        ),
        # the warm-up: fewer sequences, and the share stays where it has to
        ((KV, NEED, WARM_UP), "--max-num-seqs 256", {"max_num_seqs": 64}),
        ((KV, ROOMY, WARM_UP), "--max-num-seqs 256", {"max_num_seqs": 64, "gpu_memory_utilization": 0.85}),
        # the step itself: no share changes what it needs
        (
            ('File "x.py", line 1, in profile_run', failed("4.00 GiB", "1.00 GiB")),
            "--max-num-batched-tokens 16384",
            {"max_num_batched_tokens": 8192},
        ),
        # the same without its traceback: the weights were read, and the cache not yet sized
        ((LOADED, failed("4.00 GiB", "1.00 GiB")), "--max-num-seqs 512", {"max_num_seqs": 128}),
        # the last of two starts counts
        ((KV, LOADED, failed("4.00 GiB", "1.00 GiB")), "--max-num-seqs 512", {"max_num_seqs": 128}),
        (
            (LOADED, KV, ROOMY, failed("0.75 GiB", "0.25 GiB")),
            "--max-num-seqs 512",
            {"gpu_memory_utilization": 0.86},
        ),
    ],
)
def test_the_change_is_computed_with_the_sizes_in_the_log(
    log: tuple[str, ...], flags: str, to: dict[str, Value]
) -> None:
    assert fixes_of(*log, flags=flags, card=A10).to == to


SIZES = ("INFO Available KV cache memory: 3.20 GiB", "INFO GPU KV cache size: 60,000 tokens")
UNCOUNTED = (
    "WARNING CUDA graph memory profiling is disabled (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0). Consider "
    "re-enabling it and increasing --gpu-memory-utilization from 0.9000 to 0.9310."
)


def test_a_share_above_all_advice_is_lowered_as_far_as_a_request_of_full_length_allows() -> None:
    """A request needs 2.67 of 3.20 GiB: 0.85 would leave none."""
    config = case("vllm serve m --gpu-memory-utilization 0.99 --max-model-len 50000", card=A10)
    log = (*SIZES, "CUDA error: out of memory")

    fixes = find_fixes_in_rounds(replace(config, log=log), all_lints())

    assert fixes.to == {"gpu_memory_utilization": 0.97}


@pytest.mark.parametrize(
    ("given", "to", "env"),
    [
        ({COUNTS_GRAPHS: "0"}, {}, {COUNTS_GRAPHS: None}),
        ({}, {"gpu_memory_utilization": 0.86}, {}),
    ],
)
def test_graphs_that_the_plan_leaves_out_get_the_memory_that_the_log_names(
    given: dict[str, str], to: dict[str, Value], env: dict[str, None]
) -> None:
    command, log = "vllm serve m --gpu-memory-utilization 0.9", (UNCOUNTED, "CUDA error: out of memory")
    fixes = find_fixes_in_rounds(replace(case(command, log=log), env=given), all_lints())

    assert (fixes.to, fixes.env) == (to, env)


def test_where_no_value_starts_the_report_says_so() -> None:
    fixes = fixes_of(KV, NEED, "CUDA error: out of memory", flags="--max-num-seqs 4", card=A10)

    assert not fixes.to
    assert "1.86 GiB would be left for the KV cache" in fixes.findings[0].why
    assert "one request of full length needs 2.43" in fixes.findings[0].why
    assert fixes.findings[0].expects.startswith("no gpu_memory_utilization starts this model here")


def test_no_share_is_raised_to_one_that_leaves_no_cache_either() -> None:
    """Weights of 21.5 GiB on a card of 22.4: no share makes room."""
    log = (
        "INFO Model loading took 21.50 GiB memory and 3.2 seconds",
        "INFO Available KV cache memory: -3.10 GiB",
        "INFO Free memory on device (22.2/22.4 GiB) on startup. Desired",
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
    )

    (finding,) = fixes_of(*log).findings

    assert (finding.rule, finding.severity, dict(finding.to)) == ("F4", "error", {})
    assert "no higher gpu_memory_utilization is safe here" in finding.expects


def test_memory_that_other_processes_hold_is_named_and_binds() -> None:
    fixes = fixes_of(
        failed("0.75 GiB", "0.40 GiB", own="12.00 GiB"),
        flags="--max-model-len 8192",
        card=A10,
        model=LLAMA_8B,
    )

    assert "other processes hold 10.0 of the 22.4 GiB" in fixes.findings[0].why
    assert (as_number(fixes.to.get("gpu_memory_utilization")) or 0.0) <= 1 - 10 / 22.4


FULL = failed("0.50 GiB", "0.02 GiB", own="22.30 GiB")


def test_weights_that_did_not_load_are_said_to_be_too_large_and_change_no_share() -> None:
    """The message is vLLM's own; it advises a lower share, which cannot help."""
    line = f"ERROR [x.py:1] Failed to load model - not enough GPU memory. Try … (original error: {FULL})"

    fixes = fixes_of(line, flags="--max-num-seqs 64 --max-model-len 8192")

    assert not fixes.to
    assert "the weights do not fit the GPU in the format" in fixes.findings[0].why


def test_weights_that_exceed_the_card_by_the_estimate_change_no_share_either() -> None:
    config = case("vllm serve m --tensor-parallel-size 1", log=(FULL,), card=A10, model=LLAMA_70B)

    fixes = find_fixes_in_rounds(config, all_lints())

    assert not {"gpu_memory_utilization", "max_num_seqs", "max_model_len"} & fixes.to.keys()
    assert "the weights do not fit the GPU" in fixes.findings[0].why


@pytest.mark.parametrize(("card", "dtype"), [(A10, "bfloat16"), (TURING_22, "half")])
def test_weights_that_fit_in_16_bit_are_not_read_in_float32(card: GpuModel, dtype: str) -> None:
    flags = "--dtype float --max-model-len 4096"

    assert fixes_of(FULL, flags=flags, card=card, model=LLAMA_8B).to == {"dtype": dtype}
    before = case(f"vllm serve m {flags}", card=card, gpus=1, model=LLAMA_8B)
    assert find_fixes_in_rounds(before, all_lints()).to == {"dtype": dtype}


@pytest.mark.parametrize(
    ("log", "length", "left"),
    [
        # 5 GiB, less the 0.5 that were missing and a margin, hold a request of 2.44 GiB
        ((NEED, failed("0.75 GiB", "0.25 GiB")), "8192", 17 << 28),
        # they do not hold one of 4.9 GiB: vLLM measures what is free
        ((NEED.replace("1.22x", "0.61x"), failed("0.75 GiB", "0.25 GiB")), "8192", None),
        ((NEED, "CUDA error: out of memory"), "8192", None),
    ],
)
def test_a_kv_cache_of_a_fixed_size_shrinks_and_the_share_stays(
    log: tuple[str, ...], length: str, left: int | None
) -> None:
    pinned = f"--kv-cache-memory-bytes {5 << 30} --max-model-len {length}"

    fixes = fixes_of(KV, *log, flags=pinned)

    assert dict(fixes.to) == {"kv_cache_memory_bytes": left}
    assert "gpu_memory_utilization does not count" in fixes.findings[0].why


def test_a_share_that_does_not_count_stays_in_the_warm_up() -> None:
    fixes = fixes_of(KV, WARM_UP, flags=f"--kv-cache-memory-bytes {5 << 30} --max-num-seqs 256")

    assert dict(fixes.to) == {"max_num_seqs": 64}


def test_a_model_that_attends_to_images_in_its_own_layers_gets_few_sequences() -> None:
    log = ('File "x.py", line 1, in profile_run', failed("19.00 GiB", "1.00 GiB"))
    command = "vllm serve meta-llama/Llama-3.2-11B-Vision-Instruct"
    fixes = find_fixes_in_rounds(case(command, log=log, version="0.6.3"), all_lints())

    assert fixes.to == {"max_num_seqs": 16, "enforce_eager": True}


@pytest.mark.parametrize(
    ("version", "gib", "told"),
    [
        ("0.12.0", 14, True),  # the 16-bit weights alone
        ("0.12.0", 20, False),
        ("0.13.0", 20, True),  # their FP8 copies lie beside them
        ("0.16.0", 14, False),  # each layer is quantised as it is read
    ],
)
def test_weights_that_are_quantised_after_they_were_read_need_the_memory_of_16_bit(
    version: str, gib: int, told: bool
) -> None:
    card = GpuModel(name="X", memory_gib=gib, capability=(9, 0))
    config = case(
        "vllm serve m --quantization fp8",
        log=("CUDA error: out of memory",),
        card=card,
        model=LLAMA_8B,
        version=version,
    )

    first = find_fixes_in_rounds(config, all_lints()).findings[0]

    assert ("before --quantization fp8 makes them smaller" in first.why) is told
    assert not (told and first.to)
