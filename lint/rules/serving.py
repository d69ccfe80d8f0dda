"""Flags with which the server starts, and serves something else than they say: rule V1."""

import json
import re
from collections.abc import Iterable, Mapping

from flettner.vllm_facts.model_parsers import REASONING, TOOLS, find_family
from flettner.vllm_facts.models.lookup import canonical_name
from flettner.vllm_facts.releases.history import first_release_with, has_flag, values_in
from flettner.vllm_facts.serve_config import Finding, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import DeploymentCheck, invalid_flags_finding, text_of
from flettner.vllm_facts.values import Knob, Value, spell_flag
from flettner.vllm_facts.weight_formats import format_from_name

_IN_ANSWER = "_append_think"  # the end of such a parser's name
_RERANKER = re.compile(r"qwen3-(?P<vision>vl-)?reranker-\d")
"""Qwen's own files, which say that they generate text; conversions have "seq-cls" in their names."""


def _check_unused_parser(config: ServeConfig) -> Iterable[Finding]:
    """gpt-oss has its own parser, which reads tool calls in any case."""
    parser = text_of(config, "tool_call_parser")
    if not parser or config.setting.get("enable_auto_tool_choice") is not None or parser == "openai":
        return
    yield invalid_flags_finding(
        f"--tool-call-parser {parser} has no effect without --enable-auto-tool-choice: requests with "
        "tools are refused",
        {"enable_auto_tool_choice": True},
        severity="info",  # recipes leave it out, too
        expects="the model's tool calls are read",
    )


def _check_parser_family(config: ServeConfig) -> Iterable[Finding]:
    """A parser that reads another family's answers. A template or a plugin may make any parser right."""
    family = find_family(text_of(config, "model"))
    if family is None or any(knob == "chat_template" or "parser_plugin" in knob for knob in config.setting):
        return
    for knob in (TOOLS, REASONING):
        given, parsers = text_of(config, knob), family.parsers(knob, config.version)
        known = values_in(knob, config.version) or ()
        if knob == TOOLS and family.tools and not parsers and given in known:
            yield _explain_missing_parser(given, family.tools, config.version)
        if not given or not parsers or given in parsers or given not in known:
            continue
        lost = "tool calls come back as text" if knob == TOOLS else "reasoning and answer are mixed up"
        yield invalid_flags_finding(
            f"{spell_flag(knob)} {given} reads the answers of other models"
            f"{f' ({family.why})' if family.why and knob == REASONING else ''}: {lost}",
            {knob: parsers[0]},
            severity="warning",
            expects=f"the parsers of this family: {', '.join(parsers)}",
        )


def _explain_missing_parser(given: str, parsers: tuple[str, ...], version: str) -> Finding:
    """A note: the release has no parser of tool calls that reads this family."""
    since = {parser: release for parser in parsers if (release := first_release_with(TOOLS, parser))}
    named = ", ".join(f"{parser} (since {release})" for parser, release in since.items())
    return invalid_flags_finding(
        f"{spell_flag(TOOLS)} {given} reads the answers of other models, and vLLM {version} has no parser of "
        "this family: tool calls come back as text",
        {},
        severity="warning",
        expects=f"a release with one: {named or ', '.join(parsers)}",
    )


def _check_reasoning_in_answer(config: ServeConfig) -> Iterable[Finding]:
    """A note: clients may want the reasoning in the answer. A parser of tools tells of agents, who do not."""
    family, given = find_family(text_of(config, "model")), text_of(config, REASONING)
    if family is None or not family.thinks or not text_of(config, TOOLS):
        return
    if given and not given.endswith(_IN_ANSWER):
        return
    if family.thinks not in (values_in(REASONING, config.version) or ()):
        return
    yield invalid_flags_finding(
        f"--reasoning-parser {given} leaves the reasoning in the answer's content"
        if given
        else "the model reasons by default, and without --reasoning-parser its reasoning stays in the "
        "answer's content",
        {},
        severity="info",
        expects=f"--reasoning-parser {family.thinks} returns it apart, if the clients want that",
    )


