"""What another release of vLLM asks of a command line, upwards or downwards. Pure.

Flags, JSON keys, values and variables come from the table of the releases; checks that only one of the two
releases fails, and its reported regressions, from the rules of `flettner lint`.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from flettner.lint.fixes import Fixes, apply_changes
from flettner.lint.rules import all_lints
from flettner.lint.rules.flag_values import plain_name
from flettner.lint.rules.flags import find_older_name, is_gone, merge_draft_flags, merge_into_json
from flettner.lint.rules.unknown_flags import PARSER
from flettner.vllm_facts.deprecated_flags import ENVIRONMENT, RENAMED
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.flag_parser import UNNAMED_MODEL, edit_flags, parse_setting
from flettner.vllm_facts.flag_table import SEVERAL
from flettner.vllm_facts.knobs import KNOBS
from flettner.vllm_facts.models.lookup import find_model
from flettner.vllm_facts.releases.history import (
    describe_flag,
    describe_range,
    describe_value,
    find_default,
    has_flag,
    has_variable,
    is_covered,
    is_known_flag,
    keys_in,
    open_keys_in,
    read_history,
    values_in,
)
from flettner.vllm_facts.serve_config import Finding, FindingSeverity, GpuModel, Model, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import json_entries, text_of
from flettner.vllm_facts.values import Knob, Setting, Value, is_same, spell_flag

Kind = Literal["flag", "value", "variable", "entry point", "image", "check", "regression", "default"]
"""`check`: a check of a start that the new release has, or that has another outcome there."""

_RELEASE_RULES = frozenset({"V1", "V2", "V3", "E1"})
"""Rules about a release, of which remarks count too; of others only errors."""

NOTHING: Mapping[str, None] = MappingProxyType({})

_LISTED = 12  # values in a sentence

_ALWAYS = frozenset({"attention_config", "compilation_config", "kernel_config"})
"""JSON flags whose keys count also where the flag is not given; of others the feature is off then."""

_OF_THE_BUILD = frozenset({"VLLM_MAIN_CUDA_VERSION", "VLLM_USAGE_SOURCE"})
"""Variables that say how the release was built."""

_STEPS = 12  # changes that call for another
_KINDS: Mapping[str, Kind] = {"V1": "value", "V3": "regression"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that the new release treats otherwise.

    `before`, `after`: the words of the command line or the variable; of a default, its two values.
    """

    kind: Kind
    before: str
    after: str
    finding: Finding

    @property
    def refused(self) -> bool:
        """Whether a person has to decide: the new release lacks it, and nothing does the same."""
        return self.finding.severity == "error" and not self.finding.changes


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """A command line for the release `new`, and what differs from `old`. With `refused` it may not start."""

    old: str
    new: str
    differences: tuple[Difference, ...]
    to: Setting  # changed flags; None: removed
    env: Mapping[str, str | None]

    @property
    def refused(self) -> tuple[Difference, ...]:
        return tuple(difference for difference in self.differences if difference.refused)

    @property
    def fixes(self) -> Fixes:
        """What has to be done, without the changed defaults."""
        findings = tuple(row.finding for row in self.differences if row.kind != "default")
        return Fixes(findings=findings, to=self.to, env=self.env)


def migrate_flags(
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    old: str,
    new: str,
    card: GpuModel | None = None,
    model: Model | None = None,
) -> tuple[list[str], dict[str, str], Migration]:
    """The command line and the variables of a running server for another release.

    `old` and `new` are versions such as "0.32.0"; `model` is looked up by its name if it is not given. Raises
    FlagError for a command line that cannot be read or edited, and for a release that is not in the table.
    """
    setting = parse_setting(argv)
    config = ServeConfig(
        setting=setting, env=env, card=card, model=model or find_model(str(setting.get("model", "")))
    )
    migration = migrate(config, old, new)
    after = {**env, **migration.env}
    variables = {name: value for name, value in after.items() if value is not None}
    return edit_flags(argv, migration.to), variables, migration


def migrate(config: ServeConfig, old: str, new: str) -> Migration:
    """The migration of the flags and variables of `config`. Raises FlagError for an unknown release."""
    for version in (old, new):
        if not is_covered(version):
            raise FlagError(
                f"vLLM {version or 'of unknown version'}: the flags of {describe_range()} are known; "
                "give one of these releases"
            )
    state = _State(replace(config, version=new, log=(), start=None), old)
    state.name_model()
    state.replace_variables()
    state.replace_flags()
    state.follow_checks()
    state.judge_values()
    defaults = _find_changed_defaults(state.config, old)
    changed, after = config.setting, state.config
    return Migration(
        old=old,
        new=new,
        differences=(*sorted(state.differences, key=lambda row: not row.refused), *defaults),
        to=_changes(changed, after.setting),
        env={
            name: after.env.get(name)
            for name in {**config.env, **after.env}
            if config.env.get(name) != after.env.get(name)
        },
    )


