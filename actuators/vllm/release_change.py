"""What another vLLM release means for the flags of a server, for the preflight of an upgrade. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.models.lookup import find_model
from flettner.vllm_facts.serve_config import Finding, ServeConfig
from flettner.vllm_facts.sizing.gpus import NO_GPU, find_gpu
from flettner.vllm_facts.values import ENV, Knob, Setting, Value

_LISTED = 6  # changed defaults in a note


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseChange:
    """`flags`: present and new value of those that are written otherwise; None: it goes.

    `env`: likewise of variables that take the place of a flag in an older release; `problem`: what the new
    release cannot do, with what to do; `notes`: for the operator who approves.
    """

    flags: Mapping[Knob, tuple[Value, Value]] = field(default_factory=dict)
    env: Mapping[Knob, tuple[Value, Value]] = field(default_factory=dict)
    problem: str = ""
    notes: tuple[str, ...] = ()
    versions: tuple[str, str] = ("", "")  # the old and the new release

    @property
    def resolved(self) -> Mapping[Knob, tuple[Value, Value]]:
        """Both, as in PreflightResult.resolved."""
        return {**self.flags, **self.env}

    @property
    def start(self) -> Setting:
        """The variables as a start sets them."""
        return {name: new for name, (_, new) in self.env.items()}

    def apply(self, setting: Setting) -> Setting:
        after = {**setting, **{knob: new for knob, (_, new) in self.flags.items()}}
        return {knob: value for knob, value in after.items() if value is not None}


def find_release_change(
    setting: Setting, env: Mapping[str, str], old: str, new: str, gpu: str = ""
) -> ReleaseChange:
    """Migrate the flags of a server from release `old` to `new`, such as "0.32.0".

    `gpu`: its model, "L4", or NO_GPU; some regressions are those of a GPU. Empty: not known.
    """
    from flettner.lint.migration import migrate  # noqa: PLC0415 - the rules cost the start of the daemon a quarter second

    if old == new:
        return ReleaseChange(versions=(old, new))
    of_vllm = {name: value for name, value in env.items() if name.startswith("VLLM_")}
    try:
        model = find_model(str(setting.get("model") or ""))
        config = ServeConfig(setting=setting, env=of_vllm, model=model, on_cpus=gpu == NO_GPU)
        migration = migrate(replace(config, card=find_gpu(gpu)), old, new)
    except FlagError as error:
        note = f"the flags were not compared with those of the release: {error}"
        return ReleaseChange(notes=(note,), versions=(old, new))
    refused = [f"{row.finding.why}: {row.finding.expects}".rstrip(": ") for row in migration.refused]
    told = [row for row in migration.differences if row.kind != "default" and not row.refused]
    notes = [_with_remedy(row.finding) if row.kind == "regression" else row.finding.why for row in told]
    defaults = [row for row in migration.differences if row.kind == "default"]
    if defaults:
        shown = ", ".join(f"{row.before} → {row.after}" for row in defaults[:_LISTED])
        more = f" and {len(defaults) - _LISTED} more" if len(defaults) > _LISTED else ""
        notes.append(f"other defaults: {shown}{more} (`flettner lint --upgrade-to {new.partition('+')[0]}`)")
    return ReleaseChange(
        flags={knob: (setting.get(knob), value) for knob, value in migration.to.items()},
        env={
            f"{ENV}{name}": (env.get(name), value)
            for name, value in migration.env.items()
            if value is not None  # one that the release ignores stays, for the way back
        },
        problem="; ".join(refused),
        notes=tuple(notes),
        versions=(old, new),
    )


def describe_versions(**programs: tuple[str, str]) -> Mapping[str, tuple[str, str]]:
    """Present and new version of each program, without those that do not differ."""
    return {name: (old, new) for name, (old, new) in programs.items() if old != new}


def _with_remedy(finding: Finding) -> str:
    return f"{finding.why}; {finding.expects}" if finding.expects else finding.why
