"""The config file of a history: in force, changed, broken, or with a change that needs a restart."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from flettner.agent.domain.errors import ConfigError
from flettner.agent.domain.model import Mode
from flettner.agent.machine.transitions import Rules
from flettner.agent.runtime.loop import NextRules


@dataclass(frozen=True, slots=True)
class Content:
    """`other`: see rules_of. `state_dir`: a running daemon cannot take another one."""

    other: bool
    state_dir: str = "/state"

    @property
    def values(self) -> dict[str, object]:
        return {"targets.chat.rollout.lease": 5 if self.other else 6, "agent.state_dir": self.state_dir}


@dataclass(slots=True, kw_only=True)
class ConfigFile:
    """`in_force`: what the daemon started with. `rules`: of a content.

    `is_read`: a reload has begun. Who writes the file now decides what that reload gets, so nobody does.
    """

    target: str
    in_force: Content
    rules: Callable[[bool], Rules]
    mode: Mode
    is_read: bool = False
    content: Content | None = field(init=False)  # None: it cannot be read

    def __post_init__(self) -> None:
        self.content = self.in_force

    def load(self) -> Content:
        if self.content is None:
            raise ConfigError("flettner.toml: line 3: expected a value")
        return self.content

    def next_rules(self, content: Content, actor: str) -> Mapping[str, NextRules]:
        rules = self.rules(content.other)
        return {self.target: NextRules(rules=rules, mode=self.mode, approval="any", actor=actor)}
