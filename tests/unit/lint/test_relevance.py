"""Within a severity, what the log shows comes first, and what holds for any server comes last."""

from dataclasses import replace

import pytest

from flettner.lint.fixes import find_fixes_in_rounds
from flettner.lint.relevance import find_line
from flettner.lint.rules import all_lints
from flettner.vllm_facts.models.lookup import find_model
from flettner.vllm_facts.serve_config import Container, Finding, HealthCheck, ServeConfig
from tests.support.lint_cases import H100, H200, L40S, LLAMA_8B, LLAMA_70B, case
from tests.support.proposals import rules

WAITING = (
    "INFO [loggers.py:1] Engine 000: Avg prompt throughput: 12.0 tokens/s, Avg generation throughput: "
    "80.1 tokens/s, Running: 2 reqs, Waiting: 14 reqs, GPU KV cache usage: 0.4%, Prefix cache hit rate: 0.0%"
)
NO_CAUSE = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
UNKNOWN = "ValueError: some text that no row of this tool has"
COMPILED = "INFO [monitor.py:53] torch.compile took 42.10 s in total"


def ordered(config: ServeConfig) -> list[str]:
    return rules(find_fixes_in_rounds(config, all_lints()).findings)


def test_a_warning_of_the_log_comes_before_warnings_on_flags() -> None:
    config = case("vllm serve m --max-num-seqs 2 --enforce-eager", model=LLAMA_8B, card=L40S, log=(WAITING,))

    assert ordered(replace(config, log=()))[0] == "G1"
    assert ordered(config)[:2] == ["F8", "G1"]


def test_a_server_that_its_health_check_misses_comes_before_costs_in_speed() -> None:
    check = HealthCheck(name="healthcheck", port=8000, inside=True)
    container = Container(launcher="compose", image="org/server:1", checks=(check,))
    config = case("vllm serve m --enforce-eager --host 10.8.0.2", port=8000, card=L40S, container=container)

    assert ordered(config)[:2] == ["U5", "G1"]


def test_a_model_that_no_flag_makes_fit_comes_before_flags_that_are_refused() -> None:
    config = case(
        "vllm serve m -tp 1 --max-num-seqs 256 --max-num-batched-tokens 100", model=LLAMA_70B, card=L40S
    )

    assert ordered(config)[:2] == ["D2", "V1"]


ALONE = (
    "INFO [loggers.py:1] Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: "
    "21.5 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.4%, Prefix cache hit rate: 0.0%"
)


def test_what_the_counts_are_comes_behind_their_causes_and_before_notes_on_any_server() -> None:
    config = case(
        "vllm serve m -tp 2 -O0", model=LLAMA_70B, card=H100, gpus=2, log=(ALONE, ALONE), version="0.12.0"
    )

    assert [rule for rule in ordered(config) if rule in {"G3", "C2", "E1"}] == ["G3", "C2", "E1"]


@pytest.mark.parametrize("line", [NO_CAUSE, UNKNOWN])
def test_an_error_that_nobody_knows_comes_after_a_certain_fault(line: str) -> None:
    config = case("vllm serve m --gpu-memory-utilization 1", model=LLAMA_8B, card=H100, log=(line,))

    assert ordered(config)[:2] == ["M4", "F10"]


def test_a_note_on_the_command_comes_before_notes_on_any_server() -> None:
    adapters = "--enable-lora --max-loras 4 --max-lora-rank 256 --lora-modules a=/adapters/a"
    old = case(f"vllm serve m {adapters}", model=LLAMA_8B, card=H100, version="0.12.0")

    assert ordered(old)[:2] == ["M5", "E1"]


def test_a_note_on_the_model_comes_before_notes_on_any_model() -> None:
    embedder = find_model("Snowflake/snowflake-arctic-embed-m-v1.5")
    config = case(
        "vllm serve Snowflake/snowflake-arctic-embed-m-v1.5 --max-num-seqs 512",
        model=embedder,
        card=H100,
        version="0.12.0",
    )

    assert ordered(config) == ["C1", "E1"]


