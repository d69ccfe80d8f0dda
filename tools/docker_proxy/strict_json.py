"""Read JSON so that no second reader can interpret it differently.

dockerd (Go) takes the last of two equal keys, matches keys without regard to case (the long s and the Kelvin
sign included), stops at the end of the first value, and repairs broken UTF-8. Ambiguous input is refused here
or, for the case of keys, by the tables of known fields; the engine receives JSON written from the checked
value.
"""

import json
from typing import Any, NoReturn

from flettner.tools.docker_proxy.errors import Refused

Json = dict[str, Any]
DEEPEST = 32


def parse(body: bytes) -> Json:
    """Return the one object in `body`. Raises Refused."""
    try:
        value = json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_unique_keys,
            parse_constant=_refuse_constant,
            parse_float=_refuse_fraction,
        )
    except UnicodeDecodeError:
        raise Refused("the body is not UTF-8") from None
    except RecursionError:
        raise Refused("the body is nested too deeply") from None
    except ValueError:  # its text may quote the body, which holds secrets
        raise Refused("the body is not one JSON value") from None
    if not isinstance(value, dict):
        raise Refused("the body is not a JSON object")
    _check_depth(value, DEEPEST)
    return value


def encode(value: Json) -> bytes:
    return json.dumps(value, ensure_ascii=True, allow_nan=False).encode()


def _unique_keys(pairs: list[tuple[str, Any]]) -> Json:
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise Refused(f"the key {twice[:60]!r} occurs twice in one object")
    return dict(pairs)


def _refuse_constant(text: str) -> NoReturn:
    raise Refused(f"{text} is not JSON")


def _refuse_fraction(text: str) -> NoReturn:
    raise Refused(f"{text[:40]}: no field of the Engine takes a fraction")


def _check_depth(value: object, depth: int) -> None:
    """Refuse half surrogate pairs, NUL, and nesting deeper than `depth`."""
    if depth == 0:
        raise Refused(f"the body is nested more than {DEEPEST} deep")
    match value:
        case str():
            if any(char == "\0" or "\ud800" <= char <= "\udfff" for char in value):
                raise Refused("a text in the body holds a NUL or half a surrogate pair")
        case list():
            for inner in value:
                _check_depth(inner, depth - 1)
        case dict():
            for name, inner in value.items():
                _check_depth(name, depth - 1)
                _check_depth(inner, depth - 1)
        case _:
            pass
