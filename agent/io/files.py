"""Files that are replaced as a whole."""

import os
from pathlib import Path


def replace_file(file: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a draft beside the file and rename it, so that a crash leaves the old content or the new one.

    A power cut may lose both: nothing is flushed to the disk. `mode` holds for a new draft. Raises OSError.
    """
    draft = file.with_suffix(".new")
    with os.fdopen(
        os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode), "wb"
    ) as opened:
        opened.write(content)
    draft.replace(file)
