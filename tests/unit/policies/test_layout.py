"""D9: a model that is split over more GPUs than its load needs is named with numbers; fewer are suggested
only where savings are wanted.
"""

from dataclasses import replace

import pytest

from flettner.agent.domain.model import Objective, Slo
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading, Trend
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
            Slo(itl=Objective(under_s=0.0075, share=0.95)),
            "note",
            id="tokens would take too long",
        ),
        pytest.param(replace(LOADED, itl=None), SLO, "note", id="tokens are not measured"),
        pytest.param(
            a_reading(running=6.0, kv=0.016, prompt_tokens=300_000.0, answer_tokens=900.0, itl=LOADED.itl),
            SLO,
            "note",
            id="prompts fill three GPUs",
        ),
        pytest.param(
            a_reading(running=6.0, kv=0.016, prompt_tokens=100.0, answer_tokens=9e5, itl=LOADED.itl),
            SLO,
            "note",
            id="tokens fill three GPUs",
        ),
        pytest.param(replace(LOADED, ttft=late(0.2)), SLO, None, id="an objective is missed"),
    ],
)
def test_fewer_gpus_that_would_not_keep_the_promise_are_not_suggested(
    reading: Reading, slo: Slo, kind: str | None
) -> None:
    said = [proposal.klass for proposal in LayoutNote().propose(reading, saving(config(), slo))]

    assert said == ([kind] if kind else [])


@pytest.mark.parametrize(
    ("under_s", "tp"),
    [pytest.param(8.0, 1, id="one GPU"), pytest.param(3.5, 2, id="two"), pytest.param(2.0, None, id="four")],
)
@pytest.mark.parametrize("itl", [None, Objective(under_s=0.05, share=0.95)])
def test_whole_answers_are_held_against_their_own_promise(
    under_s: float, tp: int | None, itl: Objective | None
) -> None:
    """A token takes 3.5 ms on four H100, and more than twice as long on one; 95 % of answers take 1.6 s."""
    served = config("meta-llama/Llama-3.1-8B", "H100 SXM")
    fast = replace(
        a_reading(running=3.0, kv=0.002, prompt_tokens=2000.0, answer_tokens=800.0),
        itl=late(0.0, p50=0.0035, p99=0.005),
        ttft=late(0.0, p50=0.02, p99=0.04),
        e2e=late(0.0, p50=0.6, p99=2.6),
    )
    slo = Slo(itl=itl, e2e=Objective(under_s=under_s, share=0.95))

    changes = [dict(made.to) for made in LayoutNote().propose(fast, saving(served, slo)) if made.to]

    assert changes == ([] if tp is None else [{"tensor_parallel_size": tp}])


@pytest.mark.parametrize(
    ("prompts", "changed"),
    [
        pytest.param(2_000.0, {"tensor_parallel_size": 1}, id="one"),
        pytest.param(45_000.0, {"tensor_parallel_size": 1, "data_parallel_size": 2}, id="two"),
        pytest.param(100_000.0, {"tensor_parallel_size": 1, "data_parallel_size": 3}, id="three"),
    ],
)
def test_as_many_engines_are_kept_as_the_prompts_need(prompts: float, changed: Setting) -> None:
    loaded = a_reading(running=6.0, kv=0.016, prompt_tokens=prompts, answer_tokens=900.0, itl=LOADED.itl)

    (change,) = LayoutNote().propose(loaded, saving(config()))

    assert dict(change.to) == changed
    spared = 4 - int(str(changed.get("data_parallel_size", 1)))
    assert change.expects.startswith(f"{spared} of 4 GPUs to spare")


def test_of_several_engines_those_that_the_load_does_not_need_are_spared() -> None:
    served = config(tensor_parallel_size=1, data_parallel_size=4)

    (change,) = LayoutNote().propose(LOADED, saving(served))

    assert dict(change.to) == {"data_parallel_size": 1}
    assert LayoutNote().propose(LOADED, context(served)) == ()
    busy = replace(LOADED, prompt_tokens_per_s=steady(150_000.0))
    assert LayoutNote().propose(busy, saving(served)) == ()


def test_the_engines_of_other_hosts_are_left_alone() -> None:
    served = config(tensor_parallel_size=1, data_parallel_size=4, data_parallel_size_local=2)

    assert LayoutNote().propose(LOADED, saving(served)) == ()


