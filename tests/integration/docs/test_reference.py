"""The generated pages are current."""

import pytest

from flettner.agent.config.tables import FileTable
from tests.integration.docs.config_page import rows, tables
from tests.integration.docs.cost_picture import build_curves, draw
from tests.integration.docs.meanings import MEANINGS
from tests.integration.docs.reference import FOLDER, PAGES

pytestmark = pytest.mark.smoke


@pytest.mark.parametrize("name", PAGES)
def test_reference_page_is_current(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name](), "python -m tests.integration.docs.reference"


def test_the_picture_of_the_cost_is_current() -> None:
    picture = (FOLDER.parent / "cost.svg").read_text()

    assert picture == draw(list(build_curves())), "python -m tests.integration.docs.cost_picture"


def test_every_reference_page_is_generated() -> None:
    assert {page.name for page in FOLDER.glob("*.md")} == set(PAGES)


def test_each_described_config_key_exists() -> None:
    named = [(name, row[0].strip("`")) for name, model in tables(FileTable) for row in rows(model, name)]
    keys = {f"{name}.{key}".lstrip(".") for name, key in named}
    assert keys == set(MEANINGS)
