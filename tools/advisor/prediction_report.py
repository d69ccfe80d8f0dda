"""The result of `flettner predict`: what was assumed, the numbers with their bands, and better settings."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flettner.agent.domain.cost import GpuRates, add_cost
from flettner.agent.domain.errors import ConfigError
from flettner.lint.rules import flags, unknown_flags
from flettner.performance_model.band import Band
from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.engine_settings import limits_of, plans_ahead, veto, with_changes
from flettner.performance_model.errors import PredictionInputError
from flettner.performance_model.extrapolation import describe_extrapolation
from flettner.performance_model.hardware_prior import prior_law
from flettner.performance_model.outcome import Goals
from flettner.performance_model.outside import OUTSIDE, cached_share, outside_of_page
from flettner.performance_model.prediction import (
    MOST_REPLICAS,
    Headroom,
    add_outside,
    find_capacity,
    find_headroom,
    largest_of,
    predict,
)
from flettner.performance_model.resample import with_cached_share
from flettner.performance_model.search import LEAST_GAIN, SearchResult, search
from flettner.performance_model.step_law import COEFFICIENTS, UncertainLaw, read_law, write_law
from flettner.performance_model.trace import Trace, duration_s, mean_rate
from flettner.tools.advisor.measured_law import find_kv_tokens, law_of_log
from flettner.tools.advisor.render import format_command
from flettner.tools.terminal.tables import format_sentence, format_table
from flettner.tools.terminal.values import COST_TITLES, format_prediction
from flettner.vllm_facts.metrics.page_totals import PageTotals
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.shell_command.serve_command import ServeCommand, edit_command
from flettner.vllm_facts.sizing.effective_flags import layout
from flettner.vllm_facts.validity.engine import find_problems
from flettner.vllm_facts.values import describe_changes

_ROWS = (
    ("ttft_p50_s", "TTFT, median"),
    ("ttft_p90_s", "TTFT, 90 %"),
    ("ttft_p99_s", "TTFT, 99 %"),
    ("itl_p50_s", "time between tokens, median request"),
    ("itl_p90_s", "time between tokens, 90 % of requests"),
    ("gap_p99_s", "time between tokens, 99 % of tokens"),
    ("e2e_p50_s", "whole request, median"),
    ("e2e_p99_s", "whole request, 99 %"),
    ("peak_kv_share", "KV cache, peak"),
    ("preemptions_per_request", "preemptions per request"),
    ("rejected_share", "rejected requests"),
    ("tokens_per_s", "generated tokens per second"),
    *COST_TITLES,
)
_OF_GOALS = (("attainment", "requests within the objectives"), ("goodput_per_s", "such requests per second"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionReport:
    """`goals`, `headroom` are None without an objective, `search` without a search.

    `warnings`: why vLLM may refuse the command. `outside`: seconds of each request outside of the engine.
    """

    trace: Trace
    law: UncertainLaw
    limits: EngineLimits
    outside: Band
    warnings: Sequence[str]
    bands: Mapping[str, Band]
    goals: Goals | None
    headroom: Headroom | None
    capacity: Band | None  # the rate of the headroom; None: not asked for, or there is none
    search: SearchResult | None

    @property
    def extrapolation(self) -> str:
        return describe_extrapolation(self.law.fitted_to, largest_of(self.bands))

    def as_row(self) -> dict[str, Any]:
        return {
            "requests": len(self.trace),
            "seconds": duration_s(self.trace),
            "law": json.loads(write_law(self.law)),
            "law_intervals": {name: self.law.interval(name) for name in COEFFICIENTS},
            "warnings": list(self.warnings),
            "extrapolation": self.extrapolation,
            "limits": asdict(self.limits),
            "outside_s": asdict(self.outside),
            "predicted": {name: asdict(band) for name, band in self.bands.items()},
            "objectives": asdict(self.goals) if self.goals else None,
            "headroom": asdict(self.headroom) if self.headroom else None,
            "capacity": asdict(self.capacity) if self.capacity else None,
            "search": None if self.search is None else _search_row(self.search),
        }

    def as_text(self, command: ServeCommand) -> str:
        rate = mean_rate(self.trace)
        when = "at once" if rate is None else f"in {duration_s(self.trace):,.0f} s ({rate:.2f} a second)"
        means = [
            sum(getattr(request, name) for request in self.trace) / len(self.trace)
            for name in ("prompt_tokens", "output_tokens")
        ]
        rows = (*(_OF_GOALS if self.goals else ()), *_ROWS)
        return (
            format_sentence(
                f"{len(self.trace):,} requests {when}, on average "
                f"{means[0]:,.0f} prompt and {means[1]:,.0f} output tokens; KV cache of "
                f"{self.limits.kv_tokens:,} tokens; step times: {self.law.source or 'a measured law'}."
            )
            + "\n"
            + "".join(format_sentence(f"vLLM may refuse this: {request}") + "\n" for request in self.warnings)
            + (format_sentence(f"Less certain: {self.extrapolation}") + "\n" if self.extrapolation else "")
            + format_table(
                ("", "predicted", "80 % of draws"),
                [_band_row(name, title, self.bands[name]) for name, title in rows if name in self.bands],
            )
            + (_headroom_text(self.headroom, self.capacity, rate) if self.headroom else "")
            + (_search_text(self.search, command) if self.search else "")
        )


def build_report(
    config: ServeConfig,
    trace: Trace,
    goals: Goals | None,
    *,
    law_text: str | None,
    log: Sequence[str],
    page: PageTotals | None,
    kv_tokens: int | None,
    search_settings: bool,
    gpu_hour: float | None = None,
    with_capacity: bool = False,
) -> PredictionReport:
    """`page`: /metrics of a server with this load. Raises PredictionInputError."""
    if kv_tokens is not None and kv_tokens < 1:
        raise PredictionInputError(f"--kv-tokens {kv_tokens}: must be at least 1")
    warnings = check_flags(config)
    measured = kv_tokens or find_kv_tokens(log)
    law = _choose_law(config, limits_of(config, kv_tokens=measured), trace, law_text, log)
    if plans_ahead(config):
        config = with_changes(config, {"async_scheduling": True})
    limits = limits_of(config, kv_tokens=measured)
    doubt = veto(config, limits)
    trace = with_cached_share(trace, cached_share(page)) if page else trace
    outside = (outside_of_page(page) if page else None) or OUTSIDE
    inside = goals.inside(outside.value) if goals else None
    bands = add_outside(predict(trace, law, limits, inside or Goals()), outside)
    return PredictionReport(
        trace=trace,
        law=law,
        limits=limits,
        outside=outside,
        warnings=(*warnings, *((doubt,) if doubt else ())),
        bands=add_cost(bands, GpuRates(per_hour=gpu_hour), layout(config).gpus),
        goals=goals,
        headroom=find_headroom(trace, law.law, limits, inside) if inside else None,
        capacity=find_capacity(trace, law, limits, inside) if inside and with_capacity else None,
        search=search(config, trace, law, inside, kv_tokens=measured) if inside and search_settings else None,
    )


def _choose_law(
    config: ServeConfig, limits: EngineLimits, trace: Trace, text: str | None, log: Sequence[str]
) -> UncertainLaw:
    if text is not None:
        return read_law(text, "--law")
    return law_of_log(config, log, limits.kv_tokens, trace) or prior_law(config)


def _band_row(name: str, title: str, band: Band) -> tuple[str, str, str]:
    value, low, high = (format_prediction(name, number) for number in (band.value, band.low, band.high))
    return title, value, f"{low} to {high}"


def _headroom_text(headroom: Headroom, capacity: Band | None, rate: float | None) -> str:
    band = f" ({capacity.low:.2f} to {capacity.high:.2f})" if capacity else ""
    if rate is None:
        holds = ""
    elif headroom.rate_per_s is None:
        holds = "No load of this shape meets the objectives with this setting."
    else:
        holds = (
            f"This setting meets the objectives up to {headroom.rate_per_s:.2f}{band} requests a second, "
            f"{headroom.rate_per_s / rate:.2f} times the load."
        )
    if headroom.replicas is None:
        return "\n" + format_sentence(
            f"{holds} Not even {MOST_REPLICAS} servers meet the objectives.".lstrip()
        )
    servers = "1 server meets" if headroom.replicas == 1 else f"{headroom.replicas} servers meet"
    return "\n" + format_sentence(f"{holds} {servers} the objectives for this load.".lstrip())


def _refusal(result: SearchResult) -> str:
    """Say why no change is proposed."""
    now = f"{result.base:.1%} of the requests are within the objectives"
    change = f"changes that by {100 * result.gain:+.1f} points (standard error {100 * result.noise:.1f})"
    if result.gain <= LEAST_GAIN:
        return f"Nothing to gain: {now}, and the best of {result.tried} settings {change}."
    return (
        f"Nothing certain: {now}; {describe_changes(result.finalists[0].changes)}, the best of "
        f"{result.tried} settings, {change}, which is less than two standard errors. "
        "A measured law (--log, --law) is surer."
    )


def _search_text(result: SearchResult, command: ServeCommand) -> str:
    if result.best is None:
        return "\n" + format_sentence(_refusal(result))
    better = edit_command(command, result.best.changes, {})
    return (
        "\n"
        + format_sentence(
            f"Better: {describe_changes(result.best.changes)}: {result.base + result.gain:.1%} of the "
            f"requests within the objectives instead of {result.base:.1%} (standard error "
            f"{100 * result.noise:.1f} points; better in {result.likely:.0%} of the draws of the law), the "
            f"best of {result.tried} settings:"
        )
        + "\n"
        + format_command(better)
    )


def _search_row(result: SearchResult) -> dict[str, Any]:
    return {
        "attainment": result.base,
        "changes": dict(result.best.changes) if result.best else None,
        "gain": result.gain,
        "standard_error": result.noise,
        "better_in_share_of_draws": result.likely,
        "tried": result.tried,
        "vetoed": result.vetoed,
        "finalists": [
            {"changes": dict(setting.changes), "attainment": setting.attainment}
            for setting in result.finalists
        ],
    }


def check_flags(config: ServeConfig) -> list[str]:
    """Return why some release may refuse the flags. Raises ConfigError if every release does."""
    lints = (*flags.LINTS, *unknown_flags.LINTS)
    findings = [finding for lint in lints for finding in lint.check(config) if not finding.env]
    certain = [finding.why for finding in findings if finding.severity == "error"]
    refused = list(dict.fromkeys([*certain, *(finding.why for finding in find_problems(config))]))
    if refused:
        raise ConfigError(f"vLLM refuses this command: {'; '.join(refused)}")
    return [finding.why for finding in findings if (finding.severity, finding.klass) == ("warning", "gated")]
