"""Report a model that is split over more GPUs than it needs, or suggest fewer where savings are wanted."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flettner.agent.domain.lateness import misses_objective
from flettner.agent.domain.model import Proposal
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.performance_model.errors import PredictionInputError
from flettner.performance_model.hardware_prior import prior_law
from flettner.performance_model.step_law import StepLaw
from flettner.policies.shared.signals import build_evidence, build_note, check_options, has_insufficient_data
from flettner.vllm_facts.references import SCALING
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.effective_flags import Layout, effective_seqs, layout
from flettner.vllm_facts.sizing.kv_cache import estimate_fit
from flettner.vllm_facts.sizing.parallel_layouts import plan_layout

SOURCE = SCALING
ROUNDS = 20  # until sequences and time of a token agree: each changes the other by less than itself


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutNote:
    """Rule D9. A note, since longer tokens are the operator's to accept; with `save = true` in
    `[targets.cost]` and a promised time of tokens or answers it is a change, which a person approves.
    """

    kv_idle_below_ratio: float = 0.1  # highest KV usage of the window
    room_at_most_ratio: float = 0.5  # of a narrower engine's KV cache, that the tokens in use may fill
    prefill_at_most_ratio: float = 0.5  # of a narrower engine's time, at the window's highest prompt rate
    itl_at_most_ratio: float = 0.8  # of the objective, that a token of a narrower engine may take
    coverage_at_least_ratio: float = 0.8

    def __post_init__(self) -> None:
        check_options(self)

    def propose(self, reading: Reading, context: Context) -> Sequence[Proposal]:
        config, usage, slo = context.config, reading.kv_usage, context.slo
        if config is None or usage is None or has_insufficient_data(reading, self.coverage_at_least_ratio):
            return ()
        now = layout(config)
        if now.tp * now.pp == 1 or usage.high >= self.kv_idle_below_ratio or reading.waiting.high > 0:
            return ()
        if misses_objective(reading.ttft, slo.ttft, 1) or misses_objective(reading.itl, slo.itl, 1):
            return ()
        plan = plan_layout(config)
        if plan is None or plan.experts or plan.layout.tp * plan.layout.pp >= now.tp * now.pp:
            return ()
        wanted = replace(plan.layout, dp=1)
        took, alone = estimate_fit(config), estimate_fit(config, shape=wanted)
        if took is None or alone is None:
            return ()
        used = usage.high * took.kv_tokens * now.dp
        if used > self.room_at_most_ratio * alone.kv_tokens:
            return ()
        laws = _laws(config, wanted)
        if laws is None:
            return ()
        running = max(1.0, reading.running.mean)
        now_s = _step_s(laws[0], running / now.dp, used / now.dp)
        then_s = _step_s(laws[1], running, used)
        if slo.itl is not None and then_s > slo.itl.under_s:
            return ()
        size = wanted.tp * wanted.pp
        why = (
            f"over {reading.span_s:.0f} s at most {usage.high:.1%} of the KV cache was used and "
            f"{reading.running.high:.0f} requests ran, while {_name(config)} is split over {now.gpus} "
            f"GPUs: {size} would have {alone.kv_tokens:,} tokens of KV cache, "
            f"{alone.kv_tokens / max(used, 1):,.0f} times what is in use"
        )
        takes = (
            f"by the data sheet a token takes {1e3 * then_s:.1f} ms on {size} instead of "
            f"{1e3 * now_s:.1f} ms on {now.gpus}"
        )
        steady = self._find_steady(laws, reading, context, now_s, used / running)
        if not context.saves or steady is None:
            return (_note(reading, config, wanted, why, takes, then_s),)
        return (_change(reading, config, wanted, why, takes, steady),)

    def _find_steady(
        self,
        laws: tuple[StepLaw, StepLaw],
        reading: Reading,
        context: Context,
        now_s: float,
        context_tokens: float,
    ) -> "_Steady | None":
        """One narrower engine under the window's highest load; None if it does not keep the objectives.

        As much slower as the present engine is than its own law: what the data sheet does not have, such as
        the clients, stays. Sequences follow from the rate of tokens and the time of each (Little).
        """
        generated, prompts, slo = reading.generation_tokens_per_s, reading.prompt_tokens_per_s, context.slo
        seqs = context.config and effective_seqs(context.config)
        if generated is None or prompts is None or reading.itl is None or not seqs:
            return None
        if slo.itl is None and slo.e2e is None:
            return None
        slower, law = max(1.0, reading.itl.p50 / now_s), laws[1]
        prefill = slower * 1e-6 * law.token_us * prompts.high
        if prefill > self.prefill_at_most_ratio:
            return None
        limit_s = self.itl_at_most_ratio * slo.itl.under_s if slo.itl is not None else 2 * reading.itl.p50
        running, token_s = 1.0, 0.0
        for _ in range(ROUNDS):
            token_s = slower * _step_s(law, running, running * context_tokens) / (1 - prefill)
            running = max(1.0, generated.high * token_s)
            if running > seqs or token_s > limit_s:
                return None
        return _Steady(token_s=token_s, running=running, prefill=prefill)


@dataclass(frozen=True, slots=True)
class _Steady:
    """A narrower engine under the window's highest load. `prefill`: the share of its time for prompts."""

    token_s: float
    running: float
    prefill: float


def _note(
    reading: Reading, config: ServeConfig, wanted: Layout, why: str, takes: str, then_s: float
) -> Proposal:
    now, size = layout(config), wanted.tp * wanted.pp
    engines = now.gpus // size
    advice = (
        f"no change: {takes}, so {size} of {now.gpus} GPUs would carry this load; all of them hold "
        f"{engines} engines (tensor_parallel_size {wanted.tp}, data_parallel_size {engines})"
    )
    usage = reading.kv_usage.high if reading.kv_usage else None
    numbers = (("kv_usage_high", usage, "ratio"), ("token_s_predicted", then_s, "s"))
    return build_note("D9", reading, why, advice, SOURCE, *numbers)


def _change(
    reading: Reading, config: ServeConfig, wanted: Layout, why: str, takes: str, steady: _Steady
) -> Proposal:
    now, size = layout(config), wanted.tp * wanted.pp
    sizes = {
        "tensor_parallel_size": (now.tp, wanted.tp),
        "pipeline_parallel_size": (now.pp, wanted.pp),
        "data_parallel_size": (now.dp, 1),
    }
    measured = reading.itl.p50 if reading.itl else 0.0
    return Proposal(
        rule="D9",
        to={knob: new for knob, (old, new) in sizes.items() if new != old},
        assumed={knob: old for knob, (old, _) in sizes.items() if old == 1},
        why=why,
        expects=(
            f"{now.gpus - size} of {now.gpus} GPUs to spare: {takes}; beside the measured "
            f"{1e3 * measured:.1f} ms that is {1e3 * steady.token_s:.1f} ms at the highest load, with "
            f"{steady.running:.0f} requests at once and {steady.prefill:.0%} of the time for prompts"
        ),
        risks="a larger load than the window's finds fewer GPUs; the hold step has all of the traffic",
        source=SOURCE,
        evidence=build_evidence(
            reading, ("token_s_predicted", steady.token_s, "s"), ("gpus_spared", now.gpus - size, "GPUs")
        ),
        klass="gated",
        cheaper=True,
    )


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
