"""One error message of vLLM's log, what it means, and the change that ends it: rule F9."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from flettner.lint.recogniser import Recogniser, recogniser
from flettner.vllm_facts.serve_config import Finding, FindingSeverity, ServeConfig
from flettner.vllm_facts.values import Knob, Value

Changes = Callable[[re.Match[str], ServeConfig], Mapping[Knob, Value]]


def _no_changes(_: re.Match[str], __: ServeConfig) -> Mapping[Knob, Value]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownError:
    """One row. `why` and `expects` may name groups of `pattern`.

    `to`, `env`: the change, None removes. `changes`: one that depends on the line. What the command line has
    already is left out; if all of it is, the line is of another start. `applies`: False if the flags show the
    same, or that the line is of another start.
    """

    pattern: str
    why: str
    expects: str
    source: str
    to: Mapping[Knob, Value] = field(default_factory=dict)
    env: Mapping[str, str | None] = field(default_factory=dict)
    changes: Changes = _no_changes
    applies: Callable[[ServeConfig], bool] = lambda _: True
    severity: FindingSeverity = "error"
    risks: str = "none known"

    def recognise(self, match: re.Match[str], config: ServeConfig) -> Finding | None:
        if not self.applies(config):
            return None
        wanted = {**self.to, **self.changes(match, config)}
        to = {knob: value for knob, value in wanted.items() if config.setting.get(knob) != value}
        env = {name: value for name, value in self.env.items() if config.env.get(name) != value}
        if (wanted or self.env) and not (to or env):
            return None
        groups = {name: text or "" for name, text in match.groupdict().items()}
        return Finding(
            rule="F9",
            klass="gated" if to or env else "note",
            severity=self.severity,
            why=self.why.format(**groups),
            to=to,
            env=env,
            expects=self.expects.format(**groups),
            risks=self.risks,
            evidence={"line": match[0].strip()[:200]},
        )


def recognisers(rows: Iterable[KnownError]) -> tuple[Recogniser, ...]:
    """The checks of the rows. A row reports what its finding says, without the words of the line."""
    return tuple(
        recogniser(
            "F9",
            row.pattern,
            row.recognise,
            reports=re.sub(r"\{\w+\}", "…", row.why),
            source=row.source,
        )
        for row in rows
    )