def _changes(before: Setting, after: Setting) -> dict[Knob, Value]:
    names = (*before, *(name for name in after if name not in before))
    return {name: after.get(name) for name in names if not is_same(before.get(name), after.get(name))}


class _State:
    """The flags and variables on their way to the new release, which is `config.version`."""

    def __init__(self, config: ServeConfig, old: str) -> None:
        self.config, self.old, self.lints = config, old, all_lints()
        self.differences: list[Difference] = []

    @property
    def new(self) -> str:
        return self.config.version

    def add(self, kind: Kind, before: str, finding: Finding) -> None:
        """Record a difference, and make its changes."""
        after = " ".join(
            [spell(knob, value) for knob, value in finding.to.items() if value is not None]
            + [f"{name}={value}" for name, value in finding.env.items() if value is not None]
        )
        self.differences.append(Difference(kind=kind, before=before, after=after, finding=finding))
        self.config = apply_changes(self.config, finding.to, finding.env)

    def name_model(self) -> None:
        name = text_of(self.config, UNNAMED_MODEL)
        if name and "model" not in self.config.setting:
            why = f"the module api_server of vLLM {self.new} does not read {name} without --model"
            self.add("entry point", name, _finding(why, to={UNNAMED_MODEL: None, "model": name}))

    def replace_variables(self) -> None:
        for name, value in self.config.env.items():
            replaced = ENVIRONMENT.get(name)
            if has_variable(name, self.new) or not (has_variable(name, self.old) or replaced):
                continue
            gone = replaced is not None and replaced.gone(self.new) is True
            to = _read_variable(replaced.by, value) if gone and replaced and replaced.carries else {}
            if any(has_flag(_first(knob), self.new) is False or self._is_given(knob) for knob in to):
                to = {}
            how = replaced.how if gone and replaced else "Nothing is known to replace it."
            why = f"vLLM {self.new} ignores {name}. {how}"
            self.add(
                "variable", f"{name}={value}", _finding(why, to=to, env={name: None}, severity="warning")
            )

    def replace_flags(self) -> None:
        for knob in self.config.setting:
            if (value := self.config.setting.get(knob)) is not None and self._lacks(_first(knob)):
                self._replace_flag(knob, value)

    def _replace_flag(self, knob: Knob, value: Value) -> None:
        name, older = _first(knob), RENAMED.get(_first(knob))
        to, env = self._find_replacement(knob, value)
        replaced = older if older is not None and older.gone(self.new) else None
        how = replaced.how if replaced else ""
        lead = f"vLLM {self.new} has no {spell_flag(name)}"
        if is_known_flag(name):
            lead += f" (vLLM {describe_flag(name)} has it)"
        why = f"{lead}. {how}".strip() if how else lead
        if to or env:
            finding = _finding(why, to={knob: None, **to}, env=env)
        elif (replaced and replaced.needless) or self._has_no_effect(knob, value):
            finding = _finding(why, to={knob: None}, severity="info", expects="nothing changes without it")
        else:
            what = "leave it out if you can do without what it does, or stay"
            self._refuse(
                "flag", spell(knob, value), _finding(why, expects=f"{what} with vLLM {self.old}"), knob
            )
            return
        self.add("flag", spell(knob, value), finding)

    def _refuse(self, kind: Kind, before: str, finding: Finding, *dropped: Knob) -> None:
        """Record what the new release cannot do, and judge the rest without it."""
        self.differences.append(Difference(kind=kind, before=before, after="", finding=finding))
        self.config = apply_changes(self.config, dict.fromkeys(dropped), {})

    def _find_replacement(self, knob: Knob, value: Value) -> tuple[dict[Knob, Value], dict[str, str]]:
        """The flags or the variable that do the same in the new release; both empty if nothing does."""
        drafts = merge_draft_flags(self.config)
        if knob in drafts:
            return {**drafts, knob: None}, {}
        replaced = RENAMED.get(knob)
        if replaced is not None and replaced.gone(self.new):
            new = {name: part for name, part in replaced.changes(knob, value).items() if name != knob}
            if new and not any(self._lacks(name) for name in new):
                return merge_into_json(self.config, new), {}
            return {}, {}
        parts = {f"{knob}.{key}": part for key, part in json_entries(self.config, knob).items()} or {
            knob: value
        }
        older: dict[Knob, Value] = {}
        for name, part in parts.items():
            named = (
                find_older_name(self.config, name, part) if isinstance(part, bool | int | float | str) else {}
            )
            if not named:
                break
            older |= named
        else:
            return older, {}
        variable = next((name for name, row in ENVIRONMENT.items() if row.by == knob and row.carries), "")
        known = bool(variable) and has_variable(variable, self.new) is True
        return {}, ({variable: str(value)} if known and not isinstance(value, bool) else {})

    def _lacks(self, knob: Knob) -> bool:
        """Whether the new release lacks the flag, or the key of a dotted one."""
        name, _, key = knob.partition(".")
        if is_known_flag(name):
            if has_flag(name, self.new) is False:
                return True
        elif name in RENAMED:
            return is_gone(RENAMED[name], name, self.new) is True
        keys = (keys_in(name, self.new) or frozenset()) | (open_keys_in(name, self.new) or frozenset())
        return bool(key and keys) and key.partition(".")[0] not in keys

    def _has_no_effect(self, knob: Knob, value: object) -> bool:
        """Whether it says what holds without it: the default of the release that has it, or off."""
        default = find_default(knob, self.old) or find_default(knob, self.new)
        return value in (None, False, {}) or (default is not None and json.loads(default) == value)

    def _is_given(self, knob: Knob) -> bool:
        return knob in self.config.setting or _first(knob) in self.config.setting

    def follow_checks(self) -> None:
        """Make the changes of the checks that fail with the new release only, then report what is left."""
        for _ in range(_STEPS):
            changing = [finding for finding in self._find_new() if finding.changes and _is_needed(finding)]
            if not changing:
                break
            self._follow(changing[0])
        for finding in self._find_new():
            left = finding if finding.severity == "error" else replace(finding, to={}, env={})
            self.add(_KINDS.get(finding.rule, "check"), self._spell_own(finding), left)

    def _follow(self, finding: Finding) -> None:
        """Make a change, unless it drops what has an effect."""
        kind, own = _KINDS.get(finding.rule, "check"), self._spell_own(finding)
        before, changed = _flatten(self.config), apply_changes(self.config, finding.to, finding.env)
        after = _flatten(changed)
        lost = (name for name in before if name not in after and self._lacks(name))
        if after.keys() <= before.keys() and not all(
            self._has_no_effect(name, before[name]) for name in lost
        ):
            self._refuse(kind, own, replace(finding, to={}, env={}, expects=f"stay with vLLM {self.old}"))
            self.config = changed
            return
        self.add(kind, own, finding)

    def _find_new(self) -> list[Finding]:
        """What the rules say of the new release and not of the old one, and is not yet recorded."""
        earlier = {_key(finding, self.old) for finding in self._run_rules(self.old)} | {
            _key(row.finding, self.new) for row in self.differences
        }
        return [finding for finding in self._run_rules(self.new) if _key(finding, self.new) not in earlier]

    def _run_rules(self, version: str) -> list[Finding]:
        config = replace(self.config, version=version)
        findings = (finding for lint in self.lints for finding in lint.check(config))
        return [
            finding for finding in findings if finding.rule in _RELEASE_RULES or finding.severity == "error"
        ]

    def _spell_own(self, finding: Finding) -> str:
        """The words of the command line that the finding is about."""
        setting = self.config.setting
        own = [knob for knob in finding.to if knob in setting]
        named = re.findall(r"--[a-z][\w-]*", finding.why)
        own = own or [knob for knob in setting if spell_flag(_first(knob)) in named]
        return " ".join(spell(knob, setting[knob]) for knob in own)

    def judge_values(self) -> None:
        """Refuse the values that only the new release does not take, and of which no rule speaks."""
        plugged = any("parser_plugin" in knob for knob in self.config.setting)
        for knob, value in self.config.setting.items():
            before, after = (values_in(knob, version) or frozenset() for version in (self.old, self.new))
            plain = plain_name(str(value))
            if not after or plain in map(plain_name, after) or isinstance(value, bool) or knob in SEVERAL:
                continue
            if (before and plain not in map(plain_name, before)) or (plugged and knob.endswith("_parser")):
                continue
            word = re.compile(rf"(?<![\w.]){re.escape(plain)}(?![\w.])")
            if any(word.search(plain_name(row.finding.why)) for row in self.differences):
                continue
            elsewhere = describe_value(knob, str(value))
            why = f"{spell_flag(knob)} {value} is not among the values of vLLM {self.new}"
            expects = f"choose one of {', '.join(sorted(after)[:_LISTED])}"
            finding = _finding(why, expects=f"vLLM {elsewhere} takes it: {expects}" if elsewhere else expects)
            self._refuse("value", spell(knob, value), finding, knob)


