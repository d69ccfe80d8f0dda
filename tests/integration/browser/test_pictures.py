"""The pictures of the console in the documentation show the present pages."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.integration.browser.conftest import Opened
from tests.integration.browser.pictures import HEIGHT, PICTURES, WIDTH, file_of, measure_likeness

ALIKE = 0.8  # other fonts on the same page: 0.9 and more; another page: below 0.5


@pytest.fixture(scope="module")
def blank(browser: Browser) -> Iterator[Page]:
    page = browser.new_page()
    yield page
    page.close()


@pytest.mark.parametrize("name", PICTURES)
def test_the_picture_in_the_documentation_is_current(opened: Opened, blank: Page, name: str) -> None:
    page = opened(PICTURES[name], width=WIDTH)
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    page.wait_for_selector("figure canvas")
    page.wait_for_timeout(500)
    now = page.screenshot()

    others = [file_of(other).read_bytes() for other in PICTURES if other != name]
    assert measure_likeness(blank, now, file_of(name).read_bytes()) > ALIKE, (
        "python -m tests.integration.browser.pictures draws it again"
    )
    assert all(measure_likeness(blank, now, other) < ALIKE for other in others)


def test_the_pictures_are_small() -> None:
    assert sum(Path(file_of(name)).stat().st_size for name in PICTURES) < 400_000
