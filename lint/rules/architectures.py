"""Models that this release, or the installed Transformers, does not know: rules V1 and F9."""

import re
from collections.abc import Iterable

from flettner.lint.recogniser import recogniser
from flettner.vllm_facts.references import DOCS
from flettner.vllm_facts.releases.architectures import (
    FALLBACK_SINCE,
    find_model_type,
    find_requirement,
    first_release,
    is_kin_known,
    is_kin_served,
    is_known,
    is_older,
    is_served,
    last_release,
    newest_release,
    parse_release,
)
from flettner.vllm_facts.serve_config import Finding, Model, Needs, ServeConfig
from flettner.vllm_facts.shell_command.docker_run import is_vllm_image
from flettner.vllm_facts.sizing.effective_flags import (
    DeploymentCheck,
    is_omni,
    json_entries,
)
from flettner.vllm_facts.start_facts import join_log

REGISTRY = "vllm/model_executor/models/registry.py"
FALLBACK = f"{REGISTRY}: _try_resolve_transformers"
IMPLEMENTATION = "model_impl"

_UNSUPPORTED = (
    r"Model architectures \[?'?(?P<name>\w{1,100})'?.{0,400}? are not supported"
    r"|\b(?P<lone>[A-Z]\w{1,100}) has no vLLM implementation and the Transformers implementation is not"
    r"|Model architecture (?P<old>\w{1,100}) was supported in vLLM until"
)
_UNRECOGNISED = (
    r"(?:has model type .?(?P<kind>[A-Za-z][\w.-]{0,80}?)['`\"]? but )?"
    r"Transformers does not recognize this architecture"
)

_OF_MISTRAL = ("Ministral", "Mistral3", "MistralLarge", "Pixtral", "Voxtral")
"""Architectures that vLLM may also serve by Mistral's own files (params.json), as others."""


def _check_before_start(config: ServeConfig) -> Iterable[Finding]:
    model = config.model
    if model is None or not is_known(model.architecture) or not _follows_config(config, model):
        return
    name, version = model.architecture, config.version
    if is_served(name, version) is not False or is_kin_served(name, version) is not False:
        return
    start = config.start
    said = re.search(f"{_UNSUPPORTED}|{_UNRECOGNISED}", join_log(config.log)) if config.log else None
    if said or (start is not None and (start.loaded or start.serves)):
        return  # the log names it, or refutes it
    certain = _why_no_fallback(config, model)
    yield Finding(
        rule="V1",
        severity="error" if certain else "warning",
        why=f"{_describe_lack(name, version)}, the architecture of {model.name}: "
        + (
            f"it does not start, {certain}"
            if certain
            else f"it starts only where {_describe_transformers(model)} runs it, slower than vLLM's own code"
        ),
        expects=_describe_remedy(name, model.model_type, version),
    )


def _follows_config(config: ServeConfig, model: Model) -> bool:
    """Whether an unmodified vLLM takes the architecture from config.json, and may run it by its own code."""
    setting, container = config.setting, config.container
    if container is not None and container.image and not is_vllm_image(container.image):
        return False  # a build of its own
    if model.architecture.startswith(_OF_MISTRAL):
        return False
    if is_omni(config) or setting.get(IMPLEMENTATION) not in {None, "auto", "vllm"}:
        return False
    if "architectures" in json_entries(config, "hf_overrides") or any(
        knob.startswith("hf_overrides.architectures") for knob in setting
    ):
        return False
    if setting.get("hf_overrides") and not json_entries(config, "hf_overrides"):
        return False  # no JSON that can be read here
    formats = {setting.get("config_format"), setting.get("load_format")}
    other = formats & {"mistral", "gguf"} or setting.get("tokenizer_mode") == "mistral"
    in_gguf = "gguf" in {setting.get("quantization"), model.quantization} or "gguf" in model.name.lower()
    return not other and not in_gguf and "VLLM_PLUGINS" not in config.env


def _why_no_fallback(config: ServeConfig, model: Model) -> str:
    """Why Transformers' own implementation cannot run it; "" if it may."""
    if config.setting.get(IMPLEMENTATION) == "vllm":
        return "for --model-impl vllm leaves out Transformers' own implementation"
    if is_older(config.version, FALLBACK_SINCE):
        return f"for releases before {FALLBACK_SINCE} run no model by Transformers' own implementation"
    needed, required = find_model_type(model.model_type), find_requirement(config.version)
    if config.setting.get("trust_remote_code") or not (needed and needed.transformers and required):
        return ""
    if not required.below or parse_release(needed.transformers) < parse_release(required.below):
        return ""
    return (
        f"for it requires transformers below {required.below}, and {needed.transformers} is the first "
        f"to know {model.model_type}"
    )


def _describe_lack(name: str, version: str) -> str:
    first, last = first_release(name), last_release(name)
    if first_release(name, version) or not last:
        return f"vLLM {version} does not implement {name}"
    return f"vLLM {version} no longer implements {name} (vLLM {first} to {last} do)"


def _describe_transformers(model: Model) -> str:
    needed = find_model_type(model.model_type)
    since = f", {needed.transformers} or newer," if needed and needed.transformers else ""
    return f"the installed transformers{since}"


def _describe_remedy(name: str, kind: str, version: str) -> str:
    """The release to take. `kind`: the type of the model, "" if unknown."""
    if first := first_release(name, version):
        return (
            f"vLLM {first} or newer has it (vllm/vllm-openai:v{first}){_describe_later(first, kind)}; "
            f"--upgrade-to {first} shows what else differs there"
        )
    return f"vLLM {last_release(name)} is the last release that implements {name}"


