"""Fixes from findings: order, contradictions and combined changes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from flettner.agent.domain.model import Evidence, Proposal
from flettner.lint.fixes import build_rows, find_errors, find_fixes
from flettner.lint.rules import all_lints
from flettner.rules.precedence import Ordered, Outranked, S
from flettner.tools.advisor.run_policies import finding_of
from flettner.vllm_facts.models.lookup import find_model
from flettner.vllm_facts.serve_config import NO_NEEDS, Finding, FindingSeverity, Needs, ServeConfig
from flettner.vllm_facts.sizing.gpus import find_gpu
from flettner.vllm_facts.values import Value
from tests.support.lint_cases import L40S, LLAMA_70B, case
from tests.support.proposals import rules

CASE = ServeConfig(setting={"model": "m", "max_num_seqs": 4, "enforce_eager": True}, env={"A": "1"})


def keep_order(items: Sequence[S]) -> Ordered[S]:
    return Ordered(tuple(items))


@dataclass(frozen=True)
class FixedLint:
    """A lint that returns a given finding if it applies."""

    finding: Finding
    when: Callable[[ServeConfig], bool] = lambda _: True
    needs: Needs = NO_NEEDS

    @property
    def rules(self) -> tuple[str, ...]:
        return (self.finding.rule,)

    def check(self, case: ServeConfig) -> Iterable[Finding]:
        return (self.finding,) if self.when(case) else ()


def finding(rule: str, severity: FindingSeverity = "warning", **to: Value) -> Finding:
    return Finding(rule=rule, klass="auto", severity=severity, why="because", source="a test", to=to)


def first_only(reported: Sequence[S]) -> Ordered[S]:
    return Ordered(
        tuple(reported[:1]), tuple(Outranked(lost, reported[0].rule, "it is second") for lost in reported[1:])
    )


def test_ranks_errors_before_warnings_before_all_else() -> None:
    lints = [FixedLint(finding("I", "info")), FixedLint(finding("W")), FixedLint(finding("E", "error"))]

    assert rules(find_fixes(CASE, lints, rank=keep_order).findings) == ["E", "W", "I"]


def test_combines_all_compatible_changes() -> None:
    lints = [FixedLint(finding("A", max_num_seqs=8)), FixedLint(finding("B", enforce_eager=False))]

    fixes = find_fixes(CASE, lints, rank=keep_order)

    assert fixes.to == {"max_num_seqs": 8, "enforce_eager": False}
    assert fixes.after(CASE).setting == {"model": "m", "max_num_seqs": 8, "enforce_eager": False}


def test_first_of_two_contradicting_findings_applies() -> None:
    lints = [FixedLint(finding("A", max_num_seqs=8)), FixedLint(finding("B", max_num_seqs=2))]
    fixes = find_fixes(CASE, lints, rank=keep_order)

    assert (rules(fixes.findings), fixes.to) == (["A"], {"max_num_seqs": 8})


def test_change_that_would_bring_an_error_is_shown_as_a_note() -> None:
    def many(case: ServeConfig) -> bool:
        return case.setting.get("max_num_seqs") == 8

    lints = [FixedLint(finding("A", max_num_seqs=8)), FixedLint(finding("E", "error"), when=many)]

    fixes = find_fixes(CASE, lints, rank=keep_order)

    (note,) = fixes.findings
    assert (note.rule, note.klass, dict(note.to), fixes.to) == ("A", "note", {}, {})
    assert note.expects == "A (max_num_seqs 8) would help, but the server would not start with it: E: because"
    assert fixes.outranked == ()


def test_change_that_would_bring_an_error_takes_along_the_change_that_prevents_it() -> None:
    def too_long(case: ServeConfig) -> bool:
        return case.setting.get("enforce_eager") is False and "max_model_len" not in case.setting

    shorter = replace(
        finding("L", "error", max_model_len=8), klass="gated", risks="long requests are refused"
    )
    lints = [FixedLint(finding("G", enforce_eager=False)), FixedLint(shorter, when=too_long)]

    fixes = find_fixes(CASE, lints, rank=keep_order)

    (shown,) = fixes.findings
    assert (shown.rule, shown.klass) == ("G", "gated")
    assert fixes.to == {"enforce_eager": False, "max_model_len": 8}
    assert "would not start without L (max_model_len 8); long requests are refused" in shown.risks


def test_finding_that_is_shown_as_a_note_outranks_no_other_finding() -> None:
    def many(case: ServeConfig) -> bool:
        return case.setting.get("max_num_seqs") == 8

    lints = [
        FixedLint(finding("Q1", max_num_seqs=8)),
        FixedLint(finding("N1", "info")),
        FixedLint(finding("E", "error"), many),
    ]

    fixes = find_fixes(CASE, lints)

    assert (rules(fixes.findings), fixes.outranked) == (["Q1", "N1"], ())


def test_error_outranks_a_contradicting_finding() -> None:
    """Precedence drops the error first; only an error may outrank it, so it is restored."""
    lints = [FixedLint(finding("L1", "error", max_num_seqs=2)), FixedLint(finding("M1", max_num_seqs=8))]

    fixes = find_fixes(CASE, [*lints, FixedLint(finding("Q2", "info"))])

    assert (rules(fixes.findings), fixes.to) == (["L1", "Q2"], {"max_num_seqs": 2})
    assert [(lost.what.rule, lost.by) for lost in fixes.outranked] == [("M1", "L1")]


@pytest.mark.parametrize("gpus", [None, 1])
def test_lint_example_of_the_readme_has_a_finding(gpus: int | None) -> None:
    command = "vllm serve Qwen/Qwen3-8B --enforce-eager --max-num-seqs 16"
    config = case(command, model=find_model("Qwen/Qwen3-8B"), card=find_gpu("L4"), gpus=gpus)

    fixes = find_fixes(config, all_lints())

    assert rules(fixes.findings) == ["G1"]
    assert fixes.to == {"enforce_eager": False, "max_model_len": 26624}


def test_error_fixed_by_an_earlier_change_needs_no_change() -> None:
    def many(case: ServeConfig) -> bool:
        return case.setting.get("max_num_seqs") == 4

    lints = [
        FixedLint(finding("V1", "error", max_num_seqs=2), when=many),
        FixedLint(finding("D2", "error", tensor_parallel_size=4), when=many),
    ]

    fixes = find_fixes(CASE, lints, rank=keep_order)

    assert (rules(fixes.findings), fixes.to) == (["V1"], {"max_num_seqs": 2})
    assert [(lost.what.rule, lost.by) for lost in fixes.outranked] == [("D2", "V1")]


def test_never_proposes_more_sequences_than_batched_tokens() -> None:
    case = ServeConfig(setting={"max_num_batched_tokens": 512, "max_num_seqs": 4})

    fixes = find_fixes(case, [FixedLint(finding("A", max_num_seqs=1024))], rank=keep_order)

    assert fixes.to == {}


def test_applies_a_stepwise_rule_until_it_settles() -> None:
    class Doubles:
        rules = ("D",)
        needs = NO_NEEDS

        def check(self, case: ServeConfig) -> Iterable[Finding]:
            seqs = case.setting["max_num_seqs"]
            if isinstance(seqs, int) and seqs < 30:
                yield finding("D", max_num_seqs=2 * seqs)

    assert find_fixes(CASE, [Doubles()], rank=keep_order).to == {"max_num_seqs": 32}


def test_applies_only_the_first_change_of_a_cyclic_rule() -> None:
    class Turns:
        rules = ("T",)
        needs = NO_NEEDS

        def check(self, case: ServeConfig) -> Iterable[Finding]:
            yield finding("T", max_num_seqs=8 if case.setting["max_num_seqs"] == 4 else 4)

    assert find_fixes(CASE, [Turns()], rank=keep_order).to == {"max_num_seqs": 8}


def test_only_an_error_outranks_an_error() -> None:
    lints = [FixedLint(finding("E", "error")), FixedLint(finding("F", "error"))]
    live = [finding("Q", max_num_seqs=8)]

    fixes = find_fixes(CASE, lints, live, rank=first_only)

    assert rules(fixes.findings) == ["E", "F", "Q"]
    assert fixes.outranked == ()


def test_reports_advice_once_if_traffic_turns_it_into_a_change() -> None:
    live = [finding("O", kv_offloading_size=None)]

    fixes = find_fixes(CASE, [FixedLint(finding("O")), FixedLint(finding("N"))], live, rank=keep_order)

    assert [(finding.rule, dict(finding.to)) for finding in fixes.findings] == [
        ("O", {"kv_offloading_size": None}),
        ("N", {}),
    ]


def test_applies_only_the_first_measured_finding() -> None:
    live = [finding("Q", max_num_seqs=8), finding("P", max_num_batched_tokens=4096)]

    fixes = find_fixes(CASE, [FixedLint(finding("G", enforce_eager=False))], live, rank=keep_order)

    assert fixes.to == {"max_num_seqs": 8, "enforce_eager": False}
    assert fixes.later == (
        "P (max_num_batched_tokens 4096): one change at a time; first measure Q (max_num_seqs 8)",
    )


def test_another_layout_waits_until_a_server_that_failed_starts() -> None:
    """The log's error is no fault of the flags alone: they show it only together with the log."""
    failed = finding("H", "error", kv_cache_dtype="bfloat16")
    split, graphs = (
        finding("D", "info", tensor_parallel_size=1, pipeline_parallel_size=8),
        finding("G", seed=1),
    )
    config = replace(CASE, log=("it failed",))

    fixes = find_fixes(config, [FixedLint(split), FixedLint(graphs)], standing=[failed], rank=keep_order)

    assert fixes.to == {"kv_cache_dtype": "bfloat16", "seed": 1}
    assert fixes.later == (
        "D (tensor_parallel_size 1, pipeline_parallel_size 8): first start with H (kv_cache_dtype bfloat16)",
    )


