"""Digests that do not depend on formatting: SHA-256 over canonical JSON (RFC 8785)."""

import hashlib
from pathlib import Path
from typing import Any

import rfc8785

"".encode("utf-16be")  # loads the codec that rfc8785 sorts keys by: the machine must import nothing


def digest(value: Any) -> str:  # noqa: ANN401
    """`sha256:<hex>` of a JSON value. Raises rfc8785.CanonicalizationError for NaN and ints above 2**53."""
    return "sha256:" + hashlib.sha256(rfc8785.dumps(value)).hexdigest()


def short_digest(value: Any) -> str:  # noqa: ANN401
    """12 hexadecimal digits of `digest`, for names and labels."""
    return digest(value).removeprefix("sha256:")[:12]


def site_digest(target: str, state_dir: Path) -> str:
    """Tells what the daemon of one state directory made for a target from what other daemons made."""
    return short_digest([target, str(state_dir.absolute())])