def _is_needed(finding: Finding) -> bool:
    """Whether the server would not start without the change, or would ignore a key."""
    return finding.severity == "error" or (finding.rule == "V1" and finding.severity == "warning")


def _key(finding: Finding, version: str) -> tuple[str, str]:
    return finding.rule, finding.why.replace(version, "")


def _finding(
    why: str,
    *,
    to: Setting = NOTHING,
    env: Mapping[str, str | None] = NOTHING,
    severity: FindingSeverity = "error",
    expects: str = "",
) -> Finding:
    return Finding(
        rule="V1", klass="gated", severity=severity, why=why, to=to, env=env, expects=expects, source=PARSER
    )


def _first(knob: Knob) -> Knob:
    return knob.partition(".")[0]


def _read_variable(knob: Knob, text: str) -> dict[Knob, Value]:
    """The flag with the variable's value; empty if the flag does not take it."""
    try:
        return {knob: parse_setting(("vllm", "serve", "model", f"{_spell_name(knob)}={text}"))[knob]}
    except FlagError:
        return {}


def _flatten(config: ServeConfig) -> dict[str, object]:
    """The flags, with the keys of JSON as `flag.key`."""
    flat: dict[str, object] = {}
    for knob, value in config.setting.items():
        entries = json_entries(config, knob) if isinstance(value, str) and value.startswith("{") else {}
        flat |= {f"{knob}.{key}": part for key, part in entries.items()} or {knob: value}
    return flat


