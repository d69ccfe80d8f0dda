"""What another vLLM release means for the flags of a server, for the preflight of an upgrade. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.models.lookup import find_model
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.values import Knob, Setting, Value

_LISTED = 6  # changed defaults in a note


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseChange:
    """`resolved`: present and new value of the flags that are written otherwise; None: it goes.

    `problem`: what the new release cannot do, with what to do; `notes`: for the operator who approves.
    """

    resolved: Mapping[Knob, tuple[Value, Value]] = field(default_factory=dict)
    problem: str = ""
    notes: tuple[str, ...] = ()

    def apply(self, setting: Setting) -> Setting:
        after = {**setting, **{knob: new for knob, (_, new) in self.resolved.items()}}
        return {knob: value for knob, value in after.items() if value is not None}


def find_release_change(setting: Setting, env: Mapping[str, str], old: str, new: str) -> ReleaseChange:
    """Migrate the flags of a server from release `old` to `new`, such as "0.32.0"."""
    from flettner.lint.migration import migrate  # noqa: PLC0415 - the rules cost the start of the daemon a quarter second

    if old == new:
        return ReleaseChange()
    of_vllm = {name: value for name, value in env.items() if name.startswith("VLLM_")}
    try:
        model = find_model(str(setting.get("model") or ""))
        migration = migrate(ServeConfig(setting=setting, env=of_vllm, model=model), old, new)
    except FlagError as error:
        return ReleaseChange(notes=(f"the flags were not compared with those of the release: {error}",))
    refused = [f"{row.finding.why}: {row.finding.expects}".rstrip(": ") for row in migration.refused]
    notes = [row.finding.why for row in migration.differences if row.kind != "default" and not row.refused]
    defaults = [row for row in migration.differences if row.kind == "default"]
    if defaults:
        shown = ", ".join(f"{row.before} → {row.after}" for row in defaults[:_LISTED])
        more = f" and {len(defaults) - _LISTED} more" if len(defaults) > _LISTED else ""
        notes.append(f"other defaults: {shown}{more} (`flettner lint --upgrade-to {new.partition('+')[0]}`)")
    return ReleaseChange(
        resolved={knob: (setting.get(knob), value) for knob, value in migration.to.items()},
        problem="; ".join(refused),
        notes=tuple(notes),
    )
