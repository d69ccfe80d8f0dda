"""The result of `flettner predict`: what was assumed, the numbers with their bands, and better settings."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flettner.agent.domain.errors import ConfigError
from flettner.lint.rules.flags import LINTS
from flettner.performance_model.band import Band
from flettner.performance_model.engine_limits import EngineLimits
from flettner.performance_model.engine_settings import limits_of, veto
from flettner.performance_model.errors import PredictionInputError
from flettner.performance_model.extrapolation import describe_extrapolation
from flettner.performance_model.hardware_prior import prior_law
from flettner.performance_model.outcome import Goals
from flettner.performance_model.prediction import MOST_REPLICAS, Headroom, find_headroom, largest_of, predict
from flettner.performance_model.search import LEAST_GAIN, SearchResult, search
from flettner.performance_model.step_law import COEFFICIENTS, UncertainLaw, read_law, write_law
from flettner.performance_model.trace import Trace, duration_s, mean_rate
from flettner.tools.advisor.measured_law import find_kv_tokens, law_of_log
from flettner.tools.advisor.render import format_command
from flettner.tools.terminal.tables import format_sentence, format_table
from flettner.tools.terminal.values import format_prediction
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.shell_command.serve_command import ServeCommand, edit_command
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
)
_OF_GOALS = (("attainment", "requests within the objectives"), ("goodput_per_s", "such requests per second"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionReport:
    """`goals`, `headroom` are None without an objective, `found` without a search.

    `warnings`: why vLLM may refuse the command.
    """

    trace: Trace
    law: UncertainLaw
    limits: EngineLimits
    warnings: Sequence[str]
    bands: Mapping[str, Band]
    goals: Goals | None
    headroom: Headroom | None
    found: SearchResult | None

    @property
    def extrapolation(self) -> str:
        return describe_extrapolation(self.law.fitted_to, largest_of(self.bands))

    def as_row(self) -> dict[str, Any]:
        found = self.found
        return {
            "requests": len(self.trace),
            "seconds": duration_s(self.trace),
            "law": json.loads(write_law(self.law)),
            "law_intervals": {name: self.law.interval(name) for name in COEFFICIENTS},
            "warnings": list(self.warnings),
            "extrapolation": self.extrapolation,
            "limits": asdict(self.limits),
            "predicted": {name: asdict(band) for name, band in self.bands.items()},
            "objectives": asdict(self.goals) if self.goals else None,
            "headroom": asdict(self.headroom) if self.headroom else None,
            "search": None if found is None else _search_row(found),
        }

    def as_text(self, command: ServeCommand) -> str:
        rate = mean_rate(self.trace)
        when = "at once" if rate is None else f"in {duration_s(self.trace):,.0f} s ({rate:.2f} a second)"
        means = [
            sum(getattr(one, name) for one in self.trace) / len(self.trace)
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
            + "".join(format_sentence(f"vLLM may refuse this: {one}") + "\n" for one in self.warnings)
            + (format_sentence(f"Less certain: {self.extrapolation}") + "\n" if self.extrapolation else "")
            + format_table(
                ("", "predicted", "80 % of draws"),
                [_band_row(name, title, self.bands[name]) for name, title in rows if name in self.bands],
            )
            + (_headroom_text(self.headroom, rate) if self.headroom else "")
            + (_search_text(self.found, command) if self.found else "")
        )


def build_report(
    config: ServeConfig,
    trace: Trace,
    goals: Goals | None,
    *,
    law_text: str | None,
    log: Sequence[str],
    kv_tokens: int | None,
    search_settings: bool,
) -> PredictionReport:
    """Raises PredictionInputError."""
    if kv_tokens is not None and kv_tokens < 1:
        raise PredictionInputError(f"--kv-tokens {kv_tokens}: must be at least 1")
    warnings = check_flags(config)
    measured = kv_tokens or find_kv_tokens(log)
    limits = limits_of(config, kv_tokens=measured)
    doubt = veto(config, limits)
    law = _choose_law(config, limits, law_text, log)
    return PredictionReport(
        trace=trace,
        law=law,
        limits=limits,
        warnings=(*warnings, *((doubt,) if doubt else ())),
        bands=predict(trace, law, limits, goals or Goals()),
        goals=goals,
        headroom=find_headroom(trace, law.law, limits, goals) if goals else None,
        found=search(config, trace, law, goals, kv_tokens=measured) if goals and search_settings else None,
    )


def _choose_law(
    config: ServeConfig, limits: EngineLimits, text: str | None, log: Sequence[str]
) -> UncertainLaw:
    if text is not None:
        return read_law(text, "--law")
    return law_of_log(config, log, limits.kv_tokens) or prior_law(config)


def _band_row(name: str, title: str, band: Band) -> tuple[str, str, str]:
    value, low, high = (format_prediction(name, number) for number in (band.value, band.low, band.high))
    return title, value, f"{low} to {high}"


def _headroom_text(found: Headroom, rate: float | None) -> str:
    if rate is None:
        holds = ""
    elif found.rate_per_s is None:
        holds = "No load of this shape meets the objectives with this setting."
    else:
        holds = (
            f"This setting meets the objectives up to {found.rate_per_s:.2f} requests a second, "
            f"{found.rate_per_s / rate:.2f} times the load."
        )
    if found.replicas is None:
        return "\n" + format_sentence(
            f"{holds} Not even {MOST_REPLICAS} servers meet the objectives.".lstrip()
        )
    servers = "1 server meets" if found.replicas == 1 else f"{found.replicas} servers meet"
    return "\n" + format_sentence(f"{holds} {servers} the objectives for this load.".lstrip())


def _refusal(found: SearchResult) -> str:
    """Say why no change is proposed."""
    now = f"{found.base:.1%} of the requests are within the objectives"
    change = f"changes that by {100 * found.gain:+.1f} points (standard error {100 * found.noise:.1f})"
    if found.gain <= LEAST_GAIN:
        return f"Nothing to gain: {now}, and the best of {found.tried} settings {change}."
    return (
        f"Nothing certain: {now}; {describe_changes(found.finalists[0].changes)}, the best of {found.tried} "
        f"settings, {change}, which is less than two standard errors. A measured law (--log, --law) is surer."
    )


def _search_text(found: SearchResult, command: ServeCommand) -> str:
    if found.best is None:
        return "\n" + format_sentence(_refusal(found))
    better = edit_command(command, found.best.changes, {})
    return (
        "\n"
        + format_sentence(
            f"Better: {describe_changes(found.best.changes)}: {found.base + found.gain:.1%} of the requests "
            f"within the objectives instead of {found.base:.1%} (standard error {100 * found.noise:.1f} "
            f"points; better in {found.likely:.0%} of the draws of the law), the best of {found.tried} "
            "settings:"
        )
        + "\n"
        + format_command(better)
    )


def _search_row(found: SearchResult) -> dict[str, Any]:
    return {
        "attainment": found.base,
        "changes": dict(found.best.changes) if found.best else None,
        "gain": found.gain,
        "standard_error": found.noise,
        "better_in_share_of_draws": found.likely,
        "tried": found.tried,
        "vetoed": found.vetoed,
        "finalists": [
            {"changes": dict(one.changes), "attainment": one.attainment} for one in found.finalists
        ],
    }


def check_flags(config: ServeConfig) -> list[str]:
    """Why another release than the known one may refuse the flags. Raises ConfigError if every one does."""
    found = [finding for lint in LINTS for finding in lint.check(config) if not finding.env]
    certain = [one.why for one in found if one.severity == "error"]
    refused = list(dict.fromkeys([*certain, *(one.why for one in find_problems(config))]))
    if refused:
        raise ConfigError(f"vLLM refuses this command: {'; '.join(refused)}")
    return [one.why for one in found if (one.severity, one.klass) == ("warning", "gated")]
