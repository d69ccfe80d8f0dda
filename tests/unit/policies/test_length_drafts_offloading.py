"""Rules L1, L2, SD1 and O1: when each fires, does not fire, and is outranked."""

import json
from dataclasses import replace

import pytest

from flettner.agent.domain.model import Bound
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Drafting, Reading, RefusedRequests, Workload
from flettner.policies.admission import Admission
from flettner.policies.conformance.readings import a_context, a_reading, late, steady
from flettner.policies.context_length import ContextLength
from flettner.policies.offloading import Offloading
from flettner.policies.speculation import Speculation
from flettner.vllm_facts.serve_config import Model, ServeConfig
from flettner.vllm_facts.sizing.gpus import find_gpu
from flettner.vllm_facts.values import Value
from tests.support.proposals import precedence

LENGTH, OFFLOAD, SPECULATIVE = "max_model_len", "kv_offloading_size", "speculative_config"
SEEN = {"request_tokens_p99": 1500.0, "request_tokens_max": 3000.0}
SHORT = a_reading(running=16, waiting=2, kv=0.97, preemptions=1, series=SEEN)
LONG = a_context({LENGTH: 32768})
QUEUE = a_reading(running=16, waiting=4)
OFFLOADED = a_context({OFFLOAD: 8, LENGTH: 4096})
DRAFTS = a_context({SPECULATIVE: '{"method": "ngram", "num_speculative_tokens": 5}'})


def drafting(accepted_ratio: float, *, drafts: float = 1_000, tokens: int = 5) -> Drafting:
    return Drafting(drafts=drafts, drafted=tokens * drafts, accepted_ratio=accepted_ratio)


REJECTED = a_reading(drafting=drafting(0.001))
BUSY = a_reading(running=300, drafting=drafting(0.2))


def test_shortening_an_unused_context_requires_approval() -> None:
    (proposal,) = ContextLength().propose(SHORT, LONG)

    assert (proposal.rule, dict(proposal.to), proposal.klass) == ("L1", {LENGTH: 8192}, "gated")
    assert "the longest 3000, max_model_len allows 32768" in proposal.why
    assert proposal.risks == "requests of more than 8192 tokens are refused, which were accepted before"


@pytest.mark.parametrize(
    ("reading", "context"),
    [
        pytest.param(replace(SHORT, series={}), LONG, id="lengths are not known"),
        pytest.param(replace(SHORT, series={"request_tokens_p99": 1500.0}), LONG, id="nor the longest"),
        pytest.param(
            replace(SHORT, series={**SEEN, "request_tokens_p99": 20000.0}), LONG, id="some are that long"
        ),
        pytest.param(
            replace(SHORT, series={**SEEN, "request_tokens_max": 30000.0}), LONG, id="one was that long"
        ),
        pytest.param(replace(QUEUE, series=SEEN), LONG, id="the cache is free"),
        pytest.param(SHORT, a_context({}), id="the limit is not known"),
        pytest.param(SHORT, a_context({LENGTH: 32768}, bounds={LENGTH: Bound(min=32768)}), id="at the bound"),
        pytest.param(replace(SHORT, coverage=0.7), LONG, id="scrapes are missing"),
    ],
)
def test_l1_proposes_nothing(reading: Reading, context: Context) -> None:
    assert not ContextLength().propose(reading, context)


REFUSING = a_reading(
    prompt_tokens=1000,
    refused=RefusedRequests(count=10, accepted=30, longer=1.0, longest_bytes=24_000, accepted_bytes=4_000),
    work=Workload(answer_tokens=200.0),
)
SMALL = a_context({LENGTH: 4096})


def fitted(model: Model) -> Context:
    return replace(SMALL, config=ServeConfig(setting=SMALL.setting, model=model))


def holding(tokens: int) -> Reading:
    return replace(REFUSING, facts={**REFUSING.facts, "kv_cache_size_tokens": str(tokens)})