def _describe_later(first: str, kind: str) -> str:
    """What the releases from `first` on need, until one brings the Transformers that knows the type."""
    needed = find_model_type(kind)
    if needed is None or not needed.transformers:
        return ""
    if needed.vllm and parse_release(needed.vllm) <= parse_release(first):
        return ""
    until = f"before {needed.vllm} " if needed.vllm else ""
    return f"; {until}with transformers {needed.transformers} or newer, or the model's own code"


def _explain_unsupported(match: re.Match[str], config: ServeConfig) -> Finding | None:
    name, version = match["name"] or match["lone"] or match["old"], config.version
    kind = config.model.model_type if config.model and config.model.architecture == name else ""
    why = f"it did not start: this vLLM does not know the architecture {name}"
    if match.string.count(f"'{name}'") > 1 or is_served(name, version):  # its list of the known ones has it
        why = f"it did not start: this vLLM has the architecture {name}, and its code did not load"
        expects = (
            'the error above it names the cause ("Error in inspecting model architecture"), often a torch or '
            "transformers of another release than this vLLM requires; else another release wrote the log"
        )
    elif not is_known(name):
        expects = _describe_unlisted(name)
    elif is_served(name, version) is False:
        why = f"it did not start: {_describe_lack(name, version)}"
        expects = _describe_remedy(name, kind, version)
    else:
        expects = _describe_span(name) if last_release(name) else _describe_remedy(name, kind, "")
    return Finding(rule="V1", severity="error", why=why, expects=expects, risks="none known")


def _describe_unlisted(name: str) -> str:
    if is_kin_known(name):
        return "a newer vLLM: later releases make such a model of one that generates text"
    return (
        f"no release up to {newest_release()} implements it: a transformers that has it (vLLM since "
        f"{FALLBACK_SINCE} tries that), or a plugin or build of the model's makers"
    )


def _describe_span(name: str) -> str:
    return f"vLLM {first_release(name)} to {last_release(name)} implement it"


def _explain_unrecognised(match: re.Match[str], config: ServeConfig) -> Finding | None:
    kind = match["kind"] or ""
    needed = find_model_type(kind)
    what = f"the type {kind}" if kind else "the model"
    why = f"it did not start: the installed transformers does not know {what}"
    expects = "a newer vLLM, which brings its transformers, or a newer transformers if vLLM allows it"
    if needed is not None:
        since = needed.transformers
        why += f", which {since} is the first to know" if since else ""
        expects = _describe_newer(since, needed.vllm, config)
    return Finding(
        rule="F9",
        severity="error",
        why=why,
        expects=expects,
        risks="none known",
        evidence={"line": match[0].strip()[:200]},
    )


def _describe_newer(since: str, vllm: str, config: ServeConfig) -> str:
    """What to install for a type of model. `since`, `vllm`: the first releases for it, "" if unknown."""
    version, required = config.version, find_requirement(config.version)
    if not vllm:
        return f"transformers {since} or newer, beside a vLLM that allows it"
    if required is None:
        return f"vLLM {vllm} or newer, whose own configuration or transformers knows it"
    newest = max(filter(None, (required.least, required.tested)), key=parse_release)
    if is_older(version, vllm):
        image = f"vllm/vllm-openai:v{vllm}"
        return f"vLLM {vllm} or newer, which knows it ({image}){_describe_beside(since, config)}"
    if since and parse_release(newest) >= parse_release(since):
        return (
            f"transformers {newest} or newer, with which vLLM {version} is tested: an older one is installed"
        )
    return f"another release wrote the log: vLLM {version} reads the type by its own configuration"


def _describe_beside(since: str, config: ServeConfig) -> str:
    """The newer Transformers that an installed release with the architecture allows; "" for none."""
    version, required = config.version, find_requirement(config.version)
    if not since or required is None or config.model is None:
        return ""
    if required.below and parse_release(required.below) <= parse_release(since):
        return ""
    served = is_served(config.model.architecture, version)
    return f"; or transformers {since} or newer beside vLLM {version}" if served else ""


LINTS = (
    DeploymentCheck(
        rules=("V1",),
        find=_check_before_start,
        reports="a model whose architecture this release does not implement yet, or no longer; without the "
        "release or the architecture nothing is said",
        source=(
            f"{FALLBACK}; vLLM 0.8 vllm/model_executor/model_loader/utils.py: resolve_transformers_fallback"
        ),
        needs=Needs(facts=("model", "version")),
    ),
    recogniser(
        "V1",
        _UNSUPPORTED,
        _explain_unsupported,
        reports="an architecture that this vLLM does not know, with the releases that do",
        source=(
            f"{REGISTRY}: 'are not supported for now'; {DOCS}/models/supported_models/; "
            "vllm-project/vllm#3463; vllm-project/vllm#9713"
        ),
    ),
    recogniser(
        "F9",
        _UNRECOGNISED,
        _explain_unrecognised,
        reports="a type of model that the installed transformers does not know, with the releases that do",
        source=(
            "https://huggingface.co/docs/transformers/model_doc/auto; vllm/transformers_utils/config.py: "
            "_CONFIG_REGISTRY; vllm-project/vllm-ascend#3819"
        ),
    ),
)
