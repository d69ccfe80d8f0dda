"""Seven days with two kinds of load: settings that follow the load, and the best single setting of a sweep.

python -m bench.regimes [--cold] [--held-out] [--json FILE] [WORLD ...]

In virtual time: the load of each two hours is drawn for a minute and replayed on the true law of step time;
the advice comes from a law that is a few percent off, the load of the first two days, and the product's own
search. The switches follow the product's trigger: where the load changes, the wrong setting is in force until
the lengths have been other ones for five minutes, and for half of the two minutes of the trial after that.
With `--cold` no limit changes while a server runs: the lengths must have been other ones for a quarter of an
hour, then a server starts, and for half of the canary's shares.
That a switch is tried, judged and taken back is not part of this bench, but of the tests of the machine.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from math import pi, sin
from random import Random
from time import process_time
from typing import Any

from bench.results import new_parser, write
from flettner.agent.domain.model import Bound, Objective, Slo
from flettner.agent.domain.regimes import RegimePlan
from flettner.agent.prediction.learned import LearnedModel
from flettner.agent.prediction.load_history import LoadHistory, describe_load
from flettner.agent.prediction.regime_search import RegimeRequest, search_regimes, with_values
from flettner.agent.prediction.served_load import goals_of
from flettner.performance_model.acceptance import Acceptance
from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.engine_settings import limits_of
from flettner.performance_model.load_mixes import ROW_S, find_mixes
from flettner.performance_model.outcome import Goals, attainment
from flettner.performance_model.replayed_scheduler import ReplayedScheduler
from flettner.performance_model.step_law import StepLaw, widen
from flettner.performance_model.trace import Trace, TraceRequest
from flettner.vllm_facts.models.lookup import find_model
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.gpus import find_gpu
from flettner.vllm_facts.values import Setting
from tests.support.fast_time import NOON

DAYS, LEARNED_DAYS, SPANS = 7, 2, 12
SAMPLE_S, SPAN_S, TRIAL_S = 60.0, 7200, 120
START_S, SHARES_S = 120, 300  # of a cold switch
HOURS = 24
CAP, BUDGET = "max_num_seqs", "max_num_batched_tokens"
START: Setting = {CAP: 64, BUDGET: 2048}
HOT = {CAP: (1.0, 256.0), BUDGET: (64.0, 8192.0)}
BOUNDS = {CAP: Bound(min=8, max=256, octaves=5), BUDGET: Bound(min=128, max=8192, octaves=5)}
SWEEP: Sequence[Setting] = [
    {CAP: cap, BUDGET: budget} for cap, budget in product((32, 64, 128), (128, 256, 512, 1024, 2048, 4096))
]
GPUS = {
    "RTX 4090": StepLaw(step_us=18_000, knee=111, token_us=88.0, sequence_us=40.0, kv_read_us=0.14),
    "H100": StepLaw(step_us=7_900, knee=135, token_us=24.4, sequence_us=40, kv_read_us=0.046),
}
OFF = 0.03  # sigma of the true coefficients around those that were learned


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Medians in tokens; lengths are lognormal, answers of one token are all of one token."""

    rate: float
    prompt: float
    answer: float
    spread: float = 0.8