def test_a_remark_on_any_start_comes_last_unless_the_log_is_of_a_start_alone() -> None:
    config = case("vllm serve m --attention-backend FLASHINFER", card=L40S, version="0.13.0", log=(COMPILED,))

    assert ordered(config) == ["H3", "F6", "E1"]
    assert ordered(replace(config, log=(COMPILED, ALONE))) == ["H3", "E1", "F6"]


def test_a_known_defect_that_the_log_shows_comes_before_the_crash_that_it_explains() -> None:
    drafts = """--speculative-config '{"method":"mtp","num_speculative_tokens":2}'"""
    crash = "ERROR [core.py:1] torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
    config = case(f"vllm serve Qwen/Qwen3.6-27B {drafts}", version="0.26.0", log=(crash,))

    assert ordered(config)[:2] == ["V3", "F9"]
    assert find_fixes_in_rounds(config, all_lints()).findings[0].severity == "error"
    assert ordered(replace(config, log=("INFO one line",)))[0] == "V3"


def test_a_change_comes_before_the_note_on_the_same_message_of_the_log() -> None:
    refused = "ValueError: Tensor parallel size (8) cannot be larger than the number of available GPUs (4)."
    one_host = case("vllm serve m -tp 8", card=L40S, version="0.11.2", log=(refused,), gpus=4)
    config = replace(one_host, ray=True, hosts=2)

    first, second = find_fixes_in_rounds(config, all_lints()).findings[:2]
    assert (first.rule, bool(first.changes)) == ("V1", True)
    assert (second.rule, bool(second.changes)) == ("F9", False)


def test_a_suspected_fault_comes_before_an_error_that_names_no_flag() -> None:
    magistral = "vllm serve mistralai/Magistral-Small-2506"
    config = case(magistral, card=L40S, version="0.9.2", log=("TypeError: it is odd",))
    parsed = replace(config, log=("TypeError: --max-model-len is odd",))

    fixes = find_fixes_in_rounds(config, all_lints())
    assert fixes.findings[0].rule == "V1"
    assert fixes.to["config_format"] == "mistral"
    assert ordered(parsed)[0] == "F10"


def test_a_change_comes_before_one_that_lacks_a_fact() -> None:
    """V1 would leave the flag out if the release is known not to take it."""
    flags = "--disable-mm-preprocessor-cache --enforce-eager"
    config = case(f"vllm serve m {flags}", model=LLAMA_8B, card=L40S, version="")

    assert ordered(config)[:2] == ["G1", "V1"]


def test_of_errors_in_the_log_the_first_comes_first() -> None:
    denied = "PermissionError: [Errno 13] Permission denied: '/.triton'"
    template = (
        "ValueError: As of transformers v4.44, default chat template is no longer allowed, so you must "
        "provide a chat template if the tokenizer does not define one."
    )

    def lines(*log: str) -> list[str]:
        fixes = find_fixes_in_rounds(case("vllm serve m", log=log), all_lints())
        return [str(finding.evidence["line"])[:9] for finding in fixes.findings if finding.rule == "F9"]

    assert lines(denied, template)[0] != lines(template, denied)[0]


def test_the_last_of_equal_lines_counts_and_no_line_is_behind_all() -> None:
    quoted = Finding(rule="F9", why="1", evidence={"line": "no space"})

    assert find_line(quoted, ("no space", "other", "Errno 28: no space left")) == 2
    assert find_line(Finding(rule="F4", why="1"), ("a", "b")) == 2


def test_a_defect_of_any_such_server_comes_after_a_warning_on_these_flags() -> None:
    known = case("vllm serve openai/gpt-oss-120b --enforce-eager", card=H200)
    config = replace(known, version="0.17.1")

    assert ordered(config)[:2] == ["G1", "V3"]
