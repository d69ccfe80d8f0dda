"""The order of the rules, and the rules that outrank each other."""

from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flettner.agent.domain.model import Proposal
from flettner.rules.precedence import ranked
from flettner.rules.table import ANY, ORDER, REASONS, YIELDS
from flettner.vllm_facts.serve_config import Finding
from flettner.vllm_facts.values import Knob, Value
from tests.support.proposals import rules

SEQS, SHARE, BUDGET = "max_num_seqs", "gpu_memory_utilization", "max_num_batched_tokens"
RULES = [rule for band in ORDER for rule in band.rules]


def a(rule: str, to: dict[Knob, Value] | None = None, *, mitigation: bool = False) -> Proposal:
    return Proposal(
        rule=rule,
        to=to or {},
        why="1",
        expects="more",
        risks="few",
        source="test",
        klass="auto" if to else "note",
        mitigation=mitigation,
    )


Q1 = a("Q1", {SEQS: 256}, mitigation=True)
K1 = a("K1", {SEQS: 64}, mitigation=True)
M1 = a("M1", {SHARE: 0.92}, mitigation=True)
M6 = a("M6", {"kv_cache_memory_bytes": 1 << 30}, mitigation=True)
P1 = a("P1", {BUDGET: 4096}, mitigation=True)
G1 = a("G1", {"enforce_eager": False})


def winning(*proposals: Proposal) -> list[str]:
    return rules(ranked(proposals).winners)


def test_every_rule_has_one_rank_and_every_row_a_reason() -> None:
    assert len(RULES) == len(set(RULES))
    assert all(band.why and band.rules for band in ORDER)
    assert all(row.why and {*row.rules, *row.to} <= {*RULES, ANY} for row in YIELDS)
    assert set(REASONS) == set(RULES)


def test_graph_size_ranks_before_the_token_budget() -> None:
    assert winning(a("P2", {BUDGET: 1024}), a("G2", {"max_cudagraph_capture_size": 1024})) == ["G2"]


def test_no_two_rules_outrank_each_other() -> None:
    pairs = {(loser, winner) for row in YIELDS for loser in row.rules for winner in row.to}

    assert not [pair for pair in pairs if ANY not in pair and pair[::-1] in pairs]


@pytest.mark.parametrize(
    ("proposals", "winners"),
    [
        pytest.param((Q1, a("T1")), ["T1"], id="a throttling GPU holds every change"),
        pytest.param((K1, M1, a("M2", {SHARE: 0.8}), a("T1")), ["T1"], id="mitigations too"),
        pytest.param((Q1, K1), ["K1"], id="KV pressure outranks the queue"),
        pytest.param((Q1, a("Q2")), ["Q2"], id="KV pressure outranks more sequences"),
        pytest.param((Q1, M6, K1), ["M6", "K1"], id="a fixed size of the cache is such pressure, too"),
        pytest.param((K1, M1), ["M1", "K1"], id="first more KV cache, then fewer sequences"),
        pytest.param((M1, Q1, a("M2", {SHARE: 0.85})), ["M2"], id="nothing takes more memory after an OOM"),
        pytest.param((P1, Q1), ["Q1"], id="the queue makes requests late"),
        pytest.param((a("Q4"), Q1), ["Q1"], id="a capped queue is no stall"),
        pytest.param((a("C1", {"api_server_count": 2}), Q1), ["Q1"], id="nor is the host its bottleneck"),
        pytest.param((a("N1"), P1), ["P1"], id="replicas are what remains"),
        pytest.param((a("N1"), a("Q3")), ["Q3", "N1"], id="notes do not outrank each other"),
        pytest.param((G1, P1), ["P1", "G1"], id="a mitigation outranks an optimisation"),
        pytest.param((a("G2", {"max_cudagraph_capture_size": 1024}), G1), ["G1"], id="graphs first"),
        pytest.param((a("G3", {"optimization_level": None}), G1), ["G1"], id="their mode later"),
        pytest.param((a("P3", {BUDGET: 4096}), a("P4", {"x": 1})), ["P4"], id="the warm knob for a tail"),
        pytest.param((a("C2"), a("K3")), ["K3"], id="over-provisioned outranks under-loaded"),
        pytest.param((a("O1", {"y": None}), a("X1", {"z": None})), ["X1", "O1"], id="by the table"),
        pytest.param((a("A1", {"y": None}), a("P4", {"z": 1})), ["P4", "A1"], id="a tail before a gain"),
        pytest.param((a("L1", {"y": 1}), K1), ["K1", "L1"], id="a person's decision comes later"),
        pytest.param((a("SD1", {"y": 1}), a("X1", {"z": 1})), ["X1", "SD1"], id="so does speculation"),
        pytest.param((P1, Q1, a("M2", {SHARE: 0.8}), a("N1")), ["M2"], id="P1 yields to M2, not to Q1"),
        pytest.param(
            (a("P3", {BUDGET: 1}), a("P2", {BUDGET: 2}), a("G2", {BUDGET: 3}), a("F2")),
            ["P2", "F2"],
            id="an outranked rule outranks nothing",
        ),
        pytest.param((a("X2"), G1), ["G1", "X2"], id="notes come last"),
    ],
)
def test_the_expected_findings_win(proposals: Sequence[Proposal], winners: list[str]) -> None:
    assert winning(*proposals) == winners
    assert winning(*reversed(proposals)) == winners


