"""D9: a model that is split over more GPUs than its load needs is named with numbers; fewer are suggested
only where savings are wanted.
"""

from dataclasses import replace

import pytest

from flettner.agent.domain.model import Objective, Slo
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.performance_model.hardware_prior import prior_law
from flettner.policies.conformance.readings import a_reading, late, steady
from flettner.policies.layout import LayoutNote
from flettner.vllm_facts.models.lookup import find_model
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.gpus import find_gpu
from flettner.vllm_facts.sizing.kv_cache import estimate_fit
from flettner.vllm_facts.values import Setting

SMALL = "Qwen/Qwen3-1.7B"
IDLE = a_reading(running=6.0, kv=0.016)
SLO = Slo(ttft=Objective(under_s=0.5, share=0.95), itl=Objective(under_s=0.05, share=0.95))


def config(model: str = SMALL, gpu: str = "L40S", **flags: int) -> ServeConfig:
    setting: Setting = {"model": model, "tensor_parallel_size": 4, "max_model_len": 8192, **flags}
    return ServeConfig(setting=setting, card=find_gpu(gpu), model=find_model(model), version="0.32.0")


def context(served: ServeConfig, slo: Slo = SLO) -> Context:
    return Context(setting=served.setting, slo=slo, config=served)


def test_a_small_model_on_four_gpus_is_named_with_numbers() -> None:
    served = config()
    alone = config(tensor_parallel_size=1)
    now, fits = estimate_fit(served), estimate_fit(alone)
    assert now is not None
    assert fits is not None

    (note,) = LayoutNote().propose(IDLE, context(served))

    used = 0.016 * now.kv_tokens
    ms = [1e3 * prior_law(each).law.seconds(6, 6, round(used)) for each in (alone, served)]
    assert (note.rule, note.klass, dict(note.to)) == ("D9", "note", {})
    assert (
        "at most 1.6% of the KV cache was used and 6 requests ran, while Qwen/Qwen3-1.7B is split over 4"
        in note.why
    )
    assert (
        f"1 would have {fits.kv_tokens:,} tokens of KV cache, {fits.kv_tokens / used:,.0f} times" in note.why
    )
    assert f"a token takes {ms[0]:.1f} ms on 1 instead of {ms[1]:.1f} ms on 4" in note.expects
    assert "all of them hold 4 engines (tensor_parallel_size 1, data_parallel_size 4)" in note.expects


@pytest.mark.parametrize(
    ("served", "reading", "slo"),
    [
        pytest.param(config(tensor_parallel_size=1), IDLE, SLO, id="not split"),
        pytest.param(config("meta-llama/Llama-3.1-70B-Instruct"), IDLE, SLO, id="it does not fit fewer"),
        pytest.param(config("org/unknown"), IDLE, SLO, id="an unknown model"),
        pytest.param(config(gpu="unknown"), IDLE, SLO, id="an unknown GPU"),
        pytest.param(config(), a_reading(running=6.0, kv=0.12), SLO, id="the cache is used"),
        pytest.param(config(), a_reading(running=6.0, kv=0.016, waiting=1.0), SLO, id="requests wait"),
        pytest.param(config(), replace(IDLE, coverage=0.5), SLO, id="scrapes are missing"),
        pytest.param(
            config(), IDLE, Slo(itl=Objective(under_s=0.005, share=0.95)), id="tokens would take too long"
        ),
        pytest.param(config(), replace(IDLE, ttft=late(0.2)), SLO, id="an objective is missed"),
    ],
)
def test_where_fewer_gpus_are_not_enough_nothing_is_said(
    served: ServeConfig, reading: Reading, slo: Slo
) -> None:
    assert LayoutNote().propose(reading, context(served, slo)) == ()


LOADED = replace(
    a_reading(running=6.0, kv=0.016, prompt_tokens=2000.0, answer_tokens=900.0),
    itl=late(0.0, p50=0.006, p99=0.009),
)


def saving(served: ServeConfig, slo: Slo = SLO) -> Context:
    return replace(context(served, slo), saves=True)


def test_where_savings_are_wanted_fewer_gpus_are_suggested_for_a_person_to_approve() -> None:
    (change,) = LayoutNote().propose(LOADED, saving(config()))

    assert (change.rule, change.klass, change.mitigation, change.cheaper) == ("D9", "gated", False, True)
    assert dict(change.to) == {"tensor_parallel_size": 1}
    assert change.expects.startswith("3 of 4 GPUs to spare: by the data sheet a token takes")
    assert "beside the measured 6.0 ms" in change.expects
    idle = replace(LOADED, kv_usage=steady(0.004))
    (change,) = LayoutNote().propose(idle, saving(config(data_parallel_size=2)))
    assert dict(change.to) == {"tensor_parallel_size": 1, "data_parallel_size": 1}


@pytest.mark.parametrize(("tp", "longer_us"), [(1, 0.0), (2, 0.0), (4, 2 * 28 * 15.0)])
def test_more_than_two_gpus_on_pcie_exchange_more_slowly_in_each_of_28_layers(
    tp: int, longer_us: float
) -> None:
    on_pcie = config(tensor_parallel_size=tp)
    assert on_pcie.card is not None
    linked = replace(on_pcie, card=replace(on_pcie.card, link="nvlink"))

    longer = prior_law(on_pcie).law.step_us - prior_law(linked).law.step_us

    assert longer == pytest.approx(longer_us)


@pytest.mark.parametrize(
    ("reading", "slo", "kind"),
    [
        pytest.param(LOADED, Slo(ttft=SLO.ttft), "note", id="no time of tokens is promised"),
        pytest.param(
            replace(LOADED, kv_usage=steady(0.004)),
            Slo(itl=Objective(under_s=0.009, share=0.95)),
            "note",
            id="tokens would take too long",
        ),
        pytest.param(replace(LOADED, itl=None), SLO, "note", id="tokens are not measured"),
        pytest.param(
            a_reading(running=6.0, kv=0.016, prompt_tokens=90_000.0, answer_tokens=900.0, itl=LOADED.itl),
            SLO,
            "note",
            id="prompts fill one GPU",
        ),
        pytest.param(
            a_reading(running=6.0, kv=0.016, prompt_tokens=100.0, answer_tokens=9e5, itl=LOADED.itl),
            SLO,
            "note",
            id="tokens fill one GPU",
        ),
        pytest.param(replace(LOADED, ttft=late(0.2)), SLO, None, id="an objective is missed"),
    ],
)
def test_fewer_gpus_that_would_not_keep_the_promise_are_not_suggested(
    reading: Reading, slo: Slo, kind: str | None
) -> None:
    said = [proposal.klass for proposal in LayoutNote().propose(reading, saving(config(), slo))]

    assert said == ([kind] if kind else [])