@pytest.mark.parametrize(
    ("reading", "context", "advice"),
    [
        pytest.param(
            REFUSING,
            SMALL,
            "propose a larger max_model_len, or shorten the prompts: max_model_len 7168",
            id="no limit is known",
        ),
        pytest.param(
            holding(30_000),
            fitted(Model(name="long", max_len=32_768)),
            "propose a larger max_model_len, or shorten the prompts: max_model_len 7168 (the model allows "
            "it, the KV cache holds 30000 tokens)",
            id="model and cache allow it",
        ),
        pytest.param(
            holding(30_000),
            fitted(Model(name="short", max_len=4096)),
            "the model itself takes at most 4096 tokens: shorten the prompts",
            id="the model does not",
        ),
        pytest.param(
            holding(5_000),
            fitted(Model(name="long", max_len=32_768)),
            "propose a larger max_model_len, or shorten the prompts; the KV cache holds 5000 tokens, too few "
            "for one such request: it needs more memory first",
            id="the cache does not",
        ),
    ],
)
def test_requests_that_are_too_long_are_named_with_what_they_need(
    reading: Reading, context: Context, advice: str
) -> None:
    (note,) = ContextLength().propose(reading, context)

    assert (note.rule, note.klass, dict(note.to), note.expects) == ("L2", "note", {}, advice)
    assert note.why == (
        "25% of the requests, 10 in 30 s, were refused with status 400, and 100% of them are longer than "
        "nearly all accepted ones: max_model_len is 4096; the longest takes about 7168 tokens with its answer"
    )


@pytest.mark.parametrize(
    "refused",
    [
        pytest.param(None, id="none"),
        pytest.param(RefusedRequests(count=10, accepted=30), id="sizes are not recorded"),
        pytest.param(RefusedRequests(count=10, accepted=30, longer=0.2), id="they are as short as others"),
        pytest.param(RefusedRequests(count=4, accepted=30, longer=1.0), id="few"),
        pytest.param(RefusedRequests(count=10, accepted=2000, longer=1.0), id="a small share"),
    ],
)
def test_other_refusals_are_left_to_the_clients(refused: RefusedRequests | None) -> None:
    assert not ContextLength().propose(replace(REFUSING, refused=refused), SMALL)


def test_disables_drafts_that_are_rejected() -> None:
    (proposal,) = Speculation().propose(REJECTED, DRAFTS)

    assert (proposal.rule, dict(proposal.to), proposal.klass) == ("SD1", {SPECULATIVE: None}, "gated")
    assert proposal.why.startswith("0% of the drafted tokens are accepted, 4.0 requests ran over 30 s")
    assert "a sequence gets 0.91 times as many tokens a second as without a draft" in proposal.why
    assert proposal.expects == "about 9% more tokens a second at this load"


def test_drafts_fewer_tokens_if_some_are_accepted() -> None:
    """A batch of 300 with five drafts is beyond the ridge, with one draft it is not."""
    (proposal,) = Speculation().propose(BUSY, a_context({"spec_method": "ngram", "spec_tokens": 5}))

    assert (dict(proposal.to), proposal.klass) == ({"spec_tokens": 1}, "gated")


def test_the_number_of_drafts_inside_the_json_is_changed_there() -> None:
    (proposal,) = Speculation().propose(BUSY, DRAFTS)

    assert dict(proposal.to) == {SPECULATIVE: '{"method": "ngram", "num_speculative_tokens": 1}'}


@pytest.mark.parametrize(("drafts", "proposals"), [(150, 0), (2_000, 1)])
def test_the_acceptance_is_that_of_vllms_counters(drafts: int, proposals: int) -> None:
    """MTP without a number in its flags drafts three tokens each time; 100 drafts are too few."""
    reading = a_reading(running=20, drafting=drafting(0.01, drafts=drafts, tokens=3))

    made = Speculation().propose(reading, a_context({SPECULATIVE: '{"method": "mtp"}'}))

    assert [dict(proposal.to) for proposal in made] == [{SPECULATIVE: None}] * proposals


@pytest.mark.parametrize(
    ("over", "method", "wanted"), [(0.5, "eagle3", 4), (0.01, "eagle3", None), (0.5, "dflash", None)]
)
def test_drafts_more_where_tokens_are_late_and_nearly_all_are_accepted(
    over: float, method: str, wanted: int | None
) -> None:
    reading = a_reading(running=4, itl=late(over), drafting=drafting(0.9, tokens=2))

    made = Speculation().propose(reading, a_context({"spec_method": method, "spec_tokens": 2}))

    assert [proposal.to["spec_tokens"] for proposal in made] == ([] if wanted is None else [wanted])


def test_a_schedule_by_the_batch_is_left_alone() -> None:
    entries = {"method": "ngram", "num_speculative_tokens": 5}
    scheduled = json.dumps({**entries, "num_speculative_tokens_per_batch_size": [[1, 9, 5]]})

    assert not Speculation().propose(BUSY, a_context({SPECULATIVE: scheduled}))


