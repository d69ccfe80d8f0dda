"""The file that keeps the learned model of a target over a restart of the daemon."""

from dataclasses import dataclass
from pathlib import Path

import structlog

from flettner.agent.domain.ports import Now
from flettner.agent.prediction.saved_model import SavedModel, decode, law_key
from flettner.primitives.files import replace_file
from flettner.vllm_facts.serve_config import ServeConfig

log = structlog.get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class ModelFile:
    """Read once at the start; used if flags, version of vLLM and GPU are the same as when it was written.

    These are unknown until the first measurement.
    """

    path: Path
    now: Now
    _found: SavedModel | None = None
    _is_writable: bool = True

    def read(self, target: str) -> None:
        try:
            self._found = decode(self.path.read_bytes(), target, self.now())
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            self._ignore(str(error))

    def take(self, config: ServeConfig) -> SavedModel | None:
        """Return the content once, if it was written for these flags on this host; else None."""
        saved = self._found
        if saved is None or saved.key != law_key(config):
            return None
        self._found = None
        return saved

    def give_up(self) -> None:
        """Discard the content: the first lesson came from other flags or another host."""
        if self._found is not None:
            self._found = None
            self._ignore("it was written for other flags, another GPU or another version of vLLM")

    def write(self, saved: bytes) -> None:
        """Write the file. An error is logged: only a restart would read it."""
        try:
            replace_file(self.path, saved)
        except OSError as error:
            if self._is_writable:
                log.warning("prediction.file_unwritable", file=str(self.path), why=error.strerror)
            self._is_writable = False
        else:
            self._is_writable = True

    def _ignore(self, why: str) -> None:
        log.warning("prediction.file_ignored", file=str(self.path), why=why)
