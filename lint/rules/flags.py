"""Flags that this vLLM rejects: rule V1.

Flags that are removed, not yet available or unknown; values out of their domain; flags that conflict.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches

from flettner.lint.rules.hardware import VARIABLE
from flettner.vllm_facts.defaults import positive_int
from flettner.vllm_facts.deprecated_flags import COUNTERPARTS, ENVIRONMENT, RENAMED
from flettner.vllm_facts.flag_table import is_switch
from flettner.vllm_facts.json_flags import parse_json_part
from flettner.vllm_facts.knobs import KNOBS, KnobFacts
from flettner.vllm_facts.models.context_limit import ALLOWED, allows_longer_context, find_exceeded_context
from flettner.vllm_facts.releases import FLAGS, RELEASE
from flettner.vllm_facts.serve_config import Finding, Needs, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import (
    DeploymentCheck,
    has_any,
    invalid_flags_finding,
    is_omni,
    json_entries,
    release_number,
    text_of,
)
from flettner.vllm_facts.validity.engine import find_problems
from flettner.vllm_facts.validity.split import BLOCKS, divides_blocks
from flettner.vllm_facts.values import Knob, Value, spell_flag

DRAFT, DRAFT_TOKENS = "speculative_model", "num_speculative_tokens"
_FACTORS = {"k": 10**3, "m": 10**6, "K": 2**10, "M": 2**20}
_SHORT_NUMBER = re.compile(r"([0-9]{1,9})([kmKM])")
_PLACEHOLDER = re.compile(r"\$|^<.*>$|^\{\{.*\}\}$")
"""A shell variable, a word in angle brackets in a documentation, a value of a template."""
PARSER = "vllm/utils/argparse_utils.py: FlexibleArgumentParser (exit code 2)"


def _check_removed(config: ServeConfig) -> Iterable[Finding]:
    """Removed flags. If the version is unknown, a flag that no current version takes is a warning."""
    drafts = _merge_draft_flags(config)
    for knob, value in config.setting.items():
        replaced = RENAMED.get(knob)
        if replaced is None or replaced.gone(config.version) is False or (drafts and knob == DRAFT_TOKENS):
            continue
        is_gone = replaced.gone(config.version) is True
        start = f"{config.version} does not start with it. " if is_gone else ""
        yield invalid_flags_finding(
            f"vLLM {replaced.since} and later do not know {spell_flag(knob)}: {start}{replaced.how}",
            _merge_into_json(config, drafts if drafts and knob == DRAFT else replaced.changes(knob, value)),
            severity="error" if is_gone else "warning",
            expects=f"vLLM {replaced.since} and later accept the command line",
        )


def _merge_draft_flags(config: ServeConfig) -> dict[Knob, Value]:
    """`speculative_config` for the two old flags of a draft model, if both are given and nothing else."""
    model, tokens = text_of(config, DRAFT), positive_int(config.setting, DRAFT_TOKENS)
    if not model or tokens is None or "speculative_config" in config.setting or model.startswith("["):
        return {}
    written = json.dumps({"model": model, "num_speculative_tokens": tokens})
    return {DRAFT: None, DRAFT_TOKENS: None, "speculative_config": written}


def _merge_into_json(config: ServeConfig, to: Mapping[Knob, Value]) -> dict[Knob, Value]:
    """The same changes, with keys of a JSON flag that is given written into its JSON."""
    written = dict(to)
    for knob, value in to.items():
        first, dot, rest = knob.partition(".")
        if dot and config.setting.get(first) is not None and value is not None:
            del written[knob]
            written[first] = json.dumps({**json_entries(config, first), rest: parse_json_part(value)})
    return written


def _check_too_new(config: ServeConfig) -> Iterable[Finding]:
    for knob in config.setting:
        facts = KNOBS.get(knob.partition(".")[0])
        if facts is None or facts.removed is not None or facts.in_version(config.version) is not False:
            continue
        yield invalid_flags_finding(
            f"vLLM {config.version} does not know {spell_flag(knob)} yet: it came with {facts.since}",
            {knob: None},
            expects=f"it starts; or upgrade to {facts.since} and keep the flag",
        )


def _check_misspelled(config: ServeConfig) -> Iterable[Finding]:
    """Unknown flags a letter or two away from a known flag that has the same value in every release."""
    for knob in _unknown_flags(config):
        if meant := _carry_value(config, knob, knob.partition(".")[0]):
            yield _unknown_flag_finding(config, knob, {knob: None} | meant)


def _check_unknown(config: ServeConfig) -> Iterable[Finding]:
    """Unknown flags. A release that is not listed may know more flags, so there they are warnings."""
    for knob in _unknown_flags(config):
        if not _carry_value(config, knob, knob.partition(".")[0]):
            yield _unknown_flag_finding(config, knob, {knob: None})


def _check_omni(config: ServeConfig) -> Iterable[Finding]:
    if not is_omni(config):
        return
    yield Finding(
        rule="V1",
        why="--omni starts vLLM-Omni: its own flags are not checked here",
        expects="vllm serve --omni --help lists them",
        risks="none",
    )


def _unknown_flags(config: ServeConfig) -> list[Knob]:
    if is_omni(config):
        return []
    names = {knob: knob.partition(".")[0] for knob in config.setting}
    flags = FLAGS | KNOBS.keys() | RENAMED.keys()
    return [knob for knob, name in names.items() if name not in flags and not _is_prefix(name)]


def _unknown_flag_finding(config: ServeConfig, knob: Knob, to: Mapping[Knob, Value]) -> Finding:
    name = knob.partition(".")[0]
    near = (
        [COUNTERPARTS[name]] if name in COUNTERPARTS else get_close_matches(name, FLAGS | KNOBS.keys(), n=1)
    )
    meant = f"; did you mean {spell_flag(near[0])}?" if near else ""
    return invalid_flags_finding(
        f"{spell_flag(name)} is no flag of vLLM {'.'.join(map(str, RELEASE))}{meant}",
        to,
        severity="error" if release_number(config) == RELEASE else "warning",
    )


def _carry_value(config: ServeConfig, knob: str, name: str) -> dict[str, Value]:
    """The value under the intended name, if only a letter or two differ or another server has the flag."""
    typo = get_close_matches(name, FLAGS | KNOBS.keys(), n=1, cutoff=0.8)
    typo = [COUNTERPARTS[name]] if name in COUNTERPARTS else typo
    if not typo or typo[0] in config.setting or typo[0] not in KNOBS:
        return {}
    value = config.setting[knob]
    return {} if KNOBS[typo[0]].misfit(value) else {typo[0]: value}


def _is_prefix(name: str) -> bool:
    """True for an unambiguous prefix of a flag, which the parser accepts."""
    return len([flag for flag in FLAGS if flag.startswith(name)]) == 1


def _check_values(config: ServeConfig) -> Iterable[Finding]:
    for knob, value in config.setting.items():
        facts = KNOBS.get(knob)
        if value is True and knob in FLAGS and not is_switch(knob):
            yield invalid_flags_finding(f"{spell_flag(knob)} is not followed by a value", {knob: None})
            continue
        if facts is None or facts.klass == "note" or knob == "max_lora_rank":  # adapters.py knows the next
            continue
        if not (misfit := facts.misfit(value)):
            continue
        if isinstance(value, str) and _PLACEHOLDER.search(value):
            yield _placeholder_finding(knob, value)
        elif (
            facts.type != "choice" or release_number(config) == RELEASE
        ):  # the choices are those of one release
            yield invalid_flags_finding(
                f"{spell_flag(knob)} {misfit}, not {value}",
                {knob: _parse_count(facts, value)},
                source=facts.source,
            )


def _parse_count(facts: KnobFacts, value: Value) -> Value:
    """The number that `8k` means, for a flag that vLLM wants as a plain number."""
    short = _SHORT_NUMBER.fullmatch(value) if isinstance(value, str) and facts.type == "int" else None
    number = int(short[1]) * _FACTORS[short[2]] if short else None
    return None if number is None or facts.misfit(number) else number


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
        if replaced.gone(config.version) is not True or name == VARIABLE:  # rules H1 and H3 report that flag
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
        needs=Needs(facts=("version",), for_change=("version",), applies=has_any(*RENAMED)),
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
        reports="flags that this release does not have yet",
        source=PARSER,
        needs=Needs(facts=("version",)),
    ),
    DeploymentCheck(
        rules=("V1",),
        find=_check_misspelled,
        reports="flags a letter or two away from a known flag",
        source=PARSER,
    ),
    DeploymentCheck(
        rules=("V1",),
        find=_check_unknown,
        reports="flags that no release has",
        source=PARSER,
        needs=Needs(for_change=("version",)),
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
        reports="values that a flag does not take, placeholders among them",
        source=PARSER,
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
        needs=Needs(facts=("version",), applies=has_any(*ENVIRONMENT)),
    ),
    DeploymentCheck(
        rules=("V1",),
        find=_check_metrics_disabled,
        reports="`--disable-log-stats`, which also empties /metrics",
        source="vllm/v1/engine/async_llm.py: log_stats",
    ),
)
