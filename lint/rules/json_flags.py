"""Values of JSON flags: unreadable JSON and unknown keys. Rule V1."""

import json
from collections.abc import Iterable
from difflib import get_close_matches

from flettner.vllm_facts.json_flags import KEYS, RENAMED_KEYS, describe_json_error, repair_json
from flettner.vllm_facts.releases import RELEASE
from flettner.vllm_facts.serve_config import Finding, Needs, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import (
    DeploymentCheck,
    invalid_flags_finding,
    is_at_least,
    is_older_than,
    json_entries,
    release_number,
)
from flettner.vllm_facts.values import Knob, Value

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
    """Unknown keys, for the release whose keys are listed; the keys of other releases differ."""
    if release_number(config) != RELEASE:
        return
    for flag, keys in KEYS.items():
        given = json_entries(config, flag)
        dotted = [knob for knob in config.setting if knob.startswith(flag + ".")]
        given = {**given, **{knob.split(".")[1]: config.setting[knob] for knob in dotted}}
        for key in sorted(given.keys() - keys):
            meant = _closest_key(flag, key, given.keys())
            to = _rename_or_remove_key(config, flag, key, meant)
            yield invalid_flags_finding(
                f"--{flag.replace('_', '-')} has no key {key}" + (f": it is {meant} today" if meant else ""),
                to,
                expects="" if to else "it starts without the key",
            )


def _has_json(config: ServeConfig) -> bool:
    return any(knob.partition(".")[0] in KEYS for knob in config.setting)


def _closest_key(flag: str, key: str, given: Iterable[str]) -> str:
    near = get_close_matches(key, KEYS[flag], n=1, cutoff=0.85)
    meant = RENAMED_KEYS.get(flag, {}).get(key) or (near[0] if near else "")
    return "" if meant in given else meant


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
        needs=Needs(facts=("version",), applies=_has_json),
    ),
)
