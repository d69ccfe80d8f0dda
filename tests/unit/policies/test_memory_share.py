"""Rules M1, M2 and M3: when each fires, does not fire, and is outranked."""

from dataclasses import replace
from datetime import timedelta

import pytest

from flettner.agent.domain.model import Bound, Outcome, Proposal
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Gpu, Incident, Reading
from flettner.policies.admission import Admission
from flettner.policies.conformance.readings import NOON, a_context, a_reading, promoted
from flettner.policies.memory_share import MemoryShare
from flettner.policies.thermal import Thermal
from flettner.vllm_facts.serve_config import Model, ServeConfig
from flettner.vllm_facts.values import Value
from tests.support.proposals import precedence

SHARE, SEQS, LENGTH = "gpu_memory_utilization", "max_num_seqs", "max_model_len"
MOE = Model(name="mixtral", experts=8)


def gpu(used: float) -> Gpu:
    return Gpu(index=0, uuid="GPU-1", memory_used_mib=used * 80_000, memory_total_mib=80_000)


SHORT = a_reading(running=30, waiting=4, kv=0.97, preemptions=0.5, gpus=(gpu(0.88),))
ROOMY = replace(SHORT, gpus=(gpu(0.6),))
OOM = Incident(at=NOON, server="chat-r0", what="oom", why="the kernel killed a process of it")
FAILED = replace(SHORT, incidents=(OOM,))
AT = {SHARE: 0.88, SEQS: 64}


def proposed(reading: Reading, context: Context | None = None) -> list[Proposal]:
    return list(MemoryShare().propose(reading, context or a_context(AT)))


def remembered(to: dict[str, Value], why: str) -> Outcome:
    return Outcome(at=NOON - timedelta(days=3), result="failed", to=to, why=why)


def test_raises_a_small_memory_share_without_gpu_metrics_only_with_approval() -> None:
    (proposal,) = proposed(replace(SHORT, gpus=()), a_context({SHARE: 0.5}))

    assert (proposal.rule, proposal.klass, dict(proposal.to)) == ("M1", "gated", {SHARE: 0.9})
    assert "vLLM takes only 50% of the GPU's memory" in proposal.why


def test_small_cache_with_free_memory_raises_the_share_by_a_small_step() -> None:
    (proposal,) = proposed(SHORT)

    assert (proposal.rule, dict(proposal.to), proposal.klass) == ("M1", {SHARE: 0.9}, "auto")
    assert proposal.mitigation
    assert proposal.why == (
        "over 30 s 0.50 preemptions/s, a KV cache 97% full and 4.0 requests waiting while the fullest GPU "
        "has 12% of its memory free: raise gpu_memory_utilization from 0.88 to 0.9"
    )


@pytest.mark.parametrize(
    ("share", "used", "to"),
    [
        pytest.param(0.3, 0.32, 0.5, id="two of 0.5 have no room beside what others hold"),
        pytest.param(0.2, 0.22, 0.4, id="two of 0.4 have"),
        pytest.param(0.2, 0.6, 0.4, id="others hold the memory of a green"),
    ],
)
def test_with_surge_a_raise_leaves_the_memory_of_a_green(share: float, used: float, to: float) -> None:
    reading, context = replace(SHORT, gpus=(gpu(used),)), a_context({**AT, SHARE: share})

    assert [dict(made.to) for made in proposed(reading, context)] == [{SHARE: to}]
    raised = proposed(reading, replace(context, strategy="surge"))
    assert bool(raised) is (2 * to + 0.06 <= 1 - (used - share))


def test_with_surge_no_share_is_raised_unseen() -> None:
    context = replace(a_context({SHARE: 0.5}), strategy="surge")

    assert not proposed(replace(SHORT, gpus=()), context)


@pytest.mark.parametrize(
    ("fixed", "to"),
    [
        pytest.param({"num_gpu_blocks_override": 40}, {"num_gpu_blocks_override": None}, id="blocks"),
        pytest.param({"kv_cache_memory_bytes": 1 << 30}, {"kv_cache_memory_bytes": 2 << 30}, id="bytes"),
    ],
)
def test_a_fixed_size_of_the_cache_is_freed_with_approval(
    fixed: dict[str, Value], to: dict[str, Value]
) -> None:
    (proposal,) = proposed(SHORT, a_context({**AT, **fixed}))

    assert (proposal.rule, proposal.to, proposal.assumed, proposal.klass) == ("M6", to, fixed, "gated")


def test_an_operators_bound_keeps_a_fixed_size() -> None:
    context = a_context(
        {**AT, "num_gpu_blocks_override": 40}, bounds={"num_gpu_blocks_override": Bound(max=80)}
    )

    assert not proposed(SHORT, context)


