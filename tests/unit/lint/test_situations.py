"""Simulated and recorded servers under load: the expected rule ranks first and no rule does harm."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

import pytest

from flettner.agent.domain.model import Objective, Slo
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Incident
from flettner.policies.conformance.readings import steady
from flettner.vllm_facts.values import Knob, Value
from tests.unit.policies.live import BOUNDS, Load, Situation, advise, advised, reading_of
from tests.unit.sensors.pages import PAGE, SCRAPES, with_values


def promise(ttft_s: float, itl_s: float) -> Slo:
    return Slo(ttft=Objective(under_s=ttft_s, share=0.95), itl=Objective(under_s=itl_s, share=0.95))


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """`rules`: one of these ranks first; empty: no change is expected. `to`: a check of the change."""

    situation: Situation
    rules: tuple[str, ...] = ()
    to: Callable[[Mapping[Knob, Value]], bool] = lambda _: True


LIVE: dict[str, Expected] = {
    "a queue behind a small cap with a free cache": Expected(
        situation=Situation(flags="--max-num-seqs 2", loads=(Load(streams=16),), slo=promise(0.5, 0.1)),
        rules=("Q1",),
        to=lambda to: to == {"max_num_seqs": 16},
    ),
    "admission capped by the warm knob": Expected(
        situation=Situation(
            flags="--max-num-seqs 64 --max-num-active-seqs 2",
            loads=(Load(streams=16),),
            slo=promise(0.5, 0.1),
        ),
        rules=("Q1",),
        to=lambda to: to == {"max_num_active_seqs": 16},
    ),
    "thrash on a card with memory to spare": Expected(
        situation=Situation(
            flags="--gpu-memory-utilization 0.5 --max-model-len 1024 --max-num-seqs 64",
            loads=(Load(streams=24, prompt=60, output=400),),
            slo=promise(2, 0.2),
        ),
        rules=("M1", "M3"),
        to=lambda to: list(to) == ["gpu_memory_utilization"],
    ),
    "thrash on a card that is full, of a load that no smaller batch serves": Expected(
        situation=Situation(
            flags="--max-num-seqs 256 --gpu-memory-utilization 0.8",
            hardware="4090-8b",
            loads=(Load(streams=48, prompt=100, output=700),),
            gpu_used=0.97,
            slo=promise(2, 0.2),
        ),
    ),
    "thrash that a watermark has not ended": Expected(
        situation=Situation(
            flags="--max-num-seqs 256 --gpu-memory-utilization 0.8 --watermark 0.05",
            hardware="4090-8b",
            loads=(Load(streams=48, prompt=100, output=700),),
            gpu_used=0.97,
            slo=promise(2, 0.2),
        ),
        rules=("K1", "K2", "Q2"),
        to=lambda to: set(to) <= {"max_num_seqs", "max_num_active_seqs", "watermark"},
    ),
    "prefill-bound": Expected(
        situation=Situation(
            flags="--max-num-batched-tokens 128",
            hardware="h100-8b",
            loads=(Load(rate=1.5, prompt=6000, output=20),),
            slo=promise(0.6, 0.1),
        ),
        rules=("P1",),
        to=lambda to: to in ({"max_num_batched_tokens": 512}, {"max_num_scheduled_tokens": 512}),
    ),
    "decode-bound by long prompts in between": Expected(
        situation=Situation(
            flags="--max-num-batched-tokens 8192",
            hardware="h100-8b",
            loads=(Load(streams=12, output=200), Load(rate=4, prompt=6000, output=20)),
            slo=promise(2.5, 0.025),
        ),
        rules=("P2", "P4"),
        to=lambda to: all(isinstance(v, int) and 0 < v < 8192 for v in to.values()),
    ),
    "without CUDA graphs": Expected(
        situation=Situation(
            flags="--max-num-seqs 64 --enforce-eager",
            hardware="h100-8b",
            loads=(Load(streams=4, output=200),),
            slo=promise(0.5, 0.05),
        ),
        rules=("G1",),
        to=lambda to: to in ({"enforce_eager": False}, {"enforce_eager": None}),
    ),
    "idle": Expected(
        situation=Situation(flags="--max-num-seqs 256", gpu_busy=0.0, slo=promise(0.5, 0.1)),
    ),
    "over-provisioned": Expected(
        situation=Situation(
            flags="--max-num-seqs 256",
            hardware="h100-8b",
            loads=(Load(rate=0.5, prompt=100, output=50),),
            gpu_busy=0.05,
            slo=promise(0.5, 0.1),
        ),
        rules=("K3", "C2"),
        to=lambda to: not to,
    ),
    "all promises kept": Expected(
        situation=Situation(
            flags="--max-num-seqs 64",
            hardware="h100-8b",
            loads=(Load(streams=8), Load(rate=1, prompt=400)),
            slo=promise(1, 0.1),
        ),
    ),
    "mixed: short chats and long documents, both late": Expected(
        situation=Situation(
            flags="--max-num-seqs 64",
            hardware="4090-8b",
            loads=(Load(streams=20, prompt=100, output=200), Load(rate=1, prompt=5000, output=20)),
            slo=promise(0.5, 0.05),
        ),
        rules=("P4", "P1", "P2", "P3", "X2"),
    ),
    "mixed: a queue behind a cap, long documents in it": Expected(
        situation=Situation(
            flags="--max-num-seqs 4",
            hardware="4090-8b",
            loads=(Load(streams=12, prompt=100, output=200), Load(rate=0.3, prompt=3000, output=20)),
            slo=promise(0.5, 0.05),
        ),
        rules=("Q1",),
    ),
}
each = pytest.mark.parametrize("name", LIVE)
live = cache(lambda name: advised(LIVE[name].situation))


@each
def test_expected_rule_ranks_first(name: str) -> None:
    expected, advice = LIVE[name], live(name)
    first = advice.first

    if not expected.rules:
        assert not advice.changes, advice.describe()
        return
    assert first is not None
    assert first.rule in expected.rules, advice.describe()
    assert expected.to(first.to), advice.describe()


@each
@pytest.mark.parametrize("version", ["0.11.0", "0.18.0", "0.28.0", "0.31.0", "0.32.0", "0.33.0", ""])
def test_no_rule_proposes_a_harmful_change_in_any_version(name: str, version: str) -> None:
    advice = live(name)
    other = replace(advice.reading, facts={**advice.reading.facts, "version": version})

    result = advise(other, advice.context)

    assert not result.harm, result.describe()


@each
def test_no_rule_raises_memory_use_after_an_oom(name: str) -> None:
    advice = live(name)
    oom = Incident(at=advice.reading.at, server=advice.reading.server, what="oom", why="exit code 137")

    result = advise(replace(advice.reading, incidents=(oom,)), advice.context)

    assert not result.harm, result.describe()


@each
def test_changes_nothing_on_a_partial_window(name: str) -> None:
    advice = live(name)

    assert not advise(replace(advice.reading, coverage=0.5), advice.context).changes


@each
def test_changes_nothing_on_a_stalled_server(name: str) -> None:
    """Requests run without producing a token: no load knob can be the cause."""
    advice = live(name)
    reading = replace(
        advice.reading,
        running=steady(max(1.0, advice.reading.running.high)),
        prompt_tokens_per_s=steady(0.0),
        generation_tokens_per_s=steady(0.0),
    )

    result = advise(reading, advice.context)

    assert not result.changes, result.describe()
    assert not {"N1", "K3", "C2"} & {proposal.rule for proposal in result.winners}, result.describe()


@each
def test_throttling_gpu_blocks_every_change(name: str) -> None:
    advice = live(name)
    hot = tuple(replace(gpu, temperature_c=91.0, throttle_reasons=0x40) for gpu in advice.reading.gpus)

    assert not advise(replace(advice.reading, gpus=hot), advice.context).changes


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page of real vLLM 0.32 with the gauges of a busy moment; preemptions per second."""

    running: int
    waiting: int
    kv: float
    preemptions: int = 0

    def at(self, second: int) -> bytes:
        return with_values(
            PAGE,
            num_requests_running=self.running,
            num_requests_waiting=self.waiting,
            kv_cache_usage_perc=self.kv,
            num_preemptions_total=self.preemptions * second,
            generation_tokens_total=38_334 + 900 * second,
        )