def test_a_calm_window_is_held_against_the_peak_of_the_week() -> None:
    calm = replace(LOADED, requests={"ok": 60})  # 2 a second

    (alone,) = LayoutNote().propose(calm, replace(saving(config()), peak_rps=1.0))
    (two,) = LayoutNote().propose(calm, replace(saving(config()), peak_rps=4.0))

    assert dict(alone.to) == {"tensor_parallel_size": 1}
    assert dict(two.to) == {"tensor_parallel_size": 1, "data_parallel_size": 2}
    assert "at the week's peak" in two.expects


def test_the_bursts_of_a_calm_window_do_not_grow_like_its_load() -> None:
    """Of two requests a second six came in one: of twenty, some 33 do, and not sixty."""
    bursts = Trend(mean=1_500.0, low=0.0, high=9_000.0, early=1_500.0, late=1_500.0)
    calm = replace(LOADED, requests={"ok": 60}, prompt_tokens_per_s=bursts, kv_usage=steady(0.002))
    answers = replace(calm, generation_tokens_per_s=steady(100.0))

    (change,) = LayoutNote().propose(answers, replace(saving(config()), peak_rps=20.0))

    assert dict(change.to) == {"tensor_parallel_size": 1}


def overloaded(*, running: float = 60.0, waiting: float = 40.0, prompts: float = 11_000.0) -> Reading:
    reading = a_reading(running=running, kv=0.2, waiting=waiting, prompt_tokens=prompts, answer_tokens=400.0)
    return replace(reading, ttft=late(0.9), itl=late(0.0, p50=0.05, p99=0.09))


EIGHT_B = "meta-llama/Llama-3.1-8B"


def test_where_an_objective_is_missed_the_same_gpus_compute_more_in_several_engines() -> None:
    served = config(EIGHT_B, gpu="RTX 4090")

    (change,) = LayoutNote().propose(overloaded(), context(served))

    assert dict(change.to) == {"tensor_parallel_size": 1, "data_parallel_size": 4}
    assert dict(change.assumed) == {"pipeline_parallel_size": 1, "data_parallel_size": 1}
    assert (change.klass, change.cheaper, change.mitigation) == ("gated", False, False)
    assert "times as many tokens of this load on the same 4 GPUs, in 4 engines" in change.expects


@pytest.mark.parametrize(
    ("served", "reading", "slo"),
    [
        pytest.param(
            config(EIGHT_B, gpu="RTX 4090"),
            overloaded(),
            Slo(ttft=SLO.ttft, itl=Objective(under_s=0.015, share=0.95)),
            id="a token would take too long on one GPU",
        ),
        pytest.param(
            config("meta-llama/Llama-3.1-70B-Instruct", gpu="H100"),
            overloaded(),
            SLO,
            id="it does not fit one",
        ),
        pytest.param(
            config(EIGHT_B, gpu="H100"),
            overloaded(running=2.0, waiting=0.0, prompts=100.0),
            SLO,
            id="few requests gain nothing",
        ),
        pytest.param(
            config(EIGHT_B, gpu="RTX 4090", tensor_parallel_size=1, data_parallel_size=4),
            overloaded(),
            SLO,
            id="there are as many engines already",
        ),
        pytest.param(
            config(EIGHT_B, gpu="RTX 4090", data_parallel_rank=1), overloaded(), SLO, id="engines elsewhere"
        ),
    ],
)
def test_engines_that_would_not_help_are_not_suggested(
    served: ServeConfig, reading: Reading, slo: Slo
) -> None:
    assert LayoutNote().propose(reading, context(served, slo)) == ()


def test_a_prompt_that_would_come_too_late_on_one_gpu_gets_two() -> None:
    served = config(EIGHT_B, gpu="H100")
    slow = replace(LOADED, ttft=late(0.0, p50=0.16, p99=0.39))
    slower = replace(LOADED, ttft=late(0.0, p50=0.2, p99=0.49))

    (change,) = LayoutNote().propose(LOADED, saving(served))

    assert dict(change.to) == {"tensor_parallel_size": 1}
    (wider,) = LayoutNote().propose(slow, saving(served))
    assert dict(wider.to) == {"tensor_parallel_size": 2}
    (note,) = LayoutNote().propose(slower, saving(served))
    assert note.klass == "note"  # two would be just in time: the data sheet is off by more


def test_where_one_gpu_is_too_slow_two_may_do() -> None:
    fast = replace(LOADED, itl=late(0.0, p50=0.003, p99=0.004), kv_usage=steady(0.002))
    served = config(EIGHT_B, gpu="H100")
    slo = Slo(ttft=SLO.ttft, itl=Objective(under_s=0.0075, share=0.95))

    (change,) = LayoutNote().propose(fast, saving(served, slo))

    assert dict(change.to) == {"tensor_parallel_size": 2}
    assert change.expects.startswith("2 of 4 GPUs to spare")