@pytest.mark.parametrize(
    ("reading", "context"),
    [
        pytest.param(replace(SHORT, coverage=0.7), a_context(AT), id="scrapes are missing"),
        pytest.param(replace(SHORT, gpus=()), a_context(AT), id="memory is not known"),
        pytest.param(replace(SHORT, gpus=(gpu(0.96),)), a_context(AT), id="no headroom"),
        pytest.param(replace(SHORT, gpus=(gpu(0.6), gpu(0.96))), a_context(AT), id="none on one GPU"),
        pytest.param(a_reading(running=30, waiting=4, gpus=(gpu(0.88),)), a_context(AT), id="KV is free"),
        pytest.param(a_reading(running=30, kv=0.97, gpus=(gpu(0.88),)), a_context(AT), id="nothing waits"),
        pytest.param(SHORT, a_context({SHARE: 0.92}), id="at the ceiling"),
        pytest.param(SHORT, a_context({SHARE: 0.88}, bounds={SHARE: Bound(max=0.88)}), id="at the bound"),
        pytest.param(
            SHORT, a_context(AT, outcomes=(promoted(SHARE, 0.92, 0.88, ago_s=60),)), id="lowered just now"
        ),
        pytest.param(
            SHORT,
            a_context(AT, outcomes=(remembered({SHARE: 0.92}, "CUDA out of memory"),)),
            id="memory ran out once",
        ),
        pytest.param(
            SHORT, replace(a_context(AT), config=ServeConfig(setting=AT, model=MOE)), id="a MoE model"
        ),
        pytest.param(
            replace(SHORT, facts={}), a_context({SEQS: 64}), id="neither the value nor the version is known"
        ),
    ],
)
def test_m1_proposes_nothing(reading: Reading, context: Context) -> None:
    assert not proposed(reading, context)


def test_reads_the_share_from_the_server_metrics() -> None:
    reported = replace(SHORT, facts={"version": "0.32.0", SHARE: "0.85"})

    (proposal,) = proposed(reported, a_context({}))

    assert (dict(proposal.to), dict(proposal.assumed)) == ({SHARE: 0.87}, {SHARE: 0.85})


def test_only_an_operators_bound_raises_the_share_ceiling() -> None:
    (proposal,) = proposed(
        replace(SHORT, gpus=(gpu(0.9),)), a_context({SHARE: 0.92}, bounds={SHARE: Bound(max=0.99)})
    )
    highest = proposed(
        replace(SHORT, gpus=(gpu(0.9),)), a_context({SHARE: 0.95}, bounds={SHARE: Bound(max=0.99)})
    )

    assert dict(proposal.to) == {SHARE: 0.94}
    assert not highest


def test_gpu_below_three_quarters_of_its_memory_gets_a_larger_step() -> None:
    (proposal,) = proposed(ROOMY, a_context({SHARE: 0.6}))

    assert (proposal.rule, dict(proposal.to)) == ("M3", {SHARE: 0.8})


@pytest.mark.parametrize(
    ("reading", "context"),
    [
        pytest.param(replace(ROOMY, coverage=0.5), a_context({SHARE: 0.6}), id="scrapes are missing"),
        pytest.param(a_reading(gpus=(gpu(0.6),)), a_context({SHARE: 0.6}), id="nothing needs the cache"),
        pytest.param(ROOMY, a_context({SHARE: 0.6}, bounds={SHARE: Bound(max=0.6)}), id="at the bound"),
        pytest.param(
            replace(ROOMY, gpus=(gpu(0.74), Gpu(index=1, uuid="b"))), a_context(AT), id="one is unknown"
        ),
    ],
)
def test_m3_proposes_nothing(reading: Reading, context: Context) -> None:
    assert not proposed(reading, context)


def test_oom_backs_off_in_steps_and_the_last_requires_approval() -> None:
    shares = [proposed(FAILED, a_context({SHARE: at, SEQS: 64}))[0].to for at in (0.92, 0.85)]
    (seqs,) = proposed(FAILED, a_context({SHARE: 0.8, SEQS: 64}))
    (length,) = proposed(
        FAILED,
        a_context(
            {SHARE: 0.8, LENGTH: 8192}, bounds={SEQS: Bound(min=64), "max_num_active_seqs": Bound(min=64)}
        ),
    )

    assert shares == [{SHARE: 0.85}, {SHARE: 0.8}]
    assert (seqs.rule, list(seqs.to), seqs.klass) == ("M2", ["max_num_active_seqs"], "auto")
    assert (length.rule, dict(length.to), length.klass) == ("M2", {LENGTH: 4096}, "gated")
    assert length.mitigation


def test_skips_a_value_that_ran_out_of_memory() -> None:
    (proposal,) = proposed(FAILED, a_context(AT, outcomes=(remembered({SHARE: 0.85}, "CUDA out of memory"),)))

    assert dict(proposal.to) == {SHARE: 0.8}


@pytest.mark.parametrize(
    "reading",
    [
        pytest.param(replace(FAILED, coverage=0.7), id="scrapes are missing"),
        pytest.param(a_reading(incidents=(replace(OOM, what="restarted", why="by hand"),)), id="no OOM"),
        pytest.param(a_reading(incidents=(replace(OOM, what="died", why="exit 1"),)), id="another end"),
        pytest.param(a_reading(running=0), id="nothing runs"),
    ],
)
def test_m2_proposes_nothing(reading: Reading) -> None:
    assert not proposed(reading)


def test_m1_outranks_k1_and_suppresses_q1_but_not_heat() -> None:
    hot = replace(SHORT, gpus=(replace(gpu(0.88), temperature_c=88.0),))
    policies = (Admission(), MemoryShare(), Thermal())

    first, *others = precedence(SHORT, a_context(AT), *policies)[0]
    assert first == "M1"
    assert "K1" in others
    winners, outranked = precedence(hot, a_context(AT), *policies)
    assert winners == ["T1", "Q2"]  # Q2 is a note here
    assert set(outranked.values()) == {"T1"}


def test_m2_suppresses_changes_that_use_memory() -> None:
    first, *others = precedence(FAILED, a_context(AT), Admission(), MemoryShare())[0]

    assert first == "M2"
    assert not set(others) & {"M1", "M3", "Q1", "P1"}


def test_refuses_ratios_in_the_wrong_order() -> None:
    with pytest.raises(ValueError, match="step_ratio"):
        MemoryShare(step_ratio=0.3)
