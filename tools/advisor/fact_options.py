"""The options that describe where a command runs, and the ServeConfig built from both."""

import argparse
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from flettner.agent.domain.errors import ConfigError
from flettner.lint.missing_facts import FACTS, find_missing
from flettner.tools.advisor.option_files import read_option_file
from flettner.vllm_facts.flag_parser import UNNAMED_MODEL
from flettner.vllm_facts.hub_cache import hub_caches
from flettner.vllm_facts.models import lookup
from flettner.vllm_facts.models.estimate import estimate_model
from flettner.vllm_facts.serve_config import PROFILES, GpuModel, Launcher, Model, ServeConfig
from flettner.vllm_facts.shell_command.serve_command import ServeCommand
from flettner.vllm_facts.sizing.gpus import find_gpu
from flettner.vllm_facts.sizing.kv_cache import USABLE
from flettner.vllm_facts.start_facts import read_start
from flettner.vllm_facts.values import Setting

_MOST_GIB = 2048  # of one GPU
_MAX_LOG = 64 * 2**20
_MAX_CONFIG = 4 * 2**20
_MAX_INDEX = 64 * 2**20
_VERSION = r"v?\d{1,4}\.\d{1,4}([.\w+-]*)"
_LOGGED_VERSION = (
    r"LLM engine \(v(\d+\.\d+[\w.+]*)\)"
    r"|(?:vLLM (?:API server )?version:?|utils\.py:\d+\]\W*version) v?(\d+\.\d+[\w.+]*)"
)
"""Of an engine, and of the API server: a line, or the banner with vLLM's logo."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gpu",
        "--hardware",
        metavar="NAME",
        help="GPU model as in nvidia-smi: H100, 'Tesla T4', 'A100 80GB'",
    )
    parser.add_argument(
        "--gpu-memory",
        metavar="SIZE",
        help="memory of one GPU, such as 24GiB, where its name does not tell it",
    )
    parser.add_argument("--gpus", type=int, metavar="N", help="number of GPUs of the host")
    parser.add_argument("--vllm-version", metavar="V", help="vLLM version, such as 0.32.0")
    parser.add_argument(
        "--model-config", type=Path, metavar="FILE", help="the model's config.json or its folder"
    )
    parser.add_argument("--profile", metavar="P", help=f"kind of traffic: {', '.join(PROFILES)}")
    parser.add_argument(
        "--env",
        nargs="+",
        action="extend",
        default=[],
        metavar="K=V",
        help="environment variables of the server",
    )
    parser.add_argument("--log", type=Path, metavar="FILE", help="the server's log, complete from its start")


def build_serve_config(
    args: argparse.Namespace,
    command: ServeCommand,
    *,
    version: str = "",
    gpu: str = "",
    gpus: int | None = None,
    little_shared_memory: Launcher | None = None,
) -> ServeConfig:
    """`version`, `gpu`, `gpus` and `little_shared_memory`: found elsewhere, where no option gives them.

    Raises ConfigError with the option, its value and a correct one.
    """
    log = read_log(args.log) if args.log else ()
    setting = command.setting
    name = str(setting.get("model") or setting.get(UNNAMED_MODEL) or "")
    visible = _count_visible(command.server_env)
    gpus = args.gpus if args.gpus is not None else visible or gpus
    gpus = None if "$" in command.server_env.get("CUDA_VISIBLE_DEVICES", "") else gpus
    gpus = min(gpus, visible) if gpus and visible else gpus
    if gpus is not None and gpus < 1:
        raise ConfigError(f"--gpus {gpus}: must be at least 1")
    if args.profile and args.profile not in PROFILES:
        from flettner.agent.plugins.option_errors import suggest_name  # noqa: PLC0415 - its patterns cost more than all of this file

        raise ConfigError(f"--profile {args.profile}: unknown{suggest_name(args.profile, PROFILES)}")
    env = {**command.server_env, **_environment(args.env)}
    named = {**setting, "model": name}
    model = _model(args.model_config, named, {**os.environ, **env}) if name or args.model_config else None
    return ServeConfig(
        setting={**setting, **command.exposure},
        env=env,
        card=_card(args.gpu or (gpu if find_gpu(gpu) else None), args.gpu_memory, log),
        gpus=gpus,
        model=model,
        estimate=None if model else estimate_model(name),
        version=_version(args.vllm_version)
        if args.vllm_version
        else version or command.version or _find_version(log),
        profile=args.profile or "",
        log=log,
        little_shared_memory=command.little_shared_memory or little_shared_memory,
        entry_fault=command.entry_fault,
        shared_memory_gib=command.shared_memory_gib,
        locks_memory=command.locks_memory,
        bypassed_image=command.bypassed_image,
        port=command.port,
    )


def missing_facts(config: ServeConfig) -> list[str]:
    """Return the facts that would enable more rules, each with its option."""
    return [FACTS[fact].describe(config) for fact in find_missing(config, FACTS)]


def _card(name: str | None, memory: str | None, log: tuple[str, ...]) -> GpuModel | None:
    """The GPU by its name, with the memory that an option gives or the log of a start measured."""
    if not name and not memory:
        return None
    card = find_gpu(name or "") or GpuModel(name=name or "GPU", listed=False)
    if memory:
        return replace(card, memory_gib=_memory_gib(memory), sizes=())
    total = read_start(log, {}).total_gib if log and card.memory_gib is None else None
    if total is None:
        return card
    near = (size for size in card.sizes if size.memory_gib and abs(size.memory_gib - total) < 0.1 * total)
    return next(near, replace(card, memory_gib=total / USABLE, sizes=()))


def _memory_gib(text: str) -> float:
    """Makers call a GiB a GB."""
    size = re.fullmatch(r"(\d{1,7}(?:\.\d{1,3})?) ?([GM])?(?:i?B)?", text.strip(), re.IGNORECASE)
    gib = float(size[1]) / (1024 if (size[2] or "").upper() == "M" else 1) if size else 0.0
    if not 0 < gib <= _MOST_GIB:
        raise ConfigError(f"--gpu-memory {text}: not a size of memory; write it as in 24GiB")
    return gib


def _model(path: Path | None, setting: Setting, env: Mapping[str, str]) -> Model | None:
    """Read the model from --model-config, its own folder, the cache of Hugging Face, or the known models."""
    name = str(setting.get("model", ""))
    if path is not None:
        return _read_config(path / "config.json" if path.is_dir() else path, name)
    own = Path(name) / "config.json"
    if name.startswith(("/", ".")) and own.is_file():
        return _read_config(own, name)
    cached = find_cached_config(
        name, env, revision=str(setting.get("revision") or ""), folder=str(setting.get("download_dir") or "")
    )
    try:
        return _read_config(cached, name) if cached else lookup.find_model(name)
    except ConfigError:  # a download that was cut off
        return lookup.find_model(name)


def _read_config(path: Path, name: str) -> Model:
    text = read_option_file(path, "--model-config", "give the config.json of the model", _MAX_CONFIG)
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--model-config {path}: not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"--model-config {path}: not a JSON object; give a config.json")
    return _with_size(replace(lookup.from_config(config, name), source=str(path)), path.parent)


def _with_size(model: Model, folder: Path) -> Model:
    """Return the model of an unknown family, with the size that the index of its weights states."""
    index = folder / "model.safetensors.index.json"
    if model.parameters is not None or not model.weight_bytes or not index.is_file():
        return model
    try:
        text = read_option_file(index, "--model-config", "", _MAX_INDEX)
        stored = json.loads(text)["metadata"]["total_size"]
        return replace(model, parameters=float(stored) / model.weight_bytes)
    except (ConfigError, ValueError, TypeError, KeyError, RecursionError):
        return model


def _version(text: str) -> str:
    if not re.fullmatch(_VERSION, text):
        raise ConfigError(f"--vllm-version {text}: not a version; write it as in 0.32.0")
    return text.removeprefix("v")


def _environment(words: Sequence[str]) -> dict[str, str]:
    env = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ConfigError(
                f"--env {word}: not NAME=VALUE; the command comes after --: `… --env A=1 -- vllm serve …`"
            )
        env[name] = value
    return env


def read_log(path: Path) -> tuple[str, ...]:
    """Return the lines of `--log`. Raises ConfigError."""
    return tuple(read_option_file(path, "--log", "give a text file", _MAX_LOG).splitlines())


def _find_version(log: Sequence[str]) -> str:
    """Return the vLLM version in the log; empty if it has none."""
    matches = (re.search(_LOGGED_VERSION, line[:4000]) for line in log)
    return next((match[1] or match[2] for match in matches if match), "")


def _count_visible(env: Mapping[str, str]) -> int | None:
    devices = [device for device in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if device.strip()]
    return None if any("$" in device for device in devices) else len(devices) or None


_REPOSITORY = re.compile(r"\A[\w-][\w.-]*/[\w-][\w.-]*")
_REVISION = re.compile(r"[\w-][\w./-]*")


def find_cached_config(
    name: str, env: Mapping[str, str], *, revision: str = "", folder: str = ""
) -> Path | None:
    """Return the newest config.json of `OWNER/NAME` that is cached; `folder`: vLLM's --download-dir."""
    revision = revision or "main"
    if not _REPOSITORY.fullmatch(name) or not _REVISION.fullmatch(revision) or ".." in revision:
        return None
    for cache in hub_caches(env, folder):
        model = Path(cache).expanduser() / f"models--{name.replace('/', '--')}"
        config = model / "snapshots" / _commit(model, revision) / "config.json"
        if config.is_file():
            return config
    return None


def _commit(model: Path, revision: str) -> str:
    """Return the commit that a branch or tag points to; a commit is its own name."""
    try:
        return (model / "refs" / revision).read_text().strip() or revision
    except (OSError, ValueError):
        return revision