@pytest.mark.parametrize(
    ("page", "setting", "rules"),
    [
        pytest.param(
            Page(running=2, waiting=14, kv=0.0), {"max_num_seqs": 2}, ("Q1",), id="14 wait behind a cap of 2"
        ),
        pytest.param(
            Page(running=60, waiting=20, kv=0.99, preemptions=2),
            {"max_num_seqs": 64},
            (),
            id="it thrashes, and nothing is late",
        ),
        pytest.param(Page(running=0, waiting=0, kv=0.0), {"max_num_seqs": 256}, (), id="it rests"),
        pytest.param(Page(running=30, waiting=0, kv=0.5), {"max_num_seqs": 64}, (), id="it is well"),
    ],
)
def test_expected_rule_fires_on_real_vllm_metrics(
    page: Page, setting: Mapping[Knob, Value], rules: tuple[str, ...]
) -> None:
    slo = promise(0.5, 0.1)
    pages = [page.at(second) for second in range(31)]
    reading = reading_of(pages, every_s=1.0, slo=slo, version="0.32.0")

    result = advise(reading, Context(setting=setting, slo=slo, bounds=BOUNDS))

    assert not result.harm, result.describe()
    assert tuple(dict.fromkeys(p.rule for p in result.changes)) == rules, result.describe()


def test_reports_the_cap_on_real_vllm_recorded_with_a_cap_of_2() -> None:
    """16 clients, `--max-num-seqs 2`: 14 wait and the KV cache is empty. Not replicas, not prefix caching."""
    slo = promise(0.5, 10.0)
    names = ("vllm-0.32-capped.txt", "vllm-0.32-capped-later.txt")  # 30 s between them
    pages = [(SCRAPES / name).read_bytes() for name in names]
    reading = reading_of(pages, every_s=30.0, slo=slo, version="0.32.0")

    result = advise(reading, Context(setting={"max_num_seqs": 2}, slo=slo, bounds=BOUNDS))

    assert not result.harm, result.describe()
    assert [(p.rule, dict(p.to)) for p in result.changes] == [("Q1", {"max_num_seqs": 16})], result.describe()
