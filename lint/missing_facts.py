"""What a rule needs to know about a server, what is missing, and what is known against a change. Pure.

A rule without its facts is not judged: its silence says nothing about the command. A change whose safety
depends on a missing fact, or that a fact forbids, is shown as a note.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from flettner.vllm_facts.models.estimate import describe_estimate
from flettner.vllm_facts.releases.history import describe_range, is_covered
from flettner.vllm_facts.serve_config import Fact, Finding, LintRule, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import layout, runs_on_cpus, text_of
from flettner.vllm_facts.sizing.kv_cache import kv_bytes_per_token, overhead_gib, weights_gib
from flettner.vllm_facts.sizing.limits import find_limits, has_limits, value_in_force
from flettner.vllm_facts.values import Knob, as_number, describe_changes

EXTRA: frozenset[Fact] = frozenset({"profile", "log"})
"""Further inputs: without them a command still counts as judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactSource:
    """A fact in words, the option that gives it, and whether it is known."""

    what: Callable[[ServeConfig], str]
    option: str
    given: Callable[[ServeConfig], bool]

    def describe(self, config: ServeConfig) -> str:
        """`the GPU (--gpu NAME)`"""
        return f"{self.what(config)} ({self.option})" if self.option else self.what(config)


def _name_model(config: ServeConfig) -> str:
    name = text_of(config, "model")
    if config.estimate is not None:
        return f"the model {name}, by its name {describe_estimate(config.estimate)}, an estimate"
    return f"the model {name}" if name else "the model, which the command does not name"


def _has_model_size(config: ServeConfig) -> bool:
    shape = layout(config)
    return weights_gib(config, shape) is not None and kv_bytes_per_token(config, shape) is not None


def _name_gpu(config: ServeConfig) -> str:
    return "the GPU" if config.card is None else f"the GPU {config.card.name}, which the table does not have"


FACTS: Mapping[Fact, FactSource] = {
    "gpu": FactSource(
        what=_name_gpu,
        option="--gpu NAME",
        given=lambda config: (
            config.card is not None and (config.card.listed or config.card.memory_gib is not None)
        ),
    ),
    "gpus": FactSource(
        what=lambda _: "the number of GPUs", option="--gpus N", given=lambda config: config.gpus is not None
    ),
    "model": FactSource(
        what=_name_model, option="--model-config FILE", given=lambda config: config.model is not None
    ),
    "version": FactSource(
        what=lambda _: "the version of vLLM",
        option="--vllm-version V",
        given=lambda config: bool(config.version),
    ),
    "flags": FactSource(
        what=lambda config: f"the flags of vLLM {config.version}: those of {describe_range()} are known",
        option="",
        given=lambda config: not config.version or is_covered(config.version),
    ),
    "profile": FactSource(
        what=lambda _: "the kind of traffic", option="--profile P", given=lambda config: bool(config.profile)
    ),
    "log": FactSource(
        what=lambda _: "its startup log", option="--log FILE", given=lambda config: bool(config.log)
    ),
    "gpu_memory": FactSource(
        what=lambda config: f"the memory of {config.card.name if config.card else 'the GPU'}",
        option="--gpu-memory SIZE",
        given=lambda config: config.card is None or config.card.memory_gib is not None,
    ),
    "model_size": FactSource(
        what=lambda config: f"the size of {text_of(config, 'model') or 'the model'} with these flags",
        option="",
        given=lambda config: config.model is None or _has_model_size(config),
    ),
    "step_memory": FactSource(
        what=lambda _: "the memory of the largest step",
        option="",
        given=lambda config: (
            config.model is None or config.card is None or overhead_gib(config, layout(config)) is not None
        ),
    ),
}

