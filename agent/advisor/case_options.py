"""The options that tell what a command line runs on, and the case that they make with it."""

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from agent.domain.errors import ConfigError
from vllm_facts.command.serve_command import ServeCommand
from vllm_facts.deployment import Deployment, GpuModel, Model
from vllm_facts.models import lookup
from vllm_facts.sizing.gpus import find_gpu

PROFILES = ("api", "batch", "chat", "rag", "wide-ep")
_LARGEST_LOG = 64 * 2**20
_LARGEST_CONFIG = 4 * 2**20
_VERSION = r"v?\d{1,4}\.\d{1,4}([.\w+-]*)"
_SAID_VERSION = r"LLM engine \(v(\d+\.\d+[\w.+]*)\)|vLLM (?:API server )?version:? v?(\d+\.\d+[\w.+]*)"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpu", metavar="NAME", help="as nvidia-smi names it: H100, 'Tesla T4', 'A100 80GB'")
    parser.add_argument("--gpus", type=int, metavar="N", help="how many of them the host has")
    parser.add_argument("--vllm-version", metavar="V", help="0.32.0; flags come and go between versions")
    parser.add_argument(
        "--model-config", type=Path, metavar="FILE", help="the model's config.json, or its folder"
    )
    parser.add_argument("--profile", metavar="P", help=f"what the traffic is like: {', '.join(PROFILES)}")
    parser.add_argument(
        "--env", nargs="+", action="extend", default=[], metavar="K=V", help="the server's environment"
    )
    parser.add_argument("--log", type=Path, metavar="FILE", help="the server's log, from its start on")
    parser.add_argument("--json", action="store_true", help="as JSON")


def case_of(args: argparse.Namespace, command: ServeCommand, *, version: str = "") -> Deployment:
    """ConfigError names the option, what was found and what to write. `version`: as the server tells it."""
    log = log_of(args.log) if args.log else ()
    setting = command.setting
    name = str(setting.get("model", ""))
    gpus = args.gpus if args.gpus is not None else _visible(command.reaching)
    if gpus is not None and gpus < 1:
        raise ConfigError(f"--gpus {gpus}: must be at least 1")
    if args.profile and args.profile not in PROFILES:
        from agent.plugins.option_errors import suggest_name  # noqa: PLC0415 - its patterns cost more than all of this file

        raise ConfigError(f"--profile {args.profile}: is not known{suggest_name(args.profile, PROFILES)}")
    return Deployment(
        setting={**setting, **command.reach},
        env={**command.reaching, **_environment(args.env)},
        card=_card(args.gpu) if args.gpu else None,
        gpus=gpus,
        model=_model(args.model_config, name),
        version=_version(args.vllm_version)
        if args.vllm_version
        else version or command.version or _said(log),
        profile=args.profile or "",
        log=log,
    )


def unknown(case: Deployment) -> list[str]:
    """What would let the lints say more, each with the option that tells it."""
    name = str(case.setting.get("model", ""))
    model = f"the model {name} (--model-config FILE)" if name else "the model: none is named"
    lacking = (
        (case.card is None, "the GPU (--gpu NAME)"),
        (case.gpus is None, "how many GPUs (--gpus N)"),
        (case.model is None, model),
        (not case.version, "the version of vLLM (--vllm-version V)"),
        (not case.profile, "what the traffic is like (--profile P)"),
        (not case.log, "how it starts (--log FILE)"),
    )
    return [what for lacks, what in lacking if lacks]


def _card(name: str) -> GpuModel:
    card = find_gpu(name)
    if card is None:
        raise ConfigError(
            f"--gpu {name}: is no GPU that is known; write it as nvidia-smi does (T4, L40S, RTX 4090, "
            "'A100 80GB', H100), or leave --gpu out"
        )
    return card


def _model(path: Path | None, name: str) -> Model | None:
    """From the file that is named, from the model's own folder, or from the table of well-known models."""
    own = Path(name) / "config.json" if name.startswith(("/", ".")) else None
    if path is None and own is not None and own.is_file():
        path = own
    if path is None:
        return lookup.find_model(name) if name else None
    path = path / "config.json" if path.is_dir() else path
    text = _read(path, "--model-config", "the config.json of the model is wanted", _LARGEST_CONFIG)
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--model-config {path}: is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"--model-config {path}: is no JSON object: a config.json is wanted")
    return lookup.from_config(config, name)


def _version(text: str) -> str:
    if not re.fullmatch(_VERSION, text):
        raise ConfigError(f"--vllm-version {text}: is no version; write it as in 0.32.0")
    return text.removeprefix("v")


def _environment(words: Sequence[str]) -> dict[str, str]:
    env = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ConfigError(
                f"--env {word}: is not NAME=VALUE; the command comes after --: `… --env A=1 -- vllm serve …`"
            )
        env[name] = value
    return env


def log_of(path: Path) -> tuple[str, ...]:
    """The lines of `--log`. Raises ConfigError."""
    return tuple(_read(path, "--log", "a text file is wanted", _LARGEST_LOG).splitlines())


def _said(log: Sequence[str]) -> str:
    """The version that the log names."""
    found = (re.search(_SAID_VERSION, line[:4000]) for line in log)
    return next((match[1] or match[2] for match in found if match), "")


def _visible(env: Mapping[str, str]) -> int | None:
    devices = [device for device in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if device.strip()]
    return len(devices) or None


def _read(path: Path, option: str, wanted: str, most: int) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise ConfigError(f"{option} {path}: cannot be read: {error.strerror}; {wanted}") from error
    if len(content) > most:
        raise ConfigError(f"{option} {path}: is larger than {most >> 20} MiB; {wanted}")
    return content.decode("utf-8", "replace")
