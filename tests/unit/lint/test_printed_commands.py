"""Random command lines: what lint prints is accepted by the checks of a start, and never made worse."""

from collections import Counter
from dataclasses import replace

from flettner.lint.fixes import find_errors, find_fixes, find_fixes_in_rounds
from flettner.lint.rules import all_lints
from flettner.vllm_facts.shell_command.serve_command import edit_command
from flettner.vllm_facts.validity.engine import find_problems
from tests.support.lint_cases import H100, LLAMA_8B, T4, case
from tests.support.random_commands import describe, random_cases
from tests.support.sampling import examples

SEED, COUNT = 20261123, 2000


def test_each_printed_command_is_accepted_by_the_checks_of_a_start() -> None:
    lints, seen = all_lints(), Counter[str]()
    for command, each in random_cases(SEED, examples(COUNT)):
        fixes = find_fixes_in_rounds(each, lints)
        before, after = find_errors(each, lints), find_errors(fixes.after(each), lints)
        assert after.keys() <= before.keys(), describe(command, each)
        seen["refused" if before else "accepted"] += 1
        if after:
            assert {rule for rule, _ in after} <= {finding.rule for finding in fixes.findings}
            seen["no command"] += 1
            continue
        printed = edit_command(command, fixes.to, fixes.env)
        assert {**printed.setting, **printed.exposure} == fixes.after(each).setting, describe(command, each)
        assert not list(find_problems(fixes.after(each))), describe(command, each)
        again = find_fixes_in_rounds(fixes.after(each), lints)
        seen["not settled"] += bool(again.to or again.env)
    assert min(seen["refused"], seen["accepted"]) > sum(seen.values()) / 5
    assert seen["no command"] < seen["refused"] / 2
    assert seen["not settled"] <= sum(seen.values()) / 500


def test_what_a_change_calls_for_is_proposed_with_it() -> None:
    """A larger batch needs larger graphs; each finding shows the value that the command gets."""
    config = case("vllm serve m --max-num-seqs 2 --max-cudagraph-capture-size 64", model=LLAMA_8B, card=H100)

    fixes = find_fixes_in_rounds(config, all_lints())

    assert fixes.to == {"max_num_seqs": 128, "max_cudagraph_capture_size": None}
    shown = {knob: value for finding in fixes.findings for knob, value in finding.to.items()}
    assert shown == fixes.to


def test_an_error_is_corrected_by_the_value_of_a_later_round() -> None:
    flags = "--tensor-parallel-size 16 --decode-context-parallel-size 2"
    config = case(f"vllm serve m {flags}", model=LLAMA_8B, card=H100, gpus=2)
    first = find_fixes(config, all_lints())

    fixes = find_fixes_in_rounds(config, all_lints())

    assert (first.to["tensor_parallel_size"], fixes.to["tensor_parallel_size"]) == (2, 1)
    assert {finding.to.get("tensor_parallel_size", 1) for finding in fixes.findings} == {1}
    assert "D1 needless-split says why" in next(
        finding.expects for finding in fixes.findings if finding.rule == "D3"
    )


def test_a_pipeline_that_holds_the_full_context_is_not_traded_for_a_shorter_one() -> None:
    model = replace(LLAMA_8B, weight_bytes=1.05, quantization="fp8")
    config = case("vllm serve m", model=model, card=T4, gpus=8)

    fixes = find_fixes_in_rounds(config, all_lints())
    again = find_fixes_in_rounds(fixes.after(config), all_lints())

    assert fixes.to == {"pipeline_parallel_size": 4}
    assert again.to == {}
