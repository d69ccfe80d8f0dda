"""Values of JSON flags: unreadable JSON and unknown keys. Rule V1."""

import json
from collections.abc import Iterable
from difflib import get_close_matches

from flettner.lint.rules.flag_values import was_accepted
from flettner.vllm_facts.json_flags import KEYS, RENAMED_KEYS, describe_json_error, repair_json
from flettner.vllm_facts.placeholders import is_placeholder
from flettner.vllm_facts.releases.history import (
    describe_key,
    describe_range,
    describe_value,
    keys_in,
    open_keys_in,
    read_history,
    values_in,
)
from flettner.vllm_facts.serve_config import Finding, Needs, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import (
    DeploymentCheck,
    invalid_flags_finding,
    is_at_least,
    is_older_than,
    json_entries,
)
from flettner.vllm_facts.values import Knob, Value, spell_flag

_JSON_LIMITS = (0, 10)
"""Since then --limit-mm-per-prompt takes no `image=2` (vllm-project/vllm#21615)."""
_NO_LEVEL = (0, 11)
"""It refuses `--compilation-config 3` (VectorInstitute/vector-inference#157), which was a level before."""


def _check_json(config: ServeConfig) -> Iterable[Finding]:
    for knob, value in config.setting.items():
        if not (why := describe_json_error(knob, value)):
            continue
        if knob == "limit_mm_per_prompt" and "=" in str(value) and is_older_than(config, _JSON_LIMITS):
            continue
        if knob == "compilation_config" and isinstance(value, int) and not is_at_least(config, _NO_LEVEL):
            yield from [] if config.version else [_level_remark(value)]
            continue
        meant = repair_json(knob, value)
        yield invalid_flags_finding(
            f"--{knob.replace('_', '-')} {why}",
            {knob: meant} if meant else {},
            expects="" if meant else "rewrite it: vLLM takes JSON, or single keys as --flag.key value",
        )


def _level_remark(level: int) -> Finding:
    return invalid_flags_finding(
        f"--compilation-config {level}, a level, is refused since vLLM 0.11",
        {},
        severity="info",
        source="VectorInstitute/vector-inference#157",
        expects=f'give --vllm-version; since 0.12 it is {{"mode": {level}}}',
    )


def _check_keys(config: ServeConfig) -> Iterable[Finding]:
    """Unknown keys of this release; without a version, those that no release has."""
    for flag in _json_flags(config):
        strict, read = keys_in(flag, config.version), open_keys_in(flag, config.version) or frozenset()
        keys = (strict or frozenset()) | read
        given = _given_keys(config, flag)
        for key in sorted(given.keys() - keys) if keys else ():
            meant = _closest_key(flag, key, given.keys(), keys)
            elsewhere = describe_key(flag, key)
            to = _rename_or_remove_key(config, flag, key, meant)
            how = f", where it is {meant}" if meant else f": vLLM {elsewhere} has it" if elsewhere else ""
            release = config.version or describe_range()
            ignores = "" if strict else ", which ignores it"
            yield invalid_flags_finding(
                f"{spell_flag(flag)} has no key {key} in vLLM {release}{ignores}{how}",
                to if strict or meant else {},
                severity="error" if strict else "warning",
                expects="" if to else "it starts without the key" if strict else "give a key that it reads",
            )


def _json_flags(config: ServeConfig) -> list[Knob]:
    history = read_history()
    return sorted(
        {knob.partition(".")[0] for knob in config.setting} & (history.keys.keys() | history.open_keys.keys())
    )


def _given_keys(config: ServeConfig, flag: Knob) -> dict[str, object]:
    dotted = [knob for knob in config.setting if knob.startswith(flag + ".")]
    return {**json_entries(config, flag), **{knob.split(".")[1]: config.setting[knob] for knob in dotted}}


def _check_key_values(config: ServeConfig) -> Iterable[Finding]:
    """Texts that this release does not take for a key."""
    for flag in _json_flags(config):
        for key, value in _given_keys(config, flag).items():
            choices = values_in(f"{flag}.{key}", config.version)
            if not choices or not isinstance(value, str) or is_placeholder(value) or value in choices:
                continue
            if was_accepted(config, flag):
                continue
            if value.lower().replace("-", "_") in {choice.lower().replace("-", "_") for choice in choices}:
                continue  # read in any case, as the names of backends
            elsewhere = describe_value(f"{flag}.{key}", value)
            near = get_close_matches(value, choices, n=3, cutoff=0.5)
            hints = [
                f"vLLM {elsewhere} takes it" if elsewhere else "",
                f"is {' or '.join(near)} meant?" if near else "",
            ]
            yield invalid_flags_finding(
                f"{key} of {spell_flag(flag)} is none of vLLM {config.version or describe_range()}: {value}",
                {},
                expects="; ".join(filter(None, hints)) or f"it is one of {', '.join(sorted(choices)[:12])}",
            )


def _has_json(config: ServeConfig) -> bool:
    return any(knob.partition(".")[0] in KEYS for knob in config.setting)


def _closest_key(flag: str, key: str, given: Iterable[str], keys: frozenset[str]) -> str:
    """The key that is meant: an older or newer name, or one that differs by a letter or two."""
    renamed = RENAMED_KEYS.get(flag, {})
    names = {**renamed, **{new: old for old, new in renamed.items()}}
    near = get_close_matches(key, keys, n=1, cutoff=0.85)
    meant = names[key] if names.get(key) in keys else near[0] if near else ""
    return "" if meant in given or (describe_key(flag, key) and key not in names) else meant


def _rename_or_remove_key(config: ServeConfig, flag: Knob, key: str, meant: str) -> dict[Knob, Value]:
    given = json_entries(config, flag)
    if key not in given:
        dotted = f"{flag}.{key}"
        if dotted not in config.setting:
            return {}  # deeper inside
        return {dotted: None, **({f"{flag}.{meant}": config.setting[dotted]} if meant else {})}
    left = {meant if name == key else name: value for name, value in given.items() if meant or name != key}
    return {flag: json.dumps(left) if left else None}


LINTS = (
    DeploymentCheck(
        rules=("V1",),
        find=_check_json,
        reports="JSON flags that cannot be read",
        source="vllm/engine/arg_utils.py: parse_type (exit code 2)",
    ),
    DeploymentCheck(
        rules=("V1",),
        find=_check_keys,
        reports="keys of JSON flags that this release does not know",
        source="vllm/config/utils.py",
        needs=Needs(facts=("version", "flags"), applies=_has_json),
    ),
    DeploymentCheck(
        rules=("V1",),
        find=_check_key_values,
        reports="values in JSON flags that this release does not take",
        source="vllm/config/utils.py",
        needs=Needs(facts=("version", "flags"), applies=_has_json),
    ),
)
