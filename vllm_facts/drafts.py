"""Changes of speculative decoding that keep its method and its draft model: fewer or more tokens, or none."""

import json
from dataclasses import dataclass
from functools import cache

from flettner.vllm_facts.fact_tables import FOLDER, read_rows
from flettner.vllm_facts.values import Knob, Setting, Value

CONFIG, TOKENS = "speculative_config", "spec_tokens"
FLAGS: tuple[Knob, ...] = (CONFIG, "spec_method", "spec_model", TOKENS)
COUNT, SCHEDULE = "num_speculative_tokens", "num_speculative_tokens_per_batch_size"  # of the JSON of CONFIG
MOST_TOKENS = 64  # as the catalogue has it for TOKENS


def find_flags(setting: Setting) -> tuple[Knob, ...]:
    """The flags by which speculative decoding is on, with dotted ones such as `speculative_config.method`."""
    return tuple(
        knob for knob, value in setting.items() if value is not None and knob.partition(".")[0] in FLAGS
    )


def set_count(setting: Setting, count: int) -> dict[Knob, Value]:
    """The change to `count` draft tokens; empty where no flag has their number."""
    if setting.get(TOKENS) is not None:
        return {TOKENS: count}
    dotted = f"{CONFIG}.{COUNT}"
    if setting.get(dotted) is not None:
        return {dotted: count}
    entries = _entries(setting.get(CONFIG))
    return {CONFIG: json.dumps({**entries, COUNT: count})} if COUNT in entries else {}


def has_schedule(setting: Setting) -> bool:
    """Whether vLLM chooses the number of draft tokens by the number of requests that run."""
    dotted, entries = setting.get(f"{CONFIG}.{SCHEDULE}"), _entries(setting.get(CONFIG))
    return dotted is not None or bool(entries.get(SCHEDULE))


def keeps_method(knob: Knob, now: Value, wanted: Value) -> bool:
    """Whether a change removes a flag of speculative decoding, or changes the number of draft tokens only."""
    if knob.partition(".")[0] not in FLAGS or now is None:
        return False
    if wanted is None:
        return True
    if knob == f"{CONFIG}.{COUNT}":
        return _is_count(wanted)
    before, after = _entries(now), _entries(wanted)
    count = after.pop(COUNT, None)
    before.pop(COUNT, None)
    return knob == CONFIG and _is_count(count) and bool(before) and before == after


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_TOKENS


def _entries(value: Value) -> dict[str, object]:
    try:
        entries = json.loads(value) if isinstance(value, str) else {}
    except ValueError:
        return {}
    return dict(entries) if isinstance(entries, dict) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnDrafts:
    """A checkpoint that drafts by itself. `begins`: of its repository's name, in lower case."""

    begins: str
    since: tuple[int, int]
    source: str


@cache
def _read_own_drafts() -> tuple[OwnDrafts, ...]:
    return read_rows(FOLDER / "own_drafts.toml", "checkpoint", OwnDrafts)


def find_own_drafts(model: str) -> OwnDrafts | None:
    name = model.lower()
    return next((row for row in _read_own_drafts() if name.startswith(row.begins)), None)
