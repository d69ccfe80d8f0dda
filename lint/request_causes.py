"""What rows of known errors ask or change where single requests fail, and the server runs. Pure."""

import json
import re
from collections.abc import Mapping
from math import ceil

from flettner.lint.rules.flag_values import find_meant_value, find_misfit
from flettner.lint.rules.serving import generates_text
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.effective_flags import is_at_least, is_older_than, json_entries
from flettner.vllm_facts.sizing.limits import round_length
from flettner.vllm_facts.start_facts import find_last
from flettner.vllm_facts.values import Knob, Value

_LEN = "max_model_len"
_USABLE, _AT_ONCE = 4096, 4  # tokens: room for a system prompt, a few turns and an answer; such requests
_FILLS, _WORTHWHILE = 0.9, 1.25  # of the cache, one request; longer than now and than what was asked
_ANSWERS = re.compile(
    r'"POST /v1/(?:chat/)?completions HTTP/1\.[01]" (?:200|400)\b|generation throughput: (?!0\.0 )'
)
_READS = re.compile(r'"POST (?:/v\d)?/(?:embeddings|score|rerank|classify|pooling|embed)\b')
_KEEP_ALIVE, _IDLE_S = "VLLM_HTTP_TIMEOUT_KEEP_ALIVE", 120
_SOUND, _SOUND_MB = "VLLM_MAX_AUDIO_CLIP_FILESIZE_MB", 25
_STRUCTURED, _STRUCTURED_SINCE = "structured_outputs_config", (0, 11)
_COMPACT_BACKENDS = ("xgrammar", "guidance")
_KEEP_SINCE = (0, 9)  # 0.9.1 reads the variable
_ENDED = re.compile(r"died unexpectedly|EngineDeadError|Engine core proc\w* .*died|Shutting down|\bKilled\b")


def lengthen_context(match: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    """A length that the model reads and the measured cache holds, where the flag gives a shorter one."""
    given, start, model = config.setting.get(_LEN), config.start, config.model
    most, held = model.max_len if model else None, start.kv_tokens if start else None
    if not isinstance(given, int) or given != int(match["most"]) or most is None or held is None:
        return {}
    if given < _USABLE:
        return {_LEN: _USABLE} if most >= _USABLE and held >= _AT_ONCE * _USABLE else {}
    longest = min(most, int(held * _FILLS), 2 * given)
    asked = max((int(match[name]) for name in ("total", "asked") if match.groupdict().get(name)), default=0)
    return {_LEN: round_length(longest)} if longest >= _WORTHWHILE * max(given, asked) else {}


def compact_json(_: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    """JSON without blanks, with a back end that knows the choice."""
    given = json_entries(config, _STRUCTURED)
    dotted = any(knob.startswith(f"{_STRUCTURED}.") for knob in config.setting)
    if dotted or not is_at_least(config, _STRUCTURED_SINCE):
        return {}
    backend = given.get("backend")
    chosen = backend if backend in _COMPACT_BACKENDS else _COMPACT_BACKENDS[0]
    return {_STRUCTURED: json.dumps({**given, "backend": chosen, "disable_any_whitespace": True})}


def answers_in_text(config: ServeConfig) -> bool:
    """Whether the log or a parser shows that the server writes answers."""
    parses = config.setting.get("tool_call_parser") or config.setting.get("reasoning_parser")
    writes = parses or (find_last(_ANSWERS, config.log) and not find_last(_READS, config.log))
    return generates_text(config) and bool(writes)


def may_only_read(config: ServeConfig) -> bool:
    return not answers_in_text(config)


def keep_connections(_: re.Match[str], config: ServeConfig) -> Mapping[str, str | None]:
    """Longer than the pools of usual proxies keep an idle connection."""
    given = config.env.get(_KEEP_ALIVE, "")
    longer = given.isdecimal() and int(given) >= _IDLE_S
    return {} if longer or is_older_than(config, _KEEP_SINCE) else {_KEEP_ALIVE: str(_IDLE_S)}


def admit_sound(match: re.Match[str], config: ServeConfig) -> Mapping[str, str | None]:
    """The next multiple of the default that holds the refused file, if the log tells its size."""
    size = float(match["size"] or 0)
    given = config.env.get(_SOUND, "")
    if not size or (given.isdecimal() and int(given) > size):
        return {}
    return {_SOUND: str(_SOUND_MB * ceil((size + 1) / _SOUND_MB))}


def leaks_memory(config: ServeConfig) -> bool:
    """Whether this release is known to lose memory of the host while it serves."""
    served = config.start is not None and config.start.serves
    return served and is_at_least(config, (0, 24)) and is_older_than(config, (0, 28))


def ends_before_it_serves(config: ServeConfig) -> bool:
    """Whether a start failed, by a log that shows its engine and no answer."""
    start = config.start
    return start is not None and start.reached_engine and not start.serves


def keeps_its_memory(config: ServeConfig) -> bool:
    return not (leaks_memory(config) or ends_before_it_serves(config))


def serves_on(config: ServeConfig) -> bool:
    """Whether the server is seen to answer, and does not end."""
    served = config.start is not None and config.start.serves
    return served and not any(map(_ENDED.search, config.log))


def speculates_past_reasoning(config: ServeConfig) -> bool:
    """Whether drafts run over the end of the reasoning in a release that loses the grammar there."""
    drafts = config.setting.get("speculative_config") or config.setting.get("spec_method")
    return bool(drafts and config.setting.get("reasoning_parser")) and is_older_than(config, (0, 27))


def has_no_meant_value(config: ServeConfig) -> bool:
    """Whether the flag rules replace no value that the release refuses."""
    refused = ((knob, value) for knob, value in config.setting.items() if find_misfit(config, knob, value))
    return all(find_meant_value(config, knob, value) is None for knob, value in refused)


FUNCTIONS = (
    compact_json,
    has_no_meant_value,
    lengthen_context,
    answers_in_text,
    may_only_read,
    keep_connections,
    admit_sound,
    leaks_memory,
    ends_before_it_serves,
    keeps_its_memory,
    serves_on,
    speculates_past_reasoning,
)