Hours = Callable[[int, int, Random], Mix]  # of the day and the hour
SettingOf = Callable[[int], Sequence[tuple[Setting, float]]]
"""The settings in two hours, each with its part of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    name: str
    mix: Hours
    ttft_s: float = 3.0
    itl_s: float = 0.026
    gpu: str = "RTX 4090"
    kv_tokens: int = 160_000
    start: Setting = field(default_factory=lambda: START)

    @property
    def slo(self) -> Slo:
        return Slo(
            ttft=Objective(under_s=self.ttft_s, share=0.95), itl=Objective(under_s=self.itl_s, share=0.95)
        )


CHAT, LABELS = Mix(rate=3.0, prompt=800, answer=200), Mix(rate=2.6, prompt=2500, answer=1)


def by_clock(day: Mix, night: Mix, begin: int = 22, end: int = 6) -> Hours:
    return lambda _, hour, __: night if hour >= begin or hour < end else day


def at_random_hours(day: Mix, batch: Mix) -> Hours:
    """Eight hours in a row, which begin at another time each day."""

    def mix(date: int, hour: int, _: Random) -> Mix:
        begin = Random(date).randrange(0, 16, 2)  # noqa: S311 - reproducible, not secret
        return batch if begin <= hour < begin + 8 else day

    return mix


def twice_a_day(day: Mix, batch: Mix) -> Hours:
    return lambda _, hour, __: batch if hour in {4, 6, 16, 18} else day


def with_daily_rate(mix: Mix) -> Hours:
    return lambda _, hour, __: replace(mix, rate=mix.rate * (1 + 0.6 * sin(2 * pi * hour / HOURS)))


def with_drifting_prompts(mix: Mix) -> Hours:
    return lambda _, hour, __: replace(mix, prompt=mix.prompt * 2 ** sin(2 * pi * hour / HOURS))


def with_any_prompts(mix: Mix) -> Hours:
    return lambda _, __, random: replace(mix, prompt=mix.prompt * random.lognormvariate(0, 0.7))


H100_CHAT, H100_LABELS = Mix(rate=9.0, prompt=800, answer=200), Mix(rate=9.4, prompt=2500, answer=1)
WORLDS = (
    World(name="labels by night", mix=by_clock(CHAT, LABELS)),
    World(name="more labels by night", mix=by_clock(CHAT, replace(LABELS, rate=3.0))),
    World(name="four hours of labels", mix=by_clock(CHAT, LABELS, begin=24, end=4)),
    World(name="labels twice a day", mix=twice_a_day(CHAT, LABELS)),
    World(name="labels at other hours each day", mix=at_random_hours(CHAT, LABELS)),
    World(
        name="labels on an H100",
        mix=by_clock(H100_CHAT, H100_LABELS),
        gpu="H100",
        itl_s=0.011,
        kv_tokens=400_000,
    ),
    World(
        name="labels on a nearly full H100",
        mix=by_clock(H100_CHAT, replace(H100_LABELS, rate=11.0)),
        gpu="H100",
        itl_s=0.011,
        kv_tokens=400_000,
    ),
    World(name="a start with small steps", mix=by_clock(CHAT, LABELS), start={CAP: 64, BUDGET: 256}),
    World(
        name="summaries by night",
        mix=by_clock(Mix(rate=2.0, prompt=300, answer=200), Mix(rate=0.4, prompt=3000, answer=150)),
        itl_s=0.045,
    ),
    World(name="few labels by night", mix=by_clock(CHAT, replace(LABELS, rate=1.0))),
    World(name="one load", mix=lambda _, __, ___: CHAT),
    World(name="one load with a daily rate", mix=with_daily_rate(replace(CHAT, rate=2.5))),
    World(name="prompts drift over the day", mix=with_drifting_prompts(CHAT)),
    World(name="prompts of any length", mix=with_any_prompts(CHAT)),
)
HELD_OUT = (
    World(
        name="verdicts of three tokens by night", mix=by_clock(CHAT, replace(LABELS, answer=3, spread=1.2))
    ),
    World(
        name="code by day, short labels by night",
        mix=by_clock(Mix(rate=1.1, prompt=3000, answer=400), Mix(rate=6.0, prompt=1000, answer=1)),
        itl_s=0.03,
    ),
    World(
        name="long answers by night",
        mix=by_clock(CHAT, Mix(rate=0.7, prompt=300, answer=1500)),
        itl_s=0.03,
    ),
    World(name="labels in the morning, spread wide", mix=by_clock(CHAT, replace(LABELS, spread=1.3), 30, 10)),
)
"""Worlds on which no rule was developed, named with `--held-out`."""


def draw_load(mix: Mix, random: Random) -> Trace:
    made, at_s = [], 0.0
    while (at_s := at_s + random.expovariate(mix.rate)) < SAMPLE_S:
        prompt, answer = (
            1 if median == 1 else max(1, round(median * random.lognormvariate(0, mix.spread)))
            for median in (mix.prompt, mix.answer)
        )
        made.append(TraceRequest(arrival_s=at_s, prompt_tokens=prompt, output_tokens=answer))
    return tuple(made)


@dataclass(slots=True)
class Week:
    """The load of each two hours, and what each setting makes of it, by the true law."""

    world: World
    loads: list[Trace]
    law: StepLaw
    limits: EngineLimits
    goals: Goals
    _shares: dict[tuple[int, str], float] = field(default_factory=dict)

    def share(self, span: int, setting: Setting) -> float:
        """Of the span's requests that meet the objectives."""
        key = (span, str(sorted(setting.items())))
        if key not in self._shares:
            run = ReplayedScheduler(self.loads[span], self.law, with_values(self.limits, setting)).run()
            self._shares[key] = attainment(run, self.goals)
        return self._shares[key]

    def attained(self, setting_of: SettingOf) -> float:
        """Share of all requests of the days after the learning; settings of a span with their parts of it."""
        spans = range(LEARNED_DAYS * SPANS, len(self.loads))
        good = sum(
            len(self.loads[span])
            * sum(part * self.share(span, setting) for setting, part in setting_of(span))
            for span in spans
        )
        return good / sum(len(self.loads[span]) for span in spans)


