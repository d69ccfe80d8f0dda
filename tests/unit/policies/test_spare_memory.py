"""M7: a smaller share of the GPU's memory, where another process is on the card and the week's peak fits."""

from dataclasses import replace

import pytest

from flettner.agent.domain.headroom import KvPeak
from flettner.agent.domain.model import Bound, Objective, Slo
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Gpu, Reading
from flettner.policies.conformance.readings import a_reading, late
from flettner.policies.spare_memory import SpareMemory
from flettner.vllm_facts.models.lookup import find_model
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.gpus import find_gpu
from flettner.vllm_facts.sizing.kv_cache import estimate_fit
from flettner.vllm_facts.values import Setting

SHARE, MODEL = "gpu_memory_utilization", "meta-llama/Llama-3.1-8B"
SETTING: Setting = {"model": MODEL, "max_model_len": 8192, SHARE: 0.7}
CONFIG = ServeConfig(setting=SETTING, card=find_gpu("H100"), model=find_model(MODEL), version="0.32.0")
SLO = Slo(ttft=Objective(under_s=0.5, share=0.95))
CACHE = 220_000  # tokens, as the server reports
WEEK = KvPeak(tokens=0.03 * CACHE, hours=168)
CONTEXT = Context(setting=SETTING, slo=SLO, config=CONFIG, kv_peak=WEEK, saves=True)


def with_used(used: float, **fields: object) -> Reading:
    card = Gpu(index=0, uuid="GPU-1", memory_used_mib=used * 80_000, memory_total_mib=80_000)
    facts = {"version": "0.32.0", "num_gpu_blocks": f"{CACHE // 16}", "block_size": "16"}
    return replace(a_reading(kv=0.02, gpus=(card,)), facts=facts, **fields)  # type: ignore[arg-type]  # of a reading


SHARED = with_used(0.9)


def proposed(reading: Reading = SHARED, context: Context = CONTEXT) -> list[float]:
    return [float(str(made.to[SHARE])) for made in SpareMemory().propose(reading, context)]


def test_the_share_keeps_room_for_the_fullest_minute_of_the_week_twice() -> None:
    (made,) = SpareMemory().propose(SHARED, CONTEXT)

    assert (made.rule, made.klass, made.cheaper) == ("M7", "gated", True)
    assert "in the fullest minute of the last 7 days the KV cache held 6,600 tokens of 220,000" in made.why
    smaller = float(str(made.to[SHARE]))
    before, after = (estimate_fit(CONFIG, share=share) for share in (0.7, smaller))
    assert before is not None
    assert after is not None
    assert 2 * 0.03 * before.kv_tokens <= after.kv_tokens < 2.5 * 0.03 * before.kv_tokens
    assert after.kv_tokens >= 8192


@pytest.mark.parametrize(
    ("reading", "context"),
    [
        pytest.param(SHARED, replace(CONTEXT, saves=False), id="no saving is wanted"),
        pytest.param(SHARED, replace(CONTEXT, kv_peak=None), id="no week is known"),
        pytest.param(SHARED, replace(CONTEXT, kv_peak=replace(WEEK, hours=143)), id="not six days"),
        pytest.param(SHARED, replace(CONTEXT, kv_peak=replace(WEEK, tokens=99_000.0)), id="a full evening"),
        pytest.param(with_used(0.72), CONTEXT, id="nobody else is on the card"),
        pytest.param(with_used(0.9, prefix_hit_ratio=0.4), CONTEXT, id="the rest holds prefixes"),
        pytest.param(with_used(0.9, ttft=late(0.5)), CONTEXT, id="an objective is missed"),
        pytest.param(replace(SHARED, gpus=()), CONTEXT, id="the memory in use is not known"),
        pytest.param(replace(SHARED, facts={}), CONTEXT, id="the size of the cache is not known"),
        pytest.param(SHARED, replace(CONTEXT, config=None), id="the model is not known"),
        pytest.param(SHARED, replace(CONTEXT, bounds={SHARE: Bound(min=0.65)}), id="the operator's bound"),
        pytest.param(
            SHARED,
            replace(CONTEXT, setting={**SETTING, "kv_cache_memory_bytes": 10**10}),
            id="the size of the cache is fixed",
        ),
    ],
)
def test_nothing_is_proposed(reading: Reading, context: Context) -> None:
    assert proposed(reading, context) == []


def test_the_longest_request_fits_whatever_the_week_had() -> None:
    longest = replace(CONFIG, setting={**SETTING, "max_model_len": 131_072})
    context = replace(CONTEXT, config=longest, kv_peak=replace(WEEK, tokens=0.0))

    (share,) = proposed(context=context)

    fit = estimate_fit(longest, share=share)
    assert fit is not None
    assert fit.kv_tokens >= 131_072


def test_the_operators_least_share_is_kept() -> None:
    assert proposed(context=replace(CONTEXT, bounds={SHARE: Bound(min=0.5)})) == [0.5]


def test_a_share_that_was_made_smaller_is_not_made_smaller_again() -> None:
    """The tokens of the week stay the same when the cache they are a share of becomes smaller."""
    (share,) = proposed()
    fit = estimate_fit(CONFIG, share=share)
    assert fit is not None
    after = replace(CONFIG, setting={**SETTING, SHARE: share})
    facts = {**SHARED.facts, "num_gpu_blocks": f"{fit.kv_tokens // 16}"}

    assert proposed(replace(SHARED, facts=facts), replace(CONTEXT, setting=after.setting, config=after)) == []