def test_outranked_finding_names_its_winner_and_the_reason() -> None:
    (lost,) = ranked([Q1, K1]).outranked

    assert (lost.what, lost.by) == (Q1, "K1")
    assert lost.why == "the KV cache is the bottleneck: more sequences would make it worse"


def test_two_rules_never_propose_different_values_of_one_knob() -> None:
    ordered = ranked([a("X9", {SEQS: 8}), a("Y9", {SEQS: 512})])

    assert rules(ordered.winners) == ["X9"]
    assert ordered.outranked[0].why == "it wants another max_num_seqs"


def test_one_rule_can_offer_an_alternative() -> None:
    assert winning(a("K1", {"watermark": 0.02}), K1) == ["K1", "K1"]


def test_third_party_mitigation_ranks_after_shipped_ones_and_before_optimisations() -> None:
    third_party = a("Z1", {"x": 1}, mitigation=True)

    assert winning(G1, a("Z2", {"y": 1}), third_party, P1, a("Z3")) == ["P1", "Z1", "G1", "Z2", "Z3"]


def test_ranks_findings_like_proposals() -> None:
    def finding(rule: str, to: dict[Knob, Value]) -> Finding:
        return Finding(rule=rule, klass="auto", severity="warning", why="1", source="test", to=to)

    ordered = ranked(
        [finding("W1", {SEQS: 128}), finding("V1", {"swap_space": None}), finding("M4", {SHARE: 0.85})]
    )

    assert rules(ordered.winners) == ["V1", "M4", "W1"]


def test_a_finding_that_changes_only_the_environment_is_a_change() -> None:
    tuned = Finding(
        rule="U1",
        klass="gated",
        severity="warning",
        why="1",
        source="test",
        env={"VLLM_MOE_USE_DEEP_GEMM": "0"},
    )
    template = Finding(rule="W1", klass="auto", why="1", source="test", to={SEQS: 64})

    assert rules(ranked([template, tuned]).winners) == ["U1", "W1"]


PROPOSALS = st.lists(
    st.builds(
        a,
        st.sampled_from([*RULES, "Z1"]),
        st.dictionaries(st.sampled_from([SEQS, SHARE, BUDGET]), st.integers(1, 3), max_size=2),
        mitigation=st.booleans(),
    ),
    max_size=8,
)


@given(PROPOSALS)
def test_loses_no_finding_and_keeps_no_contradiction(proposals: list[Proposal]) -> None:
    ordered = ranked(proposals)

    parts = [*ordered.winners, *(lost.what for lost in ordered.outranked)]
    assert sorted(map(id, parts)) == sorted(map(id, proposals))
    assert ordered.winners or not proposals or {lost.by for lost in ordered.outranked} <= {*rules(proposals)}
    for first, second in combinations(ordered.winners, 2):
        shared = first.to.keys() & second.to.keys() if first.rule != second.rule else set()
        assert all(first.to[knob] == second.to[knob] for knob in shared)


@given(PROPOSALS)
def test_always_keeps_a_finding(proposals: list[Proposal]) -> None:
    assert bool(ranked(proposals).winners) == bool(proposals)


@given(PROPOSALS)
def test_rule_that_outranks_another_wins(proposals: list[Proposal]) -> None:
    ordered = ranked(proposals)

    assert {lost.by for lost in ordered.outranked} <= {*rules(ordered.winners)}


@given(PROPOSALS)
@example([a("P2", {SEQS: 2}), a("D1", {SEQS: 1}), a("G2", {SEQS: 2})])  # a cycle
def test_no_winner_outranks_another(proposals: list[Proposal]) -> None:
    winners = set(winning(*proposals))

    assert not [row for row in YIELDS if winners & {*row.rules} and winners & {*row.to}]


def test_notes_of_a_log_come_before_notes_on_the_build() -> None:
    notes = [Finding(rule=rule, why="1") for rule in ("E1", "F1", "H3")]

    assert [note.rule for note in ranked(notes).winners] == ["F1", "E1", "H3"]
