"""The file that keeps what was learned of a target over a restart of the daemon."""

from dataclasses import dataclass
from pathlib import Path

import structlog

from agent.domain.ports import Now
from agent.io.files import replace_file
from agent.prediction.saved_model import SavedModel, decode, law_key
from vllm_facts.deployment import Deployment

log = structlog.get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class ModelFile:
    """Read once at the start; it counts where flags, version of vLLM and GPU are those of the writing.

    These are unknown until something was measured.
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

    def take(self, case: Deployment) -> SavedModel | None:
        """What the file holds, once, if it is of this deployment."""
        found = self._found
        if found is None or found.key != law_key(case):
            return None
        self._found = None
        return found

    def give_up(self) -> None:
        """A lesson was learned from other servers."""
        if self._found is not None:
            self._found = None
            self._ignore("flags, GPU or version of vLLM are others")

    def write(self, saved: bytes) -> None:
        """A full disk costs only what a restart would keep."""
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