def pool_by_release(_: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    """The flag with which the release serves vectors; none where the release is not known."""
    if has_flag("runner", config.version):
        return {"runner": "pooling"}
    return {"task": "embed"} if has_flag("task", config.version) else {}


def generates_text(config: ServeConfig) -> bool:
    """Whether no flag makes it a pooling model."""
    task = config.setting.get("task")
    return config.setting.get("runner") != "pooling" and task in (None, "auto", "generate")


def pools(config: ServeConfig) -> bool:
    return not generates_text(config)


def reranker_overrides(config: ServeConfig) -> str:
    """The --hf-overrides with which Qwen's own reranker is a classifier; "" if it is none, or has some."""
    name = canonical_name(text_of(config, "model"))
    if not (reranker := _RERANKER.match(name)) or "seq-cls" in name or config.setting.get("hf_overrides"):
        return ""
    kind = "Qwen3VLForSequenceClassification" if reranker["vision"] else "Qwen3ForSequenceClassification"
    meant = {
        "architectures": [kind],
        "classifier_from_token": ["no", "yes"],
        "is_original_qwen3_reranker": True,
    }
    return json.dumps(meant)


def _check_reranker(config: ServeConfig) -> Iterable[Finding]:
    overrides = reranker_overrides(config)
    if not overrides:
        return
    to: dict[Knob, Value] = {"hf_overrides": overrides}
    yield invalid_flags_finding(
        "this reranker's own files describe a model that generates text, so /rerank and /score are missing",
        to,
        severity="warning",
        expects="it is served as a classifier, with /rerank and /score; its prompts need the "
        "model's template",
    )


def _check_other_config(config: ServeConfig) -> Iterable[Finding]:
    """`hf_config_path` replaces the checkpoint's config.json, with its quantization_config."""
    model, other = text_of(config, "model"), text_of(config, "hf_config_path")
    if not other or other == model or not _is_quantised(model) or _is_quantised(other):
        return
    yield invalid_flags_finding(
        f"--hf-config-path {other} replaces the config of a quantised checkpoint: without its "
        "quantization_config the weights are read at full size",
        {},
        severity="warning",
        expects="leave it out, or give a folder whose config.json has the checkpoint's quantization_config",
    )


def _is_quantised(name: str) -> bool:
    stored = format_from_name(frozenset(canonical_name(name).split("-")))
    return bool(stored and stored.method)


LINTS = (
    DeploymentCheck(
        rules=("V1",),
        find=_check_unused_parser,
        reports="a `--tool-call-parser` without `--enable-auto-tool-choice`",
        source="vllm/parser/parser_manager.py: get_tool_parser; vllm-project/vllm#55754",
    ),
    DeploymentCheck(
        rules=("V1",),
        find=_check_parser_family,
        reports="a `--tool-call-parser` or `--reasoning-parser` of another family of models",
        source=(
            "https://docs.vllm.ai/en/latest/features/tool_calling/; "
            "https://docs.vllm.ai/en/latest/features/reasoning_outputs/; vllm-project/vllm#26561; "
            "vllm-project/vllm#22507; vllm-project/vllm#19017; vllm-project/vllm#30625"
        ),
    ),
    DeploymentCheck(
        rules=("V1",),
        find=_check_reasoning_in_answer,
        reports="a model that reasons by default, with a `--tool-call-parser` and no parser that takes "
        "the reasoning out of its answers",
        source=(
            "https://docs.vllm.ai/en/latest/features/reasoning_outputs/; vllm-project/vllm#36207; "
            "vllm-project/vllm#34625"
        ),
    ),
    DeploymentCheck(
        rules=("V1",),
        find=_check_reranker,
        reports="Qwen's reranker, whose own files describe a model that generates text",
        source=(
            "vllm/model_executor/models/config.py: is_original_qwen3_reranker; "
            "https://docs.vllm.ai/en/latest/models/pooling_models/scoring/"
        ),
    ),
    DeploymentCheck(
        rules=("V1",),
        find=_check_other_config,
        reports="`--hf-config-path` that replaces the config of a quantised checkpoint",
        source="vllm/config/model.py: hf_config_path; vllm-project/vllm#16128",
    ),
)