def prepare(world: World) -> tuple[Week, LearnedModel]:
    random = Random(f"regimes:{world.name}")  # noqa: S311 - reproducible, not secret
    times = [(day, hour) for day in range(LEARNED_DAYS + DAYS) for hour in range(0, HOURS, HOURS // SPANS)]
    loads = [draw_load(world.mix(day, hour, random), random) for day, hour in times]
    law, model = GPUS[world.gpu], "meta-llama/Llama-3.1-8B"
    config = ServeConfig(
        setting={"model": model, "max_model_len": 16_384, **world.start},
        card=find_gpu(world.gpu),
        model=find_model(model),
    )
    learned = LearnedModel(
        target="bench",
        server="bench-r0",
        config=config,
        fitted_at=NOON,
        trace=loads[0],
        counts_from="records",
        kv_tokens=world.kv_tokens,
        law=widen(law, common=0.03, each=0.02, count=8, seed=1),
        law_source="iteration log",
        rows=500,
        acceptance=Acceptance(itl=(0.03,) * 5, ttft=(-0.12,) * 5),
    )
    true = replace(
        law,
        step_us=law.step_us * random.lognormvariate(0, OFF),
        token_us=law.token_us * random.lognormvariate(0, OFF),
        kv_read_us=law.kv_read_us * random.lognormvariate(0, OFF),
    )
    limits, goals = limits_of(config, kv_tokens=world.kv_tokens), goals_of(world.slo, 0.0)
    if goals is None:
        raise AssertionError("a world has an objective")
    return Week(world, loads, true, limits, goals), learned


def advise(week: Week, learned: LearnedModel, *, cold: bool = False) -> RegimePlan | None:
    """What the product suggests after the days of learning: eight quarters of an hour have the same load."""
    history, at = LoadHistory(), int(NOON.timestamp())
    for span in range(LEARNED_DAYS * SPANS + 1):
        for quarter in range(SPAN_S // ROW_S):
            history = history.add(at + span * SPAN_S + quarter * ROW_S, week.loads[span])
    mixes = find_mixes(history.rows)
    if mixes is None:
        return None
    below, above = (history.sample_of(mixes, above=above) for above in (False, True))
    if below is None or above is None:
        return None
    advice = search_regimes(
        RegimeRequest(
            learned=learned,
            slo=week.world.slo,
            at=NOON,
            mixes=mixes,
            below=below.trace(),
            above=above.trace(),
            hot=HOT,
            bounds=BOUNDS,
            cold=cold,
        )
    )
    return advice.plan if advice else None


def follow(week: Week, plan: RegimePlan) -> tuple[SettingOf, list[int]]:
    """The settings of each two hours by the trigger, and those with a switch."""
    wrong_s = plan.lasts_s + (START_S + SHARES_S / 2 if plan.cold else TRIAL_S / 2)
    above, late = False, wrong_s / SPAN_S
    parts: dict[int, Sequence[tuple[Setting, float]]] = {}
    switches: list[int] = []
    for span, load in enumerate(week.loads):
        tokens = getattr(describe_load(0, load), plan.metric)
        now = tokens >= plan.low if above else tokens > plan.high
        new, old = plan.regime(above=now).values, plan.regime(above=above).values
        parts[span] = [(new, 1.0)] if now is above else [(old, late), (new, 1 - late)]
        if now is not above and span >= LEARNED_DAYS * SPANS:
            switches.append(span)
        above = now
    return parts.__getitem__, switches


def always(setting: Setting) -> SettingOf:
    return lambda _: [(setting, 1.0)]


def measure(world: World, *, cold: bool = False) -> Mapping[str, Any]:
    before = process_time()
    week, learned = prepare(world)
    sweep = {str(setting): week.attained(always(setting)) for setting in SWEEP}
    single = max(sweep, key=lambda name: sweep[name])
    spans = range(LEARNED_DAYS * SPANS, len(week.loads))
    each = {span: max(SWEEP, key=partial(week.share, span)) for span in spans}
    plan = advise(week, learned, cold=cold)
    row: dict[str, Any] = {
        "world": world.name,
        "start": week.attained(always(world.start)),
        "single": sweep[single],
        "best_single": single,
        "best_of_each_hour": week.attained(lambda span: [(each[span], 1.0)]),
        "suggested": plan is not None,
    }
    row["possible"] = row["best_of_each_hour"] / row["single"] - 1
    if plan is not None:
        setting_of, switches = follow(week, plan)
        row["followed"] = week.attained(setting_of)
        row["gain"] = row["followed"] / row["single"] - 1
        days = [span // SPANS for span in switches]
        most = max(map(days.count, days), default=0)
        row |= {"most_switches_a_day": most, "cold_switches": len(switches) if plan.cold else 0}
        row |= {"below": dict(plan.below.values), "above": dict(plan.above.values)}
    row["cpu_s"] = process_time() - before
    return row


def main() -> None:
    parser = new_parser("bench.regimes", __doc__, "regimes.json")
    parser.add_argument("--cold", action="store_true", help="each switch starts servers")
    parser.add_argument("--held-out", action="store_true", help="worlds on which no rule was developed")
    parser.add_argument("world", nargs="*", help="names of worlds; default: all")
    options = parser.parse_args()
    rows = []
    for world in HELD_OUT if options.held_out else WORLDS:
        if options.world and world.name not in options.world:
            continue
        rows.append(measure(world, cold=options.cold))
        shown = {
            name: round(value, 3) if isinstance(value, float) else value for name, value in rows[-1].items()
        }
        print("; ".join(f"{name} {value}" for name, value in shown.items()), flush=True)
    write(options.json, {"worlds": rows})


if __name__ == "__main__":
    main()
