"""Files in the form of an xDS response: read whole or reported as broken, and replaced as a whole."""

import threading
import time
from pathlib import Path

from flettner.actuators.envoy.split import Json
from flettner.agent.domain.errors import ActError
from flettner.primitives.bounded import parse_json
from flettner.primitives.files import replace_file


class BrokenFileError(ActError):
    """A file has content that flettner did not write."""


def read_response(path: Path) -> tuple[str, tuple[Json, ...]] | None:
    """version_info and resources; None without such a file. Raises BrokenFileError."""
    try:
        content = parse_json(path.read_bytes())
        return str(content["version_info"]), tuple(dict(resource) for resource in content["resources"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BrokenFileError(f"{path} cannot be read ({error!r}); the next route replaces it") from error


def replace_response(path: Path, content: bytes) -> None:
    """Replace by rename: Envoy never reads half a file, not even after a power cut."""
    replace_file(path, content, durable=True)


def write_s(folder: Path) -> float:
    """Seconds until a file of a few kilobytes is on disk; 0.0 if the disk is full."""
    probe = folder / f"flettner-write-{threading.get_native_id()}"
    begun_s = time.monotonic()
    try:
        replace_response(probe, bytes(8192))
        return time.monotonic() - begun_s
    except OSError:
        return 0.0  # a daemon that starts on a full disk waits for it
    finally:
        probe.unlink(missing_ok=True)
