"""Mask secrets in all output: the journal, the logs, the responses of the API.

Masked are strings under a secret name (`api_key`, `HF_TOKEN`, `--api-key V`, `"password": "V"`), passwords in
URLs, and tokens with a known prefix. Counts of tokens are no secrets: names with the word `tokens` are not
masked, nor are numbers after `token` or `key` ("per token: 35 ms").
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from typing import Any

MASK = "***"
_SAFE_INTEGER = 2**53 - 1  # RFC 8785 (canonical JSON) knows no larger one

_PLAIN = r"(?:api[_-]?keys?|secrets?|password|passwd|passphrase|credentials?|authorization)"
_ANY = rf"(?:{_PLAIN}|token|keys?|cookie)"
_NAME = re.compile(rf"(?i){_ANY}(?![a-z])")
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*")

_VALUE = r"(?:\"[^\"]*\"|'[^']*'|[^\s\"',;&)\]}]+)"
_REST = r"(?![a-z])[\w.-]{0,40}"  # of the name; bounded, or a long line of "key_key_key" takes for ever
_IS = r"[\"']?\s{0,9}[:=]\s{0,9}[\[(]?\s{0,9}"
_NOTHING = r"None\b|missing;|(?:bearer|basic)\s"  # "secret_file: missing; it is required"
_NUMBER = r"[\d.]+(?:\s|$|[,;)\]}%a-z])"
_IN_TEXT = (
    re.compile(r"(?i)(\b(?:bearer|basic)\s{1,9})[\w.~+/=-]{6,}"),
    re.compile(  # --api-key V, --api-key=V, ['--api-key', 'V']
        rf"(?i)((?<![\w-])--?[\w.-]{{0,40}}{_ANY}{_REST}(?:=|[\"']?,?\s{{1,9}}))(?![\"']?-){_VALUE}"
    ),
    re.compile(rf"(?i)({_PLAIN}{_REST}{_IS})(?!{_NOTHING}){_VALUE}"),  # "api_key": ["V"]
    re.compile(rf"(?i)({_ANY}{_REST}{_IS})(?!{_NOTHING}|{_NUMBER}){_VALUE}"),  # HF_TOKEN=V
    re.compile(
        r"(?i)(\b[a-z][a-z0-9+.-]{0,20}://[^\s/:@]{0,99}:)[^\s@'\"]{1,999}(?=@)"
    ),  # http://user:V@host
    re.compile(r"()\b(?:hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|fl_[0-9a-f]{8}_[\w-]{16,})"),
)


def secret_name(name: str) -> bool:
    """Return whether a flag, environment variable or key of this name holds a secret."""
    return _NAME.search(name) is not None


def mask(text: str) -> str:
    """Replace every recognised secret in the text with `***`."""
    for pattern in _IN_TEXT:
        text = pattern.sub(rf"\1{MASK}", text)
    return text


def masked(value: object, *, name: str = "") -> Any:  # noqa: ANN401 - any JSON value
    """Convert the value to JSON without secrets; dataclasses become objects.

    Infinite, NaN and too large numbers become strings, undecodable bytes of a log `?`. `name` is the key of
    the value.
    """
    match value:
        case None | int() | float() | str():  # first, for speed: a state holds a thousand counts
            return _masked_scalar(value, name)
        case Mapping():
            inherited = name if secret_name(name) else ""
            return {str(key): masked(item, name=inherited or str(key)) for key, item in value.items()}
        case list() | tuple():
            return _masked_list(value, name)
        case set() | frozenset():
            return _masked_list(sorted(value, key=str), name)
        case _ if is_dataclass(value):
            return {
                field.name: masked(getattr(value, field.name), name=field.name) for field in fields(value)
            }
        case _:
            return _masked_scalar(value, name)


def _masked_scalar(value: object, name: str) -> bool | float | str | None:
    match value:
        case None | bool():
            return value
        case Enum():
            return _masked_scalar(value.value, name)
        case int():
            return value if -_SAFE_INTEGER <= value <= _SAFE_INTEGER else str(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case str():
            text = value if value.isascii() else value.encode("utf-8", "replace").decode()
            return MASK if name and text and secret_name(name) else mask(text)
        case datetime():
            return value.isoformat()
        case _:
            return mask(str(value))


def _masked_list(values: Sequence[object], name: str) -> list[Any]:
    """Return a list, or a command line in which the word after `--api-key` is the secret."""
    if set(map(type, values)) == {int}:  # for speed: a state holds a thousand counts
        return [count if -_SAFE_INTEGER <= count <= _SAFE_INTEGER else str(count) for count in values]  # type: ignore[operator]
    clean: list[Any] = []
    after_flag = False
    for value in values:
        hidden = after_flag and isinstance(value, str) and not value.startswith("-")
        clean.append(MASK if hidden else masked(value, name=name))
        after_flag = isinstance(value, str) and _FLAG.fullmatch(value) is not None and secret_name(value)
    return clean
