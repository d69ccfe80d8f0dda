"""F9 and F10: errors in a log whose cause is known, and the last one where it is not."""

import pytest

from flettner.lint.fixes import find_fixes
from flettner.lint.rules import (
    all_lints,
    known_errors,
    unknown_error,
)
from flettner.vllm_facts.serve_config import Finding
from flettner.vllm_facts.values import Value
from tests.support.lint_cases import case, findings

LINTS = known_errors.LINTS
BATCH = "max_tokens_per_mm_item (2496) is larger than max_num_batched_tokens (512)."
BACKEND = (
    "Selected backend AttentionBackendEnum.FLASHINFER is not valid for this configuration. Reason: ['no']"
)
RUNNER = "Value error, Model Runner V2 does not yet support: ngram speculative decoding [type=value_error]"
LOAD_FORMAT = (
    "BitsAndBytes quantization and QLoRA adapter only support 'bitsandbytes' load format, but got auto"
)
MISMATCH = "not match the quantization method specified in the `quantization` argument (gptq)"
TOOLS = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
ODD = "ValueError: some text that no row of this tool has"


def found(flags: str, *log: str, env: str = "") -> list[Finding]:
    asked = case(f"vllm serve m {flags}", log=log, env=env)
    return [finding for lint in LINTS for finding in lint.check(asked)]


@pytest.mark.parametrize(
    ("flags", "line", "to"),
    [
        ("--max-num-batched-tokens 512", BATCH, {"max_num_batched_tokens": 4096}),
        ("", BATCH.replace("2496", "4096"), {"max_num_batched_tokens": 4096}),
        ("--attention-backend FLASHINFER", BACKEND, {"attention_backend": None}),
        ("--quantization bitsandbytes", LOAD_FORMAT, {"load_format": "bitsandbytes"}),
        ("--quantization gptq", MISMATCH, {"quantization": None}),
        ("--quantization awq", "ValueError: Cannot find the config file for awq", {"quantization": None}),
        ("--tool-call-parser hermes", TOOLS, {"enable_auto_tool_choice": True}),
        ("", TOOLS, {}),
        ("", "please set the option `trust_remote_code=True`", {"trust_remote_code": True}),
        ("-tp 4", "AssertionError: 25 is not divisible by 4", {}),
        ("", "RuntimeError: Failed to infer device type, please set the environment variable", {}),
        ("", "OSError: [Errno 98] Address already in use", {}),
        ("", "ModuleNotFoundError: No module named 'librosa'", {}),
        ("", "RuntimeError: CUDA error: an illegal memory access was encountered", {}),
        ("--moe-backend marlin", "moe_backend='marlin' is not supported for fp8 MoE.", {"moe_backend": None}),
        ("", "OSError: org/typo is not a local folder and is not a valid model identifier listed", {}),
        ("", "ImportError: vllm/_C.abi3.so: undefined symbol: _ZN3c10", {}),
    ],
)
def test_error_is_reported_with_the_change_that_ends_it(flags: str, line: str, to: dict[str, Value]) -> None:
    (one,) = found(flags, "INFO x", line)

    assert (one.rule, one.severity, one.to) == ("F9", "error", to)
    assert one.klass == ("gated" if to else "note")


