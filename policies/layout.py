"""Report or spare GPUs that a layout does not need; split an overloaded engine into several narrower ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt

from flettner.agent.domain.lateness import misses_any, misses_objective
from flettner.agent.domain.model import Objective, Proposal, Slo
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Latency, Reading, Trend
from flettner.performance_model.errors import PredictionInputError
from flettner.performance_model.hardware_prior import prior_law
from flettner.performance_model.step_law import StepLaw
from flettner.policies.shared.signals import build_evidence, build_note, check_options, has_insufficient_data
from flettner.vllm_facts.references import SCALING
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.effective_flags import Layout, effective_seqs, is_sparse, layout
from flettner.vllm_facts.sizing.kv_cache import estimate_fit
from flettner.vllm_facts.sizing.parallel_layouts import is_single_host, plan_layout
from flettner.vllm_facts.values import Knob, Value

SOURCE = SCALING
USUAL_SHARE = 0.95  # of the requests in time: their 95th percentile says it, else the 99th
UNSEEN_TIMES = 2.0  # as long a token may take where only whole answers are promised, and none was seen
ROUNDS = 20  # until sequences and time of a token agree: each changes the other by less than itself


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutNote:
    """Rule D9. A note, since longer tokens are the operator's to accept; with `save = true` in
    `[targets.cost]` and a promised time of tokens or answers it is a change, which a person approves. Where
    an objective is missed, it is one to as many engines as the GPUs hold, if they compute far more tokens.
    """

    kv_idle_below_ratio: float = 0.1  # highest KV usage of the window
    room_at_most_ratio: float = 0.5  # of a narrower engine's KV cache, that the tokens in use may fill
    waiting_below: float = 0.5  # requests on average: one that comes waits for the end of a step
    prefill_at_most_ratio: float = 0.5  # of a narrower engine's time, at the window's mean prompt rate
    burst_at_most_ratio: float = 0.9  # the same in its highest second
    itl_at_most_ratio: float = 0.8  # of the objective, that a token of a narrower engine may take
    ttft_at_most_ratio: float = 0.8  # the same of a first token
    tokens_at_least_times: float = 1.3  # those of the present layout, where an objective is missed
    coverage_at_least_ratio: float = 0.8

    def __post_init__(self) -> None:
        check_options(self)

    def propose(self, reading: Reading, context: Context) -> Sequence[Proposal]:
        config, usage, slo = context.config, reading.kv_usage, context.slo
        if config is None or usage is None or has_insufficient_data(reading, self.coverage_at_least_ratio):
            return ()
        now = layout(config)
        loads = [] if now.gpus == 1 else self._list_loads(reading, config, _peak_times(reading, context))
        if not loads:
            return ()
        load, wanted = loads[0], loads[0].wanted
        if misses_any(reading, slo):
            more = self._find_more(load, slo)
            return () if more is None else (more,)
        if usage.high >= self.kv_idle_below_ratio or reading.waiting.mean >= self.waiting_below:
            return ()
        if misses_objective(reading.ttft, slo.ttft, 1) or misses_objective(reading.itl, slo.itl, 1):
            return ()
        changes = [change for each in loads if (change := self._find_change(each, slo))]
        if context.saves and changes:
            return (max(changes, key=_count_spared),)
        narrower = wanted.tp * wanted.pp < now.tp * now.pp
        if not narrower or load.used > load.room or (slo.itl and load.then_s > slo.itl.under_s):
            return ()
        return (_note(load),)

    def _list_loads(self, reading: Reading, config: ServeConfig, times: float) -> list["_Load"]:
        """With each engine that takes fewer GPUs than the present one, the narrowest first."""
        took, usage = estimate_fit(config), reading.kv_usage
        loads = []
        for wanted in _list_engines(config) if took is not None and usage is not None else ():
            alone, laws = estimate_fit(config, shape=wanted), _laws(config, wanted)
            if took is None or usage is None or alone is None or laws is None:
                return []
            loads.append(
                _Load(
                    reading=reading,
                    config=config,
                    laws=laws,
                    wanted=wanted,
                    used=usage.high * took.kv_tokens * layout(config).dp,
                    kv_tokens=alone.kv_tokens,
                    room=self.room_at_most_ratio * alone.kv_tokens,
                    times=times,
                )
            )
        return loads

    def _find_more(self, load: "_Load", slo: Slo) -> Proposal | None:
        """Engines on all the GPUs in place of wider ones, where they compute far more tokens of this load."""
        now, size = layout(load.config), load.wanted.tp * load.wanted.pp
        engines = now.gpus // size
        generated, prompts = load.reading.generation_tokens_per_s, load.reading.prompt_tokens_per_s
        if generated is None or prompts is None or load.reading.itl is None:
            return None
        if engines <= now.dp or not _may_be_several(load.config) or load.used > engines * load.kv_tokens:
            return None
        each = (generated.mean + prompts.mean) / max(generated.mean, 1.0)  # tokens of a step per sequence
        times = load.tokens_per_s(load.laws[1], engines, each) / load.tokens_per_s(load.laws[0], now.dp, each)
        token_s = load.slower(load.reading.itl.p50, prompts.mean) * _step_s(
            load.laws[1], 1, load.used / load.running
        )
        if times < self.tokens_at_least_times:
            return None
        if slo.itl is not None and token_s > self.itl_at_most_ratio * slo.itl.under_s:
            return None
        return _more(load, engines, times, token_s)

    def _find_change(self, load: "_Load", slo: Slo) -> Proposal | None:
        """The fewest engines that keep the objectives under the highest load, if that saves GPUs."""
        size, now = load.wanted.tp * load.wanted.pp, layout(load.config)
        most = (now.gpus - 1) // size if _may_be_several(load.config) else min(1, (now.gpus - 1) // size)
        for engines in range(1, most + 1):
            if load.used_at_peak > load.room * engines:
                continue
            steady = self._find_steady(load, slo, engines)
            if steady is not None:
                return _change(load, engines, steady)
        return None

    def _find_steady(self, load: "_Load", slo: Slo, engines: int) -> "_Steady | None":
        """One of so many engines under the highest load; None if it does not keep the objectives.

        Sequences follow from the rate of tokens and the time of each (Little).
        """
        reading, law = load.reading, load.laws[1]
        generated, prompts = reading.generation_tokens_per_s, reading.prompt_tokens_per_s
        seqs = effective_seqs(load.config)
        if generated is None or prompts is None or reading.itl is None or not seqs:
            return None
        if slo.itl is None and slo.e2e is None:
            return None
        slower = load.slower(reading.itl.p50, prompts.mean)
        mean, prefill = (
            slower * 1e-6 * law.token_us * rate / engines
            for rate in (load.times * prompts.mean, load.at_peak(prompts))
        )
        if mean > self.prefill_at_most_ratio or prefill > self.burst_at_most_ratio:
            return None
        if not load.keeps_ttft(slo.ttft, slower, prompts.mean, mean, self.ttft_at_most_ratio):
            return None
        limit_s = self._find_longest_token(slo, reading, reading.itl)
        running, token_s, context_tokens = 1.0, 0.0, load.used / load.running
        for _ in range(ROUNDS):
            token_s = slower * _step_s(law, running, running * context_tokens) / (1 - prefill)
            running = max(1.0, load.at_peak(generated) / engines * token_s)
            if running > seqs or token_s > limit_s:
                return None
        if not load.keeps_e2e(slo.e2e, token_s / reading.itl.p50, self.itl_at_most_ratio):
            return None
        return _Steady(token_s=token_s, running=running, prefill=prefill)

    def _find_longest_token(self, slo: Slo, reading: Reading, itl: Latency) -> float:
        """Seconds that a token may take; inf where only whole answers are promised, and measured."""
        if slo.itl is not None:
            return self.itl_at_most_ratio * slo.itl.under_s
        return inf if reading.e2e is not None else UNSEEN_TIMES * itl.p50


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """What the present engines do, and what narrower ones are like."""

    reading: Reading
    config: ServeConfig
    laws: tuple[StepLaw, StepLaw]  # of a present engine, and of one of the wanted ones
    wanted: Layout  # of one engine
    used: float  # tokens in the KV cache of all engines
    kv_tokens: int  # that an engine of the wanted kind has room for
    room: float  # of these, that may be in use
    times: float  # how many times the present load the highest one is

    def at_peak(self, trend: Trend) -> float:
        """The highest value of the highest load: what comes at random varies with the root of its number."""
        return self.times * trend.mean + sqrt(self.times) * (trend.high - trend.mean)

    @property
    def used_at_peak(self) -> float:
        usage = self.reading.kv_usage
        return self.used if not usage or not usage.high else self.used * self.at_peak(usage) / usage.high

    @property
    def running(self) -> float:
        return max(1.0, self.reading.running.mean)

    @property
    def now_s(self) -> float:
        """The time of a token in a present engine."""
        engines = layout(self.config).dp
        return _step_s(self.laws[0], self.running / engines, self.used / engines)

    def keeps_ttft(
        self,
        objective: Objective | None,
        slower: float,
        prompts_per_s: float,
        prefill: float,
        at_most: float,
    ) -> bool:
        """Whether first tokens take at most that part of the objective: a prompt takes longer on fewer GPUs,
        and so does its turn.

        `prefill`: the part of an engine's time for prompts. Without requests nothing contradicts it.
        """
        if objective is None or self.reading.ttft is None:
            return True
        before, after = (law.token_us for law in self.laws)
        now = min(0.95, slower * 1e-6 * before * prompts_per_s / layout(self.config).dp)
        then_s = _usual_s(self.reading.ttft, objective) * max(1.0, after / before)
        return then_s * max(1.0, (1 - now) / (1 - prefill)) <= at_most * objective.under_s

    def keeps_e2e(self, objective: Objective | None, times: float, at_most: float) -> bool:
        """Whether whole answers take at most that part of the objective, if a token takes so many `times` as
        long, and a prompt as much longer as by the data sheet. Without requests nothing contradicts it.
        """
        whole, first = self.reading.e2e, self.reading.ttft
        if objective is None or whole is None:
            return True
        before, after = (law.token_us for law in self.laws)
        first_s = min(first.p50, whole.p50) if first is not None else 0.0
        then_s = first_s * max(1.0, after / before) + (_usual_s(whole, objective) - first_s) * times
        return then_s <= at_most * objective.under_s

    def tokens_per_s(self, law: StepLaw, engines: int, each: float) -> float:
        """What so many engines compute of the present requests, `each` tokens of one in a step."""
        running = self.running / engines
        step_s = law.seconds(round(running * each), max(1, round(running)), round(self.used / engines))
        return engines * running * each / step_s

    def slower(self, itl_s: float, prompts_per_s: float) -> float:
        """How many times as slow as its law a present engine is: what the data sheet does not have stays.

        Its prompts are no slowness: a token waits for its share of the time that they leave.
        """
        prefill = 1e-6 * self.laws[0].token_us * prompts_per_s / layout(self.config).dp
        return max(1.0, itl_s / (self.now_s + itl_s * prefill))

    @property
    def then_s(self) -> float:
        """The time of a token if one of the wanted engines has all requests."""
        return _step_s(self.laws[1], self.running, self.used)

    @property
    def why(self) -> str:
        reading, gpus = self.reading, layout(self.config).gpus
        usage = reading.kv_usage.high if reading.kv_usage else 0.0
        return (
            f"over {reading.span_s:.0f} s at most {usage:.1%} of the KV cache was used and "
            f"{reading.running.high:.0f} requests ran, while {_name(self.config)} is split over {gpus} "
            f"GPUs: {self.wanted.tp * self.wanted.pp} would have {self.kv_tokens:,} tokens of KV cache, "
            f"{self.kv_tokens / max(self.used, 1):,.0f} times what is in use"
        )

    @property
    def takes(self) -> str:
        now, size = layout(self.config), self.wanted.tp * self.wanted.pp
        return (
            f"by the data sheet a token takes {1e3 * self.then_s:.1f} ms on {size} instead of "
            f"{1e3 * self.now_s:.1f} ms on {now.tp * now.pp}"
        )


@dataclass(frozen=True, slots=True)
class _Steady:
    """A narrower engine under the window's highest load. `prefill`: the share of its time for prompts."""

    token_s: float
    running: float
    prefill: float


