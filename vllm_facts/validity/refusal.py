"""One refusal of vLLM, and the rows of the tables that state the simple ones.

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
SERVE = "vllm/entrypoints/launchers/cli_args.py: validate_parsed_serve_args"
LORA = "vllm/config/lora.py"

FlagMapping = Mapping[Knob, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidSetting:
    """Flags that vLLM refuses in combination, with this model or on this GPU."""

    knobs: tuple[Knob, ...]
    why: str
    source: str
    to: FlagMapping = field(default_factory=dict)  # the smallest fix; empty without one
    env: Mapping[str, str | None] = field(default_factory=dict)
    rule: str = "V1"  # that reports it
    expects: str = ""
    risks: str = ""


@dataclass(frozen=True, slots=True)
class NotAbove:
    """One integer must not exceed another if both are given."""

    low: Knob
    high: Knob
    source: str
    lower: bool = False  # the fix lowers `low` instead of raising `high`

    def problems(self, config: ServeConfig) -> Iterator[InvalidSetting]:
        low, high = positive_int(config.setting, self.low), positive_int(config.setting, self.high)
        if low is None or high is None or low <= high:
            return
        yield InvalidSetting(
            knobs=(self.low, self.high),
            why=f"{self.low} {low} is above {self.high} {high}",
            source=self.source,
            to={self.low: high} if self.lower else {self.high: low},
        )


@dataclass(frozen=True, slots=True)
class Without:
    """A flag that vLLM refuses without another."""

    knob: Knob
    lacks: Callable[[ServeConfig], bool]
    why: str
    source: str
    to: tuple[tuple[Knob, Value], ...] = ()
    by_hand: str = ""  # instead of a fix, where it depends on an unknown fact

    def problems(self, config: ServeConfig) -> Iterator[InvalidSetting]:
        if not config.setting.get(self.knob) or not self.lacks(config):
            return
        yield InvalidSetting(
            knobs=(self.knob,),
            why=f"{self.knob} {self.why}",
            source=self.source,
            to={} if self.by_hand else dict(self.to) or {self.knob: None},
            expects=self.by_hand,
        )


def is_off(knob: Knob) -> Callable[[ServeConfig], bool]:
    """A check that the switch or number is missing or 0."""
    return lambda config: not config.setting.get(knob)


def capability_text(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
