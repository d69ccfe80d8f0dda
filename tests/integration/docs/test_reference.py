"""The pages that are made of the code say what the code says."""

import pytest

from agent.config.tables import FileTable
from tests.integration.docs.config_page import rows, tables
from tests.integration.docs.meanings import MEANINGS
from tests.integration.docs.reference import FOLDER, PAGES

pytestmark = pytest.mark.smoke


@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_the_reference_is_current(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name](), "python -m tests.integration.docs.reference"


def test_every_page_of_the_reference_is_made_of_the_code() -> None:
    assert {page.name for page in FOLDER.glob("*.md")} == set(PAGES)


def test_nothing_is_said_of_a_key_that_the_config_does_not_have() -> None:
    named = [(name, row[0].strip("`")) for name, model in tables(FileTable) for row in rows(model, name)]
    keys = {f"{name}.{key}".lstrip(".") for name, key in named}
    assert keys == set(MEANINGS)
