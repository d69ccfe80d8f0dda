"""The context length that vLLM accepts for a model, from its config and RoPE scaling.

As vllm/config/model.py, _get_and_verify_max_len; vLLM refuses a longer context at start.
"""

import json
from dataclasses import dataclass, field

from flettner.vllm_facts.defaults import positive_int
from flettner.vllm_facts.json_flags import parse_json_part
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.effective_flags import is_at_least, json_entries
from flettner.vllm_facts.values import Knob, Value

LENGTH, OVERRIDES = "max_model_len", "hf_overrides"
POSITIONS, LONGEST = "max_position_embeddings", "model_max_length"
ALLOWED = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
YARN_COUNTED_IN = (0, 32)  # verified with 0.32: YaRN needs max_position_embeddings too
_YARN = frozenset({"yarn", "deepseek_yarn", "deepseek_llama_scaling"})
_SCALED_ALREADY = frozenset({"su", "longrope", "llama3", "default", *_YARN})
_ROPE = ("rope_scaling", "rope_parameters")
_INNER = "text_config"  # of a multimodal model


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextExceeded:
    """The tokens of context that the flags request, and those that the model supports."""

    requested: int
    supported: int
    to: dict[Knob, Value] = field(default_factory=dict)  # the fix
    yarn: bool = False  # YaRN is requested without max_position_embeddings


@dataclass(frozen=True, slots=True, kw_only=True)
class StretchedContext:
    """A scaling of positions by YaRN that the flags ask for. `without`: the change that takes it back."""

    factor: float
    original: int  # tokens that the model has without it
    without: dict[Knob, Value]


def find_yarn(config: ServeConfig) -> StretchedContext | None:
    """YaRN by flags; None if the flags ask for none, or do not say from which length."""
    over = _overrides(config)
    inner = over.get(_INNER)
    for part in (over, inner if isinstance(inner, dict) else {}):
        for rope in (rope for key in _ROPE if isinstance(rope := part.get(key), dict)):
            factor, original = rope.get("factor"), _number(rope.get("original_" + POSITIONS))
            if rope.get("rope_type", rope.get("type")) not in _YARN or not original:
                continue
            if isinstance(factor, (int, float)) and factor > 1:
                return StretchedContext(factor=factor, original=original, without=_without_rope(config))
    return None


def _without_rope(config: ServeConfig) -> dict[Knob, Value]:
    """The flags without their entries about positions; other entries stay."""
    to: dict[Knob, Value] = {}
    names = {*_ROPE, POSITIONS, LONGEST}
    for knob in config.setting:
        path = knob.split(".")
        if knob == _ROPE[0] or (path[0] == OVERRIDES and names & set(path[1:3])):
            to[knob] = None
    if given := json_entries(config, OVERRIDES):
        inner = given.get(_INNER)
        rest = {name: value for name, value in given.items() if name not in names}
        if isinstance(inner, dict):
            rest[_INNER] = {name: value for name, value in inner.items() if name not in names}
        rest = {name: value for name, value in rest.items() if value != {}}
        to[OVERRIDES] = json.dumps(rest) if rest else None
    return to


def allows_longer_context(config: ServeConfig) -> bool:
    """Whether VLLM_ALLOW_LONG_MAX_MODEL_LEN turns the refusal into a warning."""
    return config.env.get(ALLOWED, "").strip().lower() in {"1", "true"}


def find_exceeded_context(config: ServeConfig) -> ContextExceeded | None:
    """The excess of max_model_len over the model's context; None if it fits or if either is unknown."""
    requested, own = positive_int(config.setting, LENGTH), config.model.max_len if config.model else None
    over = _overrides(config)
    own = _number(over[POSITIONS]) if POSITIONS in over else own
    if requested is None or own is None or "hf_config_path" in config.setting or "text_config" in over:
        return None
    rope = next((rope for key in _ROPE if isinstance(rope := over.get(key), dict)), {})
    kind, factor = str(rope.get("rope_type", rope.get("type", "default"))), rope.get("factor", 1.0)
    if not isinstance(factor, (int, float)) or (kind in _YARN and not is_at_least(config, YARN_COUNTED_IN)):
        return None
    own = max(own if kind in _SCALED_ALREADY else round(own * factor), _number(over.get(LONGEST)) or 0)
    if requested <= own:
        return None
    reach = round((_number(rope.get("original_" + POSITIONS)) or 0) * factor) if kind in _YARN else 0
    if requested <= reach:
        to: dict[Knob, Value] = {f"{OVERRIDES}.{POSITIONS}": reach}
        if OVERRIDES in config.setting:
            to = {OVERRIDES: json.dumps({**over, POSITIONS: reach})}
        return ContextExceeded(requested=requested, supported=own, to=to, yarn=True)
    return ContextExceeded(requested=requested, supported=own, to={LENGTH: own})


def _overrides(config: ServeConfig) -> dict[str, object]:
    """The entries of --hf-overrides, given as JSON or dotted, and of the old --rope-scaling."""
    over = json_entries(config, OVERRIDES)
    if _ROPE[0] in config.setting:
        over.setdefault(_ROPE[0], parse_json_part(config.setting[_ROPE[0]]))
    for knob, value in config.setting.items():
        first, _, rest = knob.partition(".")
        if first == OVERRIDES and rest:
            *path, last = rest.split(".")
            inside = over
            for key in path:
                below = inside.setdefault(key, {})
                if not isinstance(below, dict):
                    return over
                inside = below
            inside[last] = parse_json_part(value)
    return over


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