@pytest.mark.parametrize(
    ("env", "line", "name"),
    [
        ("VLLM_ATTENTION_BACKEND=XFORMERS", BACKEND, "VLLM_ATTENTION_BACKEND"),
        ("VLLM_USE_V2_MODEL_RUNNER=1", RUNNER, "VLLM_USE_V2_MODEL_RUNNER"),
        (
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            "AssertionError: Expandable segments are not compatible with memory pool.",
            "PYTORCH_CUDA_ALLOC_CONF",
        ),
    ],
)
def test_variable_that_causes_an_error_is_unset(env: str, line: str, name: str) -> None:
    (one,) = found("", line, env=env)

    assert dict(one.env) == {name: None}


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ("--max-num-batched-tokens 4096", BATCH),
        ("", BACKEND),
        ("", RUNNER),
        ("--quantization bitsandbytes --load-format bitsandbytes", LOAD_FORMAT),
        ("--enable-auto-tool-choice --tool-call-parser hermes", TOOLS),
        ("", "AssertionError: 25 is not divisible by 4"),
        ("--chat-template t.jinja", "default chat template is no longer allowed"),
        ("", "XForCausalLM does not support LoRA yet."),
    ],
)
def test_line_of_another_start_is_ignored(flags: str, line: str) -> None:
    assert not found(flags, line)


def test_shared_memory_is_named_before_nccl() -> None:
    assert not found("-tp 2", "RuntimeError: NCCL error: ncclShmOpen failed")
    assert "unhandled system error" in found("-tp 2", "NCCL error: unhandled system error")[0].why


def unknown(*log: str) -> list[Finding]:
    return [one for lint in unknown_error.LINTS for one in lint.check(case("vllm serve m", log=log))]


def test_a_width_that_marlin_does_not_take_is_no_matter_of_parallelism_on_one_gpu() -> None:
    width = "ValueError: Weight input_size_per_partition = 10944 is not divisible by min_thread_k = 128."

    assert "the checkpoint has" in found("", width)[0].why
    assert "tensor_parallel_size cuts" in found("-tp 2", width)[0].why


def test_an_error_without_a_rule_is_quoted() -> None:
    wrapped = (ODD, "RuntimeError: Engine core initialization failed. See root cause above.")
    (one,) = unknown("INFO x", *wrapped)

    assert (one.rule, one.severity) == ("F10", "error")
    assert ODD in one.why


@pytest.mark.parametrize(
    "log",
    [
        ("INFO no error here",),
        (BATCH.join(("ValueError: ", "")),),
        (ODD, "INFO: Application startup complete."),
        (ODD, "Engine 000: Avg prompt throughput: 9.0 tokens/s, Avg generation throughput: 9.0 tokens/s"),
        ("asyncio.exceptions.CancelledError: stop",),
        (
            "ValueError: LoRA rank 64 is greater than max_lora_rank 16.",
            "RuntimeError: Worker failed with error",
        ),
    ],
)
def test_known_past_and_secondary_errors_are_not_quoted(log: tuple[str, ...]) -> None:
    assert not unknown(*log)


SHORT_BATCH = (
    "Value error, max_num_batched_tokens (2048) is smaller than max_model_len (40960). This effectively "
    "limits the maximum sequence length to max_num_batched_tokens and makes vLLM reject longer sequences. "
    "Please increase max_num_batched_tokens or decrease max_model_len. [type=value_error, input_value=A(())]"
)
DRAFT = (
    "NotImplementedError: Speculative decoding with draft model is not supported yet. Please consider using "
    "other speculative decoding methods such as ngram, medusa, eagle, or mtp."
)
SHAPES = (
    "Can't determine cudagraph shapes that are both a multiple of 3 (num_speculative_tokens + 1) required by "
    "spec-decode and 4 (tensor_parallel_size) required by sequence parallelism please adjust "
    "num_speculative_tokens or disable sequence parallelism"
)


def explained(flags: str, line: str, version: str) -> Finding:
    asked = case(f"vllm serve m {flags}", log=("INFO x", line), version=version)
    (one,) = findings(unknown_error.LINTS, asked)
    return one


def test_an_error_of_vllm_itself_names_the_flags_of_its_condition_with_their_values() -> None:
    one = explained("--max-num-batched-tokens 2048 --no-enable-chunked-prefill", SHORT_BATCH, "0.32.0")

    assert (one.rule, one.severity, one.to) == ("F10", "error", {})
    assert one.why.startswith(
        "it depends on --max-num-batched-tokens 2048, --max-model-len (not given), --no-en"
    )
    assert one.source == "vLLM 0.32 vllm/config/scheduler.py"
    assert "Please increase max_num_batched_tokens or decrease max_model_len" in one.expects
    assert "newer release" not in one.expects