def _usual_s(latency: Latency, objective: Objective) -> float:
    """What the promised share of the requests takes."""
    return latency.p95 if objective.share <= USUAL_SHARE else latency.p99


def _note(load: _Load) -> Proposal:
    reading, now, wanted = load.reading, layout(load.config), load.wanted
    size = wanted.tp * wanted.pp
    engines = now.gpus // size
    advice = (
        f"no change: {load.takes}, so {size} of {now.gpus} GPUs would carry this load; all of them hold "
        f"{engines} engines (tensor_parallel_size {wanted.tp}, data_parallel_size {engines})"
    )
    usage = reading.kv_usage.high if reading.kv_usage else None
    numbers = (("kv_usage_high", usage, "ratio"), ("token_s_predicted", load.then_s, "s"))
    return build_note("D9", reading, load.why, advice, SOURCE, *numbers)


def _change(load: _Load, engines: int, steady: _Steady) -> Proposal:
    reading, now, wanted = load.reading, layout(load.config), load.wanted
    spared = now.gpus - engines * wanted.tp * wanted.pp
    to = _changed(now, replace(wanted, dp=engines))
    measured = reading.itl.p50 if reading.itl else 0.0
    each = f" in each of {engines} engines" if engines > 1 else ""
    highest = "the week's peak" if load.times > 1 else "the highest load"
    return Proposal(
        rule="D9",
        to=to,
        assumed=_assumed(now),
        why=load.why,
        expects=(
            f"{spared} of {now.gpus} GPUs to spare: {load.takes}; beside the measured "
            f"{1e3 * measured:.1f} ms that is {1e3 * steady.token_s:.1f} ms at {highest}, with "
            f"{steady.running:.0f} requests at once and {steady.prefill:.0%} of the time for prompts{each}"
        ),
        risks="a larger load than the window's finds fewer GPUs; answers take longer, and where the first "
        "token and the next ones are promised only that is judged; the hold step has all of the traffic",
        source=SOURCE,
        evidence=build_evidence(
            reading, ("token_s_predicted", steady.token_s, "s"), ("gpus_spared", spared, "GPUs")
        ),
        klass="gated",
        cheaper=True,
    )


