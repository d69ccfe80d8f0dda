"""Generates the pages of docs/reference:

python -m tests.integration.docs.reference
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.integration.docs import config_page, knobs_page, rest_page, rules_page

FOLDER = Path(__file__).parents[3] / "docs" / "reference"
PAGES: Mapping[str, Callable[[], str]] = {
    "config.md": config_page.document,
    "rest.md": rest_page.document,
    "rules.md": rules_page.document,
    "knobs.md": knobs_page.document,
}


def write() -> None:
    for name, document in PAGES.items():
        (FOLDER / name).write_text(document())


if __name__ == "__main__":
    write()