def test_a_message_that_later_releases_lack_is_said_to_be_gone() -> None:
    flags = """--speculative-config '{"model": "d", "num_speculative_tokens": 5}'"""
    one = explained(flags, DRAFT, "0.13.0")

    assert "it depends on --speculative-config {" in one.why
    assert "the message is gone in vLLM 0.17" in one.expects
    assert "newer release" not in explained(flags, DRAFT, "0.32.0").expects


def test_the_error_that_a_worker_hands_on_is_looked_up() -> None:
    flags = """-tp 4 --speculative-config '{"method": "eagle", "num_speculative_tokens": 2}'"""
    line = f"RuntimeError: Worker failed with error '{SHAPES}', please check the stack trace above"
    one = explained(flags, line, "0.14.1")

    assert "num_speculative_tokens of --speculative-config (2), --tensor-parallel-size 4" in one.why
    assert one.evidence["line"] == SHAPES[:240]


def test_a_variable_that_the_message_names_is_a_cause() -> None:
    line = "NotImplementedError: VLLM_USE_V1=1 is not supported with ['BertModel']."
    one = explained("", line, "0.9.2")

    assert "VLLM_USE_V1 (not set)" in one.why


ENDED = "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above."
CORE = "(EngineCore pid=9) ERROR 05-23 09:31:47 [core.py:396] "


@pytest.mark.parametrize(
    ("lines", "quoted"),
    [
        (("(RayWorker pid=7) Fatal Python error: Bus error",), "Fatal Python error: Bus error"),  # vllm#859
        (("Bus error (core dumped)",), "Bus error (core dumped)"),  # vllm#8974
        (("Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.",), "died unexpectedly"),
        (("terminate called after throwing an instance of 'c10::Error'", "  what():  odd"), "what():  odd"),
        ((f"{CORE}    assert a <= b", f"{CORE}AssertionError", ENDED), "explains: AssertionError"),
        ((f"{CORE}torch._dynamo.exc.Unsupported: no", f"{CORE}  ^^^"), "torch._dynamo.exc.Unsupported: no"),
        ((ENDED,), "Engine core initialization failed"),
    ],
)
def test_the_last_line_of_an_error_is_quoted_in_whatever_form(lines: tuple[str, ...], quoted: str) -> None:
    (one,) = unknown("INFO x", *lines)

    assert quoted in one.why


def test_a_log_whose_last_error_is_known_or_served_is_not_quoted() -> None:
    known = "ValueError: LoRA rank 64 is greater than max_lora_rank 16."
    assert not unknown(ODD, known, ENDED)
    assert not unknown(ODD, "INFO: Application startup complete.", "INFO x")
    assert not unknown("INFO x", "WARNING [x.py:1] Error handling is experimental")
    assert unknown(known, ODD)


def test_an_error_of_a_running_server_is_a_warning() -> None:
    (one,) = unknown("INFO: Application startup complete.", ODD)

    assert one.severity == "warning"


def test_other_changes_wait_for_an_error_that_no_change_ends() -> None:
    asked = case("vllm serve m --enforce-eager", log=(ODD,))
    fixes = find_fixes(asked, all_lints())

    assert fixes.findings[0].rule == "F10"
    assert "enforce_eager" not in fixes.to
    assert any(
        "first end the error in the log (F10 unexplained-error-in-log)" in text for text in fixes.later
    )


def test_flags_that_do_not_start_are_corrected_beside_an_error_in_the_log() -> None:
    asked = case("vllm serve m --swap-space 4", log=("NCCL error: unhandled system error",))
    fixes = find_fixes(asked, all_lints())

    assert fixes.to["swap_space"] is None
