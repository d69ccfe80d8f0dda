"""The pages of several servers behind one name, read as one.

Each pod becomes an engine of its own, as a data-parallel rank of one process is.
"""

from collections.abc import Mapping

_ENGINE_LABEL = b'engine="'


def join_pages(pages: Mapping[str, bytes]) -> bytes:
    """Return the pages of several servers as one, each engine's label with its server's address before it."""
    if len(pages) == 1:
        return next(iter(pages.values()))
    return b"\n".join(
        page.replace(_ENGINE_LABEL, _ENGINE_LABEL + address.encode() + b"/")
        for address, page in pages.items()
    )