def _more(load: _Load, engines: int, times: float, token_s: float) -> Proposal:
    reading, now, wanted = load.reading, layout(load.config), load.wanted
    to = _changed(now, replace(wanted, dp=engines))
    return Proposal(
        rule="D9",
        to=to,
        assumed=_assumed(now),
        why=(
            f"an objective is missed while {reading.running.mean:.0f} requests run and "
            f"{reading.waiting.mean:.0f} wait, and {_name(load.config)} is split over "
            f"{now.tp * now.pp} GPUs, which exchange every layer"
        ),
        expects=(
            f"by the data sheet {times:.1f} times as many tokens of this load on the same {now.gpus} GPUs, "
            f"in {engines} engines; a token then takes at least {1e3 * token_s:.1f} ms"
        ),
        risks="a token of a request takes longer, and each engine has its own KV cache and prefix cache",
        source=SOURCE,
        evidence=build_evidence(
            reading, ("tokens_times_predicted", times, "times"), ("token_s_predicted", token_s, "s")
        ),
        klass="gated",
    )


def _changed(now: Layout, then: Layout) -> Mapping[Knob, Value]:
    sizes = {
        "tensor_parallel_size": (now.tp, then.tp),
        "pipeline_parallel_size": (now.pp, then.pp),
        "data_parallel_size": (now.dp, then.dp),
    }
    return {knob: new for knob, (old, new) in sizes.items() if new != old}


