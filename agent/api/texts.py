"""Texts that people send: bounded in bytes, and without characters that change how a text is displayed."""

from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

LONGEST = 500
"""Bytes of UTF-8: a text becomes a part of the audit journal, whose size is bounded."""

_HIDDEN = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, all but tab and newline
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional: they reorder what is shown
    r"\u200b\u2028\u2029\u2060-\u2065\ufeff"  # invisible, or a line break in some programs only
)
PLAIN = rf"^[^{_HIDDEN}]*$"
NOT_BLANK = rf"^[^{_HIDDEN}]*[^\s{_HIDDEN}][^{_HIDDEN}]*$"


def _bounded(text: str) -> str:
    if len(text.encode()) > LONGEST:
        raise ValueError(f"must be at most {LONGEST} bytes of UTF-8")
    return text


_DESCRIPTION = f"at most {LONGEST} bytes of UTF-8, without control and bidirectional characters"
Reason = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=LONGEST, pattern=NOT_BLANK),
    AfterValidator(_bounded),
    Field(description=_DESCRIPTION),
]
Comment = Annotated[
    str,
    StringConstraints(strip_whitespace=True, max_length=LONGEST, pattern=PLAIN),
    AfterValidator(_bounded),
    Field(description=_DESCRIPTION),
]
