"""Flags that this vLLM rejects: rule V1.

Flags that are removed, not yet available or unknown; values out of their domain; flags that conflict.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace

from flettner.lint.rules.flag_values import (
    describe_near_values,
    find_meant_value,
    find_misfit,
    is_number_flag,
    was_accepted,
)
from flettner.lint.rules.hardware import VARIABLE
from flettner.lint.rules.unknown_flags import PARSER
from flettner.vllm_facts.defaults import positive_int
from flettner.vllm_facts.deprecated_flags import ENVIRONMENT, RENAMED, DeprecatedFlag
from flettner.vllm_facts.flag_table import is_switch
from flettner.vllm_facts.json_flags import parse_json_part
from flettner.vllm_facts.knobs import KNOBS
from flettner.vllm_facts.models.context_limit import ALLOWED, allows_longer_context, find_exceeded_context
from flettner.vllm_facts.placeholders import is_placeholder
from flettner.vllm_facts.releases import FLAGS
from flettner.vllm_facts.releases.history import (
    came_later,
    describe_flag,
    describe_value,
    has_flag,
    is_known_flag,
)
from flettner.vllm_facts.serve_config import Finding, Needs, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import (
    DeploymentCheck,
    has_any,
    invalid_flags_finding,
    is_omni,
    json_entries,
    text_of,
)
from flettner.vllm_facts.validity.engine import find_problems
from flettner.vllm_facts.validity.split import BLOCKS, divides_blocks
from flettner.vllm_facts.values import Knob, Value, spell_flag

DRAFT, DRAFT_TOKENS = "speculative_model", "num_speculative_tokens"
"""A shell variable, a word in angle brackets in a documentation, a value of a template."""


def _check_removed(config: ServeConfig) -> Iterable[Finding]:
    """Removed flags. If the version is unknown, a flag that no current version takes is a warning."""
    drafts = merge_draft_flags(config)
    for knob, value in config.setting.items():
        replaced = RENAMED.get(knob)
        gone = None if replaced is None else is_gone(replaced, knob, config.version)
        if replaced is None or gone is False or (drafts and knob == DRAFT_TOKENS):
            continue
        start = f"{config.version} does not start with it. " if gone else ""
        yield invalid_flags_finding(
            f"vLLM {replaced.since} and later do not know {spell_flag(knob)}: {start}{replaced.how}",
            merge_into_json(config, drafts if drafts and knob == DRAFT else replaced.changes(knob, value)),
            severity="error" if gone else "warning",
            expects=f"vLLM {replaced.since} and later accept the command line",
        )


def is_gone(replaced: DeprecatedFlag, knob: Knob, version: str) -> bool | None:
    """Whether the release lacks the removed flag; None for an unknown version."""
    present = has_flag(knob, version) if is_known_flag(knob) else None
    return replaced.gone(version) if present is None else not present


def merge_draft_flags(config: ServeConfig) -> dict[Knob, Value]:
    """`speculative_config` for the two old flags of a draft model, if both are given and nothing else."""
    model, tokens = text_of(config, DRAFT), positive_int(config.setting, DRAFT_TOKENS)
    if not model or tokens is None or "speculative_config" in config.setting or model.startswith("["):
        return {}
    written = json.dumps({"model": model, "num_speculative_tokens": tokens})
    return {DRAFT: None, DRAFT_TOKENS: None, "speculative_config": written}


def merge_into_json(config: ServeConfig, to: Mapping[Knob, Value]) -> dict[Knob, Value]:
    """The same changes, with keys of a JSON flag that is given written into its JSON."""
    written = dict(to)
    for knob, value in to.items():
        first, dot, rest = knob.partition(".")
        if dot and config.setting.get(first) is not None and value is not None:
            del written[knob]
            written[first] = json.dumps({**json_entries(config, first), rest: parse_json_part(value)})
    return written


def _check_too_new(config: ServeConfig) -> Iterable[Finding]:
    """Flags of later releases, and flags of earlier ones that nothing replaced."""
    for knob, value in config.setting.items():
        name = knob.partition(".")[0]
        if name in RENAMED or has_flag(name, config.version) is not False or not is_known_flag(name):
            continue
        if not came_later(name, config.version):
            yield invalid_flags_finding(
                f"vLLM {config.version} has no {spell_flag(name)} any more: it was in {describe_flag(name)}",
                {},
                expects="it starts without the flag",
            )
            continue
        since = describe_flag(name).removeprefix("since ")
        old = find_older_name(config, knob, value)
        yield invalid_flags_finding(
            f"vLLM {config.version} does not know {spell_flag(knob)} yet: it came with {since}",
            {knob: None, **old},
            expects="it starts" + (f"; or upgrade to {since} and keep the flag" if not old else ""),
        )


def find_older_name(config: ServeConfig, knob: Knob, value: Value) -> dict[Knob, Value]:
    """The flag that the release has for it; empty if it has none."""
    for name, replaced in RENAMED.items():
        if not has_flag(name, config.version) or name in config.setting:
            continue
        if replaced.by == knob and replaced.carries and (value is True or not replaced.switch):
            return {name: value}
        if replaced.to == {knob: value}:
            return {name: True}
        olds = [old for old, new in replaced.by_value.items() if new == {knob: value}]
        if value in olds or len(olds) == 1:
            return {name: value if value in olds else olds[0]}
    return {}


def _check_omni(config: ServeConfig) -> Iterable[Finding]:
    if not is_omni(config):
        return
    yield Finding(
        rule="V1",
        why="--omni starts vLLM-Omni: its own flags are not checked here",
        expects="vllm serve --omni --help lists them",
        risks="none",
    )


def _check_values(config: ServeConfig) -> Iterable[Finding]:
    for knob, value in config.setting.items():
        facts = KNOBS.get(knob)
        if value is True and knob in FLAGS and not is_switch(knob):
            yield invalid_flags_finding(f"{spell_flag(knob)} is not followed by a value", {knob: None})
            continue
        if (facts is not None and facts.klass == "note") or knob == "max_lora_rank":  # adapters.py knows it
            continue
        misfit = find_misfit(config, knob, value)
        if not misfit or (was_accepted(config, knob) and not is_number_flag(knob)):
            continue
        if isinstance(value, str) and is_placeholder(value, number=is_number_flag(knob)):
            yield _placeholder_finding(knob, value)
            continue
        meant = find_meant_value(config, knob, value)
        yield invalid_flags_finding(
            f"{spell_flag(knob)} {misfit}, not {value}",
            {knob: meant} if meant is not None or is_number_flag(knob) else {},
            source=facts.source if facts else PARSER,
            expects=_describe_other_release(knob, value)
            if meant is not None or is_number_flag(knob)
            else describe_near_values(config, knob, value),
        )


def _describe_other_release(knob: Knob, value: Value) -> str:
    """What a change expects where another release takes the value as it is; "" if none does."""
    releases = "" if is_number_flag(knob) else describe_value(knob, str(value))
    return f"vLLM takes the command line; vLLM {releases} takes {value}" if releases else ""


def _placeholder_finding(knob: Knob, value: str) -> Finding:
    return Finding(
        rule="V1",
        why=f"{spell_flag(knob)} {value}: the value of this placeholder is not known here",
        expects="give the value, so that the rules can check it",
        risks="none",
    )


def _check_context_limit(config: ServeConfig) -> Iterable[Finding]:
    excess = find_exceeded_context(config)
    if excess is None or not allows_longer_context(config):
        return
    yield Finding(
        rule="V1",
        severity="warning",
        why=(
            f"max_model_len {excess.requested} is above the {excess.supported} tokens that the model "
            f"supports; {ALLOWED} lets it start"
        ),
        expects=(
            f"answers to prompts of more than {excess.supported} tokens may be useless: test such prompts"
        ),
        risks="vLLM: 'positions exceeding derived_max_model_len lead to nan' with RoPE, else to a CUDA error",
    )


def _check_combinations(config: ServeConfig) -> Iterable[Finding]:
    for problem in find_problems(config):
        if problem.rule != "V1":
            continue
        by_hand = "" if problem.to or problem.env else "vLLM accepts the command line once that is given"
        finding = invalid_flags_finding(
            problem.why, problem.to, source=problem.source, expects=problem.expects or by_hand
        )
        yield replace(finding, env=problem.env, risks=problem.risks or finding.risks)


def _check_blocks(config: ServeConfig) -> Iterable[Finding]:
    if not divides_blocks(config):
        return
    yield Finding(
        rule="V1",
        why="the FP8 blocks of the experts do not divide over these GPUs: vLLM before 0.32 does not start",
        expects="give --vllm-version; before 0.32 add --enable-expert-parallel, or use fewer GPUs",
        risks="none",
    )


def _check_environment(config: ServeConfig) -> Iterable[Finding]:
    for name in sorted(ENVIRONMENT.keys() & config.env.keys()):
        replaced = ENVIRONMENT[name]
        if replaced.gone(config.version) is False or name == VARIABLE:  # rules H1 and H3 report that flag
            continue
        yield Finding(
            rule="V1",
            klass="gated",
            why=f"vLLM {replaced.since} and later ignore {name}. {replaced.how}",
            env={name: None},
            expects="no change in behaviour; the command line shows what is in effect",
            risks="its intended effect is missing, before and after",
        )


def _check_metrics_disabled(config: ServeConfig) -> Iterable[Finding]:
    if config.setting.get("disable_log_stats") is not True:
        return
    yield Finding(
        rule="V1",
        why="--disable-log-stats removes all vllm metrics from /metrics, not only the log lines",
        expects="remove it if any tool watches or tunes this server",
        risks="none",
    )


LINTS = (
    DeploymentCheck(
        rules=("V1",),
        find=_check_removed,
        reports="flags that this release no longer has, with what replaced them",
        source=PARSER,
        needs=Needs(facts=("version", "flags"), for_change=("version",), applies=has_any(*RENAMED)),
    ),
    DeploymentCheck(
        rules=("V1",),
        find=_check_blocks,
        reports="experts whose FP8 blocks divide over the GPUs in a newer release only",
        source=BLOCKS,
        needs=Needs(facts=("model",)),
    ),
    DeploymentCheck(
        rules=("V1",),
        find=_check_too_new,
        reports="flags that this release does not have yet, or no longer",
        source=PARSER,
        needs=Needs(facts=("version", "flags")),
    ),
    DeploymentCheck(
        rules=("V1",),
        find=_check_omni,
        reports="`--omni`, which starts another program with flags of its own",
        source="https://github.com/vllm-project/vllm-omni",
    ),
    DeploymentCheck(
        rules=("V1",),
        find=_check_values,
        reports="values that a flag does not take in this release, placeholders among them",
        source=PARSER,
        needs=Needs(facts=("flags",)),
    ),
    DeploymentCheck(
        rules=("V1",),
        find=_check_combinations,
        reports="flags that vLLM refuses together or with this model; each finding names vLLM's message",
        source=(
            "vllm/config/vllm.py; vllm/config/parallel.py; "
            "vllm/config/scheduler.py; vllm/engine/arg_utils.py: create_engine_config"
        ),
        needs=Needs(facts=("model", "version")),
    ),
    DeploymentCheck(
        rules=("V1",),
        find=_check_context_limit,
        reports=f"a context longer than the model supports, which {ALLOWED} lets start",
        source="vllm/config/model.py: _get_and_verify_max_len",
        needs=Needs(facts=("model",), applies=has_any("max_model_len")),
    ),
    DeploymentCheck(
        rules=("V1",),
        find=_check_environment,
        reports="variables that this release ignores",
        source="vllm/envs.py",
        needs=Needs(for_change=("version",), applies=has_any(*ENVIRONMENT)),
    ),
    DeploymentCheck(
        rules=("V1",),
        find=_check_metrics_disabled,
        reports="`--disable-log-stats`, which also empties /metrics",
        source="vllm/v1/engine/async_llm.py: log_stats",
    ),
)