def _assumed(now: Layout) -> Mapping[Knob, Value]:
    """The sizes that no flag may set."""
    sizes = (("tensor", now.tp), ("pipeline", now.pp), ("data", now.dp))
    return {f"{name}_parallel_size": size for name, size in sizes if size == 1}


def _count_spared(change: Proposal) -> float:
    return next(float(row.value) for row in change.evidence if row.metric == "gpus_spared")


def _list_engines(config: ServeConfig) -> list[Layout]:
    """One engine of fewer GPUs than the present ones have, or of as many where there are several engines."""
    narrowest, now = _find_engine(config), layout(config)
    if narrowest is None:
        return []
    sizes = [narrowest.tp << power for power in range(1, 4) if narrowest.tp << power < now.tp]
    wider = [replace(narrowest, tp=size) for size in sizes if now.tp % size == 0 and now.pp == narrowest.pp]
    return [narrowest, *wider]


def _find_engine(config: ServeConfig) -> Layout | None:
    """The GPUs of one engine that holds the model on fewer of them; None if there is nothing to spare."""
    now, plan = layout(config), plan_layout(config)
    if plan is not None and not plan.experts and plan.layout.tp * plan.layout.pp < now.tp * now.pp:
        return replace(plan.layout, dp=1)
    return replace(now, dp=1) if now.dp > 1 and _may_be_several(config) else None


def _may_be_several(config: ServeConfig) -> bool:
    """Whether engines are independent, and none is started elsewhere."""
    return is_single_host(config) and not is_sparse(config)


def _peak_times(reading: Reading, context: Context) -> float:
    """How many times the window's load the peak of the last week was, where that is known; at least 1."""
    rps = sum(reading.requests.values()) / reading.span_s
    if context.peak_rps is None or rps <= 0:
        return 1.0
    return max(1.0, context.peak_rps / context.servers / rps)


def _laws(config: ServeConfig, wanted: Layout) -> tuple[StepLaw, StepLaw] | None:
    """The laws of the data sheet, with the exchange over its links: of a present engine, of a narrower one.

    None if the GPU or the model has no known speed.
    """
    sizes = {"tensor_parallel_size": wanted.tp, "pipeline_parallel_size": wanted.pp, "data_parallel_size": 1}
    try:
        split = prior_law(config).law
        return split, prior_law(replace(config, setting={**config.setting, **sizes})).law
    except PredictionInputError:
        return None


def _step_s(law: StepLaw, sequences: float, kv_read: float) -> float:
    """Of a step in which each sequence computes a token."""
    return law.seconds(round(sequences), round(sequences), round(kv_read))


def _name(config: ServeConfig) -> str:
    return config.model.name if config.model else "the model"


plugin = LayoutNote