def _spell_name(knob: Knob) -> str:
    """`--compilation-config.cudagraph_mode`: the names of keys have underscores."""
    name, dot, key = knob.partition(".")
    return spell_flag(name) + dot + key


def spell(knob: Knob, value: Value) -> str:
    """`--max-num-seqs 64`, `--no-async-scheduling`"""
    if isinstance(value, bool) and "." not in knob:
        return spell_flag(knob) if value else "--no-" + spell_flag(knob).removeprefix("--")
    return f"{_spell_name(knob)} {str(value).lower() if isinstance(value, bool) else value}"


def _find_changed_defaults(config: ServeConfig, old: str) -> Iterator[Difference]:
    """Defaults of flags, keys and variables that are not given, the flags of the catalogue first."""
    given = _flatten(config)
    flags = frozenset(map(_first, given)) | _ALWAYS
    for name in sorted(read_history().defaults, key=lambda name: (name.isupper(), "." in name, name)):
        before, after = find_default(name, old), find_default(name, config.version)
        if before is None or after is None or _is_same_default(json.loads(before), json.loads(after)):
            continue
        if name in given or name in config.env or ("." in name and _first(name) not in flags):
            continue
        if name in _OF_THE_BUILD or _is_of_other_hardware(name, config):
            continue
        yield _default_difference(name, json.loads(before), json.loads(after), config, old)
    memory = config.card.memory_gib if config.card else None
    card = config.card.name if config.card else ""
    for name, facts in KNOBS.items():
        if len(facts.defaults) > 1 and name not in given and name not in read_history().defaults:
            own = facts.default_in(old, memory_gib=memory, card=card)
            later = facts.default_in(config.version, memory_gib=memory, card=card)
            if own != later and has_flag(name, old) and has_flag(name, config.version):
                yield _default_difference(name, own, later, config, old)


def _is_same_default(before: object, after: object) -> bool:
    """An empty text and no value are the same; 0 and null are not."""
    return before == after or {str(before), str(after)} <= {"", "None", "null"}


def _is_of_other_hardware(name: str, config: ServeConfig) -> bool:
    nvidia = config.card is not None and config.card.capability is not None
    return nvidia and name.startswith(("VLLM_ROCM_", "VLLM_CPU_", "VLLM_XPU_"))


def _default_difference(
    name: str, before: object, after: object, config: ServeConfig, old: str
) -> Difference:
    shown = [_describe_default(name, value) for value in (before, after)]
    keep = ""
    is_own_code = str(before).startswith("vllm.")  # a class of the old release, which the new one may lack
    if isinstance(before, bool | int | float | str) and before != "" and not is_own_code:
        line = f"{name}={int(before) if isinstance(before, bool) else before}"
        keep = f"write {line if name.isupper() else spell(name, before)} to keep it"
    why = f"{name} is not given: {shown[0]} by default in vLLM {old}, {shown[1]} in {config.version}"
    return Difference(
        kind="default",
        before=f"{name} {shown[0]}",
        after=shown[1],
        finding=_finding(why, severity="info", expects=keep),
    )


def _describe_default(name: str, value: object) -> str:
    """The default, in the words of the catalogue where the newest release lets vLLM decide."""
    if value is not None:
        return value if isinstance(value, str) and value else json.dumps(value)
    newest = ".".join(map(str, read_history().releases[-1]))
    facts = KNOBS.get(name)
    words = facts.default.removeprefix("decided at start: ") if facts else ""
    return (
        f"decided at start ({words})"
        if words and find_default(name, newest) == "null"
        else "decided at start"
    )
