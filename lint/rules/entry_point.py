"""What the entrypoint of an image, or the module of a server, does with the words after it: rule V1."""

from collections.abc import Iterable

from flettner.vllm_facts.flag_parser import GLUED, STRAY, UNNAMED_MODEL, VALUED
from flettner.vllm_facts.flag_table import ONE_WAY
from flettner.vllm_facts.releases import TABLE
from flettner.vllm_facts.serve_config import Container, Finding, FindingSeverity, ServeConfig
from flettner.vllm_facts.shell_command.docker_run import is_vllm_image
from flettner.vllm_facts.sizing.effective_flags import (
    DeploymentCheck,
    invalid_flags_finding,
    is_older_than,
    patch_number,
    text_of,
)
from flettner.vllm_facts.values import spell_flag

PARSER = "vllm/utils/argparse_utils.py: FlexibleArgumentParser (exit code 2)"
ENTRYPOINT = "https://docs.vllm.ai/en/latest/deployment/docker/"
_READS_NONE = (0, 10)
"""Before it the parser of `api_server` has no positional argument; since then nothing reads it."""
_IGNORES_FLAG = (0, 7)
"""Before it `vllm serve` takes the model before its flags, whatever --model says."""

_ITEMS = (
    "it starts with each word an item of its own and no shell before them; with a shell as the entrypoint "
    "(`--entrypoint bash` before the image, `entrypoint:` in compose, `command:` in Kubernetes) and the "
    "whole command as one word after `-c`; or with the model and the flags alone"
)
_BASH = "https://www.gnu.org/software/bash/manual/html_node/Lists.html"
_SERVE = (
    "vllm/utils/argparse_utils.py: 'you should provide the model as a positional argument'; "
    "vllm-project/vllm#25967"
)
_SCRIPT = "https://slurm.schedmd.com/sbatch.html; https://www.gnu.org/software/bash/manual/"
_REMEDIES = {
    "items": ("", _ITEMS),
    "line": (_BASH, "the script runs on with a \\ at the end of that line, or the operator in it"),
    "cut": (_BASH, "the server gets all its flags with nothing but a line break behind each \\"),
    "variable": (_BASH, "the server gets it with `export` before the name"),
    "script": (_SCRIPT, "it runs with this line corrected"),
    "controller": (
        "kserve/kserve#5773; kserve/kserve#6044",
        "all GPUs work with the flag itself among `args`, or in VLLM_ADDITIONAL_ARGS",
    ),
    "name": (_SERVE, "it starts with the one that is meant, directly after `vllm serve`"),
}
"""The source and the remedy, by what the fault is of."""

_SEVERITIES: dict[str, FindingSeverity] = {"variable": "warning", "controller": "info"}
"""The release of a controller is not known."""


def _check_unnamed_model(config: ServeConfig) -> Iterable[Finding]:
    """A model without --model, which the module `api_server` does not read."""
    name = text_of(config, UNNAMED_MODEL)
    if not name:
        return
    if name.replace("-", "_") in TABLE:
        yield invalid_flags_finding(
            f"{name} without dashes is no flag, but the name of a model, as are the words after it",
            {},
            expects=f"it starts with --{name} and its value",
        )
        return
    if is_older_than(config, _READS_NONE):
        does = f"refuses {name} without --model"
    elif "model" in config.setting or "config" in config.setting:
        return
    else:
        does = f"ignores {name} without --model, and serves Qwen/Qwen3-0.6B"
    named = {} if "model" in config.setting else {"model": name}
    yield invalid_flags_finding(
        f"the module api_server, which images up to 0.11.0 start, {does}",
        {UNNAMED_MODEL: None, **named},
        expects=f"it serves {config.setting.get('model', name)}",
    )


_MODEL_VARIABLES = (
    *("MODEL_NAME", "MODEL", "MODEL_ID", "MODEL_PATH", "VLLM_MODEL", "VLLM_MODEL_NAME", "HF_MODEL"),
    *("HF_MODEL_ID", "LLM_MODEL"),
)
"""Names that people give to the variable of the model; vLLM reads none of them (vllm/envs.py)."""


def _check_model_variable(config: ServeConfig) -> Iterable[Finding]:
    """A container of vLLM's image that names its model in a variable alone."""
    container = config.container
    if container is None or not is_vllm_image(container.image) or config.bypassed_image:
        return
    if any(config.setting.get(knob) for knob in ("model", "config", UNNAMED_MODEL, STRAY)) or config.log:
        return
    name = next((name for name in _MODEL_VARIABLES if config.env.get(name)), "")
    if not name:
        if not container.partly_read:
            yield _unnamed_model_finding(container)
        return
    value = config.env[name]
    yield invalid_flags_finding(
        f"the model is named by {name} alone, a variable that vLLM's image does not read: it serves "
        "its default model",
        {"model": value} if "$" not in value else {},
        expects=f"it serves {value}",
    )


