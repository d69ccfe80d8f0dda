"""Checks of the options of a forge. Each raises ValueError."""

import re
from urllib.parse import urlsplit

_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_PROJECT = re.compile(r"\A[\w.-]+(?:/[\w.-]+)+")


def check_address(text: str) -> None:
    parts = urlsplit(text)
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
    if not (parts.hostname and is_safe):
        raise ValueError(f"api = {text[:200]!r}: write an address with https://")


def check_project(text: str) -> None:
    if not _PROJECT.fullmatch(text) or ".." in text:
        raise ValueError(f"project = {text[:200]!r}: write OWNER/NAME")
