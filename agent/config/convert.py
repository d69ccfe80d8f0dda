"""Converts the tables of the config file to values of the core: objectives, bounds, plans, golden prompts."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from flettner.agent.audit.segments import RetentionLimits
from flettner.agent.config.tables import (
    AuditTable,
    BoundTable,
    ObjectiveTable,
    QualityTable,
    RolloutTable,
    SloTable,
    UpgradesTable,
)
from flettner.agent.domain.errors import ConfigError
from flettner.agent.domain.model import Bound, Objective, Plan, Slo, Step
from flettner.agent.domain.upgrade import UpgradeLimits
from flettner.agent.domain.warm_up import SharedPrefix
from flettner.agent.quality.golden_prompts import LEAST, GoldenPromptOptions
from flettner.primitives.bounded import parse_json
from flettner.primitives.files import read_file
from flettner.vllm_facts.values import Knob

MOST_PROMPTS = 1000  # each is asked three times
MOST_PREFIXES = 100  # each is sent for every adapter
LARGEST_FILE = 2**20

BOUNDS: Mapping[Knob, Bound] = {
    "max_num_seqs": Bound(min=1, max=1024, octaves=3),  # raised only to a demand that already waits
    "max_num_active_seqs": Bound(min=1, max=1024, octaves=3),
    "max_num_batched_tokens": Bound(min=256, max=32768, octaves=5),  # from 64 to what prompts need, in one
    "max_num_scheduled_tokens": Bound(min=256, max=32768, octaves=5),
    "gpu_memory_utilization": Bound(min=0.5, max=0.92),
    "watermark": Bound(min=0.0, max=0.1),
    "tensor_parallel_size": Bound(octaves=4),  # a layout is planned as a whole, never in steps
    "pipeline_parallel_size": Bound(octaves=4),
    "data_parallel_size": Bound(octaves=4),
}
"""Default bounds; a key missing in a knob's table keeps its value."""


def slo(table: SloTable) -> Slo:
    return Slo(
        ttft=_objective(table.ttft),
        itl=_objective(table.itl),
        e2e=_objective(table.e2e),
        errors=table.errors.share,
    )


def _objective(table: ObjectiveTable | None) -> Objective | None:
    return None if table is None else Objective(under_s=table.under, share=table.share)


def limits(table: AuditTable) -> RetentionLimits:
    return RetentionLimits(
        segment_bytes=table.segment_mb * 2**20,
        segment_s=table.segment_age,
        keep_s=table.keep,
        keep_bytes=table.keep_mb * 2**20,
    )


def bound(knob: Knob, table: BoundTable) -> Bound:
    default = BOUNDS.get(knob, Bound())
    return Bound(
        min=default.min if table.min is None else table.min,
        max=default.max if table.max is None else table.max,
        allowed=tuple(_grid(table)) if table.step else table.allowed,
        octaves=default.octaves if table.octaves is None else table.octaves,
    )


def _grid(table: BoundTable) -> Iterator[float]:
    """Yield min, min + step, ... up to max; integers if all three are."""
    if table.min is None or table.max is None or table.step is None:
        return
    whole = all(number.is_integer() for number in (table.min, table.max, table.step))
    for i in range(int((table.max - table.min) / table.step + 1e-9) + 1):
        value = round(table.min + i * table.step, 9)
        yield int(value) if whole else value


def plan(table: RolloutTable) -> Plan:
    hold_at_most_s = table.hold_at_most or max(4 * table.hold, table.hold + 3600)
    hold = Step(weight=100, requests=table.hold_requests, at_least_s=table.hold, at_most_s=hold_at_most_s)
    steps = (
        Step(weight=step.weight, requests=step.requests, at_least_s=step.at_least, at_most_s=step.at_most)
        for step in table.steps
    )
    return Plan(
        steps=(*steps, hold),
        start_s=table.start,
        warm_up_requests=table.warm_up_requests,
        warm_up_s=table.warm_up,
        drain_s=table.drain,
        lease_s=table.lease,
        margin=table.margin,
        gain_needed=table.gain_needed,
        quick=table.quick,
        own_shares="steps" in table.model_fields_set,
    )


def upgrades(table: UpgradesTable) -> UpgradeLimits:
    return UpgradeLimits(
        images=table.images,
        commands=table.commands,
        models=table.models,
        revisions=table.revisions,
        env=table.env,
    )


def quality(table: QualityTable, prompts: Path | None, prefixes: Path | None) -> GoldenPromptOptions:
    """`prompts`, `prefixes`: the operator's own files. Raises ConfigError, with the key of a wrong one."""
    options = GoldenPromptOptions(command=table.command, always=table.always, at_most_s=table.at_most)
    if prompts is not None:
        options = replace(options, prompts=_read_prompts(prompts), own=True)
    return options if prefixes is None else replace(options, prefixes=_read_prefixes(prefixes))


def _read_text(key: str, path: Path) -> str:
    try:
        return read_file(path, LARGEST_FILE).decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{key}: {path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{key}: {path}: is not UTF-8 text: {error}") from error


def _read_prefixes(path: Path) -> tuple[SharedPrefix, ...]:
    """Read a JSON object a line, the one that most requests share first. Raises ConfigError."""
    lines = enumerate(_read_text("prefixes", path).split("\n"), start=1)
    prefixes = tuple(dict.fromkeys(_parse_prefix(path, n, line) for n, line in lines if line.strip()))
    if not 1 <= len(prefixes) <= MOST_PREFIXES:
        raise ConfigError(
            f"prefixes: {path}: has {len(prefixes)} different prefixes: give 1 to {MOST_PREFIXES}"
        )
    return prefixes


def _parse_prefix(path: Path, number: int, line: str) -> SharedPrefix:
    try:
        match parse_json(line):
            case {"system": str(text), **rest} if text.strip() and not rest.keys() - {"model"}:
                return SharedPrefix(text=text, chat=True, model=str(rest.get("model") or ""))
            case {"prompt": str(text), **rest} if text.strip() and not rest.keys() - {"model"}:
                return SharedPrefix(text=text, model=str(rest.get("model") or ""))
    except ValueError as error:
        raise ConfigError(f"prefixes: {path}: line {number} is no JSON: {error}") from error
    raise ConfigError(
        f'prefixes: {path}: line {number} must be {{"system": "…"}} or {{"prompt": "…"}}, and may '
        'name a "model"'
    )


def _read_prompts(path: Path) -> tuple[str, ...]:
    """Read one prompt a line, as text or as a JSON object with a `prompt`. Raises ConfigError."""
    prompts = tuple(dict.fromkeys(_parse_prompts(path, _read_text("prompts", path))))
    if not LEAST <= len(prompts) <= MOST_PROMPTS:
        raise ConfigError(
            f"prompts: {path}: has {len(prompts)} different prompts: give {LEAST} to {MOST_PROMPTS}. With "
            "fewer, wrong answers cannot be distinguished from chance; a few dozen are recommended"
        )
    return prompts


def _parse_prompts(path: Path, text: str) -> Iterator[str]:
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.strip()
        if not stripped.startswith("{"):
            if stripped:
                yield stripped
            continue
        try:
            prompt = parse_json(stripped).get("prompt")
        except ValueError as error:
            raise ConfigError(
                f"prompts: {path}: line {number} starts like JSON but is invalid: {error}"
            ) from error
        if not isinstance(prompt, str) or not prompt.strip():
            raise ConfigError(f'prompts: {path}: line {number} has no "prompt" string')
        yield prompt