def _unnamed_model_finding(container: Container) -> Finding:
    """A note for Kubernetes, where a manifest may be a part that others complete."""
    return Finding(
        rule="V1",
        severity="info" if container.launcher == "Kubernetes" else "warning",
        why=f"no model is named for {container.image}: it serves its default, Qwen/Qwen3-0.6B since 0.10",
        expects="it serves the model that is named first among its words: `--model MODEL`, or MODEL alone",
        risks="none",
        source="vllm/config/model.py: model",
    )


def _check_stray_words(config: ServeConfig) -> Iterable[Finding]:
    words = text_of(config, STRAY)
    if not words:
        return
    yield invalid_flags_finding(
        f"`{words}` follows a command that starts the server already, as the entrypoint of vLLM's images "
        f"does: {words.split()[0]!r} would be the model, and the rest is refused",
        {STRAY: None},
        expects="it starts with the model and the flags directly after the image",
    )


def _check_glued_words(config: ServeConfig) -> Iterable[Finding]:
    words = text_of(config, GLUED)
    if not words:
        return
    yield invalid_flags_finding(
        f"'{words}' is one word: vLLM looks for a flag of that whole name and refuses it",
        {GLUED: None},
        source=PARSER,
        expects="it starts with flag and value as two items of the list, or as --flag=value",
    )


_TOOK_VALUES = frozenset(
    {
        *("enable_chunked_prefill", "multi_step_stream_outputs", "disable_logprobs_during_spec_decoding"),
        "disable_chunked_mm_input",
    }
)
_TAKES_NONE = (0, 8, 5)
"""Before it these had StoreBoolean as their action, and no `--no-` form (vllm/engine/arg_utils.py)."""


def _check_valued_switches(config: ServeConfig) -> Iterable[Finding]:
    release = patch_number(config)
    takes_some = release is not None and release < _TAKES_NONE
    for knob in config.setting:
        first, _, name = knob.partition(".")
        if first != VALUED or (takes_some and name in _TOOK_VALUES):
            continue
        off = config.setting.get(name) is False
        plain = "without it" if off and name in ONE_WAY else f"with {spell_flag('no_' * off + name)}"
        since = " since 0.8.5" if name in _TOOK_VALUES and release is None else ""
        yield invalid_flags_finding(
            f"`{text_of(config, knob)}`: vLLM takes no value for this switch{since}, and refuses the command",
            {} if since else {knob: None},
            source=PARSER,
            expects=f"it starts {plain}",
            severity="warning" if since else "error",
        )


def _check_entry(config: ServeConfig) -> Iterable[Finding]:
    first = config.entry_fault
    for fault in (first, *first.also) if first else ():
        if fault.of == "name" and is_older_than(config, _IGNORES_FLAG):
            continue
        source, expects = _REMEDIES[fault.of]
        severity = _SEVERITIES.get(fault.of, "error")
        yield invalid_flags_finding(fault.why, {}, source=source, expects=expects, severity=severity)


LINTS = (
    DeploymentCheck(
        rules=("V1",),
        find=_check_model_variable,
        reports="a model that stands in a variable alone, which vLLM's image does not read",
        source="vllm/envs.py; vllm/config/model.py: model",
    ),
    DeploymentCheck(
        rules=("V1",),
        find=_check_unnamed_model,
        reports="a model without `--model` where the server does not read it",
        source="vllm/entrypoints/launchers/cli_args.py: model_tag; vllm/entrypoints/cli/serve.py",
    ),
    DeploymentCheck(
        rules=("V1",),
        find=_check_stray_words,
        reports="`serve` or `vllm serve` after an image that starts the server by itself",
        source=ENTRYPOINT,
    ),
    DeploymentCheck(
        rules=("V1",),
        find=_check_glued_words,
        reports="a flag and its value in one word",
        source=PARSER,
    ),
    DeploymentCheck(
        rules=("V1",),
        find=_check_valued_switches,
        reports="a switch with a value",
        source=PARSER,
    ),
    DeploymentCheck(
        rules=("V1",),
        find=_check_entry,
        reports="a shell after an image that starts the server by itself, or that cuts the command off",
        source=ENTRYPOINT,
    ),
)
