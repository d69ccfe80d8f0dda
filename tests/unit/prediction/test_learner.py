"""A learner that watches a simulated server: its trace, its law, and when the law is believed."""

from collections.abc import Sequence
from statistics import correlation, mean

import pytest

from flettner.agent.domain.prediction_check import LawDrop
from flettner.performance_model.acceptance import ITL_ERROR, TTFT_ERROR
from flettner.performance_model.trace import TraceRequest, mean_rate
from flettner.vllm_facts.values import Setting
from tests.support.sampling import sampled
from tests.unit.prediction.virtual_target import LOG, SETTING, VirtualTarget, teach

pytestmark = pytest.mark.anyio
FIRST_S = 1.0  # of the first scrape, where the recording begins


def mean_of(trace: Sequence[TraceRequest], name: str) -> float:
    return float(mean(getattr(request, name) for request in trace))


async def test_the_trace_has_the_arrivals_and_lengths_that_the_proxy_recorded() -> None:
    target = VirtualTarget()

    await target.live(3)

    trace = target.model.trace
    requests = [request for request in target.trace if request.arrival_s >= FIRST_S][: len(trace)]
    assert target.model.counts_from == "records"
    assert [request.arrival_s for request in trace] == pytest.approx(
        [request.arrival_s - FIRST_S for request in requests], abs=1e-3
    )
    assert [request.output_tokens for request in trace] == pytest.approx(
        [request.output_tokens for request in requests], rel=0.05, abs=1
    )
    lengths = [request.prompt_tokens for request in requests]
    assert correlation([request.prompt_tokens for request in trace], lengths) > 0.98
    assert mean_of(trace, "prompt_tokens") == pytest.approx(mean(lengths), rel=0.05)


async def test_without_a_proxy_the_trace_has_their_rate_and_their_distribution() -> None:
    target = VirtualTarget(has_proxy=False)

    await target.live(5)

    assert target.model.counts_from == "histograms"
    assert len(target.model.trace) == pytest.approx(len(target.trace), rel=0.02)
    for name in ("prompt_tokens", "output_tokens"):
        assert mean_of(target.model.trace, name) == pytest.approx(mean_of(target.trace, name), rel=0.1)


async def test_a_law_is_accepted_after_five_predicted_windows_within_one_percent() -> None:
    """Each window is compared once requests have followed it: its last ones run beside those."""
    target = await teach(LOG)

    model, early = target.model, target.models[3]
    assert early.law is None
    assert "of 5 windows of 60 s" in early.why_no_law
    assert model.law is not None
    assert model.law_source == "iteration log"
    assert model.acceptance is not None
    assert model.acceptance.itl_error < min(ITL_ERROR, 0.01)
    assert model.acceptance.ttft_error < TTFT_ERROR
    assert model.why_no_law == ""


@pytest.mark.parametrize("setting", sampled([LOG, SETTING], 2))
async def test_a_law_is_learned_of_the_engines_of_one_server(setting: Setting) -> None:
    """Two engines with twice the requests teach the law of one; the trace is the share of one of them."""
    alone = (await teach(setting)).model
    target = VirtualTarget(setting={**setting, "data_parallel_size": 2}, rate=8.0)
    await target.live(9)

    model = target.model
    assert (model.servers, alone.servers) == (2, 1)
    assert model.kv_tokens == alone.kv_tokens
    assert mean_rate(model.trace) == pytest.approx(4.0, rel=0.1)
    assert model.law is not None, model.why_no_law
    assert alone.law is not None
    step = {"tokens": 20, "sequences": 20, "kv_read": 20_000}
    assert model.law.law.seconds(**step) == pytest.approx(alone.law.law.seconds(**step), rel=0.05)


async def test_the_law_survives_another_scheduler_flag_and_not_another_kernel() -> None:
    target = await teach()

    target.replace_server({**SETTING, "max_num_seqs": 32}, target.gpu)
    await target.live(1)
    after_scheduler = target.model
    target.replace_server({**SETTING, "enforce_eager": True}, target.gpu)
    await target.live(1)

    assert after_scheduler.law is not None
    assert after_scheduler.law_source == "histograms"
    assert target.model.law is None
    assert target.model.rows < 100


@pytest.mark.parametrize(
    ("setting", "has_log", "hint"),
    sampled(
        [
            (LOG, False, "the iteration log, which makes it more exact, was not read"),
            (SETTING, True, "--enable-logging-iteration-details makes the law more exact"),
        ],
        2,
    ),
)
async def test_a_law_is_dropped_when_the_server_becomes_slower(
    setting: Setting, hint: str, *, has_log: bool
) -> None:
    target = VirtualTarget(setting=dict(setting), gpu="h100-8b", has_log=has_log)
    await target.live(9)
    believed = target.model.law

    target.replace_server(target.setting, "4090-8b")
    await target.live(3)

    assert believed is not None
    assert target.model.law is None
    assert "were off by" in target.model.why_no_law
    assert hint in target.model.why_no_law


@pytest.mark.parametrize("setting", sampled([LOG, SETTING], 2))
async def test_a_dropped_law_comes_back_only_by_evidence_from_after_the_drop(setting: Setting) -> None:
    target = await teach(setting)

    target.law_drop = LawDrop(at=target.now(), why="3 of the last 5 predictions missed their bands")
    await target.live(4)
    early = target.model
    await target.live(4)

    assert early.law is None
    assert "of 5 windows" in early.why_no_law
    assert "the law was dropped on 2026-01-01 at 00:09 UTC: 3 of the last 5" in early.why_no_law
    assert early.acceptance is not None
    assert len(early.acceptance.itl) <= 3
    assert target.model.law is not None


async def test_a_server_that_never_ran_a_request_teaches_nothing() -> None:
    target = VirtualTarget(rate=1e-6)
    target._due_s = 1e9

    await target.live(2)

    assert target.model.law is None
    assert len(target.model.trace) == 0


async def test_time_outside_the_engine_is_part_of_a_predicted_ttft() -> None:
    target = VirtualTarget(outside_s=0.3)

    await target.live(4)

    assert target.model.outside_s == pytest.approx(0.3, abs=0.02)
    assert target.model.acceptance is not None
    assert abs(target.model.acceptance.ttft[-1]) < TTFT_ERROR
