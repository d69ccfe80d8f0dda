"""URLs and secrets of receivers, from the config or from files."""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from flettner.agent.domain.errors import NoticeError
from flettner.primitives.files import read_file

LONGEST = 4096


def read_secret(path: str) -> str:
    """Read the single line of the file. Raises NoticeError with its path but not its content.

    The error allows a retry, because an operator may fix the file."""
    try:
        secret = read_file(Path(path), LONGEST).decode("utf-8").strip()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", "it is not UTF-8")
        raise NoticeError(f"{path}: cannot be read: {why}", passes=True) from None
    if not secret or not secret.isprintable():
        raise NoticeError(f"{path}: must hold one line of text", passes=True)
    return secret


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlReceiver:
    """A receiver with a URL, given or in a file. Raises ValueError unless exactly one is set."""

    url: str = ""
    url_file: str = ""

    def __post_init__(self) -> None:
        if bool(self.url) == bool(self.url_file):
            raise ValueError("give one of url and url_file: a secret URL belongs in a file")
        if self.url and not is_url(self.url):
            raise ValueError("url must begin with https:// or http://, and have a host")

    def read_url(self) -> str:
        """Return the URL. Raises NoticeError."""
        url = self.url or read_secret(self.url_file)
        if not is_url(url):
            why = f"{self.url_file}: must hold a URL that begins with https:// or http://"
            raise NoticeError(why, passes=True)
        return url


def is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return False
