"""Describes errors of a configuration: the key, the value found, and the nearest valid name."""

import reprlib
from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING

from flettner.redaction import MASK, secret_name

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails  # its import takes 0.1 s, which `flettner lint` saves

EXAMPLES = {  # by the class of a table that is often written as one value
    "ObjectiveTable": '{ under = "500ms", share = 0.95 }',
    "ErrorsTable": "{ share = 0.999 }",
    "StepTable": '{ weight = 10, requests = 200, at_least = "2m", at_most = "1h" }',
}
LONGEST_S = 365 * 24 * 3600.0  # some clocks and sockets overflow after a few centuries
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


def suggest_name(word: str, options: Iterable[str]) -> str:
    """Return `; did you mean X?`, or the list of known names, as the end of an error text."""
    names = sorted(options)
    near = get_close_matches(word.lower().replace("-", "_"), names, n=1)
    if near:
        return f"; did you mean {near[0]}?"
    return f" (there are: {', '.join(names)})" if names else ""


def describe_problem(details: "ErrorDetails", key: str = "") -> str:
    """Describe a pydantic error as the end of a sentence that starts with the path of its key."""
    kind, context = details["type"], details.get("ctx", {})
    if kind == "missing":
        return "missing; it is required"
    if kind == "value_error":
        return str(context["error"])
    keys = [key, *(part for part in details["loc"] if isinstance(part, str))]
    value = quote(details["input"], " ".join(keys))
    if kind == "literal_error":
        return f"must be {context['expected']}, not {value}"
    if _MUST_BE.get(kind) == "a list" and isinstance(details["input"], dict):
        return "must be a list of tables: write two brackets, [[…]], or [{…}]"
    if example := EXAMPLES.get(str(context.get("class_name"))):
        return f"must be a table like {example}, not {value}"
    if kind in _MUST_BE:
        return f"must be {_MUST_BE[kind]}, not {value}"
    message = details["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    return f"must be {message}, not {value}" if message != details["msg"] else f"{message}, not {value}"


def quote(value: object, keys: str = "") -> str:
    """Return the value as written, shortened; masked if its keys name a secret."""
    return MASK if secret_name(keys) else reprlib.repr(value)


def check_periods(options: object, *names: str) -> None:
    """Raise ValueError, naming the field, unless each named field is a number of seconds above 0."""
    for name in names:
        value = getattr(options, name)
        if isinstance(value, bool) or not 0 < value <= LONGEST_S:
            raise ValueError(
                f"{name} must be a number of seconds above 0 and at most a year, not {quote(value)}"
            )
