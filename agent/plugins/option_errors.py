"""Saying what is wrong with a configuration: the key, what was found, what was probably meant."""

import reprlib
from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING

from vllm_facts.masking import MASK, secret_name

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails  # a tenth of a second, which `trimtab lint` need not wait

_MUST_BE = {
    "bool_type": "true or false",
    "dict_type": "a table",
    "dataclass_type": "a table",
    "mapping_type": "a table",
    "model_type": "a table",
    "float_type": "a number",
    "finite_number": "a finite number",
    "int_type": "a whole number",
    "string_type": "a string",
    "tuple_type": "a list",
    "list_type": "a list",
}


def meant(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or else the names there are, to end a complaint with."""
    names = sorted(known)
    near = get_close_matches(word.lower().replace("-", "_"), names, n=1)
    if near:
        return f"; did you mean {near[0]}?"
    return f" (there are: {', '.join(names)})" if names else ""


def problem(details: "ErrorDetails", key: str = "") -> str:
    """What pydantic found, as the end of a sentence that begins with the keys that lead to it."""
    kind, context = details["type"], details.get("ctx", {})
    if kind == "missing":
        return "missing; it is required"
    if kind == "value_error":
        return str(context["error"])
    keys = [key, *(part for part in details["loc"] if isinstance(part, str))]
    found = shown(details["input"], " ".join(keys))
    if kind == "literal_error":
        return f"must be {context['expected']}, not {found}"
    if kind in _MUST_BE:
        return f"must be {_MUST_BE[kind]}, not {found}"
    said = details["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    return f"must be {said}, not {found}" if said != details["msg"] else f"{said}, not {found}"


def shown(value: object, keys: str = "") -> str:
    """The value as the operator wrote it, shortened; not if its keys say that it is a secret."""
    return MASK if secret_name(keys) else reprlib.repr(value)