_OF_GPUS: frozenset[Fact] = frozenset({"gpu", "gpus", "gpu_memory", "step_memory"})
_HELD_BACK = "not proposed "
ESTIMATE: tuple[Fact, ...] = ("gpu", "model", "gpu_memory", "model_size", "step_memory")
"""What an estimate of the GPU's memory needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The rules that had their facts, and for each other rule the facts that it lacks."""

    checked: tuple[str, ...]
    lacking: Mapping[str, tuple[Fact, ...]]

    @property
    def is_complete(self) -> bool:
        """Whether every rule about the command itself was judged."""
        return not any(set(facts) - EXTRA for facts in self.lacking.values())

    def by_fact(self) -> dict[Fact, list[str]]:
        """The rules that lack a fact, for each missing fact."""
        return {
            fact: rules
            for fact in FACTS
            if (rules := [rule for rule, facts in self.lacking.items() if fact in facts])
        }


def _number_order(rule: str) -> tuple[str, int]:
    """F2 before F10."""
    letters = rule.rstrip("0123456789")
    return letters, int(rule[len(letters) :] or 0)


def concerns(lint: LintRule, config: ServeConfig) -> bool:
    """False for rules about GPUs, if the server has none."""
    asks = {*lint.needs.facts, *lint.needs.for_change}
    return not (asks & _OF_GPUS and runs_on_cpus(config))


def find_missing(config: ServeConfig, facts: Iterable[Fact]) -> tuple[Fact, ...]:
    return tuple(fact for fact in facts if not FACTS[fact].given(config))


def judge_coverage(config: ServeConfig, lints: Sequence[LintRule]) -> Judged:
    """A rule of several checks counts as checked if all of them had their facts.

    The checks of further inputs, such as the log, count only for a rule that has no others.
    """
    lacking: dict[str, dict[Fact, None]] = {}
    own = {rule for lint in lints if not EXTRA & set(lint.needs.facts) for rule in lint.rules}
    for lint in lints:
        judged = concerns(lint, config) and lint.needs.applies(config)
        missing = find_missing(config, lint.needs.facts) if judged else ()
        for rule in lint.rules:
            counted = [fact for fact in missing if fact not in EXTRA or rule not in own]
            lacking.setdefault(rule, {}).update(dict.fromkeys(counted))
    rules = sorted(lacking, key=_number_order)
    return Judged(
        checked=tuple(rule for rule in rules if not lacking[rule]),
        lacking={rule: tuple(lacking[rule]) for rule in rules if lacking[rule]},
    )


def hold_back(finding: Finding, lint: LintRule, config: ServeConfig) -> Finding:
    """`finding` as a note, if the safety of its change depends on a missing fact."""
    missing = find_missing(config, lint.needs.for_change) if finding.to or finding.env else ()
    if not missing:
        return finding
    change = describe_changes({**finding.to, **finding.env})
    lacks = ", ".join(FACTS[fact].describe(config) for fact in missing)
    return replace(
        finding,
        klass="note",
        to={},
        env={},
        expects=f"{_HELD_BACK}({change}): whether it is safe depends on {lacks}",
    )


def is_held_back(finding: Finding) -> bool:
    """Whether a missing fact, or a limit, left no change of the finding."""
    return finding.expects.startswith(_HELD_BACK)


def keep_to_limits(finding: Finding, config: ServeConfig) -> Finding:
    """`finding` within what the log or the file of the server allows.

    A value that lowers a knob, yet not far enough, is lowered to the limit; a finding that raises one above
    it becomes a note.
    """
    if not finding.to or not has_limits(config):
        return finding
    limits = find_limits(config)
    above = {
        knob: limits[knob]
        for knob, value in finding.to.items()
        if knob in limits and (number := as_number(value)) is not None and number > limits[knob].value
    }
    if not above:
        return finding
    lowered = {knob: limit.value for knob, limit in above.items() if _lowers(finding, knob, config)}
    if lowered.keys() == above.keys():
        return replace(finding, to={**finding.to, **lowered})
    change, forbidden = describe_changes({**finding.to, **finding.env}), next(iter(above.values()))
    return replace(finding, klass="note", to={}, env={}, expects=f"{_HELD_BACK}({change}): {forbidden.why}")


def _lowers(finding: Finding, knob: Knob, config: ServeConfig) -> bool:
    present = value_in_force(config, knob)
    wanted = as_number(finding.to[knob])
    return present is not None and wanted is not None and wanted < present