def test_a_remark_comes_after_what_changes_something() -> None:
    """E1 ranks before H3, but an old release without a known loss is a remark only."""
    config = case("vllm serve m --attention-backend FLASHINFER", card=L40S, version="0.13.0")

    assert rules(find_fixes(config, all_lints()).findings) == ["H3", "E1"]


def test_flags_and_traffic_that_agree_are_one_finding() -> None:
    seen = Proposal(
        rule="G",
        to={"enforce_eager": False},
        why="seen",
        expects="",
        risks="",
        source="s",
        evidence=(Evidence(metric="running", value=2.0, unit="requests", window_s=30.0),),
    )

    fixes = find_fixes(
        CASE, [FixedLint(finding("G", enforce_eager=False))], [finding_of(seen)], rank=keep_order
    )

    (shown,) = fixes.findings
    assert (shown.why, shown.evidence) == ("because", {"running": 2.0, "window_s": 30.0})


def test_a_row_for_each_knob_and_variable_or_one_without() -> None:
    changes = Finding(
        rule="X",
        klass="gated",
        why="",
        source="",
        to={"max_num_seqs": 8, "block_size": 16},
        env={"A": None},
    )
    assumed: Mapping[str, Value] = {"block_size": 32}

    shown = [(row["knob"], row["current"], row["suggested"]) for row in build_rows(changes, CASE, assumed)]
    nothing = build_rows(finding("N"), CASE, {})

    assert shown == [("max_num_seqs", 4, 8), ("block_size", 32, 16), ("env:A", "1", None)]
    assert [(row["rule"], row["knob"]) for row in nothing] == [("N", None)]


def test_an_error_yields_to_the_change_that_fixes_another_error_as_well() -> None:
    """D2 needs more GPUs and a shorter context than the one that V1 asks for."""
    model = replace(LLAMA_70B, max_len=32768)
    config = case("vllm serve m --max-model-len 262144", card=L40S, gpus=4, model=model)

    fixes = find_fixes(config, all_lints())

    assert fixes.to["pipeline_parallel_size"] == 4
    assert not find_errors(fixes.after(config), all_lints())
