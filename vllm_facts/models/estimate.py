"""The size and format that the name of an unknown model states. No change may depend on this estimate."""

import re

from flettner.vllm_facts.models.lookup import canonical_name, is_open, name_words
from flettner.vllm_facts.models.table import find_row
from flettner.vllm_facts.serve_config import Model
from flettner.vllm_facts.weight_formats import NONE, format_from_name

_SIZE = re.compile(r"(?:(\d{1,2})x)?(\d{1,4}(?:\.\d{1,3})?)([bt])")
_ACTIVE = re.compile(r"a(\d{1,3}(?:\.\d{1,3})?)b")
_UNITS = {"b": 1e9, "t": 1e12}


def estimate_model(name: str) -> Model | None:
    """The size and format that the name states; None without a size, or with a placeholder in it."""
    plain = canonical_name(name)
    parameters, active = _published_size(plain) or _stated_size(plain.split("-"))
    if parameters is None or is_open(plain):
        return None
    weights = format_from_name(name_words(plain)) or NONE
    return Model(
        name=name,
        parameters=parameters,
        active_parameters=active,
        weight_bytes=weights.size,
        quantization=weights.method,
        source="the model's name",
    )


def describe_estimate(model: Model) -> str:
    """`about 7 billion parameters in awq`"""
    count = (model.parameters or 0) / 1e9
    return f"about {count:,.4g} billion parameters in {model.quantization or '16 bit'}"


def _published_size(plain: str) -> tuple[float, float | None] | None:
    """The published size, if the table has nothing else of the model."""
    words = plain.split("-")
    for length in range(len(words), 0, -1):
        row = find_row("-".join(words[:length]))
        if row is not None and not row.layers:
            return row.parameters, None if row.active is None else row.active * 1e9
    return None


def _stated_size(words: list[str]) -> tuple[float | None, float | None]:
    """The largest number of parameters, and the number for one token: "30b", "a3b", "8x7b"."""
    sizes, active = [], None
    for word in words:
        if size := _SIZE.fullmatch(word):
            sizes.append(int(size[1] or 1) * float(size[2]) * _UNITS[size[3]])
        elif active_size := _ACTIVE.fullmatch(word):
            active = float(active_size[1]) * 1e9
    return max(sizes, default=None), active
