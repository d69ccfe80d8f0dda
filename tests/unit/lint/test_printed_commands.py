"""Random command lines: what lint prints is accepted by the checks of a start, and never made worse."""

from collections import Counter

from lint.advice import advise, find_errors
from lint.precedence import ranked
from lint.rules import all_lints
from tests.support.random_commands import describe, random_cases
from tests.support.sampling import examples
from vllm_facts.shell_command.serve_command import edit_command
from vllm_facts.validity.engine import find_problems

SEED, COUNT = 20261123, 2000


def test_each_printed_command_is_accepted_by_the_checks_of_a_start() -> None:
    lints, seen = all_lints(), Counter[str]()
    for command, case in random_cases(SEED, examples(COUNT)):
        advice = advise(case, lints, ranked)
        before, after = find_errors(case, lints), find_errors(advice.after(case), lints)
        assert after.keys() <= before.keys(), describe(command, case)
        seen["refused" if before else "accepted"] += 1
        if after:
            assert {rule for rule, _ in after} <= {found.rule for found in advice.findings}
            seen["no command"] += 1
            continue
        printed = edit_command(command, advice.to, advice.env)
        assert {**printed.setting, **printed.exposure} == advice.after(case).setting, describe(command, case)
        assert not list(find_problems(advice.after(case))), describe(command, case)
    assert min(seen["refused"], seen["accepted"]) > sum(seen.values()) / 5
    assert seen["no command"] < seen["refused"] / 2
