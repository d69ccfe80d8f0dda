"""A refusal of vLLM, and the rows of the tables that state simple refusals.

Unknown values pass every check. The source of a refusal is vLLM's file, function and message.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from flettner.vllm_facts.defaults import positive_int
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.values import Knob, Value

SCHEDULER = "vllm/config/scheduler.py: verify_max_model_len"
PARALLEL = "vllm/config/parallel.py: _validate_parallel_config"
MODEL = "vllm/config/model.py"
VLLM = "vllm/config/vllm.py"
ENGINE = "vllm/engine/arg_utils.py: create_engine_config"

FlagMapping = Mapping[Knob, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidSetting:
    """Flags that vLLM refuses in combination, with this model or on this GPU."""

    why: str
    source: str
    to: FlagMapping = field(default_factory=dict)  # the smallest fix; empty if there is none
    env: Mapping[str, str | None] = field(default_factory=dict)
    rule: str = "V1"  # that reports it
    expects: str = ""
    risks: str = ""


def _never(_: ServeConfig) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class NotAbove:
    """One integer must not exceed another if both are given."""

    low: str
    high: str
    source: str
    lower: bool = False  # the fix lowers `low` instead of raising `high`

    def problems(self, config: ServeConfig) -> Iterator[InvalidSetting]:
        low, high = positive_int(config.setting, self.low), positive_int(config.setting, self.high)
        if low is None or high is None or low <= high:
            return
        yield InvalidSetting(
            why=f"{self.low} {low} is above {self.high} {high}",
            source=self.source,
            to={self.low: high} if self.lower else {self.high: low},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedFlag:
    """A flag that vLLM refuses if it is on: without another, with values of others, or by a condition."""

    knob: str
    why: str
    source: str
    unless: str = ""  # a switch or number that is missing or 0
    having: Mapping[str, Value] = field(default_factory=dict)
    when: Callable[[ServeConfig], bool] = _never
    to: Mapping[str, Value] = field(default_factory=dict)  # empty: the flag is removed
    by_hand: str = ""  # instead of a fix, where it depends on an unknown fact

    def problems(self, config: ServeConfig) -> Iterator[InvalidSetting]:
        if not config.setting.get(self.knob) or not self._is_refused(config):
            return
        yield InvalidSetting(
            why=f"{self.knob} {self.why}",
            source=self.source,
            to={} if self.by_hand else self.to or {self.knob: None},
            expects=self.by_hand,
        )

    def _is_refused(self, config: ServeConfig) -> bool:
        if self.unless:
            return not config.setting.get(self.unless)
        if self.having:
            pairs = ((config.setting.get(knob), value) for knob, value in self.having.items())
            return all(given == value and type(given) is type(value) for given, value in pairs)
        return self.when(config)


def capability_text(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