def test_disables_drafts_for_a_large_batch() -> None:
    """Beyond the ridge without a draft: each draft costs as much as a token."""
    full = a_reading(running=1000, drafting=drafting(0.2))

    (proposal,) = Speculation().propose(full, a_context({"spec_method": "ngram", "spec_tokens": 5}))

    assert dict(proposal.to) == {"spec_method": None, "spec_tokens": None}


def test_the_ridge_is_that_of_the_gpu() -> None:
    """An H100 computes 296 tokens in the time in which it reads 16-bit weights, an RTX 3090 76."""
    busy = a_reading(running=40, drafting=drafting(0.2))
    setting: dict[str, Value] = {"spec_method": "ngram", "spec_tokens": 5}

    def on(gpu: str) -> Context:
        return replace(a_context(setting), config=ServeConfig(setting=setting, card=find_gpu(gpu)))

    assert not Speculation().propose(busy, on("H100"))
    assert Speculation().propose(busy, on("RTX 3090"))


@pytest.mark.parametrize(
    ("reading", "context"),
    [
        pytest.param(REJECTED, a_context({}), id="nothing is drafted"),
        pytest.param(a_reading(), DRAFTS, id="acceptance is not known and the batch small"),
        pytest.param(
            a_reading(running=1000), DRAFTS, id="acceptance is not known, though the batch is large"
        ),
        pytest.param(replace(REJECTED, drafting=drafting(0.7)), DRAFTS, id="accepted"),
        pytest.param(
            replace(REJECTED, drafting=drafting(0.2)),
            DRAFTS,
            id="two tokens a step, for little",
        ),
        pytest.param(
            replace(REJECTED, drafting=drafting(0.0, tokens=0)),
            a_context({SPECULATIVE: '{"method": "mtp"}'}),
            id="a method without a number drafted nothing",
        ),
        pytest.param(replace(REJECTED, coverage=0.7), DRAFTS, id="scrapes are missing"),
        pytest.param(
            REJECTED, a_context(DRAFTS.setting, bounds={SPECULATIVE: Bound(allowed=("x",))}), id="forbidden"
        ),
    ],
)
def test_sd1_proposes_nothing(reading: Reading, context: Context) -> None:
    assert not Speculation().propose(reading, context)


def test_removes_offloading_if_contexts_are_short() -> None:
    (proposal,) = Offloading().propose(QUEUE, OFFLOADED)

    assert (proposal.rule, dict(proposal.to), proposal.klass) == ("O1", {OFFLOAD: None}, "auto")
    assert "8 GiB of KV offloading are on while requests take at most 4096 tokens" in proposal.why
    assert "not promised" in proposal.expects


@pytest.mark.parametrize(
    ("reading", "setting"),
    [
        pytest.param(QUEUE, {LENGTH: 4096}, id="it is off"),
        pytest.param(QUEUE, {OFFLOAD: 8, LENGTH: 32768}, id="contexts are long"),
        pytest.param(QUEUE, {OFFLOAD: 8}, id="their length is not known"),
        pytest.param(replace(QUEUE, kv_usage=steady(0.9)), OFFLOADED.setting, id="the cache needs it"),
        pytest.param(replace(QUEUE, kv_usage=None), OFFLOADED.setting, id="the cache is not known"),
        pytest.param(a_reading(itl=late(0.0)), OFFLOADED.setting, id="nothing is slow"),
        pytest.param(replace(QUEUE, coverage=0.7), OFFLOADED.setting, id="scrapes are missing"),
    ],
)
def test_o1_proposes_nothing(reading: Reading, setting: dict[str, Value]) -> None:
    assert not Offloading().propose(reading, a_context(setting))


def test_ranks_mitigations_first_and_operator_decisions_last() -> None:
    pressed = replace(SHORT, series=SEEN, drafting=drafting(0.01))
    context = a_context({**LONG.setting, **DRAFTS.setting, "max_num_seqs": 16})
    queue = a_context({**OFFLOADED.setting, "max_num_seqs": 16})
    policies = (ContextLength(), Speculation(), Offloading(), Admission())

    winners, _ = precedence(pressed, context, *policies)

    assert (winners[0], winners[-3:]) == ("K1", ["L1", "SD1", "Q2"])
    assert precedence(QUEUE, queue, *policies)[0] == ["Q1", "O1"]
